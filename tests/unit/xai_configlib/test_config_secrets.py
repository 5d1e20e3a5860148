"""A secret is referred to, never written; a reference is resolved only where a config may reach."""

import json
import os
from typing import Literal

import pytest
from pydantic import model_validator
from sample_configs import SampleRun, Security, base, base_with

from xai_configlib import Config, ConfigError, SecretRef, apply_overrides, configclass, field

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


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("protocol", SECRET, "protocol: expected one of PLAINTEXT, SASL_SSL"),
        ("protocol", "SASL_SSLl", "protocol: expected one of PLAINTEXT, SASL_SSL; did you mean SASL_SSL?"),
        ("username", 12345678, "username: expected a string or null; write it in quotes"),
        ("username", [SECRET], "username: expected a string or null"),
        ("username", {"a": SECRET}, "username = {…}: expected a string or null"),
        ("username", True, "username = true: expected a string or null"),
        ("username", "\ud83e", "username: holds characters that UTF-8 cannot write"),
        ("protocol", None, "protocol = null: expected one of PLAINTEXT, SASL_SSL"),
        ("__class", SECRET, "__class: expected one of SampleSecurity"),
    ],
)
def test_no_value_beside_a_secret_is_shown_for_it_may_be_the_secret(name, value, problem):
    with pytest.raises(ConfigError) as caught:
        SampleRun.from_json(base_with(f"dataset.source.security.{name}", value))
    assert str(caught.value) == f"config: dataset.source.security.{problem}"


@configclass(policy="own")
class Vault(Config):
    secret: SecretRef | None = field(default=None)
    """Reference."""
    code: str = field(default="a", pattern="^[a-z]$", pattern_words="one of a-z")
    """A text of one form."""
    size: int = field(default=1, ge=1)
    """A number with a limit."""
    sizes: tuple[int, ...] = field(default=())
    """A list."""
    names: dict[str, str] = field(default_factory=dict)
    """An object."""
    either: int | Literal["auto"] = field(default="auto")
    """A union."""
    codes: frozenset[str] = field(default=frozenset())
    """A set."""

    @model_validator(mode="after")
    def _is_small(self) -> "Vault":
        if self.size > 9:
            raise ValueError("size: at most 9")
        return self


@configclass(policy="own")
class Vaults(Config):
    listed: tuple[Vault, ...] = field(default=())
    """In a list."""
    named: dict[str, Vault] = field(default_factory=dict)
    """In an object."""
    either: Vault | int = field(default=1)
    """In a union."""
    optional: Vault | None = field(default=None)
    """Or nothing."""


@pytest.mark.parametrize(
    ("vault", "problem"),
    [
        ({"code": SECRET}, ".code: expected one of a-z"),
        ({"size": -12345678}, ".size: must be at least 1"),
        ({"size": SECRET}, ".size: expected an integer"),
        ({"sizes": [1, SECRET]}, ".sizes[1]: expected an integer"),
        ({"sizes": SECRET}, ".sizes: expected a list"),
        ({"names": {"a": 12345678}}, ".names.a: expected a string; write it in quotes"),
        ({"names": SECRET}, ".names: expected an object"),
        ({"either": SECRET}, ".either: expected an integer or one of auto"),
        ({"codes": [SECRET, SECRET]}, ".codes[1]: stands twice in a set; remove it"),
        ({"size": 12345678}, ": size: at most 9"),
    ],
)
def test_nor_is_it_shown_whatever_is_wrong_with_it(vault, problem):
    with pytest.raises(ConfigError) as caught:
        Vaults.from_json({"listed": [vault]})
    assert str(caught.value) == f"config: listed[0]{problem}"


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("listed", "listed: expected a list"),
        ("named", "named: expected an object"),
        ("either", "either: expected an object or an integer"),
        ("optional", "optional: expected an object or null, found a string"),
    ],
)
def test_nor_is_what_stands_where_a_config_with_a_secret_should(place, problem):
    with pytest.raises(ConfigError) as caught:
        Vaults.from_json({place: SECRET})
    assert str(caught.value) == f"config: {problem}"
    with pytest.raises(ConfigError) as caught:
        apply_overrides(Vaults(), [f"{place}={SECRET}"])
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
        "folder": "is not a regular file: name a plain file that holds the secret|Is a directory",
        "pipe": "is not a regular file: name a plain file that holds the secret",
        "circle": "circle|Too many levels",
        "binary": "is not UTF-8 text: save it as UTF-8",
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
