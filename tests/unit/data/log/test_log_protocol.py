"""What every log promises; the same tests run against a folder and against a real Apache Kafka."""

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from xrex.data.log.base import Log, Record, TopicWriter
from xrex.data.log.config import DirectoryLog, KafkaLog, LogConfig
from xrex.data.log.open import open_log, open_writer
from xrex.errors import OffsetLost, RunError, TopicMissing


class FolderCase:
    """Topics in a folder."""

    def __init__(self, path: Path):
        self.to = str(path)
        self.config: LogConfig = DirectoryLog(path=self.to)

    def write_with_hole(self, topic: str) -> None:
        """Offsets 0, 1, 5, 6 of partition 0."""
        open_writer(self.to, topic, 1).close()
        offsets = [0, 1, 5, 6]
        columns = {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp_ms": pa.array(offsets, pa.int64()),
            "key": pa.array([b"k"] * 4, pa.binary()),
            "headers": pa.array([[]] * 4, pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
            "value": pa.array([b"%d" % o for o in offsets], pa.binary()),
        }
        table = pa.table(columns)
        with pa.ipc.new_file(Path(self.to) / topic / "0" / f"{0:020d}.arrow", table.schema) as file:
            file.write_table(table, max_chunksize=3)

    def remove_up_to_3(self, topic: str) -> None:
        """Offsets 0..2 of partition 0, which were appended first and alone, are no longer held."""
        (Path(self.to) / topic / "0" / f"{0:020d}.arrow").unlink()


class KafkaCase:
    """Topics of a broker."""

    def __init__(self, address: str):
        self.to = address
        self.config: LogConfig = KafkaLog(bootstrap_servers=address, request_timeout_ms=5_000)

    def write_with_hole(self, topic: str) -> None:
        """Offsets 0, 1, 5, 6 of partition 0: 2 and 3 are of an aborted transaction, 4 is its marker."""
        from kafka import KafkaConsumer, KafkaProducer, TopicPartition

        writer = open_writer(self.to, topic, 1)
        writer.append(0, [(0, b"k", b"0"), (1, b"k", b"1")])
        aborting = KafkaProducer(bootstrap_servers=self.to, transactional_id=topic)
        aborting.init_transactions()
        aborting.begin_transaction()
        for _ in range(2):
            aborting.send(topic, b"aborted", partition=0)
        aborting.flush()
        aborting.abort_transaction()
        aborting.close()
        partition = TopicPartition(topic, 0)
        with KafkaConsumer(bootstrap_servers=self.to) as consumer:
            while consumer.end_offsets([partition])[partition] < 5:  # the marker is written a little after the abort
                time.sleep(0.02)
        writer.append(0, [(5, b"k", b"5"), (6, b"k", b"6")])
        writer.close()

    def remove_up_to_3(self, topic: str) -> None:
        """Offsets 0..2 of partition 0 are no longer held."""
        from kafka import KafkaAdminClient, TopicPartition

        admin = KafkaAdminClient(bootstrap_servers=self.to)
        admin.delete_records({TopicPartition(topic, 0): 3})
        admin.close()


Case = FolderCase | KafkaCase


@pytest.fixture(params=["folder", pytest.param("kafka", marks=pytest.mark.kafka)])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if request.param == "folder":
        return FolderCase(tmp_path)
    return KafkaCase(request.getfixturevalue("kafka"))


@pytest.fixture
def writer(case: Case, topic_name: str) -> Iterator[TopicWriter]:
    writer = open_writer(case.to, topic_name, 3)
    yield writer
    writer.close()


@pytest.fixture
def log(case: Case, writer: TopicWriter, topic_name: str) -> Iterator[Log]:
    log = open_log(case.config, topic_name)
    yield log
    log.close()


def read_up_to(log: Log, ends: dict[int, int]) -> dict[int, list[Record]]:
    """Poll until every position has reached its end (at most 20 s)."""
    records = defaultdict(list)
    deadline = time.monotonic() + 20
    while any(log.fetch_positions()[p] < end for p, end in ends.items()):
        assert time.monotonic() < deadline, f"stuck at {log.fetch_positions()}, want {ends}"
        for record in log.poll(200):
            records[record.kafka_partition].append(record)
    return dict(records)


def read_from(log: Log, starts: dict[int, int]) -> None:
    """Assign, and poll beyond the first offset; a log may say at either of the two that it is lost."""
    log.assign(starts)
    read_up_to(log, {p: offset + 1 for p, offset in starts.items()})


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def entries(*numbers: int) -> list[tuple[int, bytes, bytes]]:
    return [(1_700_000_000_000 + n, b"key %d" % n, b"value %d" % n) for n in numbers]


def test_a_topic_has_its_partitions_and_one_lasting_id(log, case, topic_name):
    again = open_log(case.config, topic_name)
    assert log.info().num_partitions == 3
    assert log.info().topic_id == again.info().topic_id is not None
    again.close()


def test_records_come_back_as_they_were_written(log, writer):
    writer.append(1, entries(7, 8))
    log.assign({1: 0})
    assert read_up_to(log, {1: 2})[1] == [
        Record(1, 0, 1_700_000_000_007, b"key 7", b"value 7"),
        Record(1, 1, 1_700_000_000_008, b"key 8", b"value 8"),
    ]


def test_a_tombstone_has_no_value_and_an_empty_value_is_a_value(log, writer):
    writer.append(0, [(1, b"k", None), (2, b"k", b""), (3, None, b"no key")])
    log.assign({0: 0})
    assert [(r.key, r.value) for r in read_up_to(log, {0: 3})[0]] == [(b"k", None), (b"k", b""), (None, b"no key")]


def test_thousands_of_records_of_several_partitions_come_once_each_and_in_order(log, writer):
    for kafka_partition in (0, 1, 2):
        for first in (0, 4_000):
            writer.append(kafka_partition, entries(*range(first, first + 4_000)))
    log.assign({0: 0, 1: 0, 2: 0})
    records = read_up_to(log, {0: 8_000, 1: 8_000, 2: 8_000})
    for kafka_partition in (0, 1, 2):
        assert offsets(records[kafka_partition]) == list(range(8_000))
        assert [r.value for r in records[kafka_partition]] == [b"value %d" % n for n in range(8_000)]


def test_reading_begins_at_the_assigned_offset(log, writer):
    writer.append(0, entries(*range(10)))
    writer.append(0, entries(*range(10, 20)))
    for first in (4, 9, 10, 13):
        log.assign({0: first})
        assert offsets(read_up_to(log, {0: 20})[0]) == list(range(first, 20))


def test_start_and_end_offsets_are_the_first_record_and_one_past_the_last(log, writer, case, topic_name):
    assert log.start_offsets([0, 1]) == log.end_offsets([0, 1]) == {0: 0, 1: 0}
    writer.append(0, entries(0, 1, 2))
    writer.append(0, entries(3, 4))
    assert log.end_offsets([0, 1]) == {0: 5, 1: 0}
    case.remove_up_to_3(topic_name)
    assert log.start_offsets([0]) == {0: 3}
    assert log.end_offsets([0]) == {0: 5}


def test_a_time_is_found_as_the_offset_of_the_first_record_of_it_or_later(case, topic_name):
    writer = open_writer(case.to, topic_name, 3)
    writer.append(0, [(1_000 * i, b"k", b"v") for i in range(10)])
    writer.append(0, [(1_000 * i, b"k", b"v") for i in range(10, 12)])
    writer.append(1, [(0, b"k", b"v")])
    writer.close()
    log = open_log(case.config, topic_name)
    try:
        assert log.offsets_at([0, 1, 2], 3_500) == {0: 4, 1: 1, 2: 0}
        assert log.offsets_at([0], 10_000) == {0: 10}
        assert log.offsets_at([0], 0) == {0: 0}
    finally:
        log.close()


def test_holes_are_passed_over(case, topic_name):
    case.write_with_hole(topic_name)
    log = open_log(case.config, topic_name)
    assert log.end_offsets([0]) == {0: 7}
    log.assign({0: 0})
    assert offsets(read_up_to(log, {0: 7})[0]) == [0, 1, 5, 6]
    log.assign({0: 3})  # inside the hole
    assert offsets(read_up_to(log, {0: 7})[0]) == [5, 6]
    assert log.fetch_positions() == {0: 7}
    log.close()


def test_at_the_end_a_poll_returns_nothing_after_its_timeout(log, writer):
    writer.append(0, entries(0))
    log.assign({0: 1})
    began = time.monotonic()
    assert log.poll(300) == []
    assert 0.25 < time.monotonic() - began < 2
    assert log.fetch_positions() == {0: 1}


def test_what_is_written_while_the_reader_waits_at_the_end_is_read(log, writer):
    log.assign({0: 0, 2: 0})
    assert log.poll(100) == []
    writer.append(2, entries(0, 1))
    assert offsets(read_up_to(log, {2: 2})[2]) == [0, 1]
    writer.append(2, entries(2))
    assert offsets(read_up_to(log, {2: 3})[2]) == [2]


def test_a_paused_partition_is_left_out_and_loses_nothing(log, writer):
    for kafka_partition in (0, 1):
        writer.append(kafka_partition, entries(*range(5)))
    log.assign({0: 0, 1: 0})
    log.pause({1})
    assert set(read_up_to(log, {0: 5})) == {0}
    assert log.poll(300) == []
    log.pause(set())
    assert offsets(read_up_to(log, {1: 5})[1]) == list(range(5))


def test_a_new_assignment_forgets_the_old_one(log, writer):
    for kafka_partition in (0, 1):
        writer.append(kafka_partition, entries(*range(5)))
    log.assign({0: 0})
    log.pause({0, 1})
    log.assign({1: 2})
    assert log.fetch_positions() == {1: 2}
    assert set(read_up_to(log, {1: 5})) == {1}


def test_an_offset_beyond_the_end_is_lost_and_the_error_says_where(log, writer, topic_name):
    writer.append(0, entries(0, 1))
    with pytest.raises(OffsetLost, match=rf"'{topic_name}' partition 0: offset 9 .* holds 0\.\.2.*--start-at earliest"):
        read_from(log, {0: 9})


def test_an_offset_below_the_start_is_lost(log, writer, case, topic_name):
    writer.append(0, entries(0, 1, 2))
    writer.append(0, entries(3, 4))
    case.remove_up_to_3(topic_name)
    with pytest.raises(OffsetLost, match=r"partition 0: offset 1 .* holds 3\.\.5"):
        read_from(log, {0: 1})


def test_a_missing_topic_is_named_together_with_what_is_there(log, case, topic_name):
    with pytest.raises(TopicMissing, match=rf"'{topic_name}x'.*{topic_name}"):
        open_log(case.config, f"{topic_name}x").info()


def test_a_message_larger_than_a_fetch_comes_whole(log, writer):
    large = bytes(range(256)) * (3 * 4096)
    writer.append(0, [(1, None, b"before"), (2, None, large), (3, None, b"after")])
    log.assign({0: 0})
    assert [r.value for r in read_up_to(log, {0: 3})[0]] == [b"before", large, b"after"]


def test_a_writer_continues_at_the_end_of_an_existing_topic(log, writer, case, topic_name):
    writer.append(0, entries(0, 1))
    writer.close()
    again = open_writer(case.to, topic_name, 3)
    again.append(0, entries(2))
    again.close()
    log.assign({0: 0})
    assert [r.value for r in read_up_to(log, {0: 3})[0]] == [b"value 0", b"value 1", b"value 2"]


def test_a_topic_with_another_number_of_partitions_is_not_written_to(writer, case, topic_name):
    with pytest.raises(RunError, match="has 3 partitions, not 5: say --partitions 3"):
        open_writer(case.to, topic_name, 5)


def test_an_entry_for_a_partition_that_is_not_there_is_an_error(writer, topic_name):
    with pytest.raises(RunError, match=f"partition 3: topic '{topic_name}' has 3 partitions"):
        writer.append(3, entries(0))


def test_closing_twice_is_harmless(log, writer):
    for _ in range(2):
        log.close()
        writer.close()
