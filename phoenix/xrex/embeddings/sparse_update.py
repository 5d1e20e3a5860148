"""Update the rows that a batch touched, in place. Runs inside shard_map over the mesh axis `data`."""

import jax.numpy as jnp

from xrex.embeddings.lookup import Gathered, of_all_devices
from xrex.embeddings.native import kernel as native
from xrex.optim.rowwise import RowwiseAdagrad


def sparse_update(
    block_RD,
    accum_R,
    scratch_R,
    gathered: Gathered,
    grads_Bn_D,
    rule: RowwiseAdagrad,
    applied,
    *,
    by_kernel: bool = False,
):
    """Apply `rule` once to every distinct row that any device's batch touched.

    block_RD, accum_R  float32[R, D], float32[R]  this device's rows and accumulators; donate them to update in place
    scratch_R          int32[R]  any contents; only which duplicate speaks for a row depends on them, never the result's rows.
                       The kernel needs none
    gathered           what `lookup` returned for these ids
    grads_Bn_D         float32[b, n, D]  this device's gradients, already divided by the global weight
    rule               (rows_UD, grads_UD, accum_U) -> (rows_UD, accum_U)
    applied            bool[]; false leaves everything as it is
    by_kernel          update by the native kernel, which is there
    Returns (block_RD, accum_R, scratch_R).
    """
    num_rows = block_RD.shape[0]
    grads_ND = of_all_devices(grads_Bn_D.reshape(-1, block_RD.shape[1]))
    if by_kernel:
        step = {"learning_rate": rule.learning_rate, "epsilon": rule.epsilon}
        return *native.update(block_RD, accum_R, gathered.local_ids_N, grads_ND, applied, **step), scratch_R
    local_N = jnp.where(applied, gathered.local_ids_N, num_rows)
    scratch_R, summed_ND, elected_N = _sum_duplicates(scratch_R, local_N, grads_ND)
    rows_ND, accum_N = rule(gathered.rows_ND, summed_ND, accum_R.at[local_N].get(mode="fill", fill_value=1.0))
    # One position speaks for each row; the others are sent out of bounds, where they are dropped.
    target_N = jnp.where(elected_N, local_N, num_rows)
    block_RD = block_RD.at[target_N].set(rows_ND, mode="drop", unique_indices=True)
    accum_R = accum_R.at[target_N].set(accum_N, mode="drop", unique_indices=True)
    return block_RD, accum_R, scratch_R


def _sum_duplicates(scratch_R, local_N, grads_ND):
    """Sum the gradients of equal ids without sorting: all positions of a row write their number into the row's scratch cell,
    whichever stays is elected, and the others' gradients are added to its place. Costs O(N) and four bytes a row."""
    position_N = jnp.arange(local_N.shape[0], dtype=jnp.int32)
    scratch_R = scratch_R.at[local_N].set(position_N, mode="drop")
    winner_N = scratch_R.at[local_N].get(mode="fill", fill_value=-1)
    owned_N = local_N < scratch_R.shape[0]
    winner_N = jnp.where(owned_N, winner_N, local_N.shape[0])
    summed_ND = jnp.zeros_like(grads_ND).at[winner_N].add(grads_ND, mode="drop")
    return scratch_R, summed_ND, owned_N & (winner_N == position_N)
