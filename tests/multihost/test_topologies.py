"""What some processes and devices have saved, any others restore: values equal bit for bit, positions and progress too.

A part of `make faults`, which prints the table of docs/operations.md.
"""

import json
import os
import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from chaos import append, check_exactly_once, rows_of, say
from faults import uneven_messages
from runs import QUICKSTART, ROOT, SMALL, run, summary
from xrex.checkpoint.digest import digest
from xrex.data.log.directory import DirectoryTopicWriter

pytestmark = [
    pytest.mark.multihost,
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.skipif("'faults' not in config.option.markexpr", reason="takes long: make faults"),
]

TOPOLOGIES = {"1×1": (1, 1), "1×4": (1, 4), "2×2": (2, 2), "4×1": (4, 1), "2×1": (2, 1)}
"""Processes and devices of each."""
STEP, ROWS = 20, 3_000
TRAINER = "xrex.train.trainer_recsys"
SAME = ("positions.json", "progress.json", "config.json")


def on(topology: str, module: str, *arguments) -> None:
    """Run a module as so many processes, each of which sees so many devices; all must end well."""
    processes, devices = TOPOLOGIES[topology]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": path_with(Path(__file__).parent)}
    launcher = ROOT / "scripts" / "run_multihost.sh"
    run(launcher, processes, "-m", module, *arguments, env=environment, timeout=300)


def path_with(folder: Path) -> str:
    """$PYTHONPATH and a folder before it."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def ran_on(run_dir: Path) -> tuple[int, int]:
    """Processes, and devices of each, of a run's newest start."""
    content = json.loads((run_dir / "run.json").read_text())
    return content["hosts"], int(content["devices"].split()[0]) // content["hosts"]


@pytest.fixture(scope="module")
def messages():
    return uneven_messages(ROWS, random.Random(0))


@pytest.fixture(scope="module")
def saved(messages, tmp_path_factory) -> dict[str, Path]:
    """By topology: the folder of a run that it has trained and saved as step 20, in the middle of a backlog."""
    folder = tmp_path_factory.mktemp("saved")
    with closing(DirectoryTopicWriter(folder / "log", "engagements", 4)) as writer:
        append(writer, messages)
    arguments = ("--config", QUICKSTART, f"dataset.log.path={folder / 'log'}", *SMALL, "trainer.global_batch_size=48")
    for topology in TOPOLOGIES:
        on(topology, TRAINER, *arguments, f"trainer.max_steps={STEP}", "--run-dir", folder / topology)
    run_dirs = {topology: folder / topology for topology in TOPOLOGIES}
    for run_dir in run_dirs.values():
        positions = summary(run_dir)["positions"].values()
        assert any(at["row"] > 0 for at in positions), "no position is inside a message"
        assert sum(at["offset"] < at["end_offset"] for at in positions) > 1, "no backlog is left"
    return run_dirs


def differences(before: Path, after: Path) -> list[str]:
    """What of a run's step is not in what was saved again right after its restore."""
    old, new = before / "checkpoints" / str(STEP), after / "again" / str(STEP)
    different = ["arrays"] if digest(old) != digest(new) else []
    different += [name for name in SAME if (old / name).read_bytes() != (new / name).read_bytes()]
    return different + (["summary.json"] if summary(before) != summary(after) else [])


def test_a_step_saved_on_any_topology_is_restored_bit_for_bit_on_every_other(saved, tmp_path):
    cells: dict[tuple[str, str], str] = {}
    for here in TOPOLOGIES:
        copies = {there: shutil.copytree(saved[there], tmp_path / f"{there} on {here}") for there in TOPOLOGIES}
        on(here, "topology_worker", *copies.values())
        for there, copy in copies.items():
            assert (ran_on(saved[there]), ran_on(copy)) == (TOPOLOGIES[there], TOPOLOGIES[here])
            cells[there, here] = ", ".join(differences(saved[there], copy)) or "equal"
    say(f"| saved on | restored on {' | '.join(TOPOLOGIES)} |\n|---|{'---|' * len(TOPOLOGIES)}")
    for there in TOPOLOGIES:
        say(f"| {there} | {' | '.join(cells[there, here] for here in TOPOLOGIES)} |")
    assert set(cells.values()) == {"equal"}, cells


@pytest.mark.parametrize("goes_on", ["1×1", "4×1"])
def test_a_run_begun_by_two_processes_of_two_devices_trains_every_remaining_row_once(
    saved, messages, tmp_path, goes_on
):
    run_dir = shutil.copytree(saved["2×2"], tmp_path / "run")
    on(goes_on, TRAINER, "--run-dir", run_dir, "trainer.max_steps=null")
    assert ran_on(run_dir) == TOPOLOGIES[goes_on]
    check_exactly_once(run_dir, rows_of(messages))
    assert summary(run_dir)["examples_trained"] == ROWS
    assert all(p["offset"] == p["end_offset"] for p in summary(run_dir)["positions"].values())
