"""Runs that are killed at random moments, over a broker that goes away and comes back, and the books they must balance.

Everything random comes from one seed, which is printed: $CHAOS_SEED repeats messages, moments and victims (not the
machine's own timing).
"""

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from runs import ROOT, TRAINER, journal, newest_step
from xrex.checkpoint import layout
from xrex.data.codecs.arrow import encode
from xrex.data.events import RowBuilder
from xrex.data.log.base import Entry, TopicWriter
from xrex.data.produce import synthetic_source
from xrex.data.synthetic import World

SEED = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(2**32))
SHARES = (100, 10, 1, 0)
"""Rows of the partitions, of 111."""
MAX_MESSAGE_ROWS = 500
SAVE_EVERY_STEPS = 15  # as runs.SMALL has it
SAVE_S = 0.3
"""About as long as a save takes."""
RUN_MULTIHOST = ROOT / "scripts" / "run_multihost.sh"
SILENCE_S = 300.0
"""A run of which nothing is seen for so long has hung, also on a busy machine."""
END_TOGETHER_S = 60.0
"""When one of several processes has been killed, the others have ended by themselves after this."""
LAUNCHER_GRACE_S = "600"
"""scripts/run_multihost.sh would end the others after so long: a test has failed before."""

Row = tuple[int, int, int]
"""(kafka partition, offset, row): what a journal names."""


def chance(name: str) -> random.Random:
    """The random numbers of one test; says how to get them again."""
    say(f"{name}: CHAOS_SEED={SEED}")
    return random.Random(f"{SEED} {name}")


def say(line: str) -> None:
    """A line of progress: pytest shows it at once with -s, else when the test fails."""
    print(line, flush=True)


class Message(NamedTuple):
    """A message before it has an offset."""

    kafka_partition: int
    rows: int
    entry: Entry


def skewed_messages(rows: int, moments: random.Random, *, least_id: int = 0) -> list[Message]:
    """Rows of the synthetic world as Arrow messages of 1 to 500 rows, tiny ones as often as large ones.

    least_id  is added to every user and item
    Returns them in the order of their last rows. SHARES says how the rows are dealt over the partitions.
    """
    source = synthetic_source(World(seed=moments.randrange(2**32)), rows)
    events = source.events
    for name in ("user", "item"):
        shifted = pa.array(events[name].to_numpy() + least_id)
        events = events.set_column(events.column_names.index(name), name, shifted)
    builder = RowBuilder(events, source.columns, source.max_history)
    rng = np.random.default_rng(moments.randrange(2**32))
    dealt_to = rng.choice(len(SHARES), rows, p=np.array(SHARES) / sum(SHARES))
    by_last_row: dict[int, Message] = {}
    for kafka_partition in range(len(SHARES)):
        left = np.flatnonzero(dealt_to == kafka_partition)
        while len(left):
            size = int((MAX_MESSAGE_ROWS + 1) ** rng.random())
            picked, left = left[:size], left[size:]
            last = int(picked[-1])
            key = int(builder.users[last].as_py()).to_bytes(8, "little", signed=True)
            entry = (int(builder.event_time_ms[last]), key, encode(builder.rows(picked)))
            by_last_row[last] = Message(kafka_partition, len(picked), entry)
    return [by_last_row[last] for last in sorted(by_last_row)]


def append(writer: TopicWriter, messages: Sequence[Message]) -> None:
    """Write the messages, each partition's in their order."""
    for kafka_partition in range(len(SHARES)):
        entries = [message.entry for message in messages if message.kafka_partition == kafka_partition]
        for first in range(0, len(entries), 50):
            writer.append(kafka_partition, entries[first : first + 50])


def rows_of(messages: Sequence[Message], first_offsets: Sequence[int] = (0,) * len(SHARES)) -> Counter[Row]:
    """Every row of the messages, where it lies once they are appended to an empty topic."""
    offsets = list(first_offsets)
    rows: Counter[Row] = Counter()
    for message in messages:
        p = message.kafka_partition
        rows.update((p, offsets[p], row) for row in range(message.rows))
        offsets[p] += 1
    return rows


