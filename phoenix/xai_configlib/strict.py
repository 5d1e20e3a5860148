"""The strictness that pydantic lacks: which types a field may have, and which JSON values stand for them.

pydantic validates in its strict mode. `shaped` only turns a JSON value into the Python value that it stands for without
doubt (a list for a tuple, 4.0 for an integer field, "0" for an integer key); whatever else it finds it passes on, and
pydantic refuses it. Where we know better words than pydantic, `Refused` carries them through it.
"""

import enum
import math
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from xai_configlib.errors import did_you_mean, shown
from xai_configlib.secrets import SecretRef

SCALARS = (bool, int, float, str, Path, SecretRef)
SECRET_EXPECTED = 'expected {"env": NAME} or {"file": PATH}, a secret is never written into a config'
UNWRITABLE = "holds characters that UTF-8 cannot write"
_SURROGATE = re.compile("[\ud800-\udfff]")
_INT_KEY = re.compile(r"(0|-?[1-9][0-9]{0,99})\Z")
_EXACT_INTEGERS = 2**53


@dataclass(frozen=True, eq=False)
class Refused:
    """Stands in the data where a value is wrong or missing; no type accepts it, so pydantic reports it there."""

    value: str | None
    """The value as it may be shown; None: there is none, or it may be a secret."""
    expected: str
    fix: str = ""


