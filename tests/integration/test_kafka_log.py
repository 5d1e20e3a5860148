"""What only a real Apache Kafka can show: transactions, outages, passwords and certificates, topics made and refused."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from xai_configlib import SecretRef
from xrex.data.log.base import Record
from xrex.data.log.config import KafkaLog, Security
from xrex.data.log.kafka import OUTAGE_REQUESTS, KafkaSource, KafkaTopicWriter, create_topic
from xrex.errors import LogError, LogUnreachable, RunError, TopicMissing

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]
DAY_MS = 86_400_000


def config(address: str, timeout_ms: int = 5_000, **security) -> KafkaLog:
    return KafkaLog(bootstrap_servers=address, request_timeout_ms=timeout_ms, security=Security(**security))


def open_and_close(log: KafkaLog) -> None:
    KafkaSource(log, "any").close()


def read(source: KafkaSource, ends: dict[int, int]) -> list[int]:
    """The offsets that come until every position is at its end (at most 20 s)."""
    offsets, deadline = [], time.monotonic() + 20
    while source.fetch_positions() != ends:
        assert time.monotonic() < deadline, f"stuck at {source.fetch_positions()}, want {ends}"
        offsets += [record.offset for record in source.poll(200)]
    return offsets


def poll_for(source: KafkaSource, seconds: float) -> list[Record]:
    records, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        records += source.poll(500)
    return records


@pytest.fixture
def source(kafka: str, topic_name: str) -> Iterator[KafkaSource]:
    create_topic(config(kafka), topic_name, 1)
    with closing(KafkaSource(config(kafka), topic_name)) as source:
        yield source


@pytest.fixture
def transaction(kafka: str, topic_name: str) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(bootstrap_servers=kafka, transactional_id=topic_name)
    producer.init_transactions()
    producer.begin_transaction()
    yield producer
    producer.close()


def test_the_marker_behind_a_committed_transaction_is_passed_at_the_end(source, transaction, topic_name):
    for _ in range(3):
        transaction.send(topic_name, b"v", partition=0)
    transaction.commit_transaction()
    source.assign({0: 0})
    assert read(source, {0: 4}) == [0, 1, 2]
    assert source.end_offsets([0]) == {0: 4}


def test_what_an_open_transaction_wrote_is_beyond_the_end_until_it_commits(source, transaction, topic_name):
    transaction.send(topic_name, b"v", partition=0)
    transaction.flush()
    source.assign({0: 0})
    assert source.poll(500) == []
    assert source.end_offsets([0]) == source.fetch_positions() == {0: 0}
    transaction.commit_transaction()
    assert read(source, {0: 2}) == [0]


def test_a_record_with_headers_is_read_like_any_other(source, kafka, topic_name):
    with closing(KafkaProducer(bootstrap_servers=kafka)) as producer:
        producer.send(topic_name, b"v", key=b"k", headers=[("trace", b"1")], timestamp_ms=77).get(timeout=10)
    source.assign({0: 0})
    (record,) = source.poll(5_000)
    assert record == (0, 0, 77, b"k", b"v")


def test_a_created_topic_keeps_every_record_and_its_event_time(source, kafka, topic_name):
    with closing(KafkaAdminClient(bootstrap_servers=kafka)) as admin:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic_name)], config_filter="all")
    values = {name: entry["value"] for name, entry in found["topic"][topic_name].items()}
    wanted = {
        "message.timestamp.type": "CreateTime",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
    }
    assert {name: values[name] for name in wanted} == wanted


def make_topic(kafka: str, topic: str, **configs: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=kafka)) as admin:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        admin.create_topics({topic: {"num_partitions": 1, "configs": named}}, wait_for_metadata=True)


def test_records_older_than_a_finite_retention_are_refused(kafka, topic_name):
    make_topic(kafka, topic_name, retention_ms=str(DAY_MS))
    now_ms = int(time.time() * 1000)
    with closing(KafkaTopicWriter(config(kafka), topic_name, 1)) as writer:
        writer.append(0, [(now_ms - DAY_MS // 2, b"k", b"v")])
        with pytest.raises(
            RunError, match=r"retention\.ms = 86400000; one with timestamp .* set .* retention\.ms = -1"
        ):
            writer.append(0, [(now_ms - 2 * DAY_MS, b"k", b"v")])


def test_a_topic_that_overwrites_event_times_is_refused(kafka, topic_name):
    make_topic(kafka, topic_name, message_timestamp_type="LogAppendTime")
    with pytest.raises(RunError, match=r"message\.timestamp\.type = LogAppendTime, which overwrites event times"):
        KafkaTopicWriter(config(kafka), topic_name, 1)


def test_a_message_the_topic_does_not_take_says_how_to_make_it_smaller(kafka, topic_name):
    make_topic(kafka, topic_name, max_message_bytes="100000", retention_ms="-1")
    with (
        closing(KafkaTopicWriter(config(kafka), topic_name, 1)) as writer,
        pytest.raises(LogError, match=r"partition 0 cannot be written: a message is too large .*--rows-per-message"),
    ):
        writer.append(0, [(1, b"k", os.urandom(200_000))])


def test_a_missing_topic_names_the_nearest_and_is_not_created_by_asking(source, kafka, topic_name):
    with (
        closing(KafkaSource(config(kafka), topic_name[:-1])) as near,
        pytest.raises(TopicMissing, match=f"did you mean '{topic_name}'"),
    ):
        near.info()
    # The test broker creates nothing by itself; a production broker may: the request itself must not ask for it.
    assert source._client.cluster.metadata_request().allow_auto_topic_creation is False


def test_an_unreachable_broker_is_an_error_in_time_and_the_process_exits_quietly():
    program = """
