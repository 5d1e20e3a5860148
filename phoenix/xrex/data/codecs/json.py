"""A message as one JSON object or an array of objects (UTF-8): readable, several times slower than Arrow."""

import json
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from xrex.data.columns import LEAVES, Column, Columns
from xrex.errors import BadRecord

_EXACT_FLOAT = 2.0**53
"""Up to here a float that is a whole number is that number; above, digits of an id may already be lost."""
_PYTHON_TYPES = {"int": {int, float}, "string": {str}, "float": {int, float}, "label": {int, float, bool}}


class JsonCodec:
    """Reads messages by the columns of a config. A message's rows are a list of objects.

    Columns are made for all rows of a batch at once: for each message of one row it would cost ten times more.
    """

    def __init__(self, columns: Columns):
        self._columns = columns
        self._names = frozenset(column.name for column in columns.expected)
        self._must_exist = frozenset(column.name for column in columns.expected if column.must_exist)

    def read(self, value: bytes) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """The rows and the keys that nothing reads. Raises BadRecord."""
        rows = decode(value)
        keys = rows[0].keys() if len(rows) == 1 else set(chain.from_iterable(rows))
        if not keys >= self._must_exist:
            raise BadRecord(f"the column '{min(self._must_exist - keys)}' is missing")
        return rows, () if keys <= self._names else tuple(sorted(keys - self._names))

    def join(self, parts: Sequence[tuple[list[dict[str, Any]], int, int]]) -> pa.RecordBatch:
        """Rows start..stop of each (rows, start, stop), one after the other. A key that a row lacks is null.

        Strict about types: true is no 1 and "8" is no 8, but 4.0 is an int and 1 a float. Raises BadRecord with a row.
        """
        rows = [row for rows, start, stop in parts for row in rows[start:stop]]
        arrays = [_column([row.get(column.name) for row in rows], column) for column in self._columns.expected]
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns.schema)


def encode(batch: pa.RecordBatch) -> bytes:
    """One object for one row, else an array of objects. Raises ValueError for NaN or an infinity, which JSON lacks."""
    rows = batch.to_pylist()
    tree = rows[0] if len(rows) == 1 else rows
    return json.dumps(tree, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def decode(value: bytes) -> list[dict[str, Any]]:
    """The N >= 1 objects of a message. Raises BadRecord; a key that stands twice in an object is no guess of ours."""
    try:
        tree = _DECODER.decode(str(value, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {error}") from None
    rows = tree if isinstance(tree, list) else [tree]
    if not rows:
        raise BadRecord("an empty JSON array, expected at least 1 object")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise BadRecord(f"expected a JSON object, got {_type_name(row)}", row=i)
    return rows


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("an object has two keys of one name")
    return row


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)


class _WrongValueError(Exception):
    """The value at `index` of the list at hand cannot be read."""

    def __init__(self, index: int, reason: str):
        super().__init__(reason)
        self.index = index


def _column(values: list[Any], column: Column) -> pa.Array:
    if column.lifted:
        values = [value if value is None or isinstance(value, list) else [value] for value in values]
    try:
        return _lists(values, column, column.depth)
    except _WrongValueError as wrong:
        raise BadRecord(f"column '{column.name}': {wrong}", row=wrong.index) from None


def _lists(values: list[Any], column: Column, depth: int) -> pa.Array:
    if depth == 0:
        return _leaves(values, column)
    for i, value in enumerate(values):
        if value is not None and not isinstance(value, list):
            raise _WrongValueError(i, f"expected a list, got {_type_name(value)}")
    ends = list(accumulate(0 if value is None else len(value) for value in values))
    try:
        items = _lists(list(chain.from_iterable(value for value in values if value)), column, depth - 1)
    except _WrongValueError as wrong:
        raise _WrongValueError(next(i for i, end in enumerate(ends) if wrong.index < end), str(wrong)) from None
    offsets = pa.array([0, *ends], pa.int32())
    nulls = pa.array([value is None for value in values]) if None in values else None
    return pa.ListArray.from_arrays(offsets, items, mask=nulls)


def _leaves(values: list[Any], column: Column) -> pa.Array:
    types = set(map(type, values)) - {type(None)}
    allowed = _PYTHON_TYPES[column.kind]
    if not types <= allowed:
        i = next(i for i, value in enumerate(values) if value is not None and type(value) not in allowed)
        raise _WrongValueError(i, f"expected {_expected(column)}, got {_type_name(values[i])}")
    if column.kind == "int" and float in types:
        values = [_whole(i, value) if type(value) is float else value for i, value in enumerate(values)]
    elif column.kind in ("float", "label") and types - {float}:
        values = [None if value is None else _as_float(i, value) for i, value in enumerate(values)]
    leaf = LEAVES[column.kind]
    try:
        return pa.array(values, leaf)
    except (OverflowError, ValueError):
        i = next(i for i, value in enumerate(values) if not _fits(value, leaf))
        why = "the integer has more than 64 bits" if column.kind == "int" else "the text is not Unicode"
        raise _WrongValueError(i, why) from None


def _whole(i: int, value: float) -> int:
    if not (abs(value) <= _EXACT_FLOAT and value.is_integer()):
        raise _WrongValueError(i, f"expected an integer, got {value!r}")
    return int(value)


def _as_float(i: int, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _WrongValueError(i, "the number is beyond float32") from None


def _fits(value: Any, arrow_type: pa.DataType) -> bool:
    try:
        pa.array([value], arrow_type)
    except (OverflowError, ValueError):
        return False
    return True


def _expected(column: Column) -> str:
    return {"int": "an integer", "string": "a string", "float": "a number", "label": "0, 1 or a boolean"}[column.kind]


def _type_name(value: Any) -> str:
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names[type(value)]
