"""Every field of the schema against every fault of its kind. The fields come from the schema: a new one is covered at once."""

import copy
import dataclasses
import functools
import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from xai_configlib import Config, ConfigError, FieldRow, describe, read_overridden
from xai_configlib.errors import split_path
from xrex.data.log.config import KafkaLog
from xrex.optim.config import DenseOptimizerConfig
from xrex.train.config import TrainerConfig

FIXTURES = Path(__file__).parents[2] / "fixtures" / "config"
ROWS = describe(TrainerConfig)
EXPECTED = {
    "true or false": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "time": 'a time with its offset, such as "2026-01-31T12:00:00Z"',
    "secret reference": '{"env": NAME} or {"file": PATH}',
}
"""Kinds of scalars, and what a message calls them."""
SECRET = "example-password-1"


def loaded(file: str) -> TrainerConfig:
    return TrainerConfig.from_json((FIXTURES / f"{file}.json").read_bytes())


def whole(variant: str = "") -> dict[str, Any]:
    """A file that gives every field a value and fills every list; `variant`: the class of the log."""
    return json.loads(_whole_text(variant))


@functools.cache
def _whole_text(variant: str) -> str:
    dataset = loaded("base").dataset.replace(references=("optimum",))
    if variant == "KafkaLog":
        dataset = dataset.replace(log=KafkaLog())
    return loaded("base").replace(dataset=dataset).to_json()


def read(mapping: dict[str, Any]) -> TrainerConfig:
    return TrainerConfig.from_json(json.dumps(mapping), source="run.json")


def at(mapping: Any, path: str) -> Any:
    for step in split_path(path) if path else ():
        mapping = mapping[int(step)] if isinstance(mapping, list) else mapping[step]
    return mapping


