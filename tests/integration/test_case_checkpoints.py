"""Checkpoints that meet other devices, unfinished saves, full disks and folders that cannot be written, in whole runs."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from runs import TRAINER, journal, newest_step, run, summary, train, xrex
from unit.data.memory_log import event, small_config
from xrex.checkpoint import layout
from xrex.checkpoint.digest import digest
from xrex.data.log.config import DirectoryLog
from xrex.data.log.open import open_writer
from xrex.train.config import TrainerConfig

pytestmark = pytest.mark.slow  # whole runs
LIMIT_S = 120
"""A run of seconds that has not ended by then hangs."""


def losses(run_dir: Path) -> dict[int, float]:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines}


def only_step(run_dir: Path, step: int, to: Path) -> Path:
    """A copy of a run whose only step is this one."""
    shutil.copytree(run_dir, to)
    for other in (to / "checkpoints").iterdir():
        if other.name != str(step):
            shutil.rmtree(other)
    return to


# Another number of devices


def machine_with(devices: int) -> dict[str, str]:
    """The environment of a process that sees so many devices."""
    return {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}


@pytest.fixture(scope="module")
def on_four_devices(small, tmp_path_factory) -> Path:
    """A run of 11 steps on four devices, saved at steps 10 and 11."""
    run_dir = tmp_path_factory.mktemp("four") / "run"
    each_step = ("trainer.global_batch_size=48", "trainer.log_every_steps=1", "checkpoint.save_every_steps=10")
    train(*small, *each_step, "trainer.max_steps=11", "--run-dir", run_dir, env=machine_with(4))
    assert devices_of(run_dir).startswith("4 x cpu")
    return run_dir


def devices_of(run_dir: Path) -> str:
    return json.loads((run_dir / "run.json").read_text())["devices"]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_saved_on_four_devices_goes_on_alike_on_others(on_four_devices, tmp_path, devices):
    step = on_four_devices / "checkpoints" / "10"
    child, restart = tmp_path / "child", only_step(on_four_devices, 10, tmp_path / "restart")
    train("--checkpoint", step, "--run-dir", child, env=machine_with(devices))
    train("--run-dir", restart, env=machine_with(devices))
    # Before its first step a child saves the arrays that it has restored.
    assert digest(child / "checkpoints" / "10") == digest(step)
    for run_dir in (child, restart):
        assert devices_of(run_dir).startswith(f"{devices} x cpu")
        assert losses(run_dir)[11] == pytest.approx(losses(on_four_devices)[11], rel=0, abs=1e-6)


# An unfinished newest step


def cut_largest_file(step: Path) -> None:
    files = [path for path in (step / "state").rglob("*") if path.is_file()]
    os.truncate(max(files, key=lambda path: path.stat().st_size), 10)


UNFINISHED = {
    "empty": (lambda step: (shutil.rmtree(step), step.mkdir()), "no state, no config.json"),
    "without config.json": (lambda step: (step / "config.json").unlink(), "no config.json"),
    "without marker": (lambda step: (step / "commit_success.txt").unlink(), "no commit_success.txt"),
    "data file of 10 bytes": (cut_largest_file, "has 10 of"),
    "temporary": (lambda step: step.rename(f"{step}{layout.TEMPORARY_SUFFIX}"), "unfinished"),
}


@pytest.mark.parametrize("kind", UNFINISHED)
def test_a_resume_passes_over_an_unfinished_newest_step_with_one_warning(whole_run, tmp_path, kind):
    run_dir = only_step(whole_run, 60, tmp_path / "run")
    newest = run_dir / "checkpoints" / "120"
    shutil.copytree(whole_run / "checkpoints" / "80", newest)
    damage, why = UNFINISHED[kind]
    damage(newest)
    done = train("--run-dir", run_dir)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "step 60 is used instead" in line]
    assert len(said) == 1
    assert said[0].startswith(str(newest))
    assert why in said[0]
    assert [line for line in (done.stdout + done.stderr).splitlines() if why in line] == said
    assert digest(run_dir / "checkpoints" / "80") == digest(whole_run / "checkpoints" / "80")
    assert summary(run_dir) == summary(whole_run)


# A save that fails

LARGE = "dataset.tables=" + json.dumps(
    [
        {"name": "users", "num_embeddings": 1000, "embedding_dim": 4},
        {"name": "items", "num_embeddings": 65536, "embedding_dim": 16},
        {"name": "authors", "num_embeddings": 500, "embedding_dim": 4},
    ]
)
"""A step of about 4 MB, beside which small files do not count."""
SAVES = ("trainer.global_batch_size=4", "trainer.journal=true", "checkpoint.save_every_steps=10", LARGE)


def write(folder: Path, offsets: range) -> None:
    """Append these events to the directory log."""
    with closing(open_writer(str(folder), "engagements", 1)) as writer:
        events = map(event, offsets)
        writer.append(0, [(record.timestamp_ms, b"key", record.value) for record in events])


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """The config of a run over 80 events in batches of 4: 20 steps, saved at step 10 and at step 20."""
    folder = tmp_path_factory.mktemp("case")
    write(folder / "log", range(80))
    file = folder / "config.json"
    file.write_text(TrainerConfig(dataset=small_config(log=DirectoryLog(path=str(folder / "log")))).to_json())
    return file


@pytest.fixture(scope="module")
def undisturbed(config, tmp_path_factory) -> Path:
    """The run folder of that run."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    train("--config", config, *SAVES, "--run-dir", run_dir)
    return run_dir


