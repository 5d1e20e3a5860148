"""A topic as a folder of Arrow files: the log that needs no broker. The format stands in docs/data.md.

PATH/TOPIC/topic.json, and PATH/TOPIC/PARTITION/<first offset, 20 digits>.arrow: Arrow IPC files, one row a log entry.
"""

import fcntl
import json
import os
import re
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xrex.data.log.base import BEGIN_A_CHILD, GO_ON_WITHOUT, Entry, Record, TopicInfo, check_topic_name
from xrex.errors import LogError, OffsetLost, RunError, TopicMissing
from xrex.utils.metadata import sync_directory

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        pa.field("value", pa.binary()),
    ]
)
"""Columns of a log file."""

_MAX_POLL_RECORDS = 4_096
_MAX_POLL_BYTES = 8 * 2**20
_BATCH_BYTES = 2**20
_RELIST_INTERVAL_S = 0.05
_DAMAGE = (pa.ArrowException, ValueError, OSError)  # what pyarrow raises on bytes that are no Arrow file
_FILE_NAME = re.compile(r"\d{20}\.arrow")


class DirectorySource:
    """A directory log as a source of records; keeps the `Log` protocol. Holds one record batch a partition.

    New files of a writer are seen when a poll comes to the end of the known ones.
    """

    outages = 0

    def __init__(self, path: str | Path, topic: str):
        """Raises ConfigError (a name that is no topic name), TopicMissing, LogError (topic.json is broken)."""
        self._folder = Path(path) / check_topic_name(topic)
        self._info = _read_info(self._folder)
        self._readers: dict[int, _PartitionReader] = {}
        self._paused: set[int] = set()
        self._turn = 0

    def info(self) -> TopicInfo:
        """The topic's id and partitions, as they were when the log was opened."""
        return self._info

    def start_offsets(self, kafka_partitions: list[int]) -> dict[int, int]:
        """First offset of each partition's first file; 0 if there is none."""
        return {p: _offset_range(self._folder, p)[0] for p in kafka_partitions}

    def end_offsets(self, kafka_partitions: list[int]) -> dict[int, int]:
        """Last offset + 1 of each partition's last file; 0 if there is none."""
        return {p: _offset_range(self._folder, p)[1] for p in kafka_partitions}

    def num_partitions(self) -> int | None:
        """As many as ever: a directory log gets no further partitions."""
        return self._info.num_partitions

    def offsets_at(self, kafka_partitions: list[int], timestamp_ms: int) -> dict[int, int]:
        """Offset of the first record of this timestamp or later; reads the timestamps before it."""
        return {p: _offset_at(self._folder, p, timestamp_ms) for p in kafka_partitions}

    def assign(self, offsets: dict[int, int]) -> None:
        """Begin to read at these offsets. Raises OffsetLost at once where one lies outside start..end."""
        self._close_readers()
        self._paused = set()
        for kafka_partition, offset in offsets.items():
            start, end = _offset_range(self._folder, kafka_partition)
            if not start <= offset <= end:
                raise _offset_lost(self._folder.name, kafka_partition, offset, start, end)
        self._readers = {p: _PartitionReader(self._folder, p, offset) for p, offset in offsets.items()}

    def poll(self, timeout_ms: int) -> list[Record]:
        """The next records, a fair share a partition: some thousand or 8 MiB at most (a larger one comes alone)."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            records = self._read_fair_shares()
            left_s = deadline - time.monotonic()
            if records or left_s <= 0:
                return records
            time.sleep(min(_RELIST_INTERVAL_S, left_s))

    def fetch_positions(self) -> dict[int, int]:
        """Per assigned partition: the last returned offset + 1, or the assigned one."""
        return {p: reader.position for p, reader in self._readers.items()}

    def pause(self, kafka_partitions: set[int]) -> None:
        """Leave exactly these out of `poll`."""
        self._paused = set(kafka_partitions)

    def close(self) -> None:
        """Let go of the open files."""
        self._close_readers()

    def _read_fair_shares(self) -> list[Record]:
        waiting = [reader for p, reader in self._readers.items() if p not in self._paused]
        if not waiting:
            return []
        self._turn = (self._turn + 1) % len(waiting)  # whoever is first has the records left over by the division
        shares = waiting[self._turn :] + waiting[: self._turn]
        max_records, max_bytes = max(1, _MAX_POLL_RECORDS // len(shares)), max(1, _MAX_POLL_BYTES // len(shares))
        return [record for reader in shares for record in reader.read(max_records, max_bytes)]

    def _close_readers(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers = {}


class DirectoryTopicWriter:
    """Appends to a directory log; keeps the `TopicWriter` protocol. Only one may have a topic open."""

    def __init__(self, path: str | Path, topic: str, partitions: int):
        """Creates the topic if needed. Raises ConfigError, RunError (other number of partitions, second writer)."""
        self._folder = create_topic(path, topic, partitions)
        self._lock: int | None = _lock(self._folder)
        self._ends = {p: _offset_range(self._folder, p)[1] for p in range(partitions)}

    def append(self, kafka_partition: int, entries: Iterable[Entry]) -> None:
        """Write these entries as one new file, which a reader sees whole or not at all."""
        if kafka_partition not in self._ends:
            raise RunError(f"partition {kafka_partition}: topic '{self._folder.name}' has {len(self._ends)} partitions")
        first = self._ends[kafka_partition]
        final = self._folder / str(kafka_partition) / f"{first:020d}.arrow"
        partial = final.with_name(f".{final.name}.part")
        end = first
        try:
            with open(partial, "wb") as file, pa.ipc.new_file(file, SCHEMA) as arrow:
                for batch in _record_batches(first, entries):
                    arrow.write_batch(batch)
                    end += batch.num_rows
                arrow.close()
                file.flush()
                os.fsync(file.fileno())
            if end > first:
                os.replace(partial, final)
                sync_directory(final.parent)
            else:
                partial.unlink()
        except OSError as error:
            raise LogError(f"{final}: cannot be written: {error.strerror or error}") from None
        self._ends[kafka_partition] = end

    def close(self) -> None:
        """Let another writer in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def create_topic(path: str | Path, topic: str, partitions: int) -> Path:
    """The topic's folder, made if it is not there. Raises ConfigError, RunError (other number of partitions)."""
    folder = Path(path) / check_topic_name(topic)
    try:
        if not (folder / "topic.json").exists():
            for kafka_partition in range(partitions):
                (folder / str(kafka_partition)).mkdir(parents=True, exist_ok=True)
            partial = folder / ".topic.json.part"
            info = {"version": 1, "topic_id": str(uuid.uuid4()), "partitions": partitions}
            partial.write_text(json.dumps(info) + "\n", encoding="utf-8")
            os.replace(partial, folder / "topic.json")
    except OSError as error:
        raise RunError(f"{folder}: cannot be created: {error.strerror or error}") from None
    found = _read_info(folder).num_partitions
    if found != partitions:
        raise RunError(f"topic '{topic}' in {path} has {found} partitions, not {partitions}: say --partitions {found}")
    return folder


