"""From a table of events to the rows of the data contract: each event becomes a row that carries its user's history.

A row sees the earlier events of its user with a strictly smaller event time. Events of the same time are left out, so
neither their labels nor the row's own can leak. Everything here is columns; nothing loops over rows.
"""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from xrex.errors import ConfigError, RunError

TIME_COLUMN = "event_time_ms"
WEIGHT_COLUMN = "weight"
MAX_ACTIONS = 63
BUCKET_MAX = 24
"""Largest bucket: 2^24 seconds are 194 days. As `user_gap` it also stands for "no earlier event"."""


@dataclass(frozen=True)
class EventColumns:
    """What each column of an event table is. A column `weight`, where there is one, becomes the row's weight."""

    user: str = "user"
    """The user's id."""
    time: str = TIME_COLUMN
    """When it happened: int64 unix milliseconds, or Arrow timestamps. Rows hold it as `event_time_ms`."""
    user_columns: tuple[str, ...] = ()
    """Further properties of the user; scalars or lists."""
    candidate_columns: tuple[str, ...] = ("item",)
    """Properties of what was shown; scalars or lists. Each also becomes a `history_` column."""
    actions: tuple[str, ...] = ()
    """Label columns: 0, 1 or null (not observed). The place in this list is the bit in `history_actions`."""
    references: tuple[str, ...] = ()
    """Columns `reference_NAME_ACTION`: what another predictor said of this event."""

    @property
    def plain(self) -> tuple[str, ...]:
        """The columns that are copied and may hold no null."""
        return (self.user, *self.user_columns, *self.candidate_columns)

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that must be in the table."""
        return (self.time, *self.plain, *self.actions, *self.references)


class RowBuilder:
    """The rows of an event table, in event-time order (ties: table order), built for any choice of row numbers.

    examples        only the first events by time; None: all
    skip            events that become history but no row: row i is event skip + i by time
    history_until   histories hold none but the first events by time, so that what followed stays unknown; None: any

    Memory: the events and five integers an event, not the histories.
    Raises ConfigError for columns that are missing, named twice or of a type that no row can hold; RunError for
    values that are null or not finite, and for labels other than 0, 1, null.
    """

    def __init__(
        self,
        events: pa.Table,
        columns: EventColumns,
        max_history: int,
        examples: int | None = None,
        *,
        skip: int = 0,
        history_until: int | None = None,
    ):
        _check_names(events, columns)
        self.columns = columns
        times = _times(columns.time, events[columns.time])
        in_time = np.argsort(times, kind="stable")[:examples]
        events, self._times_ms, self._skip = events.take(in_time), times[in_time], skip
        self._plain = {name: _plain_column(name, events[name]) for name in columns.plain}
        _check_user(columns.user, self.users)
        self._labels = {name: _label_column(name, events[name]) for name in columns.actions}
        self._references = {name: _reference_column(name, events[name]) for name in columns.references}
        self._weight = _weight_column(events)
        self._action_bits = _action_bits(list(self._labels.values()), len(events))
        self._by_user, first, self._earlier = _histories(self._plain[columns.user], self._times_ms, history_until)
        self._history_end = first + self._earlier
        self._history_start = np.maximum(first, self._history_end - max_history)

    def __len__(self) -> int:
        return len(self.event_time_ms)

    @property
    def event_time_ms(self) -> np.ndarray:
        """int64[N]: when the event of each row happened."""
        return self._times_ms[self._skip :]

    @property
    def users(self) -> pa.Array:
        """The user of each row."""
        return self._plain[self.columns.user].slice(self._skip)

    def rows(self, numbers: np.ndarray) -> pa.RecordBatch:
        """The rows of these numbers, in the order given.

        numbers   int64[N], each in 0..len-1
        Columns: the user columns, `event_time_ms`, `user_gap` (bucket of the seconds since the last earlier event, 24
        if there is none), `user_events` (bucket of the number of earlier events), `weight` if there is one: scalars.
        Candidate columns, labels, references: lists of one. `history_COLUMN` of each candidate column,
        `history_actions` (bit masks), `history_age` (bucket of the seconds since that event): lists, oldest first,
        the newest `max_history`.
        """
        numbers = numbers + self._skip
        picked = pa.array(numbers)
        out: dict[str, pa.Array] = {
            name: self._plain[name].take(picked) for name in (self.columns.user, *self.columns.user_columns)
        }
        out[TIME_COLUMN] = pa.array(self._times_ms[numbers])
        out["user_gap"] = pa.array(self._gap(numbers))
        out["user_events"] = pa.array(bucket(self._earlier[numbers]))
        for name in self.columns.candidate_columns:
            out[name] = _lists_of_one(self._plain[name].take(picked))
        out |= self._history(numbers)
        for name, column in (self._labels | self._references).items():
            out[name] = _lists_of_one(column.take(picked))
        if self._weight is not None:
            out[WEIGHT_COLUMN] = self._weight.take(picked)
        return pa.RecordBatch.from_pydict(out)

    def _history(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        start, lengths = self._history_start[numbers], (self._history_end - self._history_start)[numbers]
        events = self._by_user[ragged_ranges(start, lengths)]
        picked, offsets = pa.array(events), pa.array(np.r_[0, np.cumsum(lengths)].astype(np.int32))
        age_s = (np.repeat(self._times_ms[numbers], lengths) - self._times_ms[events]) / 1_000
        values = {f"history_{name}": self._plain[name].take(picked) for name in self.columns.candidate_columns}
        values["history_actions"] = pa.array(self._action_bits[events])
        values["history_age"] = pa.array(bucket(age_s))
        return {name: pa.ListArray.from_arrays(offsets, column) for name, column in values.items()}

    def _gap(self, numbers: np.ndarray) -> np.ndarray:
        end = self._history_end[numbers]
        last = self._by_user[np.maximum(end - 1, 0)]
        gap_s = (self._times_ms[numbers] - self._times_ms[last]) / 1_000
        return np.where(self._earlier[numbers] > 0, bucket(gap_s), BUCKET_MAX)


def build_rows(events: pa.Table, columns: EventColumns, max_history: int) -> pa.Table:
    """All rows of an event table at once; see RowBuilder, which it raises like."""
    builder = RowBuilder(events, columns, max_history)
    return pa.Table.from_batches([builder.rows(np.arange(len(builder)))])


def read_events(path: Path, columns: EventColumns) -> tuple[pa.Table, EventColumns, tuple[str, ...]]:
    """The events of a Parquet file, or of a folder of such files in the order of their names.

    Returns (events, columns, unused): `columns` with every `reference_*` column of the file as a reference, and the
    names of the columns that were not read. Raises ConfigError for what is no Parquet or lacks a column.
    """
    try:
        source = pyarrow.dataset.dataset(path, format="parquet")
    except (OSError, pa.ArrowInvalid) as error:
        fix = "check the path" if isinstance(error, FileNotFoundError) else "convert it to Parquet"
        raise ConfigError(f"{path}: not readable as Parquet: {' '.join(str(error).split())}; {fix}") from None
    present = source.schema.names
    check_present(columns, present)
    columns = replace(columns, references=tuple(name for name in present if name.startswith("reference_")))
    read = [name for name in present if name in columns.required or name == WEIGHT_COLUMN]
    return source.to_table(columns=read), columns, tuple(name for name in present if name not in read)


def check_present(columns: EventColumns, present: list[str]) -> None:
    """Raises ConfigError for the first required column that is not among those present."""
    for name in columns.required:
        if name not in present:
            raise ConfigError(
                f"events have no column {name!r}; they have {', '.join(map(repr, present))}; "
                "name yours with --user-column, --time-column, --candidate-columns or --actions"
            )


def bucket(x: np.ndarray) -> np.ndarray:
    """floor(log2(x + 1)) of numbers >= 0 as int64, at most 24; negative numbers count as 0."""
    # frexp, not log2: exact at powers of two.
    return np.minimum(np.frexp(np.maximum(x, 0) + 1.0)[1] - 1, BUCKET_MAX).astype(np.int64)


def ragged_ranges(start: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start[0], start[0] + 1, ... (lengths[0] numbers), then the same for start[1], and so on; int64[sum(lengths)]."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(start - before, lengths)


def _histories(users: pa.Array, times: np.ndarray, until: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each event's history lies. The events are in time order.

    Returns int64[N] by_user, first, earlier: the event numbers grouped by user, in time order within one; and for
    each event the place in `by_user` where its user begins, and how many events of that user have a smaller time and,
    if given, a number below `until`.
    """
    codes = users.dictionary_encode().indices.to_numpy()
    by_user = np.argsort(codes, kind="stable")
    new_user = _changes(codes[by_user])
    places = np.arange(len(codes))
    user_start = np.maximum.accumulate(np.where(new_user, places, 0))
    tie_start = np.maximum.accumulate(np.where(new_user | _changes(times[by_user]), places, 0))
    first, earlier = np.empty_like(places), np.empty_like(places)
    first[by_user], earlier[by_user] = user_start, tie_start - user_start
    if until is not None:
        # A user's events stand in the order of their numbers: those below `until` come first.
        earlier = np.minimum(earlier, np.bincount(codes[:until], minlength=len(codes))[codes])
    return by_user, first, earlier


