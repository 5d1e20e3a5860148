"""Several processes whose config, data or number are not alike."""

import json
import re
import shutil
import signal
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from test_first_cause import together

from chaos import started
from runs import TRAINER, journal, multihost, newest_step, summary
from unit.data.memory_log import event, small_config
from xrex.checkpoint import layout
from xrex.checkpoint.digest import arrays_of
from xrex.data.log.config import DirectoryLog
from xrex.data.log.open import open_writer
from xrex.schema.specs import TableSpec
from xrex.train.config import TrainerConfig

pytestmark = [pytest.mark.multihost, pytest.mark.slow]  # whole runs of 2 and 4 processes
LIMIT_S = 120
EVERY_STEP = ("trainer.journal=true", "trainer.log_every_steps=1", "checkpoint.save_every_steps=2")
USERS = 1_000


def user(partition: int, offset: int) -> int:
    """No two rows are of one user. The rows of few offsets lie all over the table, and so on every device."""
    return 29 * offset + partition


def case(folder: Path, rows: tuple[int, ...], **changes) -> Path:
    """A config over a topic whose partitions hold so many rows; user ids are rows of their table."""
    with closing(open_writer(str(folder / "log"), "engagements", len(rows))) as writer:
        for p, count in enumerate(rows):
            events = (event(offset, p, user_id=user(p, offset)) for offset in range(count))
            writer.append(p, [(record.timestamp_ms, b"key", record.value) for record in events])
    direct = TableSpec(name="users", num_embeddings=USERS, embedding_dim=8, salts=())
    dataset = small_config(
        num_kafka_partitions=len(rows), log=DirectoryLog(path=str(folder / "log")), linger_ms=200, **changes
    )
    others = tuple(table for table in dataset.tables if table.name != "users")
    file = folder / "config.json"
    file.write_text(TrainerConfig(dataset=dataset.replace(tables=(direct, *others))).to_json())
    return file


def all_rows(rows: tuple[int, ...]) -> list[tuple[int, int, int]]:
    return sorted((p, offset, 0) for p, count in enumerate(rows) for offset in range(count))


def users_of(rows: tuple[int, ...]) -> list[int]:
    return sorted(user(p, offset) for p, offset, _ in all_rows(rows))


def journal_of(run_dir: Path, process: int) -> list[dict]:
    file = run_dir / f"journal-{process}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def partitions_read(run_dir: Path, process: int) -> set[int]:
    return {span[0] for line in journal_of(run_dir, process) for span in line["trained"]}


def updated_users(run_dir: Path) -> list[int]:
    """Users whose row the newest step's optimizer has seen at least once."""
    (slots,) = (array for name, array in arrays_of(newest(run_dir)) if name == "slots/d8")
    initial = json.loads((run_dir / "config.json").read_text())["optimizer"]["sparse"]["initial_accumulator"]
    return np.flatnonzero(slots[:USERS] != np.float32(initial)).tolist()


def newest(run_dir: Path) -> Path:
    steps = run_dir / "checkpoints"
    return steps / str(layout.complete_steps(steps)[-1])


# The first process alone cannot read the config


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "config.json: cannot be read: No such file or directory"),
        ("{ not JSON", "config.json: not JSON, expecting property name enclosed in double quotes at line 1 column 3"),
        (
            '{"dataset": {"topic_name": 7}}',
            "config.json: dataset.topic_name = 7: expected a string; write it in quotes",
        ),
    ],
)
def test_a_config_that_is_wrong_on_the_first_process_alone_ends_both_with_its_words(tmp_path, content, words):
    good = case(tmp_path, (8, 8))
    for process in (0, 1):
        (tmp_path / str(process)).mkdir()
    shutil.copy(good, tmp_path / "1" / "config.json")
    if content is not None:
        (tmp_path / "0" / "config.json").write_text(content)
    in_its_own_folder = ("bash", "-c", 'cd "$0/$JAX_PROCESS_ID" && exec "$@"', tmp_path)
    began = time.monotonic()
    ended = together(2, *in_its_own_folder, *TRAINER, "--config", "config.json", "--run-dir", "run")
    for process in ended.values():
        assert process.code == 2
        assert words in process.err
        assert process.err == ended[0].err
        assert process.at_s - began < 60
    assert not list(tmp_path.glob("*/run"))


# Unequal amounts of data


