"""The operator's commands of `xrex data`: `lag`, `inspect` and `resend`. Nothing here imports JAX."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from xai_configlib import apply_overrides
from xrex.checkpoint import layout, positions
from xrex.cli.config import read_config
from xrex.cli.data import BrokerConfig, Codec, security_of
from xrex.errors import BadRecord, ConfigError, LogStalled, RunError, TopicMissing
from xrex.report.progress import text_table
from xrex.schema.positions import PartitionPosition, TopicPositions
from xrex.train.config import TrainerConfig
from xrex.utils.metadata import Run

if TYPE_CHECKING:
    from xrex.data.config import DatasetConfig
    from xrex.data.log.base import Entry, Log, Record
    from xrex.data.log.config import LogConfig
    from xrex.schema.dead_letters import DeadLetter

# Functions below import what they use: --help must not wait for Arrow.

SHOWN_CHARACTERS = 120
"""A value of a row is cut here."""
SHOWN_DEPTH = 20
"""Lists in lists are shown so deep; Python's stack sets a limit too."""
SHOWN_REASON = 500
"""What a library says of undecodable bytes is cut here."""
SHOWN_BYTES = 16
"""Of undecodable bytes so many are shown."""
SHOWN_BAD_ROWS = 20
"""Rows that cannot be trained are told one by one up to here."""

