"""The whole config of a run: the sections of config.json."""

from typing import Self

from pydantic import model_validator

from xai_configlib import Config, configclass, field
from xrex.checkpoint.config import CheckpointConfig
from xrex.data.config import DatasetConfig
from xrex.evaluation.config import EvaluationConfig
from xrex.models.config import RankerConfig
from xrex.optim.config import OptimizerConfig
from xrex.sharding.config import MeshConfig


@configclass(policy="per_start")
class LoopConfig(Config):
    """How long to train, on how much at once, and what to write on the way."""

    name: str = field(default="ranker", pattern=r"^[A-Za-z0-9._-]{1,64}$", pattern_words="1 to 64 of A-Z a-z 0-9 . _ -")
    """First part of a run folder's default name."""

    max_steps: int | None = field(default=None, ge=1)
    """Optimizer steps in all, counted from step 0 of the lineage; null: no limit."""

    global_batch_size: int = field(policy="may_change", default=128, ge=1)
    """Rows of a step over all processes."""

    micro_batches: int = field(policy="may_change", default=1, ge=1)
    """Groups into which a device's rows are dealt. A step makes their gradients one after the other and adds them: more groups
    need less memory, and small ones stay in a processor's caches."""

    history_widths: int = field(policy="may_change", default=1, ge=1, le=64)
    """How many lengths a group's history can be padded to, equal parts of dataset.max_history. Above 1 rows are grouped by the
    length of their history, and the model is compiled once for each."""

    seed: int = field(policy="must_match", default=0, ge=0, lt=2**31)
    """Of the first weights; whatever is random in step s uses fold_in(seed, s)."""

    log_every_steps: int = field(default=100, ge=1)
    """Steps between two lines of metrics.jsonl."""

    journal: bool = field(default=False)
    """Write journal-PROCESS.jsonl: which rows each step trained."""

    prometheus_address: str | None = field(
        policy="own", default=None, pattern=r"^([^\s:/]+:)?\d{1,5}$", pattern_words="PORT or HOST:PORT"
    )
    """PORT or HOST:PORT where process 0 serves lag, positions, rate, freshness and skips to Prometheus; a port alone is one of
    loopback. Needs prometheus-client. null: nothing listens."""


@configclass(version=1)
class TrainerConfig(Config):
    """A run of the trainer."""

    dataset: DatasetConfig = field()
    """The stream."""

    model: RankerConfig = field(default_factory=RankerConfig)
    """The model."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Updates of dense weights and embedding rows."""

    trainer: LoopConfig = field(default_factory=LoopConfig)
    """The loop."""

    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """What is saved, and when."""

    mesh: MeshConfig = field(default_factory=MeshConfig)
    """Devices."""

    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Progressive metrics."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not any(feature.group == "candidate" for feature in self.dataset.features):
            raise ValueError("dataset.features has none of group candidate: the model could not tell candidates apart")
        weights, actions = self.model.action_weights, self.dataset.actions
        if weights is not None and len(weights) != len(actions):
            raise ValueError(
                f"model.action_weights has {len(weights)} values, dataset.actions has {len(actions)}: give one for each"
            )
        return self
