"""No password leaves this machine unencrypted, and every certificate is verified."""

import ssl

import pytest

from xai_configlib import SecretRef
from xrex.data.log.config import KafkaLog, Security
from xrex.data.log.security import client_settings, refuse_readable_password
from xrex.errors import ConfigError


@pytest.fixture
def password(monkeypatch) -> SecretRef:
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    return SecretRef(env="KAFKA_PASSWORD")


def log(servers: str = "127.0.0.1:9092", **security) -> KafkaLog:
    return KafkaLog(bootstrap_servers=servers, security=Security(**security))


def test_plaintext_needs_nothing():
    assert client_settings(log()) == {"security_protocol": "PLAINTEXT"}


def test_sasl_hands_over_mechanism_user_and_the_secret_itself(password):
    settings = client_settings(log(protocol="SASL_SSL", sasl_mechanism="PLAIN", username="reader", password=password))
    assert settings.pop("ssl_context")
    assert settings == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "reader",
        "sasl_plain_password": "s3cret",
    }


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_certificates_and_host_names_are_verified(protocol, password):
    context = client_settings(log(protocol=protocol, username="reader", password=password))["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unusable_authority_file_is_named(tmp_path, content):
    path = tmp_path / "ca.pem"
    if content:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"dataset\.log\.security\.ca_file = '{path}'"):
        client_settings(log(protocol="SSL", ca_file=str(path)))


@pytest.mark.parametrize("missing", ["username", "password"])
def test_sasl_without_user_or_password_is_a_config_error(password, missing):
    given = {"username": "reader", "password": password, missing: None}
    with pytest.raises(ConfigError, match=rf"dataset\.log\.security\.{missing} = null: SASL_SSL needs one"):
        client_settings(log(protocol="SASL_SSL", **given))


@pytest.mark.parametrize("servers", ["kafka.example:9092", "127.0.0.1:9092,10.0.0.7:9092", "localhost.example:9092"])
def test_a_readable_password_is_refused_to_other_machines(password, servers):
    plain = {"protocol": "SASL_PLAINTEXT", "username": "reader", "password": password}
    with pytest.raises(ConfigError, match="the password would be sent readable to"):
        client_settings(log(servers, sasl_mechanism="PLAIN", **plain))
    client_settings(log(servers, sasl_mechanism="SCRAM-SHA-512", **plain))  # does not send the password


@pytest.mark.parametrize("servers", ["127.0.0.1:9092", "localhost:9092", "127.8.8.8:1,localhost:2"])
def test_a_readable_password_may_go_to_this_machine(password, servers):
    settings = client_settings(
        log(servers, protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", username="reader", password=password)
    )
    assert settings["sasl_plain_password"] == "s3cret"


def test_brokers_that_a_loopback_address_advertises_are_held_to_the_same_rule():
    security = Security(protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN")
    refuse_readable_password(security, ["localhost"])
    with pytest.raises(ConfigError, match=r"broker-3\.example"):
        refuse_readable_password(security, ["127.0.0.1", "broker-3.example"])
