"""Whatever ends a run, its summary says why, and the operator reads what can be done."""

import json
from contextlib import ExitStack

import jax
import pytest

from xrex.checkpoint import layout
from xrex.data.config import DatasetConfig
from xrex.errors import BadRecord, RunError
from xrex.schema.specs import FeatureSpec
from xrex.train.config import TrainerConfig
from xrex.train.run import begin, failure_noted, machine_errors_in_words
from xrex.train.start import Plan

PRICE = FeatureSpec(name="price", group="candidate", column="price", kind="float")


@pytest.fixture
def config():
    return TrainerConfig(
        dataset=DatasetConfig(
            topic_name="clicks", num_kafka_partitions=2, tables=(), features=(PRICE,), actions=("click",)
        )
    )


def fail_with(error, run_dir, config):
    """A run that ends with this error, as `run` nests the two."""
    with failure_noted(run_dir, config), machine_errors_in_words(run_dir):
        raise error


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def test_a_bad_record_is_the_summarys_error(tmp_path, config):
    with pytest.raises(BadRecord):
        fail_with(BadRecord("topic 'clicks' partition 0 offset 2: not JSON"), tmp_path, config)
    found = summary(tmp_path)
    assert (found["status"], found["step"], found["checkpoint"]) == ("failed", 0, None)
    assert found["error"] == "topic 'clicks' partition 0 offset 2: not JSON"


def test_a_device_without_memory_is_said_in_words(tmp_path, config):
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 137438953472 bytes.\nmore\nlines")
    with pytest.raises(RunError) as caught:
        fail_with(error, tmp_path, config)
    assert str(caught.value) == (
        "a device is out of memory: lower trainer.global_batch_size, make tables smaller, or use more devices "
        "(RESOURCE_EXHAUSTED: Out of memory allocating 137438953472 bytes.)"
    )
    assert summary(tmp_path)["error"] == str(caught.value)


def test_a_process_that_has_gone_names_the_command_to_go_on(tmp_path, config):
    error = jax.errors.JaxRuntimeError("INTERNAL: Gloo AllReduce failed: connection closed by peer")
    with pytest.raises(RunError, match="another process has gone") as caught:
        fail_with(error, tmp_path, config)
    assert f"-m xrex.train.trainer_recsys --run-dir {tmp_path}" in str(caught.value)
    assert summary(tmp_path)["status"] == "failed"


def test_a_full_disk_names_the_file(tmp_path, config):
    with pytest.raises(RunError, match=r"metrics\.jsonl: No space left on device; once that is mended, go on: "):
        fail_with(OSError(28, "No space left on device", "metrics.jsonl"), tmp_path, config)


def test_a_defect_is_noted_too_and_stays_what_it_is(tmp_path, config):
    with pytest.raises(KeyError):
        fail_with(KeyError("lost"), tmp_path, config)
    assert summary(tmp_path)["error"] == "unexpected KeyError: 'lost'"


def test_a_summary_that_cannot_be_written_does_not_hide_the_error(tmp_path, config, capsys):
    with pytest.raises(BadRecord):
        fail_with(BadRecord("the reason"), tmp_path / "gone", config)
    assert "summary.json: cannot be written" in capsys.readouterr().err


def test_a_folder_in_which_another_trainer_wrote_since_the_plan_was_made_is_left_as_it_is(tmp_path, config):
    step_dir = tmp_path / "checkpoints" / "10"
    (step_dir / "state").mkdir(parents=True)
    for name in set(layout.STEP_PARTS) - {"state"}:
        (step_dir / name).write_text('{"files": {}}')
    (tmp_path / "summary.json").write_text("of the other one")
    nothing = {"restore_from": None, "earlier": None, "checkpoint": None, "start_at": None, "reconciliation": None}
    planned = Plan("first", config, tmp_path, provenance={}, anew={}, given={}, **nothing)
    with ExitStack() as held, pytest.raises(RunError, match=r"another process has trained here .*; start again"):
        begin(planned, held, lambda: planned)
    assert (tmp_path / "summary.json").read_text() == "of the other one"


def test_an_interrupt_is_no_failure(tmp_path, config):
    with pytest.raises(KeyboardInterrupt):
        fail_with(KeyboardInterrupt(), tmp_path, config)
    assert not (tmp_path / "summary.json").exists()
