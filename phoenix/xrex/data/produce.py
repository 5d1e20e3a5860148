"""What `xrex data produce` does: rows become messages, cut per partition, encoded, appended in the order of time."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from xrex.data import baseline, events, movielens, synthetic
from xrex.data.codecs.base import encoder_of
from xrex.data.events import EventColumns, RowBuilder, ragged_ranges
from xrex.data.hashing import partition_of_users, string_ids
from xrex.data.log.base import Entry, TopicWriter
from xrex.data.log.config import KafkaLog, LogConfig
from xrex.data.log.open import log_at, open_log, open_writer
from xrex.errors import RunError

Codec = Literal["arrow", "json"]

TARGET_MESSAGE_BYTES = 64 * 2**10
_SAMPLE_ROWS = 256
_CHUNK_ROWS = 8_192
"""Rows built and encoded at a time; with _CHUNK_BYTES it bounds the memory, whatever the number of events."""
_CHUNK_BYTES = 16 * 2**20
"""Messages appended at a time: few, large files in a directory log."""


@dataclass(frozen=True)
class Source:
    """Events, and what is known of them."""

    events: pa.Table
    columns: EventColumns
    max_history: int
    """History events a row keeps unless told otherwise."""
    unused: tuple[str, ...] = ()
    """Columns of the file that were not read."""


@dataclass(frozen=True)
class Produced:
    """What was written."""

    rows: int
    messages: int
    value_bytes: int
    """Sum of the messages' values."""
    rows_per_message: int


def synthetic_source(world: synthetic.World, examples: int | None) -> Source:
    """The synthetic world with its optimum and the online baseline as references."""
    columns = replace(synthetic.COLUMNS, references=(*synthetic.COLUMNS.references, baseline.COLUMN))
    return Source(baseline.with_online_lr(synthetic.events(world, examples)), columns, max_history=20)


def movielens_source(path: Path) -> Source:
    """All ratings of a MovieLens data set. Raises ConfigError."""
    return Source(movielens.events(path), movielens.COLUMNS, max_history=30)


def file_source(path: Path, columns: EventColumns) -> Source:
    """The reader's own events as Parquet; a file, or a folder of files. Raises ConfigError."""
    table, columns, unused = events.read_events(path, columns)
    return Source(table, columns, max_history=20, unused=unused)


def open_empty_topic(
    to: str, topic: str, partitions: int, *, like: KafkaLog | None = None
) -> tuple[TopicWriter, LogConfig]:
    """A writer to a topic that holds nothing yet (created if need be), and the config that reads it back.

    like   how brokers are spoken to; None: in the clear
    Raises RunError if it holds records: what is produced twice would be trained twice. Else it raises like open_writer.
    """
    config = log_at(to, like)
    writer = open_writer(to, topic, partitions, like=like)
    try:
        _refuse_records(config, topic, to, list(range(partitions)))
    except BaseException:
        writer.close()
        raise
    return writer, config


