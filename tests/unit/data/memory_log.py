"""A log in memory, the same shape as a Kafka topic: holes, markers and tombstones, and polls of any size."""

import json
import time
from collections.abc import Callable, Iterable

from xrex.data.config import DatasetConfig
from xrex.data.log.base import Record, TopicInfo
from xrex.errors import OffsetLost
from xrex.schema.specs import FeatureSpec, TableSpec

T0 = 1_700_000_000_000


class Clock:
    """A time that only waits move on."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class MemoryLog:
    """Keeps the `Log` protocol. `chunk()` says how many records a poll may return (default: one); `clock` is moved on by
    a poll that finds none."""

    def __init__(
        self,
        records: Iterable[Record] = (),
        *,
        starts=None,
        ends=None,
        partitions=1,
        chunk: Callable[[], int] = lambda: 1,
        clock: "Clock | None" = None,
    ):
        self.records: dict[int, list[Record]] = {p: [] for p in range(partitions)}
        for record in records:
            self.records.setdefault(record.kafka_partition, []).append(record)
        self._starts, self._ends, self._chunk, self._clock = starts or {}, ends or {}, chunk, clock
        self.topic_id: str | None = "0b51c9a2-0000-4000-8000-000000000001"
        self.positions: dict[int, int] = {}
        self.paused: set[int] = set()
        self.silent: set[int] = set()
        self.polls = self.end_requests = 0
        self.closed = False
        self.outages = 0
        self._turn = 0

    def append(self, *records: Record) -> None:
        for record in records:
            self.records[record.kafka_partition].append(record)

    def info(self) -> TopicInfo:
        return TopicInfo(self.topic_id, len(self.records))

    def start_offsets(self, kafka_partitions):
        return {p: self._starts.get(p, 0) for p in kafka_partitions}

    def end_offsets(self, kafka_partitions):
        self.end_requests += 1
        return {p: self._end(p) for p in kafka_partitions}

    def _end(self, p: int) -> int:
        return max(self._ends.get(p, 0), self.records[p][-1].offset + 1 if self.records[p] else 0)

    def offsets_at(self, kafka_partitions, timestamp_ms):
        later = {p: [r.offset for r in self.records[p] if r.timestamp_ms >= timestamp_ms] for p in kafka_partitions}
        return {p: min(found, default=self._end(p)) for p, found in later.items()}

    def num_partitions(self):
        return len(self.records)

    def assign(self, offsets):
        for p, offset in offsets.items():
            if not self._starts.get(p, 0) <= offset <= self._end(p):
                raise OffsetLost(f"partition {p} offset {offset}")
        self.positions, self.paused = dict(offsets), set()

    def poll(self, timeout_ms):
        self.polls += 1
        live = [
            p
            for p in self.positions
            if p not in self.paused and p not in self.silent and self.positions[p] < self._end(p)
        ]
        if not live:
            if self._clock:
                self._clock.now += timeout_ms / 1000
            else:
                time.sleep(timeout_ms / 1000)
            return []
        self._turn += 1
        p = live[self._turn % len(live)]
        found = [record for record in self.records[p] if record.offset >= self.positions[p]][: max(1, self._chunk())]
        rest = [record for record in self.records[p] if found and record.offset > found[-1].offset]
        self.positions[p] = found[-1].offset + 1 if rest else self._end(p)
        return found

    def fetch_positions(self):
        return dict(self.positions)

    def pause(self, kafka_partitions):
        self.paused = set(kafka_partitions)

    def close(self):
        self.closed = True


def event(offset: int, partition: int = 0, timestamp_ms: int | None = None, **changes) -> Record:
    """One JSON row, as the failure cases hold them."""
    row = {
        "user_id": 100 + offset,
        "item_id": offset + 1,
        "author_id": offset % 11 + 1,
        "history": [offset % 7 + 1, offset % 5 + 1],
        "label": offset % 2,
    } | changes
    return message(offset, json.dumps(row).encode(), partition, timestamp_ms)


def message(offset: int, value: bytes | None, partition: int = 0, timestamp_ms: int | None = None) -> Record:
    return Record(partition, offset, T0 + 1000 * offset if timestamp_ms is None else timestamp_ms, None, value)


def small_config(**changes) -> DatasetConfig:
    """The schema of the failure cases: user, item, author, history, one label; batches of JSON rows, read to the end."""
    given = {
        "topic_name": "engagements",
        "num_kafka_partitions": 1,
        "codec": "json",
        "tables": (
            TableSpec(name="users", num_embeddings=1_000, embedding_dim=4),
            TableSpec(name="items", num_embeddings=1_000, embedding_dim=4),
            TableSpec(name="authors", num_embeddings=500, embedding_dim=4),
        ),
        "features": (
            FeatureSpec(name="user", group="user", column="user_id", table="users"),
            FeatureSpec(name="seen", group="history", column="history", table="items"),
            FeatureSpec(name="item", group="candidate", column="item_id", table="items"),
            FeatureSpec(name="author", group="candidate", column="author_id", table="authors"),
        ),
        "actions": ("label",),
        "max_history": 4,
        "history_actions_column": None,
        "stop_at_end": True,
    }
    return DatasetConfig(**given | changes)
