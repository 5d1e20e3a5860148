"""How JSON spells what it has no type for, and back: one canonical spelling for each value.

| type      | read                                                            | written                                  |
|-----------|-----------------------------------------------------------------|------------------------------------------|
| float     | a number, "Infinity", "-Infinity"                               | with a point or exponent; -0.0 keeps its sign |
| bytes     | base64 of RFC 4648, padded, without blanks                      | the same                                 |
| datetime  | ISO 8601 with seconds and offset: 2026-01-31T12:00:00+02:00     | in UTC, ending in Z: 2026-01-31T10:00:00Z |
| timedelta | ISO 8601 of days to microseconds: PT90M, -P1DT0.5S              | largest units first, no zeros: PT1H30M   |
| enum      | the member's value                                              | the same                                 |
| keys      | of an object: the text, the digits, the member's value as text  | the same                                 |
"""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from xai_configlib.secrets import SecretRef

INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})$"
DURATION = (
    r"^-?P(?=[0-9T])([0-9]{1,9}D)?"
    r"(T(?=[0-9])([0-9]{1,15}H)?([0-9]{1,15}M)?([0-9]{1,15}(\.[0-9]{1,6})?S)?)?$"
)
INT_KEY = r"^(0|-?[1-9][0-9]{0,99})$"


def json_kind(value: Any) -> str:
    """What JSON writes a value as: null, boolean, number, string, list or object; "" where it cannot."""
    if isinstance(value, Enum):
        return json_kind(value.value)
    kinds: dict[str, Any] = {
        "null": type(None),
        "boolean": bool,
        "number": int | float,
        "string": str | Path | bytes | datetime | timedelta,
        "list": list | tuple | set | frozenset,
        "object": Mapping | SecretRef,
    }
    return next((kind for kind, types in kinds.items() if isinstance(value, types)), "")


def written(value: Any) -> Any:
    """The JSON value that stands for a scalar."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
    if isinstance(value, timedelta):
        return f"-{_duration(-value)}" if value < timedelta() else _duration(value)
    if isinstance(value, SecretRef):
        return value.to_value()
    return str(value) if isinstance(value, Path) else value


def key_text(key: Any) -> str:
    """The text of an object's key."""
    return str(written(key))


def read_bytes(text: str) -> bytes | None:
    """The bytes that base64 stands for; None if the text is another spelling of them, or of nothing."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    # The last character may have bits to spare, which two spellings fill in two ways.
    return value if written(value) == text else None


def read_time(text: str) -> datetime | None:
    """The instant, in UTC; None if the text is none or has no offset."""
    if not re.fullmatch(TIME, text):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def read_duration(text: str) -> timedelta | None:
    """The duration; None if the text is none, or beyond a timedelta's 999999999 days."""
    if not re.fullmatch(DURATION, text):
        return None
    amounts = {unit: amount for amount, unit in re.findall(r"([0-9.]+)([DHMS])", text)}
    whole, _, fraction = amounts.get("S", "0").partition(".")
    sign = -1 if text.startswith("-") else 1
    try:
        return sign * timedelta(
            days=int(amounts.get("D", 0)),
            hours=int(amounts.get("H", 0)),
            minutes=int(amounts.get("M", 0)),
            seconds=int(whole),
            microseconds=int(fraction.ljust(6, "0")),
        )
    except OverflowError:
        return None


def _duration(value: timedelta) -> str:
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    exact = f"{seconds}.{value.microseconds:06}".rstrip("0").removesuffix(".")
    parts = {"H": str(hours), "M": str(minutes), "S": exact}
    time = "".join(amount + unit for unit, amount in parts.items() if amount != "0")
    day = f"{value.days}D" if value.days else ""
    return f"P{day}T{time}" if time else f"P{day or 'T0S'}"
