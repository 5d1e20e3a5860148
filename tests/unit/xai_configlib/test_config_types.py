"""What a field of each type holds, how JSON writes it, and which types there are not."""

import enum
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from sample_configs import Activation, Feature, Precision, Table

from xai_configlib import Config, ConfigError, SecretRef, apply_overrides, configclass, field
from xai_configlib.spelling import read_bytes, read_duration, read_time, written


class Phase(enum.StrEnum):
    TRAIN = "train"
    TEST = "test"


class Level(enum.IntEnum):
    NONE = 0
    SOME = 1


@configclass(policy="own")
class Left(Config):
    x: int = field(default=1)
    """X."""


@configclass(policy="own")
class Right(Config):
    y: int = field(default=2)
    """Y."""


@configclass(tag="ManyTypes", policy="may_change")
class ManyTypes(Config):
    number_or_text: int | str = field(default=0)
    """A union by JSON type."""
    flag_or_number: bool | int | None = field(default=None)
    """Three of them."""
    rate: float | Literal["auto"] = field(default="auto")
    """A number or a word."""
    size: float | str = field(default=1.0)
    """Infinity is the number."""
    bounded: Annotated[int, Field(ge=0)] | Annotated[str, Field(min_length=2)] = field(default=0)
    """Constraints of the arms."""
    either: Left | Right = field(default_factory=Left)
    """By tag."""
    node_or_list: Left | tuple[int, ...] | int | None = field(default=None)
    """Object, list, number or null."""
    ids: frozenset[int] = field(default=frozenset(), max_length=4)
    """A set."""
    mixed: frozenset[float | str | None] = field(default=frozenset())
    """A set of different things."""
    by_phase: dict[Phase, int] = field(default_factory=dict)
    """Keys of an enum."""
    by_level: Mapping[Level, frozenset[Activation]] = field(default_factory=dict)
    """Keys that are numbers of an enum."""
    key: bytes = field(default=b"", max_length=8)
    """Bytes."""
    since: datetime = field(default=datetime(2026, 1, 31, 12, tzinfo=UTC), ge=datetime(2000, 1, 1, tzinfo=UTC))
    """An instant."""
    wait: timedelta = field(default=timedelta(minutes=90), gt=timedelta())
    """A duration."""


def read(name, value):
    return getattr(ManyTypes.from_json({name: value}), name)


