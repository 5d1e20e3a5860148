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
    for _ in range(TRIALS):
        _killed_after_a_save(moments.uniform(0.0, 0.6), tmp_path, newest)
        assert layout.incomplete_steps(tmp_path) == {}
        steps = layout.complete_steps(tmp_path)
        assert steps[-1] > newest  # what it had saved before the kill is there
        newest = steps[-1]
        for step in steps:
            assert_equal(restore_state(tmp_path / str(step), target_like(state_at(0))), _at(step))
            files = read_files(tmp_path / str(step))
            assert files.config == FILES["config.json"]
            assert files.run == FILES["run.json"]
            assert files.positions == {"clicks": positions_at(step)}
            assert files.progress == {"examples": step}
    assert newest >= TRIALS


def _at(step):
    """The state after `step` updates by one: bfloat16 stops counting at 256."""
    state = state_at(step)
    state["params"]["blocks"][0]["kernel"] = state_at(min(step, 256))["params"]["blocks"][0]["kernel"]
    return state


def _killed_after_a_save(seconds, folder, newest):
    """Kill it a while after it has committed a step newer than `newest`."""
    script = Path(__file__).with_name("save_loop.py")
    child = subprocess.Popen([sys.executable, script, folder], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    with child:
        assert child.stdout.readline() == "ready\n"
        while layout.complete_steps(folder)[-1:] <= [newest]:
            assert time.monotonic() < deadline, "no save within 120 s"
            time.sleep(0.01)
        time.sleep(seconds)
        assert child.poll() is None  # it ran until now
        child.kill()
