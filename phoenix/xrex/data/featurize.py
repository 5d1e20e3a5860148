"""Rows of columns become arrays of fixed shape: column by column, never row by row.

B batch, H history, C candidates, K row numbers that an id feature gives, A actions; n rows, N items of a list column.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from xrex.data.columns import EVENT_TIME, WEIGHT, Columns, reference_column
from xrex.data.config import DatasetConfig
from xrex.data.hashing import outside_table, rows_of, string_ids
from xrex.errors import BadRecord
from xrex.schema.batch import Batch
from xrex.schema.specs import FeatureSpec


def example_batch(config: DatasetConfig, rows: int) -> Batch:
    """A batch of padding only (weight 0, row numbers -1), with the shapes and dtypes that every batch has."""
    H, C, A = config.max_history, config.max_candidates, len(config.actions)
    num_hashes = {table.name: table.num_hashes for table in config.tables}
    lead = {"user": (rows,), "history": (rows, H), "candidate": (rows, C)}
    groups: dict[str, dict[str, np.ndarray]] = {"user": {}, "history": {}, "candidate": {}}
    for feature in config.features:
        shape = lead[feature.group]
        if feature.kind in ("id", "ids"):
            values = feature.max_values if feature.kind == "ids" else 1
            padding = np.full((*shape, values * num_hashes[feature.table or ""]), -1, np.int32)
        else:
            padding = np.zeros((*shape, feature.max_values) if feature.kind == "one_hot" else shape, np.float32)
        groups[feature.group][feature.name] = padding
    return Batch(
        user=groups["user"],
        history=groups["history"],
        candidates=groups["candidate"],
        history_actions=np.zeros((rows, H, A), np.bool_),
        history_length=np.zeros(rows, np.int32),
        candidate_length=np.zeros(rows, np.int32),
        labels=np.zeros((rows, C, A), np.float32),
        label_mask=np.zeros((rows, C, A), np.bool_),
        weight=np.zeros(rows, np.float32),
    )


class Features(NamedTuple):
    """What n rows become."""

    batch: Batch
    references: dict[str, np.ndarray]
    """name -> float32[B, C, A], NaN = unknown."""
    event_times_ms: np.ndarray | None
    """int64[n], of each row; None if a row has none."""
    noted_by_row: dict[str, np.ndarray]
    """`oov.FEATURE` -> int64[n]: ids outside a directly indexed table, which found a row by the table's `oov` rule."""

    @property
    def newest_event_ms(self) -> int | None:
        """Largest event time of the rows; None without rows, or if a row has none."""
        return None if self.event_times_ms is None or not len(self.event_times_ms) else int(self.event_times_ms.max())

    @property
    def noted(self) -> Counter[str]:
        """Sums over the rows, of what was noted at all."""
        return Counter({name: total for name, rows in self.noted_by_row.items() if (total := int(rows.sum()))})

    def cut(self, start: int, stop: int) -> "Features":
        """Rows start..stop of a block without padding, as a batch of their own: views, nothing is copied."""
        return Features(
            _map(lambda array: array[start:stop], self.batch),
            {name: array[start:stop] for name, array in self.references.items()},
            None if self.event_times_ms is None else self.event_times_ms[start:stop],
            {name: rows[start:stop] for name, rows in self.noted_by_row.items()},
        )


def _map(change: Callable[[np.ndarray], np.ndarray], batch: Batch) -> Batch:
    """The batch with every array changed."""
    fields: dict[str, Any] = {
        name: {key: change(array) for key, array in value.items()} if isinstance(value, dict) else change(value)
        for name, value in batch._asdict().items()
    }
    return Batch(**fields)