@dataclasses.dataclass(frozen=True)
class Place:
    """A field, or the first entry of a list field."""

    path: str
    kind: str
    """A key of EXPECTED, "list", "enum" or "node"."""
    nullable: bool
    row: FieldRow
    is_entry: bool = False

    @property
    def words(self) -> str:
        """What a message says that it expected."""
        null = " or null" if self.nullable and self.kind != "secret reference" else ""
        if self.kind == "enum":
            return f"one of {', '.join(values_of(self))}{null}"
        return {"list": "a list", "node": "an object", **EXPECTED}[self.kind] + null

    @property
    def is_beside_a_secret(self) -> bool:
        """Whether its class also holds a secret, which may have been given to this field."""
        return ".security." in self.path

    @property
    def above(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def file(self) -> dict[str, Any]:
        return whole(self.row.variant)

    def value(self) -> Any:
        return at(self.file(), self.path)

    def given(self, value: Any) -> dict[str, Any]:
        """The whole file with this value here."""
        mapping = self.file()
        if self.is_entry:
            at(mapping, self.path.removesuffix("[0]"))[0] = value
        else:
            at(mapping, self.above)[self.name] = value
        return mapping

    def left_out(self) -> dict[str, Any]:
        mapping = self.file()
        del at(mapping, self.above)[self.name]
        return mapping


def places() -> Iterator[Place]:
    for row in ROWS:
        words, nullable = row.type.removesuffix(" or null"), row.type.endswith(" or null")
        path = row.path.replace("[*]", "[0]")
        if words.startswith("list of "):
            yield Place(path, "list", nullable, row)
            entry = words.removeprefix("list of ")
            yield Place(f"{path}[0]", entry if entry in EXPECTED else "node", False, row, is_entry=True)
        elif any(other.path.startswith(f"{row.path}.") for other in ROWS):
            yield Place(path, "node", nullable, row)
        else:
            yield Place(path, words if words in EXPECTED else "enum", nullable, row)


def values_of(place: Place) -> list[str]:
    """The permitted values of an enumeration."""
    return place.row.type.removesuffix(" or null").split(" or ")


PLACES = list(places())


def of_kind(*kinds: str) -> Any:
    """Parametrises a test by the places of some kinds."""
    chosen = [place for place in PLACES if place.kind in kinds]
    assert chosen, f"no field is of kind {kinds}"
    return pytest.mark.parametrize("place", chosen, ids=_id)


def every(**properties: Any) -> Any:
    chosen = [place for place in PLACES if all(getattr(place, name) == value for name, value in properties.items())]
    return pytest.mark.parametrize("place", chosen, ids=_id)


def _id(place: Place) -> str:
    return f"{place.path}({place.row.variant})" if place.row.variant else place.path


def lines_of(mapping: dict[str, Any]) -> list[str]:
    """The problems of a file that must be refused, without its name."""
    with pytest.raises(ConfigError) as caught:
        read(mapping)
    lines = str(caught.value).splitlines()
    assert all(line.startswith("run.json: ") for line in lines)
    return [line.removeprefix("run.json: ") for line in lines]


def outcome(mapping: dict[str, Any]) -> str:
    """What becomes of a file: its canonical text, or its problems."""
    try:
        return read(mapping).to_json()
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("variant", ["DirectoryLog", "KafkaLog"])
def test_the_sample_is_valid_and_fills_every_field(variant):
    mapping = whole(variant)
    assert read(mapping).to_dict() == mapping
    for place in PLACES:
        if place.row.variant in ("", variant):
            assert place.kind != "list" or at(mapping, place.path), f"{place.path}: an empty list in the sample"


@every()
def test_every_field_is_of_a_kind_that_is_tested_here(place):
    if place.kind == "enum":
        # A kind that this file does not know looks like an enumeration whose only value is the kind's name.
        advice = "add this kind to EXPECTED, with tests of its faults; or give the enumeration a value in whole()"
        assert place.value() in values_of(place), f"{place.row.type}: {advice}"


# Numbers, booleans, strings, lists


INTEGER_FAULTS = [
    (True, "true", ""),
    (False, "false", ""),
    (4.5, "4.5", ""),
    ("8", "'8'", "; write it without quotes"),
    ("many", "'many'", ""),
    ("", "''", ""),
    ([8], "[8]", ""),
    ({"a": 8}, "{…}", ""),
]
NUMBER_FAULTS = [
    (True, "true", ""),
    ("5e-2", "'5e-2'", "; write it without quotes"),
    ("0.5", "'0.5'", "; write it without quotes"),
    ("None", "'None'", ""),
    ("nan", "'nan'", ""),
    ([0.5], "[0.5]", ""),
    ({"a": 0.5}, "{…}", ""),
]
BOOLEAN_FAULTS = [
    (1, "1", ""),
    (0, "0", ""),
    (1.0, "1.0", ""),
    ("true", "'true'", "; write it without quotes"),
    ("yes", "'yes'", ""),
    ([True], "[true]", ""),
    ({"a": True}, "{…}", ""),
]
STRING_FAULTS = [
    (7, "7", "; write it in quotes"),
    (0.5, "0.5", "; write it in quotes"),
    (True, "true", ""),
    (["a"], "['a']", ""),
    ({"a": "b"}, "{…}", ""),
]
TIME_FAULTS = [
    ("2026-01-31T12:00:00", "'2026-01-31T12:00:00'", ""),  # of which time zone?
    ("2026-01-31", "'2026-01-31'", ""),
    ("2026-02-30T12:00:00Z", "'2026-02-30T12:00:00Z'", ""),
    ("yesterday", "'yesterday'", ""),
    ("", "''", ""),
    (1769860800, "1769860800", ""),
    (True, "true", ""),
    (["2026-01-31T12:00:00Z"], "['2026-01-31T12:00:00Z']", ""),
]
LIST_FAULTS = [
    ("click", "'click'", ""),
    ("", "''", ""),
    (7, "7", ""),
    (True, "true", ""),
    ({"0": "click"}, "{…}", ""),
]


def assert_all_refused(place: Place, faults: list[tuple[Any, str, str]]) -> None:
    for value, shown, fix in faults:
        assert_refused(place, value, shown, fix)


def assert_refused(place: Place, value: Any, shown: str, fix: str, words: str = "") -> None:
    assert lines_of(place.given(value)) == [f"{place.path}{seen(place, shown)}: expected {words or place.words}{fix}"]


def seen(place: Place, shown: str) -> str:
    """The value as a message has it: beside a secret only what can be none."""
    return "" if place.is_beside_a_secret and shown not in ("null", "true", "false", "{…}") else f" = {shown}"


@of_kind("integer")
def test_what_is_no_integer_is_refused(place):
    assert_all_refused(place, INTEGER_FAULTS)


@of_kind("number")
def test_what_is_no_number_is_refused(place):
    assert_all_refused(place, NUMBER_FAULTS)


@of_kind("true or false")
def test_what_is_neither_true_nor_false_is_refused(place):
    assert_all_refused(place, BOOLEAN_FAULTS)


@of_kind("string")
def test_what_is_no_string_is_refused(place):
    assert_all_refused(place, STRING_FAULTS)


@of_kind("time")
def test_what_is_no_instant_is_refused(place):
    assert_all_refused(place, TIME_FAULTS)


@of_kind("time")
def test_an_instant_is_written_in_utc(place):
    config = read(place.given("2026-01-31T14:00:00+02:00"))
    assert at(config.to_dict(), place.path) == "2026-01-31T12:00:00Z"
    assert config == read(place.given("2026-01-31T12:00:00Z"))


@of_kind("list")
def test_a_string_never_becomes_a_list_of_characters_nor_anything_else_a_list(place):
    assert_all_refused(place, LIST_FAULTS)


NO_OBJECTS = {"x": "a string", 7: "a number", 0.5: "a number", True: "true or false", (): "a list", ("x",): "a list"}


@of_kind("node")
def test_what_is_no_object_is_refused_where_a_section_is_expected(place):
    for value, kind in NO_OBJECTS.items():
        assert lines_of(place.given(value)) == [f"{place.path}: expected an object, found {kind}"]


def admitted_integer(place: Place, *candidates: int) -> int:
    """The first of the integers that is within the limits of the field."""
    within = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
    limits = {} if place.is_entry else place.row.constraints
    return next(n for n in candidates if all(within[name](n, limit) for name, limit in limits.items()))


@of_kind("integer")
def test_a_whole_float_is_the_integer_that_it_stands_for_and_is_written_as_one(place):
    mapping = place.file()
    value = place.value() if place.value() is not None else admitted_integer(place, 7)
    config = read(place.given(float(value)))
    assert config.to_json() == read(place.given(value)).to_json()
    assert type(at(config.to_dict(), place.path)) is int
    assert place.value() is None or config == read(mapping)


@of_kind("number")
def test_an_integer_is_the_number_that_it_stands_for_and_is_written_with_a_point(place):
    value = admitted_integer(place, 0, 1, 2)
    config = read(place.given(value))
    assert config == read(place.given(float(value)))
    assert repr(at(config.to_dict(), place.path)) == f"{value}.0"


@of_kind("integer")
def test_integers_of_64_bits_are_exact_in_what_is_saved_and_in_what_is_said(place):
    for value in (2**53 + 1, 2**63 - 1, 2**64 - 1):
        text = outcome(place.given(value))
        assert str(value) in text
        if not text.startswith("run.json: "):  # else a limit of the field, or a rule between fields
            assert at(read(json.loads(text)).to_dict(), place.path) == value


def test_the_salts_of_a_table_are_exact_to_the_last_of_64_bits():
    salts = [2**53 + 1, 2**63 - 1, 2**64 - 1]
    mapping = whole()
    mapping["dataset"]["tables"][0]["salts"] = salts
    config = read(mapping)
    again = read(json.loads(config.to_json()))
    assert again.dataset.tables[0].salts == tuple(salts)
    assert again == config


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("dataset.topic_name", "1 to 249 of A-Z a-z 0-9 . _ -"),
        ("dataset.log.group_id", "1 to 249 of A-Z a-z 0-9 . _ -"),
        ("dataset.tables[0].name", "a letter, then up to 63 of A-Z a-z 0-9 _"),
        ("dataset.features[0].name", "a letter, then up to 63 of A-Z a-z 0-9 _"),
    ],
)
def test_a_text_of_another_form_is_refused_in_words(path, words):
    place = next(place for place in PLACES if place.path == path)
    assert_refused(place, "two words", "'two words'", "", words)