def error_of(name, value):
    with pytest.raises(ConfigError) as caught:
        ManyTypes.from_json({name: value})
    return [line.removeprefix("config: ") for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("name", "given", "loaded", "saved"),
    [
        ("number_or_text", 7, 7, 7),
        ("number_or_text", 4.0, 4, 4),
        ("number_or_text", "7", "7", "7"),
        ("flag_or_number", True, True, True),
        ("flag_or_number", 1, 1, 1),
        ("rate", 1, 1.0, 1.0),
        ("rate", "auto", "auto", "auto"),
        ("rate", "-Infinity", -math.inf, "-Infinity"),
        ("size", "Infinity", math.inf, "Infinity"),
        ("size", "infinity", "infinity", "infinity"),
        ("either", {"__class": "Right"}, Right(), {"__class": "Right", "y": 2}),
        ("node_or_list", [1, 2.0], (1, 2), [1, 2]),
        ("node_or_list", {"__class": "Left", "x": 5}, Left(x=5), {"__class": "Left", "x": 5}),
        ("node_or_list", {}, Left(), {"__class": "Left", "x": 1}),
        ("ids", [10, 9, -1], frozenset({-1, 9, 10}), [-1, 9, 10]),
        ("mixed", ["b", "Infinity", 10, None, 9, "a"], frozenset({"b", math.inf, 10.0, None, 9.0, "a"}),
         [None, 9.0, 10.0, "Infinity", "a", "b"]),
        ("by_phase", {"test": 2, "train": 1}, {Phase.TRAIN: 1, Phase.TEST: 2}, {"test": 2, "train": 1}),
        ("by_level", {"0": ["relu"], "1": []}, {Level.NONE: {Activation.RELU}, Level.SOME: set()}, {"0": ["relu"], "1": []}),
        ("by_level", {0: []}, {Level.NONE: frozenset()}, {"0": []}),
        ("key", "AP8=", b"\x00\xff", "AP8="),
        ("since", "2026-01-31T14:30:00.5+02:30", datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC), "2026-01-31T12:00:00.500000Z"),
        ("since", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00Z"),
        ("wait", "PT90M", timedelta(minutes=90), "PT1H30M"),
        ("wait", "P1DT0.000001S", timedelta(days=1, microseconds=1), "P1DT0.000001S"),
    ],
)  # fmt: skip
def test_a_value_is_read_as_its_type_and_written_in_one_spelling(name, given, loaded, saved):
    value = read(name, given)
    assert value == loaded
    assert type(value) is type(loaded) or isinstance(value, dict)
    config = ManyTypes.from_json({name: given})
    assert config.to_dict()[name] == saved
    assert ManyTypes.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("name", "value", "lines"),
    [
        ("number_or_text", True, ["number_or_text = true: expected an integer or a string"]),
        ("number_or_text", None, ["number_or_text = null: expected an integer or a string"]),
        ("number_or_text", [1], ["number_or_text = [1]: expected an integer or a string"]),
        ("number_or_text", 1.5, ["number_or_text = 1.5: expected an integer"]),
        ("flag_or_number", "x", ["flag_or_number = 'x': expected true or false or an integer or null"]),
        ("rate", "autp", ["rate = 'autp': expected a number or one of auto; did you mean auto?"]),
        ("bounded", -1, ["bounded = -1: must be at least 0"]),
        ("bounded", "a", ["bounded = 'a': must have at least 2 characters"]),
        ("either", {}, ["either.__class: missing; expected one of Left, Right"]),
        ("either", {"__class": "Feature"}, ["either.__class = 'Feature': expected one of Left, Right"]),
        ("either", {"__class": "Rihgt"}, ["either.__class = 'Rihgt': expected one of Left, Right; did you mean Right?"]),
        ("either", {"__class": "Right", "y": "a"}, ["either.y = 'a': expected an integer"]),
        ("either", [], ["either = []: expected an object"]),
        ("node_or_list", [1, "x"], ["node_or_list[1] = 'x': expected an integer"]),
        ("node_or_list", "x", ["node_or_list = 'x': expected an object or a list or an integer or null"]),
        ("ids", [1, "x", [2], {"a": 1}], ["ids[1] = 'x': expected an integer", "ids[2] = [2]: expected an integer", "ids[3] = {…}: expected an integer"]),
        ("ids", [1, 2, 1.0], ["ids[2] = 1: stands twice in a set; remove it"]),
        ("ids", [1, 2, 3, 4, 5], ["ids = [1, 2, 3, 4, 5]: must have at most 4 entries"]),
        ("ids", "123", ["ids = '123': expected a list"]),
        ("ids", {"1": 1}, ["ids = {…}: expected a list"]),
        ("mixed", ["a", "a"], ["mixed[1] = 'a': stands twice in a set; remove it"]),
        ("by_phase", {"tset": 1}, ['by_phase."tset": expected one of train, test as key; did you mean test?']),
        ("by_phase", {"test": "x"}, ["by_phase.test = 'x': expected an integer"]),
        ("by_level", {"2": []}, ['by_level."2": expected one of 0, 1 as key']),
        ("by_level", {True: []}, ['by_level."True": expected one of 0, 1 as key']),
        ("by_level", {"1": ["relu", "tanh"]}, ["by_level.\"1\"[1] = 'tanh': expected one of relu, gelu, swish"]),
        ("by_level", {"1": [], 1: []}, ['by_level."1": the key stands twice; keep one']),
        ("key", "AP8", ["key = 'AP8': expected bytes in base64"]),
        ("key", "AP9=", ["key = 'AP9=': expected bytes in base64"]),  # bits to spare that are not 0
        ("key", "AP 8=", ["key = 'AP 8=': expected bytes in base64"]),
        ("key", "AP8_", ["key = 'AP8_': expected bytes in base64"]),
        ("key", "é", ["key = 'é': expected bytes in base64"]),
        ("key", 3, ["key = 3: expected bytes in base64"]),
        ("key", "AAAAAAAAAAAA", ["key = 'AAAAAAAAAAAA': must have at most 8 bytes"]),
        ("since", "1999-01-01T00:00:00Z", ["since = '1999-01-01T00:00:00Z': must be at least 2000-01-01T00:00:00Z"]),
        ("wait", "-PT1S", ["wait = '-PT1S': must be greater than 0 seconds"]),
    ],
)  # fmt: skip
def test_any_other_value_is_refused_in_its_place(name, value, lines):
    assert error_of(name, value) == lines


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00",  # no offset: no instant
        "2026-01-31 12:00:00Z",
        "2026-01-31T12:00Z",
        "2026-01-31",
        "2026-02-30T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T23:59:60Z",
        "2026-01-31T12:00:00.1234567Z",
        "2026-01-31t12:00:00z",
        "2026-W05-6T12:00:00Z",
        "2026-01-31T12:00:00+0200",
        "0001-01-01T00:00:00+01:00",  # before the first year in UTC
        "2026-01-31T12:00:00Z\n",
        "٢٠٢٦-01-31T12:00:00Z",
        1769860800,
        None,
    ],
)
def test_a_time_is_iso_8601_with_its_offset(text):
    (line,) = error_of("since", text)
    assert line.endswith(': expected a time with its offset, such as "2026-01-31T12:00:00Z"')


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "5", "PT5", "P1Y", "P1W", "PT1M1H", "PT1.5M", "PT0.1234567S", "pt1s", "PT-1S", "+PT1S", "PT1S ",
     "P1000000000D", "PT999999999999999H", "P999999999DT24H", "-P999999999DT1S", 60, None],
)  # fmt: skip
def test_a_duration_is_iso_8601_of_days_to_microseconds(text):
    (line,) = error_of("wait", text)
    assert line.endswith(': expected a duration, such as "PT1H30M"')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(), "PT0S"),
        (timedelta(days=2), "P2D"),
        (timedelta(hours=26, seconds=-1), "P1DT1H59M59S"),
        (-timedelta(milliseconds=1500), "-PT1.5S"),
        (timedelta.max, "P999999999DT23H59M59.999999S"),
        (timedelta.min, "-P999999999D"),
    ],
)
def test_a_duration_is_written_by_its_largest_units(value, text):
    assert written(value) == text
    assert read_duration(text) == value


