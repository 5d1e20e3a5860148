"""Where a stream stands, partition by partition. Python integers all the way: an offset never becomes a JAX or float number."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PartitionPosition:
    """The next row to train. Normal form: `row` < rows of the message at `offset`, else (offset + 1, 0)."""

    offset: int
    row: int = 0
    timestamp_ms: int | None = None
    """Broker timestamp of the last message trained from; null before the first."""
    fingerprint: str | None = None
    """xxh64 (seed 0, 16 hex digits) of that message's value bytes."""
    fingerprint_offset: int | None = None
    """That message's offset."""
    end_offset: int | None = None
    """The run's fixed end under `dataset.stop_at_end`, else null."""

    @property
    def at_end(self) -> bool:
        """Whether the fixed end is reached (never, without one)."""
        return self.end_offset is not None and self.offset >= self.end_offset


@dataclass(frozen=True)
class TopicPositions:
    """The positions of every partition of a topic that was ever assigned."""

    topic: str
    topic_id: str | None
    partitions: dict[int, PartitionPosition] = field(default_factory=dict)

    def updated(self, partitions: dict[int, PartitionPosition]) -> "TopicPositions":
        """These positions with some partitions moved; none is ever dropped."""
        return TopicPositions(self.topic, self.topic_id, {**self.partitions, **partitions})
