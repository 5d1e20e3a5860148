"""No process of several waits for ever or dies without words: each says the first one's reason, with its exit code."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest

from runs import QUICKSTART, SMALL, TRAINER, multihost, xrex

HERE = Path(__file__).parent
WORKER = [sys.executable, "-m", "first_cause_worker"]
LIMIT_S = 30

pytestmark = [pytest.mark.multihost, pytest.mark.slow]  # whole processes that wait for silences: minutes


@dataclass
class Ended:
    """How one process ended."""

    code: int | None
    """None: it was still there."""
    out: str
    err: str
    at_s: float
    """When, by the clock that all processes share."""


def together(count: int, *command, processes=None, limit_s: float = LIMIT_S + 25, **environment) -> dict[int, Ended]:
    """Run `processes` (default: all) of a run of `count`; by process, how each ended. Whoever is left is killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_PROCESSES": str(count),
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "PYTHONPATH": str(HERE),
        **environment,
    }
    began = time.monotonic()
    running = {
        index: subprocess.Popen(
            [str(word) for word in command],
            env={**environment, "JAX_PROCESS_ID": str(index)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in (processes or range(count))
    }
    ended: dict[int, Ended] = {}
    while len(ended) < len(running) and time.monotonic() < began + limit_s:
        for index, process in running.items():
            if index not in ended and process.poll() is not None:
                ended[index] = ended_as(process)
        if len(ended) == len(running) - 1 and stopped(running):
            break
        time.sleep(0.05)
    for index in running.keys() - ended.keys():
        running[index].kill()
        ended[index] = ended_as(running[index])
        ended[index].code = None
    return ended


def ended_as(process: subprocess.Popen) -> Ended:
    """What a process left; without Gloo's lines about connections."""
    at_s = time.monotonic()
    out, err = process.communicate()
    said = "".join(line for line in err.splitlines(keepends=True) if not line.startswith("[Gloo]"))
    return Ended(process.returncode, out, said, at_s)


def stopped(running: dict[int, subprocess.Popen]) -> bool:
    """Whether the one that is left is stopped by a signal."""
    left = next((process for process in running.values() if process.poll() is None), None)
    return left is not None and Path(f"/proc/{left.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("where", ["in a collective", "asleep"])
def test_a_failure_of_process_1_ends_all_with_its_words_and_code_wherever_they_are(where):
    ended = together(4, *WORKER, "failure", where)
    words = "RUN/checkpoints: the disk is full\nsay"
    for index, process in ended.items():
        assert process.code == 1
        prefix = "CheckpointError: " if index == 1 else "process 1 failed: "
        assert f"{prefix}{words}" in process.err
        assert process.at_s - ended[1].at_s < LIMIT_S
    if where == "asleep":
        assert "say \\x1b[31m more" in ended[0].err


def test_process_0_fails_between_the_header_and_the_bytes_of_a_broadcast():
    ended = together(4, *WORKER, "half_a_broadcast")
    for index, process in ended.items():
        assert f"{'process 0 failed: ' if index else ''}MemoryError: no room for 2 MB" in process.err
        assert process.code == 1
        assert process.at_s - ended[0].at_s < LIMIT_S


@pytest.mark.parametrize(
    ("signal_name", "victim", "count", "where"),
    [
        ("SIGKILL", 1, 2, "in a collective"),
        ("SIGKILL", 0, 4, "in a collective"),
        ("SIGKILL", 0, 4, "asleep"),
        ("SIGKILL", 2, 4, "in a collective"),
        ("SIGKILL", 3, 4, "asleep"),
        ("SIGSTOP", 1, 2, "in a collective"),
        ("SIGSTOP", 0, 4, "in a collective"),
        ("SIGSTOP", 3, 4, "asleep"),
    ],
)
def test_who_is_gone_without_a_word_is_named_by_all_the_others(signal_name, victim, count, where):
    ended = together(count, *WORKER, "steps", signal_name, victim, where)
    gone = "gone without a word" if signal_name == "SIGKILL" else "not answered for 10 s"
    for index, process in ended.items():
        if index != victim:
            assert f"process {victim} has {gone}: killed, out of memory, stopped or cut off" in process.err
            assert process.code == 1
            assert process.at_s - float(ended[victim].out) < LIMIT_S
    assert ended[victim].code == (-9 if signal_name == "SIGKILL" else None)


JOIN_HINT = "where hosts start further apart, set PHOENIX_JOIN_TIMEOUT_S=SECONDS on all"


def test_who_never_comes_is_named_by_all_the_others_within_half_a_minute():
    began = time.monotonic()
    ended = together(4, *WORKER, "meet", processes=(0, 1, 3))
    for process in ended.values():
        assert "process 2 has not come to 127.0.0.1:" in process.err
        assert " within 25 s: " in process.err
        assert JOIN_HINT in process.err
        assert process.code == 1
        print(f"{process.at_s - began:.1f} s after the start")
        assert process.at_s - began < LIMIT_S + 10  # a busy machine needs a while to start them


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ((0, 2), "processes 1, 3 have not come to 127.0.0.1:"),
        ((1, 2, 3), "process 0 has not come to 127.0.0.1:"),
    ],
)
def test_the_environment_says_how_long_to_wait_for_the_last(processes, words):
    ended = together(4, *WORKER, "meet", processes=processes, PHOENIX_JOIN_TIMEOUT_S="5")
    for process in ended.values():
        assert words in process.err
        assert " within 5 s" in process.err
        assert JOIN_HINT in process.err
        assert process.code == 1


@pytest.mark.parametrize(("victim", "missing"), [(0, "process 0 has"), (2, "processes 2, 3 have")])
def test_who_is_killed_while_all_wait_for_another_is_missing_too(victim, missing):
    ended = together(4, *WORKER, "meet_killed", victim, processes=(0, 1, 2), PHOENIX_JOIN_TIMEOUT_S="10")
    assert ended.pop(victim).code == -9
    for process in ended.values():
        assert f"{missing} not come to 127.0.0.1:" in process.err
        assert process.code == 1


@pytest.mark.parametrize("late", [0, 3])
def test_the_processes_may_start_in_any_order(late):
    ended = together(4, *WORKER, "meet_late", late)
    assert [(process.code, process.out, process.err) for process in ended.values()] == [(0, "met\n", "")] * 4


def test_with_a_jax_that_has_another_store_a_failure_still_ends_all_in_a_collective():
    ended = together(4, *WORKER, "failure_without_store", "in a collective")
    for process in ended.values():
        assert "warning: no watchdog with this jax ('object' object has no attribute 'key_value_" in process.err
        assert process.code == 1
        assert process.at_s - ended[1].at_s < LIMIT_S
    assert "CheckpointError: RUN/checkpoints: the disk is full" in ended[1].err


def test_processes_that_end_at_different_times_wait_for_each_other():
    ended = together(2, *WORKER, "late_end")
    assert [(process.code, process.err) for process in ended.values()] == [(0, "")] * 2


def test_processes_that_were_told_to_stop_wait_for_each_other_too():
    ended = together(2, *WORKER, "interrupted")
    assert [(process.code, process.err) for process in ended.values()] == [(143, "")] * 2


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """A directory log of 4,000 rows in messages of 30 over 4 partitions."""
    folder = tmp_path_factory.mktemp("log")
    xrex("data", "produce", "--to", folder, "--topic", "engagements", "--examples", 4000, "--rows-per-message", 30)
    return folder


def test_a_corrupt_message_that_process_1_reads_ends_process_0_with_its_words(log, tmp_path):
    broken = tmp_path / "log"
    shutil.copytree(log, broken)
    corrupt_message(broken / "engagements" / "1", offset=20)
    command = (*TRAINER, "--config", QUICKSTART, f"dataset.log.path={broken}", *SMALL, "--run-dir", tmp_path / "run")
    ended = together(2, *command, limit_s=120)  # most of it compiles
    words = "topic 'engagements' partition 1 offset 20"
    assert words in ended[1].err
    assert "process 1 failed: " in ended[0].err
    assert ended[1].err.strip().splitlines()[-1] in ended[0].err
    assert [ended[index].code for index in (0, 1)] == [1, 1]
    assert ended[0].at_s - ended[1].at_s < LIMIT_S
    assert words in (tmp_path / "run" / "summary.json").read_text()


def corrupt_message(partition: Path, offset: int) -> None:
    """Overwrite the value of one message of a partition's first file."""
    file = min(partition.iterdir())
    with pa.ipc.open_file(pa.BufferReader(file.read_bytes())) as reader:
        table = reader.read_all()
    at = table.column_names.index("value")
    values = table.column(at).to_pylist()
    values[table["offset"].to_pylist().index(offset)] = b"no Arrow"
    table = table.set_column(at, table.schema.field(at), pa.array(values, pa.binary()))
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file or directory"), ("{ not JSON", "config.json")],
)
def test_a_config_that_process_0_cannot_read_ends_all_with_exit_2_and_its_words(tmp_path, content, words):
    config = tmp_path / "config.json"
    if content is not None:
        config.write_text(content)
    ended = together(4, *TRAINER, "--config", config, "--run-dir", tmp_path / "run")
    assert words in ended[0].err
    for process in ended.values():
        assert process.code == 2
        assert process.err == ended[0].err
    assert not (tmp_path / "run").exists()


def test_another_package_version_on_process_3_is_named_by_all_four(tmp_path):
    ended = together(4, *WORKER, "trainer", "--config", QUICKSTART, "--run-dir", tmp_path / "run")
    for process in ended.values():
        assert process.err == OTHER_NUMPY
        assert process.code == 1
    assert not (tmp_path / "run").exists()


def test_with_allow_other_versions_process_0_warns_and_the_run_goes_on():
    ended = together(4, *WORKER, "trainer", "--config", QUICKSTART, "--print-config", "--allow-other-versions")
    assert [process.code for process in ended.values()] == [0] * 4
    assert [ended[index].err for index in range(4)] == [f"warning: {OTHER_NUMPY}", "", "", ""]
    assert json.loads(ended[0].out)["__class"] == "TrainerConfig"


OTHER_NUMPY = (
    f"versions: process 3 has numpy 0.1, process 0 has {version('numpy')}: install the same on every host, "
    "or allow it with --allow-other-versions\n"
)


def test_print_config_of_two_processes_prints_the_config_and_nothing_else(tmp_path):
    done = multihost(2, "--config", QUICKSTART, "--print-config")
    alone = xrex("train", "--config", QUICKSTART, "--print-config")
    assert done.returncode == 0
    assert done.stdout == "".join(f"[0] {line}\n" for line in alone.stdout.splitlines())
