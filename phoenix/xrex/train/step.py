"""One training step, the same program on one device and on many."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xrex.embeddings.lookup import lookup
from xrex.embeddings.sparse_update import sparse_update
from xrex.embeddings.table import Arena, flat_ids, pooled
from xrex.models.losses import multi_task_loss
from xrex.optim.rowwise import RowwiseAdagrad
from xrex.schema.batch import Batch, with_history
from xrex.sharding.mesh import AXIS
from xrex.train.micro_batches import Gradients, OfGroup, arranged, in_micro_batches
from xrex.train.state import TrainState

LARGEST_GRADIENT = 1e15
"""The square of 10,000 of these, summed, is below the largest float32: accumulators and second moments stay finite."""


class StepReport(NamedTuple):
    """What a step tells the loop. Sums are over all devices, so every process decides alike."""

    step: Any  # int32[]: optimizer steps so far
    loss_sum: Any  # float32[]
    loss_weight: Any  # float32[]: the loss is loss_sum / loss_weight
    examples: Any  # int32[]: rows with weight
    more: Any  # int32[]: processes whose stream may bring more
    stop: Any  # int32[]: processes that were told to stop
    faults: Any  # int32[]: devices whose loss or gradients are not finite, or too large for the optimizers
    tokens: Any  # int32[]: events and candidates of the rows with weight
    slots: Any  # int32[]: places that were computed for them, padding among them
    logits: Any  # float32[B, C, A]: from the weights before this step


def build_step(
    merge: Callable[[dict], Callable],
    arenas: tuple[Arena, ...],
    optimizer: optax.GradientTransformation,
    row_rule: RowwiseAdagrad,
    action_weights: tuple[float, ...],
    mesh: Mesh,
    dense: Callable[[tuple[int, ...]], NamedSharding],
    by_kernel: bool = False,
    micro_batches: int = 1,
    widths: tuple[int, ...] = (),
) -> jax.stages.Wrapped:
    """jit((state, scratch, batch, signals) -> (state, scratch, StepReport)); state and scratch are donated.

    dense      shape -> where a dense weight of that shape lies, see `dense_sharding`
    by_kernel  read and update tables by the native kernel, which is there
    micro_batches, widths  into how many groups a device's rows are dealt, and what their histories may be padded to; no widths:
               all of it, see micro_batches.py
    scratch    {arena: int32[V]} any contents, see sparse_update
    signals    int32[devices, 2], dealt over the devices: (stream may bring more, told to stop)
    A batch of weight 0 over all devices changes nothing, not even the step counter; nor does one with a stop signal, or one
    with faults.
    """

    of_group = gradients_of_group(merge, arenas, action_weights)

    def on_device(dealt, params, tables, slots, scratch, batch: Batch, signals):
        history_widths = widths or (batch.history_actions.shape[1],)
        batch, put_back = arranged(batch, history_widths)
        rows, gathered = {}, {}
        for arena in arenas:
            rows[arena.name], gathered[arena.name] = lookup(
                tables[arena.name], flat_ids(arena, batch), by_kernel=by_kernel
            )

        gradients = in_micro_batches(of_group, micro_batches, history_widths)
        found = gradients(jax.tree.map(_whole, params, dealt), rows, batch)

        usable = jnp.isfinite(found.loss) & all_usable((found.dense, found.rows))
        mine = (found.loss, found.weight, _examples(batch), *signals[0], 1 - usable.astype(jnp.int32))
        grads, sums = summed(found.dense, dealt, (*mine, _tokens(batch), found.slots))
        report = StepReport((), *sums, logits=put_back(found.logits))
        # A step in which a process is told to stop is no step: that process may have come without its rows, and a run
        # that goes on later must cut the batches that an undisturbed one cuts.
        applied = (report.examples > 0) & (report.stop == 0) & (report.faults == 0)
        scale = 1.0 / jnp.maximum(report.loss_weight, 1e-6)

        grads = jax.tree.map(lambda grad: grad * scale, grads)
        moved = {}
        for a in (arena.name for arena in arenas):
            block = tables[a], slots[a], scratch[a], gathered[a], found.rows[a] * scale
            moved[a] = sparse_update(*block, row_rule, applied, by_kernel=by_kernel)
        return grads, moved, applied, report

    whole, rows = PartitionSpec(), PartitionSpec(AXIS)

    def step(state: TrainState, scratch, batch: Batch, signals):
        dealt = jax.tree.map(lambda weights: dense(weights.shape).spec == rows, state.params)
        weights_spec = jax.tree.map(lambda is_dealt: rows if is_dealt else whole, dealt)
        # check_vma=False: gradients stay each device's own until they are summed above, not on the way.
        grads, moved, applied, report = jax.shard_map(
            partial(on_device, dealt),
            mesh=mesh,
            in_specs=(weights_spec, rows, rows, rows, rows, rows),
            out_specs=(weights_spec, rows, whole, StepReport((), *[whole] * 8, logits=rows)),
            check_vma=False,
        )(state.params, state.tables, state.slots, scratch, batch, signals)
        # Beside the devices' program, not in it: of dealt gradients a norm is one over all devices.
        params, dense_optimizer = dense_update(optimizer, state, grads, applied)
        tables, slots, used = ({arena: arrays[i] for arena, arrays in moved.items()} for i in range(3))
        state = TrainState(state.step + applied.astype(jnp.int32), params, dense_optimizer, tables, slots)
        return state, used, report._replace(step=state.step)

    return jax.jit(step, donate_argnums=(0, 1))


def gradients_of_group(
    merge: Callable[[dict], Callable], arenas: tuple[Arena, ...], action_weights: tuple[float, ...]
) -> OfGroup:
    """What a group of rows gives whose histories are padded to a width."""

    def loss_of(params, rows, batch: Batch, width: int):
        embedded = embed(arenas, rows, batch)
        embedded["history"] = {name: vectors[:, :width] for name, vectors in embedded["history"].items()}
        batch = with_history(batch, width)
        logits = merge(params)(embedded, batch)
        loss, weight = multi_task_loss(
            logits, batch.labels, batch.label_mask, batch.weight, jnp.asarray(action_weights)
        )
        return loss, (weight, logits)

    def of_group(params, rows, batch: Batch, width: int) -> Gradients:
        (loss, (weight, logits)), (dense, row_grads) = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True)(
            params, rows, batch, width
        )
        return Gradients(loss, weight, logits, dense, row_grads, jnp.int32(logits.shape[0] * (width + logits.shape[1])))

    return of_group


def _examples(batch: Batch) -> jax.Array:
    return jnp.sum(batch.weight > 0, dtype=jnp.int32)


def _tokens(batch: Batch) -> jax.Array:
    return jnp.sum(jnp.where(batch.weight > 0, batch.history_length + batch.candidate_length, 0))


def _whole(weights: jax.Array, is_dealt: bool) -> jax.Array:
    return lax.all_gather(weights, AXIS, tiled=True) if is_dealt else weights


def summed(grads: Any, dealt: Any, numbers: tuple) -> tuple[Any, list[jax.Array]]:
    """(gradients, numbers) summed over all devices; of weights that are dealt, this device's part of the sum."""
    leaves, structure = jax.tree.flatten(grads)
    is_dealt = jax.tree.leaves(dealt)
    whole = [grad for grad, part in zip(leaves, is_dealt, strict=True) if not part]
    sums = summed_together([*whole, *numbers])
    of_whole, of_numbers = iter(sums[: len(whole)]), sums[len(whole) :]
    summed_grads = [
        lax.psum_scatter(grad, AXIS, tiled=True) if part else next(of_whole)
        for grad, part in zip(leaves, is_dealt, strict=True)
    ]
    return jax.tree.unflatten(structure, summed_grads), of_numbers


