"""Two processes against one, a core each: examples a second of the quickstart's stream with a model that is bound by compute.

Two runs of one process each, begun together, show what the machine itself allows: cores that share a memory are no two.
Prints all rates and their ratios, by the wall clock and by the CPU seconds of the busiest process, since other programs on a
shared machine stretch the wall clock alone. Linux only: cores are given by taskset, CPU seconds read from /proc.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
STEPS, FIRST, BATCH = 80, 20, 256
"""Steps of a run, and those before the first line that counts: compilation is among them."""
HEAVY = (
    f"trainer.max_steps={STEPS}",
    "trainer.log_every_steps=20",
    "model.width=128",
    "model.num_layers=4",
    "model.num_heads=4",
    "model.num_kv_heads=4",
    "model.feedforward_multiplier=4",
    "checkpoint.save_every_steps=100000",
)


def main() -> None:
    """Run one process, two together and two apart, in turns, and print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    kinds = {"one": [1], "two together": [2], "two apart": [1, 1]}
    rates: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        produce = ("data", "produce", "--to", folder, "--topic", "engagements", "--examples", str((STEPS + 1) * BATCH))
        subprocess.run([sys.executable, "-m", "xrex.cli", *produce], check=True, capture_output=True)
        for number in range(rounds):
            for kind in list(kinds)[:: 1 if number % 2 else -1]:
                runs, rows = kinds[kind], BATCH // len(kinds[kind])
                rates[kind].append(examples_per_second(runs, rows, Path(folder), f"{number}-{kind}"))
    for name, which in (("wall clock", 0), ("CPU seconds of the busiest process", 1)):
        one, together, apart = (sorted(rate[which] for rate in rates[kind])[rounds // 2] for kind in kinds)
        print(
            f"by {name}: {one:,.0f} examples/s with one process, {together:,.0f} with two ({together / one:.2f} times); "
            f"two that know nothing of each other: {apart:,.0f} ({apart / one:.2f} times)"
        )


def examples_per_second(runs: list[int], rows: int, log: Path, name: str) -> tuple[float, float]:
    """(by the wall clock, by the busiest process's CPU seconds) of runs that begin together, between the line of step FIRST and
    the last one.

    runs  how many processes each has
    rows  of a batch of each run
    """
    folders = [log / f"run-{name}-{number}" for number in range(len(runs))]
    started: list[subprocess.Popen] = []
    for folder, processes in zip(folders, runs, strict=True):
        arguments = (f"dataset.log.path={log}", *HEAVY, f"trainer.global_batch_size={rows}", "--run-dir", folder)
        started += [start(index, processes, len(started) + index, arguments) for index in range(processes)]
    marks = {}
    while any(process.poll() is None for process in started):
        step = min(newest_step(folder / "metrics.jsonl") for folder in folders)
        if step >= FIRST and step not in marks:
            marks[step] = time.perf_counter(), [cpu_seconds(process.pid) for process in started]
        time.sleep(0.01)
    assert not any(process.wait() for process in started), "a process failed"
    first, last = min(marks), max(step for step in marks if None not in marks[step][1])
    (began, cpu_began), (ended, cpu_ended) = marks[first], marks[last]
    examples = (last - first) * rows * len(runs)
    busiest = max(after - before for before, after in zip(cpu_began, cpu_ended, strict=True))
    return examples / (ended - began), examples / busiest


def start(index: int, processes: int, core: int, arguments: tuple) -> subprocess.Popen:
    """One process of a run, on a core of its own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    if processes > 1:
        environment |= {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:29477", "JAX_NUM_PROCESSES": str(processes)}
        environment["JAX_PROCESS_ID"] = str(index)
    command = [
        "taskset",
        "-c",
        str(core),
        sys.executable,
        "-m",
        "xrex.train.trainer_recsys",
        "--config",
        str(QUICKSTART),
    ]
    command += map(str, arguments)
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def newest_step(metrics: Path) -> int:
    """Step of the last whole line; 0 before the first."""
    lines = [line for line in metrics.read_bytes().split(b"\n")[:-1] if line] if metrics.exists() else []
    return json.loads(lines[-1]).get("step", 0) if lines else 0


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process so far; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
