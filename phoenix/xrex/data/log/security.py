"""How a broker is spoken to: `Security` becomes the settings of a kafka-python client."""

import ipaddress
import re
import ssl
from typing import Any

from xrex.data.log.base import check_topic_name
from xrex.data.log.config import KafkaLog, LogConfig, Security
from xrex.errors import ConfigError

_WHERE = "dataset.log.security"
_SENT_AS_IT_IS = {"PLAIN": "password", "OAUTHBEARER": "token"}
"""Mechanism -> the secret that it sends; SCRAM proves that it knows the password."""
_BEARER_TOKEN = r"[A-Za-z0-9._~+/-]+=*"  # RFC 6750, b64token


def check_log(config: LogConfig, topic: str) -> None:
    """What can be known before anything is connected to: secrets are there, files can be read. Raises ConfigError."""
    check_topic_name(topic)
    if isinstance(config, KafkaLog):
        client_settings(config)


def client_settings(config: KafkaLog) -> dict[str, Any]:
    """Arguments of kafka-python's consumer, producer and admin client that follow from `config.security`.

    Certificates and host names are always verified. A bearer token is looked at but not among the arguments: it changes,
    so that kafka-python asks for it at every authentication. Raises ConfigError, before anything is connected to, where
    a name or secret is missing, a file cannot be read, or a secret would leave this machine unencrypted.
    """
    security = config.security
    settings: dict[str, Any] = {"security_protocol": security.protocol}
    if security.protocol.endswith("SSL"):
        settings["ssl_context"] = _tls_context(security.ca_file)
    if security.protocol.startswith("SASL"):
        settings |= _sasl_settings(security)
        refuse_readable_secret(security, [address.rpartition(":")[0] for address in bootstrap(config)])
    return settings


def bootstrap(config: KafkaLog) -> list[str]:
    """The bootstrap addresses, HOST:PORT each."""
    return config.bootstrap_servers.split(",")


def bearer_token(security: Security) -> str:
    """The token, read now. Raises ConfigError, without a word of what was read."""
    assert security.token is not None  # or client_settings refuses
    token = security.token.resolve()
    if not re.fullmatch(_BEARER_TOKEN, token):
        raise ConfigError(
            f"{_WHERE}.token = {security.token.to_value()}: no bearer token (A-Z a-z 0-9 - . _ ~ + / and at the end =): "
            "write the token there, without quotes or anything else"
        )
    return token


def refuse_readable_secret(security: Security, hosts: list[str]) -> None:
    """Raises ConfigError where a password or token would travel unencrypted to a host that is not this machine."""
    if security.protocol != "SASL_PLAINTEXT" or security.sasl_mechanism not in _SENT_AS_IT_IS:
        return
    for host in hosts:
        if not _is_loopback(host):
            secret = _SENT_AS_IT_IS[security.sasl_mechanism]
            raise ConfigError(
                f"{_WHERE}.protocol = 'SASL_PLAINTEXT': the {secret} would be sent readable to {host}: "
                "use SASL_SSL (or sasl_mechanism SCRAM-SHA-512)"
            )


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one too: a file that holds no certificate
        raise ConfigError(f"{_WHERE}.ca_file: not the path of a readable PEM file of authorities ({error})") from None


def _sasl_settings(security: Security) -> dict[str, Any]:
    settings: dict[str, Any] = {"sasl_mechanism": security.sasl_mechanism}
    if security.sasl_mechanism == "OAUTHBEARER":
        _refuse_missing(security, "OAUTHBEARER", "token")
        bearer_token(security)
        return settings
    _refuse_missing(security, security.protocol, "username", "password")
    assert security.password is not None
    return settings | {
        "sasl_plain_username": security.username,
        "sasl_plain_password": security.password.resolve(),
    }


def _refuse_missing(security: Security, why: str, *names: str) -> None:
    for name in names:
        if getattr(security, name) is None:
            raise ConfigError(f"{_WHERE}.{name} = null: {why} needs one, or choose PLAINTEXT or SSL")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
