"""pydantic's errors in plain words, with paths as this library writes them."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from xai_configlib.errors import COMMAND_LINE, Problem, is_at_or_below, join_path, shown, split_path
from xai_configlib.strict import Refused

_WORDS = {
    "bool_type": "expected true or false",
    "dict_type": "expected an object",
    "float_type": "expected a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "expected an integer",
    "is_instance_of": "expected {class}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "mapping_type": "expected an object",
    "model_type": "expected {class_name}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "expected a string",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "tuple_type": "expected a list",
}
_QUOTED = {
    "bool_type": re.compile(r"(true|false)\Z"),
    "int_type": re.compile(r"-?[0-9]+\Z"),
    "float_type": re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?\Z"),
}
_KEY_MARK = "[key]"


def problems_of(
    error: ValidationError, data: Any, source: str, overridden: Collection[str] = ()
) -> tuple[Problem, ...]:
    """One Problem for each error that pydantic found in `data`, in its order."""
    overrides = [split_path(path) for path in overridden]
    return tuple(_problem(item, data, source, overrides) for item in error.errors(include_url=False))


def _problem(item: Any, data: Any, source: str, overrides: Collection[Sequence[str]]) -> Problem:
    steps, value = item["loc"], item["input"]
    is_key = bool(steps) and steps[-1] == _KEY_MARK
    path = join_path(_path(steps[:-2], data), str(steps[-2]), quoted=True) if is_key else _path(steps, data)
    if overrides and is_at_or_below([str(step) for step in steps], overrides):
        source = COMMAND_LINE
    if isinstance(value, Refused):
        return Problem(source, path, value.value, value.expected, value.fix)
    context = item.get("ctx", {})
    if item["type"] in ("value_error", "assertion_error"):  # raised by a validator of a config class, in its own words
        words = " ".join(str(context["error"]).split())
        return Problem(source, path, None if isinstance(value, Mapping) else shown(value), words)
    words = _WORDS.get(item["type"], "{msg}").format(msg=item["msg"], **context)
    if is_key:
        return Problem(source, path, None, f"{words} as key")
    return Problem(source, path, shown(value), words, _fix(item["type"], value))


def _fix(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, int | float) and not isinstance(value, bool):
        return "write it in quotes"
    if isinstance(value, str) and kind in _QUOTED and _QUOTED[kind].match(value):
        return "write it without quotes"
    return ""


def _path(steps: Sequence[str | int], data: Any) -> str:
    path = ""
    for step in steps:
        is_index = isinstance(step, int) and not isinstance(data, Mapping)
        path = join_path(path, step if is_index else str(step))
        data = _child(data, step)
    return path


def _child(data: Any, step: str | int) -> Any:
    if isinstance(data, Mapping):
        return data.get(step, data.get(str(step)))
    if isinstance(data, list | tuple) and isinstance(step, int) and step < len(data):
        return data[step]
    return getattr(data, str(step), None)
