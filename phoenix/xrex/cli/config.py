"""`xrex config`: look at configs, compare them, follow production. Nothing here imports JAX."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from xai_configlib import Difference, FieldRow, describe, diff, json_schema, load_text
from xai_configlib.errors import did_you_mean, is_at_or_below, split_path
from xrex.checkpoint import layout
from xrex.errors import CheckpointError, ConfigError
from xrex.report.progress import text_table
from xrex.train import follow
from xrex.train.config import TrainerConfig
from xrex.train.start import read_checkpoint_config
from xrex.utils.metadata import Run, Source

app = typer.Typer(
    no_args_is_help=True,
    help="Look at configs, compare them, follow production: check, show, diff, blame, fields, schema, watch, import.",
)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")]
_Keep = Annotated[
    bool,
    typer.Option("--keep-unknown", help="Carry along the fields that a newer release wrote, with a line for each."),
]
_PLACE = "A config file, a step, or a run folder."


@app.command()
def check(file: Annotated[Path, typer.Argument(metavar="FILE")], keep_unknown: _Keep = False) -> None:
    """Read a config file and report every problem in it; exit code 2 if there is one."""
    read_config(str(file), keep_unknown=keep_unknown)
    typer.echo(f"{file}: valid")


@app.command()
def show(path: Annotated[str, typer.Argument(metavar="PATH", help=_PLACE)], keep_unknown: _Keep = False) -> None:
    """Print the canonical config.json, every default included."""
    typer.echo(read_config(path, keep_unknown=keep_unknown).to_json(), nl=False)


@app.command("diff")
def diff_command(
    a: Annotated[str, typer.Argument(metavar="A", help=_PLACE)],
    b: Annotated[str, typer.Argument(metavar="B")],
    as_json: _Json = False,
    keep_unknown: _Keep = False,
) -> None:
    """Every field that differs, a line each. Exit code 0: equal, 1: different, 2: trouble."""
    differences = diff(read_config(a, keep_unknown=keep_unknown), read_config(b, keep_unknown=keep_unknown))
    _print_differences(differences, as_json)
    raise typer.Exit(1 if differences else 0)


@app.command()
def blame(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A step, a checkpoints or a run folder.")],
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A field or a section; all fields if left out.")] = "",
    as_json: _Json = False,
    keep_unknown: _Keep = False,
) -> None:
    """Which run of the lineage gave each field its value, when, and by what."""
    place = _folder_of_run(checkpoint)
    run = Run.from_json((place / layout.RUN).read_bytes(), str(place / layout.RUN))
    values = read_config(str(place), keep_unknown=keep_unknown).to_dict()
    there = [name for name in run.provenance if _has(values, name)]  # an older step may hold a field by another name
    rows = [(name, _value_at(values, name), run.source_of(name)) for name in _selected(there, path)]
    if as_json:
        typer.echo(json.dumps([{"path": p, "value": v, **asdict(source)} for p, v, source in rows], indent=2))
        return
    heading = ("field", "value", "by", "run", "when", "from")
    typer.echo(text_table(heading, [_blame_cells(*row) for row in rows]))


@app.command()
def fields(
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="A field or a section; all fields if left out.")] = "",
    as_json: _Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/config.md.")] = False,
) -> None:
    """Every field that can be set: name, type, unit, default, policy, what it means."""
    rows = describe(TrainerConfig)
    chosen = set(_selected([row.path for row in rows], path))
    rows = [row for row in rows if row.path in chosen]
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    elif markdown:
        from xrex.report.config_page import config_page

        typer.echo(config_page(rows), nl=False)
    else:
        for row in rows:
            typer.echo(_field_line(row))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a config, by which editors complete and check configs/*.yaml."""
    typer.echo(json.dumps(json_schema(TrainerConfig), indent=2, ensure_ascii=False))


