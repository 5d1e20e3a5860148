"""Which source or writer a config means, decided once."""

import re

from xrex.data.log.base import Log, TopicWriter
from xrex.data.log.config import DirectoryLog, KafkaLog, LogConfig, Security
from xrex.data.log.directory import DirectorySource, DirectoryTopicWriter

_BROKERS = re.compile(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*")


def open_log(config: LogConfig, topic: str) -> Log:
    """The topic as a source of records. Raises ConfigError, LogUnreachable, TopicMissing."""
    if isinstance(config, DirectoryLog):
        return DirectorySource(config.path, topic)
    assert isinstance(config, KafkaLog)  # the two tags that a config may name
    from xrex.data.log.kafka import KafkaSource  # only those who use Kafka load its client

    return KafkaSource(config, topic)


def open_writer(to: str, topic: str, partitions: int, *, security: Security | None = None) -> TopicWriter:
    """A writer to `topic` at `to`, a folder or HOST:PORT[,HOST:PORT]; the topic is created if it is not there.

    Raises ConfigError, LogUnreachable, and RunError if the topic exists with another number of partitions.
    """
    if not _BROKERS.fullmatch(to):
        return DirectoryTopicWriter(to, topic, partitions)
    from xrex.data.log.kafka import KafkaTopicWriter

    return KafkaTopicWriter(KafkaLog(bootstrap_servers=to, security=security or Security()), topic, partitions)
