"""Dense weights: a rule of optax, with warm-up and decay."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from xrex.optim.config import DenseOptimizerConfig


def learning_rate_schedule(config: DenseOptimizerConfig) -> optax.Schedule:
    """Step -> learning rate: linear from 0, then constant, or a cosine down to `final_scale` of the peak at `decay_steps`."""
    peak, warmup = config.learning_rate, config.warmup_steps
    if config.decay_steps is None:
        after = optax.constant_schedule(peak)
    else:
        after = optax.cosine_decay_schedule(peak, max(1, config.decay_steps - warmup), alpha=config.final_scale)
    return optax.join_schedules([optax.linear_schedule(0.0, peak, max(1, warmup)), after], [warmup])


def dense_optimizer(config: DenseOptimizerConfig) -> optax.GradientTransformation:
    """The transformation for every weight outside the tables; weight decay is decoupled from the rule.

    Sources: Loshchilov and Hutter 2019 (AdamW), Duchi et al. 2011 (Adagrad).
    """
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    decay = optax.add_decayed_weights(config.weight_decay)
    rate = optax.scale_by_learning_rate(learning_rate_schedule(config))
    return optax.chain(clip, optax.chain(_RULES[config.algorithm](config), decay, rate))


def learning_rate_taken(config: DenseOptimizerConfig, state: Any) -> float:
    """The learning rate of the newest step, from the optimizer's state after it; that of the first one before any step."""
    _, (_, _, schedule) = state
    steps_before = max(0, int(schedule.count) - 1)
    return float(jnp.asarray(learning_rate_schedule(config)(steps_before)))


_RULES: dict[str, Callable[[DenseOptimizerConfig], optax.GradientTransformation]] = {
    "adamw": lambda config: optax.scale_by_adam(config.b1, config.b2, config.epsilon),
    "adagrad": lambda config: optax.scale_by_rss(initial_accumulator_value=0.1, eps=config.epsilon),
    "momentum": lambda config: optax.trace(config.b1),
}
