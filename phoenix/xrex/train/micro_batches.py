"""A device's rows in groups, one after the other, each padded only to its own longest history.

Rows of like lengths come side by side, so no user ever shares a sequence with another one: the masks are those of the model,
and what is left out is padding. A group's activations are gone before the next one's are made, which needs less memory and
keeps what is worked on in the processor's caches. docs/adr/0007-micro-batches.md says why users are not put end to end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from xrex.errors import ConfigError
from xrex.schema.batch import Batch


class Gradients(NamedTuple):
    """What a device's rows give together."""

    loss: Any  # float32[]: sum over rows
    weight: Any  # float32[]: of that sum
    logits: Any  # float32[b, C, A]
    dense: Any  # like params
    rows: Any  # arena -> float32[b, n, D]
    slots: Any  # int32[]: places for events and candidates, padding among them


OfGroup = Callable[[Any, Any, Batch, int], Gradients]
"""(params, rows, batch, history width) -> Gradients."""


def history_widths(max_history: int, count: int) -> tuple[int, ...]:
    """So many equal parts of `max_history`, rounded up: the last one is all of it."""
    return tuple(sorted({-(-max_history * part // count) for part in range(1, count + 1)}))


def check_divides(micro_batches: int, global_batch_size: int, devices: int) -> None:
    """Raise ConfigError if a device's rows cannot be dealt into so many groups of one size."""
    rows = global_batch_size // devices
    if rows % micro_batches:
        nearest = max(n for n in range(1, min(rows, micro_batches) + 1) if rows % n == 0)
        raise ConfigError(
            f"trainer.micro_batches = {micro_batches}: must divide the {rows} rows of a device (trainer.global_batch_size "
            f"= {global_batch_size} over {devices} devices); try {nearest}"
        )


def arranged(batch: Batch, widths: tuple[int, ...]) -> tuple[Batch, Callable[[Any], Any]]:
    """(the batch with rows of like history lengths side by side, what puts its rows [b, ...] back into the given order)."""
    if len(widths) == 1:
        return batch, lambda rows: rows
    order = jnp.argsort(batch.history_length)
    places = jnp.argsort(order)
    return jax.tree.map(lambda rows: rows[order], batch), lambda rows: rows[places]


def in_micro_batches(of_group: OfGroup, count: int, widths: tuple[int, ...]) -> Callable[[Any, Any, Batch], Gradients]:
    """(params, rows, arranged batch) -> Gradients of `of_group` over all groups, equal to those of one group of full width
    up to the order of float32 sums."""
    if count == 1 and len(widths) == 1:
        return lambda params, rows, batch: of_group(params, rows, batch, widths[0])
    at_width = [lambda params, rows, batch, w=width: of_group(params, rows, batch, w) for width in widths]

    def of_all(params, rows, batch: Batch) -> Gradients:
        def add(sums, group):
            longest = jnp.max(group[1].history_length)
            narrowest = jnp.sum(longest > jnp.asarray(widths[:-1]))  # into which it fits
            found = lax.switch(narrowest, at_width, params, *group)
            more = (found.loss, found.weight, found.dense, found.slots)
            return jax.tree.map(jnp.add, sums, more), (found.logits, found.rows)

        groups = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), (rows, batch))
        nothing = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params), jnp.int32(0))
        (loss, weight, dense, slots), per_row = lax.scan(add, nothing, groups)
        logits, row_grads = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), per_row)
        return Gradients(loss, weight, logits, dense, row_grads, slots)

    return of_all
