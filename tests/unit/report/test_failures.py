"""How a command ends: lines on stderr and an exit code."""

import sys
from typing import Annotated

import pytest
import typer

from xrex.errors import ConfigError, LogUnreachable, RunError
from xrex.report.failures import LINE_CHARACTERS, exit_code_of, invoke, reason

app = typer.Typer(rich_markup_mode=None)


@app.command()
def add(numbers: Annotated[list[int], typer.Argument()], code: int = 0) -> None:
    if code:
        raise typer.Exit(code)


@app.command()
def fail() -> None:
    raise RunError("the disk is full: make room")


def raising(error):
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("a = 1: expected a string\nb: missing"), 2, "a = 1: expected a string\nb: missing\n"),
        (LogUnreachable("no broker at x:1"), 1, "no broker at x:1\n"),
        (KeyError("lost"), 1, "unexpected KeyError: 'lost'; run again with --debug for the stack trace\n"),
        (ValueError("two\nlines"), 1, "unexpected ValueError: two lines; run again with --debug for the stack trace\n"),
        (BrokenPipeError(), 1, ""),
    ],
)
def test_an_error_is_one_line_a_problem_and_an_exit_code(capsys, error, code, line):
    assert exit_code_of(raising(error)) == code
    assert capsys.readouterr() == ("", line)


def test_an_interrupt_is_130(capsys):
    assert exit_code_of(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_debug_shows_the_stack_trace_first(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["xrex", "train", "--debug"])
    assert exit_code_of(raising(KeyError("lost"))) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "unexpected KeyError: 'lost'"


def test_escape_codes_in_a_message_do_not_reach_the_terminal(capsys):
    exit_code_of(raising(RunError("topic '\x1b[2J\r' is not there\nsecond line")))
    assert capsys.readouterr().err == "topic '\\x1b[2J\\r' is not there\nsecond line\n"


def test_a_library_error_that_holds_a_whole_program_is_cut():
    assert len(reason(ValueError("x" * 100_000))) == LINE_CHARACTERS


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["add"], "add: missing argument"),
        (["add", "--nosuch"], "add: no such option: --nosuch; see"),
        (["nosuch"], "no such command 'nosuch'; see"),
        (["add", "x"], "add: invalid value for"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_names_the_help(words, line):
    with pytest.raises(ConfigError) as caught:
        invoke(app, words)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("--help")


def test_a_command_may_choose_its_exit_code_and_raise_its_error():
    assert invoke(app, ["add", "1"]) == 0
    assert invoke(app, ["add", "1", "--code", "3"]) == 3
    assert invoke(app, ["--debug", "add", "1"]) == 0
    with pytest.raises(RunError, match="make room"):
        invoke(app, ["fail"])
