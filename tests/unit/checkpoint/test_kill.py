import random
import subprocess
import sys
import time
from pathlib import Path

from saved_run import FILES, assert_equal, positions_at, state_at, target_like

from xrex.checkpoint import layout
from xrex.checkpoint.restore import read_files, restore_state

TRIALS = 4


def test_a_run_killed_at_any_moment_leaves_only_whole_steps_and_never_goes_back(tmp_path):
    moments = random.Random(0)
    newest = 0
    for trial in range(TRIALS):
        _killed_after(moments.uniform(0.05, 0.8) if trial else 0.8, tmp_path)
        assert layout.incomplete_steps(tmp_path) == {}
        steps = layout.complete_steps(tmp_path)
        assert steps[-1] >= newest
        newest = steps[-1]
        for step in steps:
            assert_equal(restore_state(tmp_path / str(step), target_like(state_at(0))), _at(step))
            files = read_files(tmp_path / str(step))
            assert files.config == FILES["config.json"]
            assert files.run == FILES["run.json"]
            assert files.positions == {"clicks": positions_at(step)}
            assert files.progress == {"examples": step}
    assert newest > TRIALS  # it did save in every trial, and went on from the trial before


def _at(step):
    """The state after `step` updates by one: bfloat16 stops counting at 256."""
    state = state_at(step)
    state["params"]["blocks"][0]["kernel"] = state_at(min(step, 256))["params"]["blocks"][0]["kernel"]
    return state


def _killed_after(seconds, folder):
    script = Path(__file__).with_name("save_loop.py")
    child = subprocess.Popen([sys.executable, script, folder], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout.readline() == "ready\n"
        time.sleep(seconds)
        assert child.poll() is None  # it ran until now
        child.kill()
