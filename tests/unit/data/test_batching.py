import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_log import Clock, MemoryLog, message, small_config

from xrex.data.batching import Batcher
from xrex.data.dataset import start_positions
from xrex.data.hashing import fingerprint
from xrex.errors import LogStalled, OffsetLost, RunError
from xrex.schema.batch import Delivery
from xrex.schema.positions import PartitionPosition
from xrex.schema.specs import FeatureSpec

CONFIG = small_config(tables=(), features=(FeatureSpec(name="x", group="user", column="x", kind="float"),))


def rows_of(partition: int, offset: int, rows: int) -> bytes:
    """A message whose rows tell where they stand."""
    return json.dumps([{"x": partition * 10_000 + offset * 10 + row, "label": 0} for row in range(rows)]).encode()


@st.composite
def logs(draw, partitions=3):
    """Records of 1 to 5 rows, some tombstones, holes, equal timestamps and timestamps out of order."""
    records, ends = [], {}
    for p in range(partitions):
        offset = 0
        for _ in range(draw(st.integers(0, 6))):
            offset += draw(st.integers(0, 2))
            rows = draw(st.sampled_from([None, 1, 1, 2, 3, 5]))
            value = None if rows is None else rows_of(p, offset, rows)
            records.append(message(offset, value, p, draw(st.integers(0, 5))))
            offset += 1
        ends[p] = offset + draw(st.integers(0, 1))
    return records, ends


def chunks(sizes):
    return itertools.cycle(sizes).__next__


def expected_rows(records, positions) -> list[tuple[int, int, int]]:
    """(partition, offset, row) in the order of the contract: lists, sorted by hand."""
    queues: dict[int, list] = {}
    for record in records:
        if record.value is not None and record.offset >= positions[record.kafka_partition].offset:
            queues.setdefault(record.kafka_partition, []).append(record)
    order = []
    while any(queues.values()):
        heads = [queue[0] for queue in queues.values() if queue]
        begun = [
            h for h in heads if positions[h.kafka_partition].row and positions[h.kafka_partition].offset == h.offset
        ]
        head = min(begun or heads, key=lambda h: (h.timestamp_ms, h.kafka_partition, h.offset))
        position = positions[head.kafka_partition]
        first = position.row if position.offset == head.offset else 0
        order += [(head.kafka_partition, head.offset, row) for row in range(first, len(json.loads(head.value)))]
        queues[head.kafka_partition].pop(0)
    return order


def deliveries(batcher: Batcher) -> list[Delivery]:
    """All batches up to the fixed end."""
    found = [batcher.next()]
    while found[-1].more:
        found.append(batcher.next())
    return found


def trained(found: list[Delivery]) -> list[tuple[int, int, int]]:
    return [(s.kafka_partition, s.offset, s.first_row + i) for d in found for s in d.trained for i in range(s.rows)]


def told(delivery: Delivery):
    return delivery.trained, delivery.next_positions, delivery.more, delivery.skipped, delivery.newest_event_ms