# Enumerations


@of_kind("enum")
def test_another_case_is_refused_with_the_right_spelling_at_every_enumeration(place):
    for value in values_of(place):
        wrong = value.swapcase()
        assert_refused(place, wrong, repr(wrong), f"; did you mean {value}?")


@of_kind("enum")
def test_an_unknown_value_is_refused_with_the_permitted_ones_and_the_nearest(place):
    for value in values_of(place):
        assert_refused(place, f"{value}x", f"'{value}x'", f"; did you mean {value}?")
    assert_refused(place, "?", "'?'", "")


@of_kind("enum")
def test_what_is_no_string_is_no_value_of_an_enumeration(place):
    assert_all_refused(place, [(3, "3", ""), (True, "true", ""), (["x"], "['x']", ""), ({"a": 1}, "{…}", "")])


@of_kind("enum")
def test_every_permitted_value_is_kept_as_it_is_spelled(place):
    for value in values_of(place):
        text = outcome(place.given(value))
        # Other fields may have to change with it; the value itself is never the problem.
        assert text.startswith("run.json: ") or at(json.loads(text), place.path) == value
        assert f"{place.path} =" not in text


@pytest.mark.parametrize(
    ("tag", "fix"), [("KafkaLogg", "; did you mean KafkaLog?"), ("directorylog", "; did you mean DirectoryLog?"), ("?", "")]
)  # fmt: skip
def test_an_unknown_class_is_refused_with_the_permitted_ones_and_the_nearest(tag, fix):
    mapping = whole()
    mapping["dataset"]["log"]["__class"] = tag
    assert lines_of(mapping) == [f"dataset.log.__class = '{tag}': expected one of DirectoryLog, KafkaLog{fix}"]


