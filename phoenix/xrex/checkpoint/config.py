"""When the run's state is saved and which saves are kept."""

from xai_configlib import Config, configclass, field


@configclass(policy="per_start")
class CheckpointConfig(Config):
    """Saves of state, positions and config, each one atomic commit under RUN_DIR/checkpoints."""

    save_every_steps: int = field(default=1_000, policy="may_change", ge=1)
    """Optimizer steps between saves. The save at step n holds the positions after batch n."""

    keep_last: int = field(default=3, ge=1)
    """Newest complete steps that are kept; an older one goes only after a newer one is complete."""

    keep_every: int | None = field(default=None, ge=1)
    """Steps divisible by this are kept for good; null: none but the newest."""

    timeout_s: int = field(default=600, ge=1)
    """Limit of one background save, waiting for the other processes included."""
