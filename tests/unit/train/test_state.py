from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from small_model import Trainer, config, random_batch
from xrex.checkpoint.arrays import named
from xrex.models.layers import FeedForward
from xrex.sharding.mesh import over_rows, replicated
from xrex.train.state import split_model


def fresh(*overrides):
    return Trainer(config(*overrides)).state


def test_a_fresh_state_depends_on_the_seed_not_on_the_devices():
    one, four, other = fresh(), fresh("mesh.num_devices=4"), fresh("trainer.seed=1")
    # Not bit by bit: the compiler may round the last bit of a normal number otherwise where a block is shorter.
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), one, four)
    jax.tree.map(np.testing.assert_array_equal, one, fresh())
    assert (np.asarray(one.tables["d16"]) != np.asarray(other.tables["d16"])).any()
    kernels = (named(state.params)["blocks/0/attention/query/kernel"] for state in (one, other))
    assert not np.array_equal(*kernels)


def test_fresh_rows_are_normal_and_fresh_slots_hold_the_initial_accumulator():
    state = fresh("model.embedding_stddev=0.3", "optimizer.sparse.initial_accumulator=0.25")
    users = np.asarray(state.tables["d16"])[:900]
    assert users.std() == pytest.approx(0.3, rel=0.03)
    assert abs(users.mean()) < 0.01
    assert len(np.unique(users[:, 0])) == 900
    assert {float(slot) for slots in state.slots.values() for slot in np.unique(slots)} == {0.25}
    assert int(state.step) == 0


def test_tables_and_slots_lie_on_the_mesh_by_rows_and_the_rest_whole_on_every_device():
    trainer = Trainer(config("mesh.num_devices=4"))
    for name, leaf in named(trainer.state).items():
        dealt = name.startswith(("tables/", "slots/"))
        where = (over_rows if dealt else replicated)(trainer.program.mesh)
        assert leaf.sharding.is_equivalent_to(where, leaf.ndim), name
    shard = trainer.state.tables["d16"].addressable_shards[3]
    assert shard.data.shape == (1024, 16)


def test_dealt_dense_weights_and_their_moments_take_a_share_of_each_devices_memory():
    trainer = Trainer(config("mesh.num_devices=4", "mesh.dense_weights=sharded"))
    dealt = {
        name: leaf for name, leaf in named(trainer.state).items() if name.startswith(("params/", "dense_optimizer/"))
    }
    for name, leaf in dealt.items():
        divides = leaf.shape and leaf.shape[0] % 4 == 0
        shard = leaf.addressable_shards[3].data
        assert shard.shape == ((leaf.shape[0] // 4, *leaf.shape[1:]) if divides else leaf.shape), name
    bytes_whole = sum(leaf.nbytes for leaf in dealt.values())
    assert sum(leaf.addressable_shards[3].data.nbytes for leaf in dealt.values()) < 0.3 * bytes_whole


@pytest.mark.parametrize("dense_weights", ["replicated", "sharded"])
def test_a_step_leaves_every_array_where_a_restore_would_put_it(dense_weights):
    trainer = Trainer(config("mesh.num_devices=4", f"mesh.dense_weights={dense_weights}"))
    trainer.step(random_batch(trainer.config))
    assert jax.tree.structure(trainer.state) == jax.tree.structure(trainer.program.state_target)
    for leaf, target in zip(jax.tree.leaves(trainer.state), jax.tree.leaves(trainer.program.state_target), strict=True):
        assert (leaf.shape, leaf.dtype) == (target.shape, target.dtype)
        assert leaf.sharding.is_equivalent_to(target.sharding, leaf.ndim)


def test_weights_have_names_that_say_where_they_belong():
    names = set(named(fresh().params))
    assert {"blocks/0/attention/query/kernel", "blocks/1/feedforward/up/bias", "head/bias", "interaction"} <= names


def test_merge_gives_the_module_that_was_split_with_other_weights():
    layer = FeedForward(4, 8, jnp.float32, nnx.Rngs(0))
    params, merge = split_model(layer)
    x = jnp.ones((2, 3, 4))
    np.testing.assert_array_equal(merge(params)(x), layer(x))
    params["down"]["kernel"] = params["down"]["kernel"] * 2
    np.testing.assert_allclose(merge(params)(x), layer(x) * 2, rtol=1e-6)
