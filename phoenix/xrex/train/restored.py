"""What a run takes over from a checkpoint's step: the arrays that fit, the rows of tables that grew, and a report of both."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax

from xrex.checkpoint.arrays import named
from xrex.checkpoint.restore import Selection, restore_state, select
from xrex.embeddings.growth import grown
from xrex.embeddings.table import Arena
from xrex.errors import CheckpointError
from xrex.train.config import TrainerConfig
from xrex.train.setup import Program
from xrex.train.state import TrainState


def grown_tables(config: TrainerConfig, before: TrainerConfig) -> dict[str, int]:
    """Table -> the rows it has in a checkpoint with config `before`, for the tables that have more of them now."""
    rows = {table.name: table.num_embeddings for table in before.dataset.tables}
    return {
        t.name: rows[t.name] for t in config.dataset.tables if rows.get(t.name, t.num_embeddings) < t.num_embeddings
    }


def check_optimizer(step_dir: Path, config: TrainerConfig, before: TrainerConfig, fresh: Sequence[str]) -> None:
    """Raise CheckpointError where another dense optimizer wrote the step, and its state is not begun anew."""
    ours, theirs = config.optimizer.dense.algorithm, before.optimizer.dense.algorithm
    begins_anew = any(
        pattern.startswith("dense_optimizer") or fnmatchcase("dense_optimizer/", pattern) for pattern in fresh
    )
    if ours != theirs and not begins_anew:
        raise CheckpointError(
            f"{step_dir}: its optimizer is {theirs}, this run's is {ours} (optimizer.dense.algorithm), whose state is another: "
            "--fresh 'dense_optimizer/*' keeps weights, tables and positions and begins the optimizer's state anew"
        )


def take_over(
    program: Program,
    step_dir: Path,
    *,
    fresh: Sequence[str],
    grown_from: Mapping[str, int],
    say: Callable[[str], object],
) -> TrainState:
    """The state to begin from. Every process calls it.

    fresh       patterns of arrays that begin anew
    grown_from  see `grown_tables`
    say         gets the report, a line each
    Raises CheckpointError for an array that does not fit, StepDamaged for one that is not what was saved.
    """
    smaller = {arena.name: _earlier(arena, grown_from) for arena in program.arenas}
    target = _with_rows(program.state_target, {name: arena.stored_rows for name, arena in smaller.items()})
    chosen = select(step_dir, target, fresh)
    state = restore_state(step_dir, target, chosen, make=program.fresh_arrays)
    for arena in program.arenas:
        before = smaller[arena.name]
        for kind, part in (("tables", state.tables), ("slots", state.slots)):
            name = f"{kind}/{arena.name}"
            if before != arena and name in chosen.loaded:
                anew = program.fresh_arrays((name,))[name]
                part[arena.name] = grown(arena, before, part[arena.name], anew, program.mesh)
    for line in _report(step_dir, chosen, state, grown_from):
        say(line)
    return state


def _earlier(arena: Arena, grown_from: Mapping[str, int]) -> Arena:
    """The arena as it was when its tables had those rows."""
    tables = (t.replace(num_embeddings=grown_from.get(t.name, t.num_embeddings)) for t in arena.tables)
    return replace(arena, tables=tuple(tables))


def _with_rows(target: TrainState, stored_rows: Mapping[str, int]) -> TrainState:
    """The shapes of a state whose arenas have that many rows."""

    def resized(part: dict[str, Any]) -> dict[str, Any]:
        return {
            name: jax.ShapeDtypeStruct((stored_rows[name], *leaf.shape[1:]), leaf.dtype, sharding=leaf.sharding)
            for name, leaf in part.items()
        }

    return target._replace(tables=resized(target.tables), slots=resized(target.slots))


def _report(step_dir: Path, chosen: Selection, state: TrainState, grown_from: Mapping[str, int]) -> Iterator[str]:
    leaves = named(state)
    size_mb = sum(leaves[name].nbytes for name in chosen.loaded) / 2**20
    yield f"restored {len(chosen.loaded)} arrays ({size_mb:,.1f} MB) from {step_dir}"
    for words, names in (("begun anew", chosen.fresh), ("left in the checkpoint", chosen.left)):
        if names:
            yield f"{words}: {len(names)} arrays, as --fresh asked: {', '.join(names[:5])}{', …' if names[5:] else ''}"
    for table, rows in grown_from.items():
        yield f"table {table!r} keeps its {rows:,} rows, further ones are new"
