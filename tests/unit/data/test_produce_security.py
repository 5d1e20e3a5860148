"""`xrex data produce --config`: the brokers of --to are spoken to as dataset.log of a config says."""

import json

import pytest
from typer.testing import CliRunner

from runs import QUICKSTART, ROOT
from xai_configlib import load_text
from xrex.cli.data import app
from xrex.data.log.config import DirectoryLog, KafkaLog, Security
from xrex.data.log.open import log_at
from xrex.errors import ConfigError

RANKER_KAFKA = ROOT / "configs" / "ranker_kafka.yaml"


def produce(*arguments) -> None:
    result = CliRunner().invoke(app, ["produce", "--topic", "t", *map(str, arguments)])
    raise result.exception or AssertionError(f"it did not fail: {result.output}")


def secured(tmp_path, **security):
    config = load_text(RANKER_KAFKA.read_bytes(), "")
    config["dataset"]["log"]["security"] = security
    (tmp_path / "secured.json").write_text(json.dumps(config))
    return tmp_path / "secured.json"


def test_the_addresses_are_those_given_and_all_else_is_the_configs():
    like = KafkaLog(
        bootstrap_servers="elsewhere:1", security=Security(protocol="SSL", ca_file="ca.pem"), request_timeout_ms=7_000
    )
    assert log_at("kafka-1:9093,kafka-2:9093", like) == like.replace(bootstrap_servers="kafka-1:9093,kafka-2:9093")
    assert log_at("kafka-1:9092") == KafkaLog(bootstrap_servers="kafka-1:9092")
    assert log_at("runs/log", like) == DirectoryLog(path="runs/log")


def test_a_folder_has_no_security(tmp_path):
    with pytest.raises(
        ConfigError, match=r"--config .*ranker_kafka\.yaml: --to .*log is a folder, which has no security"
    ):
        produce("--to", tmp_path / "log", "--config", RANKER_KAFKA)
    assert list(tmp_path.iterdir()) == []


def test_a_config_that_reads_a_folder_says_nothing_of_brokers():
    with pytest.raises(ConfigError, match=r"--config .*quickstart\.yaml: dataset\.log is no KafkaLog: give a config"):
        produce("--to", "127.0.0.1:1", "--config", QUICKSTART)


def test_a_secret_that_is_missing_is_named_before_any_event_is_read(tmp_path):
    config = secured(
        tmp_path, protocol="SASL_SSL", sasl_mechanism="PLAIN", username="u", password={"env": "KAFKA_NOT_THERE"}
    )
    with pytest.raises(ConfigError, match="environment variable KAFKA_NOT_THERE is not set"):
        produce("--to", "127.0.0.1:1", "--config", config, "--from", "events", tmp_path / "no-such.parquet")


def test_the_addresses_of_to_count_for_what_may_be_sent_readable(tmp_path, monkeypatch):
    """That the config itself names this machine does not help."""
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    config = secured(
        tmp_path,
        protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        username="u",
        password={"env": "KAFKA_PASSWORD"},
    )
    with pytest.raises(ConfigError, match=r"the password would be sent readable to kafka\.example"):
        produce("--to", "kafka.example:9092", "--config", config)