def produce(
    builder: RowBuilder,
    writer: TopicWriter,
    *,
    partitions: int,
    codec: Codec,
    rows_per_message: int | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Produced:
    """Append every row to the topic: in event-time order within a partition, messages by the time of their last row.

    rows_per_message   None: about 64 KiB with arrow, 1 with json
    on_rows            called with the number of rows that were just appended
    The key is the user id of the message's last row as 8 little-endian bytes, the timestamp is that row's event time.
    Memory: some thousand rows and 16 MiB of messages. Raises what the writer raises.
    """
    user_ids = _user_ids(builder)
    size = rows_per_message or default_rows_per_message(builder, codec)
    cuts = _cut(partition_of_users(user_ids, partitions), size)
    value_bytes = 0
    for chunk in _chunks(_messages(builder, user_ids, cuts, encoder_of(codec))):
        entries: dict[int, list[Entry]] = {}
        for message in chunk:
            entries.setdefault(message.kafka_partition, []).append(message.entry)
        for kafka_partition in entries:
            writer.append(kafka_partition, entries[kafka_partition])
        value_bytes += sum(message.value_bytes for message in chunk)
        on_rows(sum(message.rows for message in chunk))
    return Produced(len(builder), len(cuts), value_bytes, size)


def default_rows_per_message(builder: RowBuilder, codec: Codec) -> int:
    """1 for json; for arrow as many rows as fill 64 KiB, judged by rows spread over the whole stream."""
    if codec == "json":
        return 1
    sample = np.unique(np.linspace(0, len(builder) - 1, _SAMPLE_ROWS).astype(np.int64))
    row_bytes = len(encoder_of("arrow")(builder.rows(sample))) / len(sample)
    return max(1, int(TARGET_MESSAGE_BYTES / row_bytes))


@dataclass(frozen=True)
class _Cuts:
    """Which rows make which message; messages in the order of their last rows."""

    kafka_partition: np.ndarray  # int64[M]
    rows: np.ndarray  # int64[N]: row numbers, message after message
    start: np.ndarray  # int64[M + 1]: message m holds rows[start[m] : start[m + 1]]

    def __len__(self) -> int:
        return len(self.kafka_partition)


def _cut(kafka_partition: np.ndarray, size: int) -> _Cuts:
    """Each partition's rows, in order, `size` to a message (its last one may be shorter)."""
    rows = np.argsort(kafka_partition, kind="stable")
    grouped = kafka_partition[rows]
    rank = np.arange(len(rows)) - np.searchsorted(grouped, grouped)
    start = np.flatnonzero(rank % size == 0)
    lengths = np.diff(np.r_[start, len(rows)])
    by_last_row = np.argsort(rows[start + lengths - 1])
    start, lengths = start[by_last_row], lengths[by_last_row]
    return _Cuts(grouped[start], rows[ragged_ranges(start, lengths)], np.r_[0, np.cumsum(lengths)])


class _Message(NamedTuple):
    kafka_partition: int
    rows: int
    value_bytes: int
    entry: Entry


def _messages(
    builder: RowBuilder, user_ids: np.ndarray, cuts: _Cuts, encode: Callable[[pa.RecordBatch], bytes]
) -> Iterator[_Message]:
    first = 0
    while first < len(cuts):
        begin = cuts.start[first]
        beyond = max(first + 1, int(np.searchsorted(cuts.start, begin + _CHUNK_ROWS, side="right")) - 1)
        rows = cuts.rows[begin : cuts.start[beyond]]
        batch = builder.rows(rows)
        for index in range(first, beyond):
            at, end = int(cuts.start[index] - begin), int(cuts.start[index + 1] - begin)
            value, last = encode(batch.slice(at, end - at)), rows[end - 1]
            key = int(user_ids[last]).to_bytes(8, "little", signed=True)
            entry = (int(builder.event_time_ms[last]), key, value)
            yield _Message(int(cuts.kafka_partition[index]), end - at, len(value), entry)
        first = beyond


def _chunks(messages: Iterable[_Message]) -> Iterator[list[_Message]]:
    chunk, size = [], 0
    for message in messages:
        chunk.append(message)
        size += message.value_bytes
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _user_ids(builder: RowBuilder) -> np.ndarray:
    return string_ids(builder.users) if pa.types.is_string(builder.users.type) else builder.users.to_numpy()


def _refuse_records(config: LogConfig, topic: str, to: str, kafka_partitions: list[int]) -> None:
    log = open_log(config, topic)
    try:
        starts, ends = log.start_offsets(kafka_partitions), log.end_offsets(kafka_partitions)
    finally:
        log.close()
    for p in kafka_partitions:
        if ends[p] > starts[p]:
            raise RunError(
                f"topic '{topic}' at {to} already holds records (partition {p}: offsets {starts[p]}..{ends[p] - 1}): "
                "they would be trained twice; name another --topic"
            )
