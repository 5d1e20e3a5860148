"""What is read, from where, and how rows become batches."""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, Self

from pydantic import model_validator

from xai_configlib import Config, configclass, field
from xai_configlib.errors import shown
from xrex.data.log.config import TOPIC_NAME, DirectoryLog, LogConfig
from xrex.schema.specs import FeatureSpec, TableSpec


@configclass(policy="must_match")
class DatasetConfig(Config):
    """The stream: a topic, its codec, the features and actions of a row."""

    topic_name: str = field(
        policy="from_checkpoint", pattern=f"^{TOPIC_NAME}$", pattern_words="1 to 249 of A-Z a-z 0-9 . _ -"
    )
    """Topic to read."""

    num_kafka_partitions: int = field(policy="from_checkpoint", ge=1)
    """Partitions the topic is expected to have."""

    log: LogConfig = field(policy="per_start", default_factory=DirectoryLog)
    """Where the topic is: KafkaLog or DirectoryLog."""

    codec: Literal["arrow", "json"] = field(default="arrow")
    """What a message's value is: an Arrow IPC stream of one record batch, or a JSON object or array of objects."""

    tables: tuple[TableSpec, ...] = field()
    """Embedding tables."""

    features: tuple[FeatureSpec, ...] = field()
    """Inputs of the model, in order."""

    actions: tuple[str, ...] = field(min_length=1, max_length=63)
    """Label columns, one head each; the index is the bit in `history_actions`."""

    max_history: int = field(default=20, ge=1)
    """History events kept per row, the newest ones (H)."""

    max_candidates: int = field(default=1, ge=1)
    """Candidates a row may have (C); more is a bad record."""

    history_actions_column: str | None = field(default="history_actions")
    """Column of int64 bit masks, as long as the history; null: histories carry no actions."""

    references: tuple[str, ...] = field(policy="may_change", default=())
    """Names of other predictors: columns `reference_NAME_ACTION` hold their probabilities, for metrics only."""

    stop_at_end: bool = field(policy="per_start", default=False)
    """Stop at the end offsets that the log had at the run's first start."""

    stop_at_timestamp: datetime | None = field(policy="per_start", default=None)
    """Stop, in every partition, before the first record whose broker timestamp is this or later; found at the run's first
    start, when it must have passed. null: none."""

    linger_ms: int = field(policy="may_change", default=1_000, ge=0)
    """At the live edge: how old the oldest row of a short batch may get before the batch is trained."""

    stall_timeout_s: float = field(policy="per_start", default=60.0, gt=0)
    """A partition that has a backlog and delivers nothing for this long ends the run."""

    skip_bad_records: int = field(policy="per_start", default=0, ge=0)
    """Messages that cannot be read and rows that cannot be trained, over the whole run: so many are passed over, each with
    a line, and kept in dead-letters-PROCESS.jsonl; the next one ends the run. Each process counts its own, and those before
    its start."""

    on_new_partitions: Literal["earliest", "error"] = field(policy="per_start", default="earliest")
    """Partitions beyond num_kafka_partitions: read from their beginning, or end the run."""

    prefetch_batches: int = field(policy="per_start", default=4, ge=1)
    """Batches prepared ahead of the step. Positions move only with the step."""

    max_buffered_bytes: int = field(policy="per_start", default=64 * 2**20, ge=2**20)
    """Bytes of fetched, not yet decoded messages this process holds before it pauses a partition."""

    @property
    def has_ends(self) -> bool:
        """Whether the run stops at offsets that are fixed at its first start."""
        return self.stop_at_end or self.stop_at_timestamp is not None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if problems := list(_problems(self)):
            raise ValueError("; ".join(problems))
        return self


def _problems(config: DatasetConfig) -> Iterator[str]:
    """What no field can see by itself."""
    tables = {table.name: table for table in config.tables}
    names = {
        "tables": [table.name for table in config.tables],
        "features": [feature.name for feature in config.features],
        "actions": config.actions,
        "references": config.references,
    }
    for where, given in names.items():
        for name in sorted({name for name in given if list(given).count(name) > 1}):
            yield f"{where}: the name {name!r} is given twice; rename one"
    for table in config.tables:
        for salt in table.salts:
            if not 0 <= salt < 2**64:
                yield f"table {table.name!r}: the salt {shown(salt)} is no unsigned 64-bit number; use 0 to 2^64 - 1"
    for dim in sorted({table.embedding_dim for table in config.tables}):
        rows = sum(table.stored_rows for table in config.tables if table.embedding_dim == dim)
        if rows >= 2**31:
            yield f"the tables of embedding_dim {dim} have {rows:,} rows together: one width takes fewer than 2^31"
    first: dict[str, FeatureSpec] = {}
    for feature in config.features:
        yield from _feature_problems(feature, tables, config)
        other = first.setdefault(feature.column, feature)
        if other.group != feature.group or _form(other) != _form(feature):
            yield (
                f"features {other.name!r} and {feature.name!r} read the column {feature.column!r} in two ways; "
                "give both one group, kind and id_type"
            )


def _form(feature: FeatureSpec) -> tuple[bool, bool]:
    return feature.kind == "ids", feature.kind in ("id", "ids") and feature.id_type == "string"


def _feature_problems(feature: FeatureSpec, tables: dict[str, TableSpec], config: DatasetConfig) -> Iterator[str]:
    where, table = f"feature {feature.name!r}", tables.get(feature.table or "")
    if feature.kind in ("id", "ids"):
        if table is None:
            yield f"{where}: table = {shown(feature.table)}, the tables are {', '.join(tables) or 'none'}"
        elif feature.id_type == "string" and not table.salts and table.oov != "hash":
            yield (
                f"{where}: string ids are hashes, the directly indexed table {table.name!r} cannot hold them; "
                "give the table salts, or oov: hash"
            )
    elif feature.table is not None:
        yield f"{where}: a {feature.kind} feature has no table; remove table"
    if feature.column in config.actions or feature.column.startswith("reference_"):
        yield f"{where}: the column {feature.column!r} would tell the model the answer; remove the feature"
    if feature.column in ("weight", "event_time_ms"):
        yield f"{where}: the column {feature.column!r} is the row's own, not an input; remove the feature"
    if feature.column == config.history_actions_column and (feature.group != "history" or any(_form(feature))):
        yield f"{where}: the column {feature.column!r} holds one integer mask an event"
