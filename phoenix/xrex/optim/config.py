"""How dense weights and embedding rows are updated."""

from typing import Literal

from xai_configlib import Config, configclass, field


@configclass(policy="may_change")
class DenseOptimizerConfig(Config):
    """The rule for every weight outside the tables, with linear warm-up and an optional cosine decay."""

    algorithm: Literal["adamw", "adagrad", "momentum"] = field(default="adamw")
    """`adamw`: first and second moments. `adagrad`: the sum of squares. `momentum`: the first moment alone. Each has a state
    of its own: a child that changes it begins that anew, with --fresh 'dense_optimizer/*'."""

    learning_rate: float = field(default=1e-3, ge=0)
    """Peak, reached after `warmup_steps`."""

    warmup_steps: int = field(default=100, ge=0)
    """Steps from 0 to the peak."""

    decay_steps: int | None = field(default=None, ge=1)
    """Step at which the cosine decay ends, warm-up included; null: constant after the warm-up."""

    final_scale: float = field(default=0.1, ge=0, le=1)
    """Share of the peak that is left after `decay_steps`."""

    b1: float = field(default=0.9, ge=0, lt=1)
    """adamw, momentum: decay of the first moment."""

    b2: float = field(default=0.99, ge=0, lt=1)
    """adamw: decay of the second moment."""

    epsilon: float = field(default=1e-8, gt=0)
    """adamw, adagrad: added to the root of the second moment, or of the sum of squares."""

    weight_decay: float = field(default=0.0, ge=0)
    """Decoupled, scaled by the learning rate."""

    clip_norm: float | None = field(default=None, gt=0)
    """Limit of the global gradient norm; null: none."""


@configclass(policy="may_change")
class SparseOptimizerConfig(Config):
    """Row-wise Adagrad on the rows a batch touched; one accumulator per row."""

    learning_rate: float = field(default=0.05, ge=0)
    """Step size of a row; no schedule."""

    initial_accumulator: float = field(default=1e-3, ge=0)
    """Where a row's accumulator starts. Small values let new rows move far at once."""

    epsilon: float = field(default=1e-8, gt=0)
    """Added to the root of the accumulator."""


@configclass(policy="may_change")
class OptimizerConfig(Config):
    """The two optimizers of a run."""

    dense: DenseOptimizerConfig = field(default_factory=DenseOptimizerConfig)
    """For dense weights, by optax."""

    sparse: SparseOptimizerConfig = field(default_factory=SparseOptimizerConfig)
    """For embedding rows."""

    max_faulty_batches: int = field(default=10, ge=1)
    """Batches in a row whose loss or gradients are not finite: so many are passed over, then the run ends. Such a batch changes
    nothing; it is no step."""
