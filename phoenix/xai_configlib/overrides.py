"""Overrides `a.b.c=value`: applied by exact path, their text read by the field's type."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, overload

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from xai_configlib.annotations import (
    arms,
    bare,
    claims,
    config_arms,
    element,
    holds_secret,
    is_enumeration,
    is_mapping,
    is_optional,
    permitted,
    words_of,
)
from xai_configlib.codec import value_from_json
from xai_configlib.config import Config, Unknown, plain, unknown_fields
from xai_configlib.errors import COMMAND_LINE, ConfigError, Problem, Refused, did_you_mean, join_path, shown, split_path
from xai_configlib.migrations import migrate
from xai_configlib.registry import (
    CLASS_KEY,
    class_info,
    class_of,
    field_names,
    may_hold_secret,
    permitted_classes,
)
from xai_configlib.spelling import json_kind

C = TypeVar("C", bound=Config)
_TEXTS = (str, Path, bytes, datetime, timedelta)
_NAME = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)")
_PATH_LETTERS = re.compile(r"[A-Za-z0-9_.\[\]-]*")


class _OverrideError(Exception):
    """What is wrong with one override."""

    def __init__(self, path: str, value: str | None, expected: str, fix: str = "") -> None:
        self.problem = Problem(COMMAND_LINE, path, value, expected, fix)


@overload
def apply_overrides(target: C, overrides: Iterable[str]) -> C: ...
@overload
def apply_overrides(
    target: Mapping[str, Any], overrides: Iterable[str], *, cls: type[Config] = Config
) -> dict[str, Any]: ...
def apply_overrides(target: Any, overrides: Iterable[str], *, cls: type[Config] = Config) -> Any:
    """The config, or the mapping of a file still to be read as `cls`, with overrides `PATH=TEXT` applied in order.

    The path must exist: fields by name, entries of lists by index (`features.0.column` or `features[0].column`), of
    objects by key. The text is read by the field's type: whatever JSON writes as a string, and enumerations, literally;
    a nested config as a JSON object, or as a bare tag, which stands for that class with its defaults; a union as JSON
    where that is of one of its types, else literally; everything else as JSON. `null` means null wherever the field may
    be null, also for a string. A mapping need not be complete: an override can give a required field. One of an earlier
    version is migrated first; overrides use today's names.
    Raises ConfigError with every override that is wrong; a config is also validated, a mapping is not.
    """
    if isinstance(target, Config):
        return overridden_config(target, target.to_dict(), overrides)
    problems = []
    result = migrate(cls, target)
    for override in overrides:
        try:
            steps, text = _split(override)
            result = _assigned(cls, result, steps, text, "")
        except _OverrideError as wrong:
            problems.append(wrong.problem)
    if problems:
        raise ConfigError(problems)
    return result


def read_overridden(
    cls: type[C],
    mapping: Mapping[str, Any],
    overrides: Iterable[str],
    source: str = "config",
    *,
    unknown: Unknown = "error",
    say: Callable[[str], object] = warnings.warn,
) -> C:
    """The config that a mapping holds once `overrides` are applied; `unknown` and `say` as in `Config.from_json`.

    Raises ConfigError with every problem, those of the overrides and those of the mapping, named by `source`.
    """
    applied: list[str] = []
    problems: list[Problem] = []
    merged = migrate(cls, mapping, source)
    for override in overrides:
        try:
            merged = apply_overrides(merged, [override], cls=cls)
            applied.append(override)
        except ConfigError as wrong:
            problems += wrong.problems
    try:
        paths = overridden_paths(applied)
        config = cls.from_json(merged, source=source, overridden=paths, unknown=unknown, say=say)
    except ConfigError as wrong:
        problems += wrong.problems
    else:
        if not problems:
            return config
    raise ConfigError(problems)


def overridden_config(config: C, mapping: Mapping[str, Any], overrides: Iterable[str] = ()) -> C:
    """The config that a mapping made of `config` holds; unknown fields stay, without a word, where `config` has some."""
    unknown: Unknown = "keep" if any(unknown_fields(config)) else "error"
    return read_overridden(type(config), mapping, overrides, unknown=unknown, say=lambda line: None)


def overridden_paths(overrides: Iterable[str]) -> frozenset[str]:
    """The paths that overrides `PATH=TEXT` assign to, as written. Raises ConfigError if one is no such text."""
    try:
        return frozenset(override.partition("=")[0].strip() for override in overrides if _split(override))
    except _OverrideError as wrong:
        raise ConfigError(wrong.problem) from None


def _split(override: str) -> tuple[tuple[str, ...], str]:
    path, equals, text = override.partition("=")
    if not equals:
        raise _OverrideError(_named_part(override), None, "no override", "write it as a.b.c=value")
    try:
        return split_path(path.strip()), text
    except ValueError:
        begins = _path_letters(path.strip())
        raise _OverrideError("", None, f"{begins} is no path of dotted names", "write it as a.b.c=value") from None


def _path_letters(text: str) -> str:
    """The text up to the first letter that no path has, as it is shown: what follows may be a value, or a secret."""
    end = _PATH_LETTERS.match(text).end()  # type: ignore[union-attr]  (it matches nothing too)
    return shown(text if end == len(text) else f"{text[:end]}…")


def _named_part(word: str) -> str:
    """The names of fields with which a word begins; what follows them, or has no such name, may be a secret."""
    known, end = field_names(), 0
    while (step := _NAME.match(word, end)) and step[1] in known:
        end = step.end()
    return word[:end]


def _assigned(annotation: Any, current: Any, steps: tuple[str, ...], text: str, path: str) -> Any:
    """`current`, a JSON value of the type, with the value at `steps` replaced; what is on the way is copied."""
    if not steps:
        return _read(annotation, text, path)
    classes, choices, (step, *rest) = config_arms(annotation), list(map(bare, arms(annotation))), steps
    lists = [arm for arm in choices if get_origin(arm) is tuple]
    if lists and (len(choices) == 1 or isinstance(current, list | tuple)):
        return _assigned_entry(lists[0], current, step, tuple(rest), text, path)
    if classes:
        return _assigned_field(classes, current, step, tuple(rest), text, path)
    for mapping in filter(is_mapping, choices):
        node = dict(_container(current, Mapping, path) or {})
        key = next((key for key in node if str(key) == step), step)
        node[key] = _assigned(get_args(mapping)[1], node.get(key), tuple(rest), text, join_path(path, step))
        return node
    where = path if holds_secret(annotation) else join_path(path, step)
    raise _OverrideError(where, None, f"unknown path, {path} has no parts", f"end the path at {path}")


def _assigned_field(
    bases: tuple[type[BaseModel], ...], current: Any, step: str, rest: tuple[str, ...], text: str, path: str
) -> dict[str, Any]:
    node = dict(_container(current, Mapping, path) or {})
    cls = class_of(bases, node)
    if isinstance(cls, Refused):
        raise _OverrideError(join_path(path, CLASS_KEY), cls.value, cls.expected, cls.fix)
    names = class_info(cls).names
    # A former name in the file gives way to the name that the override uses.
    node = {key if names.get(key, key) in node else names.get(key, key): item for key, item in node.items()}
    if step == CLASS_KEY:
        raise _OverrideError(join_path(path, step), None, "unknown field", _class_override(bases, path, text))
    if step not in cls.model_fields:
        raise _unknown_field(cls, step, path)
    described = cls.model_fields[step]
    if rest and step not in node:
        default = described.get_default(call_default_factory=True, validated_data={})
        node[step] = None if default is PydanticUndefined else plain(default)
    try:
        node[step] = _assigned(described.annotation, node.get(step), rest, text, join_path(path, step))
    except _OverrideError as wrong:
        if class_info(cls).holds_secrets:
            wrong.problem = replace(wrong.problem, value=None)  # The secret may have been given to the wrong field.
        raise
    return node


def _class_override(bases: tuple[type[BaseModel], ...], path: str, text: str) -> str:
    """What to write instead of PATH.__class=TEXT."""
    choices = permitted_classes(*bases)
    if not path:
        return "leave it out"
    return f"write {path}={text}" if text in choices else f"write {path}=CLASS with one of {', '.join(choices)}"


def _unknown_field(cls: type[BaseModel], step: str, path: str) -> _OverrideError:
    name = step
    if class_info(cls).holds_secrets:
        # As in `password:...=`: what follows the name may be the secret.
        begins = _NAME.match(step)
        name = begins[1] if begins else ""
    where = join_path(path, name) if name else path
    if name in cls.model_fields:
        return _OverrideError(where, None, "unknown field", f"write it as {where}=value")
    return _OverrideError(where, None, "unknown field", did_you_mean(step, cls.model_fields))


def _assigned_entry(kind: Any, current: Any, step: str, rest: tuple[str, ...], text: str, path: str) -> list[Any]:
    entries = list(_container(current, list | tuple, path) or ())
    is_number = step.isascii() and step.isdigit()
    index = int(step) if is_number and len(step) < 10 else len(entries)
    if index >= len(entries):
        where = f"{path}[{step}]" if is_number else join_path(path, step)
        has = f"has entries 0 to {len(entries) - 1}" if entries else "is empty"
        fix = "an override adds no entry; give the whole list"
        raise _OverrideError(where, None, f"unknown entry, {path} {has}", fix)
    entries[index] = _assigned(element(kind, index), entries[index], rest, text, join_path(path, index))
    return entries


def _container(current: Any, kind: Any, path: str) -> Any:
    if current is not None and not isinstance(current, kind):
        fix = "make it an object in the file" if kind is Mapping else "make it a list in the file"
        raise _OverrideError(path, None, "the file holds a value here that has no parts", fix)
    return current


def _read(annotation: Any, text: str, path: str) -> Any:
    classes, choices, kind = config_arms(annotation), arms(annotation), bare(annotation)
    if text == "null" and is_optional(annotation):
        return None
    if len(classes) == len(choices) and not text.lstrip().startswith("{"):
        return _named_class(annotation, text, path)
    if len(choices) > 1 and len(classes) < len(choices):
        return _read_union(annotation, text)
    if kind in _TEXTS:
        return text
    if is_enumeration(kind):
        return text if text in permitted(kind) else _json_or_text(text)  # Validation says what is permitted.
    try:
        return value_from_json(text)
    except ValueError as error:
        if kind in (int, float, bool):
            return text  # Validation says what is expected.
        value = None if may_hold_secret(annotation) or classes else shown(text)
        raise _OverrideError(path, value, f"expected {words_of(annotation)} in JSON: {error}") from None


def _read_union(annotation: Any, text: str) -> Any:
    classes = config_arms(annotation)
    if classes and text in permitted_classes(*classes):
        return {CLASS_KEY: text}
    value = _json_or_text(text)
    return value if any(json_kind(value) in claims(arm) for arm in arms(annotation)) else text


def _json_or_text(text: str) -> Any:
    try:
        return value_from_json(text)
    except ValueError:
        return text


def _named_class(annotation: Any, text: str, path: str) -> dict[str, Any]:
    node, bases = {CLASS_KEY: text}, config_arms(annotation)
    if isinstance(class_of(bases, node), Refused):
        # What is given for a section stands for all that nests in it.
        value = None if may_hold_secret(annotation) else shown(_json_or_text(text))
        choices, null = permitted_classes(*bases), "null, " if is_optional(annotation) else ""
        expected = f"expected {null}an object in JSON, or the name of a class: {', '.join(choices)}"
        raise _OverrideError(path, value, expected, did_you_mean(text, choices))
    return node
