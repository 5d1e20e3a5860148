"""What a stream does to a trainer, against a real Apache Kafka: holes, lost and new offsets, bad records, quiet partitions."""

import json
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from runs import ROOT, SMALL, journal, summary, train, xrex
from unit.data.memory_log import event, small_config
from xrex.data import batching
from xrex.data.batching import Batcher
from xrex.data.config import DatasetConfig
from xrex.data.dataset import check_positions, start_positions
from xrex.data.log.config import KafkaLog
from xrex.data.log.kafka import KafkaSource, KafkaTopicWriter, commit_offsets
from xrex.data.places import Place
from xrex.data.prefetch import Stream
from xrex.errors import BadRecord, OffsetLost, RunError
from xrex.schema.batch import Delivery
from xrex.schema.positions import PartitionPosition, TopicPositions

pytestmark = pytest.mark.kafka
RANKER_KAFKA = ROOT / "configs" / "ranker_kafka.yaml"
UNREADABLE = bytes.fromhex("fffe006e6f742d616e2d6576656e74")


@pytest.fixture
def admin(kafka) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=kafka)) as client:
        yield client


@pytest.fixture
def stream(kafka, topic_name) -> DatasetConfig:
    """The schema of the small cases over a topic of this broker."""
    return over(kafka, topic_name)


def over(kafka, topic_name, **changes) -> DatasetConfig:
    log = KafkaLog(bootstrap_servers=kafka, request_timeout_ms=5_000)
    return small_config(topic_name=topic_name, log=log, **changes)


def write(config: DatasetConfig, records, partitions=1) -> None:
    """Records of the in-memory log, appended in their order; their own offsets do not count."""
    with closing(KafkaTopicWriter(config.log, config.topic_name, partitions)) as writer:
        for record in records:
            writer.append(record.kafka_partition, [(record.timestamp_ms, b"key", record.value)])


def deliveries(config: DatasetConfig, positions=None) -> list[Delivery]:
    """Everything up to the fixed ends, in batches of 4."""
    positions = positions or start_positions(config).partitions
    with closing(KafkaSource(config.log, config.topic_name)) as log:
        batcher = Batcher(config, log, positions, 4)
        found = [batcher.next()]
        while found[-1].more:
            found.append(batcher.next())
    return found


def trained(found: list[Delivery]) -> list[tuple[int, int]]:
    return [(span.kafka_partition, span.offset) for d in found for span in d.trained]


def offsets(topic: TopicPositions) -> dict[int, int]:
    return {p: position.offset for p, position in topic.partitions.items()}


# Holes in the numbers of the records


def test_transactions_markers_and_aborted_records_are_passed_and_the_end_is_exact(kafka, stream, topic_name):
    """Offsets 0-3 and 5-8 committed, 4 and 9 their markers, 10 and 11 aborted, 12 the marker, 13 open at the end."""
    KafkaTopicWriter(stream.log, topic_name, 1).close()
    producer = KafkaProducer(bootstrap_servers=kafka, transactional_id=topic_name)
    still_open = KafkaProducer(bootstrap_servers=kafka, transactional_id=f"{topic_name}-open")
    with closing(producer), closing(still_open):
        producer.init_transactions()
        for first, count, end in ((0, 4, "commit"), (4, 4, "commit"), (8, 2, "abort")):
            producer.begin_transaction()
            for offset in range(first, first + count):
                producer.send(topic_name, event(offset).value, b"key", partition=0, timestamp_ms=offset)
            producer.flush()
            getattr(producer, f"{end}_transaction")()
        still_open.init_transactions()
        still_open.begin_transaction()
        still_open.send(topic_name, event(99).value, b"key", partition=0).get(timeout=10)
        found = deliveries(stream)
        assert [offset for _, offset in trained(found)] == [0, 1, 2, 3, 5, 6, 7, 8]
        assert [d.rows for d in found if d.rows] == [4, 4]
        end = found[-1].next_positions[0]
        assert end.offset == end.end_offset == 13
        assert trained(deliveries(stream, found[-1].next_positions)) == [], "a second run trains nothing and ends too"
        assert trained(deliveries(stream, found[0].next_positions)) == [(0, o) for o in (5, 6, 7, 8)]
        still_open.abort_transaction()


@pytest.mark.slow
def test_what_compaction_has_removed_is_passed(kafka, admin, stream, topic_name):
    """The broker cleans a log about every 15 s."""
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "100",
        "max.compaction.lag.ms": "100",
        "message.timestamp.type": "CreateTime",
    }
    admin.create_topics([NewTopic(topic_name, 1, 1, topic_configs=settings)])
    with closing(KafkaProducer(bootstrap_servers=kafka)) as producer:
        for offset in range(12):
            key = b"twice" if offset in (2, 5, 6) else b"%d" % offset
            # Each record rolls a segment, whose age is that of its records; the newest segment is never cleaned.
            producer.send(topic_name, event(offset).value, key, partition=0, timestamp_ms=1_000 * offset).get(
                timeout=10
            )
        deadline = time.monotonic() + 90
        while len(present(kafka, topic_name)) > 10:
            assert time.monotonic() < deadline, "the broker has not compacted the topic"
            time.sleep(1)
    kept = [o for o in range(12) if o not in (2, 5)]
    found = deliveries(stream)
    assert [offset for _, offset in trained(found)] == kept
    assert found[-1].next_positions[0].offset == 12
    for cut in range(len(found)):
        assert trained(found[:cut] + (deliveries(stream, found[cut - 1].next_positions) if cut else found)) == trained(
            found
        )


