"""What a run takes over from a step: saved on one topology, taken over on another, with tables that grew."""

import jax
import numpy as np
import pytest

from small_model import DATASET, Trainer, config, random_batch
from xai_configlib import apply_overrides
from xrex.checkpoint.arrays import named
from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.manager import Checkpoints
from xrex.errors import CheckpointError
from xrex.schema.positions import TopicPositions
from xrex.train.config import TrainerConfig
from xrex.train.restored import check_optimizer, grown_tables, take_over

FILES = {"config.json": b"{}\n", "run.json": b"{}\n"}


def saved(trainer, folder):
    """The step folder of the trainer's state after two steps."""
    for seed in range(2):
        trainer.step(random_batch(trainer.config, seed))
    checkpoints = Checkpoints(folder, CheckpointConfig(), merge_progress=lambda parts: {})
    checkpoints.prepare()
    checkpoints.save(2, trainer.state, positions=TopicPositions("t", None, {}), progress={}, files=FILES)
    checkpoints.close()
    return folder / "2"


def values(state):
    return {name: np.asarray(leaf) for name, leaf in named(state).items()}


def taken_over(trainer, step_dir, fresh=(), grown_from=None):
    """(arrays, report) of what the trainer's program begins from."""
    lines = []
    state = take_over(trainer.program, step_dir, fresh=fresh, grown_from=grown_from or {}, say=lines.append)
    for leaf, target in zip(jax.tree.leaves(state), jax.tree.leaves(trainer.program.state_target), strict=True):
        assert (leaf.shape, leaf.dtype) == (target.shape, target.dtype)
        assert leaf.sharding.is_equivalent_to(target.sharding, leaf.ndim)
    return values(state), lines


ONE, TWO, DEALT = "mesh.num_devices=1", "mesh.num_devices=2", "mesh.num_devices=4 mesh.dense_weights=sharded"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("there", "here"),
    [
        pytest.param(DEALT, ONE),
        pytest.param(ONE, DEALT, marks=SLOW),
        pytest.param(DEALT, TWO, marks=SLOW),
        pytest.param(TWO, ONE, marks=SLOW),
    ],
)
def test_every_array_is_equal_wherever_it_was_saved_and_wherever_it_is_restored(there, here, tmp_path):
    trainer = Trainer(config(*there.split()))
    step_dir = saved(trainer, tmp_path)
    found, report = taken_over(Trainer(config(*here.split())), step_dir)
    jax.tree.map(np.testing.assert_array_equal, found, values(trainer.state))
    assert len(report) == 1
    assert report[0].startswith(f"restored {len(found)} arrays (")


def with_categories(rows, *overrides):
    tables = [{**t, "num_embeddings": rows} if t["name"] == "categories" else t for t in DATASET["tables"]]
    given = config(*overrides).to_dict()
    return apply_overrides(TrainerConfig.from_json({**given, "dataset": {**given["dataset"], "tables": tables}}), ())


@pytest.mark.parametrize("num_devices", [1, pytest.param(4, marks=SLOW)])
def test_a_table_that_grew_keeps_its_rows_and_accumulators(num_devices, tmp_path):
    before = Trainer(config())
    step_dir = saved(before, tmp_path)
    larger = with_categories(3000, f"mesh.num_devices={num_devices}")
    grown_from = grown_tables(larger, before.config)
    assert grown_from == {"categories": 9}
    after = Trainer(larger)
    fresh = values(after.state)
    found, report = taken_over(after, step_dir, grown_from=grown_from)
    old = values(before.state)
    for name in ("tables/d8", "slots/d8"):
        np.testing.assert_array_equal(found[name][:9], old[name][:9])
        np.testing.assert_array_equal(found[name][9:], fresh[name][9:])
    others = [name for name in old if name not in ("tables/d8", "slots/d8")]
    jax.tree.map(np.testing.assert_array_equal, {n: found[n] for n in others}, {n: old[n] for n in others})
    assert report[-1] == "table 'categories' keeps its 9 rows, further ones are new"
    after.step(random_batch(larger))


def test_arrays_that_begin_anew_are_those_of_a_new_run_and_are_told(tmp_path):
    trainer = Trainer(config())
    fresh = values(trainer.state)
    step_dir = saved(trainer, tmp_path)
    found, report = taken_over(Trainer(config()), step_dir, fresh=("params/head/*",))
    anew = {name for name in found if name.startswith("params/head/")}
    for name, array in found.items():
        np.testing.assert_array_equal(array, fresh[name] if name in anew else values(trainer.state)[name])
    assert report[1] == f"begun anew: {len(anew)} arrays, as --fresh asked: {', '.join(sorted(anew))}"


def test_another_optimizer_is_refused_by_name_unless_its_state_begins_anew(tmp_path):
    adagrad, adamw = config("optimizer.dense.algorithm=adagrad"), config()
    with pytest.raises(
        CheckpointError, match=r"its optimizer is adamw, this run's is adagrad .*--fresh 'dense_optimizer/\*'"
    ):
        check_optimizer(tmp_path, adagrad, adamw, ())
    check_optimizer(tmp_path, adagrad, adamw, ("dense_optimizer/*",))
    trainer = Trainer(adamw)
    step_dir = saved(trainer, tmp_path)
    found, report = taken_over(Trainer(adagrad), step_dir, fresh=("dense_optimizer/*",))
    kept = {name: array for name, array in values(trainer.state).items() if not name.startswith("dense_optimizer/")}
    jax.tree.map(np.testing.assert_array_equal, {name: found[name] for name in kept}, kept)
    assert any(name.startswith("dense_optimizer/1/0/sum_of_squares/") for name in found)
    assert [line.split(":")[0] for line in report[1:]] == ["begun anew", "left in the checkpoint"]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["clip_norm=1.0", "weight_decay=0.1"])
def test_clipping_and_weight_decay_have_no_state_that_could_not_fit(change, tmp_path):
    trainer = Trainer(config())
    step_dir = saved(trainer, tmp_path)
    found, _ = taken_over(Trainer(config(f"optimizer.dense.{change}")), step_dir)
    jax.tree.map(np.testing.assert_array_equal, found, values(trainer.state))
