"""How a command ends: its exit code, and one line a problem on stderr."""

import sys
import traceback
from collections.abc import Callable

from xrex.errors import EXIT_FAILED, ConfigError, PhoenixError, exit_code
from xrex.report.progress import quiet_broken_pipe

LINE_CHARACTERS = 2_000
"""A line of an unexpected error is cut here; library errors can hold whole programs."""


def exit_code_of(command: Callable[[], int], *, debug: bool = False) -> int:
    """Run a command and turn what it raises into lines on stderr and an exit code.

    debug  also print the stack trace
    A ConfigError gives 2, any other error 1, an interrupt 130; a closed stdout (`| head -1`) ends quietly with 1.
    """
    try:
        return command()
    except BrokenPipeError:
        quiet_broken_pipe()
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted before the first step; nothing was changed since the last checkpoint", file=sys.stderr)
        return 130
    except (ConfigError, PhoenixError) as error:
        _say(str(error), debug)
        return exit_code(error)
    except Exception as error:
        text = " ".join(f"unexpected {type(error).__name__}: {error}".split())
        _say(text[:LINE_CHARACTERS] + ("" if debug else "; run again with --debug for the stack trace"), debug)
        return EXIT_FAILED


def leave(code: int) -> None:
    """Flush and end the process with the code, quietly even if a reader has gone."""
    quiet_broken_pipe()
    sys.exit(code)


def _say(text: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(text, file=sys.stderr, flush=True)
