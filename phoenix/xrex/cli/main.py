"""The `xrex` command."""

import sys
from functools import cache
from typing import Annotated, NoReturn

import typer

COMMANDS = {
    "train": "Train a recommender on a stream, from a config or from a checkpoint.",
    "plan": "Print the bytes that a run needs on each device.",
    "replay": "Train the N steps after a checkpoint again.",
    "config": "Look at configs, compare them, follow production.",
    "checkpoint": "Look at saved steps.",
    "data": "Write streams to train on, and look at them.",
}
"""Name -> its line in `xrex --help`, which loads none of them."""


@cache
def app() -> typer.Typer:
    """All commands."""
    from xrex.cli import checkpoint, config, data, plan, replay, stream
    from xrex.train import trainer_recsys

    whole = _root()
    for name, command in (("train", trainer_recsys.command), ("plan", plan.command), ("replay", replay.command)):
        whole.command(name, short_help=COMMANDS[name])(command)
    for command in (stream.lag, stream.inspect, stream.resend):
        data.app.command()(command)
    for name, commands in (("config", config.app), ("checkpoint", checkpoint.app), ("data", data.app)):
        whole.add_typer(commands, name=name, short_help=COMMANDS[name])
    return whole


def overview() -> typer.Typer:
    """Their names and lines alone, for `xrex --help`."""
    names = _root()
    for name, line in COMMANDS.items():
        names.command(name, short_help=line)(lambda: None)
    return names


def _root() -> typer.Typer:
    made = typer.Typer(
        name="xrex", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    made.callback()(root)
    return made


def _version(asked: bool) -> None:
    if asked:
        import importlib.metadata

        typer.echo(importlib.metadata.version("phoenix-recsys"))
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show stack traces, of any command.")] = False,
) -> None:
    """Train recommenders on live streams, from production's own config, without drift."""


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:] == ["--help"]:
        overview()()
    from xrex.train.launch import with_machine_settings
    from xrex.train.trainer_recsys import run_command_line

    if sys.argv[1:2] == ["train"]:
        with_machine_settings()
    run_command_line(app())


if __name__ == "__main__":
    main()