@given(st.timedeltas(), st.binary(max_size=20), st.datetimes(timezones=st.just(UTC)))
@settings(max_examples=200, deadline=None)
def test_no_bit_of_durations_bytes_and_instants_is_lost(duration, data, instant):
    assert read_duration(written(duration)) == duration
    assert read_bytes(written(data)) == data
    assert read_time(written(instant)) == instant


@given(st.text(st.sampled_from("-PT0123DHMS."), max_size=12) | st.text(max_size=8))
@settings(max_examples=300, deadline=None)
def test_whatever_is_read_as_a_duration_has_one_canonical_spelling(text):
    value = read_duration(text)
    if value is not None:
        assert read_duration(written(value)) == value


def test_an_instant_is_held_in_utc_and_one_without_offset_is_none():
    local = datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2)))
    assert ManyTypes(since=local) == ManyTypes(since=local.astimezone(UTC))
    assert ManyTypes(since=local).since.tzinfo is UTC
    with pytest.raises(ConfigError, match="expected a time with its offset"):
        ManyTypes(since=datetime(2026, 1, 31, 14))
    with pytest.raises(ConfigError, match="expected a time with its offset"):
        ManyTypes(since=datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))))


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 5e-324, -2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 1e22, math.inf, -math.inf]
)
def test_a_float_keeps_every_bit(value):
    again = Feature.from_json(Feature(column="a", weight=value).to_json()).weight
    assert (again, math.copysign(1, again)) == (value, math.copysign(1, value))


