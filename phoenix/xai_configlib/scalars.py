"""Scalars: the Python value that a JSON value stands for, or why it stands for none."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from xai_configlib.annotations import words_of
from xai_configlib.codec import is_writable
from xai_configlib.errors import Refused, shown
from xai_configlib.secrets import SecretRef
from xai_configlib.spelling import INFINITIES, read_bytes, read_duration, read_time

SECRET_EXPECTED = 'expected {"env": NAME} or {"file": PATH}, a secret is never written into a config'
UNWRITABLE = "holds characters that UTF-8 cannot write"
MAX_INTEGER_BITS = 8_192
_EXACT_INTEGERS = 2**53


def _text(value: Any) -> Any:
    return value if is_writable(value) else Refused(shown(value), UNWRITABLE)


def _path(value: Any) -> Any:
    if not isinstance(value, str | Path) or value == "":
        return Refused(shown(value), "expected a path")
    return Path(value) if is_writable(str(value)) else Refused(shown(str(value)), UNWRITABLE)


def _integer(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        return Refused(shown(value), f"expected an integer of at most {MAX_INTEGER_BITS} bits")
    if not isinstance(value, float):
        return value
    if not value.is_integer():
        return Refused(shown(value), "expected an integer")
    if abs(value) > _EXACT_INTEGERS:
        return Refused(shown(value), "expected an integer", "write it in digits, a float is not exact here")
    return int(value)


def _number(value: Any) -> Any:
    if isinstance(value, str) and value in INFINITIES:
        return INFINITIES[value]
    if isinstance(value, float) and math.isnan(value):
        return Refused("NaN", "expected a number")
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return Refused(shown(value), "expected a number that a 64-bit float can hold")
    return value


def _bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    read = read_bytes(value) if isinstance(value, str) else None
    return Refused(shown(value), f"expected {words_of(bytes)}") if read is None else read


def _time(value: Any) -> Any:
    if isinstance(value, datetime):
        read = _in_utc(value)
    else:
        read = read_time(value) if isinstance(value, str) else None
    return Refused(shown(value), f"expected {words_of(datetime)}") if read is None else read


def _in_utc(value: datetime) -> datetime | None:
    try:
        return None if value.utcoffset() is None else value.astimezone(UTC)
    except OverflowError:
        return None


def _duration(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value
    read = read_duration(value) if isinstance(value, str) else None
    return Refused(shown(value), f"expected {words_of(timedelta)}") if read is None else read


def _secret(value: Any) -> Any:
    return value if isinstance(value, SecretRef) else SecretRef.from_value(value) or Refused(None, SECRET_EXPECTED)


READERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    Path: _path,
    int: _integer,
    float: _number,
    bytes: _bytes,
    datetime: _time,
    timedelta: _duration,
    SecretRef: _secret,
}
