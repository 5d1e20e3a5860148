"""What a source of records must do. Two real ones keep it: `kafka` and `directory`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from xrex.data.log.config import TOPIC_NAME
from xrex.errors import ConfigError

BEGIN_A_CHILD = "begin a child: --checkpoint RUN_DIR --run-dir NEW --start-at earliest"
"""What an operator does about positions that the log no longer fits."""
GO_ON_WITHOUT = "to go on without what is lost, start it with --on-lost-offset earliest (or timestamp:TIME)"
"""What an operator may do, besides, about positions that the log no longer holds."""

Entry = tuple[int, bytes | None, bytes | None]
"""What a producer hands over: (timestamp_ms, key, value); a null value is a tombstone."""


class Record(NamedTuple):
    """One log entry. `value` is None for a tombstone."""

    kafka_partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class TopicInfo:
    """What the source says of a topic."""

    topic_id: str | None
    """UUID; None where the source serves none."""
    num_partitions: int


class Log(Protocol):
    """A topic that can be read partition by partition. Each call returns within the source's limits or raises LogError.

    Used by one thread at a time. Offsets in, offsets out: nothing is committed, no group is joined, nothing is reset.
    """

    outages: int
    """How often a server that is needed was away while records were asked for."""

    def info(self) -> TopicInfo:
        """The topic's id and partitions. Raises TopicMissing, LogUnreachable."""
        ...

    def start_offsets(self, kafka_partitions: list[int]) -> dict[int, int]:
        """Offset of the oldest record still held (the end offset if none is)."""
        ...

    def end_offsets(self, kafka_partitions: list[int]) -> dict[int, int]:
        """Offset that the next record will get: last offset + 1; under Kafka the last stable offset."""
        ...

    def offsets_at(self, kafka_partitions: list[int], timestamp_ms: int) -> dict[int, int]:
        """Offset of each partition's first record of this broker timestamp or later; the end offset if there is none."""
        ...

    def num_partitions(self) -> int | None:
        """As last heard of, without asking anew; None: unknown."""
        ...

    def assign(self, offsets: dict[int, int]) -> None:
        """Begin to read these partitions at these offsets; forgets any earlier assignment.

        A first offset outside start..end raises OffsetLost at the latest in the `poll` that needs it."""
        ...

    def poll(self, timeout_ms: int) -> list[Record]:
        """Records that have arrived, in offset order within a partition; empty after `timeout_ms` without any."""
        ...

    def fetch_positions(self) -> dict[int, int]:
        """Per assigned partition the offset fetched next: everything below was returned by `poll` or is a hole.

        This is how holes, compacted records and transaction markers at the end of a log are seen to be passed."""
        ...

    def pause(self, kafka_partitions: set[int]) -> None:
        """Exactly these partitions are left out of `poll` until the next call (back-pressure)."""
        ...

    def close(self) -> None:
        """Let go of connections and files; safe to call twice."""
        ...


class TopicWriter(Protocol):
    """Adds records to one topic, which it found or made when it was opened. Used by one thread at a time."""

    def append(self, kafka_partition: int, entries: Iterable[Entry]) -> None:
        """Add entries at the end of a partition, in this order; they are durable when it returns.

        Raises LogError; some of the entries may then have been written, always from the first on."""
        ...

    def close(self) -> None:
        """Let go of connections and files; safe to call twice."""
        ...


def check_topic_name(topic: str) -> str:
    """The name, if Kafka would take it too (it is a folder name in a directory log). Raises ConfigError."""
    if not re.fullmatch(TOPIC_NAME, topic) or topic in (".", ".."):
        raise ConfigError(
            f"topic name {topic[:120]!r}: use 1 to 249 of the characters A-Z a-z 0-9 . _ -, and not '.' or '..'"
        )
    return topic
