"""The columns that a config reads, and how a decoded message is brought to them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from xrex.data.config import DatasetConfig
from xrex.errors import BadRecord
from xrex.schema.specs import FeatureSpec

WEIGHT = "weight"
EVENT_TIME = "event_time_ms"
LEAVES = {"int": pa.int64(), "string": pa.string(), "float": pa.float32(), "label": pa.float32()}
"""Kind of a column -> type of its values once read."""


@dataclass(frozen=True)
class Column:
    """A column of the row, as the config expects it."""

    name: str
    kind: Literal["int", "string", "float", "label"]
    """What its values are; a `label` may come as a boolean, an integer or a float."""
    depth: int
    """0 a scalar, 1 a list, 2 a list of lists."""
    must_exist: bool
    """A message without the column is bad."""
    lifted: bool = False
    """A scalar is a list of one (candidate columns of depth 1)."""

    @property
    def type(self) -> pa.DataType:
        """Its Arrow type once read."""
        arrow_type = LEAVES[self.kind]
        for _ in range(self.depth):
            arrow_type = pa.list_(arrow_type)
        return arrow_type


def reference_column(name: str, action: str) -> str:
    """Column that holds another predictor's probabilities of an action."""
    return f"reference_{name}_{action}"


def columns_of(config: DatasetConfig) -> tuple[Column, ...]:
    """The columns that this config reads, each once."""
    found: dict[str, Column] = {}
    for column in _uses(config):
        other = found.setdefault(column.name, column)
        if other != column:  # e.g. an id and a float feature of one integer column
            kind = column.kind if other.kind == "float" else other.kind
            found[column.name] = replace(other, kind=kind, must_exist=other.must_exist or column.must_exist)
    return tuple(found.values())


def _uses(config: DatasetConfig) -> Iterator[Column]:
    yield from map(_feature_column, config.features)
    if config.history_actions_column is not None:
        yield Column(config.history_actions_column, "int", 1, must_exist=True)
    for action in config.actions:
        yield Column(action, "label", 1, must_exist=True, lifted=True)
        for name in config.references:
            yield Column(reference_column(name, action), "float", 1, must_exist=False, lifted=True)
    yield Column(WEIGHT, "float", 0, must_exist=False)
    yield Column(EVENT_TIME, "int", 0, must_exist=False)


def _feature_column(feature: FeatureSpec) -> Column:
    kind = "float" if feature.kind == "float" else "string" if feature.id_type == "string" else "int"
    depth = (feature.group != "user") + (feature.kind == "ids")
    return Column(
        feature.column, kind, depth, feature.required, lifted=feature.group == "candidate" and feature.kind != "ids"
    )


Convert = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, eq=False)
class Plan:
    """How rows of one Arrow schema are brought to the columns of a config."""

    steps: tuple[tuple[Column, int, Convert | None], ...]
    """Each column with its place among those of the rows (-1: missing) and its conversion."""
    extra: tuple[str, ...]
    """Columns that nothing reads."""
    has_dictionaries: bool
    """Dictionaries differ from message to message even where the schema is one."""


class Columns:
    """Brings decoded messages to the columns and types of a config. Remembers the plan of the newest schema."""

    def __init__(self, config: DatasetConfig):
        self.expected = columns_of(config)
        self.schema = pa.schema([(column.name, column.type) for column in self.expected])
        self._newest: tuple[pa.Schema, Plan] | None = None

    def check(self, rows: pa.RecordBatch, plan: Plan | None = None) -> pa.RecordBatch:
        """The rows with exactly the columns of `schema`; an optional column that is missing is all null.

        Raises BadRecord for a column that is missing, there twice, or of another type, and, with its row, for an unsigned
        number beyond int64. Other values are not looked at.
        """
        plan = plan or self.plan(rows.schema)
        arrays = [self._read(rows, *step) for step in plan.steps]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def plan(self, schema: pa.Schema) -> Plan:
        """The plan for rows of this schema, the same object for messages of one schema in a row. Raises BadRecord."""
        if self._newest is None or not schema.equals(self._newest[0]):
            self._newest = (schema, self._plan_for(schema))
        return self._newest[1]

    def _plan_for(self, schema: pa.Schema) -> Plan:
        steps = []
        for column in self.expected:
            at = schema.get_all_field_indices(column.name)
            if len(at) > 1:
                raise BadRecord(f"the column '{column.name}' is there {len(at)} times")
            if not at and column.must_exist:
                raise BadRecord(f"the column '{column.name}' is missing")
            steps.append((column, at[0], _conversion(column, schema.field(at[0]).type)) if at else (column, -1, None))
        extra = sorted(set(schema.names) - set(self.schema.names))
        return Plan(tuple(steps), tuple(extra), any(map(_holds_dictionary, schema.types)))

    @staticmethod
    def _read(rows: pa.RecordBatch, column: Column, at: int, convert: Convert | None) -> pa.Array:
        if at < 0:
            return pa.nulls(rows.num_rows, column.type)
        if convert is None:
            return rows.column(at)
        values = rows.column(at)
        try:
            return convert(values)
        except pa.ArrowInvalid:  # an unsigned number beyond int64
            for row in range(len(values)):
                try:
                    convert(values.slice(row, 1))
                except pa.ArrowInvalid as error:
                    raise BadRecord(f"column '{column.name}': {error}", row) from None
            raise


def _conversion(column: Column, arrow_type: pa.DataType) -> Convert | None:
    """How an array of the type becomes one of column.type; None: it is one. Raises BadRecord where none is meant."""
    if arrow_type == column.type:
        return None
    depth, leaf = 0, arrow_type
    while pt.is_list(leaf) or pt.is_large_list(leaf) or pt.is_fixed_size_list(leaf):
        depth, leaf = depth + 1, leaf.value_type
    lift = column.lifted and depth == 0
    if not (depth == column.depth or lift or pt.is_null(arrow_type)) or not _is_kind(column.kind, leaf):
        raise BadRecord(f"column '{column.name}' is {arrow_type}, expected {column.type}")

    def convert(values: pa.Array) -> pa.Array:
        if lift and not pt.is_null(arrow_type):
            values = pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32), values)
        # A float may be rounded, an integer may not: an id that does not fit is no id.
        return pc.cast(values, column.type, safe=column.kind in ("int", "string"))

    return convert


def _holds_dictionary(arrow_type: pa.DataType) -> bool:
    if pt.is_dictionary(arrow_type):
        return True
    return any(_holds_dictionary(arrow_type.field(i).type) for i in range(arrow_type.num_fields))


def _is_kind(kind: str, leaf: pa.DataType) -> bool:
    if pt.is_null(leaf):
        return True
    if kind == "string":
        text = leaf.value_type if pt.is_dictionary(leaf) else leaf
        return pt.is_string(text) or pt.is_large_string(text)
    if kind == "int":
        return pt.is_integer(leaf)
    return pt.is_integer(leaf) or pt.is_floating(leaf) or (kind == "label" and pt.is_boolean(leaf))