class _PartitionReader:
    """Reads one partition from `position` on; at the end of the known files it lists them anew."""

    def __init__(self, folder: Path, kafka_partition: int, position: int):
        self._folder = folder
        self._kafka_partition = kafka_partition
        self.position = position
        self._files: list[tuple[int, Path]] = []
        self._opened = -1  # first offset of the file opened last; a file never changes, so it is opened once
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None
        self._row = 0

    def read(self, max_records: int, max_bytes: int) -> list[Record]:
        """The next records from the batch at hand: at least one if there is any, else within both limits."""
        if not self._have_rows():
            return []
        batch = self._batch
        assert batch is not None
        rows = batch.slice(self._row, _rows_within(batch, self._row, max_records, max_bytes))
        self._row += rows.num_rows
        columns = (rows.column(name).to_pylist() for name in ("offset", "timestamp_ms", "key", "value"))
        records = [Record(self._kafka_partition, *row) for row in zip(*columns, strict=True)]
        self.position = records[-1].offset + 1
        return records

    def close(self) -> None:
        self._batches, self._batch = iter(()), None

    def _have_rows(self) -> bool:
        while self._batch is None or self._row == self._batch.num_rows:
            self._batch = next(self._batches, None)
            self._row = 0
            if self._batch is None and not self._open_next_file():
                return False
            if self._batch is not None:
                self._row = int(np.searchsorted(_offsets(self._batch), self.position))
        return True

    def _open_next_file(self) -> bool:
        if self._opened_file_after_position():
            return True
        self._files = _log_files(self._folder, self._kafka_partition)
        if self._files and self.position < self._files[0][0]:
            start, end = _offset_range(self._folder, self._kafka_partition)
            raise _offset_lost(self._folder.name, self._kafka_partition, self.position, start, end)
        return self._opened_file_after_position()

    def _opened_file_after_position(self) -> bool:
        # The file that holds the position is the last one that begins at or before it; past its end comes the next.
        at = max(0, bisect_right(self._files, self.position, key=lambda file: file[0]) - 1)
        for first, path in self._files[at : at + 2]:
            if first <= self._opened:
                continue
            self._opened = first
            self._batches = _batches_from(path, first, self.position)
            self._batch = next(self._batches, None)
            if self._batch is not None:
                self._row = int(np.searchsorted(_offsets(self._batch), self.position))
                return True
        return False