def check_exactly_once(run_dir: Path, produced: Counter[Row]) -> None:
    """The journals of all processes that ever were name each produced row once, and no other."""
    trained = Counter(journal(run_dir))
    missing, extra = produced - trained, trained - produced
    assert not missing, f"{missing.total()} of {produced.total()} rows were never trained, first {min(missing)}"
    assert not extra, f"{extra.total()} rows were trained twice, or never produced, first {min(extra)}"


@contextmanager
def still_writing(
    writer: TopicWriter, messages: Sequence[Message], moments: random.Random, *, pause_s: float
) -> Iterator[list[Message]]:
    """While the block runs, a thread appends message after message, from the first again after the last.

    pause_s  mean pause between two of them
    Yields the list of those that are in the topic; it grows until the block ends.
    """
    written: list[Message] = []
    stop = threading.Event()
    pauses = random.Random(moments.random())  # not shared between threads

    def write() -> None:
        while not stop.wait(pauses.uniform(0, 2 * pause_s)):
            message = messages[len(written) % len(messages)]
            writer.append(message.kafka_partition, [message.entry])
            written.append(message)

    with ThreadPoolExecutor(1) as background:
        writing = background.submit(write)
        try:
            yield written
        finally:
            stop.set()
            writing.result()  # what ended the writer also explains how the block ended


class Broker:
    """An Apache Kafka that one module of tests has for itself, and may end as it likes."""

    def __init__(self, port: int):
        self.address = f"127.0.0.1:{port}"
        self._state = ROOT / ".kafka" / str(port)
        self._environment = {**os.environ, "KAFKA_PORT": str(port)}

    def script(self, *words: str) -> subprocess.CompletedProcess[str]:
        """scripts/kafka.sh for this broker."""
        command = [ROOT / "scripts" / "kafka.sh", *words]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=300)

    @property
    def runs_in(self) -> str:
        """java or docker."""
        return self._pid_file()[0]

    @contextmanager
    def restarting(self, after_s: float, *, orderly: bool) -> Iterator[threading.Event]:
        """End it `after_s` from now, by SIGKILL unless orderly, and start it again over its data, all beside the block.

        Yields what is set as soon as it is gone; when the block is left it is back.
        """
        gone = threading.Event()

        def restart() -> None:
            time.sleep(after_s)
            try:
                self._end(orderly)
            finally:
                gone.set()
            up = self.script("up")
            assert up.returncode == 0, up.stderr

        with ThreadPoolExecutor(1) as background:
            restarted = background.submit(restart)
            yield gone
        restarted.result()

    def _end(self, orderly: bool) -> None:
        if orderly:
            down = self.script("down")
            assert down.returncode == 0, down.stderr
        else:
            os.kill(int(self._pid_file()[1]), signal.SIGKILL)

    def _pid_file(self) -> list[str]:
        return (self._state / "pid").read_text().split()


