"""The shape of what travels from the stream to the device."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from xrex.schema.positions import PartitionPosition

Array = Any
"""A numpy array on the host, a jax array on the device."""


class Batch(NamedTuple):
    """Fixed shapes: B rows, H history, C candidates, K row numbers an id feature gives, A actions.

    `id` features are int32[B, K] (user) or int32[B, L, K], row numbers within their table, -1 = padding; an `ids` feature has
    K = max_values * hashes. `float` features are float32[B] or [B, L]; `one_hot` features float32[B, n] or [B, L, n].
    Raw 64-bit ids and offsets never reach the device.
    """

    user: dict[str, Array]
    history: dict[str, Array]
    candidates: dict[str, Array]
    history_actions: Array  # bool[B, H, A]
    history_length: Array  # int32[B]
    candidate_length: Array  # int32[B]
    labels: Array  # float32[B, C, A]; 0 where label_mask is false
    label_mask: Array  # bool[B, C, A]; false: not observed, or no candidate
    weight: Array  # float32[B]; 0 = padding row


def with_history(batch: Batch, width: int) -> Batch:
    """The batch with room for `width` events a row, the first ones; there must be no longer history in it."""
    return batch._replace(
        history={name: values[:, :width] for name, values in batch.history.items()},
        history_actions=batch.history_actions[:, :width],
    )


class Span(NamedTuple):
    """A contiguous run of rows of one message."""

    kafka_partition: int
    offset: int
    first_row: int
    rows: int


class BadRow(NamedTuple):
    """A message, or one row of it, that was passed over within `dataset.skip_bad_records`."""

    kafka_partition: int
    offset: int
    row: int | None
    """None: the whole message cannot be read; it counts as one."""
    timestamp_ms: int
    """The broker's."""
    key: bytes | None
    value: bytes
    """Of the whole message."""
    reason: str


@dataclass(frozen=True)
class Delivery:
    """One batch and what must be remembered once it has been trained. All numpy; nothing here reaches the device but `batch`."""

    batch: Batch
    rows: int
    """Real rows; the others are padding of weight 0."""
    next_positions: dict[int, PartitionPosition]
    """Kafka partition -> the next row to train after this batch, for every partition of this process."""
    trained: tuple[Span, ...]
    """The rows of the batch, in order."""
    more: bool
    """False: this process is at its fixed end; every later delivery will be empty."""
    references: dict[str, np.ndarray] = field(default_factory=dict)
    """name -> float32[B, C, A] probabilities of another predictor, NaN = unknown. For metrics, never for the model."""
    skipped: dict[str, int] = field(default_factory=dict)
    """reason -> records passed over between the last delivery's rows and this one's (`tombstone`, `bad_record`)."""
    bad: tuple[BadRow, ...] = ()
    """Those of them that cannot be trained."""
    noted: dict[str, int] = field(default_factory=dict)
    """What was read in a way worth counting: `oov.FEATURE` ids outside a directly indexed table that found a row by its
    `oov` rule, `extra_column.NAME` messages with a column that nothing reads."""
    newest_event_ms: int | None = None
    """Largest event time of the rows (their column, else the broker's timestamp), unix milliseconds."""
