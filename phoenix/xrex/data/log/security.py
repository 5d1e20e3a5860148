"""How a broker is spoken to: `Security` becomes the settings of a kafka-python client."""

import ipaddress
import ssl
from typing import Any

from xrex.data.log.base import check_topic_name
from xrex.data.log.config import KafkaLog, LogConfig, Security
from xrex.errors import ConfigError

_WHERE = "dataset.log.security"


def check_log(config: LogConfig, topic: str) -> None:
    """What can be known before anything is connected to: secrets are there, files can be read. Raises ConfigError."""
    check_topic_name(topic)
    if isinstance(config, KafkaLog):
        client_settings(config)


def client_settings(config: KafkaLog) -> dict[str, Any]:
    """Arguments of kafka-python's consumer, producer and admin client that follow from `config.security`.

    Certificates and host names are always verified. Raises ConfigError, before anything is connected to, where a name
    or password is missing, a file cannot be read, or a password would leave this machine unencrypted.
    """
    security = config.security
    settings: dict[str, Any] = {"security_protocol": security.protocol}
    if security.protocol.endswith("SSL"):
        settings["ssl_context"] = _tls_context(security.ca_file)
    if security.protocol.startswith("SASL"):
        settings |= _sasl_settings(security)
        refuse_readable_password(security, [address.rpartition(":")[0] for address in bootstrap(config)])
    return settings


def bootstrap(config: KafkaLog) -> list[str]:
    """The bootstrap addresses, HOST:PORT each."""
    return config.bootstrap_servers.split(",")


def refuse_readable_password(security: Security, hosts: list[str]) -> None:
    """Raises ConfigError where a PLAIN password would travel unencrypted to a host that is not this machine."""
    if security.protocol != "SASL_PLAINTEXT" or security.sasl_mechanism != "PLAIN":
        return
    for host in hosts:
        if not _is_loopback(host):
            raise ConfigError(
                f"{_WHERE}.protocol = 'SASL_PLAINTEXT': the password would be sent readable to {host}: "
                "use SASL_SSL (or sasl_mechanism SCRAM-SHA-512)"
            )


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one too: a file that holds no certificate
        raise ConfigError(f"{_WHERE}.ca_file = {ca_file!r}: not a readable PEM file of authorities ({error})") from None


def _sasl_settings(security: Security) -> dict[str, Any]:
    for name in ("username", "password"):
        if getattr(security, name) is None:
            raise ConfigError(f"{_WHERE}.{name} = null: {security.protocol} needs one, or choose PLAINTEXT or SSL")
    assert security.password is not None
    return {
        "sasl_mechanism": security.sasl_mechanism,
        "sasl_plain_username": security.username,
        "sasl_plain_password": security.password.resolve(),
    }


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
