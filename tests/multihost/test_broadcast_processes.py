"""Real processes on this machine; what each does stands in broadcast_worker.py."""

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from broadcast_worker import LARGE

HERE = Path(__file__).parent
RUN_MULTIHOST = HERE.parents[1] / "scripts" / "run_multihost.sh"

pytestmark = pytest.mark.multihost


def run(processes: int, case: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HERE), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [str(RUN_MULTIHOST), str(processes), "-m", "broadcast_worker", case]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def assert_everyone_said(done: subprocess.CompletedProcess[str], processes: int, words: str) -> None:
    said = done.stdout.splitlines() + done.stderr.splitlines()
    assert {f"[{i}] {words}" for i in range(processes)} <= set(said), said


def test_bytes_configs_and_64_bit_arrays_arrive_bit_equal():
    done = run(2, "values")
    assert_everyone_said(done, 2, "values ok")
    assert done.returncode == 0


def test_a_config_of_2_mb_reaches_four_processes_which_agree_on_it(record_property):
    done = run(4, "large_config")
    text = LARGE.to_json().encode()
    assert len(text) >= 2_000_000
    words = f"{len(text)} bytes, SHA-256 {hashlib.sha256(text).hexdigest()}, after "
    seconds = re.findall(rf"^\[\d\] {words}(.+) s$", done.stdout, re.MULTILINE)
    record_property("seconds", seconds)
    print(f"2 MB config: broadcast and agreement took {', '.join(seconds)} s")
    assert len(seconds) == 4, done.stderr
    assert done.returncode == 0


def test_four_processes_gather_bytes_of_any_lengths():
    done = run(4, "gather")
    assert_everyone_said(done, 4, "gather ok")
    assert done.returncode == 0


def test_agree_names_the_process_that_differs_on_every_process():
    done = run(4, "agree")
    same, other = "0967115f2813", "d9298a10d1b0"  # sha256sum of "same" and "other"
    assert_everyone_said(
        done,
        4,
        f"RunError: config: process 2 ({other}) differs from process 0 ({same}) by SHA-256; "
        "start every process with the same code, packages and files",
    )
    assert done.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words", "code"),
    [
        ("config_error", "ConfigError: trainer.max_steps = -1: at least 1", 2),
        ("run_error", "CheckpointError: RUN/checkpoints: no complete step", 1),
        ("together", "RunError: process 1 ran out of disk", 1),
    ],
)
def test_an_expected_failure_of_one_process_is_raised_on_all_with_its_class_and_words(case, words, code):
    done = run(2, case)
    assert_everyone_said(done, 2, words)
    assert done.returncode == code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unexpected", "KeyError: 'missing'"),
        (
            "unsendable",
            "TypeError: x['a'][0] is a object: broadcast a Config, bytes, or a dict, list or tuple of arrays",
        ),
    ],
)
def test_an_unexpected_failure_of_process_0_is_a_run_error_on_the_others(case, words):
    done = run(2, case)
    said = done.stderr.splitlines()
    assert f"[0] {words}" in said
    assert f"[1] RunError: process 0: {words}" in said


@pytest.mark.slow
def test_a_config_that_one_process_cannot_read_fails_all_with_its_reason():
    done = run(2, "unreadable")
    assert_everyone_said(done, 2, "ConfigError: process 1 has other code")
    assert done.returncode == 2


@pytest.mark.slow
def test_process_0_may_take_longer_than_gloo_gives_the_first_collective():
    done = run(2, "long_answer")
    assert_everyone_said(done, 2, "late ok")
    assert done.returncode == 0