# Absent, null, unknown


REQUIRED = [place for place in PLACES if place.row.required and not place.is_entry]
OPTIONAL = [place for place in PLACES if not place.row.required and not place.is_entry]


@pytest.mark.parametrize("place", REQUIRED, ids=_id)
def test_a_required_field_that_is_left_out_is_named(place):
    assert lines_of(place.left_out()) == [f"{place.path}: missing; expected {place.words}"]


def test_all_fields_that_are_missing_are_named_together():
    mapping, missing = whole(), []
    for place in reversed(REQUIRED):
        if place.path not in ("dataset", "dataset.tables", "dataset.features"):  # these hold the others
            del at(mapping, place.above)[place.name]
            missing.append(f"{place.path}: missing; expected {place.words}")
    assert len(missing) > 5
    assert sorted(lines_of(mapping)) == sorted(missing)


@pytest.mark.parametrize("place", OPTIONAL, ids=_id)
def test_a_field_that_is_left_out_is_its_default_written_out(place):
    assert outcome(place.left_out()) == outcome(place.given(copy.deepcopy(place.row.default)))


@every(nullable=False)
def test_null_is_refused_wherever_it_is_no_value_also_where_there_is_a_default(place):
    if place.kind == "node":
        assert lines_of(place.given(None)) == [f"{place.path}: expected an object, found null"]
    else:
        assert_refused(place, None, "null", "")


@every(nullable=True)
def test_null_stays_null_where_it_is_a_value(place):
    mapping = place.given(None)
    text = outcome(mapping)
    assert f"{place.path} =" not in text, "null is no problem of the field by itself"
    assert "None" not in text, "null is called null"
    if not text.startswith("run.json: "):  # else a rule between fields
        assert json.loads(text) == mapping


@every(is_entry=False)
def test_a_misspelled_field_is_refused_with_the_nearest_name(place):
    mapping = place.file()
    at(mapping, place.above)[f"{place.name}x"] = SECRET
    # Beside a password nothing is shown: the field may be the password's, misspelled.
    shown = "" if place.is_beside_a_secret else f" = '{SECRET}'"
    assert lines_of(mapping) == [f"{place.path}x{shown}: unknown field; did you mean {place.name}?"]