def test_a_float_that_64_bits_cannot_hold_is_refused():
    for text, fault in {
        "1e-400": "'1e-400' is too small for a 64-bit float: write 0.0",
        "-0.000e5": None,
        "1e400": "'1e400' is too large for a 64-bit float: write \"Infinity\" in quotes, or correct the exponent",
        "Infinity": 'Infinity is not JSON: write "Infinity" in quotes',
        "1e309": "'1e309' is too large for a 64-bit float: write \"Infinity\" in quotes, or correct the exponent",
    }.items():
        source = f'{{"column": "a", "weight": {text}}}'
        if fault is None:
            assert str(Feature.from_json(source).weight) == "-0.0"
        else:
            with pytest.raises(ConfigError, match=f"^config: {fault}$"):
                Feature.from_json(source)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63), 2**63, 2**64 - 1])
def test_a_64_bit_integer_is_exact(value):
    assert ManyTypes.from_json(ManyTypes(number_or_text=value).to_json()).number_or_text == value


def test_an_integer_that_cannot_be_printed_is_refused():
    assert error_of("number_or_text", 10**5000) == [
        "number_or_text = a huge integer: expected an integer of at most 8192 bits"
    ]


def test_text_is_any_text_that_utf_8_can_write():
    for text in ("", "\0", "\x7f\u2028", "é", "e\u0301", "\U0001f980", "\ufeff"):
        assert ManyTypes.from_json(ManyTypes(number_or_text=text).to_json().encode()).number_or_text == text
    for half in ('"\\ud83e"', '"\\udd80"', '"\\udd80\\ud83e"'):
        with pytest.raises(ConfigError, match=r"number_or_text = '.*': holds characters that UTF-8 cannot write$"):
            ManyTypes.from_json(f'{{"number_or_text": {half}}}')
    assert ManyTypes.from_json('{"number_or_text": "\\ud83e\\udd80"}').number_or_text == "\U0001f980"
    with pytest.raises(ConfigError, match="by_phase: a key holds characters that UTF-8 cannot write"):
        ManyTypes.from_json('{"by_phase": {"\\ud83e": 1}}')
    assert SecretRef.from_value({"file": "\ud83e"}) is None


def test_equal_configs_write_equal_texts():
    assert ManyTypes(flag_or_number=1) != ManyTypes(flag_or_number=True)
    assert ManyTypes(size=0.0) != ManyTypes(size=-0.0)
    assert Left() != Right()
    assert Left() != 1
    assert ManyTypes(ids=frozenset([1, 2])) == ManyTypes(ids=[2, 1])  # type: ignore[arg-type]
    assert len({ManyTypes(ids=frozenset([1, 2])), ManyTypes(ids=frozenset([2, 1])), ManyTypes()}) == 2


def test_objects_hold_their_keys_in_one_order():
    assert list(ManyTypes(by_phase={Phase.TRAIN: 1, Phase.TEST: 2}).by_phase) == [Phase.TEST, Phase.TRAIN]
    assert hash(ManyTypes(by_phase={Phase.TRAIN: 1, Phase.TEST: 2})) == hash(
        ManyTypes(by_phase={Phase.TEST: 2, Phase.TRAIN: 1})
    )


