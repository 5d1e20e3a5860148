"""One training step: what it changes, what it leaves alone, and that it is the same on 1, 2 and 4 devices."""

import math
import re
from contextlib import closing
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from compilations import compilations, compilations_logged
from small_model import DATASET, Trainer, config, random_batch
from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.manager import Checkpoints
from xrex.checkpoint.restore import restore_state
from xrex.data.hashing import rows_of
from xrex.embeddings.native import kernel as native
from xrex.embeddings.table import arenas
from xrex.errors import RunError
from xrex.optim.config import DenseOptimizerConfig
from xrex.optim.dense import dense_optimizer
from xrex.optim.rowwise import RowwiseAdagrad
from xrex.schema.inputs import ModelInputs
from xrex.schema.positions import TopicPositions
from xrex.schema.specs import FeatureSpec, TableSpec
from xrex.sharding.config import MeshConfig
from xrex.sharding.global_batch import place
from xrex.sharding.mesh import dense_sharding, make_mesh
from xrex.train.config import TrainerConfig
from xrex.train.setup import build_program, table_kernel
from xrex.train.state import TrainState
from xrex.train.step import build_step

CONFIG = config()
ITEMS, USERS = 3 * 1024, 1024  # stored rows of the two tables of the arena d16; users come first


@pytest.fixture
def trainer():
    return Trainer(CONFIG)


def copied(state):
    return jax.tree.map(np.array, state)


def assert_bit_equal(left, right):
    jax.tree.map(partial(np.testing.assert_array_equal, strict=True), copied(left), copied(right))


def weightless(batch):
    return batch._replace(weight=np.zeros_like(batch.weight))


def touched_rows(batch):
    """Arena -> the rows that a batch names, counted by hand."""
    users = batch.user["user"]
    items = [batch.candidates["item"], batch.history["past_item"]]
    categories = np.concatenate([batch.user["interests"].ravel(), batch.candidates["category"].ravel()])
    d16 = np.concatenate([users.ravel(), *(np.where(x < 0, -1, x + USERS).ravel() for x in items)])
    return {name: np.unique(ids[ids >= 0]) for name, ids in {"d16": d16, "d8": categories}.items()}


@pytest.fixture(scope="module")
def on_one_device():
    return three_steps(1)


def three_steps(num_devices, *overrides):
    trainer = Trainer(config(f"mesh.num_devices={num_devices}", *overrides))
    reports = [trainer.step(random_batch(CONFIG, seed)) for seed in range(3)]
    return copied(trainer.state), copied(reports)


@pytest.mark.parametrize("num_devices", [2, 4])
def test_several_devices_end_where_one_does(on_one_device, num_devices):
    close = partial(
        np.testing.assert_allclose, rtol=1e-4, atol=1e-5
    )  # they add the same float32 numbers in another order
    jax.tree.map(close, three_steps(num_devices), on_one_device)


def test_dealt_dense_weights_take_the_steps_of_whole_ones_also_where_their_norm_is_clipped():
    clipped = "optimizer.dense.clip_norm=0.01"  # far below the norm of a fresh model's gradients
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, three_steps(4, clipped, "mesh.dense_weights=sharded"), three_steps(4, clipped))


def test_a_batch_of_weight_0_changes_nothing_not_even_the_step_counter(trainer):
    for seed in range(2):
        trainer.step(random_batch(CONFIG, seed))
    before = copied(trainer.state)
    report = trainer.step(weightless(random_batch(CONFIG, 2)), more=0)
    assert_bit_equal(trainer.state, before)
    assert (int(report.step), int(report.examples), int(report.more), int(report.stop)) == (2, 0, 0, 0)


