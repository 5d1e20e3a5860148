"""Tables on the device: every table of one width lies in one arena, so that a step gathers once and updates once.

An arena is float32[V, D] with one accumulator per row, float32[V]; rows are dealt in contiguous blocks over the mesh axis
`data`. A table's rows follow those of the tables before it, in the order of the config.
"""

import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from xrex.schema.batch import Batch
from xrex.schema.inputs import ModelInputs
from xrex.schema.specs import FeatureSpec, TableSpec


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


def initial_table(arena: Arena, key, stddev: float):
    """float32[V, D]: normal rows; the rows that only round a table up to its stored size are 0."""
    rows = []
    for table, table_key in zip(arena.tables, jax.random.split(key, len(arena.tables)), strict=True):
        values = stddev * jax.random.normal(table_key, (table.stored_rows, arena.embedding_dim))
        rows.append(jnp.where(jnp.arange(table.stored_rows)[:, None] < table.num_embeddings, values, 0.0))
    return jnp.concatenate(rows)


def _key(group: str) -> str:
    return "candidates" if group == "candidate" else group


def _group(batch: Batch, group: str) -> dict:
    return getattr(batch, _key(group))
