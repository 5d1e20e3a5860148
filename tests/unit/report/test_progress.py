import contextlib
import io
import os
import pty
import subprocess
import sys

from xrex.report.progress import ProgressBar, table

NUMBERS = {"loss": 0.123456, "auc": 0.75, "examples/s": 12_345.6, "lag": 2_000_000, "freshness": None, "state": "ok"}
SHOWN = "loss 0.1235  auc 0.75  examples/s 12,346  lag 2,000,000  freshness -  state ok"


def test_a_file_gets_one_plain_line_an_interval():
    file = io.StringIO()
    progress = ProgressBar(2_000, file)
    progress.line("assignment: partitions 0, 1 -> process 0")
    progress.update(100, NUMBERS)
    progress.update(200, {"loss": 0.1})
    progress.close()
    assert (
        file.getvalue()
        == f"assignment: partitions 0, 1 -> process 0\nstep 100/2000  {SHOWN}\nstep 200/2000  loss 0.1\n"
    )


def test_without_a_known_end_only_the_step_is_shown():
    file = io.StringIO()
    ProgressBar(None, file).update(7, {})
    assert file.getvalue() == "step 7\n"


def read_to_the_end(terminal: int) -> str:
    """What was written to a terminal whose other end is closed; it comes in pieces, then as an input/output error."""
    shown = b""
    with contextlib.suppress(OSError):
        while True:
            shown += os.read(terminal, 4_096)
    return shown.decode()


def test_a_terminal_gets_a_bar_with_the_same_numbers(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    terminal, our_end = pty.openpty()
    with os.fdopen(our_end, "w") as stream:
        progress = ProgressBar(2_000, stream)
        progress.update(100, NUMBERS)
        progress.line("saved [bold]step 100[/bold]")
        progress.close()
    shown = read_to_the_end(terminal)
    os.close(terminal)
    assert SHOWN in shown
    assert "100/2000" in shown
    assert "saved [bold]step 100[/bold]" in shown
    assert "\x1b[" in shown


def test_a_closed_pipe_ends_in_silence_with_the_code_that_main_gives():
    program = """
import sys
from xrex.report.progress import ProgressBar, quiet_broken_pipe
progress = ProgressBar(None, sys.stdout)
try:
    for step in range(100_000):
        progress.update(step, {"loss": 0.5})
except BrokenPipeError:
    quiet_broken_pipe()
    sys.exit(1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    first = process.stdout.readline()
    process.stdout.close()
    complaint = process.stderr.read()
    assert (first, complaint, process.wait(timeout=20)) == ("step 0  loss 0.5\n", "", 1)
    process.stderr.close()


def test_a_table_lines_up_its_columns():
    rows = [["baseline online LR", 0.70125, None], ["this run", 0.7433, 1.02], ["optimum", 0.75612, 1.0]]
    assert table(["like", "auc", "calibration"], rows).splitlines() == [
        "like                   auc  calibration",
        "baseline online LR  0.7013            -",
        "this run            0.7433         1.02",
        "optimum             0.7561            1",
    ]