def test_a_step_in_which_a_process_is_told_to_stop_changes_nothing(trainer):
    trainer.step(random_batch(CONFIG, 0))
    before = copied(trainer.state)
    report = trainer.step(random_batch(CONFIG, 1), stop=1)
    assert_bit_equal(trainer.state, before)
    assert (int(report.step), int(report.examples), int(report.stop)) == (1, 8, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
@pytest.mark.parametrize("where", ["feature", "label"])
def test_a_batch_whose_loss_or_gradients_are_not_finite_changes_nothing_and_is_reported(trainer, value, where):
    trainer.step(random_batch(CONFIG, 0))
    before = copied(trainer.state)
    batch = random_batch(CONFIG, 1)
    if where == "label":
        batch.labels[batch.label_mask] = value
    else:
        next(array for array in batch.candidates.values() if array.dtype == np.float32)[0, 0] = value
    report = trainer.step(batch)
    assert_bit_equal(trainer.state, before)
    assert (int(report.step), int(report.examples), int(report.faults)) == (1, 8, 1)
    after = trainer.step(random_batch(CONFIG, 2))
    assert (int(after.step), int(after.faults)) == (2, 0)


def test_a_fault_on_one_device_leaves_the_state_of_all_as_it_was():
    trainer = Trainer(config("mesh.num_devices=4"))
    trainer.step(random_batch(CONFIG, 0))
    before = copied(trainer.state)
    batch = random_batch(CONFIG, 1)
    batch.labels[0] = np.inf  # a row of device 0
    batch.label_mask[0] = True
    report = trainer.step(batch)
    assert_bit_equal(trainer.state, before)
    assert (int(report.step), int(report.faults)) == (1, 1)


def test_step_counter_and_schedule_advance_once_a_step(trainer):
    """Warm-up begins at a rate of 0: the first step moves no dense weight, an empty batch does not move the schedule."""
    fresh = copied(trainer.state.params)
    for batch in (random_batch(CONFIG), weightless(random_batch(CONFIG))):
        assert int(trainer.step(batch).step) == 1
        assert_bit_equal(trainer.state.params, fresh)
    assert int(trainer.step(random_batch(CONFIG)).step) == 2
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), copied(trainer.state.params), fresh)
    # One step of AdamW at a quarter of the peak: the first update of a weight is as long as the rate.
    assert max(jax.tree.leaves(moved)) == pytest.approx(1e-3 / 4, rel=0.02)


def test_the_reported_logits_are_from_the_weights_before_the_step(trainer):
    trainer.step(random_batch(CONFIG, 0))
    batch = random_batch(CONFIG, 1)
    before = np.asarray(trainer.step(weightless(batch)).logits)
    reported = np.asarray(trainer.step(batch).logits)
    np.testing.assert_array_equal(reported, before)
    assert np.abs(np.asarray(trainer.step(weightless(batch)).logits) - before).max() > 1e-4


@pytest.mark.parametrize("num_devices", [1, 4])
def test_exactly_the_touched_rows_and_slots_change(num_devices):
    trainer = Trainer(config(f"mesh.num_devices={num_devices}"))
    before, batch = copied(trainer.state), random_batch(CONFIG)
    batch = batch._replace(label_mask=np.ones_like(batch.label_mask))
    trainer.step(batch)
    after = copied(trainer.state)
    for arena, rows in touched_rows(batch).items():
        changed_rows = np.flatnonzero((after.tables[arena] != before.tables[arena]).any(axis=1))
        np.testing.assert_array_equal(changed_rows, rows)
        np.testing.assert_array_equal(np.flatnonzero(after.slots[arena] != before.slots[arena]), rows)


def test_rows_that_only_round_a_table_up_stay_0(trainer):
    for seed in range(3):
        trainer.step(random_batch(CONFIG, seed))
    tables = copied(trainer.state.tables)
    assert (tables["d16"][900:USERS] == 0).all()
    assert (tables["d16"][USERS + 3000 :] == 0).all()
    assert (tables["d8"][9:] == 0).all()


def linear_step(num_devices=1):
    """A step of a model that is written out in the tests: logit = row of the item, summed over its 4 numbers."""
    spec = TableSpec(name="items", num_embeddings=1024, embedding_dim=4, salts=())
    feature = FeatureSpec(name="item", group="candidate", column="item", table="items")
    looked_up = arenas(ModelInputs((feature,), (spec,), 1, 1, 1, history_actions=False))
    optimizer = dense_optimizer(DenseOptimizerConfig())
    mesh = make_mesh(MeshConfig(num_devices=num_devices), 8)
    step = build_step(
        lambda params: lambda embedded, batch: jnp.sum(embedded["candidates"]["item"], axis=-1, keepdims=True),
        looked_up,
        optimizer,
        RowwiseAdagrad(learning_rate=0.1, epsilon=1e-8),
        (1.0,),
        mesh,
        dense_sharding(mesh, MeshConfig()),
    )
    params = {"unused": jnp.zeros(2)}
    table, slots = np.full((1024, 4), 0.05, np.float32), np.full(1024, 0.01, np.float32)
    state = TrainState(jnp.int32(0), params, optimizer.init(params), {"d4": table}, {"d4": slots})
    return mesh, partial(step, state, {"d4": np.zeros(1024, np.int32)})


