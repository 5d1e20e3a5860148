"""Which types a field may have, and which JSON values stand for each of them."""

import math
import types
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from xai_configlib.secrets import SecretRef
from xai_configlib.spelling import INFINITIES, json_kind, key_text

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    Path: "a path",
    bytes: "bytes in base64",
    datetime: 'a time with its offset, such as "2026-01-31T12:00:00Z"',
    timedelta: 'a duration, such as "PT1H30M"',
    SecretRef: '{"env": NAME} or {"file": PATH}',
}
_KINDS = {bool: "boolean", int: "number", SecretRef: "object"} | dict.fromkeys(
    (str, Path, bytes, datetime, timedelta), "string"
)
_UNCHANGING: dict[Any, str] = {
    list: "tuple[X, ...]",
    Sequence: "tuple[X, ...]",
    set: "frozenset[X]",
    AbstractSet: "frozenset[X]",
}


def bare(annotation: Any) -> Any:
    """The annotation without `Annotated` and without `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if is_union(annotation):
        arms = [arm for arm in get_args(annotation) if arm is not type(None)]
        return bare(arms[0]) if len(arms) == 1 else annotation
    return annotation


def is_optional(annotation: Any) -> bool:
    """Whether null is a value of the type."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return is_union(annotation) and type(None) in get_args(annotation)


def is_union(annotation: Any) -> bool:
    """Whether the annotation is X | Y, or X | None."""
    return get_origin(annotation) in (Union, types.UnionType)


def arms(annotation: Any) -> tuple[Any, ...]:
    """The types that a union chooses from, without null; one for a type that is no union."""
    annotation = bare(annotation)
    if not is_union(annotation):
        return (annotation,)
    return tuple(arm for arm in get_args(annotation) if arm is not type(None))