def _changes(values: np.ndarray) -> np.ndarray:
    """bool[N]: the first value, and each that differs from the one before it."""
    return np.r_[np.ones(min(1, len(values)), bool), values[1:] != values[:-1]]


def _action_bits(labels: list[pa.Array], rows: int) -> np.ndarray:
    bits = np.zeros(rows, np.int64)
    for index, label in enumerate(labels):
        bits |= label.fill_null(0).to_numpy() << index
    return bits


def _lists_of_one(column: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(column) + 1, dtype=np.int32)), column)


def _check_names(events: pa.Table, columns: EventColumns) -> None:
    check_present(columns, events.column_names)
    made = [TIME_COLUMN, "user_gap", "user_events", "history_actions", "history_age", WEIGHT_COLUMN]
    made += [f"history_{name}" for name in columns.candidate_columns]
    for name, count in Counter([*columns.plain, *columns.actions, *columns.references, *made]).items():
        if count > 1:
            raise ConfigError(
                f"column {name!r} of the rows would be written twice: name it once, or rename the one in the events"
            )
    if not columns.candidate_columns:
        raise ConfigError("no candidate column: name at least one, e.g. --candidate-columns item")
    if not 1 <= len(columns.actions) <= MAX_ACTIONS:
        raise ConfigError(
            f"{len(columns.actions)} actions: name 1 to {MAX_ACTIONS} label columns, e.g. --actions click,like"
        )