@pytest.mark.parametrize("num_devices", [1, 4])
def test_duplicates_in_a_batch_get_one_adagrad_step_on_their_summed_gradient(num_devices):
    mesh, step = linear_step(num_devices)
    ids, labels, weight = np.full(8, 700), np.array([1, 0, 0, 0, 0, 0, 1, 0]), np.array([1, 1, 1, 1, 1, 1, 2, 0])
    ids[1] = 3
    batch = random_batch(CONFIG)._replace(
        candidates={"item": ids.reshape(8, 1, 1).astype(np.int32)},
        labels=labels.reshape(8, 1, 1).astype(np.float32),
        label_mask=np.ones((8, 1, 1), bool),
        weight=weight.astype(np.float32),
    )
    signals = np.zeros((num_devices, 2), np.int32)
    state, *_ = step(*place(mesh, (batch, signals)))
    for row in (700, 3):
        p = 1 / (1 + np.exp(-4 * 0.05))
        gradient = ((p - labels) * weight * (ids == row)).sum() / weight.sum()  # the same for all 4 numbers of the row
        slot = 0.01 + gradient**2
        np.testing.assert_allclose(state.slots["d4"][row], slot, rtol=1e-5)
        np.testing.assert_allclose(state.tables["d4"][row], 0.05 - 0.1 * gradient / np.sqrt(slot), rtol=1e-5)


def test_ids_that_differ_above_32_bits_find_other_rows_and_learn_other_labels():
    """Item 5 always clicked, item 2^32 + 5 never, everything else alike."""
    trainer, rng = Trainer(config("optimizer.dense.warmup_steps=20")), np.random.default_rng(0)
    table = next(t for t in CONFIG.dataset.tables if t.name == "items")
    assert not set(rows_of(np.array([5]), table).ravel()) & set(rows_of(np.array([2**32 + 5]), table).ravel())
    same = random_batch(CONFIG, rows=8)
    same = jax.tree.map(lambda x: np.broadcast_to(x[:1], x.shape), same)._replace(candidate_length=np.ones(8, np.int32))
    labels, scores = [], []
    for _ in range(100):
        clicked = rng.random(8) < 0.5
        items = np.full((8, 3, 2), -1, np.int32)
        items[:, 0] = rows_of(np.where(clicked, 5, 2**32 + 5), table)
        batch = same._replace(
            candidates={**same.candidates, "item": items},
            labels=np.where(np.arange(3)[:, None] == 0, clicked[:, None, None], 0).astype(np.float32).repeat(2, -1),
            label_mask=np.broadcast_to((np.arange(3) == 0)[:, None], (8, 3, 2)),
        )
        scores += np.asarray(trainer.step(batch).logits)[:, 0, 0].tolist()
        labels += clicked.tolist()
    last = np.array(scores[-200:])
    pairs = last[np.array(labels[-200:])][:, None] - last[~np.array(labels[-200:])]
    assert ((pairs > 0) + 0.5 * (pairs == 0)).mean() > 0.95


def test_the_loss_of_one_batch_that_comes_again_and_again_falls(trainer):
    losses = [r.loss_sum / r.loss_weight for r in (trainer.step(random_batch(CONFIG)) for _ in range(40))]
    assert losses[-1] < 0.5 * losses[0]


def pointers(trainer):
    return [
        x.unsafe_buffer_pointer() for x in jax.tree.leaves((trainer.state.tables, trainer.state.slots, trainer.scratch))
    ]