def _batches_from(path: Path, first: int, position: int) -> Iterator[pa.RecordBatch]:
    """The file's record batches from the first that reaches `position` on; each is checked when it is reached."""
    reader = _open_arrow(path)
    least = first
    for index in range(reader.num_record_batches):
        batch = _checked_batch(path, reader, index, least)
        if batch.num_rows == 0:
            continue
        if least == first and _offsets(batch)[0] != first:
            raise LogError(
                f"{path}: begins with offset {_offsets(batch)[0]}, its name says {first}: was it renamed, or is it damaged?"
            )
        least = int(_offsets(batch)[-1]) + 1
        if least > position:
            yield batch


def _open_arrow(path: Path) -> Any:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        fits = reader.schema.names == SCHEMA.names and reader.schema.types == SCHEMA.types
    except _DAMAGE as error:
        raise LogError(f"{path}: not a readable Arrow IPC file ({_first_line(error)}): remove or rewrite it") from None
    if not fits:
        raise LogError(f"{path}: has columns {_first_line(reader.schema)}, not those of a directory log (docs/data.md)")
    return reader


def _checked_batch(path: Path, reader: Any, index: int, least: int) -> pa.RecordBatch:
    """The record batch, if it is whole and its offsets ascend from `least` or above."""
    try:
        batch = reader.get_batch(index)
        batch.validate(full=True)  # a damaged file must not become a wild read through the memory map
    except _DAMAGE as error:
        raise LogError(
            f"{path}: record batch {index} is damaged ({_first_line(error)}): remove or rewrite it"
        ) from None
    if batch.column("offset").null_count or batch.column("timestamp_ms").null_count:
        raise LogError(f"{path}: record batch {index} has a null offset or timestamp: write the file again")
    offsets = _offsets(batch)
    if len(offsets) and (offsets[0] < least or np.any(np.diff(offsets) <= 0)):
        raise LogError(f"{path}: offsets do not ascend in record batch {index}: write the file again")
    return batch


