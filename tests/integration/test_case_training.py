"""What is trained of records that are unusual, through the trainer and, where records are at stake, a real Apache Kafka."""

import json
import math
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from runs import journal, summary, train
from unit.data.memory_log import event, small_config
from xrex.checkpoint.digest import arrays_of, digest
from xrex.data.config import DatasetConfig
from xrex.data.log.base import Record
from xrex.data.log.config import DirectoryLog, KafkaLog
from xrex.data.log.open import open_writer
from xrex.schema.specs import FeatureSpec, TableSpec
from xrex.sharding.config import MeshConfig
from xrex.train.config import TrainerConfig
from xrex.train.setup import build_program

pytestmark = pytest.mark.slow  # whole runs
INITIAL = np.float32(1e-3)
"""Where a row's accumulator starts; it has grown in each row that a step has updated."""
EACH_STEP = ("trainer.global_batch_size=4", "trainer.log_every_steps=1", "trainer.journal=true")
ITEM, OTHER = 5, 2**32 + 5  # alike in their lower 32 bits


@pytest.fixture
def produced(kafka, topic_name) -> Callable[..., DatasetConfig]:
    """Appends events to a topic of the broker, and gives the config that reads them."""

    def produce(events: Iterable[Record], **changes) -> DatasetConfig:
        append(kafka, topic_name, events)
        return small_config(topic_name=topic_name, log=KafkaLog(bootstrap_servers=kafka), **changes)

    return produce


def append(to, topic: str, events: Iterable[Record]) -> None:
    """Append events, in their order, to partition 0 of a topic in a folder or at a broker; their own offsets do not count."""
    with closing(open_writer(str(to), topic, 1)) as writer:
        writer.append(0, [(record.timestamp_ms, b"key", record.value) for record in events])


def trained(dataset: DatasetConfig, folder: Path, *overrides: str, check=True):
    """The run folder, and how the run ended."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    file.write_text(TrainerConfig(dataset=dataset).to_json())
    return folder / "run", train("--config", file, *EACH_STEP, *overrides, "--run-dir", folder / "run", check=check)


def lines_of(run_dir: Path) -> dict[int, dict]:
    """Step -> its line of metrics.jsonl."""
    return {line["step"]: line for line in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())}


def losses(run_dir: Path) -> list[float]:
    return [line["loss"] for line in lines_of(run_dir).values()]


def arrays(run_dir: Path) -> dict[str, np.ndarray]:
    """Of the newest step, by name."""
    return dict(arrays_of(run_dir / summary(run_dir)["checkpoint"]))


def fresh_table(run_dir: Path, arena: str) -> np.ndarray:
    """An arena's rows before the first step of a run with this config."""
    config = TrainerConfig.from_json((run_dir / "config.json").read_bytes())
    return np.asarray(build_program(config.replace(mesh=MeshConfig(num_devices=1))).fresh_state().tables[arena])


def direct(name: str, rows: int, dim: int, oov: Literal["hash", "row", "error"] = "error") -> TableSpec:
    """A table that ids index directly, alone in the arena of its width."""
    return TableSpec(name=name, num_embeddings=rows, embedding_dim=dim, salts=(), oov=oov)


def with_tables(*tables: TableSpec) -> tuple[TableSpec, ...]:
    """The cases' tables, these in place of those with their names."""
    given = {table.name: table for table in tables}
    return tuple(given.pop(table.name, table) for table in small_config().tables) + tuple(given.values())


# Ids above 32 bits