def test_tables_are_updated_in_place_and_nothing_is_compiled_again_also_after_a_save(trainer, tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path / "checkpoints", CheckpointConfig(), merge_progress=lambda parts: parts[0])
    checkpoints.prepare()
    files, nowhere = {"config.json": b"{}", "run.json": b"{}"}, TopicPositions("engagements", None, {})
    save = partial(checkpoints.save, positions=nowhere, progress={}, files=files)
    with closing(checkpoints), compilations_logged(caplog):
        trainer.step(random_batch(CONFIG))
        assert [line for line in compilations(caplog) if "Finished XLA compilation of jit(step)" in line]
        places = pointers(trainer)
        save(1, trainer.state)
        saved = copied(trainer.state)
        save(1_000, trainer.state)  # the second one copies into the first one's buffers
        caplog.clear()
        for seed in range(50):
            trainer.step(random_batch(CONFIG, seed))
            assert pointers(trainer) == places
            if seed == 25:
                save(2_000, trainer.state)
        assert not compilations(caplog)
    assert_bit_equal(restore_state(tmp_path / "checkpoints" / "1000", trainer.program.state_target), saved)


def test_no_optimizer_state_has_the_size_of_a_table(trainer):
    tables = {t.shape for t in jax.tree.leaves(trainer.state.tables)}
    assert tables == {(USERS + ITEMS, 16), (1024, 8)}
    assert all(x.size < 1024 for x in jax.tree.leaves((trainer.state.params, trainer.state.dense_optimizer)))


def test_one_compiled_program_serves_equal_configs():
    traced = []

    @partial(jax.jit, static_argnums=1)
    def scaled(x, config):
        traced.append(config)
        return x * config.model.width

    other = TrainerConfig.from_json(CONFIG.to_json())
    assert other is not CONFIG
    assert hash(other) == hash(CONFIG)
    assert scaled(1.0, CONFIG) == scaled(1.0, other) == 16
    assert len(traced) == 1
    assert scaled(1.0, config("model.width=32")) == 32
    assert len(traced) == 2


COLLECTIVE = re.compile(r"= (.+?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start)?\(")
BYTES = {"f32": 4, "s32": 4, "u32": 4, "pred": 1}


def exchanged_bytes(num_items: int, dense_weights: str) -> int:
    """Bytes that the collectives of one compiled step on four devices bring to each of them."""
    tables = [{**t, "num_embeddings": num_items} if t["name"] == "items" else t for t in DATASET["tables"]]
    given = config("mesh.num_devices=4", f"mesh.dense_weights={dense_weights}").to_dict()
    larger = TrainerConfig.from_json({**given, "dataset": {**given["dataset"], "tables": tables}})
    program = build_program(larger)
    batch, signals = place(program.mesh, (random_batch(larger), np.zeros((4, 2), np.int32)))
    scratch = jax.tree.map(
        lambda slot: jax.ShapeDtypeStruct(slot.shape, jnp.int32, sharding=slot.sharding), program.state_target.slots
    )
    compiled = program.step.lower(program.state_target, scratch, batch, signals).compile()
    shapes = [shape for shape, *_ in COLLECTIVE.findall(compiled.as_text())]
    assert shapes
    arrays = [array for shape in shapes for array in re.findall(r"(\w+)\[([\d,]*)\]", shape)]
    return sum(BYTES[kind] * math.prod(int(n) for n in dims.split(",") if n) for kind, dims in arrays)


@pytest.mark.slow
@pytest.mark.parametrize("dense_weights", ["replicated", "sharded"])
def test_what_devices_exchange_in_a_step_does_not_grow_with_the_table(dense_weights):
    small, large = exchanged_bytes(100_000, dense_weights), exchanged_bytes(10_000_000, dense_weights)
    assert small > 0
    assert large == small


@pytest.mark.parametrize("num_devices", [1, 4])
def test_the_two_table_kernels_end_alike(num_devices):
    if why := native.why_unavailable():
        pytest.skip(why)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, *(three_steps(num_devices, f"mesh.table_kernel={kernel}") for kernel in ("native", "xla")))


def test_a_native_kernel_that_is_asked_for_and_not_there_is_a_run_error(monkeypatch):
    monkeypatch.setattr(native, "why_unavailable", lambda: "no native kernel here: run `make setup`")
    with pytest.raises(
        RunError, match=r"mesh.table_kernel = 'native': no native kernel here: run `make setup`; or set mesh"
    ):
        table_kernel(MeshConfig(table_kernel="native"))
    assert table_kernel(MeshConfig(table_kernel="auto")) == "xla"
