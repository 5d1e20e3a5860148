"""P1 and P2: a killed run continues as if nothing had happened."""

import signal
import subprocess

import pytest

from runs import TRAINER, digest, journal, kill_and_restart, summary, train


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_bit_equal_to_one_never_stopped(small, whole_run, tmp_path, seed):
    run_dir = tmp_path / "run"
    last = kill_and_restart([*small, "--run-dir", run_dir], run_dir, kills=2 if seed == 1 else 5, seed=seed)
    assert last.returncode == 0, last.stderr
    assert digest(run_dir) == digest(whole_run)
    assert summary(run_dir) == summary(whole_run)
    assert journal(run_dir) == journal(whole_run)


def test_every_row_is_trained_exactly_once(whole_run, small_log):
    rows = journal(whole_run)
    assert len(rows) == len(set(rows)) == 4000 == summary(whole_run)["examples_trained"]


@pytest.mark.slow
def test_a_run_stopped_by_sigterm_saves_and_a_restart_ends_bit_equal(small, whole_run, tmp_path):
    run_dir = tmp_path / "run"
    # A save every other step slows the run down, so that the signal falls in its middle.
    command = [*TRAINER, *map(str, small), "checkpoint.save_every_steps=2", "--run-dir", str(run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    while "step 20" not in process.stdout.readline():
        assert process.poll() is None, process.stderr and process.stderr.read()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    stopped = summary(run_dir)
    assert stopped["status"] == "interrupted"
    assert 20 <= stopped["step"] < 80
    assert stopped["checkpoint"] == f"checkpoints/{stopped['step']}"
    train("--run-dir", run_dir)
    assert digest(run_dir) == digest(whole_run)
    assert summary(run_dir)["metrics"] == summary(whole_run)["metrics"]
    assert journal(run_dir) == journal(whole_run)


def test_a_finished_run_that_is_started_again_trains_nothing_and_ends_alike(whole_run):
    before, arrays = summary(whole_run), digest(whole_run)
    train("--run-dir", whole_run)
    assert summary(whole_run) == before
    assert digest(whole_run) == arrays
