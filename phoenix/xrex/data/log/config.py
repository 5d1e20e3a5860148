"""Where records come from."""

from typing import Literal

from xai_configlib import Config, SecretRef, configclass, field

TOPIC_NAME = r"[A-Za-z0-9._-]{1,249}"
"""What Kafka takes for a topic's name, but for the names `.` and `..`."""


@configclass(policy="per_start")
class Security(Config):
    """How a Kafka broker is spoken to. Certificates and host names are verified, always."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = field(default="PLAINTEXT")
    """SASL_PLAINTEXT sends a PLAIN password or an OAUTHBEARER token readable; that is refused but to loopback."""

    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = field(default="SCRAM-SHA-512")
    """Read when the protocol is SASL_*: OAUTHBEARER needs `token`, the others `username` and `password`."""

    username: str | None = field(default=None)
    """SASL user name."""

    password: SecretRef | None = field(default=None)
    """SASL password: {"env": NAME} or {"file": PATH}, never a literal."""

    token: SecretRef | None = field(default=None)
    """Bearer token, referred to as a password is; a file is read anew at every authentication."""

    ca_file: str | None = field(default=None)
    """PEM file of trusted authorities; null: the system's."""


@configclass
class LogConfig(Config):
    """Base of the sources below; a config names one of them by its tag."""


@configclass(policy="per_start")
class KafkaLog(LogConfig):
    """An Apache Kafka cluster, read by kafka-python."""

    bootstrap_servers: str = field(
        default="127.0.0.1:9092",
        pattern=r"^[^\s,:@]+:\d{1,5}(,[^\s,:@]+:\d{1,5})*$",
        pattern_words="HOST:PORT[,HOST:PORT], without blanks, user and password",
    )
    """HOST:PORT[,HOST:PORT]."""

    group_id: str | None = field(policy="own", default=None, pattern=r"^[A-Za-z0-9._-]{1,249}$")
    """Consumer group to which the positions of each complete checkpoint are committed, for tools that show its lag. They are
    never read back: a run goes on from its checkpoint. null: nothing is committed."""

    security: Security = field(default_factory=Security)
    """Protocol, user and certificates."""

    request_timeout_ms: int = field(default=10_000, ge=1_000)
    """Limit of one request; a broker that answers nothing within it is unreachable."""


@configclass(policy="per_start")
class DirectoryLog(LogConfig):
    """A topic as a folder of Arrow files (format: docs/data.md); written by `xrex data produce --to FOLDER`."""

    path: str = field(default="runs/log", min_length=1)
    """Folder that holds TOPIC/PARTITION/*.arrow; relative to the folder the program was started in."""
