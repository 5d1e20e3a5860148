"""Builds the parts of a run from its config. Each part gets its own section and nothing more."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from xrex.checkpoint.arrays import named
from xrex.data.assignment import partitions_of
from xrex.data.config import DatasetConfig
from xrex.data.prefetch import Stream
from xrex.embeddings.native import kernel as native
from xrex.embeddings.table import Arena, arenas
from xrex.errors import RunError
from xrex.models.config import RankerConfig
from xrex.models.ranker import Ranker
from xrex.optim.dense import dense_optimizer
from xrex.optim.rowwise import RowwiseAdagrad
from xrex.schema.inputs import ModelInputs
from xrex.schema.positions import TopicPositions
from xrex.sharding.config import MeshConfig
from xrex.sharding.mesh import dense_sharding, make_mesh, over_rows
from xrex.train.config import TrainerConfig
from xrex.train.micro_batches import check_divides, history_widths
from xrex.train.state import TrainState, initial_state, split_model, state_shardings
from xrex.train.step import build_step
from xrex.utils.utils import process_count, process_index


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


def mesh_of(config: TrainerConfig) -> Mesh:
    """The devices of a run. Raises ConfigError where its batch cannot be dealt over them, or over the groups of each."""
    mesh = make_mesh(config.mesh, config.trainer.global_batch_size)
    check_divides(config.trainer.micro_batches, config.trainer.global_batch_size, mesh.size)
    return mesh


@dataclass
class Program:
    """The compiled side of a run: where it lies, what it starts from, what a step does."""

    mesh: Mesh
    arenas: tuple[Arena, ...]
    step: jax.stages.Wrapped
    """(state, scratch, batch, signals) -> (state, scratch, StepReport), see `build_step`."""
    fresh_state: Callable[[], TrainState]
    """() -> TrainState before the first step."""
    fresh_arrays: Callable[[tuple[str, ...]], dict[str, jax.Array]]
    """Names -> those arrays of it, without making the others."""
    state_target: TrainState
    """jax.ShapeDtypeStructs with shardings, for a restore."""

    scratch_target: dict[str, jax.ShapeDtypeStruct]
    """int32[V] per arena, for sparse_update; the native kernel needs none."""

    def scratch(self) -> dict[str, jax.Array]:
        """What a step is given beside the state."""
        return {name: jnp.zeros(s.shape, s.dtype, device=s.sharding) for name, s in self.scratch_target.items()}


def build_program(config: TrainerConfig, mesh: Mesh | None = None) -> Program:
    """Model, optimizers and step, on a mesh that has been made already or on the config's."""
    mesh = mesh or mesh_of(config)
    inputs, optimizer_config, by_kernel = (
        model_inputs(config.dataset),
        config.optimizer,
        table_kernel(config.mesh) == "native",
    )
    looked_up = arenas(inputs)
    # Its shapes alone: no weight is made before the state is, and there each device makes its share.
    _, merge = split_model(nnx.eval_shape(lambda: ranker(config, inputs)))
    optimizer = dense_optimizer(optimizer_config.dense)
    sparse = optimizer_config.sparse
    step = build_step(
        merge,
        looked_up,
        optimizer,
        RowwiseAdagrad(sparse.learning_rate, sparse.epsilon),
        action_weights(config.model, config.dataset.actions),
        mesh,
        dense_sharding(mesh, config.mesh),
        by_kernel,
        config.trainer.micro_batches,
        history_widths(inputs.max_history, config.trainer.history_widths),
    )

    def fresh() -> TrainState:
        params, _ = split_model(ranker(config, inputs))
        return initial_state(
            params,
            optimizer=optimizer,
            arenas=looked_up,
            mesh=mesh,
            seed=config.trainer.seed,
            embedding_stddev=config.model.embedding_stddev,
            initial_accumulator=sparse.initial_accumulator,
        )

    shapes = jax.eval_shape(fresh)
    shardings = state_shardings(mesh, shapes, config.mesh)
    target = jax.tree.map(lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings)

    def fresh_arrays(names: tuple[str, ...]) -> dict[str, jax.Array]:
        places = {name: named(shardings)[name] for name in names}
        return jax.jit(lambda: {name: named(fresh())[name] for name in names}, out_shardings=places)()

    cells = {a.name: mesh.size if by_kernel else a.stored_rows for a in looked_up}
    scratch = {a: jax.ShapeDtypeStruct((n,), jnp.int32, sharding=over_rows(mesh)) for a, n in cells.items()}
    return Program(mesh, looked_up, step, jax.jit(fresh, out_shardings=shardings), fresh_arrays, target, scratch)


def table_kernel(config: MeshConfig) -> Literal["native", "xla"]:
    """What reads and updates tables on this process's devices. Raises RunError if it must be the native kernel and cannot."""
    if config.table_kernel == "xla" or (config.table_kernel == "auto" and jax.default_backend() != "cpu"):
        return "xla"
    why = native.why_unavailable() if jax.default_backend() == "cpu" else "the devices are no CPUs"
    if why and config.table_kernel == "native":
        raise RunError(f"mesh.table_kernel = 'native': {why}; or set mesh.table_kernel=auto")
    return "xla" if why else "native"


def ranker(config: TrainerConfig, inputs: ModelInputs) -> Ranker:
    """The model with fresh weights, which depend on the seed alone."""
    return Ranker(config.model, inputs, nnx.Rngs(jax.random.fold_in(jax.random.key(config.trainer.seed), 0)))


def action_weights(config: RankerConfig, actions: tuple[str, ...]) -> tuple[float, ...]:
    """One loss weight an action, as the model's config says."""
    return config.action_weights or (1.0,) * len(actions)


def open_stream(config: TrainerConfig, positions: TopicPositions, bad_before: int) -> Stream:
    """This process's part of the stream, from its positions on; the run has passed over `bad_before` bad records."""
    mine = partitions_of(len(positions.partitions), process_index(), process_count())
    return Stream(
        config.dataset,
        positions=positions.partitions,
        partitions=mine,
        rows=config.trainer.global_batch_size // process_count(),
        bad_before=bad_before,
    )
