"""Dense weights: AdamW by optax, with warm-up and decay."""

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
    """The transformation for every weight outside the tables. Source: Loshchilov and Hutter 2019 (AdamW)."""
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    adamw = optax.adamw(
        learning_rate_schedule(config), b1=config.b1, b2=config.b2, eps=config.epsilon, weight_decay=config.weight_decay
    )
    return optax.chain(clip, adamw)
