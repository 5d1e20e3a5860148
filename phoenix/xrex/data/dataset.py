"""Where a run starts to read, and whether a resumed run still can: process 0 asks the log before the first step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from xrex.data.batching import POLL_S
from xrex.data.config import DatasetConfig, check_start_at
from xrex.data.hashing import fingerprint
from xrex.data.log.base import BEGIN_A_CHILD, Log, TopicInfo
from xrex.data.log.open import open_log
from xrex.errors import LogStalled, OffsetLost, RunError
from xrex.schema.positions import PartitionPosition, TopicPositions


def start_positions(
    config: DatasetConfig, *, start_at: str | None = None, log: Log | None = None, say: Callable[[str], None] = print
) -> TopicPositions:
    """A first start: every partition's start as a number, and its fixed end under stop_at_end.

    start_at   "earliest" (also None): the oldest record held; "latest": only records yet to come
    say        is told of partitions beyond dataset.num_kafka_partitions
    Raises ConfigError for another start_at, RunError for a topic of another size, and what the log raises.
    """
    check_start_at(start_at)
    with _opened(config, log) as source:
        info = source.info()
        partitions = _all_partitions(config, info.num_partitions)
        ends = source.end_offsets(partitions)
        starts = ends if start_at == "latest" else source.start_offsets(partitions)
    added = partitions[config.num_kafka_partitions :]
    if added:
        say(f"topic '{config.topic_name}' has more partitions than the config expects: {_listed(added)} are read too")
    positions = {
        p: PartitionPosition(starts[p], end_offset=ends[p] if config.stop_at_end else None) for p in partitions
    }
    return TopicPositions(config.topic_name, info.topic_id, positions)


def check_positions(
    config: DatasetConfig,
    positions: TopicPositions,
    *,
    log: Log | None = None,
    say: Callable[[str], None] = print,
    new_ends: bool = False,
) -> TopicPositions:
    """A resume: the saved positions, if the log still is what they were saved from and still holds what comes next.

    New partitions are added from their beginning, with one line to `say`. Under stop_at_end saved ends are kept, a
    partition without one gets its present end; `new_ends` (a child's first start) fixes all of them anew.
    Raises OffsetLost for a position outside the log, RunError for another topic, other records or fewer partitions, and
    what the log raises.
    """
    with _opened(config, log) as source:
        info = source.info()
        _check_topic(config, positions, info)
        partitions = _all_partitions(config, info.num_partitions)
        starts, ends = source.start_offsets(partitions), source.end_offsets(partitions)
        resumed = {
            p: replace(position, end_offset=_fixed_end(config, position.end_offset, ends[p], new_ends))
            for p, position in sorted(positions.partitions.items())
        }
        _check_offsets(config, resumed, starts, ends)
        _check_fingerprints(config, source, resumed, starts, ends)
    added = [p for p in partitions if p not in resumed]
    for p in added:
        # A partition that came after the ends were fixed holds none of the run's records.
        resumed[p] = PartitionPosition(starts[p], end_offset=_fixed_end(config, starts[p], ends[p], new_ends))
    if added:
        unread = config.stop_at_end and not new_ends
        what = "hold nothing of this run, whose ends are fixed" if unread else "are read from their beginning"
        say(f"topic '{config.topic_name}': the partitions {_listed(added)} are new and {what}")
    return TopicPositions(config.topic_name, info.topic_id or positions.topic_id, resumed)


@contextmanager
def _opened(config: DatasetConfig, log: Log | None) -> Iterator[Log]:
    if log is not None:
        yield log
        return
    opened = open_log(config.log, config.topic_name)
    try:
        yield opened
    finally:
        opened.close()


def _fixed_end(config: DatasetConfig, saved: int | None, end: int, new_ends: bool) -> int | None:
    if not config.stop_at_end:
        return None
    return end if saved is None or new_ends else saved


def _all_partitions(config: DatasetConfig, found: int) -> list[int]:
    """Every partition that the topic has, if that is no fewer than expected, and no more if more are an error."""
    expected, topic = config.num_kafka_partitions, f"topic '{config.topic_name}' has {found} partitions"
    if found < expected:
        raise RunError(
            f"{topic}, dataset.num_kafka_partitions = {expected}: a topic cannot shrink; is it the right cluster, and "
            "was the topic recreated?"
        )
    if found > expected and config.on_new_partitions == "error":
        raise RunError(
            f"{topic}, dataset.num_kafka_partitions = {expected}, and dataset.on_new_partitions = error: to read the "
            "new ones from their beginning say dataset.on_new_partitions=earliest"
        )
    return list(range(found))


def _check_topic(config: DatasetConfig, positions: TopicPositions, info: TopicInfo) -> None:
    if info.topic_id and positions.topic_id and info.topic_id != positions.topic_id:
        raise RunError(
            f"topic '{config.topic_name}' has the id {info.topic_id}, the positions are those of {positions.topic_id}: "
            f"it was recreated, its offsets mean other records; {BEGIN_A_CHILD}"
        )
    saved = max(positions.partitions, default=-1) + 1
    if info.num_partitions < saved:
        raise RunError(
            f"positions.json has {saved} partitions, topic '{config.topic_name}' has {info.num_partitions}: "
            f"a topic cannot shrink; was it recreated? {BEGIN_A_CHILD}"
        )


def _check_offsets(
    config: DatasetConfig, positions: dict[int, PartitionPosition], starts: dict[int, int], ends: dict[int, int]
) -> None:
    problems = []
    for p, position in positions.items():
        where = f"topic '{config.topic_name}' partition {p}: saved next offset {position.offset}"
        if position.at_end:
            continue
        if position.offset < starts[p]:
            problems.append(
                f"{where}, but the log starts at {starts[p]} (end {ends[p]}): {starts[p] - position.offset} records "
                f"are lost; to go on without them {BEGIN_A_CHILD}"
            )
        elif position.offset > ends[p]:
            problems.append(
                f"{where}, but the log ends at {ends[p]} (start {starts[p]}): was the topic recreated? {BEGIN_A_CHILD}"
            )
    if problems:
        raise OffsetLost("\n".join(problems))


def _check_fingerprints(
    config: DatasetConfig,
    log: Log,
    positions: dict[int, PartitionPosition],
    starts: dict[int, int],
    ends: dict[int, int],
) -> None:
    """The last message trained from each partition is still the same one, or is no longer in the log."""
    offsets = {
        p: q.fingerprint_offset
        for p, q in positions.items()
        if q.fingerprint is not None
        and q.fingerprint_offset is not None
        and starts[p] <= q.fingerprint_offset < ends[p]
    }
    for p, value in _values_at(config, log, offsets).items():
        found, position = fingerprint(value), positions[p]
        if found != position.fingerprint:
            raise RunError(
                f"topic '{config.topic_name}' partition {p} offset {offsets[p]}: the message has fingerprint {found}, "
                f"the one trained had {position.fingerprint}: was the topic recreated? {BEGIN_A_CHILD}"
            )


def _values_at(config: DatasetConfig, log: Log, offsets: dict[int, int]) -> dict[int, bytes]:
    """Kafka partition -> value of the record at the offset, where there is one."""
    values: dict[int, bytes] = {}
    open_partitions = set(offsets)
    deadline = time.monotonic() + config.stall_timeout_s
    if offsets:
        log.assign(offsets)
    while open_partitions:
        if time.monotonic() > deadline:
            raise LogStalled(
                f"topic '{config.topic_name}' partition {min(open_partitions)}: nothing arrived for "
                f"{config.stall_timeout_s:g} s at offset {offsets[min(open_partitions)]}, the last one trained"
            )
        for record in log.poll(int(POLL_S * 1000)):
            if record.offset == offsets[record.kafka_partition] and record.value is not None:
                values[record.kafka_partition] = record.value
        open_partitions = {p for p, fetched in log.fetch_positions().items() if fetched <= offsets[p]}
        log.pause(set(offsets) - open_partitions)
    return values


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
