"""Carry the rows of an arena over into one in which directly indexed tables have more rows."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from xrex.embeddings.lookup import lookup
from xrex.embeddings.table import Arena
from xrex.sharding.mesh import AXIS

CHUNK_ROWS = 4_096
"""Rows that a device fetches at once: what moves them needs no more memory than that, times the devices."""


def source_rows(arena: Arena, before: Arena, rows):
    """int32[...]: the row of `before` whose values row number `rows` of `arena` takes over, -1: none, it is new.

    A row that stands for ids outside the table (oov = "row") is the last one, before and after.
    """
    sources = jnp.full(rows.shape, -1, jnp.int32)
    for new, old in zip(arena.tables, before.tables, strict=True):
        row = rows - arena.first_row(new.name)
        moves_last = new.oov == "row" and new.num_embeddings != old.num_embeddings
        kept = old.num_embeddings - moves_last
        source = jnp.where((row >= 0) & (row < kept), row, -1)
        if moves_last:
            source = jnp.where(row == new.num_embeddings - 1, old.num_embeddings - 1, source)
        sources = jnp.where(source >= 0, source + before.first_row(new.name), sources)
    return sources


def grown(arena: Arena, before: Arena, old: jax.Array, fresh: jax.Array, mesh: Mesh) -> jax.Array:
    """`fresh` with the rows that `old` held: float32[V, D] or float32[V], dealt over the mesh by rows, as both are.

    old  of arena `before`, whose tables are the same ones with as many rows or fewer
    Rows travel in chunks; no device ever holds more than its own rows of both, and one chunk.
    """

    def on_device(old_block, fresh_block):
        old_rows, new_rows = (block.reshape(block.shape[0], -1) for block in (old_block, fresh_block))
        count, chunk = new_rows.shape[0], min(CHUNK_ROWS, new_rows.shape[0])
        first = lax.axis_index(AXIS) * count

        def carry_over(index, block):
            start = jnp.minimum(index * chunk, count - chunk)  # the last chunk overlaps; what it does twice is the same
            sources = source_rows(arena, before, first + start + jnp.arange(chunk, dtype=jnp.int32))
            found, _ = lookup(old_rows, sources[None])
            kept = lax.dynamic_slice_in_dim(block, start, chunk)
            chosen = jnp.where(sources[:, None] >= 0, found[0], kept)
            return lax.dynamic_update_slice_in_dim(block, chosen, start, 0)

        return lax.fori_loop(0, -(-count // chunk), carry_over, new_rows).reshape(fresh_block.shape)

    rows = PartitionSpec(AXIS)
    moved = jax.shard_map(on_device, mesh=mesh, in_specs=(rows, rows), out_specs=rows, check_vma=False)
    return jax.jit(moved, donate_argnums=1)(old, fresh)
