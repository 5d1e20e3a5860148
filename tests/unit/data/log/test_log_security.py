"""No password leaves this machine unencrypted, and every certificate is verified."""

import ssl

import pytest

from xai_configlib import SecretRef
from xrex.data.log.config import KafkaLog, Security
from xrex.data.log.security import bearer_token, client_settings, refuse_readable_secret
from xrex.errors import ConfigError


@pytest.fixture
def password(monkeypatch) -> SecretRef:
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    return SecretRef(env="KAFKA_PASSWORD")


@pytest.fixture
def token(monkeypatch, tmp_path) -> SecretRef:
    monkeypatch.setenv("PHOENIX_SECRETS_DIR", str(tmp_path))
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("eyJ.a-b_c~d+e/f==\n")
    return SecretRef(file="token")


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
    with pytest.raises(ConfigError, match=r"dataset\.log\.security\.ca_file: not the path of a readable PEM file"):
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
    refuse_readable_secret(security, ["localhost"])
    with pytest.raises(ConfigError, match=r"broker-3\.example"):
        refuse_readable_secret(security, ["127.0.0.1", "broker-3.example"])


def test_a_token_is_looked_at_and_left_for_each_authentication_to_read(token):
    settings = client_settings(log(protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", token=token))
    assert settings.pop("ssl_context")
    assert settings == {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}


def test_a_token_that_is_replaced_is_read_anew(token, tmp_path):
    security = Security(protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", token=token)
    assert bearer_token(security) == "eyJ.a-b_c~d+e/f=="
    (tmp_path / "token").write_text("another")
    assert bearer_token(security) == "another"


def test_oauthbearer_without_a_token_is_a_config_error_whatever_else_is_given(password):
    given = {"protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "username": "reader", "password": password}
    with pytest.raises(ConfigError, match=r"dataset\.log\.security\.token = null: OAUTHBEARER needs one"):
        client_settings(log(**given))


def test_a_file_that_is_not_there_is_named_before_anything_is_connected_to(token):
    missing = SecretRef(file="tokn")
    with pytest.raises(ConfigError, match="secret file 'tokn': No such file"):
        client_settings(log(protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", token=missing))


@pytest.mark.parametrize(
    "content", ['{"access_token": "hunter2"}', '"hunter2"', "hunter2\nhunter3", "hunter2\x01auth=x"]
)
def test_what_is_no_bearer_token_is_refused_and_not_shown(token, tmp_path, content):
    (tmp_path / "token").write_text(content)
    with pytest.raises(
        ConfigError, match=r"dataset\.log\.security\.token = {'file': 'token'}: no bearer token"
    ) as caught:
        client_settings(log(protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", token=token))
    assert "hunter" not in str(caught.value)


def test_a_readable_token_is_refused_to_other_machines_and_may_go_to_this_one(token):
    security = {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "token": token}
    client_settings(log("localhost:9092", **security))
    with pytest.raises(ConfigError, match=r"the token would be sent readable to 10\.0\.0\.7: use SASL_SSL"):
        client_settings(log("127.0.0.1:9092,10.0.0.7:9092", **security))