def test_a_call_takes_what_a_field_holds():
    config = ManyTypes(by_level={Level.SOME: {Activation.RELU}}, key=b"a", either=Right(), mixed={1.5, "a"})  # type: ignore[arg-type]
    assert ManyTypes.from_json(config.to_json()) == config
    with pytest.raises(ConfigError, match=r"ManyTypes: ids\[\d\] = 'x': expected an integer"):
        ManyTypes(ids={1, "x"})  # type: ignore[arg-type]
    for wrong in (
        {"key": bytearray(b"a")},
        {"ids": iter([1])},
        {"by_phase": {Level.SOME: 1}},
        {"number_or_text": Path("a")},
    ):
        with pytest.raises(ConfigError, match="expected"):
            ManyTypes(**wrong)


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("number_or_text=7", "number_or_text", 7),
        ("number_or_text=seven", "number_or_text", "seven"),
        ('number_or_text="7"', "number_or_text", "7"),
        ("number_or_text=true", "number_or_text", "true"),
        ("flag_or_number=true", "flag_or_number", True),
        ("flag_or_number=null", "flag_or_number", None),
        ("rate=auto", "rate", "auto"),
        ("rate=1e-3", "rate", 1e-3),
        ("size=Infinity", "size", math.inf),
        ("either=Right", "either", Right()),
        ('either={"__class": "Right", "y": 3}', "either", Right(y=3)),
        ("either.x=5", "either", Left(x=5)),
        ("node_or_list=Left", "node_or_list", Left()),
        ("node_or_list=[1]", "node_or_list", (1,)),
        ("node_or_list=5", "node_or_list", 5),
        ("node_or_list.x=5", "node_or_list", Left(x=5)),
        ("ids=[2, 1]", "ids", frozenset({1, 2})),
        ("by_phase.test=3", "by_phase", {Phase.TEST: 3}),
        ("key=AP8=", "key", b"\x00\xff"),
        ("since=2026-02-01T00:00:00Z", "since", datetime(2026, 2, 1, tzinfo=UTC)),
        ("wait=PT5S", "wait", timedelta(seconds=5)),
    ],
)  # fmt: skip
def test_an_override_is_read_by_the_type(override, name, value):
    config = apply_overrides(ManyTypes(), [override])
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(value) or isinstance(value, dict)


def test_an_override_enters_the_list_of_a_union():
    config = ManyTypes(node_or_list=(1, 2))
    assert apply_overrides(config, ["node_or_list.1=5"]).node_or_list == (1, 5)
    words = "expected an object in JSON, or the name of a class: Left, Right"
    with pytest.raises(ConfigError, match=f"either = 'Feature': {words}"):
        apply_overrides(config, ["either=Feature"])
    with pytest.raises(ConfigError, match="ids has no parts"):
        apply_overrides(config, ["ids.0=1"])
    with pytest.raises(ConfigError, match="number_or_text has no parts"):
        apply_overrides(config, ["number_or_text.0=1"])


class Twice(enum.Enum):
    WORD = "1"
    NUMBER = 1


class Odd(enum.Enum):
    PAIR = (1, 2)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (list[int], r"list\[int\] can be changed: use tuple\[X, ...\]"),
        (list, r"list can be changed: use tuple\[X, ...\]"),
        (Sequence[int], r"Sequence\[int\] can be changed: use tuple\[X, ...\]"),
        (dict[str, list[int]], r"list\[int\] can be changed"),
        (set[int], r"set\[int\] can be changed: use frozenset\[X\]"),
        (int | float, r"JSON cannot tell int from float, it writes both as number"),
        (str | Path | None, r"JSON cannot tell str from Path, it writes both as string"),
        (str | datetime, r"JSON cannot tell str from datetime"),
        (str | Activation, r"JSON cannot tell str from Activation"),
        (float | Literal["Infinity"], r"JSON cannot tell float from typing.Literal\['Infinity'\]"),
        (Activation | Literal["relu"], r"JSON cannot tell"),
        (int | Precision, r"JSON cannot tell int from Precision"),
        (tuple[int, ...] | frozenset[int], r"it writes both as list"),
        (Table | dict[str, int], r"it writes both as object"),
        (str | SecretRef, r"a secret is a reference or null, nothing else beside it"),
        (int | Annotated[str | None, "note"], r"write \| None at the end"),
        (frozenset[Table], r"a frozenset holds plain values"),
        (frozenset[SecretRef], r"a frozenset holds plain values"),
        (frozenset[tuple[int, ...]], r"a frozenset holds plain values"),
        (dict[float, int], r"a key is an int, a str, or an Enum of them"),
        (dict[Odd, int], r"a key is an int, a str, or an Enum of them|no value that JSON writes"),
        (dict[Twice, int], r"two keys of Twice are written alike"),
        (Odd, r"\(1, 2\) is no value that JSON writes"),
        (Literal[b"a"], r"b'a' is no value that JSON writes"),
        (Literal["a", None], r"None is no value that JSON writes"),
        (complex, r"complex is no config type"),
        (Any, r"is no config type"),
    ],
)  # fmt: skip
def test_a_type_that_json_cannot_hold_without_doubt_is_refused_at_the_class(kind, words):
    with pytest.raises(TypeError, match=rf"Untyped.x: .*{words}"):
        configclass(policy="own")(
            type(Config)("Untyped", (Config,), {"__annotations__": {"x": kind}, "__module__": __name__})
        )