@settings(max_examples=200, deadline=None)
@given(logs(), st.integers(1, 5), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_batches_are_the_merged_log_cut_by_row_count(log, rows, sizes):
    records, ends = log
    source = MemoryLog(records, ends=ends, partitions=3, chunk=chunks(sizes))
    positions = start_positions(CONFIG, log=source).partitions
    found = deliveries(Batcher(CONFIG, source, positions, rows))
    order = expected_rows(records, positions)
    assert trained(found) == order
    assert [d.rows for d in found[:-1]] == [rows] * (len(found) - 1)
    x = np.concatenate([d.batch.user["x"][: d.rows] for d in found])
    assert x.tolist() == [p * 10_000 + offset * 10 + row for p, offset, row in order]
    assert all((d.batch.weight == (np.arange(rows) < d.rows)).all() for d in found)
    assert {p: q.offset for p, q in found[-1].next_positions.items()} == ends
    assert sum(d.skipped.get("tombstone", 0) for d in found) == sum(r.value is None for r in records)


@settings(max_examples=100, deadline=None)
@given(logs(), st.integers(1, 4), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_poll_sizes_change_nothing_and_every_delivery_can_be_resumed_from(log, rows, sizes):
    records, ends = log

    def read(positions, chunk):
        return deliveries(Batcher(CONFIG, MemoryLog(records, ends=ends, partitions=3, chunk=chunk), positions, rows))

    start = start_positions(CONFIG, log=MemoryLog(records, ends=ends, partitions=3)).partitions
    whole = read(start, lambda: 1)
    assert list(map(told, read(start, chunks(sizes)))) == list(map(told, whole))
    for i, delivery in enumerate(whole[:-1]):
        rest = read(delivery.next_positions, chunks(sizes))
        assert list(map(told, rest)) == list(map(told, whole[i + 1 :]))


@settings(max_examples=50, deadline=None)
@given(logs(), st.integers(1, 4), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_while_a_backlog_lasts_an_endless_run_makes_the_batches_of_a_finite_one(log, rows, sizes):
    records, ends = log
    finite = start_positions(CONFIG, log=MemoryLog(records, ends=ends, partitions=3)).partitions
    endless = {p: replace(position, end_offset=None) for p, position in finite.items()}
    clock = Clock()
    source = MemoryLog(records, ends=ends, partitions=3, chunk=chunks(sizes), clock=clock)
    config = CONFIG.replace(stop_at_end=False)
    batcher = Batcher(config, source, endless, rows, clock=clock)
    for want in deliveries(Batcher(CONFIG, MemoryLog(records, ends=ends, partitions=3), finite, rows)):
        got = batcher.next()
        assert (got.trained, got.skipped, got.more) == (want.trained, want.skipped, True)
        without_end = {p: replace(q, end_offset=None) for p, q in want.next_positions.items()}
        assert got.next_positions == without_end


@settings(max_examples=50, deadline=None)
@given(logs(), st.data())
def test_messages_begun_under_another_process_count_are_finished_first(log, data):
    records, ends = log
    source = MemoryLog(records, ends=ends, partitions=3)
    positions = start_positions(CONFIG, log=source).partitions
    for record in records:
        length = 0 if record.value is None else len(json.loads(record.value))
        if length > 1 and data.draw(st.booleans()):
            row = data.draw(st.integers(1, length - 1))
            p = record.kafka_partition
            positions[p] = replace(positions[p], offset=record.offset, row=row)
    assert trained(deliveries(Batcher(CONFIG, source, positions, 3))) == expected_rows(records, positions)


def batcher_at_the_edge(records, linger_ms=1_000, partitions=3, **ends):
    clock = Clock()
    source = MemoryLog(records, partitions=partitions, clock=clock)
    config = CONFIG.replace(stop_at_end=False, linger_ms=linger_ms)
    return Batcher(config, source, start_positions(config, log=source).partitions, 4, clock=clock), source, clock


def test_at_the_live_edge_a_short_batch_waits_linger_ms_and_an_idle_one_is_empty():
    batcher, source, clock = batcher_at_the_edge([message(0, rows_of(0, 0, 3), 0, 5)])
    first = batcher.next()
    assert (first.rows, first.more) == (3, True)
    assert clock.now == pytest.approx(1.0, abs=0.01)
    idle = batcher.next()
    assert (idle.rows, idle.more, idle.next_positions) == (0, True, first.next_positions)
    assert clock.now == pytest.approx(2.0, abs=0.01)
    source.append(message(1, rows_of(0, 1, 4), 0, 9))
    assert batcher.next().rows == 4
    assert clock.now == pytest.approx(2.0, abs=0.01)


def test_an_idle_stream_without_linger_gives_at_most_ten_signs_of_life_a_second():
    batcher, _, clock = batcher_at_the_edge([], linger_ms=0)
    for _ in range(5):
        batcher.next()
    assert clock.now == pytest.approx(0.5, abs=0.01)


def test_a_record_past_a_stale_end_is_waited_for_before_its_partition_is_passed_over():
    records = [message(o, rows_of(p, o, 1), p, 10 * o + p) for p in (0, 1) for o in range(2)]
    batcher, source, clock = batcher_at_the_edge(records, partitions=2)
    batcher.next()  # 4 rows: both partitions are used up
    source.append(message(2, rows_of(0, 2, 1), 0, 30), message(2, rows_of(1, 2, 1), 1, 20))
    clock.now += 0.06  # older than an end may be
    assert trained([batcher.next()]) == [(1, 2, 0), (0, 2, 0)]


def test_a_partition_with_a_backlog_that_delivers_nothing_ends_the_run():
    clock = Clock()
    source = MemoryLog([message(o, rows_of(1, o, 1), 1, o) for o in range(5)], partitions=2, clock=clock)
    config = CONFIG.replace(stall_timeout_s=60.0)
    positions = start_positions(config, log=source).partitions
    source.silent = {1}
    with pytest.raises(
        LogStalled, match=r"topic 'engagements' partition 1: nothing arrived for 60 s at offset 0, its end is 5"
    ):
        Batcher(config, source, positions, 4, clock=clock).next()
    assert 60 < clock.now < 61


def test_no_partition_is_fetched_far_beyond_its_share_of_the_buffer():
    big = json.dumps([{"x": 0, "label": 0, "pad": "x" * 300_000}]).encode()
    records = [message(o, big, p, o) for p in (0, 1) for o in range(20)]
    source = MemoryLog(records, partitions=2)
    config = CONFIG.replace(max_buffered_bytes=2**20)
    batcher = Batcher(config, source, start_positions(config, log=source).partitions, 2)
    for taken in range(1, 11):
        batcher.next()
        fetched = sum(source.positions.values())
        assert 2 * taken <= fetched <= 2 * taken + 2 * 3  # 2 messages fill half a MiB; one more was on its way


def test_one_message_larger_than_the_whole_buffer_passes():
    huge = json.dumps([{"x": 0, "label": 0, "pad": "x" * 3 * 2**20}]).encode()
    source = MemoryLog([message(o, huge, 0, o) for o in range(3)], partitions=1)
    config = CONFIG.replace(max_buffered_bytes=2**20)
    found = deliveries(Batcher(config, source, start_positions(config, log=source).partitions, 2))
    assert [d.rows for d in found] == [2, 1]


def test_records_at_or_beyond_the_fixed_end_are_never_used():
    source = MemoryLog([message(o, rows_of(0, o, 1), 0, o) for o in range(3)], partitions=1, chunk=lambda: 9)
    positions = start_positions(CONFIG, log=source).partitions
    source.append(message(3, rows_of(0, 3, 1), 0, 3))
    found = deliveries(Batcher(CONFIG, source, positions, 2))
    assert [d.rows for d in found] == [2, 1]
    assert found[-1].next_positions[0].offset == 3


def test_a_process_without_partitions_delivers_empty_batches():
    finite = Batcher(CONFIG, None, {}, 4).next()
    assert (finite.rows, finite.more, finite.next_positions) == (0, False, {})
    endless = Batcher(CONFIG.replace(stop_at_end=False, linger_ms=1), None, {}, 4).next()
    assert (endless.rows, endless.more) == (0, True)


def test_positions_remember_the_message_last_trained_from():
    value = rows_of(0, 0, 3)
    source = MemoryLog([message(0, value, 0, 77)], partitions=1)
    first = Batcher(CONFIG, source, start_positions(CONFIG, log=source).partitions, 2).next()
    mark = {"timestamp_ms": 77, "fingerprint": fingerprint(value), "fingerprint_offset": 0, "end_offset": 1}
    assert first.next_positions == {0: PartitionPosition(0, 2, **mark)}
    assert Batcher(CONFIG, source, first.next_positions, 2).next().next_positions == {
        0: PartitionPosition(1, 0, **mark)
    }


@pytest.mark.parametrize(
    ("records", "error", "words"),
    [
        ([message(1, rows_of(0, 1, 3))], OffsetLost, "the message at offset 0 is gone, of which 2 rows were trained"),
        ([message(0, None)], OffsetLost, "the message at offset 0 is gone, of which 2 rows were trained"),
        ([], OffsetLost, "the message at offset 0 is gone, of which 2 rows were trained"),
        ([message(0, rows_of(0, 7, 3))], RunError, "offset 0: not the message of which 2 rows were trained"),
        ([message(0, rows_of(0, 0, 2))], RunError, "offset 0: not the message of which 2 rows were trained"),
    ],
)
def test_a_half_trained_message_must_still_be_there_and_be_the_same(records, error, words):
    position = PartitionPosition(0, 2, 77, fingerprint(rows_of(0, 0, 3)), 0, end_offset=2)
    with pytest.raises(error, match=words):
        Batcher(CONFIG, MemoryLog(records, ends={0: 2}), {0: position}, 2).next()
