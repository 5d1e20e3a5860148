"""positions.json: where every partition that was ever assigned stands, as text and as `TopicPositions`."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from xrex.errors import CheckpointError
from xrex.schema.positions import PartitionPosition, TopicPositions

VERSION = 1
_PARTITION_FIELDS = tuple(f.name for f in fields(PartitionPosition))
_FINGERPRINT = re.compile(r"[0-9a-f]{16}\Z")


def to_json(topics: Mapping[str, TopicPositions]) -> str:
    """The text of positions.json: topics by name, partitions by number, decimal integers, final newline."""
    entries = [
        {
            "topic": topic.topic,
            "topic_id": topic.topic_id,
            "partitions": {str(number): asdict(topic.partitions[number]) for number in sorted(topic.partitions)},
        }
        for _, topic in sorted(topics.items())
    ]
    return json.dumps({"version": VERSION, "topics": entries}, indent=2) + "\n"


def from_json(text: str | bytes, source: str = "positions.json") -> dict[str, TopicPositions]:
    """The positions by topic name.

    source  what the error names, usually the file's path
    Raises CheckpointError naming the source and the field where anything is missing, unknown or of another type.
    """
    try:
        document = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source}: not valid JSON ({error}): resume from another step") from None
    return _Reader(source).topics(document)


def merge(parts: Iterable[TopicPositions]) -> dict[str, TopicPositions]:
    """What the processes of a run hold together, by topic name. No partition is ever dropped.

    Only one process trains a partition; where others still hold an older copy, the furthest one stands.
    Raises CheckpointError if two parts name one topic with different ids.
    """
    merged: dict[str, TopicPositions] = {}
    for part in parts:
        before = merged.get(part.topic, TopicPositions(part.topic, part.topic_id))
        if None not in (before.topic_id, part.topic_id) and before.topic_id != part.topic_id:
            raise CheckpointError(
                f"topic {part.topic!r} has id {before.topic_id} on one process and {part.topic_id} on another: "
                "was it recreated while the run started?"
            )
        ahead = {
            number: position
            for number, position in part.partitions.items()
            if number not in before.partitions or _progress(position) > _progress(before.partitions[number])
        }
        topic_id = before.topic_id if before.topic_id is not None else part.topic_id
        merged[part.topic] = TopicPositions(part.topic, topic_id, before.partitions).updated(ahead)
    return merged


def _progress(position: PartitionPosition) -> tuple[int, int]:
    return position.offset, position.row


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ValueError(f"duplicate key {next(key for key in keys if keys.count(key) > 1)!r}")
    return dict(pairs)


class _Reader:
    """Reads the parsed document strictly; every complaint names the source and the field."""

    def __init__(self, source: str):
        self._source = source

    def topics(self, document: Any) -> dict[str, TopicPositions]:
        self._keys(document, "", ("version", "topics"))
        if document["version"] != VERSION or isinstance(document["version"], bool):
            self._wrong("version", document["version"], f"{VERSION}; another release wrote this file")
        if not isinstance(document["topics"], list):
            self._wrong("topics", document["topics"], "a list")
        topics = [self._topic(entry, f"topics[{i}]") for i, entry in enumerate(document["topics"])]
        names = [topic.topic for topic in topics]
        if len(set(names)) != len(names):
            self._wrong("topics", names, "each topic once")
        return {topic.topic: topic for topic in topics}

    def _topic(self, entry: Any, where: str) -> TopicPositions:
        self._keys(entry, where, ("topic", "topic_id", "partitions"))
        if not isinstance(entry["topic"], str) or not entry["topic"]:
            self._wrong(f"{where}.topic", entry["topic"], "a topic's name")
        if not isinstance(entry["topic_id"], str | None):
            self._wrong(f"{where}.topic_id", entry["topic_id"], "text or null")
        if not isinstance(entry["partitions"], dict):
            self._wrong(f"{where}.partitions", entry["partitions"], "an object by partition number")
        partitions = {}
        for key, value in entry["partitions"].items():
            if not re.fullmatch(r"0|[1-9][0-9]*", key):
                self._wrong(f"{where}.partitions", key, "partition numbers as keys")
            partitions[int(key)] = self._partition(value, f"{where}.partitions.{key}")
        return TopicPositions(entry["topic"], entry["topic_id"], partitions)

    def _partition(self, value: Any, where: str) -> PartitionPosition:
        self._keys(value, where, _PARTITION_FIELDS)
        for name in ("offset", "row"):
            self._integer(value[name], f"{where}.{name}", least=0)
        for name, least in (("timestamp_ms", None), ("fingerprint_offset", 0), ("end_offset", 0)):
            if value[name] is not None:
                self._integer(value[name], f"{where}.{name}", least)
        fingerprint = value["fingerprint"]
        if fingerprint is not None and not (isinstance(fingerprint, str) and _FINGERPRINT.match(fingerprint)):
            self._wrong(f"{where}.fingerprint", fingerprint, "16 hex digits or null")
        if (fingerprint is None) != (value["fingerprint_offset"] is None):
            self._wrong(f"{where}.fingerprint_offset", value["fingerprint_offset"], "set together with fingerprint")
        return PartitionPosition(**value)

    def _integer(self, value: Any, where: str, least: int | None) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
            self._wrong(where, value, "an integer" if least is None else f"an integer >= {least}")

    def _keys(self, value: Any, where: str, names: tuple[str, ...]) -> None:
        if not isinstance(value, dict):
            self._wrong(where or "the document", value, "an object")
        for name in names:
            if name not in value:
                self._wrong(f"{where}.{name}".lstrip("."), "nothing", "a value")
        for name in value:
            if name not in names:
                self._wrong(f"{where}.{name}".lstrip("."), value[name], f"no such field; known: {', '.join(names)}")

    def _wrong(self, where: str, value: Any, expected: str) -> None:
        shown = value if value == "nothing" else repr(value)[:120]
        raise CheckpointError(f"{self._source}: {where} = {shown}: expected {expected}")