def _check_user(name: str, users: pa.Array) -> None:
    if not (pa.types.is_int64(users.type) or pa.types.is_string(users.type)):
        raise ConfigError(f"user column {name!r} is {users.type}: user ids are integers or strings; convert it first")


def _times(name: str, chunks: pa.ChunkedArray) -> np.ndarray:
    column = _one_chunk(chunks)
    _refuse_gaps(name, column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)  # finer than a millisecond is cut off
    elif not pa.types.is_integer(column.type):
        raise ConfigError(
            f"column {name!r} is {column.type}: event times are int64 unix milliseconds or Arrow timestamps"
        )
    times = _cast(name, column, pa.int64()).to_numpy()
    if len(times) and times.min() < 0:
        raise RunError(f"column {name!r} holds {times.min()}: event times are unix milliseconds, 0 or later")
    return times


def _plain_column(name: str, chunks: pa.ChunkedArray) -> pa.Array:
    column = _decoded(name, _one_chunk(chunks))
    _refuse_gaps(name, column)
    return column


def _decoded(name: str, column: pa.Array) -> pa.Array:
    """The column as int64, float64, string or a list of these."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _decoded(name, column.cast(kind.value_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _decoded_lists(name, column)
    for matches, target in (
        (pa.types.is_boolean(kind) or pa.types.is_integer(kind), pa.int64()),
        (pa.types.is_floating(kind), pa.float64()),
        (pa.types.is_string(kind) or pa.types.is_large_string(kind), pa.string()),
    ):
        if matches:
            return _cast(name, column, target)
    raise ConfigError(
        f"column {name!r} is {kind}: rows hold integers, floats, strings or lists of one of them; convert it first"
    )


def _decoded_lists(name: str, column: pa.Array) -> pa.Array:
    _refuse_gaps(name, column)
    values = _decoded(name, column.flatten())
    if pa.types.is_list(values.type):
        raise ConfigError(
            f"column {name!r} is {column.type}: rows hold lists of integers, floats or strings; flatten it first"
        )
    _refuse_gaps(name, values)
    lengths = column.value_lengths().to_numpy()
    return pa.ListArray.from_arrays(pa.array(np.r_[0, np.cumsum(lengths)].astype(np.int32)), values)


def _label_column(name: str, chunks: pa.ChunkedArray) -> pa.Array:
    column = _number_column(name, chunks)
    observed = column.drop_null().to_numpy()
    odd = observed[(observed != 0) & (observed != 1)]
    if len(odd):
        raise RunError(f"label column {name!r} holds {odd[0]}: a label is 0, 1 or null; make one, e.g. rating >= 4")
    return column.cast(pa.int64())


def _weight_column(events: pa.Table) -> pa.Array | None:
    if WEIGHT_COLUMN not in events.column_names:
        return None
    column = _number_column(WEIGHT_COLUMN, events[WEIGHT_COLUMN])
    _refuse_gaps(WEIGHT_COLUMN, column)
    weights = column.to_numpy()
    if len(weights) and weights.min() <= 0:
        raise RunError(
            f"column {WEIGHT_COLUMN!r} holds {weights.min()}: a weight is above 0; leave the event out instead"
        )
    return column


def _reference_column(name: str, chunks: pa.ChunkedArray) -> pa.Array:
    values = _number_column(name, chunks).to_numpy(zero_copy_only=False)  # null becomes NaN
    odd = values[(values < 0) | (values > 1)]
    if len(odd):
        raise RunError(f"reference column {name!r} holds {odd[0]}: it must hold probabilities, or null where unknown")
    return pa.array(values, from_pandas=True)  # NaN becomes null


def _number_column(name: str, chunks: pa.ChunkedArray) -> pa.Array:
    column = _one_chunk(chunks)
    if not (pa.types.is_boolean(column.type) or pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise ConfigError(f"column {name!r} is {column.type}: it must hold numbers; convert it first")
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return _cast(name, column, pa.float64())


def _cast(name: str, column: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return column.cast(target)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"column {name!r} ({column.type}) does not fit {target}: {error}; convert it first") from None


def _refuse_gaps(name: str, column: pa.Array) -> None:
    gaps = column.null_count
    if pa.types.is_floating(column.type):
        gaps += int((~np.isfinite(column.drop_null().to_numpy())).sum())
    if gaps:
        raise RunError(
            f"column {name!r} holds {gaps} values that are null or not finite: fill them, or leave these events out"
        )


def _one_chunk(chunks: pa.ChunkedArray) -> pa.Array:
    column = chunks.combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
