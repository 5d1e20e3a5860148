"""One SHA-256 over everything a step's arrays hold: equal states have equal digests, whatever topology saved them."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

from xrex.checkpoint.arrays import named, nested
from xrex.checkpoint.restore import read_tree, saved_arrays


def digest(step_dir: Path) -> str:
    """64 hex digits over name, dtype, shape and bytes (C order, little endian) of every array, in the order of names.

    One array is in memory at a time, on the host. Raises CheckpointError if one cannot be read.
    """
    total, described = hashlib.sha256(), saved_arrays(step_dir)
    for name, array in arrays_of(step_dir):
        total.update(f"{name}\0{described[name]}\0".encode())
        total.update(_bytes(array))
    return total.hexdigest()


def arrays_of(step_dir: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of a step by name, in the order of names, on the host. Raises CheckpointError if one cannot be read."""
    for name in sorted(saved_arrays(step_dir)):
        yield name, _on_host(step_dir, name)


def _on_host(step_dir: Path, name: str) -> np.ndarray:
    # As numpy: restored as a jax.Array it would ask for the devices that saved it.
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    return named(read_tree(step_dir, nested({name: 0}), nested({name: as_numpy})))[name]


def _bytes(array: np.ndarray) -> memoryview:
    little_endian = array if array.dtype.byteorder != ">" else array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8).data
