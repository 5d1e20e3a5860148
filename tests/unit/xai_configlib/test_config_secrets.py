"""A secret is referred to, never written; a reference is resolved only where a config may reach."""

import json
import os

import pytest
from sample_configs import SampleRun, Security, base, base_with

from xai_configlib import ConfigError, SecretRef

SECRET = "example-password-1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    monkeypatch.setenv("PHOENIX_SECRETS_DIR", str(secrets))
    monkeypatch.delenv("PHOENIX_ALLOW_ENV", raising=False)
    return secrets


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        [SECRET],
        {"env": SECRET},
        {"env": None},
        {"env": "KAFKA_PASSWORD", "value": SECRET},
        {"envv": SECRET},
        {"file": ""},
        {},
        {SECRET: "env"},
    ],
)
def test_a_literal_secret_is_refused_without_an_echo(value):
    with pytest.raises(ConfigError) as caught:
        SampleRun.from_json(base_with("dataset.source.security.password", value))
    assert SECRET not in str(caught.value)
    assert str(caught.value).startswith(
        'config: dataset.source.security.password: expected {"env": NAME} or {"file": PATH}'
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dataset.source.security.pasword", SECRET),  # a wrong field next to it
        ("dataset.source.security.unrelated", {"deep": [SECRET]}),
        ("dataset.source.security.keys", SECRET),
        ("dataset.source.security.keys", [SECRET]),
        ("dataset.source.security.keys", {"env": SECRET}),
        ("dataset.source.security", SECRET),
        ("dataset.source", SECRET),
        ("optimizer.secret", SECRET),
        ("optimizer.learning_rate", {"password": SECRET}),
    ],
)
def test_a_secret_in_a_wrong_place_is_not_echoed(path, value):
    mapping = base_with(path, value)
    with pytest.raises(ConfigError) as caught:
        SampleRun.from_json(mapping)
    assert SECRET not in str(caught.value)


def test_fields_that_only_sound_secret_are_shown():
    with pytest.raises(ConfigError, match=r"dataset.batch_size = 'num_tokens': expected an integer"):
        SampleRun.from_json(base_with("dataset.batch_size", "num_tokens"))


def test_only_the_reference_is_shown_and_written(monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    run = SampleRun.from_json(base_with("dataset.source.security.password", {"env": "KAFKA_PASSWORD"}))
    assert SECRET not in repr(run) + str(run) + run.to_json()
    assert "SecretRef(env='KAFKA_PASSWORD')" in repr(run)
    assert json.loads(run.to_json())["dataset"]["source"]["security"]["password"] == {"env": "KAFKA_PASSWORD"}
    assert SampleRun.from_json(run.to_json()) == run


def test_a_variable_is_read_if_its_name_is_permitted(folder, monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    monkeypatch.setenv("HOME_PASSWORD", SECRET)
    assert SecretRef(env="KAFKA_PASSWORD").resolve() == SECRET
    with pytest.raises(ConfigError, match=r"HOME_PASSWORD: a config may read only PHOENIX_\* and KAFKA_\*"):
        SecretRef(env="HOME_PASSWORD").resolve()
    monkeypatch.setenv("PHOENIX_ALLOW_ENV", "OTHER, HOME_PASSWORD")
    assert SecretRef(env="HOME_PASSWORD").resolve() == SECRET


def test_a_missing_or_empty_variable_is_named(folder, monkeypatch):
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    with pytest.raises(ConfigError, match="KAFKA_PASSWORD is not set"):
        SecretRef(env="KAFKA_PASSWORD").resolve()
    monkeypatch.setenv("KAFKA_PASSWORD", "")
    with pytest.raises(ConfigError, match="KAFKA_PASSWORD is empty"):
        SecretRef(env="KAFKA_PASSWORD").resolve()


def test_a_file_is_read_without_its_final_newline(folder):
    write(folder / "password", SECRET + "\n", 0o640)
    assert SecretRef(file="password").resolve() == SECRET
    assert SecretRef(file=str(folder / "password")).resolve() == SECRET
    (folder / "link").symlink_to(folder / "password")
    assert SecretRef(file="link").resolve() == SECRET


def test_a_file_that_may_not_be_read_is_refused_by_its_path(folder, tmp_path):
    write(tmp_path / "outside", SECRET)
    (folder / "link").symlink_to(tmp_path / "outside")
    write(folder / "open", SECRET, 0o644)
    write(folder / "empty", "\n")
    (folder / "folder").mkdir(mode=0o700)
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "binary").write_bytes(b"\xff")
    (folder / "binary").chmod(0o600)
    for name, words in {
        str(tmp_path / "outside"): "lies outside",
        "../outside": "lies outside",
        "link": "lies outside",
        "open": "is readable by all: chmod o-r it",
        "empty": "is empty",
        "folder": "not a regular file|Is a directory",
        "pipe": "is not a regular file",
        "circle": "circle|Too many levels",
        "binary": "is not UTF-8 text",
        "absent": "No such file",
    }.items():
        with pytest.raises(ConfigError, match=words) as caught:
            SecretRef(file=name).resolve()
        assert os.path.basename(name) in str(caught.value)
        assert SECRET not in str(caught.value)


def test_a_reference_names_exactly_one_place():
    for wrong in ({}, {"env": "A", "file": "b"}, {"env": "a b"}, {"file": "a\0"}):
        with pytest.raises(ValueError):
            SecretRef(**wrong)
    assert Security(password=SecretRef(env="A")) == Security.from_json({"password": {"env": "A"}})
    assert SampleRun.from_json(base()).dataset.source.security.password is None  # type: ignore[attr-defined]
