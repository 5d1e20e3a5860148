"""pydantic's errors in plain words, with paths as this library writes them."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from xai_configlib.arm import ARM_MARK
from xai_configlib.errors import (
    COMMAND_LINE,
    SHOWN_CHARACTERS,
    NotEvenNull,
    Problem,
    Refused,
    is_at_or_below,
    join_path,
    shown,
    split_path,
)
from xai_configlib.registry import pattern_words
from xai_configlib.spelling import written

_WORDS = {
    "bytes_too_long": "must have at most {max_length} bytes",
    "bytes_too_short": "must have at least {min_length} bytes",
    "bool_type": "expected true or false",
    "dict_type": "expected an object",
    "float_type": "expected a number",
    "frozen_set_type": "expected a list",
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
_LONG_RUN = re.compile(rf"\S{{{SHOWN_CHARACTERS + 1},}}")
SHOWN_WORDS = 2_000
_KEY_MARK = "[key]"
_NO_SECRETS = ("null", "true", "false", "{…}", "{}", "[…]", "[]")
"""Values as they are shown that tell nothing of what was given."""


def problems_of(
    error: ValidationError, data: Any, source: str, overridden: Collection[str] = ()
) -> tuple[Problem, ...]:
    """One Problem for each error that pydantic found in `data`, in its order."""
    overrides = [split_path(path) for path in overridden]
    return tuple(_problem(item, data, source, overrides) for item in error.errors(include_url=False))


def refusal(refused: Refused) -> ValidationError:
    """The error that brings a Refused through pydantic."""
    return ValidationError.from_exception_data("config", [_details(refused, ())])


def without_values(error: ValidationError) -> ValidationError:
    """The errors of a class that holds secrets, with no value that may be one: it may stand in the wrong field."""
    details = []
    for item in error.errors(include_url=False):
        refused = _refused(item)
        value = refused.value if refused.value in _NO_SECRETS else None
        details.append(_details(replace(refused, value=value), item["loc"]))
    return ValidationError.from_exception_data("config", details)


def _details(refused: Refused, loc: tuple[str | int, ...]) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("refused", "refused"), loc=loc, input=refused)


def _problem(item: Any, data: Any, source: str, overrides: Collection[Sequence[str]]) -> Problem:
    steps, refused = [step for step in item["loc"] if not str(step).startswith(ARM_MARK)], _refused(item)
    is_key = _is_key(item)
    path = join_path(_path(steps[:-2], data), str(steps[-2]), quoted=True) if is_key else _path(steps, data)
    if overrides and is_at_or_below([str(step) for step in steps], overrides):
        source = COMMAND_LINE
    where = join_path(path, refused.step) if refused.step else path
    expected = f"{refused.expected} as key" if is_key else refused.expected
    return Problem(source, where, None if is_key else refused.value, expected, refused.fix)


def _refused(item: Any) -> Refused:
    """What is wrong with a value, in our words or pydantic's."""
    value, context = item["input"], item.get("ctx", {})
    if isinstance(value, Refused):
        return value
    if item["type"] in ("value_error", "assertion_error"):  # raised by a validator of a config class, in its own words
        return Refused(None if isinstance(value, Mapping) else shown(value), _one_line(str(context["error"])))
    words = _words(item, context)
    value = value.value if isinstance(value, NotEvenNull) else value
    fix = "" if _is_key(item) else _fix(item["type"], value)
    return Refused(shown(written(value)), words, fix)


def _words(item: Any, context: Mapping[str, Any]) -> str:
    if item["type"] == "string_pattern_mismatch" and (words := pattern_words(context["pattern"])):
        return f"expected {words}"
    limits = {name: written(limit) for name, limit in context.items()}
    words = _WORDS.get(item["type"], "{msg}").format(msg=item["msg"], **limits)
    return f"{words} or null" if isinstance(item["input"], NotEvenNull) else words


def _is_key(item: Any) -> bool:
    """Whether a key of an object is at fault."""
    return item["loc"][-1:] == (_KEY_MARK,)


def _one_line(text: str) -> str:
    """A validator's words, which may quote a value: on one line, escaped, every long run of letters cut."""
    words = _LONG_RUN.sub(lambda run: run[0][: SHOWN_CHARACTERS - 1] + "…", " ".join(text.split()))
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words[:SHOWN_WORDS])
    return line if len(words) <= SHOWN_WORDS else f"{line}…"


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
    return None
