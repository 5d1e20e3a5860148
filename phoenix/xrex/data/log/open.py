"""Which source or writer a config means, decided once."""

import re

from xrex.data.log.base import Log, TopicWriter
from xrex.data.log.config import DirectoryLog, KafkaLog, LogConfig
from xrex.data.log.directory import DirectorySource, DirectoryTopicWriter
from xrex.errors import ConfigError
from xrex.schema.positions import TopicPositions

_BROKERS = re.compile(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*")


def open_log(config: LogConfig, topic: str) -> Log:
    """The topic as a source of records. Raises ConfigError, LogUnreachable, TopicMissing."""
    if isinstance(config, DirectoryLog):
        return DirectorySource(config.path, topic)
    assert isinstance(config, KafkaLog)  # the two tags that a config may name
    from xrex.data.log.kafka import KafkaSource  # only those who use Kafka load its client

    return KafkaSource(config, topic)


def commit_positions(config: LogConfig, positions: TopicPositions) -> None:
    """Tell the log how far a complete checkpoint covers it, if the config names a group to tell.

    positions  of that checkpoint; of a message trained in part the message itself is the next one
    Raises LogError; what was committed is never read back, so that a caller may go on.
    """
    if not isinstance(config, KafkaLog) or config.group_id is None:
        return
    from xrex.data.log.kafka import commit_offsets

    commit_offsets(config, positions.topic, {p: position.offset for p, position in positions.partitions.items()})


def log_at(to: str, like: KafkaLog | None = None) -> KafkaLog | DirectoryLog:
    """The source at `to`, a folder or HOST:PORT[,HOST:PORT]; its brokers are spoken to as `like` says."""
    if re.search(r"@[^/]*:\d+$", to):
        raise ConfigError(
            "--to holds a user or password before the brokers' address: give HOST:PORT, and --config for them"
        )
    if not _BROKERS.fullmatch(to):
        return DirectoryLog(path=to)
    return (like or KafkaLog()).replace(bootstrap_servers=to)


def open_writer(to: str, topic: str, partitions: int, *, like: KafkaLog | None = None) -> TopicWriter:
    """A writer to `topic` of `log_at(to, like)`; the topic is created if it is not there.

    Raises ConfigError, LogUnreachable, and RunError if the topic exists with another number of partitions.
    """
    config = log_at(to, like)
    if isinstance(config, DirectoryLog):
        return DirectoryTopicWriter(config.path, topic, partitions)
    from xrex.data.log.kafka import KafkaTopicWriter

    return KafkaTopicWriter(config, topic, partitions)
