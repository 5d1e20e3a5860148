"""A batch whose loss or gradients are not finite changes nothing, is counted and told; too many in a row end the run."""

import json

import numpy as np
import pytest

from runs import journal, summary, train
from xrex.checkpoint.digest import arrays_of
from xrex.data.log.open import open_writer

BATCH = 8


def write_topic(folder, faulty: set[int], batches: int = 20) -> None:
    """One row a message; the first row of each faulty batch has a price of 1e38: finite, but its square is not."""
    writer = open_writer(str(folder), "clicks", 1)
    rows = []
    for i in range(BATCH * batches):
        price = 1e38 if i % BATCH == 0 and i // BATCH in faulty else float(i % 5)
        row = {"user": i % 7, "price": price, "click": i % 2}
        rows.append((1_000 * i, b"key", json.dumps(row).encode()))
    writer.append(0, rows)
    writer.close()


@pytest.fixture
def config(tmp_path):
    dataset = {
        "topic_name": "clicks",
        "num_kafka_partitions": 1,
        "log": {"__class": "DirectoryLog", "path": str(tmp_path / "log")},
        "codec": "json",
        "stop_at_end": True,
        "history_actions_column": None,
        "tables": [{"name": "users", "num_embeddings": 1024, "embedding_dim": 8}],
        "features": [
            {"name": "user", "group": "user", "column": "user", "table": "users"},
            {"name": "price", "group": "candidate", "column": "price", "kind": "float"},
        ],
        "actions": ["click"],
    }
    model = {"width": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}
    trainer = {"global_batch_size": BATCH, "journal": True, "log_every_steps": 5}
    sections = {
        "dataset": dataset,
        "model": model,
        "trainer": trainer,
        "checkpoint": {"save_every_steps": 5},
        "evaluation": {"window_examples": 16},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(sections))
    return file


def test_a_faulty_batch_is_no_step_and_the_run_goes_on_behind_it(config, tmp_path):
    write_topic(tmp_path / "log", faulty={6, 13})
    run_dir = tmp_path / "run"
    done = train("--config", config, "--run-dir", run_dir)
    assert summary(run_dir)["step"] == 18
    assert summary(run_dir)["examples_skipped"] == {"not_finite": 2 * BATCH}
    assert summary(run_dir)["examples_trained"] == 18 * BATCH
    told = [line for line in done.stderr.splitlines() if line.startswith("passed over a batch")]
    assert told[0] == (
        "passed over a batch behind step 6: loss or gradients are not finite: partition 0 offset 48 rows 0-0, "
        "partition 0 offset 49 rows 0-0, partition 0 offset 50 rows 0-0 and 5 more messages"
    )
    assert len(told) == 2
    trained = {offset for _, offset, _ in journal(run_dir)}
    assert trained == set(range(160)) - set(range(48, 56)) - set(range(104, 112))
    for step in run_dir.glob("checkpoints/*"):
        for name, array in arrays_of(step):
            assert np.isfinite(array).all(), name


@pytest.mark.slow
def test_too_many_in_a_row_end_the_run_and_the_last_checkpoint_is_from_before(config, tmp_path):
    write_topic(tmp_path / "log", faulty={6, 7, 8, 9})
    run_dir = tmp_path / "run"
    done = train("--config", config, "--run-dir", run_dir, "optimizer.max_faulty_batches=3", check=False)
    assert done.returncode == 1
    *passed_over, line = done.stderr.splitlines()
    assert len(passed_over) == 3
    assert line.startswith("behind step 6: loss or gradients are not finite: partition 0 offset 72 rows 0-0")
    assert "3 batches in a row were passed over before (optimizer.max_faulty_batches)" in line
    assert sorted(step.name for step in (run_dir / "checkpoints").iterdir()) == ["5"]
    assert train("--run-dir", run_dir, check=False).stderr == done.stderr, "the same again after a restart"
