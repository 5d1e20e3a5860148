"""Lookup and sparse update over 1, 2 and 4 devices, against a float64 numpy loop over distinct rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from xrex.embeddings.lookup import lookup
from xrex.embeddings.sparse_update import sparse_update
from xrex.optim.rowwise import RowwiseAdagrad

ROWS, DIM, LEARNING_RATE, START = 1024, 8, 0.1, 0.01
RULE = RowwiseAdagrad(learning_rate=LEARNING_RATE, epsilon=1e-8)


def one_update(num_devices, table, accum, scratch, ids, grads, applied=True):
    """The update as the step does it: [B, n] ids and [B, n, D] gradients dealt over the devices."""
    mesh, rows = Mesh(np.array(jax.devices()[:num_devices]), ("data",)), PartitionSpec("data")

    def on_device(table, accum, scratch, ids, grads):
        looked_up, gathered = lookup(table, ids)
        return (looked_up, *sparse_update(table, accum, scratch, gathered, grads, RULE, jnp.asarray(applied)))

    program = jax.shard_map(on_device, mesh=mesh, in_specs=(rows,) * 5, out_specs=(rows,) * 4, check_vma=False)
    return jax.jit(program)(table, accum, scratch, ids, grads)


def oracle(table, accum, ids, grads):
    """One Adagrad step a distinct row, on the sum of its gradients, in float64."""
    table, accum = table.astype(np.float64), accum.astype(np.float64)
    for row in np.unique(ids[ids >= 0]):
        gradient = grads[ids == row].astype(np.float64).sum(axis=0)
        accum[row] += np.mean(gradient**2)
        table[row] -= LEARNING_RATE * gradient / (np.sqrt(accum[row]) + 1e-8)
    return table, accum


@pytest.fixture
def case():
    rng = np.random.default_rng(3)
    table = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    ids = rng.zipf(1.3, size=(16, 5)).clip(max=ROWS).astype(np.int32) - 1
    ids[rng.random(ids.shape) < 0.2] = -1  # padding
    ids[0, 0], ids[1, 1] = ROWS - 1, 0
    grads = rng.normal(size=(16, 5, DIM)).astype(np.float32)
    return table, np.full(ROWS, START, np.float32), ids, grads


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_every_distinct_row_gets_one_step_on_the_sum_of_its_gradients(case, num_devices):
    table, accum, ids, grads = case
    scratch = np.random.default_rng(0).integers(-5, 99, ROWS).astype(np.int32)  # its contents must not matter
    _, new_table, new_accum, _ = one_update(num_devices, table, accum, scratch, ids, grads)
    want_table, want_accum = oracle(table, accum, ids, grads)
    np.testing.assert_allclose(new_table, want_table, atol=2e-6)
    np.testing.assert_allclose(new_accum, want_accum, rtol=2e-6)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_a_lookup_gives_the_rows_and_zero_for_padding(case, num_devices):
    table, accum, ids, grads = case
    looked_up, *_ = one_update(num_devices, table, accum, np.zeros(ROWS, np.int32), ids, grads)
    want = np.where((ids >= 0)[..., None], table[ids], 0)
    np.testing.assert_array_equal(looked_up, want)


def test_rows_that_no_id_names_stay_bit_equal_the_last_one_too(case):
    table, accum, ids, grads = case
    ids = np.where(ids == ROWS - 1, 0, ids)  # the row that -1 would wrap to
    _, new_table, new_accum, _ = one_update(2, table, accum, np.zeros(ROWS, np.int32), ids, grads)
    untouched = np.setdiff1d(np.arange(ROWS), ids)
    np.testing.assert_array_equal(np.asarray(new_table)[untouched], table[untouched])
    np.testing.assert_array_equal(np.asarray(new_accum)[untouched], accum[untouched])


def test_an_update_that_is_not_applied_changes_nothing(case):
    table, accum, ids, grads = case
    _, new_table, new_accum, _ = one_update(2, table, accum, np.zeros(ROWS, np.int32), ids, grads, applied=False)
    np.testing.assert_array_equal(new_table, table)
    np.testing.assert_array_equal(new_accum, accum)
