"""A small run to save: its state at any step is known, so a restored value can be checked by arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np

from xrex.schema.positions import PartitionPosition, TopicPositions

FILES = {"config.json": '{\n  "näme": "as broadcast"\n}\n'.encode(), "run.json": b'{"run_id": "0"}\n'}


def state_at(step):
    table = jnp.arange(2048 * 4, dtype=jnp.float32).reshape(2048, 4) + step
    kernel = jnp.full((3, 5), step, jnp.bfloat16)
    return {"params": {"blocks": [{"kernel": kernel}]}, "step": jnp.int32(step), "tables": {"d4": table}}


def positions_at(step):
    return TopicPositions("clicks", "id-1", {0: PartitionPosition(step, 1, 99, "0123456789abcdef", step - 1, 900)})


def target_like(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def assert_equal(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True), left, right)


def sum_examples(parts):
    return {"examples": sum(part["examples"] for part in parts)}
