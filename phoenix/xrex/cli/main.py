"""The `xrex` command."""

import importlib.metadata
import sys
from typing import Annotated

import typer
from click.exceptions import Exit

from xrex.cli import checkpoint, config, data
from xrex.report.failures import exit_code_of, leave
from xrex.train import trainer_recsys

app = typer.Typer(
    name="xrex", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
app.command("train")(trainer_recsys.command)
app.add_typer(config.app, name="config")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(data.app, name="data")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(importlib.metadata.version("phoenix-recsys"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train recommenders on live streams, from production's own config, without drift."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    leave(exit_code_of(run, debug="--debug" in sys.argv))


def run() -> int:
    """The command's exit code; usage errors are printed here, everything else is raised."""
    try:
        app(standalone_mode=False)
    except Exit as done:
        return done.exit_code
    return 0


if __name__ == "__main__":
    main()
