"""The mesh: one axis, `data`, on one device too."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xrex.errors import ConfigError
from xrex.schema.specs import STORED_ROWS_MULTIPLE
from xrex.sharding.config import MeshConfig

AXIS = "data"


def make_mesh(config: MeshConfig, global_batch_size: int) -> Mesh:
    """The devices of a run in a row. Raises ConfigError if their number divides neither the batch nor 1,024."""
    devices = jax.devices()
    count = config.num_devices or len(devices)
    if count > len(devices) or (jax.process_count() > 1 and count != len(devices)):
        raise ConfigError(
            f"mesh.num_devices = {count}: JAX sees {len(devices)} devices; ask for {len(devices)} or leave it null"
        )
    if global_batch_size % count:
        raise ConfigError(
            f"trainer.global_batch_size = {global_batch_size}: must be a multiple of the {count} devices; "
            f"try {-(-global_batch_size // count) * count}"
        )
    if STORED_ROWS_MULTIPLE % count:
        raise ConfigError(f"mesh.num_devices = {count}: must divide {STORED_ROWS_MULTIPLE} (1, 2, 4, 8, ...)")
    return Mesh(np.array(devices[:count]), (AXIS,))


def over_rows(mesh: Mesh) -> NamedSharding:
    """Batches and tables: the first axis dealt over the devices."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def dense_sharding(mesh: Mesh, config: MeshConfig) -> Callable[[tuple[int, ...]], NamedSharding]:
    """Shape of a dense weight, or of its optimizer state -> where it lies."""
    if config.dense_weights == "replicated":
        return lambda shape: replicated(mesh)
    return lambda shape: over_rows(mesh) if shape and shape[0] and shape[0] % mesh.size == 0 else replicated(mesh)
