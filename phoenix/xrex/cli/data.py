"""`xrex data`: write streams to train on."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xrex.errors import ConfigError, RunError
from xrex.train.start import command_line

if TYPE_CHECKING:
    from xrex.data.events import EventColumns
    from xrex.data.log.config import KafkaLog, LogConfig
    from xrex.data.produce import Produced, Source

# Functions below import what they use: --help must not wait for Arrow.

app = typer.Typer(
    no_args_is_help=True, help="Write streams to train on, and look at them: produce, lag, inspect, resend."
)


class _From(StrEnum):
    synthetic = "synthetic"
    movielens = "movielens"
    events = "events"


class Codec(StrEnum):
    """Encoding of messages, as a command line names it."""

    arrow = "arrow"
    json = "json"


BrokerConfig = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Kafka: the config whose dataset.log.security speaks to the brokers of --to."),
]
"""`--config` of the commands that write to `--to`."""


_TAKES = {
    "--taste": _From.synthetic,
    "--intent": _From.synthetic,
    "--user-column": _From.events,
    "--time-column": _From.events,
    "--user-columns": _From.events,
    "--candidate-columns": _From.events,
    "--actions": _From.events,
}
"""Options that only one source reads."""


@app.callback()
def data() -> None:
    """Write streams to train on."""


@app.command()
def produce(
    to: Annotated[str, typer.Option(metavar="FOLDER|HOST:PORT", help="Folder of a directory log, or Kafka brokers.")],
    topic: Annotated[str, typer.Option(help="Topic to create; it must not hold records yet.")],
    path: Annotated[Path | None, typer.Argument(help="What --from movielens or events reads.")] = None,
    source: Annotated[_From, typer.Option("--from", help="Where events come from.")] = _From.synthetic,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topic.")] = 4,
    examples: Annotated[
        int | None, typer.Option(min=1, help="The first N events by time; synthetic: 300,000 unless given.")
    ] = None,
    skip: Annotated[
        int, typer.Option(min=0, metavar="N", help="Write no row for the first N events; histories do hold them.")
    ] = 0,
    rows_per_message: Annotated[
        int | None, typer.Option(min=1, help="Rows of one message; unless given about 64 KiB with arrow, 1 with json.")
    ] = None,
    max_history: Annotated[
        int | None, typer.Option(min=1, help="Earlier events a row carries; 20 unless given, 30 for movielens.")
    ] = None,
    history_until: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Histories hold none but the first N events; all earlier ones unless given."
        ),
    ] = None,
    codec: Annotated[Codec, typer.Option(help="Encoding of a message.")] = Codec.arrow,
    seed: Annotated[int, typer.Option(min=0, help="Which synthetic world; nothing else is drawn by chance.")] = 0,
    taste: Annotated[
        float | None, typer.Option(help="Synthetic: weight of the user-item factors, 0.4 unless given.")
    ] = None,
    intent: Annotated[
        float | None, typer.Option(help="Synthetic: weight of the user's recent clicks, 7 unless given.")
    ] = None,
    user_column: Annotated[str | None, typer.Option(help="Events: column of the user id; 'user' unless given.")] = None,
    time_column: Annotated[
        str | None,
        typer.Option(help="Events: column of the event time, unix ms or timestamps; 'event_time_ms' unless given."),
    ] = None,
    user_columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Events: further columns of the user.")
    ] = None,
    candidate_columns: Annotated[
        str | None, typer.Option(metavar="C,D", help="Events: columns of what was shown; 'item' unless given.")
    ] = None,
    actions: Annotated[str | None, typer.Option(metavar="E,F", help="Events: label columns, 0, 1 or null.")] = None,
    config: BrokerConfig = None,
) -> None:
    """Turn events into rows with histories, and write them to a topic.

    xrex data produce --to runs/log --topic engagements

    xrex data produce --to localhost:9092 --topic ratings --from movielens ml-100k/

    xrex data produce --to runs/log --topic mine --from events events.parquet --actions click,buy

    xrex data produce --to kafka-1:9093 --topic engagements --config secured.yaml
    """
    from xrex.data.events import RowBuilder
    from xrex.data.produce import open_empty_topic
    from xrex.data.produce import produce as produce_rows

    knobs = {
        "--taste": taste,
        "--intent": intent,
        "--user-column": user_column,
        "--time-column": time_column,
        "--user-columns": user_columns,
        "--candidate-columns": candidate_columns,
        "--actions": actions,
    }
    given = {name: value for name, value in knobs.items() if value is not None}
    like = None if config is None else security_of(config, to, topic)
    found = _source(source, path, given, seed, examples)
    builder = RowBuilder(
        found.events,
        found.columns,
        max_history or found.max_history,
        examples,
        skip=skip,
        history_until=history_until,
    )
    if not len(builder):
        after = f" after the first {skip:,}, which --skip leaves out" if skip else ""
        raise RunError(f"there are no events{after}, so nothing was written: look at the file that --from names")
    writer, log = open_empty_topic(to, topic, partitions, like=like)
    try:
        with _progress(len(builder)) as on_rows:
            written = produce_rows(
                builder,
                writer,
                partitions=partitions,
                codec=codec.value,
                rows_per_message=rows_per_message,
                on_rows=on_rows,
            )
    finally:
        writer.close()
    typer.echo(_summary(written, found, to, topic, partitions))
    typer.echo(_next_step(source, config, _overrides(log, topic, partitions, codec), found.columns))


def security_of(file: str, to: str, topic: str) -> "KafkaLog":
    """The `dataset.log` of a config, by which the brokers of --to are spoken to. Raises ConfigError, before any work."""
    from xrex.cli.config import read_config
    from xrex.data.log.config import KafkaLog
    from xrex.data.log.open import log_at
    from xrex.data.log.security import check_log

    like = read_config(file).dataset.log
    if not isinstance(log_at(to), KafkaLog):
        raise ConfigError(f"--config {file}: --to {to} is a folder, which has no security: leave --config out")
    if not isinstance(like, KafkaLog):
        raise ConfigError(f"--config {file}: dataset.log is no KafkaLog: give a config that reads these brokers")
    check_log(log_at(to, like), topic)
    return like


def _source(source: _From, path: Path | None, given: dict[str, Any], seed: int, examples: int | None) -> "Source":
    from xrex.data.events import EventColumns
    from xrex.data.produce import file_source, movielens_source, synthetic_source
    from xrex.data.synthetic import World

    for option in given:
        if _TAKES[option] is not source:
            raise ConfigError(f"{option} is read with --from {_TAKES[option]}, not with --from {source}: leave it out")
    if source is _From.synthetic:
        if path is not None:
            raise ConfigError(
                f"--from synthetic reads no path, but {str(path)!r} is given: say --from movielens or events"
            )
        return synthetic_source(
            World(seed=seed, **{option.strip("-"): value for option, value in given.items()}), examples
        )
    if path is None:
        raise ConfigError(f"--from {source} needs the path of its data: xrex data produce --from {source} PATH ...")
    if source is _From.movielens:
        return movielens_source(path)
    defaults = EventColumns()
    columns = EventColumns(
        user=given.get("--user-column", defaults.user),
        time=given.get("--time-column", defaults.time),
        user_columns=_names(given.get("--user-columns", "")),
        candidate_columns=_names(given.get("--candidate-columns", ",".join(defaults.candidate_columns))),
        actions=_names(given.get("--actions", "")),
    )
    return file_source(path, columns)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    from xrex.report.progress import ProgressBar

    progress = ProgressBar(total, sys.stderr)
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if sys.stderr.isatty():
            progress.update(done, {})
        else:
            progress.line(f"{done:,} of {total:,} rows")

    try:
        yield advance
    finally:
        progress.close()


def _summary(written: "Produced", source: "Source", to: str, topic: str, partitions: int) -> str:
    lines = [
        f"wrote {written.rows:,} rows in {written.messages:,} messages of up to {written.rows_per_message} rows, "
        f"{written.value_bytes:,} bytes, to the {partitions} partitions of topic {topic!r} at {to}"
    ]
    if source.unused:
        lines.append(f"not written, because no option names them: {', '.join(source.unused)}")
    return "\n".join(lines)


def _next_step(source: _From, given: str | None, overrides: dict[str, str], columns: "EventColumns") -> str:
    """How to train on it: by the config that was given, else by one of ours, which needs another `dataset.log`."""
    synthetic = "configs/ranker_kafka.yaml" if "dataset.log" in overrides else "configs/quickstart.yaml"
    configs = {_From.synthetic: synthetic, _From.movielens: "configs/movielens.yaml", _From.events: "YOURS.yaml"}
    config = given or configs[source]
    if given:
        overrides = {path: value for path, value in overrides.items() if path != "dataset.log"}
    line = command_line("--config", config, *(f"{path}={value}" for path, value in overrides.items()))
    if source is not _From.events:
        return f"next: {line}"
    user = ", ".join((columns.user, *columns.user_columns, "user_gap", "user_events"))
    history = ", ".join((*(f"history_{name}" for name in columns.candidate_columns), "history_age"))
    return (
        f"next: in {config} name the columns: dataset.actions [{', '.join(columns.actions)}]; features of group "
        f"user: {user}; candidate: {', '.join(columns.candidate_columns)}; history: {history}\nthen: {line}"
    )


def _overrides(log: "LogConfig", topic: str, partitions: int, codec: Codec) -> dict[str, str]:
    """What a config must say to read the topic that was written."""
    from xrex.data.log.config import DirectoryLog, KafkaLog

    where: dict[str, str] = {}
    if isinstance(log, DirectoryLog):
        where = {"dataset.log.path": log.path}
    elif isinstance(log, KafkaLog):
        where = {"dataset.log": "KafkaLog", "dataset.log.bootstrap_servers": log.bootstrap_servers}
    topic_fields = {"dataset.topic_name": topic, "dataset.num_kafka_partitions": str(partitions)}
    return where | topic_fields | ({} if codec is Codec.arrow else {"dataset.codec": codec.value})
