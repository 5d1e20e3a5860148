"""Tables on the device: every table of one width lies in one arena, so that a step gathers once and updates once.

An arena is float32[V, D] with one accumulator per row, float32[V]; rows are dealt in contiguous blocks over the mesh axis
`data`. A table's rows follow those of the tables before it, in the order of the config.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from xrex.schema.batch import Batch
from xrex.schema.inputs import ModelInputs
from xrex.schema.specs import STORED_ROWS_MULTIPLE, FeatureSpec, TableSpec
from xrex.sharding.mesh import AXIS


@dataclass(frozen=True)
class Arena:
    """The tables of one width and the features that look into them."""

    name: str
    embedding_dim: int
    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]

    @property
    def stored_rows(self) -> int:
        """V: rows over all devices, below 2^31."""
        return sum(t.stored_rows for t in self.tables)

    def first_row(self, table_name: str) -> int:
        """Where a table's rows begin."""
        names = [t.name for t in self.tables]
        return sum(t.stored_rows for t in self.tables[: names.index(table_name)])


def arenas(inputs: ModelInputs) -> tuple[Arena, ...]:
    """The arenas that the features need, in the order of the config; a table without a feature gets none."""
    looked_up = [f for f in inputs.features if f.table is not None]
    used = [t for t in inputs.tables if any(f.table == t.name for f in looked_up)]
    found = []
    for dim in dict.fromkeys(t.embedding_dim for t in used):
        tables = tuple(t for t in used if t.embedding_dim == dim)
        names = {t.name for t in tables}
        found.append(Arena(f"d{dim}", dim, tables, tuple(f for f in looked_up if f.table in names)))
    return tuple(found)


def flat_ids(arena: Arena, batch: Batch):
    """int32[B, n]: the arena rows of every id of a batch row, features side by side; padding is -1."""
    columns = []
    for feature in arena.features:
        ids = _group(batch, feature.group)[feature.name]
        shifted = jnp.where(ids < 0, -1, ids + arena.first_row(feature.table or ""))
        columns.append(shifted.reshape(shifted.shape[0], -1))
    return jnp.concatenate(columns, axis=1)


def pooled(arena: Arena, rows_BnD, batch: Batch) -> dict[str, dict]:
    """{group: {feature: float32[B(, L), D]}}: the gathered rows back in their places, an id's rows summed."""
    placed: dict[str, dict] = {"user": {}, "history": {}, "candidates": {}}
    shapes = [_group(batch, f.group)[f.name].shape for f in arena.features]
    ends = list(itertools.accumulate(math.prod(shape[1:]) for shape in shapes))
    # One split, not a slice a feature: its gradient is one concatenation, theirs is a sum of blocks padded to full width.
    blocks = jnp.split(rows_BnD, ends[:-1], axis=1)
    for feature, shape, block in zip(arena.features, shapes, blocks, strict=True):
        rows = block.reshape(*shape, arena.embedding_dim)
        placed[_key(feature.group)][feature.name] = jnp.sum(rows, axis=-2)
    return placed


def initial_table(arena: Arena, key, stddev: float, mesh: Mesh):
    """float32[V, D], dealt over the mesh: normal rows; the rows that only round a table up to its stored size are 0.

    Rows come in 1,024 blocks with a key each, so that they depend on no topology, and no device ever holds more than its own
    rows and one block.
    """
    block_rows, blocks_here = arena.stored_rows // STORED_ROWS_MULTIPLE, STORED_ROWS_MULTIPLE // mesh.size

    def block(index):
        values = stddev * jax.random.normal(jax.random.fold_in(key, index), (block_rows, arena.embedding_dim))
        return jnp.where(_is_row(arena, index * block_rows + jnp.arange(block_rows))[:, None], values, 0.0)

    def on_device():
        first = lax.axis_index(AXIS) * blocks_here
        return lax.map(block, first + jnp.arange(blocks_here)).reshape(-1, arena.embedding_dim)

    return jax.shard_map(on_device, mesh=mesh, in_specs=(), out_specs=PartitionSpec(AXIS), check_vma=False)()


def _is_row(arena: Arena, rows):
    """bool[...]: whether these rows of the arena belong to a table, and do not only round it up."""
    firsts = [arena.first_row(table.name) for table in arena.tables]
    belongs = [
        (rows >= first) & (rows < first + t.num_embeddings) for first, t in zip(firsts, arena.tables, strict=True)
    ]
    return functools.reduce(jnp.logical_or, belongs)


def _key(group: str) -> str:
    return "candidates" if group == "candidate" else group


def _group(batch: Batch, group: str) -> dict:
    return getattr(batch, _key(group))
