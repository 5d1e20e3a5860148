"""The `xrex` command."""

import sys
from typing import Annotated, NoReturn

import typer

from xrex.cli import checkpoint, config, data, plan, replay, stream
from xrex.train import trainer_recsys
from xrex.train.launch import with_machine_settings

app = typer.Typer(
    name="xrex", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
app.command("train")(trainer_recsys.command)
app.add_typer(config.app, name="config")
app.add_typer(checkpoint.app, name="checkpoint")
app.command("plan")(plan.command)
app.command("replay")(replay.command)
for command in (stream.lag, stream.inspect, stream.resend):
    data.app.command()(command)
app.add_typer(data.app, name="data")


def _version(asked: bool) -> None:
    if asked:
        import importlib.metadata

        typer.echo(importlib.metadata.version("phoenix-recsys"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show stack traces, of any command.")] = False,
) -> None:
    """Train recommenders on live streams, from production's own config, without drift."""


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:2] == ["train"]:
        with_machine_settings()
    trainer_recsys.run_command_line(app)


if __name__ == "__main__":
    main()
