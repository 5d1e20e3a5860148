"""Config classes that nobody wrote: fields of any type that the library knows, nested, and configs of them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

from config_strategies import references
from hypothesis import strategies as st
from pydantic import Field

from xai_configlib import Config, SecretRef, configclass, field


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue é"


class Size(enum.IntEnum):
    NONE = 0
    SMALL = 1


class Mode(enum.StrEnum):
    ON = "on"
    OFF = "off"


class Mixed(enum.Enum):
    NUMBER = 7
    SHARE = 0.5
    TEXT = "seven"
    FLAG = True


@dataclass(frozen=True)
class Kind:
    """A type, and the values that it has."""

    annotation: Any
    values: st.SearchStrategy[Any]


zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-12, seconds=1))])
words = st.text(st.characters(codec="utf-8"), max_size=6)

BOOLEANS = [Kind(bool, st.booleans()), Kind(Literal[True], st.just(True))]
NUMBERS = [
    Kind(int, st.integers() | st.integers(2**53, 2**64)),
    Kind(Annotated[int, Field(ge=-3, lt=9)], st.integers(-3, 8)),
    Kind(float, st.floats(allow_nan=False)),
    Kind(Size, st.sampled_from(Size)),
]
STRINGS = [
    Kind(str, words),
    Kind(Path, st.from_regex(r"[a-zé/. ]{1,9}", fullmatch=True).map(Path)),
    Kind(bytes, st.binary(max_size=6)),
    Kind(datetime, st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)),
    Kind(timedelta, st.timedeltas()),
    Kind(Colour, st.sampled_from(Colour)),
    Kind(Mode, st.sampled_from(Mode)),
    Kind(Literal["a", "b"], st.sampled_from(["a", "b"])),
]
SCALARS = [*BOOLEANS, *NUMBERS, *STRINGS, Kind(Mixed, st.sampled_from(Mixed))]
KEYS = [
    Kind(str, words),
    Kind(int, st.integers(-(10**20), 10**20)),
    Kind(Colour, st.sampled_from(Colour)),
    Kind(Size, st.sampled_from(Size)),
    Kind(Mode, st.sampled_from(Mode)),
]


@st.composite
def generated_classes(draw, names=None, depth: int = 3):
    """A registered class of one to five fields."""
    names = names or count()
    cls = draw(_fields(names, depth, Config))
    return configclass(policy="own", version=draw(st.none() | st.integers(1, 3)))(cls)


@st.composite
def generated_configs(draw):
    """A config of a generated class."""
    cls = draw(generated_classes())
    return draw(configs_of(cls))


def configs_of(cls) -> st.SearchStrategy[Any]:
    """The configs of a generated class; fields with a default are given or left out."""
    fields = cls.model_fields.items()
    required = {name: cls.kinds[name].values for name, described in fields if described.is_required()}
    optional = {name: cls.kinds[name].values for name, described in fields if not described.is_required()}
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: cls(**values))


@st.composite
def _fields(draw, names, depth, base):
    kinds = {f"field_{n}": draw(_kinds(names, depth)) for n in range(draw(st.integers(1, 2 + depth)))}
    name = f"Generated{next(names)}"
    body: dict[str, Any] = {"__module__": __name__, "__qualname__": name}
    body["__annotations__"] = {name: kind.annotation for name, kind in kinds.items()}
    for field_name, kind in kinds.items():
        body[field_name] = field(default=draw(kind.values)) if draw(st.booleans()) else field()
    cls = type(base)(name, (base,), body)
    cls.kinds = kinds
    return cls


@st.composite
def _kinds(draw, names, depth):
    makers = [_scalar, _scalar, _secret, _set]
    if depth:
        makers += [_optional, _list, _pair, _mapping, _union, _node, _node, _tagged, _chosen]
    return draw(draw(st.sampled_from(makers))(names, depth - 1))


def _scalar(names, depth):
    return st.sampled_from(SCALARS)


def _secret(names, depth):
    return st.just(Kind(SecretRef | None, st.none() | references))


@st.composite
def _set(draw, names, depth):
    item = draw(st.sampled_from(SCALARS))
    return Kind(frozenset[item.annotation], st.frozensets(item.values, max_size=4))


@st.composite
def _optional(draw, names, depth):
    kind = draw(_kinds(names, depth))
    return Kind(kind.annotation | None, st.none() | kind.values)


@st.composite
def _list(draw, names, depth):
    kind = draw(_kinds(names, depth))
    return Kind(tuple[kind.annotation, ...], st.lists(kind.values, max_size=2).map(tuple))


@st.composite
def _pair(draw, names, depth):
    left, right = draw(_kinds(names, depth)), draw(_kinds(names, depth))
    return Kind(tuple[left.annotation, right.annotation], st.tuples(left.values, right.values))


@st.composite
def _mapping(draw, names, depth):
    key, kind = draw(st.sampled_from(KEYS)), draw(_kinds(names, depth))
    container = draw(st.sampled_from([dict, Mapping]))
    return Kind(container[key.annotation, kind.annotation], st.dictionaries(key.values, kind.values, max_size=2))


@st.composite
def _union(draw, names, depth):
    families = [st.sampled_from(BOOLEANS), st.sampled_from(NUMBERS), st.sampled_from(STRINGS)]
    families += [_list(names, depth), draw(st.sampled_from([_mapping, _node, _tagged]))(names, depth)]
    chosen = draw(st.lists(st.sampled_from(range(len(families))), min_size=2, max_size=3, unique=True))
    arms = [draw(families[index]) for index in chosen]
    annotation, values = arms[0].annotation, arms[0].values
    for arm in arms[1:]:
        annotation, values = annotation | arm.annotation, values | arm.values
    return Kind(annotation, values)


@st.composite
def _node(draw, names, depth):
    cls = configclass(policy="may_change")(draw(_fields(names, depth, Config)))
    return Kind(cls, configs_of(cls))


@st.composite
def _tagged(draw, names, depth):
    left, right = draw(_node(names, depth)), draw(_node(names, depth))
    return Kind(left.annotation | right.annotation, left.values | right.values)


@st.composite
def _chosen(draw, names, depth):
    name = f"Generated{next(names)}"
    base = configclass(type(Config)(name, (Config,), {"__module__": __name__, "__qualname__": name}))
    below = [configclass(policy="per_start")(draw(_fields(names, depth, base))) for _ in range(2)]
    return Kind(base, st.one_of(*map(configs_of, below)))
