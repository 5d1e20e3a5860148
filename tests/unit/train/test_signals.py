"""SIGINT and SIGTERM: acknowledged at once, twice means now."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from xrex.train.signals import stop_on_signals

BUSY = """
import hashlib, sys
from xrex.train.signals import stop_on_signals
with stop_on_signals() as stop:
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", int(sys.argv[1]))  # seconds in one call, as in a compilation
    sys.exit(0 if stop() else 9)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_the_handlers_are_put_back(signum, capfd):
    before = signal.getsignal(signum)
    with stop_on_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), signum)
        deadline = time.monotonic() + 5
        while not stop() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stop.signum == signum
    assert signal.getsignal(signum) == before
    assert capfd.readouterr().err == (f"{signum.name}: saving after this step; send it again to leave at once\n")


def busy_process():
    process = subprocess.Popen([sys.executable, "-c", BUSY, "30000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.2)
    return process


def test_a_signal_is_answered_within_a_second_while_the_main_thread_is_away():
    process = busy_process()
    assert process.stderr
    process.send_signal(signal.SIGTERM)
    readable, _, _ = select.select([process.stderr], [], [], 1.0)
    assert readable
    assert process.poll() is None, "it goes on until the step is done"
    process.kill()
    process.wait()


def test_the_second_signal_ends_the_process_at_once():
    process = busy_process()
    assert process.stderr
    process.send_signal(signal.SIGTERM)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=2) == 130


def test_a_sigterm_that_comes_twice_at_once_is_one():
    process = busy_process()
    assert process.stderr
    process.send_signal(signal.SIGTERM)
    process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None, "it goes on until the step is saved"
    process.kill()
    process.wait()