def summed_together(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Sums over all devices, by one collective a type of number. Each collective waits for every process: what is waited for
    is then the same for a model of one weight and of a hundred."""
    if lax.axis_size(AXIS) == 1:
        return list(arrays)
    places = {dtype: [i for i, x in enumerate(arrays) if x.dtype == dtype] for dtype in {x.dtype for x in arrays}}
    sums: dict[int, jax.Array] = {}
    for mine in sorted(places.values()):
        flat = lax.psum(jnp.concatenate([arrays[i].reshape(-1) for i in mine]), AXIS)
        parts = jnp.split(flat, np.cumsum([arrays[i].size for i in mine])[:-1])
        sums |= {i: part.reshape(arrays[i].shape) for i, part in zip(mine, parts, strict=True)}
    return [sums[i] for i in range(len(arrays))]


def all_usable(gradients: Any) -> jax.Array:
    """bool[]: whether every number is finite and its square, summed over the duplicates of a batch, still is in float32."""
    return jnp.all(jnp.stack([jnp.all(jnp.abs(g) < LARGEST_GRADIENT) for g in jax.tree.leaves(gradients)]))


def embed(arenas: tuple[Arena, ...], rows: dict, batch: Batch) -> dict[str, dict]:
    """{group: {feature: float32[B(, L), D]}} over all arenas."""
    embedded: dict[str, dict] = {"user": {}, "history": {}, "candidates": {}}
    for arena in arenas:
        for group, features in pooled(arena, rows[arena.name], batch).items():
            embedded[group].update(features)
    return embedded


def dense_update(optimizer: optax.GradientTransformation, state: TrainState, grads, applied):
    """(params, optimizer state) after one optax step, or as they were where `applied` is false."""
    updates, moved = optimizer.update(grads, state.dense_optimizer, state.params)
    new = (optax.apply_updates(state.params, updates), moved)
    return jax.tree.map(lambda a, b: jnp.where(applied, a, b), new, (state.params, state.dense_optimizer))
