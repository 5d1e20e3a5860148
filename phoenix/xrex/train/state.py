"""What training changes: one flat set of arrays with stable names."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from xrex.checkpoint.arrays import named, nested
from xrex.embeddings.table import Arena, initial_table
from xrex.sharding.config import MeshConfig
from xrex.sharding.mesh import dense_sharding, over_rows, replicated


class TrainState(NamedTuple):
    """Everything a checkpoint holds of the optimization; the stream's positions lie beside it.

    `tables` and `slots` are dealt over the mesh by rows, the rest is replicated or dealt by `mesh.dense_weights`.
    """

    step: Any  # int32[]
    params: Any  # dense weights, params["blocks"]["0"]["attention"]["query"]["kernel"]
    dense_optimizer: Any  # optax state over params
    tables: Any  # arena -> float32[V, D]
    slots: Any  # arena -> float32[V], Adagrad accumulators


def split_model(model: nnx.Module):
    """(params, function from params back to the module): what crosses the jit boundary is plain nested dicts with text keys,
    since dispatching a module's own state costs milliseconds a step."""
    graph, state = nnx.split(model)
    weights = named(nnx.to_pure_dict(state))

    def merge(params: dict[str, Any]) -> nnx.Module:
        leaves = named(params)
        return nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), [leaves[name] for name in weights]))

    return nested(weights), merge


def initial_state(
    params: dict[str, Any],
    optimizer: optax.GradientTransformation,
    arenas: tuple[Arena, ...],
    mesh: Mesh,
    *,
    seed: int,
    embedding_stddev: float,
    initial_accumulator: float,
) -> TrainState:
    """The state before the first step; trace it under jit with `state_shardings`, so that no table is built whole."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1), max(1, len(arenas)))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        dense_optimizer=optimizer.init(params),
        tables={a.name: initial_table(a, k, embedding_stddev, mesh) for a, k in zip(arenas, keys, strict=False)},
        slots={a.name: jnp.full((a.stored_rows,), initial_accumulator, jnp.float32) for a in arenas},
    )


def state_shardings(mesh: Mesh, state: TrainState, config: MeshConfig) -> TrainState:
    """Where each leaf of a state (or of its shapes) lies."""
    whole, rows, dense = replicated(mesh), over_rows(mesh), dense_sharding(mesh, config)
    return TrainState(
        step=whole,
        params=jax.tree.map(lambda leaf: dense(leaf.shape), state.params),
        dense_optimizer=jax.tree.map(lambda leaf: dense(leaf.shape), state.dense_optimizer),
        tables=jax.tree.map(lambda _: rows, state.tables),
        slots=jax.tree.map(lambda _: rows, state.slots),
    )
