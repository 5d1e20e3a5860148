"""Whole runs in processes of their own, as users start them."""

import json
import random
import signal
import subprocess
import sys
import time
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


def kill_and_restart(arguments, run_dir: Path, *, kills: int, seed: int) -> subprocess.CompletedProcess:
    """Start the trainer, SIGKILL it after a random while, start it again, ...; at last let it finish."""
    moments = random.Random(seed)
    command = [*TRAINER, *map(str, arguments)]
    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        # The clock starts once the run folder is there: before that there is nothing to lose.
        while not (run_dir / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 8.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    return run(*command, check=False)
