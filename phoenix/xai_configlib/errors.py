"""The one error of this library, and how values are shown in it."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN_CHARACTERS = 120
SHOWN_PATH = 240
COMMAND_LINE = "command line"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BEFORE_AT = re.compile(r"[^\s/]*:[^\s/]*@")
"""User and password of an address."""
_STEP = re.compile(r'\.(?:"((?:[^"\\]|\\.)*)"|([^.\[\]"\s]+))|\[(\d+)\]')
_PATH = re.compile(rf"(?:{_STEP.pattern})+\Z")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; as text `SOURCE: PATH = VALUE: EXPECTED; FIX`, without the parts that are empty."""

    source: str
    """File or place the value came from, such as `config.json` or `command line`."""
    path: str
    """Dotted path of the field."""
    value: str | None
    """The value as it may be shown; None: there is none, or it may be a secret."""
    expected: str
    """What is wrong, or what was expected."""
    fix: str = ""
    """What to do about it."""

    def __str__(self) -> str:
        path = self.path if len(self.path) <= SHOWN_PATH else self.path[: SHOWN_PATH - 1] + "…"
        where = path if self.value is None else f"{path} = {self.value}"
        what = f"{self.expected}; {self.fix}" if self.fix else self.expected
        return ": ".join(part for part in (self.source, where, what) if part)


@dataclass(frozen=True, eq=False)
class Refused:
    """Stands in the data where a value is wrong or missing; no type accepts it, so pydantic reports it there."""

    value: str | None
    """The value as it may be shown; None: there is none, or it may be a secret."""
    expected: str
    fix: str = ""
    step: str = ""
    """The key at fault, below the place where this stands."""


@dataclass(frozen=True, eq=False)
class NotEvenNull:
    """Stands in the data for a value of another type than its field, where null would be one too; no type accepts it."""

    value: Any


class ConfigError(Exception):
    """A config, or the command line, is wrong. `str(error)` is one line a problem; `problems` holds them one by one."""

    problems: tuple[Problem, ...]

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = [Problem("", "", None, line) for line in problems.splitlines()]
        elif isinstance(problems, Problem):
            problems = [problems]
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def shown(value: Any) -> str:
    """The value on one line, escaped and cut at 120 characters. What objects hold is not shown, nor what stands before an @
    in a text: both may be secrets."""
    if value is None or isinstance(value, bool):
        text = json.dumps(value)
    elif isinstance(value, Mapping):
        text = "{…}" if value else "{}"
    elif isinstance(value, list | tuple):
        first = value[:SHOWN_CHARACTERS]
        nested = any(isinstance(item, Mapping | list | tuple) for item in first)
        text = "[…]" if nested else f"[{', '.join(map(shown, first))}]"
    elif isinstance(value, int) and value.bit_length() > 4 * SHOWN_CHARACTERS:
        text = "a huge integer"  # str() of it may be refused by Python
    else:
        text = repr(_BEFORE_AT.sub("…@", value[:SHOWN_CHARACTERS]) if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def kind_of(value: Any) -> str:
    """What a value that is no object is, in words."""
    kinds: dict[type, str] = {
        bool: "true or false",
        str: "a string",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return "a list" if isinstance(value, list | tuple) else kinds.get(type(value), f"a {type(value).__name__}")


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """The question that names the nearest of the known names, or nothing."""
    if not isinstance(name, str):
        return ""
    near = difflib.get_close_matches(name[:SHOWN_CHARACTERS], list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def join_path(path: str, step: str | int, *, quoted: bool = False) -> str:
    """The path one step further: a field or key (str), quoted if it is no identifier, or an index (int)."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if quoted or not _IDENTIFIER.match(step):
        step = json.dumps(step)
    return f"{path}.{step}" if path else step


def split_path(path: str) -> tuple[str, ...]:
    """The steps of a path: `features[3].column`, `features.3.column` and `features."3".column` have the same ones.

    Raises ValueError where the text is no path.
    """
    text = f".{path}"
    if not _PATH.match(text):
        raise ValueError(f"{shown(path)} is no path of dotted names; write it as a.b.c")
    return tuple(json.loads(f'"{quoted}"') if quoted else name or index for quoted, name, index in _STEP.findall(text))


def is_at_or_below(steps: Sequence[str], paths: Iterable[Sequence[str]]) -> bool:
    """Whether the path is one of `paths` or lies below one."""
    return any(tuple(steps[: len(path)]) == tuple(path) for path in paths)
