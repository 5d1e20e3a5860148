"""Which source or writer a config means, decided once."""

import re

from xrex.data.log.base import Log, TopicWriter
from xrex.data.log.config import DirectoryLog, KafkaLog, LogConfig, Security
from xrex.data.log.directory import DirectorySource, DirectoryTopicWriter
from xrex.errors import ConfigError

_BROKERS = re.compile(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*")


def open_log(config: LogConfig, topic: str) -> Log:
    """The topic as a source of records. Raises ConfigError, LogUnreachable, TopicMissing."""
    if isinstance(config, DirectoryLog):
        return DirectorySource(config.path, topic)
    if isinstance(config, KafkaLog):
        from xrex.data.log.kafka import KafkaSource  # only those who use Kafka load its client

        return KafkaSource(config, topic)
    raise ConfigError(f"dataset.log = {type(config).__name__}: choose KafkaLog or DirectoryLog")


def open_writer(to: str, topic: str, partitions: int, *, security: Security | None = None) -> TopicWriter:
    """A writer to `topic` at `to`, a folder or HOST:PORT[,HOST:PORT]; the topic is created if it is not there.

    Raises ConfigError, LogUnreachable, and RunError if the topic exists with another number of partitions.
    """
    if not _BROKERS.fullmatch(to):
        return DirectoryTopicWriter(to, topic, partitions)
    from xrex.data.log.kafka import KafkaTopicWriter

    return KafkaTopicWriter(KafkaLog(bootstrap_servers=to, security=security or Security()), topic, partitions)