def test_the_faults_of_all_sections_are_reported_at_once():
    mapping = whole("KafkaLog")
    faults = {
        place.path: 4.5
        for place in PLACES
        if place.kind in ("integer", "string") and place.row.variant != "DirectoryLog"
    }
    for path, value in faults.items():
        above, _, name = path.rpartition(".")
        if path.endswith("[0]"):
            at(mapping, path.removesuffix("[0]"))[0] = value
        else:
            at(mapping, above)[name] = value
    lines = lines_of(mapping)
    assert sorted(line.partition(" = ")[0].partition(": ")[0] for line in lines) == sorted(faults)
    assert all(line.isprintable() for line in lines)


# The command line


@of_kind("integer", "number", "true or false", "time", "enum")
def test_the_command_line_is_read_by_the_same_rules(place):
    wrongs = {"integer": "4.5", "number": "true", "true or false": "1", "time": "today"}
    wrong = wrongs.get(place.kind) or values_of(place)[0].swapcase()
    path = place.path.replace("[0]", ".0") if place.is_entry else place.path
    with pytest.raises(ConfigError) as caught:
        read_overridden(TrainerConfig, place.file(), [f"{path}={wrong}"], "run.json")
    shown = repr(wrong) if place.kind in ("time", "enum") else wrong
    fix = f"; did you mean {values_of(place)[0]}?" if place.kind == "enum" else ""
    assert str(caught.value) == f"command line: {place.path}{seen(place, shown)}: expected {place.words}{fix}"


# What is read is what was written


@pytest.mark.parametrize("variant", ["DirectoryLog", "KafkaLog"])
def test_a_saved_config_holds_every_field_of_the_schema_and_nothing_else(variant):
    written = json.loads(loaded("base").to_json())
    assert fields_of(written) == {row.path for row in ROWS if row.variant in ("", "DirectoryLog")}
    assert fields_of(whole(variant)) == {row.path for row in ROWS if row.variant in ("", variant)}


def fields_of(node: Any, path: str = "") -> set[str]:
    """Paths of the fields in a saved config, entries of lists as `[*]`, as the schema has them."""
    if isinstance(node, list):
        return set().union(*(fields_of(item, f"{path}[*]") for item in node if isinstance(item, dict)))
    if not isinstance(node, dict):
        return set()
    here = {f"{path}.{name}".lstrip("."): item for name, item in node.items() if not name.startswith("__")}
    return set(here).union(*(fields_of(item, name) for name, item in here.items()))


def test_a_default_of_a_newer_release_does_not_change_what_was_saved(monkeypatch):
    saved = read(whole()).to_json()
    for name, other in {"warmup_steps": 7, "b1": 0.5, "clip_norm": 1.0}.items():
        monkeypatch.setattr(DenseOptimizerConfig.model_fields[name], "default", other)
    fresh = DenseOptimizerConfig()
    assert (fresh.warmup_steps, fresh.b1, fresh.clip_norm) == (7, 0.5, 1.0)
    assert TrainerConfig.from_json(saved).to_json() == saved


@pytest.mark.parametrize("file", ["base", "sequences", "large_integers", "byte_order_mark", "secret_reference"])
def test_a_config_written_and_read_is_equal_and_has_the_same_hash(file):
    config = loaded(file)
    again = TrainerConfig.from_json(config.to_json())
    assert again == config
    assert hash(again) == hash(config)
    assert again.to_json() == config.to_json()


def test_lists_are_tuples_at_every_depth():
    config = loaded("sequences")
    assert [table.salts for table in config.dataset.tables] == [(), (24680, 13579, 24680)]
    assert config.dataset.references == ("optimum", "online_lr")
    assert config.model.action_weights == (1.0, 0.25)
    held = list(values_below(config))
    assert len(held) > len(ROWS)
    assert not [value for value in held if isinstance(value, list | set | dict)]


def values_below(value: Any) -> Iterator[Any]:
    yield value
    below = [getattr(value, name) for name in type(value).model_fields] if isinstance(value, Config) else value
    if isinstance(below, list | tuple):
        for item in below:
            yield from values_below(item)


