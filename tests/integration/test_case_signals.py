"""SIGINT and SIGTERM, wherever a run is: acknowledged at once, saved, left; the second one ends it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from runs import TRAINER, journal, newest_step, summary, train
from unit.data.memory_log import event, small_config
from xrex.checkpoint import layout
from xrex.checkpoint.digest import arrays_of, digest
from xrex.data.log.config import DirectoryLog, KafkaLog
from xrex.data.log.open import open_writer
from xrex.train.config import TrainerConfig

pytestmark = pytest.mark.slow  # whole runs
LIMIT_S = 120
"""A run of seconds that has not come so far by then hangs."""
GRACE_S = 60
"""A small run leaves within seconds, most of which it may have to compile first."""
AT_ONCE_S = 2
AGAIN_S = 1.5
"""Schedulers send SIGTERM twice; within a second it counts as one."""
EACH_STEP = ("trainer.global_batch_size=4", "trainer.journal=true", "checkpoint.save_every_steps=5")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SIGNALS = pytest.mark.parametrize("signum", CODES, ids=lambda signum: signum.name)

HELD = """
import sys, time
from pathlib import Path
from xrex.checkpoint.handler import StepHandler
from xrex.data.log.directory import DirectorySource
from xrex.train import trainer_recsys
from xrex.train.loop import Loop
PLACES = {"step": (Loop, "_fetch"), "save": (StepHandler, "finalize"), "poll": (DirectorySource, "poll")}
place, call, seconds = sys.argv[1:4]
of, name = PLACES[place]
original, calls = getattr(of, name), 0
def held(self, argument):
    global calls
    calls += 1
    if calls == int(call):
        print("held", flush=True)
        time.sleep(float(seconds))
    return original(self, argument)
setattr(of, name, held)
del sys.argv[1:4]
trainer_recsys.run_command_line(trainer_recsys.app)
"""
"""The trainer, but the n-th call of one place (PLACE N SECONDS) takes long: it says so, and sleeps."""


class Running:
    """A run, and what it has said so far."""

    def __init__(self, command: tuple, run_dir: Path, **environment: str):
        self.run_dir, self._said = run_dir, run_dir.with_name("said")
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [str(word) for word in (*command, "--run-dir", run_dir)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert self.process.poll() is None, (
                f"it ended by itself, exit {self.process.returncode}:\n{self.said()[-2_000:]}"
            )
            assert time.monotonic() < deadline, f"not within {limit_s} s:\n{self.said()[-2_000:]}"
            time.sleep(0.01)

    def signalled(self, signum: signal.Signals) -> None:
        """Send the first signal; it is acknowledged within a second."""
        self.process.send_signal(signum)
        self.wait_for(
            lambda: f"{signum.name}: saving after this step; send it again to leave at once" in self.said(), 1
        )

    def stopped(self, signum: signal.Signals) -> int:
        """Wait for its end after the first signal; the step that it has saved and that can be read."""
        assert self.process.wait(GRACE_S) == CODES[signum], self.said()[-2_000:]
        assert "Traceback" not in self.said()
        found = summary(self.run_dir)
        assert (found["status"], found["checkpoint"]) == ("interrupted", f"checkpoints/{found['step']}")
        assert layout.complete_steps(self.run_dir / "checkpoints")[-1] == found["step"]
        assert len(dict(arrays_of(self.run_dir / found["checkpoint"]))) > 10
        return found["step"]


@contextmanager
def started(command: tuple, run_dir: Path, **environment: str) -> Iterator[Running]:
    """A run that does not outlive the block."""
    running = Running(command, run_dir, **environment)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def held(place: str, call: int, seconds: float) -> tuple:
    return (sys.executable, "-c", HELD, place, call, seconds)


def append(to, topic: str, offsets: range) -> None:
    with closing(open_writer(str(to), topic, 1)) as writer:
        writer.append(0, [(e.timestamp_ms, b"key", e.value) for e in map(event, offsets)])


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> tuple:
    """Arguments of a run of 20 steps over a directory log that has an end."""
    folder = tmp_path_factory.mktemp("case")
    append(folder / "log", "engagements", range(80))
    file = folder / "config.json"
    file.write_text(TrainerConfig(dataset=small_config(log=DirectoryLog(path=str(folder / "log")))).to_json())
    return ("--config", file, *EACH_STEP)


@pytest.fixture(scope="module")
def undisturbed(words, tmp_path_factory) -> Path:
    """The run folder of that run."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    train(*words, "--run-dir", run_dir)
    return run_dir


def check_goes_on(run_dir: Path, undisturbed: Path) -> None:
    """Started again, the run ends as one that was never stopped."""
    train("--run-dir", run_dir)
    assert digest(run_dir / "checkpoints" / "20") == digest(undisturbed / "checkpoints" / "20")
    assert journal(run_dir) == journal(undisturbed)