_Overrides = Annotated[list[str] | None, typer.Argument(metavar="[a.b.c=value]...", help="Overrides, by exact path.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_Keep = Annotated[
    bool, typer.Option("--keep-unknown", help="Do not mind the fields that a newer release wrote; a line for each.")
]


# lag


def lag(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A run folder, a checkpoints folder or a step.")],
    overrides: _Overrides = None,
    as_json: _Json = False,
    keep_unknown: _Keep = False,
) -> None:
    """How far each partition is behind the log: saved position, log start and end, lag in records, freshness.

    xrex data lag runs/ranker

    xrex data lag runs/ranker dataset.log.bootstrap_servers=localhost:9092
    """
    held = _read_held(path, overrides or (), keep_unknown)
    with closing(_open(held.config.dataset)) as log:
        topic = log.info()
        _tell_if_recreated(held.positions, topic.topic_id)
        partitions = _partition_lags(held.positions, topic.num_partitions, log)
    total = _total(partitions)
    if as_json:
        whose = {"topic": held.positions.topic, "step": held.step}
        typer.echo(json.dumps({**whose, "partitions": [asdict(p) for p in partitions], "total": total}, indent=2))
        return
    whose = "the start" if held.step is None else f"step {held.step}"
    typer.echo(f"topic '{held.positions.topic}', positions of {whose}")
    heading = ("partition", "offset", "row", "log start", "log end", "lag", "last trained", "age", "state")
    typer.echo(text_table(heading, [*map(_lag_cells, partitions), _total_cells(total)]))


@dataclass(frozen=True)
class _Held:
    """What a run, or one of its steps, says of its stream."""

    config: TrainerConfig
    positions: TopicPositions
    step: int | None
    """None: no step is complete, and the positions are those that the run started from."""


@dataclass(frozen=True)
class _PartitionLag:
    """A partition of the log beside what was trained of it."""

    partition: int
    offset: int | None
    """The next record to train; None: the positions lack the partition."""
    row: int | None
    log_start: int | None
    log_end: int | None
    """None, both: the topic lacks the partition."""
    lag: int | None
    """Records from the next one to the log's end; None where that cannot be said."""
    trained_ms: int | None
    """Broker timestamp of the last message trained from, unix milliseconds."""
    age_s: float | None
    """Its age."""
    state: Literal["ok", "lost", "new", "done"]
    """lost: the position is outside the log; new: there is none; done: it has reached the run's fixed end."""


def _read_held(path: str, overrides: Sequence[str], keep_unknown: bool) -> _Held:
    """Config and positions of a run folder (those of its newest step), a checkpoints folder or a step."""
    root = layout.open_path(path)
    is_run = (root / layout.RUN).exists() and not (root / layout.STATE).exists()
    if is_run and not layout.complete_steps(root / layout.CHECKPOINTS):
        layout.say_on_stderr(f"{path}: no step is complete; these are the positions that the run started from")
        source, step = root / layout.RUN, None
        start = Run.from_json(source.read_bytes(), str(source)).starts[0]
        topics = positions.from_json(json.dumps(start.positions), str(source))
    else:
        step_dir = layout.resolve(path)
        source, step = step_dir / layout.POSITIONS, int(step_dir.name) if step_dir.name.isdecimal() else None
        topics = positions.from_json(source.read_bytes(), str(source))
        # A run folder's own config is that of its newest start: where the log is reached today.
        root = root if is_run else step_dir
    config = apply_overrides(read_config(str(root), keep_unknown=keep_unknown), overrides)
    topic = config.dataset.topic_name
    if topic not in topics:
        held = ", ".join(topics) or "none"
        raise ConfigError(
            f"{source}: holds no positions of topic '{topic}', only of {held}: name the topic it was read from"
        )
    return _Held(config, topics[topic], step)


def _open(dataset: "DatasetConfig") -> "Log":
    """The topic of a config. Raises ConfigError before it connects, and what `open_log` raises."""
    from xrex.data.log.open import open_log
    from xrex.data.log.security import check_log

    check_log(dataset.log, dataset.topic_name)
    return open_log(dataset.log, dataset.topic_name)


def _tell_if_recreated(held: TopicPositions, found: str | None) -> None:
    if None not in (found, held.topic_id) and found != held.topic_id:
        layout.say_on_stderr(
            f"warning: topic '{held.topic}' has the id {found}, the positions are those of {held.topic_id}: "
            "it was recreated, its offsets mean other records"
        )


def _partition_lags(held: TopicPositions, num_partitions: int, log: "Log") -> list[_PartitionLag]:
    """Every partition of the topic or of the positions, by number."""
    there = list(range(num_partitions))
    starts, ends = log.start_offsets(there), log.end_offsets(there)
    now_ms = time.time() * 1_000
    return [
        _partition_lag(p, held.partitions.get(p), starts.get(p), ends.get(p), now_ms)
        for p in sorted({*there, *held.partitions})
    ]


def _partition_lag(
    partition: int, held: PartitionPosition | None, start: int | None, end: int | None, now_ms: float
) -> _PartitionLag:
    trained_ms = None if held is None else held.timestamp_ms
    age_s = None if trained_ms is None else round((now_ms - trained_ms) / 1_000, 3)
    offset, row = (None, None) if held is None else (held.offset, held.row)
    state, lag = "ok", None
    if start is None or end is None:
        state = "lost"
    elif held is None:
        state, lag = "new", end - start
    elif held.at_end:
        # Nothing more is wanted of it: what retention removed since is no loss.
        state, lag = "done", max(0, end - held.offset)
    elif not start <= held.offset <= end:
        state = "lost"
    else:
        lag = end - held.offset
    return _PartitionLag(partition, offset, row, start, end, lag, trained_ms, age_s, state)


def _total(partitions: Sequence[_PartitionLag]) -> dict[str, Any]:
    """Lag over all partitions whose lag is known, the newest record trained, and how many are in which state."""
    trained = [(p.trained_ms, p.age_s) for p in partitions if p.trained_ms is not None]
    trained_ms, age_s = max(trained, default=(None, None))
    states = [p.state for p in partitions]
    return {
        "partitions": len(partitions),
        "lag": sum(p.lag or 0 for p in partitions),
        "trained_ms": trained_ms,
        "age_s": age_s,
        **{state: states.count(state) for state in ("ok", "lost", "new", "done")},
    }


def _lag_cells(p: _PartitionLag) -> list[str]:
    numbers = (p.partition, p.offset, p.row, p.log_start, p.log_end, p.lag)
    return [*("-" if n is None else str(n) for n in numbers), *_time_and_age(p.trained_ms, p.age_s), p.state]


def _total_cells(total: dict[str, Any]) -> list[str]:
    notes = [f"{total[state]} {state}" for state in ("lost", "new", "done") if total[state]]
    time_and_age = _time_and_age(total["trained_ms"], total["age_s"])
    return ["total", "", "", "", "", str(total["lag"]), *time_and_age, ", ".join(notes)]


def _time_and_age(trained_ms: int | None, age_s: float | None) -> tuple[str, str]:
    if trained_ms is None or age_s is None:
        return "-", "-"
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= 2 * seconds:
            return _time(trained_ms), f"{age_s / seconds:.1f} {unit}"
    return _time(trained_ms), f"{age_s:.0f} s"


def _time(timestamp_ms: int) -> str:
    """UTC, ISO 8601; the number itself where no calendar has such a time."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


# inspect


def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH|CONFIG", help="A run folder, a step, or a config file.")],
    partition: Annotated[int, typer.Argument(min=0, help="Kafka partition.")],
    offset: Annotated[int, typer.Argument(min=0, help="Offset of the record.")],
    overrides: _Overrides = None,
    rows: Annotated[int, typer.Option(min=0, help="Show the values of the first so many rows.")] = 3,
    as_json: _Json = False,
    keep_unknown: _Keep = False,
) -> None:
    """Show one record: timestamp, key, rows, and which of them this config can train, else why not.

    xrex data inspect runs/ranker 0 37

    xrex data inspect configs/ranker_kafka.yaml 0 37 --rows 1 dataset.log.bootstrap_servers=localhost:9092
    """
    dataset = apply_overrides(read_config(path, keep_unknown=keep_unknown), overrides or ()).dataset
    with closing(_open(dataset)) as log:
        found = _find(dataset, log, partition, offset)
    seen = None if found.record is None or found.record.value is None else _look_at(dataset, found.record)
    if as_json:
        typer.echo(json.dumps(_document(dataset, found, seen, rows), indent=2))
    else:
        typer.echo("\n".join(map(_printable, _lines(dataset, found, seen, rows))))


class _Found(NamedTuple):
    """What there is at an offset."""

    partition: int
    offset: int
    what: Literal["record", "tombstone", "hole", "before the start", "beyond the end"]
    log_start: int
    log_end: int
    record: "Record | None" = None


@dataclass(frozen=True)
class _Seen:
    """A record's value, read as a config reads it."""

    undecodable: str | None
    """Why the bytes hold no rows; None: they do."""
    rows: list[list[tuple[str, str, Any]]]
    """Of each row its columns as sent: (name, Arrow type or "", value as JSON has it)."""
    unread: tuple[str, ...]
    """Columns that nothing reads."""
    bad: dict[int, str]
    """Row -> why this config cannot train it."""


def _find(dataset: "DatasetConfig", log: "Log", partition: int, offset: int) -> _Found:
    """Reads one record. Raises ConfigError for a partition that the topic lacks, LogStalled, and what the log raises."""
    there = log.info().num_partitions
    if partition >= there:
        raise ConfigError(
            f"PARTITION = {partition}: topic '{dataset.topic_name}' has {there} partitions; give one from 0 to {there - 1}"
        )
    start, end = log.start_offsets([partition])[partition], log.end_offsets([partition])[partition]
    if offset < start or offset >= end:
        return _Found(partition, offset, "before the start" if offset < start else "beyond the end", start, end)
    record = _read_at(dataset, log, partition, offset)
    what = "hole" if record is None else "tombstone" if record.value is None else "record"
    return _Found(partition, offset, what, start, end, record)


def _read_at(dataset: "DatasetConfig", log: "Log", partition: int, offset: int) -> "Record | None":
    """The record at an offset inside the log; None: the log goes on behind it."""
    log.assign({partition: offset})
    deadline = time.monotonic() + dataset.stall_timeout_s
    while time.monotonic() < deadline:
        if records := log.poll(timeout_ms=100):
            return records[0] if records[0].offset == offset else None
        if log.fetch_positions()[partition] > offset:
            return None
    raise LogStalled(
        f"topic '{dataset.topic_name}' partition {partition}: nothing arrived for {dataset.stall_timeout_s:g} s at "
        f"offset {offset}: look at the partition's leader, or raise dataset.stall_timeout_s"
    )


def _look_at(dataset: "DatasetConfig", record: "Record") -> _Seen:
    value = record.value or b""
    try:
        rows = _decoded(dataset.codec, value)
    except BadRecord as error:
        return _Seen(" ".join(str(error).split())[:SHOWN_REASON], [], (), {})
    unread, bad = _judge(dataset, record, len(rows))
    return _Seen(None, rows, unread, bad)


def _decoded(codec: str, value: bytes) -> list[list[tuple[str, str, Any]]]:
    """Rows with all their columns, as they were sent. Raises BadRecord."""
    from xrex.data.codecs import arrow
    from xrex.data.codecs import json as json_codec

    if codec == "json":
        return [[(name, "", _plain(item)) for name, item in row.items()] for row in json_codec.decode(value)]
    batch = arrow.decode(value)
    try:
        names = batch.schema.names
    except UnicodeDecodeError as error:
        raise BadRecord(f"the name of a column is not UTF-8: {error}") from None
    columns = list(zip(names, map(str, batch.schema.types), batch.columns, strict=True))
    return [[(name, kind, _arrow_value(column, i)) for name, kind, column in columns] for i in range(batch.num_rows)]


def _arrow_value(column: Any, row: int) -> Any:
    try:
        return _plain(column[row].as_py())
    except (ValueError, OverflowError, NotImplementedError):  # such as a time that Python's calendar lacks
        return " ".join(column.slice(row, 1).to_string().split())


def _plain(value: Any, depth: int = 0) -> Any:
    """The value as JSON has it: bytes in hex, what JSON lacks as text; what lies deeper than anybody reads is left out."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict | list | tuple) and depth == SHOWN_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _judge(dataset: "DatasetConfig", record: "Record", num_rows: int) -> tuple[tuple[str, ...], dict[int, str]]:
    """Columns that nothing reads, and the rows that cannot be trained with the reason: what a run would say of them."""
    import numpy as np

    from xrex.data.codecs.base import codec_of
    from xrex.data.featurize import Featurizer

    codec, featurizer, timestamp_ms = codec_of(dataset), Featurizer(dataset), np.array([record.timestamp_ms])
    try:
        rows, unread = codec.read(record.value or b"")
    except BadRecord as error:
        return (), dict.fromkeys(range(num_rows), str(error))
    bad = {}
    for row in range(num_rows):
        try:
            featurizer.featurize(codec.join([(rows, row, row + 1)]), 1, timestamp_ms)
        except BadRecord as error:
            bad[row] = str(error)
    return unread, bad


def _document(dataset: "DatasetConfig", found: _Found, seen: _Seen | None, shown: int) -> dict[str, Any]:
    """What --json prints."""
    document: dict[str, Any] = {"topic": dataset.topic_name, "partition": found.partition, "offset": found.offset}
    document |= {"found": found.what, "log_start": found.log_start, "log_end": found.log_end}
    if found.record is not None:
        key, value = found.record.key, found.record.value
        document |= {"timestamp_ms": found.record.timestamp_ms, "key": None if key is None else key.hex()}
        document |= {"size": None if value is None else len(value), "codec": dataset.codec}
    if seen is not None:
        document |= {"undecodable": seen.undecodable, "num_rows": len(seen.rows), "unread_columns": list(seen.unread)}
        document["bad_rows"] = [{"row": row, "reason": reason} for row, reason in seen.bad.items()]
        document["rows"] = [
            {
                "row": i,
                "trainable": i not in seen.bad,
                "columns": [dict(zip(("name", "type", "value"), column, strict=True)) for column in row],
            }
            for i, row in enumerate(seen.rows[:shown])
        ]
    return document


def _lines(dataset: "DatasetConfig", found: _Found, seen: _Seen | None, shown: int) -> list[str]:
    """What is printed without --json: facts of the record, the rows that are bad, then a block a row, columns down."""
    lines = [f"{name:<11}{value}" for name, value in _facts(dataset, found, seen, shown).items()]
    if seen is None:
        return lines
    lines += _bad_lines(seen.bad)
    for i, row in enumerate(seen.rows[:shown]):
        heading = (f"row {i}: bad" if i in seen.bad else f"row {i}", "type" if row and row[0][1] else "", "value")
        block = text_table(heading, [(_cut(name), _cut(kind), _cell(value)) for name, kind, value in row])
        lines += ["", *block.split("\n")]
    return lines


def _facts(dataset: "DatasetConfig", found: _Found, seen: _Seen | None, shown: int) -> dict[str, str]:
    """What is to be said of the record as a whole."""
    facts = {"topic": dataset.topic_name, "partition": str(found.partition), "offset": str(found.offset)}
    record = found.record
    if record is None:
        return {**facts, "found": _nothing_there(found)}
    facts["timestamp"] = f"{_time(record.timestamp_ms)} ({record.timestamp_ms})"
    facts["key"] = "none" if record.key is None else record.key.hex() or "empty"
    if seen is None or record.value is None:
        return {**facts, "found": "a tombstone: no value, nothing to train, passed over"}
    facts |= {"size": f"{len(record.value)} bytes", "codec": dataset.codec}
    if seen.undecodable is not None:
        begins = record.value[:SHOWN_BYTES].hex() or "(empty)"
        return {**facts, "found": f"cannot be read: {seen.undecodable}; the value begins {begins}"}
    some = f"; the first {shown} shown (--rows)" if 0 < shown < len(seen.rows) else ""
    facts["rows"] = f"{len(seen.rows)}, of which this config can train {len(seen.rows) - len(seen.bad)}{some}"
    return facts | ({"not read": ", ".join(seen.unread)} if seen.unread else {})


def _nothing_there(found: _Found) -> str:
    start, end = found.log_start, found.log_end
    why = ": compacted away, or a marker of a transaction" if found.what == "hole" else ""
    held = f"the log holds {start}..{end - 1}" if end > start else "it is empty"
    return f"no record here, {found.what}{why}; {held}"


def _bad_lines(bad: dict[int, str]) -> list[str]:
    """Rows that cannot be trained; those with one reason that is not theirs alone share a line."""
    rows: dict[str, list[int]] = {}
    for row, reason in bad.items():
        rows.setdefault(reason, []).append(row)
    lines = [
        f"cannot train row{'s' * (len(numbers) > 1)} {_ranges(numbers)}: {reason}" for reason, numbers in rows.items()
    ]
    rest = len(lines) - SHOWN_BAD_ROWS
    return lines[:SHOWN_BAD_ROWS] + ([f"and {rest} more reasons; --json has all"] if rest > 0 else [])


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 -> "0-2, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def _cell(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _printable(text: str) -> str:
    """A line of text from outside: what moves a terminal's cursor or colours it is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# resend


def resend(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="dead-letters-*.jsonl of run folders.")],
    to: Annotated[str, typer.Option(metavar="FOLDER|HOST:PORT", help="Folder of a directory log, or Kafka brokers.")],
    topic: Annotated[str, typer.Option(help="Topic to send to; it must be there.")],
    codec: Annotated[Codec, typer.Option(help="Encoding of the messages; read where only rows of one are bad.")] = (
        Codec.arrow
    ),
    config: BrokerConfig = None,
) -> None:
    """Send again what a run passed over: bad messages whole, of a message with bad rows only those rows.

    Key and timestamp stay. What is sent twice is trained twice: send a file once.

    xrex data resend runs/ranker/dead-letters-0.jsonl --to localhost:9092 --topic engagements
    """
    from xrex.data.log.open import log_at, open_writer

    like = None if config is None else security_of(config, to, topic)
    letters = [letter for file in files for letter in _read_letters(file)]
    resent = _resent(letters, codec.value)
    partitions = _existing_partitions(log_at(to, like), topic)
    targets = _targets(resent, partitions, topic)
    if not resent:
        typer.echo("nothing to send: the files hold no records")
        return
    with closing(open_writer(to, topic, partitions, like=like)) as writer:
        for kafka_partition, records in sorted(targets.items()):
            writer.append(kafka_partition, [record.entry for record in records])
            typer.echo(f"sent {_counted(records)} to partition {kafka_partition}")
    repeated = len(letters) - sum(record.letters for record in resent)
    left_out = f"; repeated lines left out: {repeated}" if repeated else ""
    typer.echo(f"sent {_counted(resent)} to topic '{topic}' at {to}{left_out}")


