import jax.numpy as jnp
import numpy as np

from xrex.optim.rowwise import RowwiseAdagrad


def test_a_step_equals_the_rule_written_out_in_float64():
    rng = np.random.default_rng(0)
    rows, grads = rng.normal(size=(2, 7, 5)).astype(np.float32)
    accum = rng.uniform(0, 0.1, 7).astype(np.float32)
    new_rows, new_accum = RowwiseAdagrad(learning_rate=0.07, epsilon=1e-8)(rows, grads, accum)
    for u in range(7):
        g = grads[u].astype(np.float64)
        slot = accum[u].astype(np.float64) + (g**2).sum() / 5
        np.testing.assert_allclose(new_accum[u], slot, rtol=1e-6)
        np.testing.assert_allclose(new_rows[u], rows[u] - 0.07 * g / (slot**0.5 + 1e-8), rtol=1e-5, atol=1e-7)


def test_a_row_without_a_gradient_stays_bit_equal_even_with_an_empty_slot():
    rows, accum = jnp.array([[0.1, -3.0], [2.0, 5.0]]), jnp.array([0.0, 0.3])
    new_rows, new_accum = RowwiseAdagrad(learning_rate=0.1, epsilon=1e-8)(rows, jnp.zeros((2, 2)), accum)
    np.testing.assert_array_equal(new_rows, rows)
    np.testing.assert_array_equal(new_accum, accum)


def test_the_first_step_is_as_long_at_any_width():
    """Mean over D: a gradient of equal entries moves every entry by the learning rate, be D 2 or 64."""
    for dim in (2, 64):
        rule = RowwiseAdagrad(learning_rate=0.1, epsilon=1e-8)
        rows, _ = rule(jnp.zeros((1, dim)), jnp.full((1, dim), 3.0), jnp.zeros(1))
        np.testing.assert_allclose(rows, -0.1, rtol=1e-5)
