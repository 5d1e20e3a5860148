"""A child takes over what fits, begins anew what it is told to, and says both; its parent is only read."""

import json

import numpy as np
import pytest

from runs import digest, train
from xrex.checkpoint.digest import arrays_of

pytestmark = pytest.mark.slow
ADAGRAD = ("optimizer.dense.algorithm=adagrad", "trainer.max_steps=62")


def arrays(step_dir):
    return dict(arrays_of(step_dir))


def test_another_optimizer_is_a_run_error_that_names_both_and_the_option_that_begins_its_state_anew(
    whole_run, tmp_path
):
    parent, child = whole_run / "checkpoints" / "60", tmp_path / "child"
    before = digest(parent)
    command = ("--checkpoint", parent, "--run-dir", child, *ADAGRAD)
    refused = train(*command, check=False)
    assert refused.returncode == 1
    [line] = refused.stderr.splitlines()
    assert "its optimizer is adamw, this run's is adagrad" in line
    assert "--fresh 'dense_optimizer/*'" in line
    assert not (child / "checkpoints").exists()
    done = train(*command, "--fresh", "dense_optimizer/*")
    assert "begun anew: " in done.stdout
    begun, there = arrays(child / "checkpoints" / "60"), arrays(parent)
    kept = [name for name in there if not name.startswith("dense_optimizer/")]
    for name in kept:
        np.testing.assert_array_equal(begun[name], there[name])
    assert [name for name in begun if not name.startswith("dense_optimizer/")] == kept
    assert int(begun["step"]) == 60
    positions = [json.loads((step / "positions.json").read_text()) for step in (child / "checkpoints" / "60", parent)]
    for topic in positions[0]["topics"] + positions[1]["topics"]:
        for at in topic["partitions"].values():
            del at["end_offset"]  # a child finds the log's end anew
    assert positions[0] == positions[1]
    assert digest(parent) == before


def test_clipping_and_weight_decay_that_are_added_leave_the_optimizers_state_as_it_is(whole_run, tmp_path):
    parent, child = whole_run / "checkpoints" / "60", tmp_path / "child"
    added = ("optimizer.dense.clip_norm=1.0", "optimizer.dense.weight_decay=0.1", "trainer.max_steps=61")
    train("--checkpoint", parent, "--run-dir", child, *added)
    assert digest(child / "checkpoints" / "60") == digest(parent)