class _Placed(NamedTuple):
    """A dead letter and where it stands."""

    place: str
    """FILE:LINE."""
    letter: "DeadLetter"


class _Resent(NamedTuple):
    """A record to send again."""

    place: str
    """FILE:LINE of its first letter."""
    kafka_partition: int
    """The one that it was read from."""
    rows: int | None
    """How many rows of the message it holds; None: the message as it was."""
    letters: int
    """How many lines it covers."""
    entry: "Entry"


def _read_letters(file: Path) -> Iterator[_Placed]:
    """The lines of a file. Raises ConfigError for the first that is none."""
    from xrex.schema.dead_letters import from_line

    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read: {error.strerror or error}; give dead-letters-*.jsonl files"
        ) from None
    for number, line in enumerate(lines, 1):
        place = f"{file}:{number}"
        try:
            letter = from_line(line, place)
        except RunError as error:
            raise ConfigError(f"{error}; nothing was sent") from None
        yield _Placed(place, letter)


def _resent(letters: Sequence[_Placed], codec: str) -> list[_Resent]:
    """One record for each message that the letters are of, in the order of time. Raises ConfigError."""
    messages: dict[tuple, dict[int | None, _Placed]] = {}
    for placed in letters:
        bad = placed.letter.bad
        # The value belongs to the name: where a topic was recreated, an offset means another record.
        identity = (placed.letter.topic, bad.kafka_partition, bad.offset, bad.timestamp_ms, bad.key, bad.value)
        messages.setdefault(identity, {}).setdefault(bad.row, placed)
    in_time = sorted(messages.items(), key=lambda message: (message[0][3], message[0][1], message[0][2]))
    return [_again(by_row, codec) for _, by_row in in_time]


