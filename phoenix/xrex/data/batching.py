"""The one order of a process's messages, and the cut into batches (docs/data.md, "Order and replay").

While a backlog lasts, the batches are a pure function of the log, the positions and the assignment: how many records a
poll returns, and when, changes nothing.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from xrex.data.codecs.base import codec_of
from xrex.data.config import DatasetConfig
from xrex.data.featurize import Features, Featurizer
from xrex.data.hashing import fingerprint
from xrex.data.log.base import BEGIN_A_CHILD, Log, Record
from xrex.errors import BadRecord, LogStalled, OffsetLost, RunError
from xrex.schema.batch import BadRow, Delivery, Span
from xrex.schema.positions import PartitionPosition

POLL_S = 0.1
"""Longest wait of one poll: how soon a stop is noticed."""
FRESH_END_S = 0.05
"""A partition is passed over only if it was seen at its end this recently."""
KNOWN_END_S = 5.0
"""With a backlog everywhere, ends are asked for this often: they are only shown, as lag."""
_RECORD_BYTES = 128
"""Memory of a buffered record beside its key and value."""
_SHOWN_BYTES = 8
"""Bytes of an undecodable value that an error shows."""
BLOCK_ROWS = 1_024
"""Rows of a backlog that are brought to arrays together."""
BAD_RECORD = "bad_record"
"""Reason under which skipped bad records are counted."""


class StopReading(Exception):
    """The reader was told to stop."""


@dataclass
class _Partition:
    """What is known of one partition."""

    kafka_partition: int
    fetched: int
    """Everything below was returned by the log or is a hole."""
    end: int
    """The known end: fixed, or the newest that the log told."""
    is_end_fixed: bool
    begun_offset: int | None
    """Message that an earlier run left half trained."""
    records: deque[Record] = field(default_factory=deque)
    queue_bytes: int = 0

    @property
    def is_read(self) -> bool:
        return self.fetched >= self.end

    @property
    def next_offset(self) -> int:
        """Offset of the next message, once it is known whether there is one; holes below it are passed."""
        if self.records:
            return self.records[0].offset
        return self.end if self.is_end_fixed else self.fetched


class Merge:
    """The messages of several partitions, smallest (timestamp_ms, kafka_partition, offset) of the heads first."""

    def __init__(
        self,
        config: DatasetConfig,
        log: Log | None,
        positions: dict[int, PartitionPosition],
        *,
        clock: Callable[[], float],
        check_stop: Callable[[], None],
    ):
        self._config, self._clock, self._check_stop = config, clock, check_stop
        self._partitions = {p: _partition(p, position) for p, position in positions.items()}
        self._share_bytes = config.max_buffered_bytes // max(1, len(positions))
        self._heads: list[tuple[bool, int, int, int]] = []
        self._dry = set(self._partitions)
        """Partitions without a buffered message: at their known end, or still to be fetched."""
        self._ends_read_at = -math.inf
        self._paused: set[int] = set()
        self.passed: Counter[str] = Counter()
        """reason -> records passed over since the counter was cleared."""
        unread = {p: state.fetched for p, state in self._partitions.items() if not positions[p].at_end}
        self._continuous = [p for p in unread if not self._partitions[p].is_end_fixed]
        self._log = log if unread else None
        if self._log is not None:
            self._log.assign(unread)

    @property
    def ended(self) -> bool:
        """Whether every partition is at its fixed end. True without partitions only if the run stops at ends."""
        if not self._partitions:
            return self._config.has_ends
        return len(self._dry) == len(self._partitions) and all(
            p.is_end_fixed and p.is_read for p in self._partitions.values()
        )

    @property
    def is_settled(self) -> bool:
        """Whether of each partition the next message is here, or it is at its known end: `settle` need not wait."""
        return all(self._partitions[p].is_read for p in self._dry)

    @property
    def is_at_hand(self) -> bool:
        """Whether `take` has a message, and need not wait to know that it is the next one."""
        return bool(self._heads) and self.is_settled

    @property
    def ends(self) -> dict[int, int]:
        """Known end of each partition."""
        return {p: state.end for p, state in self._partitions.items()}

    def next_offset(self, kafka_partition: int) -> int:
        """Where the partition goes on after the messages taken; exact after `settle`."""
        return self._partitions[kafka_partition].next_offset

    def take(self) -> Record | None:
        """The next message; None if every partition is at its known end. Raises LogStalled, StopReading."""
        self.settle()
        return self._pop(self._partitions[heappop(self._heads)[2]]) if self._heads else None

    def finish(self, record: Record) -> None:
        """The message taken last is used up: only now is what follows it in its partition looked at, and passed over."""
        self._show_head(self._partitions[record.kafka_partition])

    def settle(self) -> None:
        """Waits until of each partition the next message is here, or it is at its known end.

        Raises LogStalled if a partition below its end delivers nothing for dataset.stall_timeout_s, StopReading."""
        waits: dict[int, tuple[int, float]] = {}
        while self._dry:
            self._check_stop()
            now = self._clock()
            dry = [self._partitions[p] for p in self._dry]
            if now - self._ends_read_at >= FRESH_END_S and any(p.is_read and not p.is_end_fixed for p in dry):
                self._read_ends()
            unknown = [p for p in dry if not p.is_read]
            if not unknown:
                return
            for p in unknown:
                fetched, since = waits.get(p.kafka_partition, (-1, now))
                if fetched != p.fetched:
                    waits[p.kafka_partition] = (p.fetched, now)
                elif now - since > self._config.stall_timeout_s:
                    raise self._stalled(p)
            self.poll(POLL_S)

    def poll(self, timeout_s: float) -> None:
        """Fetches what has arrived; waits at most `timeout_s` for it."""
        self._check_stop()
        log = self._log
        if log is None:
            time.sleep(timeout_s)
            return
        if self._clock() - self._ends_read_at >= KNOWN_END_S:
            self._read_ends()
        self._rest(log)
        for record in log.poll(max(1, int(timeout_s * 1000))):
            partition = self._partitions[record.kafka_partition]
            if not (partition.is_end_fixed and record.offset >= partition.end):
                partition.records.append(record)
                partition.queue_bytes += _size(record)
        for kafka_partition, offset in log.fetch_positions().items():
            self._partitions[kafka_partition].fetched = offset
        for kafka_partition in sorted(self._dry):
            self._show_head(self._partitions[kafka_partition])

    def _show_head(self, partition: _Partition) -> None:
        """Tombstones before it are passed: they are no rows, so their place in the order does not matter."""
        while partition.records and partition.records[0].value is None:
            self._pop(partition)
            self.passed["tombstone"] += 1
        if partition.records:
            head = partition.records[0]
            is_begun = head.offset == partition.begun_offset
            heappush(self._heads, (not is_begun, head.timestamp_ms, head.kafka_partition, head.offset))
            self._dry.discard(head.kafka_partition)
        else:
            self._dry.add(partition.kafka_partition)

    def _pop(self, partition: _Partition) -> Record:
        record = partition.records.popleft()
        partition.queue_bytes -= _size(record)
        return record

    def _rest(self, log: Log) -> None:
        """A partition with its share of the buffer, or read to its fixed end, rests; one without a message does not."""
        full = {
            p
            for p, state in self._partitions.items()
            if state.queue_bytes >= self._share_bytes or (state.is_end_fixed and state.is_read)
        }
        if full != self._paused:
            log.pause(full)
            self._paused = full

    def _read_ends(self) -> None:
        self._ends_read_at = self._clock()
        if self._log is not None and self._continuous:
            for p, end in self._log.end_offsets(self._continuous).items():
                self._partitions[p].end = max(end, self._partitions[p].end)

    def _stalled(self, partition: _Partition) -> LogStalled:
        return LogStalled(
            f"topic '{self._config.topic_name}' partition {partition.kafka_partition}: nothing arrived for "
            f"{self._config.stall_timeout_s:g} s at offset {partition.fetched}, its end is {partition.end}: "
            "look at the partition's leader, or raise dataset.stall_timeout_s"
        )


def _partition(kafka_partition: int, position: PartitionPosition) -> _Partition:
    end = position.end_offset
    begun = position.offset if position.row else None
    return _Partition(kafka_partition, position.offset, position.offset if end is None else end, end is not None, begun)


def _size(record: Record) -> int:
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")


@dataclass
class _Filling:
    """A batch whose rows are being collected."""

    since: float
    """When its first row was taken; without one, when the wait began."""
    parts: "list[_Part]" = field(default_factory=list)
    count: int = 0


@dataclass
class _Collected:
    """A batch as it will be delivered, but for its arrays."""

    parts: "list[_Part]"
    next_positions: dict[int, PartitionPosition]
    more: bool
    passed: Counter[str]
    noted: Counter[str]
    bad: list[BadRow]
    """Messages that cannot be read."""
    features: Features | None = None
    """Its arrays, where they were made with those of others."""

    @property
    def rows(self) -> int:
        return sum(part.stop - part.start for part in self.parts)


@dataclass
class _Begun:
    """A message whose rows are being trained."""

    record: Record
    rows: Any
    next_row: int


class _Part(NamedTuple):
    """Rows start..stop of one message."""

    record: Record
    rows: Any
    start: int
    stop: int

    def without(self, row: int) -> "list[_Part]":
        """What is left of it beside one row."""
        return [part for part in (self._replace(stop=row), self._replace(start=row + 1)) if part.start < part.stop]


class Batcher:
    """Cuts the merged messages into batches of `rows` rows and knows the positions after each.

    Messages are decoded when they are begun. A bad row is found when its batch is made; it ends the run, or is left out of
    the batch, which is that much shorter: what is bad never moves the cuts.

    Of a backlog several batches are collected at once and made in one block: many small ones would each pay numpy's and
    Arrow's cost of a call some hundred times. Nothing but the time at which they are made depends on it.
    """

    def __init__(
        self,
        config: DatasetConfig,
        log: Log | None,
        positions: dict[int, PartitionPosition],
        rows: int,
        *,
        bad_before: int = 0,
        clock: Callable[[], float] = time.monotonic,
        check_stop: Callable[[], None] = lambda: None,
    ):
        """bad_before  bad records that the run has passed over so far, see dataset.skip_bad_records"""
        self._config, self._positions, self._rows, self._clock = config, dict(positions), rows, clock
        self._codec, self._featurizer = codec_of(config), Featurizer(config)
        self._merge = Merge(config, log, positions, clock=clock, check_stop=check_stop)
        self._begun: _Begun | None = None
        self._unfinished = {p: position for p, position in positions.items() if position.row}
        """Positions inside a message, until that message is begun again."""
        self._filling: _Filling | None = None
        self._collected: deque[_Collected] = deque()
        self._failure: Exception | None = None
        """What ends the run once everything collected before it has been delivered."""
        self._noted: Counter[str] = Counter()
        self._bad: list[BadRow] = []
        """Messages that could not be read since the last batch was collected."""
        self._bad_before = bad_before

    @property
    def ends(self) -> dict[int, int]:
        """Known end of each partition."""
        return self._merge.ends

    def next(self) -> Delivery:
        """A batch: full while a backlog lasts; short or empty after linger_ms at the live edge, or at a fixed end.

        Raises BadRecord, LogStalled, OffsetLost and what the log raises; StopReading if check_stop does.
        """
        if not self._collected:
            if self._failure is not None:
                raise self._failure
            self._collect_block()
        return self._delivery(self._collected.popleft())

    def _collect_block(self) -> None:
        """Collects the next batch, and of what has arrived already the full ones after it, up to BLOCK_ROWS together."""
        block = [self._collect()]
        while block[-1].more and block[-1].rows == self._rows and (len(block) + 1) * self._rows <= BLOCK_ROWS:
            try:
                following = self._collect(wait=False)
            except StopReading:
                raise
            except Exception as error:  # Not before its turn: first what lies before it is trained.
                self._failure = error
                break
            if following is None:
                break
            block.append(following)
        self._collected.extend(block)
        self._make_together([collected for collected in block if collected.rows == self._rows])

    @overload
    def _collect(self) -> _Collected: ...
    @overload
    def _collect(self, *, wait: Literal[False]) -> _Collected | None: ...
    def _collect(self, *, wait: bool = True) -> _Collected | None:
        """The parts of the next batch; None if that could not be told without waiting, then the next call goes on."""
        if self._filling is None:
            self._filling = _Filling(self._clock())
        filling, merge = self._filling, self._merge
        if wait and not filling.parts:
            filling.since = self._clock()
        while filling.count < self._rows:
            if not wait and self._begun is None and not merge.is_at_hand:
                return None
            begun = self._begun or self._begin(wait)
            if begun is None:
                if not wait:
                    return None
                if not self._positions:
                    break  # Without partitions there is nothing to wait for; the others' rows pace the step.
                # Without rows a delivery is only a sign of life: not more than one a poll, whatever linger_ms is.
                waited_s = self._clock() - filling.since
                left_s = max(self._config.linger_ms / 1000, 0 if filling.parts else POLL_S) - waited_s
                if merge.ended or left_s <= 0:
                    break
                merge.poll(min(POLL_S, left_s))
                continue
            filling.since = filling.since if filling.parts else self._clock()
            filling.parts.append(self._take_rows(begun, self._rows - filling.count))
            filling.count += filling.parts[-1].stop - filling.parts[-1].start
        if not wait and not merge.is_settled:
            return None
        # Only with every head known are the positions after the batch, and whether it is the last, free of timing.
        merge.settle()
        for p, position in self._unfinished.items():
            self._check_is_there(p, position, merge.next_offset(p))
        self._positions, self._filling = self._next_positions(filling.parts), None
        more = not merge.ended or self._begun is not None
        found = _Collected(
            filling.parts, self._positions, more, merge.passed.copy(), self._noted.copy(), self._bad.copy()
        )
        for noted in (merge.passed, self._noted, self._bad):
            noted.clear()
        return found

    def _begin(self, wait: bool) -> _Begun | None:
        """Reads the next message that can be read, if there is one (at hand, unless `wait`)."""
        while (wait or self._merge.is_at_hand) and (record := self._merge.take()) is not None:
            try:
                rows, extra_columns = self._codec.read(record.value or b"")
            except BadRecord as error:
                self._bad.append(self._bad_row(record, None, error))
                self._merge.finish(record)
                continue
            position = self._unfinished.pop(record.kafka_partition, None)
            if position is not None:
                self._check_is_begun(record, len(rows), position)
            else:
                self._noted.update(f"extra_column.{name}" for name in extra_columns)
            self._begun = _Begun(record, rows, position.row if position else 0)
            return self._begun
        return None

    def _bad_row(self, record: Record, row: int | None, error: BadRecord) -> BadRow:
        """A bad record that may be passed over; raises it, with its place, if none may be."""
        value = record.value or b""
        if row is None:
            shown = value[:_SHOWN_BYTES].hex() or "(empty)"
            reason = f"{self._place(record, error.row)}: {error}; the value begins {shown}"
        else:
            reason = f"{self._place(record, row)}: {error}"
        if record.kafka_partition in self._unfinished:
            raise BadRecord(f"{reason}; some of its rows were trained before: {BEGIN_A_CHILD}") from None
        if self._config.skip_bad_records == 0:
            raise BadRecord(reason) from None
        return BadRow(record.kafka_partition, record.offset, row, record.timestamp_ms, record.key, value, reason)

    def _pass_over(self, bad: BadRow) -> None:
        """Counts a bad record, in the order of deliveries. Raises it if as many as may be were passed over before."""
        limit = self._config.skip_bad_records
        if self._bad_before >= limit:  # more than the limit, where processes counted apart before a restart
            raise BadRecord(
                f"{bad.reason}; {self._bad_before} bad records were passed over before it, dataset.skip_bad_records = {limit}: "
                "mend what produces them, or raise it"
            )
        self._bad_before += 1

    def _check_is_begun(self, record: Record, rows: int, position: PartitionPosition) -> None:
        """An earlier run trained the first rows of this very message."""
        self._check_is_there(record.kafka_partition, position, record.offset)
        mark = (
            fingerprint(record.value or b"") if position.fingerprint_offset == record.offset else position.fingerprint
        )
        if mark != position.fingerprint or rows <= position.row:
            raise RunError(
                f"{self._place(record, None)}: not the message of which {position.row} rows were trained; "
                f"was the topic recreated? {BEGIN_A_CHILD}"
            )

    def _check_is_there(self, kafka_partition: int, position: PartitionPosition, next_offset: int) -> None:
        if next_offset != position.offset:
            raise OffsetLost(
                f"topic '{self._config.topic_name}' partition {kafka_partition}: the message at offset {position.offset} "
                f"is gone, of which {position.row} rows were trained (the log goes on at {next_offset}): {BEGIN_A_CHILD}"
            )

    def _take_rows(self, begun: _Begun, limit: int) -> _Part:
        stop = min(len(begun.rows), begun.next_row + limit)
        part = _Part(begun.record, begun.rows, begun.next_row, stop)
        begun.next_row = stop
        if stop == len(begun.rows):
            self._merge.finish(begun.record)
            self._begun = None
        return part

    def _delivery(self, collected: _Collected) -> Delivery:
        for bad in collected.bad:
            self._pass_over(bad)
        good, bad_rows, features = collected.parts, [], collected.features
        if features is None:
            good, bad_rows, features = self._make_without_bad_rows(collected.parts)
        bad = (*collected.bad, *bad_rows)
        return Delivery(
            batch=features.batch,
            rows=sum(p.stop - p.start for p in good),
            next_positions=collected.next_positions,
            trained=tuple(Span(p.record.kafka_partition, p.record.offset, p.start, p.stop - p.start) for p in good),
            more=collected.more,
            references=features.references,
            skipped=dict(collected.passed + Counter({BAD_RECORD: len(bad)})),
            bad=bad,
            noted=dict(collected.noted + features.noted),
            newest_event_ms=features.newest_event_ms,
        )

    def _make_together(self, block: list[_Collected]) -> None:
        """The arrays of full batches, as views into those of all. A bad row leaves each to be made alone."""
        if len(block) < 2:
            return
        try:
            together = self._make([part for collected in block for part in collected.parts], len(block) * self._rows)
        except BadRecord:
            return
        for i, collected in enumerate(block):
            collected.features = together.cut(i * self._rows, (i + 1) * self._rows)

    def _make_without_bad_rows(self, parts: list[_Part]) -> tuple[list[_Part], list[BadRow], Features]:
        """The parts without their bad rows, these, and the arrays of the rest."""
        good, found = list(parts), []
        while good:
            try:
                return good, found, self._make(good, self._rows)
            except BadRecord as error:
                if error.row is None:
                    raise
                at, row = 0, error.row
                while row >= good[at].stop - good[at].start:
                    row -= good[at].stop - good[at].start
                    at += 1
                row += good[at].start
                found.append(self._bad_row(good[at].record, row, error))
                self._pass_over(found[-1])
                good[at : at + 1] = good[at].without(row)
        return good, found, self._featurizer.padding(self._rows)

    def _make(self, parts: list[_Part], rows: int) -> Features:
        """Arrays of `rows` rows, the last of them padding. Raises BadRecord with a row of all parts together."""
        timestamps_ms = np.repeat(
            [part.record.timestamp_ms for part in parts], [part.stop - part.start for part in parts]
        )
        joined = self._codec.join([(part.rows, part.start, part.stop) for part in parts])
        return self._featurizer.featurize(joined, rows, timestamps_ms)

    def _next_positions(self, parts: list[_Part]) -> dict[int, PartitionPosition]:
        """The next row of every partition: inside the begun message, or the next message that there is."""
        positions = {}
        trained = {part.record.kafka_partition: part.record for part in parts}
        for p, position in self._positions.items():
            if p in trained:
                record = trained[p]
                position = replace(
                    position,
                    timestamp_ms=record.timestamp_ms,
                    fingerprint=fingerprint(record.value or b""),
                    fingerprint_offset=record.offset,
                )
            if self._begun is not None and self._begun.record.kafka_partition == p:
                position = replace(position, offset=self._begun.record.offset, row=self._begun.next_row)
            elif p not in self._unfinished and not position.at_end:
                position = replace(position, offset=self._merge.next_offset(p), row=0)
            positions[p] = position
        return positions

    def _place(self, record: Record, row: int | None) -> str:
        where = f"topic '{self._config.topic_name}' partition {record.kafka_partition} offset {record.offset}"
        return where if row is None else f"{where} row {row}"
