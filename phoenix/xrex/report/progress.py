"""What a run says while it runs: a bar on a terminal, plain lines in a file."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

Value = float | int | str | None


class ProgressBar:
    """Progress of a run on `stream`: a bar with the newest numbers on a terminal, a plain line an interval elsewhere.

    A file or pipe never gets a carriage return or an escape code. A closed pipe raises BrokenPipeError, for which there
    is quiet_broken_pipe.
    """

    def __init__(self, total: int | None, stream: TextIO):
        """`total` steps, None if nobody knows."""
        self._total = total
        self._stream = stream
        self._bar = _Bar(total, stream) if stream.isatty() and os.environ.get("TERM") != "dumb" else None

    def line(self, text: str) -> None:
        """Say something once; on a terminal it stays above the bar."""
        if self._bar:
            self._bar.line(text)
        else:
            print(text, file=self._stream, flush=True)

    def update(self, step: int, numbers: Mapping[str, Value]) -> None:
        """Show where the run stands; called once a logging interval."""
        text = "  ".join(f"{name} {format_value(value)}" for name, value in numbers.items())
        if self._bar:
            self._bar.update(step, text)
        else:
            self.line(f"step {step}{f'/{self._total}' if self._total else ''}  {text}".rstrip())

    def close(self) -> None:
        """Leave the terminal as it was, with the last numbers on it."""
        if self._bar:
            self._bar.close()


class _Bar:
    """A rich progress bar, redrawn only by its calls: a thread that redraws could outlive the run."""

    def __init__(self, total: int | None, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(file=stream, markup=False, highlight=False, emoji=False)
        columns = (
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def line(self, text: str) -> None:
        self._progress.console.print(text, soft_wrap=True)
        self._progress.refresh()

    def update(self, step: int, text: str) -> None:
        self._progress.update(self._task, completed=step, description=text)
        self._progress.refresh()

    def close(self) -> None:
        self._progress.stop()


def format_value(value: Value) -> str:
    """A number as people read it: 4 significant digits below 1,000, thousands separated above; "-" of None."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1_000 else f"{value:.4g}"


def table(header: Sequence[str], rows: Sequence[Sequence[Value]]) -> str:
    """A plain-text table: first column to the left, the others to the right.

    table(["", "auc"], [["baseline online LR", 0.7012], ["this run", 0.7433], ["optimum", 0.7561]])
    """
    cells = [list(header), *([format_value(value) for value in row] for row in rows)]
    return _aligned(cells, lambda cell, column, width: cell.rjust(width) if column else cell.ljust(width))


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain-text table of words: all columns to the left."""
    return _aligned([header, *rows], lambda cell, column, width: cell.ljust(width))


def _aligned(cells: Sequence[Sequence[str]], pad: Callable[[str, int, int], str]) -> str:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(pad, row, range(len(row)), widths)).rstrip() for row in cells)


def quiet_broken_pipe() -> None:
    """Send what is left of stdout and stderr nowhere if their reader has gone: `xrex ... | head -1` ends quietly.

    To be called on BrokenPipeError, before leaving; the interpreter's own flush at exit would complain otherwise.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