def present(kafka, topic_name) -> list[int]:
    consumer = KafkaConsumer(bootstrap_servers=kafka, group_id=None, auto_offset_reset="earliest")
    with closing(consumer):
        partition = TopicPartition(topic_name, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        found, end = [], consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            found += [record.offset for records in consumer.poll(500).values() for record in records]
        return found


def test_tombstones_are_passed_and_counted(stream):
    records = [event(o) for o in range(10)]
    write(stream, [r._replace(value=None) if r.offset in (3, 6) else r for r in records])
    found = deliveries(stream)
    assert [offset for _, offset in trained(found)] == [0, 1, 2, 4, 5, 7, 8, 9]
    assert sum(d.skipped.get("tombstone", 0) for d in found) == 2
    assert found[-1].next_positions[0].offset == 10


# Bad records


def test_bad_records_end_the_run_unless_so_many_may_be_passed_over(kafka, stream, topic_name):
    records = [event(o) for o in range(10)]
    records[2] = records[2]._replace(value=UNREADABLE)
    records[5] = event(5, user_id="abc")
    write(stream, records)
    place = f"topic '{topic_name}' partition 0 offset"
    for _ in range(2):
        with pytest.raises(BadRecord, match=f"^{place} 2: not JSON.*the value begins fffe006e6f742d61$"):
            deliveries(stream)
    with pytest.raises(BadRecord, match=f"^{place} 5 row 0: column 'user_id': expected an integer"):
        deliveries(over(kafka, topic_name, skip_bad_records=1))
    found = deliveries(over(kafka, topic_name, skip_bad_records=2))
    assert [offset for _, offset in trained(found)] == [0, 1, 3, 4, 6, 7, 8, 9]
    assert [(bad.offset, bad.row) for d in found for bad in d.bad] == [(2, None), (5, 0)]
    assert found[-1].next_positions[0].offset == 10


# Quiet partitions, read-ahead, a reader that fails


def test_quiet_and_empty_partitions_hold_nobody_back(kafka, topic_name):
    config = over(kafka, topic_name, num_kafka_partitions=3)
    write(config, [*(event(o) for o in range(8)), event(0, 2)], partitions=3)
    found = deliveries(config)
    assert sorted(trained(found)) == [(0, o) for o in range(8)] + [(2, 0)]
    assert [d.rows for d in found if d.rows] == [4, 4, 1]
    assert {p: q.offset for p, q in found[-1].next_positions.items()} == {0: 8, 1: 0, 2: 1}


def test_read_ahead_moves_no_position(kafka, topic_name):
    config = over(kafka, topic_name, prefetch_batches=1_000)
    write(config, [event(o) for o in range(100)])
    ahead = Stream(config, positions=start_positions(config).partitions, partitions=[0], rows=4)
    first = [ahead.next() for _ in range(5)]
    ahead.close()
    assert first[-1].next_positions[0].offset == 20
    rest = deliveries(config, first[-1].next_positions)
    assert [offset for _, offset in trained(first + rest)] == list(range(100))
    assert len([d for d in rest if d.rows]) == 20


def test_an_error_in_the_decoder_ends_the_loop_with_that_very_error(stream, monkeypatch):
    write(stream, [event(o) for o in range(20)])
    fault = MemoryError("no room at record 10")

    class Failing:
        def __init__(self, codec):
            self.join, self._read, self._left = codec.join, codec.read, 10

        def read(self, value):
            self._left -= 1
            if self._left < 0:
                raise fault
            return self._read(value)

    monkeypatch.setattr(batching, "codec_of", lambda config, make=batching.codec_of: Failing(make(config)))
    with closing(Stream(stream, positions=start_positions(stream).partitions, partitions=[0], rows=4)) as reader:
        with pytest.raises(MemoryError) as raised:
            exhaust(reader)
        assert raised.value is fault


def exhaust(reader: Stream) -> None:
    while reader.next().more:
        pass


# Where a stream begins and goes on


def test_what_others_committed_for_a_group_does_not_move_a_start(kafka, admin, topic_name):
    config = over(kafka, topic_name)
    config = config.replace(log=config.log.replace(group_id=f"{topic_name}-group"))
    write(config, [event(o) for o in range(10)])
    commit_offsets(config.log, topic_name, {0: 7})
    (committed,) = admin.list_group_offsets({f"{topic_name}-group": [TopicPartition(topic_name, 0)]}).values()
    assert [found.offset for found in committed.values()] == [7]
    assert offsets(start_positions(config)) == {0: 0}
    assert offsets(start_positions(config, place=Place("latest"))) == {0: 10}
    assert len(trained(deliveries(config))) == 10


def test_a_topic_made_anew_is_not_taken_for_the_old_one(kafka, admin, stream, topic_name):
    write(stream, [event(o) for o in range(20)])
    before = start_positions(stream)
    done = TopicPositions(topic_name, before.topic_id, deliveries(stream)[-1].next_positions)
    admin.delete_topics([topic_name])
    deadline = time.monotonic() + 20
    while topic_name in admin.list_topics():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    write(stream, [event(o) for o in range(6)])
    continuous = over(kafka, topic_name, stop_at_end=False)
    with pytest.raises(RunError, match=f"topic '{topic_name}' has the id .*it was recreated"):
        check_positions(continuous, done)
    # Brokers before 2.8 serve no ids: then the numbers tell.
    with pytest.raises(OffsetLost, match=r"saved next offset 20, but the log ends at 6 .*was the topic recreated\?"):
        check_positions(continuous, TopicPositions(topic_name, None, done.partitions))
    resumed = TopicPositions(topic_name, None, {0: PartitionPosition(3, 0, 2, "0" * 16, 2)})
    with pytest.raises(RunError, match="offset 2: the message has fingerprint"):
        check_positions(continuous, resumed)


def test_partitions_that_were_added_are_read_from_their_beginning_or_are_an_error(kafka, admin, topic_name):
    config = over(kafka, topic_name, num_kafka_partitions=4, stop_at_end=False)
    write(config, [event(o, p) for p in range(4) for o in range(5)], partitions=4)
    info = start_positions(config)
    saved = TopicPositions(topic_name, info.topic_id, {p: PartitionPosition(3) for p in range(4)})
    admin.create_partitions({topic_name: 6})
    deadline = time.monotonic() + 20
    while len(start_positions(config, say=lambda line: None).partitions) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    write(config, [event(0, 4), event(0, 5)], partitions=6)
    said = []
    resumed = check_positions(config, saved, say=said.append).topic
    assert offsets(resumed) == {0: 3, 1: 3, 2: 3, 3: 3, 4: 0, 5: 0}
    assert said == [f"topic '{topic_name}': the partitions 4, 5 are new and are read from their beginning"]
    strict = over(kafka, topic_name, num_kafka_partitions=4, stop_at_end=False, on_new_partitions="error")
    with pytest.raises(RunError, match=r"has 6 partitions, dataset\.num_kafka_partitions = 4"):
        check_positions(strict, saved)


@pytest.fixture(scope="module")
def stopped(kafka, tmp_path_factory):
    """A run stopped at step 30 of a topic that retention then shortens: its folder, topic, and where partition 0 was."""
    topic = f"lost-{time.time_ns()}"
    xrex("data", "produce", "--to", kafka, "--topic", topic, "--examples", 4000, "--rows-per-message", 30)
    run_dir = tmp_path_factory.mktemp("lost") / "run"
    place = (f"dataset.topic_name={topic}", f"dataset.log.bootstrap_servers={kafka}")
    train(
        "--config",
        RANKER_KAFKA,
        *place,
        *SMALL,
        "--run-dir",
        run_dir,
        "trainer.max_steps=30",
        "dataset.log.group_id=lag",
    )
    return (
        run_dir,
        topic,
        json.loads((run_dir / "checkpoints/30/positions.json").read_text())["topics"][0]["partitions"],
    )


@pytest.mark.slow
def test_positions_of_a_complete_checkpoint_are_committed_for_those_who_watch_the_lag(stopped, admin):
    _, topic, saved = stopped
    committed = admin.list_group_offsets({"lag": [TopicPartition(topic, p) for p in range(4)]})["lag"]
    assert {str(tp.partition): o.offset for tp, o in committed.items()} == {p: q["offset"] for p, q in saved.items()}


@pytest.mark.slow
def test_an_offset_that_retention_removed_ends_the_run_and_on_request_the_run_goes_on_behind_the_gap(stopped, admin):
    run_dir, topic, saved = stopped
    start = saved["0"]["offset"] + 7
    admin.delete_records({TopicPartition(topic, 0): start})
    steps = sorted((run_dir / "checkpoints").iterdir())
    refused = train("--run-dir", run_dir, "trainer.max_steps=null", check=False)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert f"topic '{topic}' partition 0: saved next offset {start - 7}, but the log starts at {start}" in line
    assert "7 records are lost; to go on without what is lost, start it with --on-lost-offset earliest" in line
    assert sorted((run_dir / "checkpoints").iterdir()) == steps
    done = train("--run-dir", run_dir, "trainer.max_steps=null", "--on-lost-offset", "earliest")
    gap = f"partition 0: goes on at offset {start}, not at {start - 7}"
    assert done.stdout.count(gap) == 1
    assert summary(run_dir)["examples_skipped"] == {"lost_offset": 7}
    rows = journal(run_dir)
    assert len(rows) == len(set(rows))
    later = [(p, o) for p, o, _ in rows if p == 0 and o >= start - 7]
    assert min(later) == (0, start)
    again = train("--run-dir", run_dir, "trainer.max_steps=null")
    assert summary(run_dir)["examples_skipped"] == {"lost_offset": 7}, again.stdout
