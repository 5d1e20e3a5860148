"""Reading a step: its arrays onto the devices of this run, whatever wrote them, and its files."""

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from xrex.checkpoint import arrays, layout, object_store, positions
from xrex.errors import CheckpointError, StepDamaged
from xrex.schema.positions import TopicPositions


@dataclass(frozen=True)
class StepFiles:
    """What stands beside a step's arrays."""

    config: bytes
    """config.json as it was written."""
    run: bytes
    """run.json as it was written; `Run.from_json` reads it."""
    positions: dict[str, TopicPositions]
    """By topic name."""
    progress: dict[str, Any]
    """The run's merged progress."""


@dataclass(frozen=True)
class SavedArray:
    """Shape and dtype of an array in a step."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Comparison:
    """A step's arrays against those that a run wants, by name."""

    equal: tuple[str, ...]
    missing: tuple[str, ...]
    """Wanted, but not in the step."""
    extra: tuple[str, ...]
    """In the step, but not wanted."""
    reshaped: dict[str, tuple[SavedArray, SavedArray]]
    """In both with another shape or dtype: (saved, wanted)."""


def read_files(step_dir: Path) -> StepFiles:
    """The step's config, run, positions and progress; raises StepDamaged naming a file that is not what was saved."""
    _check_files(step_dir)
    return StepFiles(
        config=_read(step_dir / layout.CONFIG, lambda content: content),
        run=_read(step_dir / layout.RUN, lambda content: content),
        positions=_read(
            step_dir / layout.POSITIONS, lambda content: positions.from_json(content, str(step_dir / layout.POSITIONS))
        ),
        progress=_read(step_dir / layout.PROGRESS, json.loads),
    )


def _check_files(step_dir: Path) -> None:
    saved = _read(step_dir / layout.CHECKSUMS, json.loads).get("file_checksums", {})  # of release 0.1: none
    for name, crc in saved.items():
        if _read(step_dir / name, zlib.crc32) != crc:
            raise StepDamaged(f"{step_dir / name}: is not what was saved; resume from another step")


def saved_arrays(step_dir: Path) -> dict[str, SavedArray]:
    """Shape and dtype of every array of the step, by name, as checksums.json lists them."""
    return _read(step_dir / layout.CHECKSUMS, _listed_arrays)


def compare(step_dir: Path, target: Any) -> Comparison:
    """What of target (a pytree of jax.ShapeDtypeStruct) the step holds."""
    saved = saved_arrays(step_dir)
    wanted = {name: SavedArray(tuple(x.shape), str(x.dtype)) for name, x in arrays.named(target).items()}
    return Comparison(
        equal=tuple(name for name in wanted if saved.get(name) == wanted[name]),
        missing=tuple(name for name in wanted if name not in saved),
        extra=tuple(name for name in saved if name not in wanted),
        reshaped={
            name: (saved[name], wanted[name]) for name in wanted if name in saved and saved[name] != wanted[name]
        },
    )


@dataclass(frozen=True)
class Selection:
    """Which arrays a run takes from a step, by name."""

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    """Wanted, but not taken from the step: the run begins them anew."""
    left: tuple[str, ...]
    """In the step, but not taken from it, and not wanted either."""


def select(step_dir: Path, target: Any, fresh: Sequence[str] = ()) -> Selection:
    """Which arrays of target (a pytree of jax.ShapeDtypeStruct) are taken from the step.

    fresh  patterns, such as "params/head/*": arrays with such names are not taken from the step
    Raises CheckpointError naming every array that is missing, extra or of another shape or dtype and that no pattern means, and
    every pattern that means none.
    """
    found = compare(step_dir, target)
    names = [*arrays.named(target), *found.extra]
    if idle := [pattern for pattern in fresh if not any(fnmatchcase(name, pattern) for name in names)]:
        raise CheckpointError(
            f"{step_dir}: --fresh {idle[0]} is the name of no array, such as {', '.join(sorted(names)[:3])}; "
            "xrex checkpoint arrays PATH lists them"
        )
    anew = {name for name in names if any(fnmatchcase(name, pattern) for pattern in fresh)}
    _refuse_differences(step_dir, found, anew)
    wanted = set(arrays.named(target))
    return Selection(
        loaded=tuple(name for name in found.equal if name not in anew),
        fresh=tuple(name for name in names if name in anew & wanted),
        left=found.extra,
    )


