"""Overrides `a.b.c=value`: applied by exact path, their text read by the field's type."""

import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, overload

from pydantic_core import PydanticUndefined

from xai_configlib.codec import value_from_json
from xai_configlib.config import CLASS_KEY, Config, class_info, class_of, plain
from xai_configlib.errors import COMMAND_LINE, ConfigError, Problem, did_you_mean, join_path, shown, split_path
from xai_configlib.strict import Refused, bare, describe, element, holds_secret, is_class, is_mapping, is_optional

C = TypeVar("C", bound=Config)


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
    objects by key. The text is read by the field's type: strings, paths, enumerations literally; a nested config as a
    JSON object, or as a bare tag, which stands for that class with its defaults; everything else as JSON. `null` means
    null wherever the field may be null, also for a string. A mapping need not be complete: an override can give a
    required field.
    Raises ConfigError with every override that is wrong; a config is also validated, a mapping is not.
    """
    if isinstance(target, Config):
        return read_overridden(type(target), target.to_dict(), overrides)
    problems = []
    result = dict(target)
    for override in overrides:
        try:
            steps, text = _split(override)
            result = _assigned(cls, result, steps, text, "")
        except _OverrideError as wrong:
            problems.append(wrong.problem)
    if problems:
        raise ConfigError(problems)
    return result


def read_overridden(cls: type[C], mapping: Mapping[str, Any], overrides: Iterable[str], source: str = "config") -> C:
    """The config that a mapping holds once `overrides` are applied.

    Raises ConfigError with every problem, those of the overrides and those of the mapping, named by `source`.
    """
    applied: list[str] = []
    problems: list[Problem] = []
    merged = dict(mapping)
    for override in overrides:
        try:
            merged = apply_overrides(merged, [override], cls=cls)
            applied.append(override)
        except ConfigError as wrong:
            problems += wrong.problems
    try:
        config = cls.from_json(merged, source=source, overridden=overridden_paths(applied))
    except ConfigError as wrong:
        problems += wrong.problems
    else:
        if not problems:
            return config
    raise ConfigError(problems)


def overridden_paths(overrides: Iterable[str]) -> frozenset[str]:
    """The paths that overrides `PATH=TEXT` assign to, as written. Raises ConfigError if one is no such text."""
    try:
        return frozenset(override.partition("=")[0].strip() for override in overrides if _split(override))
    except _OverrideError as wrong:
        raise ConfigError(wrong.problem) from None


def _split(override: str) -> tuple[tuple[str, ...], str]:
    path, equals, text = override.partition("=")
    if not equals:
        raise _OverrideError(shown(path), None, "no override", "write it as a.b.c=value")
    try:
        return split_path(path.strip()), text
    except ValueError as error:
        raise _OverrideError("", None, str(error), "write it as a.b.c=value") from None


def _assigned(annotation: Any, current: Any, steps: tuple[str, ...], text: str, path: str) -> Any:
    """`current`, a JSON value of the type, with the value at `steps` replaced; what is on the way is copied."""
    if not steps:
        return _read(annotation, text, path)
    kind, (step, *rest) = bare(annotation), steps
    if is_class(kind, Config):
        return _assigned_field(kind, current, step, tuple(rest), text, path)
    if get_origin(kind) is tuple:
        return _assigned_entry(kind, current, step, tuple(rest), text, path)
    if is_mapping(kind):
        node = dict(_container(current, Mapping, path) or {})
        key = next((key for key in node if str(key) == step), step)
        node[key] = _assigned(get_args(kind)[1], node.get(key), tuple(rest), text, join_path(path, step))
        return node
    raise _OverrideError(join_path(path, step), None, f"unknown path, {path} has no parts")


def _assigned_field(
    base: type[Config], current: Any, step: str, rest: tuple[str, ...], text: str, path: str
) -> dict[str, Any]:
    node = dict(_container(current, Mapping, path) or {})
    cls = class_of(base, node)
    if isinstance(cls, Refused):
        raise _OverrideError(join_path(path, CLASS_KEY), cls.value, cls.expected, cls.fix)
    names = class_info(cls).names
    # A former name in the file gives way to the name that the override uses.
    node = {key if names.get(key, key) in node else names.get(key, key): item for key, item in node.items()}
    if step not in cls.model_fields:
        raise _OverrideError(join_path(path, step), None, "unknown field", did_you_mean(step, cls.model_fields))
    described = cls.model_fields[step]
    if rest and step not in node:
        default = described.get_default(call_default_factory=True, validated_data={})
        node[step] = None if default is PydanticUndefined else plain(default)
    node[step] = _assigned(described.annotation, node.get(step), rest, text, join_path(path, step))
    return node


def _assigned_entry(kind: Any, current: Any, step: str, rest: tuple[str, ...], text: str, path: str) -> list[Any]:
    entries = list(_container(current, list | tuple, path) or ())
    index = int(step) if step.isascii() and step.isdigit() and len(step) < 10 else len(entries)
    if index >= len(entries):
        has = f"has entries 0 to {len(entries) - 1}" if entries else "is empty"
        raise _OverrideError(join_path(path, step), None, f"unknown entry, {path} {has}")
    entries[index] = _assigned(element(kind, index), entries[index], rest, text, join_path(path, index))
    return entries


def _container(current: Any, kind: Any, path: str) -> Any:
    if current is not None and not isinstance(current, kind):
        raise _OverrideError(path, None, "the file holds a value here that has no parts")
    return current


def _read(annotation: Any, text: str, path: str) -> Any:
    kind = bare(annotation)
    if text == "null" and is_optional(annotation):
        return None
    if is_class(kind, Config) and not text.lstrip().startswith("{"):
        return _named_class(kind, text, path)
    if kind in (str, Path):
        return text
    if is_class(kind, enum.Enum) or get_origin(kind) is Literal:
        return _permitted(kind, text)
    try:
        return value_from_json(text)
    except ValueError as error:
        if kind in (int, float, bool):
            return text  # Validation says what is expected.
        value = None if holds_secret(annotation) or is_class(kind, Config) else shown(text)
        raise _OverrideError(path, value, f"expected {describe(annotation)} in JSON: {error}") from None


def _named_class(base: type[Config], tag: str, path: str) -> dict[str, Any]:
    node = {CLASS_KEY: tag}
    cls = class_of(base, node)
    if isinstance(cls, Refused):
        raise _OverrideError(path, cls.value, cls.expected, cls.fix)
    return node


def _permitted(kind: Any, text: str) -> Any:
    values = [member.value for member in kind] if is_class(kind, enum.Enum) else get_args(kind)
    if text in values:
        return text
    try:
        return value_from_json(text)
    except ValueError:
        return text  # Validation says what is permitted.