from xrex.data.log.config import KafkaLog
from xrex.data.log.kafka import KafkaSource
try:
    KafkaSource(KafkaLog(bootstrap_servers="127.0.0.1:1", request_timeout_ms=1000), "any")
except Exception as error:
    print(type(error).__name__, error)
"""
    began = time.monotonic()
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert time.monotonic() - began < 1 + 2 + 2  # the request timeout, the diagnosis, and Python's own start
    assert run.stdout.startswith(
        "LogUnreachable Kafka at 127.0.0.1:1 cannot be used: no connection (Connection refused)"
    )
    assert run.stderr == ""


def test_failing_to_connect_leaves_no_thread_behind():
    with pytest.raises(LogUnreachable):
        open_and_close(config("127.0.0.1:1", 1_000))
    assert not [thread for thread in threading.enumerate() if "kafka" in thread.name]


def test_each_address_is_named_with_its_own_failure():
    with pytest.raises(LogUnreachable, match=r"127\.0\.0\.1:1: no connection") as caught:
        open_and_close(config("no-such-host.invalid:9092,127.0.0.1:1", 1_000))
    assert "no-such-host.invalid:9092: host name no-such-host.invalid cannot be resolved" in str(caught.value)


def test_a_listener_that_says_nothing_is_given_up_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(LogUnreachable, match="accepts connections but does not answer as a Kafka broker"):
            open_and_close(config(f"127.0.0.1:{silent.getsockname()[1]}", 1_000))
    assert time.monotonic() - began < 1 + 2


@pytest.fixture
def secure(kafka: str, monkeypatch) -> tuple[str, str, str]:
    """The SASL_PLAINTEXT and SASL_SSL addresses of a broker started with --secure, and its authority."""
    port = int(kafka.rpartition(":")[2])
    authority = ROOT / ".kafka" / str(port) / "ca.pem"
    if os.environ.get("PHOENIX_TEST_KAFKA") or not authority.exists():
        pytest.skip("the Kafka in use was not started by: scripts/kafka.sh up --fresh --secure")
    monkeypatch.setenv("KAFKA_GOOD", "trial")
    monkeypatch.setenv("KAFKA_BAD", "wrong-password")
    return f"127.0.0.1:{port + 2}", f"127.0.0.1:{port + 3}", str(authority)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_user_reads_and_writes_over_sasl_and_over_tls(secure, topic_name, mechanism):
    sasl, tls, authority = secure
    user = {"sasl_mechanism": mechanism, "username": "trial", "password": SecretRef(env="KAFKA_GOOD")}
    with closing(KafkaTopicWriter(config(sasl, protocol="SASL_PLAINTEXT", **user), topic_name, 1)) as writer:
        writer.append(0, [(1, b"k", b"v")])
    with closing(KafkaSource(config(tls, protocol="SASL_SSL", ca_file=authority, **user), topic_name)) as source:
        source.assign({0: 0})
        assert read(source, {0: 1}) == [0]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_an_authentication_failure_and_is_not_shown(secure, mechanism):
    user = {"sasl_mechanism": mechanism, "username": "trial", "password": SecretRef(env="KAFKA_BAD")}
    with pytest.raises(LogUnreachable, match="authentication failed for user 'trial'") as caught:
        open_and_close(config(secure[0], 1_000, protocol="SASL_PLAINTEXT", **user))
    assert "wrong-password" not in str(caught.value)


def test_an_unknown_authority_is_a_tls_failure(secure):
    user = {"username": "trial", "password": SecretRef(env="KAFKA_GOOD")}
    with pytest.raises(LogUnreachable, match=r"the TLS handshake failed .*CERTIFICATE_VERIFY_FAILED"):
        open_and_close(config(secure[1], 1_000, protocol="SASL_SSL", **user))


@pytest.mark.parametrize("listener", [0, 1], ids=["sasl", "tls"])
def test_the_wrong_protocol_for_a_listener_is_said(secure, listener):
    with pytest.raises(LogUnreachable, match=r"check that dataset\.log\.security\.protocol = 'PLAINTEXT' is what"):
        open_and_close(config(secure[listener], 1_000))


KAFKA_UP = [ROOT / "scripts" / "kafka.sh", "up"]
OWN_ENVIRONMENT = {**os.environ, "KAFKA_PORT": "19192"}


@pytest.fixture
def own_broker(kafka: str) -> Iterator[tuple[str, int]]:
    """A broker that a test may stop: (address, pid)."""
    if os.environ.get("PHOENIX_TEST_KAFKA"):
        pytest.skip("a given broker is not stopped; unset PHOENIX_TEST_KAFKA to let scripts/kafka.sh start one")
    subprocess.run(KAFKA_UP, env=OWN_ENVIRONMENT, check=True, capture_output=True, timeout=240)
    how, number = (ROOT / ".kafka" / "19192" / "pid").read_text().split()
    if how != "java":
        pytest.skip("a broker in Docker cannot be stopped by its pid; install Java 17 and Maven, or set KAFKA_HOME")
    yield "127.0.0.1:19192", int(number)
    with suppress(ProcessLookupError):
        os.kill(int(number), signal.SIGCONT)


@pytest.fixture(scope="module", autouse=True)
def stop_own_broker() -> Iterator[None]:
    yield
    subprocess.run([KAFKA_UP[0], "down"], env=OWN_ENVIRONMENT, check=True, capture_output=True, timeout=60)


@pytest.mark.slow
def test_a_broker_that_hangs_for_a_while_is_ridden_out_and_one_that_stays_away_is_an_error(own_broker, topic_name):
    address, pid = own_broker
    writer = KafkaTopicWriter(config(address), topic_name, 1)
    writer.append(0, [(1, b"k", b"before")])
    with closing(KafkaSource(config(address, 1_000), topic_name)) as source:
        source.assign({0: 0})
        assert read(source, {0: 1}) == [0]

        os.kill(pid, signal.SIGSTOP)
        assert poll_for(source, 3) == []  # longer than a request timeout, shorter than the limit
        os.kill(pid, signal.SIGCONT)
        writer.append(0, [(2, b"k", b"after")])
        assert read(source, {0: 2}) == [1]

        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(LogUnreachable, match=rf"not connected for \d+ s: Kafka at {address} cannot be used"):
            poll_for(source, 60)
        assert time.monotonic() - began < OUTAGE_REQUESTS * 1 + 8
        os.kill(pid, signal.SIGCONT)
    writer.close()


@pytest.mark.slow
def test_a_restarted_broker_is_read_on(own_broker, topic_name):
    address, pid = own_broker
    with (
        closing(KafkaTopicWriter(config(address), topic_name, 1)) as writer,
        closing(KafkaSource(config(address, 5_000), topic_name)) as source,
    ):
        writer.append(0, [(1, b"k", b"before")])
        source.assign({0: 0})
        assert read(source, {0: 1}) == [0]
        os.kill(pid, signal.SIGKILL)
        assert poll_for(source, 2) == []
        restart = subprocess.Popen(KAFKA_UP, env=OWN_ENVIRONMENT, stdout=subprocess.DEVNULL)
        assert poll_for(source, 0.5) == []
        assert restart.wait(timeout=120) == 0
        writer.append(0, [(2, b"k", b"after")])
        assert read(source, {0: 2}) == [1]


@pytest.mark.slow
def test_a_topic_deleted_under_the_reader_is_missed(own_broker, topic_name):
    address, _ = own_broker
    create_topic(config(address), topic_name, 1)
    with closing(KafkaSource(config(address, 1_000), topic_name)) as source:
        source.assign({0: 0})
        assert source.poll(500) == []
        with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
            admin.delete_topics([topic_name])
        with pytest.raises(TopicMissing, match=topic_name):
            poll_for(source, 60)
