"""`xrex config`: look at configs and compare them. Nothing here imports JAX."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from xai_configlib import Difference, diff, load_text
from xrex.checkpoint import layout
from xrex.errors import ConfigError
from xrex.train.config import TrainerConfig

app = typer.Typer(no_args_is_help=True, help="Look at configs and compare them: check, show, diff.")

_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")]


@app.command()
def check(file: Annotated[Path, typer.Argument(metavar="FILE")]) -> None:
    """Read a config file and report every problem in it; exit code 2 if there is one."""
    read_config(str(file))
    typer.echo(f"{file}: valid")


@app.command()
def show(path: Annotated[str, typer.Argument(metavar="PATH", help="A config file, a step, or a run folder.")]) -> None:
    """Print the canonical config.json, every default included."""
    typer.echo(read_config(path).to_json(), nl=False)


@app.command("diff")
def diff_command(
    a: Annotated[str, typer.Argument(metavar="A", help="A config file, a step, or a run folder.")],
    b: Annotated[str, typer.Argument(metavar="B")],
    as_json: _Json = False,
) -> None:
    """Every field that differs, a line each. Exit code 0: equal, 1: different, 2: trouble."""
    differences = diff(read_config(a), read_config(b))
    if as_json:
        typer.echo(json.dumps([asdict(d) for d in differences], indent=2))
    else:
        for difference in differences:
            typer.echo(_line(difference))
    raise typer.Exit(1 if differences else 0)


def read_config(path: str) -> TrainerConfig:
    """The config of a file, of a step or of a run folder. Raises ConfigError."""
    place = layout.open_path(path)
    file: Any = place
    if place.is_dir():
        # A run folder's own config.json is that of its newest start, a step's that of the save.
        file = place / layout.CONFIG if (place / layout.CONFIG).exists() else layout.resolve(path) / layout.CONFIG
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read: {error.strerror or error}; give a config file, a step or a run folder"
        ) from None
    return TrainerConfig.from_json(load_text(text, str(file)), source=str(file))


def _line(difference: Difference) -> str:
    left, right = (json.dumps(value, ensure_ascii=False) for value in (difference.left, difference.right))
    return f"{difference.path}: {left} -> {right}  ({difference.policy})"
