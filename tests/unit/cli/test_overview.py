"""`xrex --help` loads no command, and says what all of them together say."""

import subprocess
import sys

from typer.testing import CliRunner

from xrex.cli.main import app, overview


def test_the_overview_is_the_help_of_the_whole_command_line():
    shown, whole = (
        CliRunner().invoke(commands, ["--help"], prog_name="xrex").stdout for commands in (overview(), app())
    )
    assert shown == whole
    assert "checkpoint" in shown


def test_help_imports_none_of_what_commands_need():
    program = "import runpy, sys; sys.argv[1:] = ['--help']\n"
    program += "try: runpy.run_module('xrex.cli', run_name='__main__')\n"
    program += (
        "except SystemExit as end: print(end.code, sorted({'pydantic', 'numpy', 'jax', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
