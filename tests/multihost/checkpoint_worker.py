"""checkpoint_worker.py PORT PROCESS_INDEX PROCESS_COUNT DEVICES RESTORE SAVE: one process of a small run.

Restores the step RESTORE ("-": none) and looks at every value, then saves its state as step 1 under SAVE ("-": no save).
"""

import os
import sys
from pathlib import Path

port, process_index, process_count, devices, restore_from, save_to = sys.argv[1:]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_platforms", "cpu")
if process_count != "1":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", int(process_count), int(process_index), initialization_timeout=30)

from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from xrex.checkpoint.config import CheckpointConfig  # noqa: E402
from xrex.checkpoint.manager import Checkpoints  # noqa: E402
from xrex.checkpoint.restore import read_files, restore_state  # noqa: E402
from xrex.schema.positions import PartitionPosition, TopicPositions  # noqa: E402

MESH = jax.make_mesh((jax.device_count(),), ("data",))
BY_ROWS, REPLICATED = NamedSharding(MESH, PartitionSpec("data")), NamedSharding(MESH, PartitionSpec())
TABLE = np.random.default_rng(0).normal(size=(4096, 3)).astype(np.float32)
KERNEL = np.random.default_rng(1).normal(size=(5, 7)).astype(jnp.bfloat16)
VALUES = {"params": {"kernel": KERNEL}, "step": np.int32(7), "tables": {"d3": TABLE}}
SHARDINGS = {"params": {"kernel": REPLICATED}, "step": REPLICATED, "tables": {"d3": BY_ROWS}}


def place(value, sharding):
    return jax.make_array_from_callback(np.shape(value), sharding, lambda index: value[index])


def look_at(restored):
    for array, value in zip(jax.tree.leaves(restored), jax.tree.leaves(VALUES), strict=True):
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index], strict=True)
    assert len(restored["tables"]["d3"].sharding.device_set) == jax.device_count()


if restore_from != "-":
    look_at(
        restore_state(
            Path(restore_from),
            jax.tree.map(lambda v, s: jax.ShapeDtypeStruct(np.shape(v), v.dtype, sharding=s), VALUES, SHARDINGS),
        )
    )
    assert len(read_files(Path(restore_from)).positions["clicks"].partitions) >= 1
if save_to != "-":
    checkpoints = Checkpoints(
        Path(save_to),
        CheckpointConfig(timeout_s=30),
        merge_progress=lambda parts: {"by_process": [p["of"] for p in parts]},
    )
    checkpoints.prepare()
    me = int(process_index)
    checkpoints.save(
        1,
        jax.tree.map(place, VALUES, SHARDINGS),
        positions=TopicPositions(
            "clicks", None, {partition: PartitionPosition(partition) for partition in (me, me + 10)}
        ),
        progress={"of": me},
        files={"config.json": b"of process %d\n" % me, "run.json": b"{}\n"},
    )
    checkpoints.close()
