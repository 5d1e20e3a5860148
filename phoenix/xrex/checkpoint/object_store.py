"""The arrays of a step at s3://, read with TensorStore itself: Orbax (0.12.8) opens local folders and gs:// alone.

What is read is Orbax's format: state/ is an OCDBT store, in which the array "params/head/kernel" is the zarr array
"params.head.kernel".
"""

import os
from functools import cache
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from xrex.checkpoint.arrays import named, nested

SCHEME = "s3://"

_RETRIES = {"max_retries": 4, "initial_delay": "1s", "max_delay": "8s"}
"""A store that refuses is given up after 20 s, one that keeps silent after 5 minutes. TensorStore alone tries 32 times."""


def read_tree(state: str, tree: Any, restore_args: Any) -> Any:
    """The arrays that tree (nested dicts) names, as `PyTreeCheckpointHandler.restore` gives them.

    state         address of a step's state folder, s3://BUCKET/…/state
    restore_args  tree of ocp.RestoreArgs: jax.Arrays where they hold a sharding, else numpy
    Raises ValueError with TensorStore's reason.
    """
    asked = named(restore_args)
    return nested({name: _read(_open(state, name), getattr(asked[name], "sharding", None)) for name in named(tree)})


def _open(state: str, name: str) -> ts.TensorStore:
    kvstore = {"driver": "ocdbt", "base": _bucket(state), "path": name.replace("/", ".") + "/"}
    return ts.open({"driver": "zarr", "kvstore": kvstore}, open=True, read=True, context=_context()).result()


def _read(array: ts.TensorStore, sharding: jax.sharding.Sharding | None) -> np.ndarray | jax.Array:
    """The whole array as numpy, or this process's shards of it on their devices."""
    if sharding is None:
        return np.asarray(array.read().result())
    # All shards are asked for before the first is waited for; replicas share a read.
    indices = sharding.addressable_devices_indices_map(array.shape).values()
    reads = {words: array[index].read() for words, index in {str(index): index for index in indices}.items()}
    return jax.make_array_from_callback(array.shape, sharding, lambda index: reads[str(index)].result())


def _bucket(state: str) -> dict[str, Any]:
    bucket, _, path = state.removeprefix(SCHEME).partition("/")
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": f"{path}/"}
    # TensorStore finds the keys as s3fs does, but not the address.
    if address := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        spec["endpoint"] = address.rstrip("/")
        if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
            spec["aws_region"] = region
    return spec


@cache
def _context() -> ts.Context:
    settings: dict[str, Any] = {"s3_request_retries": _RETRIES, "cache_pool": {"total_bytes_limit": 100_000_000}}
    if "AWS_ACCESS_KEY_ID" in os.environ:
        settings["aws_credentials"] = {"type": "environment"}  # or it says on stderr that ~/.aws is not there
    return ts.Context(settings)
