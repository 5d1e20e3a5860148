from dataclasses import replace
from datetime import UTC, datetime

import pytest
from memory_log import T0, MemoryLog, event, small_config

from xrex.data import dataset
from xrex.data.batching import Batcher
from xrex.data.dataset import start_positions
from xrex.data.places import Place
from xrex.errors import OffsetLost, RunError
from xrex.schema.positions import PartitionPosition, TopicPositions

WHAT_TO_DO = (
    "to go on without what is lost, start it with --on-lost-offset earliest (or timestamp:TIME), "
    "or begin a child: --checkpoint RUN_DIR --run-dir NEW --start-at earliest"
)
CONFIG = small_config(stop_at_end=False)
FINITE = small_config()


def check_positions(*arguments, **options) -> TopicPositions:
    return dataset.check_positions(*arguments, **options).topic


def log_of(records=6, start=0, partitions=1) -> MemoryLog:
    found = [event(o, p) for p in range(partitions) for o in range(start, records)]
    return MemoryLog(found, starts=dict.fromkeys(range(partitions), start), partitions=partitions)


def saved(offset=0, partitions=1, **given) -> TopicPositions:
    positions = {p: PartitionPosition(offset, **given) for p in range(partitions)}
    return TopicPositions("engagements", log_of().topic_id, positions)


def offsets(positions: TopicPositions) -> dict[int, tuple[int, int | None]]:
    return {p: (q.offset, q.end_offset) for p, q in positions.partitions.items()}


def test_a_first_start_reads_from_the_oldest_record_unless_told_otherwise():
    log = log_of(records=9, start=2)
    assert offsets(start_positions(CONFIG, log=log)) == {0: (2, None)}
    assert offsets(start_positions(CONFIG, place=Place("earliest"), log=log)) == {0: (2, None)}
    assert offsets(start_positions(CONFIG, place=Place("latest"), log=log)) == {0: (9, None)}
    assert start_positions(CONFIG, log=log).topic_id == log.topic_id


def test_under_stop_at_end_the_ends_are_fixed_at_the_first_start_and_kept_at_a_resume():
    log = log_of(records=6)
    first = start_positions(FINITE, log=log)
    log.append(event(6))
    assert offsets(first) == {0: (0, 6)}
    assert offsets(check_positions(FINITE, first, log=log)) == {0: (0, 6)}
    assert offsets(check_positions(FINITE, first, log=log, new_ends=True)) == {0: (0, 7)}
    assert offsets(check_positions(CONFIG, first, log=log)) == {0: (0, None)}


def test_a_start_at_a_time_is_at_the_first_record_of_it_or_later_and_at_the_end_without_one():
    log = MemoryLog([event(o, p) for p, count in ((0, 9), (1, 3)) for o in range(count)], partitions=2)
    start = start_positions(small_config(num_kafka_partitions=2), place=Place("timestamp", T0 + 4_500), log=log)
    assert offsets(start) == {0: (5, 9), 1: (3, 3)}


def test_a_run_until_a_time_ends_before_the_first_record_of_it():
    log = MemoryLog([event(o, p) for p, count in ((0, 9), (1, 3)) for o in range(count)], partitions=2)
    until = datetime.fromtimestamp((T0 + 4_500) / 1000, UTC)
    config = small_config(num_kafka_partitions=2, stop_at_end=False, stop_at_timestamp=until)
    first = start_positions(config, log=log)
    assert offsets(first) == {0: (0, 5), 1: (0, 3)}
    log.append(event(3, 1))
    assert offsets(check_positions(config, first, log=log)) == offsets(first), "found once, at the first start"
    batcher = Batcher(config, log, first.partitions, 4)
    found = [batcher.next() for _ in range(3)]
    assert [d.rows for d in found] == [4, 4, 0]
    assert not found[-1].more


def test_a_position_below_the_log_is_lost_and_the_figures_are_told():
    with pytest.raises(OffsetLost) as raised:
        check_positions(CONFIG, saved(100), log=log_of(records=900, start=500))
    assert str(raised.value) == (
        "topic 'engagements' partition 0: saved next offset 100, but the log starts at 500 (end 900): 400 records are lost; "
        f"{WHAT_TO_DO}"
    )


def test_on_request_a_lost_position_goes_on_at_the_logs_start_and_the_gap_is_counted():
    said = []
    log = log_of(records=900, start=500)
    resumed = dataset.check_positions(CONFIG, saved(100), log=log, say=said.append, on_lost=Place("earliest"))
    assert (offsets(resumed.topic), resumed.lost) == ({0: (500, None)}, 400)
    assert said == ["topic 'engagements' partition 0: goes on at offset 500, not at 100"]


