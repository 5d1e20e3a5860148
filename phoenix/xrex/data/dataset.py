"""Where a run starts to read, and whether a resumed run still can: process 0 asks the log before the first step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from xrex.data.batching import POLL_S
from xrex.data.config import DatasetConfig
from xrex.data.hashing import fingerprint
from xrex.data.log.base import BEGIN_A_CHILD, GO_ON_WITHOUT, Log, TopicInfo
from xrex.data.log.open import open_log
from xrex.data.places import Place
from xrex.errors import LogStalled, OffsetLost, RunError
from xrex.schema.positions import PartitionPosition, TopicPositions

LOST_OFFSET = "lost_offset"
"""Reason under which records are counted that were lost between a saved position and where the run went on."""


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on."""

    topic: TopicPositions
    lost: int = 0
    """Records between saved positions and where the run goes on instead, as the operator chose."""


def start_positions(
    config: DatasetConfig, *, place: Place | None = None, log: Log | None = None, say: Callable[[str], None] = print
) -> TopicPositions:
    """A first start: every partition's start as a number, and its fixed end if the run has ends.

    place   where to begin (but no file of positions, see check_positions); None: the oldest record held
    say     is told of partitions beyond dataset.num_kafka_partitions
    Raises RunError for a topic of another size, and what the log raises.
    """
    with _opened(config, log) as source:
        info = source.info()
        partitions = _all_partitions(config, info.num_partitions)
        # The ends are asked first: what arrives meanwhile must not lie between an end and a later start.
        ends = _ends(config, source, partitions)
        starts = _offsets_of(place or Place("earliest"), source, partitions)
    added = partitions[config.num_kafka_partitions :]
    if added:
        say(f"topic '{config.topic_name}' has more partitions than the config expects: {_listed(added)} are read too")
    positions = {
        p: PartitionPosition(starts[p], end_offset=max(starts[p], ends[p]) if config.has_ends else None)
        for p in partitions
    }
    return TopicPositions(config.topic_name, info.topic_id, positions)


def check_positions(
    config: DatasetConfig,
    positions: TopicPositions,
    *,
    log: Log | None = None,
    say: Callable[[str], None] = print,
    new_ends: bool = False,
    on_lost: Place | None = None,
) -> Resumed:
    """A resume: the saved positions, if the log still is what they were saved from and still holds what comes next.

    New partitions are added from their beginning, with one line to `say`. If the run has ends, saved ones are kept, a
    partition without one gets its present end; `new_ends` (a child's first start) fixes all of them anew.

    on_lost   where partitions go on whose position lies outside the log, with a line to `say` for each; None: an error
    Raises OffsetLost for a position outside the log, RunError for another topic, other records or fewer partitions, and
    what the log raises.
    """
    with _opened(config, log) as source:
        info = source.info()
        _check_topic(config, positions, info)
        partitions = _all_partitions(config, info.num_partitions)
        starts, ends = source.start_offsets(partitions), source.end_offsets(partitions)
        fixed = _ends(config, source, partitions) if config.stop_at_timestamp else ends
        resumed = {
            p: replace(position, end_offset=_fixed_end(config, position.end_offset, fixed[p], new_ends))
            for p, position in sorted(positions.partitions.items())
        }
        lost = _lost_offsets(config, resumed, starts, ends)
        if lost and on_lost is None:
            raise OffsetLost("\n".join(lost.values()))
        gap = 0
        for p, offset in _offsets_of(on_lost, source, list(lost)).items() if on_lost and lost else ():
            gap += max(0, offset - resumed[p].offset)
            say(f"topic '{config.topic_name}' partition {p}: goes on at offset {offset}, not at {resumed[p].offset}")
            resumed[p] = PartitionPosition(offset, end_offset=resumed[p].end_offset)
        _check_fingerprints(config, source, resumed, starts, ends)
    added = [p for p in partitions if p not in resumed]
    for p in added:
        # A partition that came after the ends were fixed holds none of the run's records.
        resumed[p] = PartitionPosition(starts[p], end_offset=_fixed_end(config, starts[p], fixed[p], new_ends))
    if added:
        unread = config.has_ends and not new_ends
        what = "hold nothing of this run, whose ends are fixed" if unread else "are read from their beginning"
        say(f"topic '{config.topic_name}': the partitions {_listed(added)} are new and {what}")
    return Resumed(TopicPositions(config.topic_name, info.topic_id or positions.topic_id, resumed), gap)


def _ends(config: DatasetConfig, log: Log, partitions: list[int]) -> dict[int, int]:
    """Where the run would end if its ends were fixed now."""
    if config.stop_at_timestamp is None:
        return log.end_offsets(partitions)
    return log.offsets_at(partitions, int(config.stop_at_timestamp.timestamp() * 1000))


def _offsets_of(place: Place, log: Log, partitions: list[int]) -> dict[int, int]:
    if place.kind == "timestamp":
        return log.offsets_at(partitions, place.timestamp_ms)
    return log.end_offsets(partitions) if place.kind == "latest" else log.start_offsets(partitions)


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
    if not config.has_ends:
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


def _lost_offsets(
    config: DatasetConfig, positions: dict[int, PartitionPosition], starts: dict[int, int], ends: dict[int, int]
) -> dict[int, str]:
    """Partition -> what is wrong with its position, where it lies outside the log."""
    problems = {}
    for p, position in positions.items():
        where = f"topic '{config.topic_name}' partition {p}: saved next offset {position.offset}"
        if position.at_end:
            continue
        if position.offset < starts[p]:
            problems[p] = (
                f"{where}, but the log starts at {starts[p]} (end {ends[p]}): {starts[p] - position.offset} records "
                f"are lost; {GO_ON_WITHOUT}, or {BEGIN_A_CHILD}"
            )
        elif position.offset > ends[p]:
            problems[p] = (
                f"{where}, but the log ends at {ends[p]} (start {starts[p]}): was the topic recreated? "
                f"{GO_ON_WITHOUT}, or {BEGIN_A_CHILD}"
            )
    return problems


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