def finite_run(folder: Path, rows: tuple[int, ...], limit_s: float) -> tuple[Path, float]:
    """The run folder of two processes over these rows, in batches of 4 each, and how long they took."""
    folder.mkdir()
    began = time.monotonic()
    words = ("--config", case(folder, rows), *EVERY_STEP, "trainer.global_batch_size=8", "--run-dir", folder / "run")
    done = multihost(2, *words, timeout=limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run", time.monotonic() - began


def test_five_batches_beside_three_are_all_trained_once_and_both_processes_end(tmp_path):
    _, equal_s = finite_run(tmp_path / "equal", (16, 16), LIMIT_S)
    run_dir, _ = finite_run(tmp_path / "uneven", (20, 12), 2 * equal_s + 30)
    assert journal(run_dir) == all_rows((20, 12))
    assert [len(journal_of(run_dir, process)) for process in (0, 1)] == [5, 3]
    assert (summary(run_dir)["step"], summary(run_dir)["examples_trained"]) == (5, 32)
    assert updated_users(run_dir) == users_of((20, 12)), "each batch has moved the rows of its users"
    positions = summary(run_dir)["positions"]
    assert {p: at["offset"] for p, at in positions.items()} == {"0": 20, "1": 12}


# Partitions and processes


def test_three_partitions_are_read_by_one_of_two_processes_each(tmp_path):
    rows, run_dir = (16, 12, 20), tmp_path / "run"
    config = case(tmp_path, rows)
    words = ("--config", config, *EVERY_STEP, "trainer.global_batch_size=8", "--run-dir", run_dir)
    done = multihost(2, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [partitions_read(run_dir, process) for process in (0, 1)] == [{0, 2}, {1}]
    assert journal(run_dir) == all_rows(rows)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "engagements partition" in line]
    assert lines == [
        f"[0] engagements partition {p}: from offset 0 row 0, to offset {count}, read by process {p % 2}"
        for p, count in enumerate(rows)
    ]


def test_a_process_without_a_partition_takes_part_in_every_step_and_checkpoint(tmp_path):
    config, run_dir = case(tmp_path, (20,)), tmp_path / "run"
    words = ("--config", config, *EVERY_STEP, "trainer.global_batch_size=8", "--run-dir", run_dir)
    done = multihost(2, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert journal(run_dir) == all_rows((20,))
    assert [len(journal_of(run_dir, process)) for process in (0, 1)] == [5, 0]
    assert summary(run_dir)["step"] == 5
    assert layout.complete_steps(run_dir / "checkpoints") == [2, 4, 5]
    assert updated_users(run_dir) == users_of((20,))
    assert max(users_of((20,))) > 512, "half of the rows are on the device of the process that reads nothing"


def test_a_process_without_a_partition_takes_part_in_the_shutdown(tmp_path):
    """The stream has no end: both processes wait for records when the signal comes."""
    config, run_dir = case(tmp_path, (20,), stop_at_end=False), tmp_path / "run"
    with started(("--config", config, *EVERY_STEP, "trainer.global_batch_size=8"), run_dir, processes=2) as start:
        start.wait_until(lambda: newest_step(run_dir) == 5)
        time.sleep(1)  # several empty steps
        start.process.send_signal(signal.SIGTERM)
        assert start.process.wait(timeout=60) == 143
        said = start.said()
    for index in (0, 1):
        assert f"[{index}] SIGTERM: saving after this step" in said
    assert (summary(run_dir)["status"], summary(run_dir)["step"]) == ("interrupted", 5)
    assert newest(run_dir).name == "5"
    assert summary(run_dir)["positions"]["0"]["offset"] == 20


# Another number of processes

EIGHT = tuple(range(20, 36, 2))
"""Rows of the partitions."""


@pytest.fixture(scope="module")
def saved_by_four(tmp_path_factory) -> tuple[Path, Path]:
    """The config and the run folder of 6 steps of four processes over 8 partitions, each with a tombstone at offset 1."""
    folder = tmp_path_factory.mktemp("four")
    config, run_dir = case(folder, (0,) * 8), folder / "run"
    with closing(open_writer(str(folder / "log"), "engagements", 8)) as writer:
        for p, count in enumerate(EIGHT):
            events = (event(offset, p, user_id=user(p, offset)) for offset in range(count))
            entries = [(e.timestamp_ms, b"key", None if e.offset == 1 else e.value) for e in events]
            writer.append(p, entries)
    words = ("--config", config, *EVERY_STEP, "trainer.global_batch_size=16", "--run-dir", run_dir)
    done = multihost(4, *words, "trainer.max_steps=6")
    assert done.returncode == 0, done.stdout + done.stderr
    return config, run_dir


@pytest.mark.parametrize("processes", [1, 2])
def test_every_partition_goes_on_where_four_processes_left_it(saved_by_four, tmp_path, processes):
    _, saved = saved_by_four
    run_dir = tmp_path / "run"
    shutil.copytree(saved, run_dir)
    held = json.loads((newest(saved) / "positions.json").read_text())["topics"][0]["partitions"]
    assert len(held) == 8
    assert all(0 < int(at["offset"]) < EIGHT[int(p)] for p, at in held.items())
    left = Counter(all_rows(EIGHT)) - Counter(journal(saved)) - Counter((p, 1, 0) for p in range(8))
    done = multihost(processes, "--run-dir", run_dir, "trainer.max_steps=null")
    assert done.returncode == 0, done.stdout + done.stderr
    begun = re.findall(r"engagements partition (\d): from offset (\d+) row (\d+)", done.stdout)
    assert begun == [(p, str(at["offset"]), str(at["row"])) for p, at in sorted(held.items())]
    assert Counter(journal(run_dir)) - Counter(journal(saved)) == left
    found = summary(run_dir)
    assert found["examples_trained"] == sum(EIGHT) - 8 == len(journal(run_dir))
    # Of what the four counted nothing is lost: the tombstones were passed before the save.
    assert found["examples_skipped"] == {"tombstone": 8}
    assert {int(p): at["offset"] for p, at in found["positions"].items()} == dict(enumerate(EIGHT))
    assert updated_users(run_dir) == sorted(set(users_of(EIGHT)) - {user(p, 1) for p in range(8)})
