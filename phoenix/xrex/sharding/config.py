"""Which devices a run uses."""

from xai_configlib import Config, configclass, field


@configclass(policy="per_start")
class MeshConfig(Config):
    """One axis, `data`: the batch and every table lie on it, dense weights are replicated."""

    num_devices: int | None = field(default=None, ge=1)
    """Devices over all processes; null: every device JAX sees. Must divide 1,024 and trainer.global_batch_size."""
