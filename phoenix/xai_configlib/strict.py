"""The strictness that pydantic lacks: which JSON value stands for which Python value.

pydantic validates in its strict mode. `shaped` only turns a JSON value into the Python value that it stands for without
doubt (a list for a tuple, 4.0 for an integer field, "0" for an integer key); whatever else it finds it passes on, and
pydantic refuses it. Where we know better words than pydantic, `Refused` carries them through it; where a union chooses
by the JSON type, `Arm` carries the choice.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from xai_configlib.annotations import (
    arms,
    bare,
    claims,
    config_arms,
    element,
    has_fixed_length,
    holds_secret,
    is_class,
    is_enumeration,
    is_mapping,
    is_optional,
    permitted,
    words_of,
)
from xai_configlib.arm import Arm, key_for, label_of
from xai_configlib.codec import is_writable
from xai_configlib.errors import NotEvenNull, Refused, did_you_mean, kind_of, shown
from xai_configlib.registry import class_of, may_hold_secret
from xai_configlib.scalars import READERS, UNWRITABLE
from xai_configlib.spelling import INT_KEY, json_kind, key_text

_HASHABLE = (type(None), bool, int, float, str, bytes, Path, datetime, timedelta, Enum)


class FrozenDict(dict):
    """A dict that cannot be changed and is hashable, its keys in canonical order: the value of every mapping field."""

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a config cannot be changed")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = _refuse
    setdefault = update = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def shaped(annotation: Any, value: Any) -> Any:
    """The Python value that a JSON value stands for in a field of this type; itself where it stands for none."""
    if value is None and is_optional(annotation):
        return None
    if len(arms(annotation)) > 1:
        return _shaped_union(annotation, value)
    return _or_null(annotation, value) if is_optional(annotation) else _shaped_one(annotation, value)


def _or_null(annotation: Any, value: Any) -> Any:
    """As `shaped`; where the value is of another type, the words name null too."""
    kind = bare(annotation)
    read = _shaped_one(kind, value)
    if isinstance(read, Refused):
        is_type = read.expected == f"expected {words_of(kind)}"
        return replace(read, expected=f"expected {words_of(annotation)}") if is_type else read
    if isinstance(value, BaseModel) or _claims(kind, value):
        return read
    if is_class(kind, BaseModel):
        return Refused(None, f"expected an object or null, found {kind_of(value)}")
    return NotEvenNull(value)


def _shaped_one(annotation: Any, value: Any) -> Any:
    if is_class(annotation, BaseModel):
        return value
    if value is None:
        return Refused("null", f"expected {words_of(annotation)}")
    if get_origin(annotation) in (tuple, frozenset):
        return _shaped_list(annotation, value)
    if is_mapping(annotation):
        return _shaped_mapping(annotation, value)
    if is_enumeration(annotation):
        return _member(annotation, value)
    reader = READERS.get(annotation)
    return reader(value) if reader else value


def frozen(value: Any) -> Any:
    """The value with every mapping in it made a FrozenDict, and every list a tuple."""
    if isinstance(value, Mapping):
        return FrozenDict({key: frozen(value[key]) for key in sorted(value, key=key_text)})
    return tuple(map(frozen, value)) if isinstance(value, tuple | list) else value


def _shaped_union(annotation: Any, value: Any) -> Any:
    classes, choices = config_arms(annotation), arms(annotation)
    if classes and isinstance(value, BaseModel | Mapping):
        target = type(value) if isinstance(value, BaseModel) else class_of(classes, value)
        if isinstance(target, Refused):
            return target
        fits = [
            index for index, arm in enumerate(choices) if is_class(bare(arm), BaseModel) and issubclass(target, arm)
        ]
    else:
        fits = [index for index, arm in enumerate(choices) if _claims(arm, value)]
    if fits:
        # An enumerated spelling before the type that takes any text: "Infinity" is a number where both fit.
        index = min(fits, key=lambda index: claims(choices[index]).get(json_kind(value)) is None)
        return Arm(label_of(index), shaped(choices[index], value))
    fix = did_you_mean(value, [str(v) for arm in map(bare, choices) if is_enumeration(arm) for v in permitted(arm)])
    return Refused(None if may_hold_secret(annotation) else shown(value), f"expected {words_of(annotation)}", fix)


def _claims(arm: Any, value: Any) -> bool:
    kind, claimed = json_kind(value), claims(arm)
    if kind not in claimed:
        return False
    values = claimed[kind]
    return values is None or (value.value if isinstance(value, Enum) else value) in values


def _shaped_list(annotation: Any, value: Any) -> Any:
    is_set = get_origin(annotation) is frozenset
    if not isinstance(value, list | tuple | set | frozenset if is_set else list | tuple):
        if holds_secret(annotation):
            return Refused(None, "expected a list of references to secrets")
        return Refused(None if may_hold_secret(annotation) else shown(value), "expected a list")
    if has_fixed_length(annotation) and len(value) != len(get_args(annotation)):
        return Refused(None, f"expected a list of {len(get_args(annotation))} entries, found {len(value)}")
    entries = tuple(shaped(element(annotation, index), item) for index, item in enumerate(value))
    return _without_twins(entries) if is_set else entries


def _without_twins(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    seen, result = set(), []
    for entry in entries:
        value = entry.value if isinstance(entry, Arm) else entry
        is_twin = isinstance(value, _HASHABLE) and value in seen
        result.append(Refused(shown(value), "stands twice in a set", "remove it") if is_twin else entry)
        if isinstance(value, _HASHABLE):
            seen.add(value)
    return tuple(result)


def _shaped_mapping(annotation: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        if holds_secret(annotation):
            return Refused(None, "expected an object of references to secrets")
        return Refused(None, "expected an object") if may_hold_secret(annotation) else value
    if not all(map(is_writable, value)):
        return Refused(None, f"a key {UNWRITABLE}")
    key_type, value_type = get_args(annotation)
    result: dict[Any, Any] = {}
    for key, item in value.items():
        read = _key(bare(key_type), key)
        result[read] = Refused(None, "the key stands twice", "keep one") if read in result else shaped(value_type, item)
    return result


def _key(key_type: Any, key: Any) -> Any:
    """The key that a text stands for; the text itself, which pydantic refuses, where it is none."""
    if is_class(key_type, Enum) and isinstance(key, str | int | key_type):
        texts = {key_text(member): member for member in key_type}
        text = key_text(key)
        return key_for(text, texts[text] if text in texts else _not_among(texts, key))
    return int(key) if key_type is int and isinstance(key, str) and re.fullmatch(INT_KEY, key) else key


def _member(annotation: Any, value: Any) -> Any:
    if is_class(annotation, Enum) and isinstance(value, annotation):
        return value
    values = permitted(annotation)
    for candidate in values:
        same_kind = type(candidate) is type(value) or {type(candidate), type(value)} == {int, float}
        if same_kind and candidate == value:
            return annotation(candidate) if is_class(annotation, Enum) else candidate
    return _not_among(map(str, values), value)


def _not_among(names: Iterable[str], value: Any) -> Refused:
    names = list(names)
    same = [name for name in names if isinstance(value, str) and name.lower() == value.lower()]
    fix = did_you_mean(value, names) or (f"did you mean {same[0]}?" if same else "")
    return Refused(shown(value), "expected one of " + ", ".join(names), fix)
