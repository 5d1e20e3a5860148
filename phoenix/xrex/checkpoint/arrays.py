"""A state's arrays by name, and their checksums by blocks of rows that do not depend on the number of devices."""

import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from xrex.errors import CheckpointError
from xrex.schema.specs import STORED_ROWS_MULTIPLE

ALGORITHM = "crc32"


def named(tree: Any) -> dict[str, Any]:
    """Leaves by name: the keys on the way joined by "/", as in "params/blocks/0/kernel".

    Raises ValueError for a key that holds "/" or ".": two leaves could then share a name on disk.
    """
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        keys = [_key(entry) for entry in path]
        if any("/" in key or "." in key or not key for key in keys):
            raise ValueError(f"state key {keys}: a key must not be empty or hold '/' or '.'")
        leaves["/".join(keys)] = leaf
    return leaves


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts in dicts from names: what is written, free of the classes that held the arrays in memory."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *folders, last = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = leaf
    return tree


def block_count(shape: tuple[int, ...]) -> int:
    """Blocks of equal row count that an array is checksummed in: the most that divide both its rows and 1,024.

    A device count that divides both then deals whole blocks, whatever it is.
    """
    return math.gcd(shape[0], STORED_ROWS_MULTIPLE) if shape and shape[0] else 1


def local_checksums(arrays: Mapping[str, jax.Array]) -> dict[str, dict[str, Any]]:
    """Shape, dtype and CRC-32 of the blocks that this process owns: {name: {"shape", "dtype", "blocks": {index: crc}}}.

    The owner of a row is the shard with replica_id 0, so that every block has one owner among all processes.
    Raises CheckpointError for an array whose shards cut a block or a row.
    """
    return {
        name: {
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "blocks": _owned_blocks(name, array, block_count(array.shape)),
        }
        for name, array in arrays.items()
    }


def differing_blocks(name: str, array: Any, saved: Mapping[str, Any]) -> list[int]:
    """Blocks of the array, of those that this process owns, whose CRC-32 is not the saved one.

    array  a jax.Array placed like the ones that are saved, or the whole array as numpy
    saved  its entry of checksums.json
    """
    count = len(saved["blocks"])  # release 0.1 took one block for an array whose rows 1,024 does not divide
    blocks = (
        _blocks(array, 0, array.shape, count) if isinstance(array, np.ndarray) else _owned_blocks(name, array, count)
    )
    return [index for index, crc in blocks.items() if crc != saved["blocks"][index]]


def merge_checksums(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """All processes' checksums in one: {name: {"shape", "dtype", "blocks": [crc, ...]}}.

    Raises CheckpointError if a block has no owner.
    """
    blocks: dict[str, dict[int, int]] = {}
    headers: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, entry in part.items():
            headers[name] = {"shape": entry["shape"], "dtype": entry["dtype"]}
            blocks.setdefault(name, {}).update({int(index): crc for index, crc in entry["blocks"].items()})
    for name, header in headers.items():
        count = block_count(tuple(header["shape"]))
        if len(blocks[name]) != count:
            raise CheckpointError(f"{name}: {len(blocks[name])} of {count} blocks were written")
        header["blocks"] = [blocks[name][index] for index in range(count)]
    return dict(sorted(headers.items()))


def _owned_blocks(name: str, array: jax.Array, count: int) -> dict[int, int]:
    block_rows = array.shape[0] // count if array.shape else 1
    owned: dict[int, int] = {}
    for shard in array.addressable_shards:
        if shard.replica_id:
            continue
        rows = np.atleast_1d(np.asarray(shard.data))
        first_row = (shard.index[0].start or 0) if shard.index else 0
        if rows.shape[1:] != array.shape[1:] or first_row % block_rows or len(rows) % block_rows:
            raise CheckpointError(
                f"{name}: a shard of shape {rows.shape} at row {first_row} is not made of whole blocks of "
                f"{block_rows} rows: deal an array by rows, over a device count that divides them and {STORED_ROWS_MULTIPLE}, or "
                "replicate it"
            )
        owned |= _blocks(rows, first_row, array.shape, count)
    return owned


def _blocks(rows: np.ndarray, first_row: int, shape: tuple[int, ...], count: int) -> dict[int, int]:
    """Block -> CRC-32, of rows that begin with row `first_row` of an array of `shape` in `count` blocks."""
    block_rows = shape[0] // count if shape else 1
    rows = np.atleast_1d(rows)
    return {
        (first_row + row) // block_rows: _crc(rows[row : row + block_rows]) for row in range(0, len(rows), block_rows)
    }


def _crc(rows: np.ndarray) -> int:
    # As bytes: bfloat16 does not offer its memory to zlib. No copy where the rows lie together, as they do in a table.
    return zlib.crc32(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def _key(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    raise ValueError(f"state key {entry!r}: only dicts, lists, tuples and classes with named fields can be saved")
