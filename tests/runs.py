"""Whole runs in processes of their own, as users start them."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAINER = [sys.executable, "-m", "xrex.train.trainer_recsys"]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
SMALL = (
    "trainer.global_batch_size=50",
    "checkpoint.save_every_steps=15",
    "trainer.log_every_steps=10",
    "trainer.journal=true",
    "evaluation.window_examples=500",
)
"""Overrides of the quickstart that make a run of a few seconds, with several saves and windows."""


def run(*command, check=True, timeout=120, **options) -> subprocess.CompletedProcess:
    """A command to its end; with `check`, a failure shows what it printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, **options)
    assert not check or done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def xrex(*arguments, **options) -> subprocess.CompletedProcess:
    """`xrex ARGUMENTS`."""
    return run(sys.executable, "-m", "xrex.cli", *arguments, **options)


def train(*arguments, **options) -> subprocess.CompletedProcess:
    """The trainer with these arguments."""
    return run(*TRAINER, *arguments, **options)


def digest(run_dir: Path) -> str:
    """SHA-256 over the arrays of a run's newest step."""
    return xrex("checkpoint", "digest", run_dir).stdout.split()[0]


def summary(run_dir: Path) -> dict:
    """summary.json but for its times."""
    content = json.loads((run_dir / "summary.json").read_text())
    del content["times"]
    return content


def journal(run_dir: Path) -> list[tuple[int, int, int]]:
    """(partition, offset, row) of every trained row, sorted."""
    rows = []
    for file in run_dir.glob("journal-*.jsonl"):
        for line in file.read_text().splitlines():
            for partition, offset, first_row, count in json.loads(line)["trained"]:
                rows += [(partition, offset, first_row + i) for i in range(count)]
    return sorted(rows)


def multihost(processes: int, *arguments, timeout=150) -> subprocess.CompletedProcess:
    """The trainer on several processes of this machine; the exit code is that of the first that failed."""
    return run(ROOT / "scripts" / "run_multihost.sh", processes, *arguments, timeout=timeout, check=False)
