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
        place = (int(found["partition"]), int(found["offset"]), found["row"], int(found["timestamp_ms"]))
        return DeadLetter(int(found["step"]), str(found["topic"]), BadRow(*place, key, value, str(found["reason"])))
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{source}: not a line of dead letters ({type(error).__name__}: {error}); remove it") from None
