"""Runs of several processes that something happens to, again and again, and how all of them must end each time.

Everything random comes from one seed, which is printed: $FAULTS_SEED repeats faults, victims and moments (not the
machine's own timing). `python -m faults ARGUMENTS` is the trainer of these runs: SIGUSR1 lets its next step fail.
"""

import errno
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from chaos import SILENCE_S, Message, newest_saved, say, skewed_messages, steps_ahead
from runs import ROOT
from xrex.checkpoint import layout
from xrex.errors import StepDamaged

SEED = int(os.environ.get("FAULTS_SEED") or random.SystemRandom().randrange(2**32))
SHARES = (8, 6, 3, 1)
"""Messages of the partitions, of 18: process 0 has rows to the last step, the others' end before."""
END_S = 30.0
"""Whatever happens to one process, those that must end have ended after this."""
PAUSE_S = 0.3
"""About as long as a save takes: a fault comes up to so long after its step."""
MARGIN_STEPS = 20
"""The last fault comes so long before the end of the run."""
DISK_BYTES = 512 * 2**20
"""Ten times what a run keeps."""
ROOM_BYTES = 2**20
"""Of a nearly full disk: enough for some lines, not for a step."""
TOLD_TO_FAIL = "told to fail by SIGUSR1"


def chance() -> random.Random:
    """The random numbers of a test; says how to get them again."""
    say(f"FAULTS_SEED={SEED}")
    return random.Random(SEED)


def uneven_messages(rows: int, moments: random.Random) -> list[Message]:
    """Messages of 1 to 500 rows of the synthetic world, dealt over the partitions by SHARES."""
    dealt = moments.choices
    return [
        message._replace(kafka_partition=dealt(range(len(SHARES)), SHARES)[0])
        for message in skewed_messages(rows, moments)
    ]