def _again(by_row: dict[int | None, _Placed], codec: str) -> _Resent:
    """One message: whole if it is bad as a whole, else its bad rows alone."""
    place, (_, _, bad) = next(iter(by_row.values()))
    rows = [] if None in by_row else sorted(row for row in by_row if row is not None)
    places = {row: by_row[row].place for row in rows}
    value = _only(bad.value, places, codec) if places else bad.value
    entry = (bad.timestamp_ms, bad.key, value)
    return _Resent(place, bad.kafka_partition, len(places) or None, len(by_row), entry)


def _only(value: bytes, places: dict[int, str], codec: str) -> bytes:
    """A message of these rows alone, with all the columns that they came with.

    places  row -> FILE:LINE of its letter, ascending
    Raises ConfigError where the value is no message of this codec, or too short.
    """
    from xrex.data.codecs import arrow
    from xrex.data.codecs import json as json_codec

    decode = arrow.decode if codec == "arrow" else json_codec.decode
    last, place = list(places.items())[-1]
    try:
        message: Any = decode(value)
    except BadRecord as error:
        why, other = " ".join(str(error).split())[:SHOWN_REASON], "json" if codec == "arrow" else "arrow"
        raise ConfigError(
            f"{place}: the message cannot be read ({why}): is it --codec {other}? Nothing was sent"
        ) from None
    if last >= len(message):
        raise ConfigError(f"{place}: row = {last}, but the message has {len(message)} rows: remove the line")
    if codec == "arrow":
        import pyarrow as pa

        return arrow.encode(pa.concat_batches([message.slice(row, 1) for row in places]))
    objects = _objects(str(value, "utf-8"))
    kept = [objects[row] for row in places]
    return (kept[0] if len(kept) == 1 else f"[{','.join(kept)}]").encode()


