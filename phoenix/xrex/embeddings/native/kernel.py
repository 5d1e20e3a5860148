"""Lookup and row-wise Adagrad by a C++ kernel, on the CPU; the same results as lookup.py and sparse_update.py with
optim/rowwise.py, up to the order of float32 sums.

For one device's block of a table, inside shard_map. build.py makes the library; nothing here compiles.
"""

import ctypes
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from xrex.embeddings.native.build import built, folder

_TARGETS = ("xrex_embedding_gather", "xrex_embedding_update")


def available() -> bool:
    """Whether the kernel can be called in this process: it was built for this CPU and could be loaded."""
    return not why_unavailable()


@lru_cache
def why_unavailable() -> str:
    """Empty if the kernel is available, else the reason and the fix, in one line. The first call loads the library."""
    library = built()
    if library is None:
        return f"no native kernel for this source, jaxlib and CPU in {folder()}: run `make setup`"
    try:
        symbols = ctypes.CDLL(str(library))
        for target in _TARGETS:
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(symbols, target)), platform="cpu")
    except (OSError, AttributeError) as error:
        return f"the native kernel could not be loaded ({error}): remove {library} and run `make setup`"
    return ""


def gather(block_RD, local_ids_N):
    """float32[N, D]: the rows of this block that are named, 0 for an id that is no row of it.

    block_RD     float32[R, D]
    local_ids_N  int32[N]
    """
    shape = (local_ids_N.shape[0], block_RD.shape[1])
    return _call("xrex_embedding_gather", jax.ShapeDtypeStruct(shape, block_RD.dtype))(block_RD, local_ids_N)


def update(
    block_RD, accum_R, local_ids_N, grads_ND, applied, *, learning_rate: float, epsilon: float
) -> tuple[Any, Any]:
    """One step of row-wise Adagrad, in place, for every distinct row of this block that is named.

    block_RD, accum_R  float32[R, D], float32[R]  rows and accumulators; where they are not donated, XLA copies them first
    local_ids_N        int32[N]  ids that are no row of this block are dropped
    grads_ND           float32[N, D]  those of equal ids are added first, in the order of their positions
    applied            bool[]; false leaves everything as it is
    Returns (block_RD, accum_R). Equal arguments give equal bits.
    """
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (block_RD, accum_R)]
    call = _call("xrex_embedding_update", results, input_output_aliases={0: 0, 1: 1})
    arguments = (block_RD, accum_R, local_ids_N, grads_ND, applied)
    block_RD, accum_R = call(*arguments, learning_rate=np.float32(learning_rate), epsilon=np.float32(epsilon))
    return block_RD, accum_R


def _call(target: str, results, **options):
    if not available():
        raise RuntimeError(why_unavailable())
    return jax.ffi.ffi_call(target, results, **options)
