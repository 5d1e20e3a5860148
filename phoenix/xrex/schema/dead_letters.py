"""dead-letters-PROCESS.jsonl: the bad records that a run passed over, whole, so that they can be mended and sent again."""

import base64
import json
from typing import Any, NamedTuple

from xrex.errors import RunError
from xrex.schema.batch import BadRow


class DeadLetter(NamedTuple):
    """One line of the file."""

    step: int
    """Optimizer step with whose save the record is passed for good."""
    topic: str
    bad: BadRow


def to_line(letter: DeadLetter) -> dict[str, Any]:
    """The JSON object of one line; bytes are base64."""
    bad = letter.bad
    return {
        "step": letter.step,
        "topic": letter.topic,
        "partition": bad.kafka_partition,
        "offset": bad.offset,
        "row": bad.row,
        "timestamp_ms": bad.timestamp_ms,
        "reason": bad.reason,
        "key": None if bad.key is None else base64.b64encode(bad.key).decode(),
        "value": base64.b64encode(bad.value).decode(),
    }


def from_line(line: str | bytes, source: str) -> DeadLetter:
    """Inverse of `to_line`. Raises RunError naming the source (file and line) where the text is none."""
    try:
        found = json.loads(line)
        key = None if found["key"] is None else base64.b64decode(found["key"], validate=True)
        value = base64.b64decode(found["value"], validate=True)
        numbers = [found[name] for name in ("step", "partition", "offset", "timestamp_ms")]
        row = found["row"]
        if any(type(number) is not int for number in numbers) or not (row is None or (type(row) is int and row >= 0)):
            raise ValueError("step, partition, offset, timestamp_ms and row are whole numbers")
        step, partition, offset, timestamp_ms = numbers
        bad = BadRow(partition, offset, row, timestamp_ms, key, value, str(found["reason"]))
        return DeadLetter(step, str(found["topic"]), bad)
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{source}: not a line of dead letters ({type(error).__name__}: {error}); remove it") from None