@pytest.mark.kafka
def test_items_that_differ_above_32_bits_only_learn_other_labels(produced, tmp_path):
    """The order of the case: 5 and 4294967301 in turn, in pairs."""
    items = [ITEM if (o + 1) // 2 % 2 == 0 else OTHER for o in range(800)]
    alike = {"user_id": 1, "author_id": 1, "history": [1]}
    events = (event(o, item_id=item, label=int(item == ITEM), **alike) for o, item in enumerate(items))
    own = TableSpec(name="only_items", num_embeddings=1000, embedding_dim=8)
    dataset = produced(events, tables=with_tables(own), features=with_item_table("only_items"))
    run_dir, _ = trained(dataset, tmp_path, "evaluation.window_examples=200")
    assert summary(run_dir)["examples_trained"] == 800
    newest = summary(run_dir)["metrics"]["label"]
    assert newest["pairs"] == 200
    assert newest["auc"] > 0.95
    updated = np.flatnonzero(arrays(run_dir)["slots/d8"] != INITIAL)
    assert len(updated) == 4, "two rows for each of the two items"


def with_item_table(table: str) -> tuple[FeatureSpec, ...]:
    """The cases' features, the item's looked up in this table."""
    return tuple(f.replace(table=table) if f.name == "item" else f for f in small_config().features)


# Ids outside a table

OUTSIDE = [-1, 1_000, 2**31, -(2**63)]
IDS = [*OUTSIDE, 1, 2, 3, 4]


def events_of(ids: list[int]) -> list[Record]:
    return [event(offset, item_id=item, history=[1]) for offset, item in enumerate(ids)]


def over_items(items: TableSpec) -> dict:
    """Changes of the config: the item's table is alone in its arena."""
    return {"tables": with_tables(items), "features": with_item_table(items.name)}


@pytest.mark.kafka
@pytest.mark.parametrize("outside", [*OUTSIDE, OTHER])
def test_an_id_outside_a_direct_table_ends_the_run_and_moves_no_row(produced, topic_name, tmp_path, outside):
    """It comes fifth, after a step on good records."""
    dataset = produced(events_of([1, 2, 3, 4, outside, 5, 6, 7]), **over_items(direct("direct", 1000, 8)))
    run_dir, done = trained(dataset, tmp_path, "checkpoint.save_every_steps=1", check=False)
    line = (
        f"topic '{topic_name}' partition 0 offset 4 row 0: feature 'item' (column 'item_id'): "
        f"id {outside} is outside the directly indexed table 'direct' (0..999)"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [line]
    assert summary(run_dir)["error"] == line
    assert journal(run_dir) == [(0, offset, 0) for offset in range(4)]
    assert summary(run_dir)["checkpoint"] == "checkpoints/1"
    assert moved_rows(run_dir) == {1, 2, 3, 4}


def moved_rows(run_dir: Path) -> set[int]:
    """Rows of the arena d8 that differ from what they were before the first step: the ones that an update was made of."""
    found = arrays(run_dir)
    moved = np.flatnonzero((found["tables/d8"] != fresh_table(run_dir, "d8")).any(axis=1)).tolist()
    assert moved == np.flatnonzero(found["slots/d8"] != INITIAL).tolist()
    return set(moved)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("oov", "rows", "own"),
    [
        ("hash", 1000, None),
        ("row", 1001, 1000),  # rows 0 to 999 for ids, and one behind them for all others
    ],
)
def test_ids_outside_a_direct_table_are_counted_and_the_last_id_keeps_its_row(produced, tmp_path, oov, rows, own):
    dataset = produced(events_of(IDS), **over_items(direct("direct", rows, 8, oov)))
    run_dir, _ = trained(dataset, tmp_path)
    assert summary(run_dir)["examples_trained"] == 8
    assert summary(run_dir)["noted"] == {"oov.item": 4}
    assert np.isfinite(losses(run_dir)).all()
    moved = moved_rows(run_dir)
    assert {1, 2, 3, 4} <= moved
    assert 999 not in moved, "a negative id has wrapped round"
    others = moved - {1, 2, 3, 4}
    assert others == {own} if own else 1 <= len(others) <= 4


@pytest.mark.kafka
def test_a_table_too_large_for_memory_is_told_with_its_size_before_anything_is_allocated(produced, tmp_path):
    """2,000,000,000 rows of 256 numbers and an accumulator, of 4 bytes each."""
    dataset = produced(events_of([1, 2, 3, 4]), **over_items(direct("too_large", 2_000_000_000, 256)))
    run_dir, done = trained(dataset, tmp_path, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("table 'too_large': 2,000,000,000 rows of 256 numbers need 2,056.0 GB")
    assert not (run_dir / "checkpoints").exists()
    assert summary(run_dir)["error"] == line


# A loss that is not finite


def priced(folder: Path, offsets: Iterable[int], prices: dict[int, float]) -> DatasetConfig:
    """Events with a price, of these offsets; where `prices` has none it is 0, 1 or 2."""
    price = FeatureSpec(name="price", group="candidate", column="price", kind="float")
    append(folder / "log", "engagements", (event(o, price=prices.get(o, o % 3)) for o in offsets))
    dataset = small_config(log=DirectoryLog(path=str(folder / "log")))
    return dataset.replace(features=(*dataset.features, price))


SAVED = ("checkpoint.save_every_steps=2", "checkpoint.keep_last=99")


def test_a_record_that_gives_no_finite_loss_moves_nothing_and_its_batch_is_told(tmp_path):
    """Batches of 4; the seventh holds a price whose square is beyond float32. Without that batch the run is the same."""
    good = [o for o in range(60) if not 24 <= o < 28]
    run_dir, done = trained(priced(tmp_path / "bad", range(60), {25: 1e38}), tmp_path / "bad", *SAVED)
    without, _ = trained(priced(tmp_path / "good", good, {}), tmp_path / "good", *SAVED)
    assert [line for line in done.stderr.splitlines() if "not finite" in line] == [
        "passed over a batch behind step 6: loss or gradients are not finite: partition 0 offset 24 rows 0-0, "
        "partition 0 offset 25 rows 0-0, partition 0 offset 26 rows 0-0 and 1 more messages"
    ]
    assert summary(run_dir)["examples_skipped"] == {"not_finite": 4}
    assert (summary(run_dir)["step"], summary(run_dir)["examples_trained"]) == (14, 56)
    steps = sorted(int(step.name) for step in (run_dir / "checkpoints").iterdir())
    assert steps == [2, 4, 6, 8, 10, 12, 14]
    for step in steps:
        assert digest(run_dir / f"checkpoints/{step}") == digest(without / f"checkpoints/{step}"), step
    assert losses(run_dir) == losses(without)


def test_a_value_that_is_no_number_reaches_no_step(tmp_path):
    """NaN is no JSON and no float of a row: a bad record, which is an error unless it may be passed over."""
    dataset = priced(tmp_path, range(60), {25: math.nan})
    run_dir, done = trained(dataset, tmp_path, *SAVED, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("topic 'engagements' partition 0 offset 25")
    assert summary(run_dir)["checkpoint"] == "checkpoints/6"
    assert all(np.isfinite(array).all() for array in arrays(run_dir).values())
    done = train("--run-dir", run_dir, "dataset.skip_bad_records=1")
    assert f"passed over: {line}" in done.stderr
    assert summary(run_dir)["examples_skipped"] == {"bad_record": 1}
    (dead,) = map(json.loads, (run_dir / "dead-letters-0.jsonl").read_text().splitlines())
    assert (dead["step"], dead["partition"], dead["offset"]) == (7, 0, 25)
    assert journal(run_dir) == [(0, offset, 0) for offset in range(60) if offset != 25]


# A resume

PEAK, WARMUP = 0.01, 15


def test_ten_steps_and_ten_after_a_resume_are_the_twenty_of_one_run(small, tmp_path):
    """Adam's moments, Adagrad's accumulators and a warm-up that ends after the resume; nothing else is random in a step."""
    words = (*small, "trainer.log_every_steps=1", "checkpoint.save_every_steps=1", "checkpoint.keep_last=99")
    rates = (f"optimizer.dense.learning_rate={PEAK}", f"optimizer.dense.warmup_steps={WARMUP}")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(*words, *rates, "--run-dir", whole, "trainer.max_steps=20")
    train(*words, *rates, "--run-dir", parts, "trainer.max_steps=10")
    train("--run-dir", parts, "trainer.max_steps=20")
    steps = range(1, 21)
    assert list(lines_of(parts)) == list(lines_of(whole)) == list(steps)
    for step in steps:
        ours, theirs = lines_of(parts)[step], lines_of(whole)[step]
        for name in ("loss", "metrics", "examples", "learning_rate"):
            assert ours[name] == theirs[name], (step, name)
        assert digest(parts / f"checkpoints/{step}") == digest(whole / f"checkpoints/{step}"), step
        # The first step takes the schedule's first rate, which is 0.
        assert ours["learning_rate"] == pytest.approx(PEAK * min(step - 1, WARMUP) / WARMUP, rel=1e-6)
    assert journal(parts) == journal(whole)


# Empty and short histories


def histories(lengths: Iterable[int]) -> list[Record]:
    """Events whose histories hold item 3 so often."""
    return [event(offset, history=[3] * length) for offset, length in enumerate(lengths)]


def over_past(**changes) -> dict:
    """Changes of the config: the history's table is alone in its arena, and indexed directly."""
    past = direct("past", 100, 8)
    features = (f.replace(table="past") if f.name == "seen" else f for f in small_config().features)
    return {"tables": with_tables(past), "features": tuple(features), **changes}


@pytest.mark.kafka
def test_empty_histories_train_and_move_no_row_that_no_history_names(produced, tmp_path):
    """The case's two batches, and a third one of empty histories only."""
    dataset = produced(histories([0, 1] * 4 + [0] * 4), **over_past())
    run_dir, _ = trained(dataset, tmp_path)
    assert (summary(run_dir)["step"], summary(run_dir)["examples_trained"]) == (3, 12)
    assert summary(run_dir)["examples_skipped"] == {}, "a gradient that is not finite would have been passed over"
    assert np.isfinite(losses(run_dir)).all()
    assert all(np.isfinite(array).all() for array in arrays(run_dir).values())
    assert moved_rows(run_dir) == {3}, "neither row 0 nor a last one, nor one that rounds the table up, is padding's"


@pytest.mark.kafka
def test_a_longer_shape_of_the_same_histories_changes_no_loss(produced, tmp_path):
    short = produced(histories([0, 1, 0, 2, 0, 3, 0, 4]), **over_past(max_history=4))
    runs = [trained(short.replace(max_history=length), tmp_path / str(length))[0] for length in (4, 16)]
    np.testing.assert_allclose(losses(runs[1]), losses(runs[0]), rtol=1e-5)
    assert len(losses(runs[0])) == 2
