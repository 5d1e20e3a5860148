import contextlib
import logging
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest
from saved_run import FILES, assert_equal, positions_at, state_at, sum_examples, target_like

from xrex.checkpoint import layout
from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.handler import StepHandler
from xrex.checkpoint.manager import Checkpoints
from xrex.checkpoint.restore import read_files, restore_state
from xrex.errors import CheckpointError, ConfigError, RunError

# A write that fails in TensorStore reports to the event loop of a save that has ended.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_saved_step_holds_the_state_and_the_files_beside_it(opened, folder):
    checkpoints = opened()
    checkpoints.save_step(7)
    checkpoints.wait()

    assert_equal(restore_state(folder / "7", target_like(state_at(0))), state_at(7))
    files = read_files(folder / "7")
    assert files.positions == {"clicks": positions_at(7)}
    assert files.progress == {"examples": 70}
    assert sorted(path.name for path in (folder / "7").iterdir() if path.name[0] != "_") == sorted(layout.STEP_PARTS)


def test_config_and_run_are_written_byte_for_byte(opened, folder):
    checkpoints = opened()
    checkpoints.save_step(7)
    checkpoints.wait()
    assert (folder / "7" / "config.json").read_bytes() == FILES["config.json"]
    assert (folder / "7" / "run.json").read_bytes() == FILES["run.json"]


def test_a_save_holds_the_state_of_its_step_though_updates_go_on_in_place(opened, folder):
    checkpoints = opened(keep_last=9)
    train = jax.jit(lambda state: jax.tree.map(lambda x: (x + 1).astype(x.dtype), state), donate_argnums=0)
    state = train(state_at(-1))  # step 0
    for step in range(1, 13):
        state = train(state)
        if step == 1:
            place = state["tables"]["d4"].unsafe_buffer_pointer()
        if step % 3 == 0:
            checkpoints.save(step, state, positions=positions_at(step), progress={"examples": 0}, files=FILES)
        assert state["tables"]["d4"].unsafe_buffer_pointer() == place  # never copied away by a save
    checkpoints.wait()
    assert layout.complete_steps(folder) == [3, 6, 9, 12]
    for step in (3, 6, 9, 12):
        assert_equal(restore_state(folder / str(step), target_like(state)), state_at(step))


def test_what_the_caller_changes_after_a_save_began_does_not_reach_the_step(opened, folder):
    progress, files = {"examples": 7}, dict(FILES)
    checkpoints = opened()
    checkpoints.save(1, state_at(1), positions=positions_at(1), progress=progress, files=files)
    progress["examples"] = 8
    files["config.json"] = b"changed"
    checkpoints.wait()
    assert read_files(folder / "1").progress == {"examples": 7}
    assert read_files(folder / "1").config == FILES["config.json"]


def test_retention_keeps_the_newest_and_the_multiples(opened, folder):
    checkpoints = opened(keep_last=2, keep_every=20)
    for step in (10, 20, 30, 40, 50, 60, 70):
        checkpoints.save_step(step)
    checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["20", "40", "60", "70"]


