"""Places in a stream as a command line names them: `--start-at` and `--on-lost-offset`. Read before anything is connected to."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from xrex.errors import ConfigError

Kind = Literal["earliest", "latest", "timestamp", "positions"]


@dataclass(frozen=True)
class Place:
    """Where to begin to read, in every partition."""

    kind: Kind
    timestamp_ms: int = 0
    """timestamp: the first record of this broker time or later, unix milliseconds."""
    file: Path = Path()
    """positions: a positions.json."""


def start_at(text: str | None) -> Place | None:
    """`earliest`, `latest`, `timestamp:TIME` or `positions:FILE`; None: the option was not given. Raises ConfigError."""
    expected = "expected earliest, latest, timestamp:TIME or positions:FILE"
    return (
        None if text is None else _place("--start-at", text, ("earliest", "latest", "timestamp", "positions"), expected)
    )


def on_lost_offset(text: str | None) -> Place | None:
    """`earliest` or `timestamp:TIME`; None: a lost offset ends the run. Raises ConfigError."""
    expected = "expected earliest or timestamp:TIME"
    return None if text is None else _place("--on-lost-offset", text, ("earliest", "timestamp"), expected)


def timestamp_ms(text: str) -> int:
    """Unix milliseconds of a TIME: ISO 8601 with a time zone, or whole unix milliseconds. Raises ValueError."""
    if text.isascii() and text.isdecimal():
        found = int(text[:20])
    else:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ValueError("the time zone is missing, write 2026-01-31T12:00:00Z")
        found = int(time.timestamp() * 1000)
    if not 0 <= found < 2**63:
        raise ValueError("expected a time from 1970 on, of at most 64 bits")
    return found


def _place(option: str, text: str, kinds: tuple[Kind, ...], expected: str) -> Place:
    kind, colon, rest = text.partition(":")
    for known in kinds:
        if kind != known or bool(colon) != (known in ("timestamp", "positions")):
            continue
        if known == "timestamp":
            return Place(known, timestamp_ms=_time(option, text, rest))
        if known == "positions" and not Path(rest).is_file():
            raise ConfigError(f"{option} = {text!r}: no such file; give a step's positions.json")
        return Place(known, file=Path(rest))
    raise ConfigError(f"{option} = {text[:120]!r}: {expected}")


def _time(option: str, text: str, time: str) -> int:
    try:
        return timestamp_ms(time)
    except ValueError as error:
        raise ConfigError(
            f"{option} = {text[:120]!r}: {error}; TIME is ISO 8601 with a time zone, such as 2026-01-31T12:00:00Z, "
            "or unix milliseconds"
        ) from None