def test_on_request_it_goes_on_at_a_time_and_partitions_that_lost_nothing_stay_where_they_are():
    log = MemoryLog([event(o, p) for p in (0, 1) for o in range(500, 900)], starts={0: 500, 1: 0}, partitions=2)
    positions = TopicPositions("engagements", log.topic_id, {0: PartitionPosition(100), 1: PartitionPosition(510)})
    place = Place("timestamp", T0 + 600_000)
    resumed = dataset.check_positions(CONFIG, positions, log=log, say=lambda line: None, on_lost=place)
    assert (offsets(resumed.topic), resumed.lost) == ({0: (600, None), 1: (510, None)}, 500)


def test_on_request_a_position_beyond_the_end_goes_on_at_the_start_and_nothing_counts_as_lost():
    log = log_of(records=6)
    resumed = dataset.check_positions(CONFIG, saved(1_000), log=log, say=lambda line: None, on_lost=Place("earliest"))
    assert (offsets(resumed.topic), resumed.lost) == ({0: (0, None)}, 0)


def test_a_position_beyond_the_end_names_both_and_suspects_a_new_topic():
    with pytest.raises(OffsetLost) as raised:
        check_positions(CONFIG, saved(1_000), log=log_of(records=6))
    assert str(raised.value) == (
        "topic 'engagements' partition 0: saved next offset 1000, but the log ends at 6 (start 0): was the topic recreated? "
        f"{WHAT_TO_DO}"
    )


def test_every_lost_partition_is_told_at_once():
    with pytest.raises(OffsetLost) as raised:
        check_positions(CONFIG, saved(9, partitions=3), log=log_of(partitions=3))
    assert len(str(raised.value).splitlines()) == 3


def test_a_partition_that_was_read_to_its_fixed_end_may_be_gone():
    done = saved(6, end_offset=6)
    assert check_positions(FINITE, done, log=log_of(records=900, start=500)) == done


def test_new_partitions_are_read_from_their_beginning_with_one_line():
    lines: list[str] = []
    config = small_config(stop_at_end=False, num_kafka_partitions=4)
    resumed = check_positions(config, saved(3, partitions=4), log=log_of(partitions=6), say=lines.append)
    assert offsets(resumed) == {**dict.fromkeys(range(4), (3, None)), 4: (0, None), 5: (0, None)}
    assert lines == ["topic 'engagements': the partitions 4, 5 are new and are read from their beginning"]


def test_a_partition_that_came_after_the_ends_were_fixed_holds_nothing_of_the_run():
    resumed = check_positions(FINITE, saved(3, end_offset=6), log=log_of(partitions=2), say=lambda line: None)
    assert offsets(resumed) == {0: (3, 6), 1: (0, 0)}


@pytest.mark.parametrize("resume", [False, True])
def test_new_partitions_may_be_an_error(resume):
    config = small_config(num_kafka_partitions=4, on_new_partitions="error")
    log = log_of(partitions=6)
    with pytest.raises(
        RunError, match=r"has 6 partitions, dataset.num_kafka_partitions = 4, and .*on_new_partitions = error"
    ):
        check_positions(config, saved(partitions=4), log=log) if resume else start_positions(config, log=log)


def test_fewer_partitions_than_expected_are_an_error():
    with pytest.raises(
        RunError, match=r"'engagements' has 1 partitions, dataset.num_kafka_partitions = 2: a topic cannot shrink"
    ):
        start_positions(small_config(num_kafka_partitions=2), log=log_of())
    with pytest.raises(RunError) as raised:
        check_positions(small_config(num_kafka_partitions=16), saved(partitions=16), log=log_of(partitions=12))
    assert str(raised.value) == (
        "positions.json has 16 partitions, topic 'engagements' has 12: a topic cannot shrink; was it recreated? "
        "begin a child: --checkpoint RUN_DIR --run-dir NEW --start-at earliest"
    )


def test_another_topic_id_is_a_recreated_topic():
    log = log_of()
    log.topic_id = "another"
    with pytest.raises(RunError, match=r"has the id another, the positions are those of 0b51c9a2-.*: it was recreated"):
        check_positions(CONFIG, saved(), log=log)
    log.topic_id = None  # a source that serves none
    assert check_positions(CONFIG, saved(), log=log) == saved()


def test_the_last_record_trained_must_be_the_same_one_or_gone():
    log = log_of(records=6)
    trained = Batcher(FINITE, log, start_positions(FINITE, log=log).partitions, 4).next().next_positions
    positions = TopicPositions("engagements", log.topic_id, trained)
    assert check_positions(FINITE, positions, log=log) == positions

    log.records[0][3] = event(3, user_id=999)
    with pytest.raises(
        RunError, match=r"partition 0 offset 3: the message has fingerprint [0-9a-f]{16}, the one trained had"
    ):
        check_positions(FINITE, positions, log=log)

    del log.records[0][3]  # compacted away: passed over
    assert check_positions(FINITE, positions, log=log) == positions
    assert check_positions(FINITE, positions, log=log_of(records=6, start=4)) == positions  # expired: passed over


def test_a_log_that_is_handed_in_stays_open():
    log = log_of()
    check_positions(CONFIG, replace(saved()), log=log)
    assert not log.closed
