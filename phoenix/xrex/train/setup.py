"""Builds the parts of a run from its config. Each part gets its own section and nothing more."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from xrex.checkpoint.manager import Checkpoints
from xrex.checkpoint.restore import restore_state
from xrex.data.assignment import partitions_of
from xrex.data.config import DatasetConfig
from xrex.data.prefetch import Stream
from xrex.embeddings.table import Arena, arenas
from xrex.errors import ConfigError
from xrex.models.config import ModelConfig, RankerConfig
from xrex.models.ranker import Ranker
from xrex.optim.dense import dense_optimizer
from xrex.optim.rowwise import rowwise_adagrad
from xrex.schema.inputs import ModelInputs
from xrex.schema.positions import TopicPositions
from xrex.sharding.mesh import make_mesh, over_rows
from xrex.train.config import TrainerConfig
from xrex.train.state import TrainState, initial_state, split_model, state_shardings
from xrex.train.step import build_step
from xrex.utils.utils import process_count, process_index

MODELS = {RankerConfig: Ranker}
"""Config class -> the module that it configures."""


def model_inputs(dataset: DatasetConfig) -> ModelInputs:
    """What of the stream a model has to know."""
    return ModelInputs(
        features=dataset.features,
        tables=dataset.tables,
        num_actions=len(dataset.actions),
        max_history=dataset.max_history,
        max_candidates=dataset.max_candidates,
        history_actions=dataset.history_actions_column is not None,
    )


@dataclass
class Program:
    """The compiled side of a run: where it lies, what it starts from, what a step does."""

    mesh: jax.sharding.Mesh
    arenas: tuple[Arena, ...]
    step: object
    fresh_state: object
    """() -> TrainState before the first step."""
    state_target: TrainState
    """jax.ShapeDtypeStructs with shardings, for a restore."""

    def scratch(self) -> dict[str, jax.Array]:
        """int32[V] per arena, for sparse_update."""
        return {
            a.name: jnp.zeros((a.stored_rows,), jnp.int32, device=over_rows(self.mesh)) for a in self.arenas
        }


def build_program(config: TrainerConfig) -> Program:
    """Mesh, model, optimizers and step. Raises ConfigError where they do not fit each other; touches no file, no broker."""
    inputs, optimizer_config = model_inputs(config.dataset), config.optimizer
    mesh = make_mesh(config.mesh, config.trainer.global_batch_size)
    looked_up = arenas(inputs)
    params, merge = split_model(build_model(config.model, inputs, config.trainer.seed))
    optimizer = dense_optimizer(optimizer_config.dense)
    sparse = optimizer_config.sparse
    step = build_step(
        merge,
        looked_up,
        optimizer,
        partial(rowwise_adagrad, learning_rate=sparse.learning_rate, epsilon=sparse.epsilon),
        action_weights(config.model, config.dataset.actions),
        mesh,
    )
    fresh = partial(
        initial_state,
        optimizer=optimizer,
        arenas=looked_up,
        seed=config.trainer.seed,
        embedding_stddev=config.model.embedding_stddev,
        initial_accumulator=sparse.initial_accumulator,
    )
    shapes = jax.eval_shape(fresh, params)
    shardings = state_shardings(mesh, shapes)
    target = jax.tree.map(lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings)
    return Program(mesh, looked_up, step, partial(jax.jit(fresh, out_shardings=shardings), params), target)


def build_model(config: ModelConfig, inputs: ModelInputs, seed: int) -> nnx.Module:
    """The Flax module of a model config, with fresh weights that depend on the seed alone."""
    return MODELS[type(config)](config, inputs, nnx.Rngs(jax.random.fold_in(jax.random.key(seed), 0)))


def action_weights(config: ModelConfig, actions: tuple[str, ...]) -> tuple[float, ...]:
    """One loss weight an action, as the model's config says."""
    weights = config.action_weights or (1.0,) * len(actions)
    if len(weights) != len(actions):
        raise ConfigError(
            f"model.action_weights has {len(weights)} values, dataset.actions has {len(actions)}: give one a action"
        )
    return weights


def open_stream(config: TrainerConfig, positions: TopicPositions) -> Stream:
    """This process's part of the stream, from its positions on."""
    mine = partitions_of(len(positions.partitions), process_index(), process_count())
    return Stream(
        config.dataset,
        positions={p: positions.partitions[p] for p in mine},
        partitions=mine,
        rows=config.trainer.global_batch_size // process_count(),
    )