@app.command()
def watch(
    production: Annotated[str, typer.Argument(metavar="PROD_CHECKPOINTS", help="Production's checkpoints folder.")],
    against: Annotated[str, typer.Option(metavar="RUN", help="The run folder, or a step, of the experiment.")],
    every_s: Annotated[float, typer.Option("--every-s", min=0.1, help="Seconds between two looks.")] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Look once: exit code 0 if nothing has changed.")] = False,
    as_json: _Json = False,
    keep_unknown: _Keep = False,
) -> None:
    """Wait until production's newest config is no longer what the run inherited; then print the difference.

    Exit code 0: equal (with --once), 1: different, 2: trouble.
    """
    try:
        place = _folder_of_run(against)
        run = Run.from_json((place / layout.RUN).read_bytes(), str(place / layout.RUN))
        inherited = follow.inherited_config(run, str(place / layout.RUN), production)
        looks = follow.drift(
            inherited, run, production, every_s=every_s, keep_unknown=keep_unknown, say=layout.say_on_stderr
        )
        look = next(look for look in looks if look.differences or once)
    except (CheckpointError, OSError) as error:  # exit code 1 means that something differs
        raise ConfigError(str(error)) from None
    _print_differences(look.differences, as_json)
    raise typer.Exit(1 if look.differences else 0)


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="config.json of the published production trainer.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON too, on stderr.")] = False,
) -> None:
    """Turn a config.json of the published production trainer into one of Phoenix: the config on stdout, what became of
    every value of the file (taken, translated, ignored and why) on stderr."""
    from xrex.train.published import import_published

    place = layout.open_path(str(file))
    try:
        text = place.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}; check the path") from None
    imported = import_published(load_text(text, str(file)), str(file))
    typer.echo(imported.config.to_json(), nl=False)
    if as_json:
        typer.echo(json.dumps([asdict(line) for line in imported.lines], indent=2), err=True)
    else:
        rows = [(line.source, line.verdict, line.target or "-", line.why) for line in imported.lines]
        typer.echo(text_table(("published", "verdict", "here", "why"), rows), err=True)


def read_config(path: str, *, keep_unknown: bool = False) -> TrainerConfig:
    """The config of a file, of a step or of a run folder. Raises ConfigError."""
    place = layout.open_path(path)
    if place.is_dir():
        # A run folder's own config.json is that of its newest start, a step's that of the save.
        folder = place if (place / layout.CONFIG).exists() else layout.resolve(path)
        return read_checkpoint_config(folder / layout.CONFIG, keep_unknown=keep_unknown, say=layout.say_on_stderr)[1]
    try:
        text = place.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{place}: cannot be read: {error.strerror or error}; give a config file, a step or a run folder"
        ) from None
    return TrainerConfig.from_json(
        load_text(text, str(place)),
        source=str(place),
        unknown="keep" if keep_unknown else "error",
        say=layout.say_on_stderr,
    )


def _folder_of_run(path: str) -> Any:
    """The folder that holds run.json: the run folder or the step itself, or the newest step below. Raises ConfigError."""
    place = layout.open_path(path)
    return place if (place / layout.RUN).exists() else layout.resolve(path)


def _selected(paths: Sequence[str], wanted: str) -> list[str]:
    """The paths at or below the wanted one; all if it is empty. Raises ConfigError if there is none."""
    if not wanted:
        return list(paths)
    try:
        steps = [split_path(wanted)]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    found = [path for path in paths if is_at_or_below(_steps(path), steps)]
    if not found:
        sections = {".".join(_steps(path)[:depth]) for path in paths for depth in range(1, len(_steps(path)))}
        fix = did_you_mean(wanted, [*paths, *sections]) or "xrex config fields lists them"
        raise ConfigError(f"{wanted}: unknown field; {fix}")
    return found


def _steps(path: str) -> tuple[str, ...]:
    return split_path(path.replace("[*]", "").replace(".*", ""))


def _value_at(node: Any, path: str) -> Any:
    for step in split_path(path):
        node = node[int(step)] if isinstance(node, list) else node[step]
    return node


def _has(values: Any, path: str) -> bool:
    try:
        _value_at(values, path)
    except (LookupError, TypeError):
        return False
    return True


def _blame_cells(path: str, value: Any, source: Source) -> tuple[str, ...]:
    when = source.time[:16].replace("T", " ")
    given = source.given or (source.code_version if source.origin == "default" else "")
    return path, _short(value), source.origin, f"{source.name} {source.run_id[:8]}", when, given


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _field_line(row: FieldRow) -> str:
    default = "required" if row.required else f"default {_short(row.default)}"
    facts = [row.type, *([row.unit] if row.unit else []), default, *([row.policy] if row.policy else [])]
    variant = f" ({row.variant})" if row.variant else ""
    return f"{row.path}{variant}: {', '.join(facts)}: {row.doc}"


def _print_differences(differences: Sequence[Difference], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([asdict(difference) for difference in differences], indent=2))
        return
    for difference in differences:
        left, right = (json.dumps(value, ensure_ascii=False) for value in (difference.left, difference.right))
        typer.echo(f"{difference.path}: {left} -> {right}  ({difference.policy})")