def check_failed_at_20(run_dir: Path, code: int, stderr: str, reason: str) -> None:
    """The run has ended with an error about the save of step 20, and step 10 is as good as ever."""
    assert code == 1, stderr
    assert len(stderr.splitlines()) == 1, stderr
    assert stderr.startswith(f"step 20 could not be saved to {run_dir}/checkpoints/20: ")
    assert reason in stderr
    found = summary(run_dir)
    assert (found["status"], found["step"], found["checkpoint"]) == ("failed", 10, "checkpoints/10")
    assert layout.complete_steps(run_dir / "checkpoints") == [10]
    assert "arrays" in xrex("checkpoint", "verify", run_dir).stdout


def disk_in_a_namespace() -> bool:
    """Whether a small disk can be mounted for one process alone."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True).returncode == 0


ON_A_SMALL_DISK = """
mount -t tmpfs -o "size=$BYTES" tmpfs "$DISK" || exit 99
"$@"
code=$?
cp -r "$DISK" "$AFTERWARDS"
exit $code
"""


@pytest.mark.skipif(not disk_in_a_namespace(), reason="no disk can be mounted in a namespace of its own")
def test_a_full_disk_at_the_last_save_ends_the_run_and_leaves_the_save_before(config, undisturbed, tmp_path):
    one_step = sum(file.stat().st_size for file in (undisturbed / "checkpoints" / "20").rglob("*"))
    run_dir, kept = tmp_path / ("a-long-name-" * 10) / "run", tmp_path / "kept"
    run_dir.mkdir(parents=True)
    done = run(
        *("unshare", "-rm", "bash", "-c", ON_A_SMALL_DISK, "bash"),
        *(*TRAINER, "--config", config, *SAVES, "--run-dir", run_dir, "checkpoint.keep_last=1"),
        env={**os.environ, "BYTES": str(one_step * 3 // 2), "DISK": str(run_dir), "AFTERWARDS": str(kept)},
        check=False,
    )
    run_dir.rmdir()
    kept.rename(run_dir)
    assert "completed" not in done.stdout
    check_failed_at_20(run_dir, done.returncode, done.stderr, "No space left on device")
    check_goes_on(run_dir, undisturbed)


def check_goes_on(run_dir: Path, undisturbed: Path) -> None:
    """Once the fault is mended the run ends as one without it."""
    train("--run-dir", run_dir, "trainer.max_steps=20")
    assert digest(run_dir / "checkpoints" / "20") == digest(undisturbed / "checkpoints" / "20")
    assert journal(run_dir) == journal(undisturbed)


BOUND_BY_PERMISSIONS = [
    sys.executable,
    "-c",
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])",
]
"""Before a command: takes from root what lets it write where it may not, PR_CAPBSET_DROP of CAP_DAC_OVERRIDE."""


def test_a_folder_that_may_no_longer_be_written_ends_a_run_that_would_go_on(config, undisturbed, tmp_path):
    """The stream has no end and holds 10 steps at first: step 20 is trained once the folder is closed."""
    log, run_dir = tmp_path / "growing", tmp_path / "run"
    write(log, range(40))
    live = (f"dataset.log.path={log}", "dataset.stop_at_end=false", "checkpoint.keep_last=1", "--run-dir", run_dir)
    command = [str(word) for word in (*BOUND_BY_PERMISSIONS, *TRAINER, "--config", config, *SAVES, *live)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for_step(run_dir, 10, process)
        (run_dir / "checkpoints").chmod(0o555)
        write(log, range(40, 80))
        _, stderr = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        (run_dir / "checkpoints").chmod(0o755)
    check_failed_at_20(run_dir, process.returncode, stderr, "Permission denied")
    check_goes_on(run_dir, undisturbed)


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + LIMIT_S
    while layout.complete_steps(run_dir / "checkpoints") != [step]:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline, f"no step {step} within {LIMIT_S} s"
        time.sleep(0.05)


# A folder that cannot be written


@pytest.mark.parametrize(
    ("closed", "line"),
    [
        (".", "{run}: the run folder cannot be written: Permission denied; choose another --run-dir"),
        ("run/checkpoints", "{run}/checkpoints: the checkpoint folder cannot be written: Permission denied"),
    ],
)
def test_a_folder_that_is_read_only_ends_the_run_before_its_first_step(config, undisturbed, tmp_path, closed, line):
    run_dir = tmp_path / "place" / "run"
    run_dir.parent.mkdir()
    if closed != ".":
        only_step(undisturbed, 10, run_dir)
    (run_dir.parent / closed).chmod(0o555)
    words = (*TRAINER, "--config", config, *SAVES, "--run-dir", run_dir)
    try:
        done = run(*BOUND_BY_PERMISSIONS, *words, check=False, timeout=LIMIT_S)
    finally:
        (run_dir.parent / closed).chmod(0o755)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [line.format(run=run_dir)]
    assert newest_step(run_dir) == (0 if closed == "." else 10), "a step was trained"


GOES_ELSEWHERE = """
import os, sys
from xrex.train import trainer_recsys
from xrex.train.loop import Loop
run, place = Loop.run, sys.argv.pop()
def elsewhere(self, interrupted):
    os.chdir(place)
    return run(self, interrupted)
Loop.run = elsewhere
trainer_recsys.run_command_line(trainer_recsys.app)
"""


def test_a_relative_run_folder_is_that_of_the_start_also_if_the_process_goes_elsewhere(config, undisturbed, tmp_path):
    start, elsewhere = tmp_path / "start", tmp_path / "elsewhere"
    start.mkdir()
    elsewhere.mkdir()
    words = ("--config", config, *SAVES, "--run-dir", "runs/new")
    run(sys.executable, "-c", GOES_ELSEWHERE, *words, elsewhere, cwd=start)
    assert list(elsewhere.iterdir()) == []
    run_dir = start / "runs" / "new"
    assert digest(run_dir / "checkpoints" / "20") == digest(undisturbed / "checkpoints" / "20")
    assert summary(run_dir) == summary(undisturbed)
    assert journal(run_dir) == journal(undisturbed)
