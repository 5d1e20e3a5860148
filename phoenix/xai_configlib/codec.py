"""Text <-> mapping: JSON and YAML, every fault of a text as one clear line."""

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from xai_configlib.errors import ConfigError, Problem, kind_of, shown

MAX_YAML_BYTES = 1_000_000
MAX_YAML_VALUES = 1_000_000
_SURROGATE = re.compile("[\ud800-\udfff]")
_NONZERO = re.compile(r"[0.]*[1-9]")
_DUPLICATE_KEY = re.compile(r'found duplicate key "?(?P<key>[^"]*)')

_TOKEN = (
    "directive|document start|document end|stream start|stream end|"
    "block sequence start|block mapping start|block end|alias|anchor|tag|scalar"
)
_QUOTED = re.compile(rf"""('.'|"."|'<(?:{_TOKEN})>')|['"].*""", re.DOTALL)
"""A character or a kind of token, kept in a message; or words of the text, which may be a secret's."""
_MAX_DIGITS = 4_300
"""Of an integer; Python refuses more."""


class _TextError(Exception):
    """What is wrong with a text; becomes a ConfigError once the source is known."""


def load_text(text: bytes | str, source: str) -> dict[str, Any]:
    """The object that a text holds: JSON if its first non-blank character, after a byte-order mark, is "{", else YAML.

    Raises ConfigError with one line if the text is not UTF-8, empty, cut short, too deep, has a key twice, holds
    something else than an object, or is YAML above 1 MB. The text itself is not echoed: it may hold secrets.
    """
    try:
        decoded = _decode(text)
        value = parse_json(decoded) if decoded.lstrip().startswith("{") else _parse_yaml(decoded)
        if not isinstance(value, dict):
            raise _TextError(f"expected an object of sections at the top level, found {kind_of(value)}")
    except _TextError as fault:
        raise ConfigError(Problem(source, "", None, str(fault))) from None
    except (RecursionError, MemoryError):
        expected = "is nested too deep, or too large to read; is this a config?"
        raise ConfigError(Problem(source, "", None, expected)) from None
    return value


def parse_json(text: str) -> Any:
    """The value of a JSON text, with integers exact. Raises _TextError where `load_text` would raise ConfigError."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except json.JSONDecodeError as error:
        cut_short = not text[error.pos :].strip()
        what = "the text is cut short" if cut_short else f"not JSON, {error.msg[0].lower()}{error.msg[1:]}"
        raise _TextError(f"{what} at line {error.lineno} column {error.colno}") from None
    except ValueError:
        digits = re.search(rf"[0-9]{{{_MAX_DIGITS + 1},}}", text)
        place = f" at {_place(text, digits.start())}" if digits else ""
        raise _TextError(f"an integer has too many digits{place}: correct it") from None


def value_from_json(text: str) -> Any:
    """The value of one JSON text, as on a command line. Raises ValueError whose text says what is wrong."""
    try:
        return parse_json(text)
    except _TextError as fault:
        raise ValueError(str(fault)) from None
    except (RecursionError, MemoryError):
        raise ValueError("is nested too deep, or too large to read") from None


def canonical_json(value: Any) -> str:
    """The canonical text: sorted keys, two spaces, UTF-8 as it is, a final newline."""
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def is_writable(value: Any) -> bool:
    """Whether UTF-8 can write it: JSON can spell halves of surrogate pairs, which are no text."""
    return not isinstance(value, str) or value.isascii() or not _SURROGATE.search(value)


def _decode(text: bytes | str) -> str:
    if isinstance(text, bytes | bytearray):
        if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise _TextError("is UTF-16: save it as UTF-8")
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _TextError(f"is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    text = text.removeprefix("\ufeff")
    if "\0" in text:
        raise _TextError("holds NUL characters, is it UTF-16? Save it as UTF-8")
    if not text.strip():
        raise _TextError("is empty: write the config into it, or check the path")
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counted = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counted.items() if count > 1)
        raise _TextError(f"the key {shown(twice)} stands twice in one object")
    return result


def _constant(token: str) -> Any:
    fix = "NaN is no value" if token == "NaN" else f'write "{token}" in quotes'
    raise _TextError(f"{token} is not JSON: {fix}")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        infinity = "-Infinity" if value < 0 else "Infinity"
        raise _TextError(
            f'{shown(text)} is too large for a 64-bit float: write "{infinity}" in quotes, or correct the exponent'
        )
    if value == 0 and _NONZERO.match(text.removeprefix("-")):
        raise _TextError(f"{shown(text)} is too small for a 64-bit float: write 0.0")
    return value


def _parse_yaml(text: str) -> Any:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_YAML_BYTES:
        raise _TextError("is YAML of more than 1 MB: write it as JSON")
    # Here and not above: JSON, which every process reads, must not pay for it.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    reader = YAML(typ="safe", pure=True)
    try:
        value = reader.load(text)
    except MarkedYAMLError as error:
        duplicate = _DUPLICATE_KEY.match(error.problem or "")
        problem = _QUOTED.sub(lambda quoted: quoted[1] or "…", error.problem or "it cannot be read")
        what = f"the key {shown(duplicate['key'])} stands twice" if duplicate else f"not YAML, {problem}"
        mark = error.problem_mark
        raise _TextError(f"{what} at line {mark.line + 1} column {mark.column + 1}" if mark else what) from None
    except (RecursionError, MemoryError):
        raise
    except ReaderError as error:
        place = _place(text, error.position)
        raise _TextError(f"not YAML: the character at {place} cannot be read; remove it") from None
    except Exception:  # Its constructor stumbles in many ways: KeyError at `!!bool x`, IndexError at `!!int ""`.
        # The nodes that it has begun and not ended; the last one is at fault.
        *_, node = [None, *getattr(reader.constructor, "recursive_objects", ())]
        place = f" at line {node.start_mark.line + 1} column {node.start_mark.column + 1}" if node else ""
        raise _TextError(f"not YAML: the value{place} cannot be read; correct it, or write it in quotes") from None
    return _plain(value, "", [0])


def _place(text: str, position: int) -> str:
    """Where a character stands, counted as editors do."""
    before = text[:position]
    return f"line {before.count(chr(10)) + 1} column {position - before.rfind(chr(10))}"


def _plain(value: Any, path: str, count: list[int]) -> Any:
    # Counted, because a few aliases of aliases can stand for billions of values.
    count[0] += 1
    if count[0] > MAX_YAML_VALUES:
        raise _TextError("stands for too many values: write it without aliases")
    if isinstance(value, Mapping):
        return {key: _plain(item, str(key), count) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, path, count) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise _TextError(f'{shown(path)} is not a finite number: write "Infinity" or "-Infinity" in quotes')
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _TextError(f"{shown(path)} is a {type(value).__name__}: write the text in quotes")