def config_arms(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The config classes among the arms."""
    return tuple(arm for arm in map(bare, arms(annotation)) if is_class(arm, BaseModel))


def is_class(annotation: Any, base: type | tuple[type, ...]) -> bool:
    """Whether the annotation is a plain class below `base`."""
    return isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, base)


def is_mapping(annotation: Any) -> bool:
    """Whether the annotation is dict[K, V] or Mapping[K, V]."""
    return get_origin(annotation) in (dict, Mapping)


def element(annotation: Any, index: int) -> Any:
    """The type of an entry of a tuple or a frozenset."""
    arguments = get_args(annotation)
    return arguments[index] if has_fixed_length(annotation) else arguments[0]


def has_fixed_length(annotation: Any) -> bool:
    """Whether the annotation is tuple[X, Y], not tuple[X, ...]."""
    return get_origin(annotation) is tuple and get_args(annotation)[-1] is not Ellipsis


def is_enumeration(annotation: Any) -> bool:
    """Whether the annotation is an Enum or a Literal."""
    return get_origin(annotation) is Literal or is_class(annotation, Enum)


def permitted(annotation: Any) -> tuple[Any, ...]:
    """The JSON values of an Enum or a Literal."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(member.value for member in annotation)


def parts(annotation: Any) -> Iterator[Any]:
    """The bare type, and every type inside it."""
    annotation = bare(annotation)
    yield annotation
    if get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            if argument not in (Ellipsis, type(None)):
                yield from parts(argument)


def holds_secret(annotation: Any) -> bool:
    """Whether a value of the type may hold a SecretRef outside nested configs."""
    return SecretRef in parts(annotation)


def claims(annotation: Any) -> dict[str, frozenset[Any] | None]:
    """JSON kind -> the values of this kind that stand for the type; None: all of them may."""
    annotation = bare(annotation)
    if is_enumeration(annotation):
        values = permitted(annotation)
        return {kind: frozenset(v for v in values if json_kind(v) == kind) for kind in map(json_kind, values)}
    if get_origin(annotation) in (tuple, frozenset):
        return {"list": None}
    if annotation is float:
        return {"number": None, "string": frozenset(INFINITIES)}
    return {_KINDS.get(annotation, "object"): None}


def check_type(annotation: Any) -> None:
    """Raises TypeError, saying which types there are, if a field cannot have the type or hold it."""
    for part in parts(annotation):
        kind = get_origin(part) or part
        if kind in _UNCHANGING:
            raise TypeError(f"{name_of(part)} can be changed: use {_UNCHANGING[kind]}")
        if len(arms(part)) > 1:
            _check_union(part)
        elif is_enumeration(part):
            _check_enumeration(part)
        elif kind is frozenset and get_args(part):
            _check_set(part)
        elif is_mapping(part):
            _check_key(bare(get_args(part)[0]), part)
        elif not (part in _WORDS or is_class(part, BaseModel) or (kind is tuple and get_args(part))):
            raise TypeError(
                f"{name_of(part)} is no config type: use bool, int, float, str, Path, bytes, datetime, timedelta, SecretRef, "
                "an Enum, Literal, a config class, tuple[X, ...], tuple[X, Y], frozenset[X], dict[K, X] with int, str or "
                "Enum keys, a union of these that JSON tells apart, or one of these | None"
            )


def _check_union(union: Any) -> None:
    if SecretRef in map(bare, arms(union)):
        raise TypeError(f"{name_of(union)}: a secret is a reference or null, nothing else beside it")
    for a, b in combinations(arms(union), 2):
        if is_optional(a) or is_optional(b):
            raise TypeError(f"{name_of(union)}: write | None at the end, not inside Annotated")
        if is_class(bare(a), BaseModel) and is_class(bare(b), BaseModel):
            continue  # `__class` tells them apart.
        ours, theirs = claims(a), claims(b)
        for kind in ours.keys() & theirs.keys():
            if _overlap(ours[kind], theirs[kind]):
                raise TypeError(
                    f"{name_of(union)}: JSON cannot tell {name_of(a)} from {name_of(b)}, it writes both as {kind}; keep one"
                )


def _overlap(ours: frozenset[Any] | None, theirs: frozenset[Any] | None) -> bool:
    if ours is not None and theirs is not None:
        return bool(ours & theirs)
    # The two spellings of infinity are the number wherever a field takes both numbers and text.
    return (theirs if ours is None else ours) != frozenset(INFINITIES)


def _check_enumeration(part: Any) -> None:
    for value in permitted(part):
        if type(value) not in (bool, int, str) and not (type(value) is float and math.isfinite(value)):
            raise TypeError(
                f"{name_of(part)}: {value!r} is no value that JSON writes; use strings, numbers or booleans"
            )


def _check_set(part: Any) -> None:
    for item in parts(get_args(part)[0]):
        if item is SecretRef or not (item in _WORDS or is_enumeration(item) or len(arms(item)) > 1):
            raise TypeError(f"{name_of(part)}: a frozenset holds plain values; use tuple[X, ...]")


def _check_key(key: Any, mapping: Any) -> None:
    if key in (int, str):
        return
    if not is_class(key, Enum) or not all(type(value) in (str, int) for value in permitted(key)):
        raise TypeError(f"{name_of(mapping)}: a key is an int, a str, or an Enum of them")
    if len(set(map(key_text, key))) != len(key):
        raise TypeError(f"{name_of(mapping)}: two keys of {key.__name__} are written alike")


def words_of(annotation: Any) -> str:
    """The type in plain words, as in `expected ...`."""
    null = " or null" if is_optional(annotation) else ""
    if len(arms(annotation)) > 1:
        return " or ".join(dict.fromkeys(map(words_of, arms(annotation)))) + null
    annotation = bare(annotation)
    if is_enumeration(annotation):
        return "one of " + ", ".join(map(str, permitted(annotation))) + null
    if get_origin(annotation) in (tuple, frozenset):
        return "a list" + null
    return _WORDS.get(annotation, "an object") + null


def name_of(annotation: Any) -> str:
    """The type as its source writes it."""
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
