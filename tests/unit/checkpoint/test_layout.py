import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from xrex.checkpoint import layout
from xrex.errors import CheckpointError, ConfigError, RunError


@pytest.fixture
def steps(opened, folder):
    """A checkpoints folder with complete steps 20 and 30."""
    checkpoints = opened()
    for step in (20, 30):
        checkpoints.save_step(step)
    checkpoints.wait()
    return folder


def _empty(step):
    shutil.rmtree(step)
    step.mkdir()


def _without(name):
    return lambda step: (step / name).unlink()


def _cut_data_file(step):
    largest = max((step / "state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else -1)
    os.truncate(largest, 10)


def _without_data_file(step):
    next(path for path in (step / "state" / "d").iterdir()).unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_empty, "no state, no config.json, no run.json and 4 more"),
        (_without("config.json"), "no config.json"),
        (_without("run.json"), "no run.json"),
        (_without("positions.json"), "no positions.json"),
        (_without("progress.json"), "no progress.json"),
        (_without("checksums.json"), "no checksums.json"),
        (_without("commit_success.txt"), "no commit_success.txt"),
        (_cut_data_file, "has 10 of"),
        (_without_data_file, "no state/d/"),
        (lambda step: os.truncate(step / "config.json", 3), "config.json has 3 of"),
        (lambda step: (step / "checksums.json").write_text("{"), "unreadable checksums.json"),
    ],
)
def test_an_unfinished_newest_step_is_passed_over_with_one_warning(steps, damage, why):
    shutil.copytree(steps / "30", steps / "120")
    damage(steps / "120")
    said = []
    assert layout.newest_step(steps, said.append) == steps / "30"
    [line] = said
    assert line.startswith(f"{steps}/120 is incomplete (")
    assert why in line
    assert line.endswith("step 30 is used instead")
    assert layout.complete_steps(steps) == [20, 30]
    assert list(layout.incomplete_steps(steps)) == [120]


@pytest.mark.parametrize("name", ["120.orbax-checkpoint-tmp", "10.deleted", "0120", "-1", "٣", "notes"])
def test_what_is_not_a_numbered_step_is_no_step(steps, name):
    shutil.copytree(steps / "30", steps / name)
    assert layout.newest_step(steps, pytest.fail) == steps / "30"
    assert layout.complete_steps(steps) == [20, 30]


def test_steps_without_a_complete_one_are_an_error_never_a_new_start(steps):
    for step in (20, 30):
        (steps / str(step) / "run.json").unlink()
    with pytest.raises(CheckpointError, match=f"{steps} has no complete step \\(30: no run.json; 20: no run.json\\)"):
        layout.newest_step(steps, pytest.fail)


def test_a_first_save_that_was_cut_short_is_no_step_and_one_line(tmp_path):
    (tmp_path / "10.orbax-checkpoint-tmp").mkdir()
    said = []
    assert layout.newest_step(tmp_path, said.append) is None
    assert len(said) == 1
    assert "only an unfinished save" in said[0]


def test_a_run_that_never_saved_has_no_step_and_nothing_is_said(tmp_path):
    assert layout.newest_step(tmp_path / "checkpoints", pytest.fail) is None


def test_checkpoint_takes_a_step_a_checkpoints_or_a_run_folder(steps, monkeypatch):
    assert layout.resolve(steps / "20") == steps / "20"
    assert layout.resolve(steps) == steps / "30"
    assert layout.resolve(str(steps.parent)) == steps / "30"
    monkeypatch.chdir(steps.parent)
    assert layout.resolve("checkpoints/20") == steps / "20"


def test_a_step_is_found_under_any_name_it_was_copied_to(steps, tmp_path):
    shutil.copytree(steps / "30", tmp_path / "production")
    assert layout.resolve(tmp_path / "production") == tmp_path / "production"


def test_a_checkpoint_that_is_none_is_a_config_error_that_names_it(steps, tmp_path):
    (tmp_path / "empty").mkdir()
    (steps / "20" / "config.json").unlink()
    for path, says in [
        (tmp_path / "missing", "no such folder"),
        (tmp_path / "empty", "looked for commit_success.txt, for folders named by a step"),
        (steps / "20", "this step is incomplete \\(no config.json\\)"),
        ("https://example.org/x", "only local paths, gs:// and s3:// can be read; copy it to a local folder"),
    ]:
        with pytest.raises(ConfigError, match=f"{path}.*{says}"):
            layout.resolve(path, pytest.fail)


def test_a_bucket_without_its_package_is_a_config_error():
    for address, package in {"gs://bucket/run": "gcsfs", "s3://bucket/run": "s3fs"}.items():
        if find_spec(package) or find_spec("tensorflow"):
            pytest.skip(f"{package} is installed")
        for call in (layout.resolve, layout.open_path):
            with pytest.raises(ConfigError) as caught:
                call(address)
            needs = f"{address[:5]} needs {package}: .venv/bin/pip install {package}"
            assert str(caught.value) == f"checkpoint {address}: {needs}"


@pytest.mark.parametrize("scheme", ["gs", "s3", "https"])
def test_credentials_in_an_address_are_not_echoed(scheme):
    with pytest.raises(ConfigError, match=rf"^checkpoint {scheme}://…@bucket/run: ") as caught:
        layout.resolve(f"{scheme}://key:hunter2@bucket/run", pytest.fail)
    assert "hunter2" not in str(caught.value)


def test_one_trainer_holds_a_run_folder(tmp_path):
    run_dir = tmp_path / "new" / "run"
    held = layout.lock_run_folder(run_dir)
    with pytest.raises(ConfigError, match=f"{run_dir} is in use by process {os.getpid()}"):
        layout.lock_run_folder(run_dir)
    held.close()
    layout.lock_run_folder(run_dir).close()


def test_a_killed_trainer_lets_go_of_its_run_folder(tmp_path):
    code = "import sys, pathlib; from xrex.checkpoint.layout import *; f = lock_run_folder(pathlib.Path(sys.argv[1]));"
    code += "print('held', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"in use by process {child.pid}"):
            layout.lock_run_folder(tmp_path)
        child.kill()
    layout.lock_run_folder(tmp_path).close()


def test_a_run_folder_that_cannot_be_made_is_a_run_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="run folder cannot be written: Not a directory"):
        layout.lock_run_folder(tmp_path / "file" / "run")


def test_names_positions_and_layout_need_neither_jax_nor_orbax():
    code = "import sys, xrex.checkpoint.layout, xrex.checkpoint.positions, xrex.checkpoint.config, xrex.cli.checkpoint;"
    code += "print([m for m in ('jax', 'flax', 'optax', 'orbax', 'pyarrow') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_names_of_a_run_folder():
    assert layout.journal(3) == "journal-3.jsonl"
    assert Path("run") / layout.CHECKPOINTS == Path("run/checkpoints")
