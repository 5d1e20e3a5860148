"""scripts/run_multihost.sh: one command for N processes."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUN_MULTIHOST = HERE.parents[1] / "scripts" / "run_multihost.sh"

pytestmark = pytest.mark.multihost


@pytest.fixture
def start(tmp_path):
    """Start N processes of a module with this source."""

    def start(processes: int, source: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        (tmp_path / "worker.py").write_text(
            "import os, signal, sys, time\nindex = os.environ['JAX_PROCESS_ID']\n" + source
        )
        return subprocess.Popen(
            [str(RUN_MULTIHOST), str(processes), *arguments],
            env={**os.environ, "PYTHONPATH": str(tmp_path), "RUN_MULTIHOST_MODULE": "worker", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_every_line_of_both_streams_carries_its_process(start):
    out, err = start(2, "print(sys.argv[1:]); print('oh', file=sys.stderr)", "--config", "a b").communicate(timeout=20)
    assert sorted(out.splitlines()) == ["[0] ['--config', 'a b']", "[1] ['--config', 'a b']"]
    assert sorted(err.splitlines()) == ["[0] oh", "[1] oh"]


def test_all_are_told_how_to_meet_and_use_the_cpu_unless_told_otherwise(start):
    source = "print(*(os.environ['JAX_' + n] for n in ('PLATFORMS', 'NUM_PROCESSES', 'COORDINATOR_ADDRESS')))"
    out, _ = start(3, source, JAX_PLATFORMS="tpu").communicate(timeout=20)
    told = {line[4:] for line in out.splitlines()}
    assert len(told) == 1
    assert told.pop().startswith("tpu 3 127.0.0.1:")


def test_the_first_failing_process_gives_the_code_even_if_a_later_one_fails_otherwise(start, tmp_path):
    source = """
if index == '1':
    open(sys.argv[1], 'w').close()
    os._exit(3)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
time.sleep(1)
sys.exit(4)
"""
    process = start(2, source, str(tmp_path / "process 1 has failed"))
    process.communicate(timeout=20)
    assert process.returncode == 3


def test_who_outlives_a_failed_process_is_killed_after_the_grace_time(start):
    source = "signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.exit(5) if index == '1' else time.sleep(60)"
    process = start(2, source, RUN_MULTIHOST_GRACE_S="0.5")
    process.communicate(timeout=20)
    assert process.returncode == 5


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_every_process_once_and_their_code_comes_back(start, number, code):
    source = f"""
got = []
signal.signal({number:d}, lambda n, _: got.append(n))
print('ready', flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.2)
print('got', *got, flush=True)
sys.exit({code})
"""
    process = start(2, source)
    ready = [process.stdout.readline() for _ in range(2)]
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert sorted(ready) == ["[0] ready\n", "[1] ready\n"]
    assert sorted(out.splitlines()) == [f"[0] got {number:d}", f"[1] got {number:d}"]
    assert process.returncode == code


def test_a_process_killed_by_a_signal_is_a_failure(start):
    process = start(2, "os.kill(os.getpid(), signal.SIGKILL) if index == '0' else None")
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGKILL


def test_sigterm_reaches_the_handler_that_was_set_before_jax_started():
    process = subprocess.Popen(
        [str(RUN_MULTIHOST), "2", "-m", "broadcast_worker", "wait_for_signal"],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    ready = 0
    while ready < 2:
        ready += process.stdout.readline().endswith("ready\n")
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == ["[0] got SIGTERM", "[1] got SIGTERM"]
    assert process.returncode == 143


def test_a_number_of_processes_is_needed():
    done = subprocess.run([str(RUN_MULTIHOST), "two"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert done.stderr == "usage: run_multihost.sh N [-m MODULE] ARGS...; N = 'two': give a number from 1\n"