class FrozenDict(dict):
    """A dict that cannot be changed and is hashable: the value of every mapping field."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a config cannot be changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = _refuse
    setdefault = update = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def bare(annotation: Any) -> Any:
    """The annotation without `Annotated` and without `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        arms = [arm for arm in get_args(annotation) if arm is not type(None)]
        return bare(arms[0]) if len(arms) == 1 else annotation
    return annotation


def is_optional(annotation: Any) -> bool:
    """Whether null is a value of the type."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


def is_class(annotation: Any, base: type | tuple[type, ...]) -> bool:
    """Whether the annotation is a plain class below `base`."""
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, base)


def is_mapping(annotation: Any) -> bool:
    """Whether the annotation is dict[K, V] or Mapping[K, V]."""
    return get_origin(annotation) in (dict, Mapping)


def element(annotation: Any, index: int) -> Any:
    """The type of a tuple's entry."""
    arguments = get_args(annotation)
    return arguments[0] if arguments[-1] is Ellipsis else arguments[index]


def parts(annotation: Any) -> Iterator[Any]:
    """The bare type, and every type inside it."""
    annotation = bare(annotation)
    yield annotation
    if get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            if argument is not Ellipsis:
                yield from parts(argument)


def holds_secret(annotation: Any) -> bool:
    """Whether a value of the type may hold a SecretRef outside nested configs."""
    return SecretRef in parts(annotation)


def check_type(annotation: Any) -> None:
    """Raises TypeError, saying which types there are, if a field cannot have the type or hold it."""
    for part in parts(annotation):
        if part in SCALARS or is_class(part, (enum.Enum, BaseModel)) or get_origin(part) is Literal:
            continue
        if get_origin(part) is tuple and get_args(part):
            continue
        if is_mapping(part) and get_args(part)[0] in (int, str):
            continue
        raise TypeError(
            f"{part} is no config type: use bool, int, float, str, Path, SecretRef, an Enum, Literal, a config class, "
            "tuple[X, ...], tuple[X, Y], dict[str, X], dict[int, X], or one of these | None"
        )


def describe(annotation: Any) -> str:
    """The type in plain words, as in `expected ...`."""
    null = " or null" if is_optional(annotation) else ""
    annotation = bare(annotation)
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(str, get_args(annotation))) + null
    if is_class(annotation, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in annotation) + null
    if get_origin(annotation) is tuple:
        return "a list" + null
    if is_mapping(annotation) or is_class(annotation, BaseModel):
        return "an object" + null
    words: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    return words.get(annotation, '{"env": NAME} or {"file": PATH}' if annotation is SecretRef else "a path") + null


def shaped(annotation: Any, value: Any) -> Any:
    """The Python value that a JSON value stands for in a field of this type; itself where it stands for none."""
    annotation = bare(annotation)
    if value is None or isinstance(value, Refused) or is_class(annotation, BaseModel):
        return value
    if get_origin(annotation) is tuple:
        return _shaped_tuple(annotation, value)
    if is_mapping(annotation):
        return _shaped_mapping(annotation, value)
    if get_origin(annotation) is Literal:
        return _member(value, get_args(annotation))
    if is_class(annotation, enum.Enum):
        return value if isinstance(value, annotation) else _enum_member(annotation, value)
    if annotation is SecretRef:
        return value if isinstance(value, SecretRef) else SecretRef.from_value(value) or Refused(None, SECRET_EXPECTED)
    if annotation is str:
        return value if is_writable(value) else Refused(shown(value), UNWRITABLE)
    if annotation is Path:
        return _path(value)
    if annotation is int and isinstance(value, float):
        return _integer(value)
    if annotation is float:
        return _number(value)
    return value


def is_writable(value: Any) -> bool:
    """Whether UTF-8 can write it: JSON can spell halves of surrogate pairs, which are no text."""
    return not isinstance(value, str) or value.isascii() or not _SURROGATE.search(value)


def _path(value: Any) -> Any:
    if not isinstance(value, str | Path) or value == "":
        return Refused(shown(value), "expected a path")
    return Path(value) if is_writable(str(value)) else Refused(shown(str(value)), UNWRITABLE)


def _integer(value: float) -> Any:
    if not value.is_integer():
        return Refused(shown(value), "expected an integer")
    if abs(value) > _EXACT_INTEGERS:
        return Refused(shown(value), "expected an integer", "write it in digits, a float is not exact here")
    return int(value)


def _number(value: Any) -> Any:
    if isinstance(value, str) and value in ("Infinity", "-Infinity"):
        return math.inf if value == "Infinity" else -math.inf
    if isinstance(value, float) and math.isnan(value):
        return Refused("NaN", "expected a number")
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return Refused(shown(value), "expected a number that a 64-bit float can hold")
    return value


def _shaped_tuple(annotation: Any, value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return Refused(None, "expected a list of references to secrets") if holds_secret(annotation) else value
    arguments = get_args(annotation)
    if arguments[-1] is not Ellipsis and len(value) != len(arguments):
        return Refused(None, f"expected a list of {len(arguments)} entries, found {len(value)}")
    return tuple(shaped(element(annotation, index), item) for index, item in enumerate(value))


def _shaped_mapping(annotation: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return Refused(None, "expected an object of references to secrets") if holds_secret(annotation) else value
    if not all(map(is_writable, value)):
        return Refused(None, f"a key {UNWRITABLE}")
    key_type, value_type = get_args(annotation)
    result = {}
    for key, item in value.items():
        is_number = key_type is int and isinstance(key, str) and _INT_KEY.match(key) and int(key) not in value
        result[int(key) if is_number else key] = shaped(value_type, item)
    return result


def _member(value: Any, permitted: tuple[Any, ...]) -> Any:
    for candidate in permitted:
        same_kind = type(candidate) is type(value) or {type(candidate), type(value)} == {int, float}
        if same_kind and candidate == value:
            return candidate
    fix = did_you_mean(value, map(str, permitted)) or _other_case(value, permitted)
    return Refused(shown(value), "expected one of " + ", ".join(map(str, permitted)), fix)


def _enum_member(kind: type[enum.Enum], value: Any) -> Any:
    found = _member(value, tuple(member.value for member in kind))
    return found if isinstance(found, Refused) else kind(found)


def _other_case(value: Any, permitted: tuple[Any, ...]) -> str:
    same = [str(name) for name in permitted if isinstance(value, str) and str(name).lower() == value.lower()]
    return f"did you mean {same[0]}?" if same else ""


def frozen(value: Any) -> Any:
    """The value with every dict in it made a FrozenDict."""
    if isinstance(value, dict):
        return FrozenDict({key: frozen(item) for key, item in value.items()})
    return tuple(map(frozen, value)) if isinstance(value, tuple) else value