def _objects(text: str) -> list[str]:
    """The text of each object of a JSON message that could be decoded, as it was sent: what makes a row bad, such as 1e400
    or half a surrogate pair, need not survive being written anew."""
    reader, found, at = json.JSONDecoder(), [], text.find("{")
    while at >= 0:
        _, end = reader.raw_decode(text, at)
        found.append(text[at:end])
        at = text.find("{", end)  # between two objects there are blanks and a comma alone
    return found


def _existing_partitions(log: "LogConfig", topic: str) -> int:
    """How many partitions the topic has. Raises ConfigError if it is not there, and what the log raises."""
    from xrex.data.log.open import open_log

    try:
        with closing(open_log(log, topic)) as opened:
            return opened.info().num_partitions
    except TopicMissing as error:
        raise ConfigError(f"--topic {topic}: {error}; nothing was sent") from None


def _targets(resent: Sequence[_Resent], partitions: int, topic: str) -> dict[int, list[_Resent]]:
    """Partition to send to -> records: by the key's hash, as `xrex data produce` does; without a key where it came from."""
    import xxhash

    targets: dict[int, list[_Resent]] = {}
    for record in resent:
        _, key, _ = record.entry
        target = record.kafka_partition if key is None else xxhash.xxh64_intdigest(key) % partitions
        if target not in range(partitions):
            raise ConfigError(
                f"{record.place}: without a key it belongs to partition {target}, topic '{topic}' has {partitions} "
                "partitions: send it to a topic with as many as it came from"
            )
        targets.setdefault(target, []).append(record)
    return targets


def _counted(records: Sequence[_Resent]) -> str:
    rows = [record.rows for record in records if record.rows is not None]
    whole = len(records) - len(rows)
    kinds = [f"{whole} whole"] if whole else []
    kinds += [f"{len(rows)} made of {sum(rows)} bad rows"] if rows else []
    return f"{len(records)} {'record' if len(records) == 1 else 'records'} ({', '.join(kinds)})"