def restore_state(
    step_dir: Path,
    target: Any,
    chosen: Selection | None = None,
    make: Callable[[tuple[str, ...]], dict[str, jax.Array]] = lambda names: {},
) -> Any:
    """The step's arrays as a pytree like target, placed by target's shardings. Every process calls it.

    target  pytree of jax.ShapeDtypeStruct, each with a sharding
    chosen  what `select` has chosen for this target; None: every array is taken
    make    names -> the others, as they are before the first step
    Raises CheckpointError as `select` does, StepDamaged if an array is not what was saved.
    """
    chosen, wanted = chosen or select(step_dir, target), arrays.named(target)
    tree = arrays.nested({name: wanted[name] for name in chosen.loaded})
    restored = arrays.named(read_tree(step_dir, tree, ocp.checkpoint_utils.construct_restore_args(tree)))
    check_arrays(step_dir, restored.items())
    restored |= make(chosen.fresh)
    treedef = jax.tree_util.tree_structure(target)
    return jax.tree_util.tree_unflatten(treedef, [restored[name] for name in wanted])


def check_arrays(step_dir: Path, read: Iterable[tuple[str, Any]]) -> int:
    """Compare arrays of the step, as they were read, with its checksums: Orbax lets a flipped byte through.

    read  (name, array): jax.Arrays, of which each process checks its own rows, or whole arrays as numpy
    Returns how many there were. Raises StepDamaged naming each that differs, with its first differing rows.
    """
    saved = _read(step_dir / layout.CHECKSUMS, lambda content: json.loads(content)["arrays"])
    checked, problems = 0, []
    for name, array in read:
        checked += 1
        try:
            blocks = arrays.differing_blocks(name, array, saved[name])
        except (LookupError, TypeError) as error:
            raise StepDamaged(
                f"{step_dir / layout.CHECKSUMS}: not valid: {error!r}; resume from another step"
            ) from None
        if blocks:
            rows = array.shape[0] // len(saved[name]["blocks"]) if array.shape else 1
            first = blocks[0] * rows
            problems.append(f"{step_dir}: {name} rows {first}-{first + rows - 1} are not those that were saved")
    if problems:
        raise StepDamaged("\n".join(f"{problem}; resume from another step" for problem in problems))
    return checked


def read_tree(step_dir: Path, tree: Any, restore_args: Any) -> Any:
    """Orbax's restore of the arrays that tree (nested dicts) names; raises CheckpointError if the data is damaged."""
    state = epath.Path(step_dir / layout.STATE)
    handler = ocp.PyTreeCheckpointHandler()
    try:
        if str(state).startswith(object_store.SCHEME):
            read = object_store.read_tree(str(state), tree, restore_args)
        else:
            read = handler.restore(
                state, args=ocp.args.PyTreeRestore(item=tree, restore_args=restore_args, partial_restore=True)
            )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:500]
        raise StepDamaged(f"{step_dir}: the arrays cannot be read: {reason}; resume from another step") from error
    finally:
        handler.close()
    # What Orbax's own list of arrays does not name comes back as it was asked for, without a word.
    if absent := [name for name, array in arrays.named(read).items() if not isinstance(array, jax.Array | np.ndarray)]:
        raise StepDamaged(f"{step_dir}: {layout.STATE} does not name {absent[0]}; resume from another step")
    return read


def _refuse_differences(step_dir: Path, comparison: Comparison, anew: set[str]) -> None:
    """Every difference that is not among the names that begin anew is an error."""
    lines = {name: f"{name} is not in the checkpoint" for name in comparison.missing}
    lines |= {
        name: f"{name} is {saved} in the checkpoint, {wanted} here"
        for name, (saved, wanted) in comparison.reshaped.items()
    }
    lines |= {name: f"{name} is in the checkpoint, but not in this model" for name in comparison.extra}
    if wrong := [line for name, line in lines.items() if name not in anew]:
        raise CheckpointError(
            "\n".join(f"{step_dir}: {line}; a child may leave it out: --fresh PATTERN" for line in wrong)
        )


def _listed_arrays(content: bytes) -> dict[str, SavedArray]:
    entries = json.loads(content)["arrays"].items()
    return {name: SavedArray(tuple(entry["shape"]), entry["dtype"]) for name, entry in entries}


def _read(path: Path, parse: Callable[[bytes], Any]) -> Any:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise StepDamaged(f"{path}: cannot be read: {error.strerror or error}; resume from another step") from None
    except (ValueError, KeyError, TypeError, AttributeError, CheckpointError) as error:
        raise StepDamaged(f"{path}: not valid: {error}; resume from another step") from None
