"""How a command ends: its exit code, and one line a problem on stderr."""

import io
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import typer

from xrex.errors import EXIT_FAILED, ConfigError, PhoenixError, exit_code
from xrex.report.progress import quiet_broken_pipe

LINE_CHARACTERS = 2_000
"""A line of an unexpected error is cut here; library errors can hold whole programs."""

_UsageError: Any = typer.BadParameter.__base__
"""Base of typer's usage errors. Some releases of typer carry click inside, so that click's own class is another one."""


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command and turn what it raises into lines on stderr and an exit code.

    A ConfigError gives 2, any other error 1, an interrupt 130; a closed stdout (`| head -1`) ends quietly with 1.
    Where `--debug` stands on the command line, the stack trace comes first.
    """
    try:
        return command()
    except BrokenPipeError:
        quiet_broken_pipe()
        return EXIT_FAILED
    except KeyboardInterrupt:
        _say("interrupted before the first step; the newest checkpoint, if there is one, is as it was")
        return 130
    except Exception as error:
        if is_debug():
            traceback.print_exc()
        _say(reason(error) + ("" if is_debug() or is_ours(error) else "; run again with --debug for the stack trace"))
        return exit_code(error)


def invoke(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; its exit code. Raises ConfigError with one line where the command line is wrong."""
    try:
        return app([word for word in arguments if word != "--debug"], standalone_mode=False) or 0
    except _UsageError as error:
        raise ConfigError(_usage(error)) from None


def reason(error: BaseException) -> str:
    """What the operator reads of an error: our own words, or one line that says that nobody expected it."""
    if is_ours(error):
        return str(error)
    if isinstance(error, BrokenPipeError):
        return "the reader of the output has gone"
    return " ".join(f"unexpected {type(error).__name__}: {error}".split())[:LINE_CHARACTERS]


def is_ours(error: BaseException) -> bool:
    """Whether the error was raised on purpose, with words for the operator."""
    return isinstance(error, ConfigError | PhoenixError)


def is_debug() -> bool:
    """Whether the command line asks for stack traces; every command may."""
    return "--debug" in sys.argv


def utf8_output() -> None:
    """Print UTF-8 in every locale; what no UTF-8 can write (bytes of a file name, say) is escaped, never an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def leave(code: int) -> NoReturn:
    """Flush and end the process with the code, quietly even if a reader has gone."""
    quiet_broken_pipe()
    sys.exit(code)


def _usage(error: Any) -> str:
    text = error.format_message()
    if error.ctx is None or "\n" in text:  # the help of a group of commands that was called without one
        return text
    command = error.ctx.command_path
    return f"{command}: {text[0].lower()}{text[1:].rstrip('.')}; see {command} --help"


def _say(text: str) -> None:
    """Print lines; whatever moves a terminal's cursor or colours it is escaped."""
    shown = "\n".join(
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        for line in text.split("\n")
    )
    print(shown, file=sys.stderr, flush=True)