class Processes:
    """One start of a run by several processes, each of which is seen by itself."""

    def __init__(self, count: int, arguments: Sequence, run_dir: Path, said: Path):
        """said  file for all that they print, each line with its process; not where the disk is full"""
        self.run_dir, self._said = run_dir, said
        words = [*map(str, arguments), "--run-dir", str(run_dir)]
        address = f"127.0.0.1:{_run_multihost.free_port()}"
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        with mock.patch.dict(os.environ, PYTHONPATH=path):
            self._all = [_run_multihost.start("faults", words, index, count, address) for index in range(count)]
        self._target = said.open("wb")
        self._copies = [
            _run_multihost.in_background(_run_multihost.copy_lines, source, self._target, index)
            for index, process in enumerate(self._all)
            for source in (process.stdout, process.stderr)
        ]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._all)

    def said(self, process: int | None = None) -> str:
        """All that they have printed, or what one of them has."""
        text = self._said.read_text(errors="replace")
        if process is None:
            return text
        return "".join(line for line in text.splitlines(keepends=True) if line.startswith(f"[{process}] "))

    def step(self) -> int:
        """The newest step that this start has told of; 0 before the first."""
        told = re.findall(r"^\[0\] step (\d+)", self.said(), re.MULTILINE)
        return int(told[-1]) if told else 0

    def send(self, number: int, *victims: int) -> None:
        """A signal to some of them, which must still be there."""
        for victim in victims:
            assert self._all[victim].poll() is None, f"process {victim} ended before it was struck:\n{self._tail()}"
            self._all[victim].send_signal(number)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait; whoever ends by itself meanwhile fails the test."""
        deadline = time.monotonic() + SILENCE_S
        while not condition():
            codes = [process.poll() for process in self._all]
            assert codes == [None] * self.count, (
                f"ended by itself, exit {codes}, at step {self.step()}:\n{self._tail()}"
            )
            assert time.monotonic() < deadline, f"not within {SILENCE_S:.0f} s:\n{self._tail()}"
            time.sleep(0.02)

    def wait_for_end(
        self, what: str, *, without: Sequence[int] = (), meanwhile: Callable[[], None] = lambda: None, limit_s=END_S
    ) -> float:
        """Wait until all have ended, `without` those that cannot; returns how many seconds that took.

        what       has happened: begins the failure, which names who has hung
        meanwhile  called again and again
        """
        began_s = time.monotonic()
        while left := [i for i, process in enumerate(self._all) if i not in without and process.poll() is None]:
            meanwhile()
            hung = f"{what}: processes {left} are still there after {limit_s:.0f} s:\n{self._tail()}"
            assert time.monotonic() - began_s < limit_s, hung
            time.sleep(0.02)
        return time.monotonic() - began_s

    def check(self, what: str, codes: Mapping[int, int], others: int, words: str = "") -> None:
        """All have ended, some with the given codes, the others with another one and with these words."""
        for copy in self._copies:
            copy.join(timeout=5)
        expected = [codes.get(index, others) for index in range(self.count)]
        found = [process.poll() for process in self._all]
        assert found == expected, f"{what}: exit codes {found}, not {expected}:\n{self._tail()}"
        for index in set(range(self.count)) - codes.keys():
            assert words in self.said(index), f"{what}: process {index} does not say {words!r}:\n{self._tail()}"

    def end(self) -> None:
        """Leave nothing of it behind, whatever the test came to."""
        for process in self._all:
            process.kill()
            process.wait()
        for copy in self._copies:
            copy.join(timeout=5)
        self._target.close()

    def _tail(self) -> str:
        return self.said()[-6_000:]


@contextmanager
def started(count: int, arguments: Sequence, run_dir: Path, said: Path) -> Iterator[Processes]:
    """A start that does not outlive the block."""
    processes = Processes(count, arguments, run_dir, said)
    try:
        yield processes
    finally:
        processes.end()


class Struck(NamedTuple):
    """What was done to a run."""

    what: str
    ended_s: float
    """How long all needed to end."""
    damaged: Path | None = None
    """The step that was damaged."""
    next_says: str = ""
    """What the next start must say of it."""


def kill(run: Processes, moments: random.Random) -> Struck:
    """SIGKILL of any process: the others name it."""
    return _silence(run, signal.SIGKILL, moments.randrange(run.count))


def kill_the_coordinator(run: Processes, moments: random.Random) -> Struck:
    """SIGKILL of process 0, through which the others hear of each other."""
    return _silence(run, signal.SIGKILL, 0)


def stop(run: Processes, moments: random.Random) -> Struck:
    """SIGSTOP of any process: the others name it. It is killed once they have ended."""
    return _silence(run, signal.SIGSTOP, moments.randrange(run.count))


def terminate(run: Processes, moments: random.Random) -> Struck:
    """SIGTERM to any process: all save the same step and end."""
    victim = moments.randrange(run.count)
    what = f"SIGTERM to process {victim}"
    run.send(signal.SIGTERM, victim)
    ended_s = run.wait_for_end(what)
    run.check(what, {}, 128 + signal.SIGTERM)
    summary = json.loads((run.run_dir / layout.SUMMARY).read_text())
    assert (summary["status"], summary["step"]) == ("interrupted", newest_saved(run.run_dir)), summary
    return Struck(what, ended_s)


def fail(run: Processes, moments: random.Random) -> Struck:
    """An exception in the next step of any process: all say it."""
    victim = moments.randrange(run.count)
    what = f"exception in process {victim}"
    run.send(signal.SIGUSR1, victim)
    ended_s = run.wait_for_end(what)
    run.check(what, {}, 1, TOLD_TO_FAIL)
    return Struck(what, ended_s)


def fill_the_disk(run: Processes, moments: random.Random) -> Struck:
    """No room for another line of a journal: all say it."""
    return _fill_the_disk(run, 0)


def fill_the_disk_nearly(run: Processes, moments: random.Random) -> Struck:
    """Room for lines, but not for a step: all say it."""
    return _fill_the_disk(run, ROOM_BYTES)


def flip_a_byte(run: Processes, moments: random.Random) -> Struck:
    """SIGKILL of all; then one bit of the newest step is another one: mostly of its tables, else of any file."""

    def flip(file: Path) -> str:
        content = bytearray(file.read_bytes())
        at = moments.randrange(len(content))
        content[at] ^= 1 << moments.randrange(8)
        file.write_bytes(content)
        return f"a bit of byte {at:,} flipped in"

    return _damage(run, moments, flip, by_size=0.75)


def delete_a_file(run: Processes, moments: random.Random) -> Struck:
    """SIGKILL of all; then a file of the newest step is gone."""

    def delete(file: Path) -> str:
        file.unlink()
        return "deleted:"

    return _damage(run, moments, delete, by_size=0.0)


Fault = Callable[[Processes, random.Random], Struck]
NEED_A_SMALL_DISK = (fill_the_disk, fill_the_disk_nearly)
FAULTS: tuple[Fault, ...] = (
    kill,
    kill_the_coordinator,
    stop,
    terminate,
    fail,
    fill_the_disk,
    fill_the_disk_nearly,
    flip_a_byte,
    delete_a_file,
)


def shuffled(count: int, possible: Sequence[Fault], moments: random.Random) -> list[Fault]:
    """So many faults in random order, each of those that are possible nearly as often."""
    faults = [*possible] * (count // len(possible))
    faults += moments.sample(possible, count - len(faults))
    moments.shuffle(faults)
    return faults


def strike_again_and_again(
    count: int, arguments: Sequence, run_dir: Path, faults: Sequence[Fault], moments: random.Random, *, last_step: int
) -> None:
    """Start the run, let a fault happen at a random moment of the training, start it again, ...; at last let it end.

    last_step  of the whole run: the faults are spread over the steps before. A run that ends before its fault fails.
    """
    said, next_says = run_dir.parent.with_name("said"), ""
    began_s, slowest_s = time.monotonic(), 0.0
    for number, fault in enumerate(faults):
        saved = newest_whole(run_dir)
        with started(count, arguments, run_dir, said) as run:
            step = saved + moments.randint(1, steps_ahead(saved, len(faults) - number, last_step - MARGIN_STEPS))
            least = 2 if fault in (flip_a_byte, delete_a_file) else 0  # a step is damaged, and one is left
            run.wait_until(lambda run=run, least=least: run.step() > 0 and len(complete_steps(run_dir)) >= least)
            assert next_says in run.said(), f"the start after a damage does not say {next_says!r}:\n{run.said()}"
            run.wait_until(lambda run=run, step=step: run.step() >= step)
            time.sleep(moments.uniform(0.0, PAUSE_S))
            at = f"at step {run.step()}, saved up to {newest_saved(run_dir)}"
            struck = fault(run, moments)
        next_says, slowest_s = struck.next_says, max(slowest_s, struck.ended_s)
        say(f"fault {number + 1} of {len(faults)}: {struck.what}, {at}: all had ended after {struck.ended_s:.1f} s")
        if struck.damaged is None:
            assert newest_saved(run_dir) >= saved, "a step that was saved is gone"
            assert layout.incomplete_steps(run_dir / layout.CHECKPOINTS) == {}
    with started(count, arguments, run_dir, said) as run:
        run.wait_for_end("undisturbed", limit_s=2 * SILENCE_S)
        run.check("undisturbed", {}, 0)
        assert next_says in run.said()
    minutes = (time.monotonic() - began_s) / 60
    say(f"{len(faults)} faults in {minutes:.1f} minutes; all had ended after {slowest_s:.1f} s at the latest")


def complete_steps(run_dir: Path) -> list[int]:
    """Steps that look complete, ascending."""
    return layout.complete_steps(run_dir / layout.CHECKPOINTS)


def newest_whole(run_dir: Path) -> int:
    """The newest step whose every byte that counts is as it was saved; 0 where none is."""
    steps = (step for step in reversed(complete_steps(run_dir)) if is_whole(run_dir / layout.CHECKPOINTS / str(step)))
    return next(steps, 0)


def is_whole(step_dir: Path) -> bool:
    """Whether a step is as it was saved, read as `xrex checkpoint verify` reads it."""
    from xrex.checkpoint.digest import arrays_of  # with JAX, which the trainer below starts in its own time
    from xrex.checkpoint.restore import check_arrays, read_files

    if layout.missing_parts(step_dir):
        return False
    try:
        read_files(step_dir)
        check_arrays(step_dir, arrays_of(step_dir))
    except StepDamaged:
        return False
    return True


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of its own at the folder, of which the block can use all; whether there is one: it takes root to mount it."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        say("left out: a full disk; only root can mount a small one")
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


def _silence(run: Processes, number: signal.Signals, victim: int) -> Struck:
    """A process gives no sign of life from now on; the others must find out who that is."""
    what = f"{number.name} of process {victim}"
    run.send(number, victim)
    ended_s = run.wait_for_end(what, without=[victim])
    if number == signal.SIGSTOP:
        run.send(signal.SIGKILL, victim)
    run.wait_for_end(what)
    run.check(what, {victim: -signal.SIGKILL}, 1, f"process {victim} has ")
    return Struck(what, ended_s)


def _fill_the_disk(run: Processes, left: int) -> Struck:
    what = f"disk full but for {left:,} bytes" if left else "disk full"
    filler = run.run_dir.with_name("filler")
    ended_s = run.wait_for_end(what, meanwhile=lambda: _fill(filler, left))
    filler.unlink()
    run.check(what, {}, 1, os.strerror(errno.ENOSPC))
    return Struck(what, ended_s)


def _fill(filler: Path, left: int) -> None:
    """Take what is free of the disk but for `left` bytes."""
    status = os.statvfs(filler.parent)
    more = status.f_bavail * status.f_frsize - left
    with filler.open("ab") as file, suppress(OSError):  # somebody else was faster: next time
        if more > 0:
            os.posix_fallocate(file.fileno(), file.tell(), more)


def _damage(run: Processes, moments: random.Random, change: Callable[[Path], str], *, by_size: float) -> Struck:
    """Kill all, then change a file of the newest step: with probability `by_size` one picked by its size, else any."""
    everyone = range(run.count)
    run.send(signal.SIGKILL, *everyone)
    ended_s = run.wait_for_end("SIGKILL of all")
    run.check("SIGKILL of all", dict.fromkeys(everyone, -signal.SIGKILL), 0)
    step_dir = run.run_dir / layout.CHECKPOINTS / str(newest_saved(run.run_dir))
    files = sorted(path for path in step_dir.rglob("*") if path.is_file())
    is_by_size = moments.random() < by_size
    [file] = moments.choices(files, [path.stat().st_size if is_by_size else 1 for path in files])
    what = f"SIGKILL of all, then {change(file)} {file.relative_to(step_dir.parent)}"
    # Some of Orbax's files tell nothing that a restore needs: the step is then used as it is.
    is_used = is_whole(step_dir)
    words = "" if is_used else f"{step_dir} is "  # damaged, or incomplete
    return Struck(what + (", which nobody reads" if is_used else ""), ended_s, step_dir, words)


def _load_run_multihost() -> Any:
    """scripts/run_multihost.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("run_multihost", ROOT / "scripts" / "run_multihost.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_run_multihost = _load_run_multihost()


def main() -> None:
    """The trainer, whose next step fails once SIGUSR1 has come."""
    from xrex.data.prefetch import Stream
    from xrex.train import trainer_recsys

    told, next_delivery = threading.Event(), Stream.next
    signal.signal(signal.SIGUSR1, lambda *_: told.set())

    def next_or_fail(stream, *arguments):
        if told.is_set():
            raise RuntimeError(TOLD_TO_FAIL)
        return next_delivery(stream, *arguments)

    with mock.patch.object(Stream, "next", next_or_fail):
        trainer_recsys.run_command_line(trainer_recsys.app)


if __name__ == "__main__":
    main()