class Featurizer:
    """Turns rows into batches by one config. Built once."""

    def __init__(self, config: DatasetConfig):
        self._config = config
        self._tables = {table.name: table for table in config.tables}
        self._columns = Columns(config)
        self._history = [feature.column for feature in config.features if feature.group == "history"]
        if config.history_actions_column is not None:
            self._history.append(config.history_actions_column)
        self._candidates = [feature.column for feature in config.features if feature.group == "candidate"]
        self._candidates += config.actions
        self._candidates += [reference_column(name, action) for name in config.references for action in config.actions]

    def check(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with exactly the columns and types that `featurize` takes. Raises BadRecord; looks at no value."""
        return self._columns.check(rows)

    def padding(self, batch_rows: int) -> Features:
        """A batch without rows."""
        return Features(example_batch(self._config, batch_rows), self._unknown(batch_rows), None, {})

    def featurize(self, rows: pa.RecordBatch, batch_rows: int, timestamps_ms: np.ndarray | None = None) -> Features:
        """n <= B checked rows -> a batch of B = batch_rows rows, the last B - n of them padding.

        timestamps_ms   int64[n], stands in for a null `event_time_ms`: the broker's timestamps
        Raises BadRecord for the first bad row of `rows`.
        """
        try:
            return self._featurize(rows, batch_rows, timestamps_ms)
        except BadRecord as error:
            bad = error
        # Columns are read one after the other: a row before this one may be bad in a later column.
        while bad.row:
            try:
                self._featurize(rows.slice(0, bad.row), batch_rows, None)
                break
            except BadRecord as error:
                bad = error
        raise bad

    def _featurize(self, rows: pa.RecordBatch, batch_rows: int, timestamps_ms: np.ndarray | None) -> Features:
        config, n = self._config, rows.num_rows
        batch, noted = example_batch(config, batch_rows), dict[str, np.ndarray]()
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        history = _common_slots({name: columns[name] for name in self._history}, n, config.max_history)
        candidates = _common_slots({name: columns[name] for name in self._candidates}, n, config.max_candidates)
        batch.history_length[:n] = history.kept
        batch.candidate_length[:n] = _candidate_lengths(candidates.lengths, config.max_candidates)
        for feature in config.features:
            values, where = columns[feature.column], f"feature '{feature.name}' (column '{feature.column}')"
            if feature.group == "user":
                with _Blame(where):
                    batch.user[feature.name][:n], outside = self._encode(feature, values)
                if outside is not None:
                    noted[f"oov.{feature.name}"] = outside
                continue
            slots, group = (history, batch.history) if feature.group == "history" else (candidates, batch.candidates)
            with _Blame(where):
                items, slots = _items(values, slots, feature.required)
            with _Blame(where, slots):
                encoded, outside = self._encode(feature, items)
            slots.place(group[feature.name], encoded)
            if outside is not None:
                noted[f"oov.{feature.name}"] = slots.sum_by_row(outside)
        self._history_actions(columns, history, batch)
        self._labels(columns, candidates, batch)
        references = self._references(columns, candidates, batch_rows)
        with _Blame(f"column '{WEIGHT}'"):
            batch.weight[:n] = _weights(columns[WEIGHT])
        return Features(batch, references, _event_times(columns[EVENT_TIME], timestamps_ms), noted)

    def _encode(self, feature: FeatureSpec, values: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
        """N values -> what the feature's array holds for each: [N, ...]; and int64[N], its ids outside their table."""
        if feature.required:
            _refuse_nulls(values)
        if feature.kind == "id":
            return self._row_numbers(feature, values)
        if feature.kind == "ids":
            return self._bags(feature, values)
        return (_floats(values) if feature.kind == "float" else _one_hot(values, feature.max_values)), None

    def _row_numbers(self, feature: FeatureSpec, values: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
        """int64 or string[N] -> int32[N, K], -1 for a null; and int64[N], 1 for an id outside the table, if there are any."""
        table = self._tables[feature.table or ""]
        is_string = feature.id_type == "string"
        ids, noted = string_ids(values) if is_string else _numbers(values, 0), None
        if not table.salts and not is_string and (outside := outside_table(ids, table)).any():
            if table.oov == "error":
                i = int(outside.argmax())
                last = table.num_embeddings - 1
                raise BadRecord(f"id {ids[i]} is outside the directly indexed table '{table.name}' (0..{last})", row=i)
            noted = outside.astype(np.int64)
        row_numbers = rows_of(ids, table)
        if values.null_count:
            row_numbers[_nulls(values)] = -1
        return row_numbers, noted

    def _bags(self, feature: FeatureSpec, values: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
        """lists[N] of ids -> int32[N, max_values * K], the first max_values ids of each; and as `_row_numbers`."""
        slots = _slots(_lengths(values), feature.max_values, newest=False)
        with _Blame("", slots):
            ids = slots.cut(values.flatten())
            if feature.required:
                _refuse_nulls(ids)
            row_numbers, outside = self._row_numbers(feature, ids)
        bags = np.full((len(values), feature.max_values, row_numbers.shape[-1]), -1, np.int32)
        slots.place(bags, row_numbers)
        noted = None if outside is None else slots.sum_by_row(outside)
        return bags.reshape(len(values), feature.max_values * row_numbers.shape[-1]), noted

    def _history_actions(self, columns: dict[str, pa.Array], history: "_Slots", batch: Batch) -> None:
        name, num_actions = self._config.history_actions_column, len(self._config.actions)
        if name is None:
            return
        with _Blame(f"column '{name}'"):
            masks, slots = _items(columns[name], history, required=True)
        with _Blame(f"column '{name}'", slots):
            _refuse_nulls(masks)
            slots.place(batch.history_actions, _bits(_numbers(masks, 0), num_actions))

    def _labels(self, columns: dict[str, pa.Array], candidates: "_Slots", batch: Batch) -> None:
        for a, action in enumerate(self._config.actions):
            values, slots = _items(columns[action], candidates, required=False)
            labels, observed = _numbers(values, 0), ~_nulls(values)
            with _Blame(f"label '{action}'", slots):
                _refuse(labels, (labels != 0) & (labels != 1), "is neither 0 nor 1")
            slots.place(batch.labels[..., a], labels)
            slots.place(batch.label_mask[..., a], observed)

    def _references(self, columns: dict[str, pa.Array], candidates: "_Slots", batch_rows: int) -> dict[str, np.ndarray]:
        references = self._unknown(batch_rows)
        for name, reference in references.items():
            for a, action in enumerate(self._config.actions):
                column = reference_column(name, action)
                values, slots = _items(columns[column], candidates, required=False)
                probabilities = _numbers(values, np.nan)
                with _Blame(f"column '{column}'", slots):
                    _refuse(probabilities, (probabilities < 0) | (probabilities > 1), "is no probability")
                slots.place(reference[..., a], probabilities)
        return references

    def _unknown(self, batch_rows: int) -> dict[str, np.ndarray]:
        shape = (batch_rows, self._config.max_candidates, len(self._config.actions))
        return {name: np.full(shape, np.nan, np.float32) for name in self._config.references}


class _Slots(NamedTuple):
    """Where the items of n lists stand in an array [n, width], lists left-aligned."""

    lengths: np.ndarray  # int64[n], items of each list
    kept: np.ndarray  # int64[n], at most width
    width: int
    rows: np.ndarray  # int64[M], row of each kept item
    places: np.ndarray  # int64[M], its place in the row
    sources: np.ndarray | None  # int64[M], its place among all items; None: every item is kept

    def cut(self, items: pa.Array) -> pa.Array:
        """All items -> the kept ones."""
        return items if self.sources is None else items.take(pa.array(self.sources))

    def place(self, array: np.ndarray, values: np.ndarray) -> None:
        """Writes the kept items' values [M, ...] into an array [>= n, width, ...]."""
        n = len(self.lengths)
        if len(values) == n * self.width:  # every list is full, as that of a single candidate always is
            array[:n] = values.reshape(n, self.width, *values.shape[1:])
        else:
            array[self.rows, self.places] = values

    def sum_by_row(self, values: np.ndarray) -> np.ndarray:
        """int64[M] of the kept items -> int64[n]."""
        return np.bincount(self.rows, weights=values, minlength=len(self.lengths)).astype(np.int64)


def _slots(lengths: np.ndarray, width: int, *, newest: bool) -> _Slots:
    """Of longer lists the last `width` items are kept if `newest`, else the first."""
    kept = np.minimum(lengths, width)
    rows = np.repeat(np.arange(len(lengths)), kept)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(kept) - kept, kept)
    sources = None
    if len(rows) != lengths.sum():
        first = np.cumsum(lengths) - (kept if newest else lengths)
        sources = places + np.repeat(first, kept)
    return _Slots(lengths, kept, width, rows, places, sources)


def _common_slots(columns: dict[str, pa.Array], n: int, width: int) -> _Slots:
    """The slots of columns whose lists have one common length in each row; a null list has any length."""
    own = {name: _lengths(values, null=-1) for name, values in columns.items()}
    common = np.full(n, -1, np.int64)
    for lengths in own.values():
        common = np.maximum(common, lengths)
    for name, lengths in own.items():
        different = (lengths != common) & (lengths >= 0)
        if different.any():
            i = int(different.argmax())
            other = next(name for name, lengths in own.items() if lengths[i] == common[i])
            raise BadRecord(f"column '{name}' holds {lengths[i]} values, '{other}' {common[i]}: expected one length", i)
    return _slots(np.maximum(common, 0), width, newest=True)


def _items(values: pa.Array, slots: _Slots, required: bool) -> tuple[pa.Array, _Slots]:
    """A list column's kept items, and their slots: those of the group unless some lists are null."""
    if values.null_count:
        if required:
            _refuse_nulls(values)
        slots = _slots(_lengths(values), slots.width, newest=True)
    return slots.cut(values.flatten()), slots


def _candidate_lengths(lengths: np.ndarray, max_candidates: int) -> np.ndarray:
    bad = (lengths < 1) | (lengths > max_candidates)
    if bad.any():
        i = int(bad.argmax())
        raise BadRecord(f"{lengths[i]} candidates, expected 1..{max_candidates} (dataset.max_candidates)", row=i)
    return lengths


class _Blame:
    """Names the column in a BadRecord that passes, and turns the index of a list item into that of its row."""

    def __init__(self, where: str, slots: _Slots | None = None):
        self._where, self._slots = where, slots

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BadRecord) and error.row is not None:
            row = error.row if self._slots is None else int(self._slots.rows[error.row])
            raise BadRecord(f"{self._where}: {error}" if self._where else str(error), row) from None


def _lengths(lists: pa.ListArray, null: int = 0) -> np.ndarray:
    lengths = np.diff(lists.offsets.to_numpy())
    return np.where(_nulls(lists), null, lengths) if lists.null_count else lengths


def _nulls(values: pa.Array) -> np.ndarray:
    return values.is_null().to_numpy(zero_copy_only=False) if values.null_count else np.zeros(len(values), np.bool_)


def _numbers(values: pa.Array, null: float) -> np.ndarray:
    return (pc.fill_null(values, null) if values.null_count else values).to_numpy()


def _refuse(values: np.ndarray, bad: np.ndarray, why: str) -> None:
    if bad.any():
        i = int(bad.argmax())
        raise BadRecord(f"{values[i]} {why}", row=i)


def _refuse_nulls(values: pa.Array) -> None:
    if values.null_count:
        raise BadRecord("null, and it is required", row=int(_nulls(values).argmax()))


def _floats(values: pa.Array) -> np.ndarray:
    numbers = _numbers(values, 0)
    _refuse(numbers, ~np.isfinite(numbers), "is not finite in float32")
    return numbers


def _one_hot(values: pa.Array, width: int) -> np.ndarray:
    numbers, given = _numbers(values, 0), ~_nulls(values)
    _refuse(numbers, (numbers < 0) | (numbers >= width), f"is outside 0..{width - 1}")
    hot = np.zeros((len(numbers), width), np.float32)
    hot[given, numbers[given]] = 1
    return hot


def _bits(masks: np.ndarray, width: int) -> np.ndarray:
    """int64[N] -> bool[N, width], bit 0 first."""
    _refuse(masks, (masks >> width) != 0, f"sets a bit beyond the {width} actions")
    octets = np.ascontiguousarray(masks, "<i8").view(np.uint8).reshape(len(masks), 8)
    return np.unpackbits(octets, axis=1, count=width, bitorder="little").view(np.bool_)


def _weights(values: pa.Array) -> np.ndarray:
    weights = _numbers(values, 1)
    # 0 marks padding: a row that is not to be trained does not belong in the topic.
    _refuse(weights, ~((weights > 0) & np.isfinite(weights)), "is no weight: expected a finite number above 0")
    return weights


def _event_times(event_times_ms: pa.Array, timestamps_ms: np.ndarray | None) -> np.ndarray | None:
    """int64[n]; a null takes the broker's timestamp, where that is known."""
    if timestamps_ms is not None and event_times_ms.null_count:
        return np.where(_nulls(event_times_ms), timestamps_ms, _numbers(event_times_ms, 0))
    return None if event_times_ms.null_count else _numbers(event_times_ms, 0)
