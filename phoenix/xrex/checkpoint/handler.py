"""What Orbax calls to write one step: the arrays, and beside them the files, inside the step's temporary folder."""

import json
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.args import CheckpointArgs, register_with_handler

from xrex.checkpoint import arrays, layout, positions
from xrex.errors import CheckpointError
from xrex.schema.positions import TopicPositions
from xrex.utils.metadata import sync_directory, write_synced

MergeProgress = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""The processes' progress, by process index, as the run's."""


class StepHandler(ocp.AsyncCheckpointHandler):
    """Writes a whole step under one commit.

    Every process writes its shards and one part file (positions, progress, checksums). When all have, Orbax calls
    `finalize` on process 0, which merges the parts into the step's files; then Orbax writes its marker and renames.
    """

    def __init__(self, merge_progress: MergeProgress):
        self._merge_progress = merge_progress
        self._state = ocp.PyTreeCheckpointHandler(use_compression=False)  # numbers of a table hardly shrink
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-part")
        self._files: Mapping[str, bytes] = {}

    async def async_save(self, directory: Any, args: "StepSave") -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start the writes; `directory` is the step's temporary folder."""
        # Made into text now: the run goes on, and may change its objects, before the thread writes them.
        part = {
            "positions": positions.to_json({args.positions.topic: args.positions}),
            "progress": json.loads(json.dumps(args.progress)),
        }
        self._files = dict(args.files)
        (directory / layout.STATE).mkdir(exist_ok=True)
        saving = await self._state.async_save(
            directory / layout.STATE, args=ocp.args.PyTreeSave(arrays.nested(args.arrays))
        )
        return [*(saving or []), self._pool.submit(_write_part, Path(directory), part, args.arrays)]

    def finalize(self, directory: Any) -> None:
        """Merge the parts into the step's files; process 0, after every process has written."""
        folder = Path(directory)
        self._state.finalize(directory / layout.STATE)
        part_paths = sorted(folder.glob("part-*.json"), key=lambda path: int(path.stem.removeprefix("part-")))
        parts = [json.loads(path.read_bytes()) for path in part_paths]
        if len(parts) != jax.process_count():
            raise CheckpointError(
                f"{len(parts)} of {jax.process_count()} processes wrote into it: all hosts must share the folder"
            )
        topics = [topic for part in parts for topic in positions.from_json(part["positions"]).values()]
        for name, content in self._files.items():
            write_synced(folder / name, content)
        write_synced(folder / layout.POSITIONS, positions.to_json(positions.merge(topics)).encode())
        write_synced(folder / layout.PROGRESS, _json(self._merge_progress([part["progress"] for part in parts])))
        for path in part_paths:
            path.unlink()
        checksums = {
            "version": 1,
            "algorithm": arrays.ALGORITHM,
            "arrays": arrays.merge_checksums(part["arrays"] for part in parts),
            "files": {path.relative_to(folder).as_posix(): path.stat().st_size for path in _files_of_step(folder)},
            "file_checksums": {name: zlib.crc32((folder / name).read_bytes()) for name in layout.SMALL_FILES},
        }
        write_synced(folder / layout.CHECKSUMS, _json(checksums))
        sync_directory(folder)

    def save(self, directory: Any, *args: Any, **kwargs: Any) -> None:
        """Not offered: a step is saved in the background."""
        raise TypeError("StepHandler saves through AsyncCheckpointer only")

    def restore(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Not offered: `xrex.checkpoint.restore` reads a step."""
        raise TypeError("a step is read by xrex.checkpoint.restore")

    def close(self) -> None:
        """Release the threads."""
        self._state.close()
        self._pool.shutdown()


@register_with_handler(StepHandler, for_save=True, for_restore=True)  # Orbax knows a handler only with both
@dataclass
class StepSave(CheckpointArgs):
    """One process's share of a step."""

    arrays: dict[str, jax.Array]
    """By name; nothing changes them until the save is done."""
    positions: TopicPositions
    progress: dict[str, Any]
    files: dict[str, bytes]
    """config.json and run.json; only process 0's are written."""


def _write_part(folder: Path, part: dict[str, Any], saved: dict[str, jax.Array]) -> None:
    whole = {**part, "arrays": arrays.local_checksums(saved)}
    write_synced(folder / f"part-{jax.process_index()}.json", _json(whole))


def _files_of_step(folder: Path) -> list[Path]:
    inside = sorted(path for path in (folder / layout.STATE).rglob("*") if path.is_file())
    return [*inside, *(folder / name for name in layout.SMALL_FILES)]


def _json(document: Any) -> bytes:
    return (json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n").encode()
