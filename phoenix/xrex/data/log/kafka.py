"""Apache Kafka as a source and a target of records. The only module that imports kafka-python.

Its defaults are overridden on purpose: no group, no commits, no offset reset, no topic created by asking for it.
"""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIncompatibleMethodOverride=false
# (pyright carries stubs of kafka-python 2, which know neither the settings nor the errors of 3.)

import difflib
import itertools
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

import kafka.errors as broker_errors
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from xrex.data.log.base import BEGIN_A_CHILD, GO_ON_WITHOUT, Entry, Record, TopicInfo, check_topic_name
from xrex.data.log.config import KafkaLog, Security
from xrex.data.log.security import bearer_token, bootstrap, client_settings, refuse_readable_secret
from xrex.errors import ConfigError, LogError, LogUnreachable, OffsetLost, RunError, TopicMissing

# kafka-python logs every failed attempt, many a second; what matters becomes an exception here.
if logging.getLogger("kafka").level == logging.NOTSET:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)

OUTAGE_REQUESTS = 6
"""A reader rides out a broker that is away for this many `request_timeout_ms` (a minute by default), then gives up."""

_MAX_POLL_RECORDS = 4_096
_FETCH_BYTES = 32 * 2**20
_PARTITION_FETCH_BYTES = 2 * 2**20  # a larger message still comes, alone; each partition buffers about this much
_MAX_MESSAGE_BYTES = 16 * 2**20
_BATCH_BYTES = 2**19  # of small messages sent together; a broker takes about 1 MiB at once by default
_DIAGNOSIS_S = 1.5
_NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"
_TOPIC_CONFIG = {
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
}

# What OpenSSL finds wrong with a certificate, as X509_V_ERR_* number it.
_NOT_FOR_THIS_HOST = {62, 64}
_UNKNOWN_AUTHORITY = {18, 19, 20, 21}

_Client = TypeVar("_Client", KafkaConsumer, KafkaProducer, KafkaAdminClient)


