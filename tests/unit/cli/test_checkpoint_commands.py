import json
import shutil

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.digest import digest
from xrex.checkpoint.manager import Checkpoints
from xrex.cli.checkpoint import app
from xrex.errors import ConfigError
from xrex.schema.positions import PartitionPosition, TopicPositions


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run")
    checkpoints = Checkpoints(run_dir / "checkpoints", CheckpointConfig(), merge_progress=lambda parts: parts[0])
    checkpoints.prepare()
    for step in (10, 20):
        topic = TopicPositions(
            "clicks", None, {0: PartitionPosition(step, 1, 99), 1: PartitionPosition(0, end_offset=5)}
        )
        files = {"config.json": b"{}\n", "run.json": b"{}\n"}
        checkpoints.save(step, {"w": jnp.arange(8) + step}, positions=topic, progress={}, files=files)
    checkpoints.close()
    return run_dir


@pytest.fixture
def run_dir(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


def test_list_shows_the_steps_and_what_an_incomplete_one_lacks(run_dir):
    (run_dir / "checkpoints" / "20" / "run.json").unlink()
    for folder in (run_dir, run_dir / "checkpoints"):
        lines = call("list", folder).stdout.splitlines()
        assert lines[0].split() == ["step", "complete", "bytes", "lacks"]
        assert lines[1].split()[:2] == ["10", "yes"]
        assert lines[2].split() == ["20", "no", "-", "no", "run.json"]
    ten, twenty = json.loads(call("list", run_dir, "--json").stdout)
    files = [path for path in (run_dir / "checkpoints" / "10").rglob("*") if path.is_file()]
    beside = sum(
        p.stat().st_size for p in files if p.name in ("checksums.json", "commit_success.txt", "_CHECKPOINT_METADATA")
    )
    assert ten == {"step": 10, "complete": True, "bytes": sum(p.stat().st_size for p in files) - beside, "lacks": []}
    assert twenty == {"step": 20, "complete": False, "bytes": None, "lacks": ["no run.json"]}


def test_list_of_a_run_that_never_saved_is_empty(tmp_path):
    assert call("list", tmp_path).stdout == "none\n"
    assert json.loads(call("list", tmp_path, "--json").stdout) == []


def test_list_of_nothing_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        call("list", tmp_path / "missing")


def test_positions_shows_the_next_row_of_every_partition_of_the_newest_step(run_dir):
    lines = [line.split() for line in call("positions", run_dir).stdout.splitlines()]
    assert lines == [
        ["topic", "partition", "offset", "row", "end_offset", "timestamp_ms"],
        ["clicks", "0", "20", "1", "-", "99"],
        ["clicks", "1", "0", "0", "5", "-"],
    ]
    as_json = call("positions", run_dir / "checkpoints" / "10", "--json").stdout
    assert as_json == (run_dir / "checkpoints" / "10" / "positions.json").read_text()


def test_the_first_word_of_digest_is_the_digest(run_dir):
    step = run_dir / "checkpoints" / "20"
    assert call("digest", run_dir).stdout.split() == [digest(step), str(step)]


def test_a_path_without_a_step_is_a_config_error(tmp_path):
    for command in ("positions", "digest"):
        with pytest.raises(ConfigError, match="no complete step here"):
            call(command, tmp_path)
