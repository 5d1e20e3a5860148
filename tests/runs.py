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
    """Start the trainer, SIGKILL it at a random moment, start it again, ...; at last let it finish.

    The first kill falls within 2 s of the making of the run folder (start, compilation, first steps), each further one
    soon after a random step of `SMALL`'s 80. A run that ends before its kill fails the test: it would have shown nothing.
    """
    moments = random.Random(seed)
    command = [*TRAINER, *map(str, arguments)]
    for number in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        step = moments.randint(1, 75)
        if number == 0:
            _wait_for(lambda: (run_dir / "run.json").exists(), process)
            time.sleep(moments.uniform(0.0, 2.0))
        else:
            _wait_for(lambda step=step: newest_step(run_dir) >= step, process)
            time.sleep(moments.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    return run(*command, check=False)


def newest_step(run_dir: Path) -> int:
    """The newest step that process 0 has noted in its journal; 0 before the first."""
    file = run_dir / "journal-0.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    return json.loads(whole[-1])["step"] if whole else 0


def _wait_for(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, f"the run ended by itself, exit {process.returncode}"
        assert time.monotonic() < deadline, "nothing happened for 120 s"
        time.sleep(0.005)
