import threading
import time
from contextlib import closing

import numpy as np
import pytest
from memory_log import MemoryLog, event, small_config

from xrex.data.batching import Batcher
from xrex.data.dataset import start_positions
from xrex.data.prefetch import Stream
from xrex.errors import LogError, RunError


def stream_of(log, *, partitions=None, rows=4, **changes) -> Stream:
    config = small_config(**changes)
    positions = start_positions(config, log=log).partitions
    chosen = list(positions) if partitions is None else partitions
    return Stream(config, positions=positions, partitions=chosen, rows=rows, log=log)


@pytest.mark.parametrize("prefetch", [1, 3, 50])
def test_prefetch_depth_changes_neither_batches_nor_positions(prefetch):
    records = [event(o) for o in range(10)]
    stream = stream_of(MemoryLog(records), prefetch_batches=prefetch)
    log = MemoryLog(records)
    batcher = Batcher(small_config(), log, start_positions(small_config(), log=log).partitions, 4)
    for _ in range(3):
        got, want = stream.next(), batcher.next()
        assert (got.trained, got.next_positions, got.more) == (want.trained, want.next_positions, want.more)
        np.testing.assert_array_equal(got.batch.user["user"], want.batch.user["user"])
    stream.close()


def test_after_the_last_batch_come_empty_ones_for_ever_and_at_once():
    log = MemoryLog([event(0)])
    stream = stream_of(log)
    last = stream.next()
    assert (last.rows, last.more) == (1, False)
    for _ in range(3):
        empty = stream.next()
        assert (empty.rows, empty.more, empty.next_positions) == (0, False, last.next_positions)
        assert empty.batch.weight.sum() == 0
    assert stream.wait_seconds < 1
    stream.close()
    assert log.closed


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("a defect"), SystemExit(3)])
def test_an_error_of_the_decoder_ends_the_loop_with_that_error_after_the_batches_before_it(monkeypatch, error):
    from xrex.data.codecs import json

    decode = json.decode

    def failing(value):
        if b'"user_id": 110' in value:
            raise error
        return decode(value)

    monkeypatch.setattr(json, "decode", failing)
    stream = stream_of(MemoryLog([event(o) for o in range(20)]))
    assert [stream.next().rows for _ in range(2)] == [4, 4]
    began = time.monotonic()
    for _ in range(2):  # and stays that way
        with pytest.raises(type(error)) as raised:
            stream.next()
        assert raised.value is error
    assert time.monotonic() - began < 1
    stream.close()


def test_a_log_that_fails_for_good_ends_the_loop():
    class Broken(MemoryLog):
        def poll(self, timeout_ms):
            if self.polls == 4:
                raise LogError("the socket is closed")
            return super().poll(timeout_ms)

    log = Broken([event(o) for o in range(20)])
    stream = stream_of(log, rows=2)
    assert stream.next().rows == 2
    with pytest.raises(LogError, match="the socket is closed"):
        stream.next()
    stream.close()
    assert log.closed


def test_a_thread_that_died_is_noticed(monkeypatch):
    monkeypatch.setattr(Stream, "_run", lambda self: None)
    stream = stream_of(MemoryLog([event(0)]))
    with pytest.raises(RunError, match="the reader thread ended without a word"):
        stream.next()


def test_a_call_that_hangs_is_noticed(monkeypatch):
    release = threading.Event()

    class Hanging(MemoryLog):
        def poll(self, timeout_ms):
            release.wait()
            return []

    monkeypatch.setattr("xrex.data.prefetch._SILENCE_S", 0.1)
    stream = stream_of(Hanging([event(0)]), stall_timeout_s=0.2)
    with pytest.raises(LogError, match="the reader has hung for"):
        stream.next()
    release.set()
    stream.close()


def test_an_interrupt_during_a_wait_gives_an_empty_delivery_at_the_same_positions():
    stream = stream_of(MemoryLog([event(o) for o in range(4)]), stop_at_end=False, linger_ms=60_000)
    trained = stream.next()
    began = time.monotonic()
    empty = stream.next(interrupted=lambda: True)
    assert time.monotonic() - began < 1
    assert (empty.rows, empty.more, empty.next_positions) == (0, True, trained.next_positions)
    stream.close()


def test_an_idle_live_edge_gives_empty_deliveries():
    stream = stream_of(MemoryLog(), stop_at_end=False, linger_ms=150)
    began = time.monotonic()
    assert [(d.rows, d.more) for d in (stream.next(), stream.next())] == [(0, True)] * 2
    assert 0.25 < time.monotonic() - began < 3
    assert 0.2 < stream.wait_seconds < 3
    stream.close()


def test_a_process_without_partitions_takes_part():
    finite, endless = (
        stream_of(MemoryLog([event(0)]), partitions=[], stop_at_end=end, linger_ms=50) for end in (True, False)
    )
    assert [(d.rows, d.more, d.next_positions) for d in (finite.next(), endless.next())] == [
        (0, False, {}),
        (0, True, {}),
    ]
    finite.close()
    endless.close()


def test_lag_is_what_is_left_after_the_last_delivery():
    stream = stream_of(MemoryLog([event(o) for o in range(10)]))
    lags = []
    for _ in range(3):
        stream.next()
        lags.append(stream.lag())
    assert lags == [{0: 6}, {0: 2}, {0: 0}]
    stream.close()


def test_close_ends_a_thread_whose_queue_is_full_and_one_that_waits():
    for log in (MemoryLog([event(o) for o in range(50)]), MemoryLog()):
        stream = stream_of(log, prefetch_batches=1, stop_at_end=False, linger_ms=60_000)
        time.sleep(0.05)
        began = time.monotonic()
        stream.close()
        assert time.monotonic() - began < 1
        assert log.closed


def test_partitions_that_the_topic_gets_while_it_is_read_are_told_once():
    log = MemoryLog([event(o) for o in range(4)])
    config = small_config(stop_at_end=False)
    stream = Stream(config, positions=start_positions(config, log=log).partitions, partitions=[0], rows=4, log=log)
    with closing(stream):
        stream.next()
        assert stream.new_partitions() is None
        log.records[1] = []
        assert [stream.new_partitions(), stream.new_partitions()] == [2, None]