def test_an_equal_config_is_the_same_static_argument_of_a_compiled_function():
    traced = []

    @functools.partial(jax.jit, static_argnums=0)
    def scaled(config, x):
        traced.append(config)
        return x * config.optimizer.dense.learning_rate

    config = loaded("sequences")
    assert scaled(config, 2.0) == scaled(TrainerConfig.from_json(config.to_json()), 2.0) == pytest.approx(0.1)
    assert traced == [config]
    assert scaled(config.replace(trainer=config.trainer.replace(seed=18)), 2.0) == pytest.approx(0.1)
    assert len(traced) == 2, "another config compiles anew"


# Secrets


@of_kind("secret reference")
def test_a_literal_secret_is_refused_and_not_shown(place):
    pair = {"env": "KAFKA_PASSWORD", "value": SECRET}
    for value in (SECRET, "", [SECRET], {"env": SECRET}, {"value": SECRET}, pair, {SECRET: 1}, {}, True, 0):
        line = f"{place.path}: expected {place.words}, a secret is never written into a config"
        assert lines_of(place.given(value)) == [line]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dataset.log.security", SECRET),
        ("dataset.log.security", [SECRET]),
        ("dataset.log", SECRET),
        ("dataset.log.security.pasword", SECRET),
        ("dataset.log.security.sasl", {"password": SECRET}),
        ("dataset.log.security.protocol", SECRET),
        ("dataset.log.security.sasl_mechanism", SECRET),
        ("dataset.log.security.username", [SECRET]),
        ("dataset.log.security.ca_file", [SECRET]),
        ("dataset.log.security.__class", SECRET),
        ("dataset.log.password", SECRET),
        ("dataset.password", SECRET),
        ("trainer.max_steps", {"password": SECRET}),
    ],
)
def test_a_secret_in_a_wrong_place_is_refused_and_not_shown(path, value):
    mapping = whole("KafkaLog")
    above, _, name = path.rpartition(".")
    at(mapping, above)[name] = value
    assert SECRET not in "\n".join(lines_of(mapping))


def test_a_secret_on_the_command_line_is_refused_and_not_shown():
    for override in (f"dataset.log.security.password={SECRET}", f'dataset.log.security={{"password": "{SECRET}"}}'):
        with pytest.raises(ConfigError) as caught:
            read_overridden(TrainerConfig, whole("KafkaLog"), [override], "run.json")
        assert SECRET not in str(caught.value)
        assert "command line: dataset.log.security.password: expected" in str(caught.value)


@pytest.mark.parametrize(
    "word",
    [
        f"dataset.log.security.protocol={SECRET}",
        f"dataset.log.security.password:{SECRET}",
        f"dataset.log.security.password: {SECRET}=",
        f"dataset.log.security.password {SECRET}",
        f"dataset.log.security.token.{SECRET}=1",
        f"dataset.log.security.__class={SECRET}",
        f"dataset.log={SECRET}",
        SECRET,
        "eyJhbGciOiJub25l.eyJzdWIiOiJwaG9lbml4",
    ],
)
def test_a_secret_in_a_wrong_place_of_the_command_line_is_refused_and_not_shown(word):
    with pytest.raises(ConfigError, match=r"^command line: ") as caught:
        read_overridden(TrainerConfig, whole("KafkaLog"), [word], "run.json")
    for part in ("example", "password-1", "eyJ"):
        assert part not in str(caught.value)


def test_a_secret_given_on_the_command_line_for_the_section_around_it_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match=r"^command line: dataset.log.security: ") as caught:
        read_overridden(TrainerConfig, whole("KafkaLog"), [f"dataset.log.security={SECRET}"], "run.json")
    assert SECRET not in str(caught.value)


def test_a_reference_is_shown_and_what_it_refers_to_is_not(monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    config = loaded("secret_reference")
    assert "SecretRef(env='KAFKA_PASSWORD')" in repr(config)
    assert json.loads(config.to_json())["dataset"]["log"]["security"]["password"] == {"env": "KAFKA_PASSWORD"}
    assert SECRET not in repr(config) + str(config) + config.to_json()