class Start:
    """One start of a run, and what can be seen of it from outside."""

    def __init__(self, arguments: Sequence, run_dir: Path, *, processes: int | None):
        """processes  how many, through scripts/run_multihost.sh; None: one, without it"""
        self.run_dir, self.processes = run_dir, processes
        self.saved = newest_saved(run_dir)
        """Step that it begins from."""
        self.began_s = time.monotonic()
        self.first_step_s: float | None = None
        """How long its first step was in coming, once it was seen."""
        self._is_on_its_way = False
        self._said = run_dir.with_name(f"{run_dir.name}.said")
        launcher = TRAINER if processes is None else [RUN_MULTIHOST, processes]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [str(word) for word in (*launcher, *arguments, "--run-dir", run_dir)],
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RUN_MULTIHOST_GRACE_S": LAUNCHER_GRACE_S},
            )

    def is_on_its_way(self) -> bool:
        """Whether it has said where it begins. Until then a journal may hold steps above the one that it begins from."""
        self._is_on_its_way = self._is_on_its_way or "from offset" in self.said()
        return self._is_on_its_way

    def step(self) -> int:
        """Its newest step; before the first, the step that it begins from."""
        step = max(self.saved, newest_step(self.run_dir)) if self.is_on_its_way() else self.saved
        if self.first_step_s is None and step > self.saved:
            self.first_step_s = time.monotonic() - self.began_s
        return step

    def unfinished_save(self) -> int | None:
        """Step whose save it has begun and not committed."""
        if self.step() == self.saved:
            return None  # whatever lies there was left by the start before
        names = [path.name for path in (self.run_dir / layout.CHECKPOINTS).glob(f"*{layout.TEMPORARY_SUFFIX}*")]
        return int(names[0].partition(".")[0]) if names else None

    def said(self) -> str:
        """All that it has printed."""
        return self._said.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], object], *, every_s: float = 0.01) -> None:
        """Wait; a run that ends by itself meanwhile fails the test."""
        deadline = time.monotonic() + SILENCE_S
        while not condition():
            code = self.process.poll()
            assert code is None, f"the run ended by itself, exit {code}, at step {self.step()}:\n{self.said()[-3_000:]}"
            assert time.monotonic() < deadline, f"not within {SILENCE_S:.0f} s:\n{self.said()[-3_000:]}"
            time.sleep(every_s)

    def kill(self, victim: int | None = None) -> str:
        """SIGKILL to the run, or to one of its processes; returns when all have ended, and says what was killed."""
        if self.processes is None:
            self.process.kill()
            assert self.process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
            return "killed"
        self.wait_until(lambda: len(children(self.process)) == self.processes)
        pids = children(self.process)
        for pid in pids if victim is None else [pids[victim]]:
            os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        code = self.process.wait(END_TOGETHER_S)
        assert code == 128 + signal.SIGKILL, f"it ended with {code} before it could be killed:\n{self.said()[-3_000:]}"
        if victim is None:
            return f"all of {self.processes} killed"
        others_s = time.monotonic() - killed_s
        return f"process {victim} of {self.processes} killed (the last other one ended after {others_s:.1f} s)"

    def where(self) -> tuple[str, str]:
        """What a killed run was doing: in words that several share, and in its own."""
        step, save = self.step(), self.unfinished_save()
        if not self.is_on_its_way():
            return "while starting", "while starting"
        if step == self.saved:
            return "before the first step", f"before the first step after {step}"
        if save is not None:
            return "during a save", f"at step {step}, during the save of {save}"
        return "between saves", f"at step {step}, saved up to {newest_saved(self.run_dir)}"

    def end(self) -> None:
        """Leave nothing of it behind, whatever the test came to."""
        if self.process.poll() is None:
            for pid in children(self.process):
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


@contextmanager
def started(arguments: Sequence, run_dir: Path, *, processes: int | None = None) -> Iterator[Start]:
    """A start that does not outlive the block."""
    start = Start(arguments, run_dir, processes=processes)
    try:
        yield start
    finally:
        start.end()


@dataclass
class Struck:
    """What has been done to a run."""

    where: Counter[str] = field(default_factory=Counter)
    """Kills, by what the run was doing."""
    restarts: int = 0
    """Of the broker."""
    began_s: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {where}" for where, count in self.where.most_common())
        minutes = (time.monotonic() - self.began_s) / 60
        return f"{self.where.total()} kills ({kills}), {self.restarts} restarts of the broker, {minutes:.1f} minutes"