# The first signal


UNCACHED = {"JAX_LOG_COMPILES": "1", "JAX_ENABLE_COMPILATION_CACHE": "0"}
"""JAX says what it begins to compile, and what it has compiled; nothing comes from a cache."""


def compiling(run: Running, program: str) -> bool:
    """Whether it is about to compile a program, or compiles it."""
    said = run.said()
    return f"Compiling jit({program})" in said and f"Finished XLA compilation of jit({program})" not in said


@pytest.mark.parametrize(("program", "saved"), [("fresh", {0}), ("step", {0, 1})])
@SIGNALS
def test_a_signal_during_a_compilation_ends_the_run_after_it_with_a_complete_step(
    words, tmp_path, signum, program, saved
):
    """What is compiled for the fresh state is not yet trained; the step that was compiled may have been called already."""
    with started((*TRAINER, *words), tmp_path / "run", **UNCACHED) as run:
        run.wait_for(lambda: compiling(run, program))
        run.signalled(signum)
        assert compiling(run, program), "the signal came too late to show anything"
        assert run.stopped(signum) in saved


@pytest.mark.kafka
@SIGNALS
def test_a_signal_during_a_wait_on_an_idle_topic_ends_it_with_all_that_was_trained(kafka, topic_name, tmp_path, signum):
    append(kafka, topic_name, range(12))
    dataset = small_config(topic_name=topic_name, log=KafkaLog(bootstrap_servers=kafka), stop_at_end=False)
    file = tmp_path / "config.json"
    file.write_text(TrainerConfig(dataset=dataset).to_json())
    with started((*TRAINER, "--config", file, *EACH_STEP), tmp_path / "run") as run:
        run.wait_for(lambda: newest_step(run.run_dir) == 3)
        time.sleep(0.5)
        run.signalled(signum)
        assert run.stopped(signum) == 3
    assert summary(run.run_dir)["positions"]["0"]["offset"] == 12


@SIGNALS
def test_a_signal_during_a_step_ends_the_run_with_that_step(words, undisturbed, tmp_path, signum):
    """The step is finished, and no other is begun."""
    with started((*held("step", 8, 3), *words), tmp_path / "run") as run:
        run.wait_for(lambda: "held" in run.said())
        run.signalled(signum)
        assert newest_step(run.run_dir) == 7
        assert run.stopped(signum) == 8
    check_goes_on(run.run_dir, undisturbed)


@SIGNALS
def test_a_signal_during_a_save_ends_the_run_when_that_and_its_last_step_are_complete(
    words, undisturbed, tmp_path, signum
):
    """The second save, that of step 10, takes long. The run has gone on meanwhile."""
    with started((*held("save", 2, 3), *words), tmp_path / "run") as run:
        run.wait_for(lambda: "held" in run.said())
        run.signalled(signum)
        assert layout.complete_steps(run.run_dir / "checkpoints") == [5]
        step = run.stopped(signum)
    assert step >= 10
    assert {5, 10, step} <= set(layout.complete_steps(run.run_dir / "checkpoints"))
    check_goes_on(run.run_dir, undisturbed)


# The second signal


@SIGNALS
@pytest.mark.parametrize(("place", "call"), [("step", 8), ("save", 2)])
def test_the_second_signal_ends_the_run_at_once_and_the_newest_complete_step_loads(
    words, undisturbed, tmp_path, place, call, signum
):
    """In the midst of step 8, and of the save of step 10, step 5 is the newest that is complete."""
    with started((*held(place, call, LIMIT_S), *words), tmp_path / "run") as run:
        run.wait_for(lambda: "held" in run.said() and layout.complete_steps(run.run_dir / "checkpoints") == [5])
        run.signalled(signum)
        time.sleep(AGAIN_S)
        run.process.send_signal(signum)
        assert run.process.wait(AT_ONCE_S) == CODES[signum]
    assert layout.complete_steps(run.run_dir / "checkpoints") == [5]
    check_goes_on(run.run_dir, undisturbed)


def test_the_second_signal_ends_a_compilation_at_once(words, tmp_path):
    with started((*TRAINER, *words), tmp_path / "run", **UNCACHED) as run:
        run.wait_for(lambda: compiling(run, "step"))
        run.signalled(signal.SIGTERM)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(AT_ONCE_S) == 130
        assert compiling(run, "step"), "the signal came too late to show anything"


# Threads


@SIGNALS
def test_a_reader_that_hangs_in_its_log_keeps_no_process_alive(words, tmp_path, signum):
    """The stream has no end; the reader's third call of the log does not come back."""
    with started((*held("poll", 3, LIMIT_S), *words, "dataset.stop_at_end=false"), tmp_path / "run") as run:
        run.wait_for(lambda: "held" in run.said() and newest_step(run.run_dir) == 20)
        run.signalled(signum)
        assert run.stopped(signum) == 20
