"""Look up rows of a table that is dealt over the devices. Runs inside shard_map over the mesh axis `data`.

Every device asks for every other's ids, reads those that it owns, and the sums come back: traffic grows with the rows that
are touched, never with the table.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from xrex.embeddings.native import kernel as native
from xrex.sharding.mesh import AXIS


class Gathered(NamedTuple):
    """What one device holds after a lookup: its share of everybody's ids. N = ids of all devices."""

    local_ids_N: Any  # int32[N]: row of this device's block; beyond its last row where the id is padding or another's
    rows_ND: Any  # float32[N, D]: those rows, 0 where not owned


def lookup(block_RD, ids_Bn, *, by_kernel: bool = False):
    """Rows of this device's ids, and what its own block gave.

    block_RD  float32[R, D]  this device's rows of the table
    ids_Bn    int32[b, n]    rows of the whole table that this device's batch rows name, -1 = padding
    by_kernel  read by the native kernel, which is there
    Returns (float32[b, n, D], 0 for padding; Gathered).
    """
    gathered = gather_owned(block_RD, of_all_devices(ids_Bn.reshape(-1)), by_kernel=by_kernel)
    mine = sums_of_mine(gathered.rows_ND)
    return mine.reshape(*ids_Bn.shape, block_RD.shape[1]), gathered


def gather_owned(block_RD, ids_N, *, by_kernel: bool = False) -> Gathered:
    """Read the ids that lie in this device's block."""
    num_rows = block_RD.shape[0]
    local = ids_N - lax.axis_index(AXIS) * num_rows
    # JAX wraps negative indices even with mode="fill", so whatever is not ours is moved beyond the last row.
    local = jnp.where((ids_N >= 0) & (local >= 0) & (local < num_rows), local, num_rows)
    rows = native.gather(block_RD, local) if by_kernel else block_RD.at[local].get(mode="fill", fill_value=0)
    return Gathered(local, rows)


def of_all_devices(part_n):
    """Every device's part, one after the other."""
    # On CPU XLA copies what a collective over a single device returns: a quarter of an embedding-bound step.
    return part_n if lax.axis_size(AXIS) == 1 else lax.all_gather(part_n, AXIS, tiled=True)


def sums_of_mine(whole_N):
    """This device's part of the sum over all devices."""
    return whole_N if lax.axis_size(AXIS) == 1 else lax.psum_scatter(whole_N, AXIS, scatter_dimension=0, tiled=True)