def test_a_union_is_constrained_at_its_arms():
    with pytest.raises(TypeError, match=r"Loose.x: constrain the arms of the union, not the union"):

        @configclass(policy="own")
        class Loose(Config):
            x: int | str = field(default=1, ge=0)
            """X."""


def test_a_pattern_is_told_by_the_words_that_a_field_declares_for_it_and_else_as_it_is():
    @configclass(policy="own")
    class Patterned(Config):
        hue: str = field(default="a", pattern="^[abc]$", pattern_words="one of a, b, c")
        """With words."""
        tone: str | None = field(default=None, pattern="^[abc]$")
        """The same pattern."""
        shades: tuple[Annotated[str, Field(pattern="^[abc]$")], ...] = field(default=())
        """And again, in a list."""
        other: str = field(default="d", pattern="^[d]$")
        """Without words."""

    with pytest.raises(ConfigError) as caught:
        Patterned.from_json({"hue": "x", "tone": "x", "shades": ["x"], "other": "x"})
    assert str(caught.value).splitlines() == [
        "config: hue = 'x': expected one of a, b, c",
        "config: tone = 'x': expected one of a, b, c",
        "config: shades[0] = 'x': expected one of a, b, c",
        "config: other = 'x': must match ^[d]$",
    ]


def test_words_of_a_pattern_need_it_and_are_the_same_everywhere():
    with pytest.raises(TypeError, match="give the pattern too"):
        field(default="a", pattern_words="a letter")
    declared = {"__annotations__": {"x": str}, "__module__": __name__}
    configclass(policy="own")(
        type(Config)("Said", (Config,), {**declared, "x": field(pattern="^e$", pattern_words="e")})
    )
    other = {**declared, "x": field(pattern="^e$", pattern_words="the letter e")}
    with pytest.raises(TypeError, match=r"SaidAgain: pattern \^e\$ is called 'e' elsewhere"):
        configclass(policy="own")(type(Config)("SaidAgain", (Config,), other))


@pytest.mark.parametrize(
    ("kind", "limits", "words"),
    [
        (str, {"ge": 1}, "ge is no limit of str"),
        (Path, {"min_length": 1}, "min_length is no limit of Path"),
        (Activation | None, {"pattern": "a"}, "pattern is no limit of Activation"),
        (Literal["a"], {"ge": 1}, "ge is no limit of"),
        (bool, {"ge": 0}, "ge is no limit of bool"),
        (dict[str, int], {"ge": 1}, r"ge is no limit of dict\[str, int\]"),
        (tuple[Annotated[str, Field(ge=0)], ...], {}, "ge is no limit of str"),
        (tuple[Annotated[int | str, Field(ge=0)], ...], {}, "constrain the arms of the union"),
        (int | Annotated[str, Field(ge=0)], {}, "ge is no limit of str"),
    ],
)
def test_a_limit_that_is_none_of_the_type_is_refused_at_the_class(kind, limits, words):
    body = {"__annotations__": {"x": kind}, "__module__": __name__, "x": field(**limits)}
    with pytest.raises(TypeError, match=rf"Untyped.x: {words}"):
        configclass(policy="own")(type(Config)("Untyped", (Config,), body))