def test_retention_leaves_a_step_alone_from_which_another_process_begins(opened, folder):
    checkpoints = opened(keep_last=1)
    checkpoints.save_step(1)
    checkpoints.wait()
    holds = [sys.executable, "-c", HOLD, str(folder / "1")]
    with subprocess.Popen(holds, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.read(1) == b"."
        for step in (2, 3):
            checkpoints.save_step(step)
            checkpoints.wait()
        assert layout.complete_steps(folder) == [1, 3]
        child.stdin.close()
        child.wait()
    checkpoints.save_step(4)
    checkpoints.wait()
    assert layout.complete_steps(folder) == [4]


HOLD = """
import pathlib, sys
from xrex.checkpoint import layout
with layout.in_use(pathlib.Path(sys.argv[1])):
    print(".", end="", flush=True)
    sys.stdin.read()
"""


def test_an_incomplete_step_counts_neither_as_kept_nor_is_it_removed(opened, folder):
    checkpoints = opened(keep_last=1)
    (folder / "15").mkdir()
    for step in (10, 20):
        checkpoints.save_step(step)
    checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["15", "20"]


def test_what_a_killed_run_left_is_cleared_and_nothing_else(opened, folder):
    for name in ("30.orbax-checkpoint-tmp", "10.deleted", "notes"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("x")
    (folder.parent / "5.deleted").mkdir()
    opened()
    assert sorted(path.name for path in folder.iterdir()) == ["notes"]
    assert (folder.parent / "5.deleted").exists()


def test_a_damaged_step_is_moved_aside_with_one_line_and_its_number_saved_again(opened, folder):
    first = opened()
    first.save_step(30)
    first.wait()
    (folder / "30" / "config.json").unlink()
    said = []
    again = Checkpoints(folder, CheckpointConfig(), merge_progress=sum_examples)
    again.prepare(say=said.append)
    assert said == [f"{folder}/30: moved aside to 30.incomplete"]
    again.save(30, state_at(30), positions=positions_at(30), progress={"examples": 1}, files=FILES)
    again.close()
    assert layout.complete_steps(folder) == [30]


@contextlib.contextmanager
def largest_file(size):
    """Every write beyond this size fails with "File too large", as it would on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_save_surfaces_with_step_path_and_reason_and_keeps_the_older_step(opened, folder, capfd):
    checkpoints = opened(keep_last=1)
    checkpoints.save_step(10)
    checkpoints.wait()
    with largest_file(4096):
        checkpoints.save_step(20)
        with pytest.raises(CheckpointError) as failed:
            checkpoints.wait()
    assert f"step 20 could not be saved to {folder}/20: " in str(failed.value)
    assert "File too large" in str(failed.value)
    assert "\n" not in str(failed.value)
    assert "Traceback" not in capfd.readouterr().err
    assert layout.newest_step(folder, say=pytest.fail) == folder / "10"
    assert_equal(restore_state(folder / "10", target_like(state_at(0))), state_at(10))


def test_check_raises_the_failure_of_the_save_in_the_background(opened):
    checkpoints = opened()
    with largest_file(4096):
        checkpoints.save_step(20)
        with pytest.raises(CheckpointError, match="step 20 could not be saved"):
            _check_for(checkpoints, seconds=30)


def _check_for(checkpoints, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        checkpoints.check()
        time.sleep(0.01)


def test_the_next_save_raises_the_failure_of_the_one_before(opened):
    checkpoints = opened()
    with largest_file(4096):
        checkpoints.save_step(20)
        with pytest.raises(CheckpointError, match="step 20 could not be saved"):
            checkpoints.save_step(21)


def test_a_progress_that_cannot_be_merged_fails_the_save(folder):
    checkpoints = Checkpoints(folder, CheckpointConfig(), merge_progress=lambda parts: parts[0]["nothing"])
    checkpoints.prepare()
    checkpoints.save(1, state_at(1), positions=positions_at(1), progress={}, files=FILES)
    with pytest.raises(CheckpointError, match=r"step 1 could not be saved.*nothing"):
        checkpoints.wait()
    assert layout.complete_steps(folder) == []


def test_a_folder_that_the_hosts_do_not_share_fails_the_save(tmp_path, monkeypatch):
    handler = StepHandler(sum_examples)
    monkeypatch.setattr(handler._state, "finalize", lambda directory: None)  # this host sees no part of the others
    with pytest.raises(CheckpointError, match="0 of 1 processes wrote into it: all hosts must share"):
        handler.finalize(tmp_path)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_made_is_a_run_error_before_the_first_step(tmp_path, below):
    (tmp_path / "file").write_text("in the way")
    directory = tmp_path / "file" / below if below else tmp_path / "file"
    checkpoints = Checkpoints(directory, CheckpointConfig(), merge_progress=sum_examples)
    with pytest.raises(
        RunError, match=f"{directory}: the checkpoint folder cannot be written: (File exists|Not a dir)"
    ):
        checkpoints.prepare()


def test_a_relative_folder_is_resolved_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints(layout.Path("runs/checkpoints"), CheckpointConfig(), merge_progress=sum_examples)
    checkpoints.prepare()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    checkpoints.save(1, state_at(1), positions=positions_at(1), progress={"examples": 1}, files=FILES)
    checkpoints.close()
    assert layout.complete_steps(tmp_path / "runs/checkpoints") == [1]


def test_a_key_that_would_be_ambiguous_on_disk_is_refused(opened):
    with pytest.raises(ValueError, match=r"a/b"):
        opened().save(1, {"a/b": jnp.ones(3)}, positions=positions_at(1), progress={"examples": 1}, files=FILES)


@pytest.mark.parametrize("fields", [{"save_every_steps": 0}, {"keep_last": 0}, {"keep_every": 0}, {"timeout_s": 0}])
def test_a_config_without_sense_is_refused(fields):
    with pytest.raises(ConfigError):
        CheckpointConfig(**fields)


def test_writes_that_fail_after_the_first_failure_of_a_save_are_not_logged_and_other_tasks_are(opened, caplog):
    opened()
    asyncio_log = logging.getLogger("asyncio")
    asyncio_log.error("Task exception was never retrieved\nfuture: <Task coro=<write() at /orbax/checkpoint/x.py:1>>")
    asyncio_log.error("Task exception was never retrieved\nfuture: <Task coro=<other() at /elsewhere.py:1>>")
    assert [record.getMessage().partition("coro=")[2] for record in caplog.records] == ["<other() at /elsewhere.py:1>>"]
