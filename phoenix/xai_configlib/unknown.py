"""Fields that a newer release wrote: kept untouched beside the config, where the reader asks for it."""

import math
from collections.abc import Mapping
from typing import Any

from xai_configlib.codec import is_writable
from xai_configlib.errors import Refused, did_you_mean, shown
from xai_configlib.registry import VERSION_KEY, ClassInfo
from xai_configlib.scalars import MAX_INTEGER_BITS
from xai_configlib.secrets import SecretRef

MAX_DEPTH = 100
_CURE = "remove it, or read the file with the release that wrote it"
_SECRET_NAMES = ("passw", "secret", "credential", "token", "api_key")


def refusal_of(info: ClassInfo, key: Any, value: Any, *, keep: bool) -> Refused | None:
    """Why a field that the class does not know is refused; None: it is kept.

    What may be a literal secret is neither echoed nor kept: text or numbers beside a field for a secret, and text under
    a name that sounds like one, at any depth. A reference is kept.
    """
    if key == VERSION_KEY:
        return Refused(shown(value), "stands at the root of a file only", "remove it")
    may_be_secret = info.holds_secrets or _sounds_secret(key)
    may_be_shown = None if may_be_secret else shown(value)
    if not keep:
        return Refused(may_be_shown, "unknown field", did_you_mean(key, info.names))
    literals = (str, int, float) if info.holds_secrets else ()
    fault = _fault_of_mapping({key: value}, literals, 0)
    return Refused(may_be_shown, f"unknown field, not kept: {fault}") if fault else None


def _sounds_secret(key: Any) -> bool:
    return any(word in str(key).lower() for word in _SECRET_NAMES)


def _fault(value: Any, literals: tuple[type, ...], depth: int) -> str:
    """What keeps the value from being written again; "" if nothing does. `literals` are types that may be secrets."""
    if depth > MAX_DEPTH:
        return f"it is nested deeper than {MAX_DEPTH} levels; {_CURE}"
    if isinstance(value, Mapping):
        return "" if SecretRef.from_value(value) else _fault_of_mapping(value, literals, depth)
    if isinstance(value, list | tuple):
        return next(filter(None, (_fault(item, literals, depth + 1) for item in value)), "")
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, literals):
        return "it may be a secret; refer to it"
    if isinstance(value, str):
        return "" if is_writable(value) else f"it holds characters that UTF-8 cannot write; {_CURE}"
    if isinstance(value, int):
        return "" if value.bit_length() <= MAX_INTEGER_BITS else f"it holds a huge integer; {_CURE}"
    return (
        "" if isinstance(value, float) and math.isfinite(value) else f"it holds a value that JSON cannot write; {_CURE}"
    )


def _fault_of_mapping(mapping: Mapping[Any, Any], literals: tuple[type, ...], depth: int) -> str:
    for key, item in mapping.items():
        if not isinstance(key, str) or not is_writable(key):
            return f"it holds a key that is no text; {_CURE}"
        below = (str, *literals) if _sounds_secret(key) else literals
        if fault := _fault(item, below, depth + 1):
            return fault
    return ""