def _rows_within(batch: pa.RecordBatch, row: int, max_records: int, max_bytes: int) -> int:
    rows = batch.slice(row, max_records)
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value"):
        column = rows.column(name)
        # A binary column's buffer 1 holds where each value begins and ends.
        bounds = np.frombuffer(column.buffers()[1], np.int32, count=len(column) + 1, offset=4 * column.offset)
        sizes += np.diff(bounds)
    return max(1, int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right")))


def _record_batches(first: int, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
    numbered = enumerate(entries, start=first)
    while rows := list(_up_to_bytes(numbered, _BATCH_BYTES)):
        offsets, payloads = zip(*rows, strict=True)
        timestamps, keys, values = zip(*payloads, strict=True)
        columns = [offsets, timestamps, keys, [[]] * len(rows), values]
        yield pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _up_to_bytes(numbered: Iterator[tuple[int, Entry]], limit: int) -> Iterator[tuple[int, Entry]]:
    size = 0
    for offset, entry in islice(numbered, _MAX_POLL_RECORDS):
        yield offset, entry
        size += len(entry[1] or b"") + len(entry[2] or b"")
        if size >= limit:
            return


def _offset_range(folder: Path, kafka_partition: int) -> tuple[int, int]:
    files = _log_files(folder, kafka_partition)
    if not files:
        return 0, 0
    return files[0][0], _end_offset(*files[-1])


def _end_offset(first: int, path: Path) -> int:
    reader = _open_arrow(path)
    for index in reversed(range(reader.num_record_batches)):
        batch = _checked_batch(path, reader, index, first)
        if batch.num_rows:
            return int(_offsets(batch)[-1]) + 1
    return first


def _offset_at(folder: Path, kafka_partition: int, timestamp_ms: int) -> int:
    for first, path in _log_files(folder, kafka_partition):
        for batch in _batches_from(path, first, first):
            found = np.flatnonzero(batch.column("timestamp_ms").to_numpy() >= timestamp_ms)
            if len(found):
                return int(_offsets(batch)[found[0]])
    return _offset_range(folder, kafka_partition)[1]


def _log_files(folder: Path, kafka_partition: int) -> list[tuple[int, Path]]:
    try:
        names = sorted(n for n in os.listdir(folder / str(kafka_partition)) if _FILE_NAME.fullmatch(n))
    except FileNotFoundError:
        raise LogError(
            f"topic '{folder.name}' has no partition {kafka_partition} ({folder / str(kafka_partition)})"
        ) from None
    return [(int(name[:20]), folder / str(kafka_partition) / name) for name in names]


def _read_info(folder: Path) -> TopicInfo:
    path = folder / "topic.json"
    try:
        content = json.loads(path.read_bytes())
        topic_id, partitions = content["topic_id"], content["partitions"]
        if content["version"] != 1 or type(partitions) is not int or partitions < 1 or not isinstance(topic_id, str):
            raise ValueError('expected {"version": 1, "topic_id": UUID, "partitions": N}')
    except FileNotFoundError:
        raise TopicMissing(f"topic '{folder.name}' is not in {folder.parent}: {_present(folder)}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LogError(
            f"{path}: cannot be read ({_first_line(error)}): restore it, or produce the topic again"
        ) from None
    return TopicInfo(topic_id, partitions)


def _present(folder: Path) -> str:
    topics = sorted(p.parent.name for p in folder.parent.glob("*/topic.json"))
    return (
        f"it holds {', '.join(topics[:5])}"
        if topics
        else f"{folder.parent.absolute()} holds none; write it: xrex data produce --to {folder.parent} --topic {folder.name}"
    )


def _offset_lost(topic: str, kafka_partition: int, offset: int, start: int, end: int) -> OffsetLost:
    return OffsetLost(
        f"topic '{topic}' partition {kafka_partition}: offset {offset} is outside the log, which holds {start}..{end}: "
        f"was the topic recreated or cut off? {GO_ON_WITHOUT}, or {BEGIN_A_CHILD}"
    )


def _lock(folder: Path) -> int:
    handle = os.open(folder / ".writer", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RunError(
            f"topic '{folder.name}' is being written by another process: wait for it, or choose another topic"
        ) from None
    return handle


def _offsets(batch: pa.RecordBatch) -> np.ndarray:
    return batch.column("offset").to_numpy()


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0][:120]
