import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from xrex.checkpoint import layout
from xrex.checkpoint.digest import digest
from xrex.checkpoint.restore import read_files

pytestmark = pytest.mark.multihost


def run(folder, *, processes, devices, restore="-", save="-"):
    """One small run on processes x devices; every process must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    worker = Path(__file__).with_name("checkpoint_worker.py")
    paths = [path if path == "-" else folder / path for path in (restore, save)]
    children = [
        subprocess.Popen(
            [sys.executable, worker, *map(str, (port, index, processes, devices, *paths))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        for child in children:
            output, _ = child.communicate(timeout=60)
            assert child.returncode == 0, output
    finally:
        for child in children:
            child.kill()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The same state saved by 2 processes, then, each from the step before, by 1 device and by 4 devices."""
    folder = tmp_path_factory.mktemp("topologies")
    run(folder, processes=2, devices=1, save="two")
    run(folder, processes=1, devices=1, restore="two/1", save="one")
    run(folder, processes=1, devices=4, restore="two/1", save="four")
    return folder


def test_two_processes_commit_one_step_with_what_both_hold(saved):
    assert layout.complete_steps(saved / "two") == [1]
    files = read_files(saved / "two" / "1")
    assert {number: p.offset for number, p in files.positions["clicks"].partitions.items()} == {
        0: 0,
        1: 1,
        10: 10,
        11: 11,
    }
    assert files.progress == {"by_process": [0, 1]}
    assert files.config == b"of process 0\n"
    assert not list((saved / "two" / "1").glob("part-*"))


def test_four_devices_save_what_two_processes_restore(saved):
    run(saved, processes=2, devices=1, restore="four/1")


def test_checksums_and_digest_are_the_same_on_every_topology(saved):
    steps = [saved / name / "1" for name in ("two", "one", "four")]
    checksums = [json.loads((step / "checksums.json").read_text())["arrays"] for step in steps]
    assert checksums[0] == checksums[1] == checksums[2]
    assert len(checksums[0]["tables/d3"]["blocks"]) == 1024
    assert len({digest(step) for step in steps}) == 1