class KafkaSource:
    """One topic of a Kafka cluster as a source of records; keeps the `Log` protocol.

    Partitions are assigned and sought by hand; only committed transactions are seen. No call waits much longer than
    `request_timeout_ms`, `poll` not longer than it is told; an outage is ridden out for OUTAGE_REQUESTS of them.
    """

    def __init__(self, config: KafkaLog, topic: str):
        """Connects. Raises ConfigError (name, security), LogUnreachable."""
        self._topic = check_topic_name(topic)
        self._cluster = _Cluster(config)
        self._assigned: dict[int, int] = {}
        self._paused: set[int] = set()
        self._outage_began: float | None = None
        self.outages = 0
        self._consumer, self._client = self._cluster.connect(
            KafkaConsumer,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=min(500, config.request_timeout_ms // 2),
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            max_poll_records=_MAX_POLL_RECORDS,
        )

    def info(self) -> TopicInfo:
        """The topic's id (None before Kafka 2.8) and partitions, asked anew. Raises TopicMissing, LogUnreachable."""
        return self._cluster.describe(self._topic)

    def start_offsets(self, kafka_partitions: list[int]) -> dict[int, int]:
        """Offset of each partition's oldest record. Raises TopicMissing, LogUnreachable."""
        return self._offsets(self._consumer.beginning_offsets, kafka_partitions)

    def end_offsets(self, kafka_partitions: list[int]) -> dict[int, int]:
        """Each partition's last stable offset: below it no transaction is open. Raises TopicMissing, LogUnreachable."""
        return self._offsets(self._consumer.end_offsets, kafka_partitions)

    def offsets_at(self, kafka_partitions: list[int], timestamp_ms: int) -> dict[int, int]:
        """Offset of the first record of this broker timestamp or later. Raises TopicMissing, LogUnreachable."""
        times = {TopicPartition(self._topic, p): timestamp_ms for p in kafka_partitions}
        with self._answered():
            found = self._consumer.offsets_for_times(times, timeout_ms=self._cluster.request_timeout_ms)
        ends = self.end_offsets(kafka_partitions)
        at = {
            partition.partition: ends[partition.partition] if o is None else o.offset for partition, o in found.items()
        }
        return {p: min(at[p], ends[p]) for p in kafka_partitions}

    def num_partitions(self) -> int | None:
        """As the client's own refresh of the metadata, every few minutes, last heard; asks nobody."""
        return len(self._client.cluster.partitions_for_topic(self._topic) or ()) or None

    def assign(self, offsets: dict[int, int]) -> None:
        """Begin to read at these offsets; one outside the log raises OffsetLost in the `poll` that fetches it."""
        self._assigned, self._paused = dict(offsets), set()
        self._outage_began = None
        partitions = {p: TopicPartition(self._topic, p) for p in offsets}
        self._consumer.assign(list(partitions.values()))
        for kafka_partition, partition in partitions.items():
            self._consumer.seek(partition, offsets[kafka_partition])
        self._consumer.resume(*partitions.values())

    def poll(self, timeout_ms: int) -> list[Record]:
        """The next records, at most some thousand. Raises OffsetLost, TopicMissing, LogUnreachable, LogError."""
        try:
            fetched = self._consumer.poll(timeout_ms=timeout_ms)
        except broker_errors.OffsetOutOfRangeError as error:
            raise self._offset_lost(error) from None
        except broker_errors.LogTruncationError as error:
            raise OffsetLost(
                f"topic '{self._topic}': the log was cut off below what was read ({_one_line(error)})"
            ) from None
        except broker_errors.RetriableError:
            fetched = {}
        except broker_errors.KafkaError as error:
            raise LogError(f"topic '{self._topic}' cannot be read: {_one_line(error)}") from None
        if not fetched:
            self._ride_out()
            return []
        self._outage_began = None
        return [
            Record(partition.partition, r.offset, r.timestamp, r.key, r.value)
            for partition, records in fetched.items()
            for r in records
        ]

    def fetch_positions(self) -> dict[int, int]:
        """Per assigned partition the next offset to fetch; markers and aborted records at the end count as passed."""
        with self._cluster.translated(f"topic '{self._topic}'"):
            found = {p: self._consumer.position(TopicPartition(self._topic, p), timeout_ms=0) for p in self._assigned}
        return {p: self._assigned[p] if offset is None else offset for p, offset in found.items()}

    def pause(self, kafka_partitions: set[int]) -> None:
        """Leave exactly these out of `poll`."""
        self._paused = set(kafka_partitions)
        for kafka_partition in self._assigned:
            change = self._consumer.pause if kafka_partition in kafka_partitions else self._consumer.resume
            change(TopicPartition(self._topic, kafka_partition))

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close(autocommit=False)

    def _offsets(self, ask: Any, kafka_partitions: list[int]) -> dict[int, int]:
        partitions = [TopicPartition(self._topic, p) for p in kafka_partitions]
        with self._answered():
            found = ask(partitions, timeout_ms=self._cluster.request_timeout_ms)
        return {partition.partition: offset for partition, offset in found.items()}

    @contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except broker_errors.KafkaError as error:
            raise self._unanswered(_one_line(error)) from None

    def _unanswered(self, what: str) -> LogError:
        """Why a question about this topic stays without an answer; raises if the reason has its own error."""
        try:
            known = self.info().num_partitions
        except LogUnreachable as error:
            return LogUnreachable(f"topic '{self._topic}', {what}: {error}")
        return LogUnreachable(
            f"topic '{self._topic}' ({known} partitions) is there, but no leader answers for it: {what}; "
            f"advertised brokers: {self._cluster.advertised(self._client)}"
        )

    def _ride_out(self) -> None:
        """Called after a poll without records: raises once a leader has been away for the whole limit."""
        # Of a paused partition nothing is fetched: its leader's connection may well be closed as idle.
        asked = [TopicPartition(self._topic, p) for p in self._assigned if p not in self._paused]
        leaders = [self._client.cluster.leader_for_partition(partition) for partition in asked]
        if all(leader is not None and self._client.connected(leader) for leader in leaders):
            self._outage_began = None
            return
        now = time.monotonic()
        if self._outage_began is None:
            self._outage_began = now
            self.outages += 1
        away_s = now - self._outage_began
        if away_s > OUTAGE_REQUESTS * self._cluster.request_timeout_ms / 1000:
            raise self._unanswered(f"not connected for {away_s:.0f} s")

    def _offset_lost(self, error: broker_errors.OffsetOutOfRangeError) -> OffsetLost:
        ((partition, offset),) = error.args[0].items()
        lost = partition.partition
        start, end = self.start_offsets([lost])[lost], self.end_offsets([lost])[lost]
        return OffsetLost(
            f"topic '{self._topic}' partition {lost}: offset {offset} is outside the log, which holds {start}..{end}: "
            f"retention removed it, or the topic was recreated; {GO_ON_WITHOUT}, or {BEGIN_A_CHILD}"
        )


class KafkaTopicWriter:
    """Appends to a Kafka topic; keeps the `TopicWriter` protocol. Idempotent: a retried send is not written twice."""

    def __init__(self, config: KafkaLog, topic: str, partitions: int):
        """Creates the topic if needed. Raises ConfigError, LogUnreachable, RunError (it exists and does not fit)."""
        self._topic = check_topic_name(topic)
        self._partitions = partitions
        self._cluster = _Cluster(config)
        self._retention_ms = self._cluster.create(topic, partitions)
        self._delivery_s = 3 * config.request_timeout_ms / 1000
        self._producer, _ = self._cluster.connect(
            KafkaProducer,
            acks="all",
            enable_idempotence=True,
            batch_size=_BATCH_BYTES,
            linger_ms=5,
            max_request_size=_MAX_MESSAGE_BYTES,
            max_block_ms=config.request_timeout_ms,
            delivery_timeout_ms=int(self._delivery_s * 1000),
        )

    def append(self, kafka_partition: int, entries: Iterable[Entry]) -> None:
        """Send these entries and wait, at most three request timeouts, until every in-sync replica has them.

        Raises RunError for a record that this topic's retention would remove at once."""
        if kafka_partition not in range(self._partitions):
            raise RunError(f"partition {kafka_partition}: topic '{self._topic}' has {self._partitions} partitions")
        with self._cluster.translated(f"topic '{self._topic}' partition {kafka_partition} cannot be written"):
            sent = [self._send(kafka_partition, *entry) for entry in entries]
            self._producer.flush(timeout=self._delivery_s + 1)
            for future in sent:
                future.get(timeout=1)

    def close(self) -> None:
        """Let go of the connections."""
        self._producer.close(timeout=self._delivery_s)

    def _send(self, kafka_partition: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> Any:
        if self._retention_ms is not None and timestamp_ms < time.time() * 1000 - self._retention_ms:
            raise RunError(
                f"topic '{self._topic}' keeps records for retention.ms = {self._retention_ms}; one with timestamp "
                f"{timestamp_ms} would be removed: set the topic's retention.ms = -1, or write to a new topic"
            )
        if key is None and value is None:
            raise RunError(f"topic '{self._topic}': a tombstone needs a key")
        return self._producer.send(self._topic, value, key, partition=kafka_partition, timestamp_ms=timestamp_ms)


def create_topic(config: KafkaLog, topic: str, partitions: int) -> None:
    """Make the topic with unlimited retention and the producer's timestamps, or check that the one there fits.

    Raises LogUnreachable, and RunError if it exists with another number of partitions or with the broker's timestamps.
    """
    _Cluster(config).create(check_topic_name(topic), partitions)


def commit_offsets(config: KafkaLog, topic: str, offsets: dict[int, int]) -> None:
    """Commit the next offset of each partition to `config.group_id`. Raises LogUnreachable, LogError with the reason."""
    cluster, group = _Cluster(config), str(config.group_id)
    admin, _ = cluster.connect(KafkaAdminClient)
    with closing(admin), cluster.translated(f"group '{group}' cannot be committed to"):
        wanted = {TopicPartition(topic, p): OffsetAndMetadata(offset, "", None) for p, offset in offsets.items()}
        _until_ready(lambda: _commit(admin, group, wanted), config.request_timeout_ms)


def _commit(admin: KafkaAdminClient, group: str, wanted: dict[TopicPartition, OffsetAndMetadata]) -> None:
    for partition, error in admin.alter_group_offsets(group, wanted).items():
        if error is not broker_errors.NoError:
            raise error(f"partition {partition.partition} was not taken; has the group live members?")


def _until_ready(ask: Callable[[], None], timeout_ms: int) -> None:
    """Ask again while the cluster is not ready: of its first group it must make the coordinator's topic."""
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            return ask()
        except broker_errors.RetriableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class _Cluster:
    """Connects to one cluster, describes its topics, and says in words why that fails."""

    def __init__(self, config: KafkaLog):
        self.request_timeout_ms = config.request_timeout_ms
        self._config = config
        self._settings = client_settings(config)
        if config.security.sasl_mechanism == "OAUTHBEARER":
            self._settings["sasl_oauth_token_provider"] = _Token(config.security)

    def connect(self, kind: type[_Client], **settings: Any) -> tuple[_Client, KafkaNetClient]:
        """A connected client and its network side. Raises LogUnreachable with the cause, and leaves nothing behind."""
        made: list[KafkaNetClient] = []

        def network(**configs: Any) -> KafkaNetClient:
            limit = {f"socket_connection_setup_timeout{of}_ms": self.request_timeout_ms for of in ("", "_max")}
            made.append(KafkaNetClient(**configs, **limit))
            # kafka-python 3.0 accepts allow_auto_create_topics but does not hand it to the part that asks for metadata.
            made[0].cluster.config["allow_auto_create_topics"] = False
            return made[0]

        try:
            client = kind(
                bootstrap_servers=bootstrap(self._config),
                request_timeout_ms=self.request_timeout_ms,
                bootstrap_timeout_ms=self.request_timeout_ms,
                reconnect_backoff_max_ms=1_000,
                kafka_client=network,
                **self._settings,
                **settings,
            )
        except broker_errors.KafkaError as error:
            cause = self._why(made[0]) if made else _one_line(error)
            for left_behind in made:
                left_behind.close()
            raise LogUnreachable(f"Kafka at {self._config.bootstrap_servers} cannot be used: {cause}") from None
        try:
            refuse_readable_secret(self._config.security, [b.host for b in made[0].cluster.brokers()])
        except BaseException:
            client.close()
            raise
        return client, made[0]

    def describe(self, topic: str) -> TopicInfo:
        """The topic's id and partitions. Raises TopicMissing with the nearest name, LogUnreachable."""
        admin, _ = self.connect(KafkaAdminClient)
        with closing(admin), self.translated(f"topic '{topic}'"):
            return self._described(admin, topic)

    def create(self, topic: str, partitions: int) -> int | None:
        """Make the topic or check the one there; its retention in ms, None if unlimited."""
        admin, _ = self.connect(KafkaAdminClient)
        with closing(admin), self.translated(f"topic '{topic}' cannot be created"):
            with suppress(broker_errors.TopicAlreadyExistsError):
                wanted = {"num_partitions": partitions, "configs": _TOPIC_CONFIG}
                admin.create_topics({topic: wanted}, wait_for_metadata=True)
            found = self._described(admin, topic).num_partitions
            config = self._topic_config(admin, topic)
        if found != partitions:
            raise RunError(f"topic '{topic}' has {found} partitions, not {partitions}: say --partitions {found}")
        if config["message.timestamp.type"] != "CreateTime":
            raise RunError(
                f"topic '{topic}' has message.timestamp.type = {config['message.timestamp.type']}, which overwrites "
                "event times: set it to CreateTime, or write to a new topic"
            )
        retention_ms = int(config["retention.ms"])
        return None if retention_ms < 0 else retention_ms

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Turns kafka-python's errors into ours, `what` first."""
        try:
            yield
        except broker_errors.RetriableError as error:
            raise LogUnreachable(f"{what}: {_one_line(error)} (at {self._config.bootstrap_servers})") from None
        except broker_errors.MessageSizeTooLargeError as error:
            raise LogError(
                f"{what}: a message is too large ({_one_line(error)}): "
                "write fewer rows a message (--rows-per-message) or raise the topic's max.message.bytes"
            ) from None
        except broker_errors.KafkaError as error:
            raise LogError(f"{what}: {_one_line(error)} (at {self._config.bootstrap_servers})") from None

    def advertised(self, client: KafkaNetClient) -> str:
        """The addresses that the cluster gives for its brokers."""
        return ", ".join(f"{broker.host}:{broker.port}" for broker in client.cluster.brokers()) or "none"

    def _described(self, admin: KafkaAdminClient, topic: str) -> TopicInfo:
        (found,) = admin.describe_topics([topic])
        error = broker_errors.for_code(found["error_code"])
        if error in (broker_errors.UnknownTopicOrPartitionError, broker_errors.TopicAuthorizationFailedError):
            raise TopicMissing(self._missing(admin, topic, hidden=error is broker_errors.TopicAuthorizationFailedError))
        if error is not broker_errors.NoError:
            raise error(error.description)
        topic_id = str(found.get("topic_id") or _NO_TOPIC_ID)
        return TopicInfo(None if topic_id == _NO_TOPIC_ID else topic_id, len(found["partitions"]))

    def _missing(self, admin: KafkaAdminClient, topic: str, *, hidden: bool) -> str:
        at, security = self._config.bootstrap_servers, self._config.security
        if hidden:
            return f"topic '{topic}' at {at}: {_who(security)} may not see it; grant READ"
        topics = [name for name in admin.list_topics() if not name.startswith("__")]
        near = difflib.get_close_matches(topic, topics, n=1)
        secured = "" if security.protocol == "PLAINTEXT" else " --config FILE (for its dataset.log.security)"
        write = f"write it: xrex data produce --to {at} --topic {topic}{secured}"
        hint = f"did you mean '{near[0]}'?" if near else write
        return f"topic '{topic}' is not at {at}: {hint}"

    def _topic_config(self, admin: KafkaAdminClient, topic: str) -> dict[str, str]:
        asked = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict.fromkeys(_TOPIC_CONFIG))
        answer = admin.describe_configs([asked], config_filter="all")["topic"][topic]
        return {name: answer[name]["value"] for name in _TOPIC_CONFIG}

    def _why(self, client: KafkaNetClient) -> str:
        """One cause an address: each bootstrap broker is tried once more, for what its failure says."""
        deadline = time.monotonic() + _DIAGNOSIS_S
        nodes = client.cluster.bootstrap_brokers()
        causes = {f"{node.host}:{node.port}": self._cause(client, node, deadline) for node in nodes}
        if len(set(causes.values())) == 1:
            return next(iter(causes.values()))
        return "; ".join(f"{address}: {cause}" for address, cause in itertools.islice(causes.items(), 4))

    def _cause(self, client: KafkaNetClient, node: Any, deadline: float) -> str:
        """What one address fails with, step by step: name, connection, TLS, authentication, metadata."""
        security, tls = self._config.security, self._settings.get("ssl_context")
        expects = f"check that dataset.log.security.protocol = {security.protocol!r} is what this listener expects"
        try:
            with socket.create_connection((node.host, node.port), timeout=_left_s(deadline)) as connection:
                if tls is not None:
                    _shake_hands(tls, connection, node.host)
            _try_connecting(client, node.node_id, _left_s(deadline))
        except socket.gaierror as error:
            return f"host name {node.host} cannot be resolved ({error.strerror}): check dataset.log.bootstrap_servers"
        except _NoTls as error:
            return _why_no_tls(security, node.host, error.__cause__, expects)
        except OSError as error:
            why = error.strerror or error
            return f"no connection ({why}): is the broker up, and is dataset.log.bootstrap_servers right?"
        except _NoToken as error:
            return str(error.args[0])
        except _NotAuthenticated as error:
            return _why_not_authenticated(security, error.__cause__, expects)
        except broker_errors.KafkaError as error:
            hint = "" if tls is not None else "; one with TLS needs SSL or SASL_SSL"
            return f"it accepts connections but does not answer as a Kafka broker ({_one_line(error)}): {expects}{hint}"
        hint = "; one that asks for a user needs SASL_SSL or SASL_PLAINTEXT"
        return f"it accepts connections but gives no metadata: {expects}{hint}"


class _Token(AbstractTokenProvider):
    """The bearer token, read at every authentication and every renewal of one: a new one in its file is picked up."""

    def __init__(self, security: Security):
        super().__init__()
        self._security = security

    def token(self) -> str:
        """What kafka-python sends. Raises _NoToken."""
        try:
            return bearer_token(self._security)
        except ConfigError as error:
            raise _NoToken(str(error)) from None


class _NoToken(broker_errors.KafkaConnectionError):
    """There is no token to send: a failure to connect as others are, which a reader rides out while its file changes."""


class _NoTls(Exception):
    """The TLS handshake failed; the cause says why."""


class _NotAuthenticated(Exception):
    """A Kafka broker answered, then did not let us in; the cause is what kafka-python says of it."""


def _shake_hands(tls: ssl.SSLContext, connection: socket.socket, host: str) -> None:
    try:
        tls.wrap_socket(connection, server_hostname=host.rstrip(".")).close()
    except OSError as error:
        raise _NoTls from error


def _why_no_tls(security: Security, host: str, error: BaseException | None, expects: str) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"the TLS handshake failed ({error}): {expects}; one without TLS needs PLAINTEXT or SASL_PLAINTEXT"
    if error.verify_code in _UNKNOWN_AUTHORITY:
        ca_file = "null" if security.ca_file is None else repr(security.ca_file)
        what = "a certificate of an unknown authority"
        fix = f"dataset.log.security.ca_file = {ca_file} must be a PEM file of the authority that signed it"
    elif error.verify_code in _NOT_FOR_THIS_HOST:
        what = f"a certificate that is not for {host}"
        fix = "name the brokers in dataset.log.bootstrap_servers, and in advertised.listeners, as their certificates do"
    else:
        what, fix = "the broker's certificate", "renew it, or set this machine's clock"
    return f"the TLS handshake failed on {what} ({error}): {fix}"


def _why_not_authenticated(security: Security, error: BaseException | None, expects: str) -> str:
    mechanism = security.sasl_mechanism
    if isinstance(error, broker_errors.UnsupportedSaslMechanismError):
        return f"it does not offer dataset.log.security.sasl_mechanism = {mechanism!r}: choose one that it does"
    if isinstance(error, broker_errors.IllegalSaslStateError):
        return f"it asks for no user: {expects}; one without SASL needs SSL or PLAINTEXT"
    # A refusal may show as no more than a closed connection: kafka-python drops an answer that arrives together with the
    # broker's hanging up.
    detail = "no answer" if error is None else _one_line(error)
    check = "token" if mechanism == "OAUTHBEARER" else "username, password"
    return f"authentication failed for {_who(security)} ({detail}): check {check} and sasl_mechanism"


def _who(security: Security) -> str:
    """Whom the broker has to do with, as messages name it."""
    if not security.protocol.startswith("SASL"):
        return "a client without a user"
    return "the bearer of the token" if security.sasl_mechanism == "OAUTHBEARER" else f"user {security.username!r}"


def _left_s(deadline: float) -> float:
    return max(0.2, deadline - time.monotonic())


def _try_connecting(client: KafkaNetClient, node_id: str, timeout_s: float) -> None:
    """Connect to one node, past any back-off; raises the error that the attempt ends with."""
    manager = client._manager  # the attribute that kafka-python asks of every kafka_client

    async def connect() -> None:
        manager.reset_backoff(node_id)
        connection = manager.get_connection(node_id, timeout_ms=timeout_s * 1000)
        try:
            await manager.wait_for(connection.init_future, timeout_s * 1000)
        except (_NoToken, broker_errors.KafkaTimeoutError):
            raise
        except broker_errors.KafkaError as error:
            answered = connection.broker_version is not None  # found out by the first request
            if connection.sasl_enabled and answered:
                raise _NotAuthenticated from error
            raise

    manager.run(connect)


def _one_line(error: BaseException) -> str:
    kind, text = type(error).__name__, " ".join(str(error).split())
    return (text if kind in text else f"{kind}: {text}")[:200]