def kill_again_and_again(
    arguments: Sequence,
    run_dir: Path,
    moments: random.Random,
    *,
    kills: int,
    last_step: int | None = None,
    processes: Sequence[int | None] = (None,),
    with_a_save: float = 0.5,
    broker: Broker | None = None,
    restarts: int = 0,
) -> Struck:
    """Start the run and SIGKILL it at a random moment, `kills` times; returns when it has ended for the last time.

    last_step    the run may end by itself there: the kills are spread over the steps before. None: that is far away
    processes    how many, of one start after the other, from the first again after the last; None: one, without launcher
    with_a_save  share of the starts that complete a save before their moment comes
    broker       restarted during `restarts` of the starts, once by SIGKILL, else in good order
    """
    struck, usual_s = Struck(), 0.0
    with_restart = moments.sample(range(1, kills), restarts)
    for number in range(kills):
        with ExitStack() as held:
            count = processes[number % len(processes)]
            start = held.enter_context(started(arguments, run_dir, processes=count))
            gone = None
            if broker is not None and number in with_restart:
                orderly = number != with_restart[0]
                gone = held.enter_context(broker.restarting(moments.uniform(0.2, 1.0) * usual_s, orderly=orderly))
                struck.restarts += 1
            ahead = steps_ahead(start.saved, kills - number, last_step)
            if moments.random() < with_a_save and ahead > SAVE_EVERY_STEPS:
                start.wait_until(lambda start=start: newest_saved(run_dir) > start.saved)
            wait_for_a_moment(start, moments, ahead, usual_s, gone)
            killed = start.kill(random_victim(start, moments))
            general, particular = start.where()
        assert newest_saved(run_dir) >= start.saved, "a step that was saved is gone"
        assert layout.incomplete_steps(run_dir / layout.CHECKPOINTS) == {}
        struck.where[general] += 1
        outage = ""
        if gone is not None:
            how = "in order" if orderly else "after SIGKILL"
            outage = (
                f"; the broker restarted {how}, first step after {start.first_step_s:.1f} s, usually {usual_s:.1f} s"
            )
        say(f"kill {number + 1} of {kills}: {killed} {particular}{outage}")
        usual_s = min(usual_s or start.first_step_s or 0.0, start.first_step_s or usual_s)
    return struck


def wait_for_a_moment(
    start: Start, moments: random.Random, ahead: int, usual_s: float, broker_gone: threading.Event | None
) -> None:
    """Until a random moment: while it starts, during its first save, or at most `ahead` steps on from where it began.

    usual_s      how long the first step is in coming, as far as is known
    broker_gone  the moment comes after this, if given
    """
    kind = moments.choices(("start", "save", "step"), (2, 3, 5))[0]
    step = start.saved + moments.randint(1, ahead)
    until_s = start.began_s + moments.uniform(0.0, usual_s)
    if broker_gone is not None:
        start.wait_until(broker_gone.is_set)
    elif kind == "start" and usual_s:
        start.wait_until(lambda: time.monotonic() > until_s or start.step() >= step)
        return
    elif kind == "save" and ahead >= SAVE_EVERY_STEPS:
        start.wait_until(lambda: start.unfinished_save() or start.step() >= start.saved + ahead)
        time.sleep(moments.uniform(0.0, SAVE_S))
        return
    start.wait_until(lambda: start.step() >= step)
    time.sleep(moments.uniform(0.0, 0.05))


def random_victim(start: Start, moments: random.Random) -> int | None:
    """One of several processes, or as often None: all."""
    return moments.randrange(start.processes) if (start.processes or 1) > 1 and moments.random() < 0.5 else None


def steps_ahead(saved: int, kills_left: int, last_step: int | None) -> int:
    """How far from its newest save a run may get before it is killed; the last kill then comes near `last_step`."""
    if last_step is None:
        return 25
    left = last_step - saved
    return max(1, min(2 * left // kills_left, 2 * left // 3))


def newest_saved(run_dir: Path) -> int:
    """The newest complete step; 0 before the first."""
    return max(layout.complete_steps(run_dir / layout.CHECKPOINTS), default=0)


def rows_trained(run_dir: Path) -> int:
    """Rows that the journals name, also while they are being written."""
    lines = [line for file in run_dir.glob("journal-*.jsonl") for line in file.read_bytes().splitlines(keepends=True)]
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return sum(rows for line in whole for _, _, _, rows in line["trained"])


def children(process: subprocess.Popen) -> list[int]:
    """Ids of the processes that this one has started, in the order of their starts."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return sorted(int(pid) for pid in found.stdout.split())
