"""What a run needs of each device's memory, from its config alone: shapes and a compilation, no array."""

import os
from dataclasses import dataclass

import jax
import numpy as np

from xrex.data.featurize import example_batch
from xrex.errors import RunError
from xrex.schema.specs import STORED_ROWS_MULTIPLE, TableSpec, rounded_up
from xrex.sharding.mesh import over_rows
from xrex.train.config import TrainerConfig
from xrex.train.setup import Program, build_program


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on each device, by what they hold."""

    devices: int
    backend: str
    """What the step was compiled for: what it needs while it runs differs between backends."""
    bytes_by_use: dict[str, int]
    largest: "Growth | None"
    """The table that could grow the most, where there is one."""

    @property
    def total(self) -> int:
        """Bytes on each device."""
        return sum(self.bytes_by_use.values())


@dataclass(frozen=True)
class Growth:
    """How many rows the widest table may have."""

    table: str
    rows_now: int
    bytes_per_row: int
    """Over all devices: row, accumulator, scratch cell where one is needed, and the copy that a save makes of the first two."""

    def largest(self, free_bytes: int) -> int:
        """Its rows once `free_bytes` over all devices are used up by it, in whole multiples of 1,024; 0: it does not fit."""
        more = free_bytes // self.bytes_per_row // STORED_ROWS_MULTIPLE * STORED_ROWS_MULTIPLE
        return max(0, rounded_up(self.rows_now) + more)


def plan_memory(config: TrainerConfig) -> MemoryPlan:
    """What the config needs on the devices that JAX sees; virtual ones of a CPU (jax_num_cpu_devices)."""
    program = build_program(config)
    state, mesh = program.state_target, program.mesh
    rows = over_rows(mesh)
    batch = (example_batch(config.dataset, config.trainer.global_batch_size), np.zeros((mesh.size, 2), np.int32))
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), batch)
    running = program.step.lower(state, program.scratch_target, *batch).compile().memory_analysis()
    assert running is not None  # the CPU compiler tells
    uses = {
        "dense weights": _bytes(state.params),
        "dense optimizer": _bytes(state.dense_optimizer),
        "tables": _bytes(state.tables),
        "accumulators": _bytes(state.slots),
        "scratch": _bytes(program.scratch_target),
        "batch": _bytes(batch),
        "activations and gradients": running.temp_size_in_bytes + _bytes_of_report(running),
        "copy that a save writes from": _bytes(state),
    }
    return MemoryPlan(mesh.size, jax.devices()[0].device_kind, uses, _growth(program))


def refuse_too_large(program: Program) -> None:
    """Before a table is made: raise RunError, naming the largest, if the tables alone are more than the devices hold.

    A row takes its numbers and its accumulator; what else a run needs is not counted, see plan_memory.
    """
    needed = {t: t.stored_rows * _row_bytes(t) for arena in program.arenas for t in arena.tables}
    total, held = sum(needed.values()), program.mesh.size * device_memory_bytes()
    if total <= held:
        return
    worst = max(needed, key=lambda table: needed[table])
    raise RunError(
        f"table '{worst.name}': {worst.num_embeddings:,} rows of {worst.embedding_dim} numbers need "
        f"{needed[worst] / 1e9:,.1f} GB, all tables {total / 1e9:,.1f} GB, and the devices hold {held / 1e9:,.1f} GB "
        "together: give it fewer rows, or use more devices (xrex plan CONFIG shows what fits)"
    )


def device_memory_bytes() -> int:
    """Memory of one device; of a CPU's, an equal share of the machine's."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit or host_memory_bytes() // jax.local_device_count()


def host_memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bytes(tree) -> int:
    """Bytes of one device's share."""
    return sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape), dtype=np.int64)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _bytes_of_report(running) -> int:
    """What a step returns beside the state that it was given."""
    return max(0, running.output_size_in_bytes - running.alias_size_in_bytes)


def _growth(program: Program) -> Growth | None:
    tables = [table for arena in program.arenas for table in arena.tables]
    if not tables:
        return None
    widest = max(tables, key=lambda table: table.stored_rows * table.embedding_dim)
    scratch_grows = any(program.scratch_target[a.name].shape[0] == a.stored_rows for a in program.arenas)
    return Growth(widest.name, widest.num_embeddings, 2 * _row_bytes(widest) + 4 * scratch_grows)


def _row_bytes(table: TableSpec) -> int:
    """Of a row's numbers and its accumulator."""
    return 4 * (table.embedding_dim + 1)
