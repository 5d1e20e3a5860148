"""Which devices a run uses."""

from typing import Literal

from xai_configlib import Config, configclass, field


@configclass(policy="per_start")
class MeshConfig(Config):
    """One axis, `data`: the batch and every table are dealt over it."""

    num_devices: int | None = field(default=None, ge=1)
    """Devices over all processes; null: every device JAX sees. Must divide 1,024 and trainer.global_batch_size."""

    table_kernel: Literal["auto", "xla", "native"] = field(default="auto")
    """What reads and updates rows of tables. `native`: C++ for CPUs, in half the time of `xla`, built by `make setup` or
    `python -m xrex.embeddings.native.build`. `auto`: native where it is built and the devices are CPUs, else xla. The two differ
    in the order of sums, so in last bits."""

    dense_weights: Literal["replicated", "sharded"] = field(default="replicated")
    """`replicated`: whole on every device. `sharded`: each weight whose first axis the device count divides, and its optimizer
    state, is dealt over the devices too; a step then gathers the weights and scatters their gradients."""
