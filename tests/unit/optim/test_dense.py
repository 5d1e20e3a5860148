import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from xrex.optim.config import DenseOptimizerConfig
from xrex.optim.dense import dense_optimizer, learning_rate_schedule, learning_rate_taken


@pytest.mark.parametrize(("step", "want"), [(0, 0.0), (1, 0.002), (25, 0.05), (49, 0.098), (50, 0.1), (10**6, 0.1)])
def test_the_learning_rate_rises_in_a_line_and_stays(step, want):
    schedule = learning_rate_schedule(DenseOptimizerConfig(learning_rate=0.1, warmup_steps=50))
    assert float(schedule(step)) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    ("step", "want"),
    [
        (50, 0.1),
        (100, 0.1 * (0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))),  # a quarter of the way from 50 to 250
        (150, 0.06),
        (250, 0.02),
        (999, 0.02),
    ],
)
def test_the_learning_rate_falls_along_a_cosine_that_ends_at_decay_steps(step, want):
    config = DenseOptimizerConfig(learning_rate=0.1, warmup_steps=50, decay_steps=250, final_scale=0.2)
    assert float(learning_rate_schedule(config)(step)) == pytest.approx(want, rel=1e-5)


def test_without_warm_up_the_first_step_is_at_the_peak():
    assert float(learning_rate_schedule(DenseOptimizerConfig(learning_rate=0.1, warmup_steps=0))(0)) == pytest.approx(
        0.1
    )


def three_steps(optimizer):
    params = {"kernel": jnp.linspace(-1, 1, 12).reshape(3, 4), "bias": jnp.ones(4)}
    state = optimizer.init(params)
    for step in range(3):
        grads = jax.tree.map(lambda p, k=step: jnp.sin(5 * p + k), params)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_the_optimizer_equals_adamw_composed_by_hand(clip_norm):
    config = DenseOptimizerConfig(
        learning_rate=0.1, warmup_steps=2, b1=0.8, b2=0.95, epsilon=1e-6, weight_decay=0.3, clip_norm=clip_norm
    )
    by_hand = optax.chain(
        optax.clip_by_global_norm(clip_norm or 1e9),
        optax.scale_by_adam(b1=0.8, b2=0.95, eps=1e-6),
        optax.add_decayed_weights(0.3),
        optax.scale_by_learning_rate(lambda step: 0.1 * jnp.minimum(step / 2, 1)),
    )
    for ours, theirs in zip(*(three_steps(o).values() for o in (dense_optimizer(config), by_hand)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_the_first_steps_equal_the_formulas_of_adamw():
    """Loshchilov and Hutter 2019, in float64, on a constant gradient."""
    config = DenseOptimizerConfig(learning_rate=0.1, warmup_steps=0, b1=0.8, b2=0.95, epsilon=1e-6, weight_decay=0.3)
    optimizer, params, grad = dense_optimizer(config), jnp.array([2.0]), jnp.array([0.7])
    state, x, m, v = optimizer.init(params), 2.0, 0.0, 0.0
    for t in (1, 2, 3):
        updates, state = optimizer.update(grad, state, params)
        params = optax.apply_updates(params, updates)
        m, v = 0.8 * m + 0.2 * 0.7, 0.95 * v + 0.05 * 0.7**2
        x -= 0.1 * (m / (1 - 0.8**t) / (math.sqrt(v / (1 - 0.95**t)) + 1e-6) + 0.3 * x)
    assert float(params[0]) == pytest.approx(x, rel=1e-5)


@pytest.mark.parametrize("algorithm", ["adagrad", "momentum"])
def test_the_first_steps_of_the_other_rules_equal_their_formulas_too(algorithm):
    """In float64, on a changing gradient: Duchi et al. 2011 with a sum that starts at 0.1, and heavy-ball momentum."""
    config = DenseOptimizerConfig(
        algorithm=algorithm, learning_rate=0.1, warmup_steps=0, b1=0.8, epsilon=1e-6, weight_decay=0.3
    )
    optimizer, params = dense_optimizer(config), jnp.array([2.0])
    state, x, squares, moment = optimizer.init(params), 2.0, 0.1, 0.0
    for gradient in (0.7, -0.2, 0.4):
        updates, state = optimizer.update(jnp.array([gradient]), state, params)
        params = optax.apply_updates(params, updates)
        squares, moment = squares + gradient**2, 0.8 * moment + gradient
        direction = {"adagrad": gradient / math.sqrt(squares + 1e-6), "momentum": moment}[algorithm]
        x -= 0.1 * (direction + 0.3 * x)
    assert float(params[0]) == pytest.approx(x, rel=1e-5)


def test_the_learning_rate_that_a_step_took_is_read_from_the_state_after_it():
    config = DenseOptimizerConfig(learning_rate=0.1, warmup_steps=4)
    optimizer, params = dense_optimizer(config), jnp.array([2.0])
    state, taken = optimizer.init(params), []
    for _ in range(6):
        _, state = optimizer.update(params, state, params)
        taken.append(learning_rate_taken(config, state))
    np.testing.assert_allclose(taken, [0, 0.025, 0.05, 0.075, 0.1, 0.1], rtol=1e-6)
