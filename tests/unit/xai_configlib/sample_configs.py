"""A neutral recommender config with every kind of field, for the tests of the library."""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from xai_configlib import Config, SecretRef, configclass, field


class Activation(enum.Enum):
    RELU = "relu"
    GELU = "gelu"
    SWISH = "swish"


class Precision(enum.IntEnum):
    HALF = 16
    SINGLE = 32


@configclass(tag="SampleTable", policy="must_match")
class Table(Config):
    num_rows: int = field(ge=1)
    """Rows."""
    dim: int = field(ge=1)
    """Width."""
    hash_salt: int = field(ge=0, lt=2**64)
    """An unsigned 64-bit number."""


@configclass(tag="SampleFeature", policy="must_match")
class Feature(Config):
    column: str = field(min_length=1)
    """Column."""
    weight: float = field(default=1.0, policy="may_change")
    """Weight."""


@configclass(tag="SampleModel", policy="must_match")
class Model(Config):
    embedding_dim: int = field(ge=1)
    """Width."""
    hidden_dims: tuple[int, ...] = field()
    """Widths of the layers."""
    dropout: float = field(default=0.0, ge=0, lt=1)
    """Share dropped."""
    activation: Activation = field(default=Activation.RELU)
    """Activation."""
    precision: Precision = field(default=Precision.SINGLE)
    """Bits of a float."""
    dtype: Literal["float32", "bfloat16"] = field(default="float32")
    """Type of the weights."""
    tables: Mapping[str, Table] = field()
    """Tables by name."""
    head_loss_weights: dict[int, float] = field(default_factory=dict)
    """Loss weight of each head."""


@configclass(tag="SampleSecurity", policy="per_start")
class Security(Config):
    protocol: Literal["PLAINTEXT", "SASL_SSL"] = field(default="PLAINTEXT")
    """Protocol."""
    username: str | None = field(default=None)
    """User."""
    password: SecretRef | None = field(default=None)
    """Reference to the password."""
    keys: tuple[SecretRef, ...] = field(default=())
    """References to further secrets."""


@configclass
class Source(Config):
    """Base of the sources."""


@configclass(policy="per_start")
class BrokerSource(Source):
    servers: tuple[str, ...] = field(min_length=1)
    """Brokers."""
    security: Security = field(default_factory=Security)
    """Security."""
    group_id: str | None = field(default=None, policy="own")
    """Consumer group."""


@configclass(policy="per_start", aliases=("OldFolderSource",))
class FolderSource(Source):
    path: Path = field(default=Path("log"), aliases=("folder",))
    """Folder."""


@configclass(tag="SampleDataset", policy="may_change")
class Dataset(Config):
    topic_name: str = field(
        policy="from_checkpoint", pattern=r"^[A-Za-z0-9._-]{1,249}$", pattern_words="1 to 249 of A-Z a-z 0-9 . _ -"
    )
    """Topic."""
    num_kafka_partitions: int = field(policy="from_checkpoint", ge=1)
    """Partitions."""
    batch_size: int = field(default=4, ge=1)
    """Examples of a step."""
    features: tuple[Feature, ...] = field(policy="must_match", default=())
    """Features."""
    window: tuple[int, float] = field(default=(0, 1.0))
    """Two numbers of different types."""
    start_offsets: Mapping[int, int] | None = field(default=None)
    """First offset of each partition."""
    source: Source = field(policy="per_start", default_factory=FolderSource)
    """Where the topic is."""


@configclass(tag="SampleOptimizer", policy="may_change")
class Optimizer(Config):
    learning_rate: float = field(gt=0)
    """Learning rate."""
    clip_norm: float | None = field(default=None, gt=0)
    """Largest gradient norm; null: no limit."""
    warmup_steps: int = field(default=0, ge=0)
    """Steps."""
    decay_steps: int = field(default=1, ge=1)
    """Steps."""

    @model_validator(mode="after")
    def _warm_up_ends_before_decay(self) -> "Optimizer":
        if self.warmup_steps > self.decay_steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps}: keep it below decay_steps")
        return self


@configclass(version=1)
class SampleRun(Config):
    run_name: str = field(policy="own", default="sample")
    """Name."""
    seed: int = field(policy="must_match", default=17)
    """Seed."""
    verbose: bool = field(policy="per_start", default=False)
    """Whether to say more."""
    model: Model = field()
    """Model."""
    dataset: Dataset = field()
    """Dataset."""
    optimizer: Optimizer = field()
    """Optimizer."""


def base() -> dict[str, Any]:
    """The parsed file that every test starts from; a fresh copy each time."""
    return {
        "run_name": "sample-ranker",
        "seed": 17,
        "model": {
            "embedding_dim": 16,
            "hidden_dims": [64, 32],
            "dropout": 0.0,
            "activation": "relu",
            "dtype": "float32",
            "tables": {
                "item_id": {"num_rows": 1000, "dim": 16, "hash_salt": 12345},
                "author_id": {"num_rows": 500, "dim": 16, "hash_salt": 67890},
            },
            "head_loss_weights": {"0": 1.0, "1": 0.5},
        },
        "dataset": {
            "topic_name": "engagements",
            "num_kafka_partitions": 8,
            "batch_size": 4,
            "features": [{"column": "item"}, {"column": "author"}, {"column": "age"}, {"column": "hour"}],
            "start_offsets": None,
            "source": {
                "__class": "BrokerSource",
                "servers": ["localhost:9092"],
                "security": {"protocol": "PLAINTEXT", "username": None, "password": None},
            },
        },
        "optimizer": {"learning_rate": 0.05, "clip_norm": None, "warmup_steps": 100, "decay_steps": 10000},
    }


def base_with(path: str, value: Any) -> dict[str, Any]:
    """`base()` with one value replaced or added."""
    mapping = base()
    *sections, name = path.split(".")
    node: Any = mapping
    for section in sections:
        node = node[int(section)] if isinstance(node, list) else node[section]
    node[int(name) if isinstance(node, list) else name] = value
    return mapping


def base_without(path: str) -> dict[str, Any]:
    """`base()` with one value left out."""
    mapping = base()
    *sections, name = path.split(".")
    node: Any = mapping
    for section in sections:
        node = node[section]
    del node[name]
    return mapping
