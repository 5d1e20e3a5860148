"""docs/production.md: its commands, run from top to bottom, print what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runs import ROOT

PAGE = ROOT / "docs" / "production.md"
VARIES = {
    r"\b[0-9a-f]{8}\b": "RUN",
    r"\d{4}-\d\d-\d\d \d\d:\d\d": "TIME",
    r"\+[0-9a-f]{12}\b": "+CODE",
    r"[\d,]+ examples/s": "N examples/s",
    r"\S*/python ": "python ",
    r" /\S*(?=/runs/)": " …",
    r" +": " ",
}
"""What differs from one run of the page to the next."""


@pytest.mark.slow
def test_every_command_of_the_page_prints_what_the_page_shows(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = list(page_commands())
    assert len(commands) >= 10
    for command, expected in commands:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True
        )
        printed = [steady(line) for line in done.stdout.splitlines()]
        assert matches(expected, printed), f"$ {command}\n{done.stdout}"


def page_commands():
    """(command, lines) of each `$ command` in the page's console blocks."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            yield command, [steady(line) for line in lines]


def steady(line: str) -> str:
    for pattern, word in VARIES.items():
        line = re.sub(pattern, word, line)
    return line.strip()


def matches(expected: list[str], printed: list[str]) -> bool:
    """Whether the lines are these; an expected "…" stands for any number of lines."""
    if not expected:
        return not printed
    if expected[0] == "…":
        return any(matches(expected[1:], printed[n:]) for n in range(len(printed) + 1))
    return bool(printed) and printed[0] == expected[0] and matches(expected[1:], printed[1:])


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        (["a", "…", "b"], ["a", "x", "y", "b"], True),
        (["a", "…", "b"], ["a", "b"], True),
        (["a", "…", "b"], ["a", "b", "c"], False),
        (["a"], [], False),
        ([], ["a"], False),
    ],
)
def test_dots_stand_for_any_lines_and_everything_else_for_itself(expected, printed, fits):
    assert matches(expected, printed) is fits
