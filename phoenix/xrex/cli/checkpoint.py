"""`xrex checkpoint`: look at saved steps."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from xrex.checkpoint import layout, positions
from xrex.errors import ConfigError
from xrex.report.progress import text_table

app = typer.Typer(no_args_is_help=True, help="Look at saved steps: list, arrays, positions, digest, verify.")

_Where = Annotated[str, typer.Argument(metavar="PATH", help="A step, a checkpoints or a run folder.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("list")
def list_steps(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A checkpoints or a run folder.")], as_json: _Json = False
) -> None:
    """The steps of a run: which are complete, what the others lack, how large they are."""
    root = layout.open_path(folder)
    directory = root / layout.CHECKPOINTS if (root / layout.CHECKPOINTS).is_dir() else root
    if not directory.is_dir():
        raise ConfigError(f"{folder}: no such folder; give a checkpoints or a run folder")
    lacking = layout.incomplete_steps(directory)
    steps = sorted([*layout.complete_steps(directory), *lacking])
    rows = [
        {
            "step": step,
            "complete": step not in lacking,
            "bytes": None if step in lacking else _bytes(directory / str(step)),
            "lacks": lacking.get(step, []),
        }
        for step in steps
    ]
    _print(rows, as_json)


@app.command("positions")
def show_positions(path: _Where, as_json: _Json = False) -> None:
    """The next row to train of every partition."""
    file = layout.resolve(path) / layout.POSITIONS
    topics = positions.from_json(file.read_bytes(), str(file))
    if as_json:
        typer.echo(positions.to_json(topics), nl=False)
        return
    rows = [
        {
            "topic": topic.topic,
            "partition": number,
            "offset": position.offset,
            "row": position.row,
            "end_offset": position.end_offset,
            "timestamp_ms": position.timestamp_ms,
        }
        for topic in topics.values()
        for number, position in sorted(topic.partitions.items())
    ]
    _print(rows, as_json=False)


@app.command("digest")
def show_digest(path: _Where) -> None:
    """One SHA-256 over names, dtypes, shapes and bytes of every array, then the step's path."""
    step_dir = layout.resolve(path)
    # The host suffices, and an accelerator may belong to a run that trains.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from xrex.checkpoint.digest import digest  # JAX and Orbax: seconds that the other commands must not cost

    typer.echo(f"{digest(step_dir)}  {step_dir}")


@app.command("arrays")
def list_arrays(path: _Where, as_json: _Json = False) -> None:
    """Name, type and shape of every array of a step."""
    listed = json.loads((layout.resolve(path) / layout.CHECKSUMS).read_bytes())["arrays"]
    _print([{"name": name, "dtype": a["dtype"], "shape": str(a["shape"])} for name, a in listed.items()], as_json)


@app.command("verify")
def verify(path: _Where) -> None:
    """Read a step whole and compare every array with its checksum. Exit code 0: as it was saved, 1: damaged."""
    step_dir = layout.resolve(path)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from xrex.checkpoint.digest import arrays_of
    from xrex.checkpoint.restore import check_arrays, read_files

    read_files(step_dir)
    count = check_arrays(step_dir, arrays_of(step_dir))
    typer.echo(f"{step_dir}: {count} arrays, {_bytes(step_dir):,} bytes, all as they were saved")


def _bytes(step_dir: Path) -> int:
    """Size of a complete step, by its own list of files."""
    return sum(json.loads((step_dir / layout.CHECKSUMS).read_bytes())["files"].values())


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo("none")
        return
    typer.echo(text_table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows]))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return "-" if value is None else str(value)
