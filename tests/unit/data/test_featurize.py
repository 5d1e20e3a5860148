import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_log import small_config

from xrex.data.codecs import arrow
from xrex.data.codecs.base import codec_of
from xrex.data.columns import Columns
from xrex.data.config import DatasetConfig
from xrex.data.featurize import Featurizer, example_batch
from xrex.data.hashing import rows_of
from xrex.errors import BadRecord, ConfigError
from xrex.schema.specs import FeatureSpec, TableSpec

FIXTURES = Path(__file__).parents[2] / "fixtures"
H, C, B = 3, 4, 6


def feature(name, group, column, kind="id", **given) -> FeatureSpec:
    table = {"table": given.pop("table", "items")} if kind in ("id", "ids") else {}
    return FeatureSpec(name=name, group=group, column=column, kind=kind, **table, **given)


FEATURES = (
    feature("user", "user", "user_id"),
    feature("langs", "user", "langs", "ids", max_values=2, table="two", id_type="string", required=False),
    feature("age", "user", "age", "float", required=False),
    feature("country", "user", "country", "one_hot", max_values=3, required=False),
    feature("h_item", "history", "h_item"),
    feature("h_tags", "history", "h_tags", "ids", max_values=2, table="two", required=False),
    feature("h_dwell", "history", "h_dwell", "float", required=False),
    feature("h_mask", "history", "actions", table="direct"),
    feature("item", "candidate", "item"),
    feature("name", "candidate", "name", id_type="string", table="two", required=False),
    feature("slot", "candidate", "slot", "one_hot", max_values=4),
    feature("tags", "candidate", "tags", "ids", max_values=3, required=False),
)
TABLES = (
    TableSpec(name="items", num_embeddings=1_000, embedding_dim=4, salts=(7,)),
    TableSpec(name="two", num_embeddings=500, embedding_dim=4, salts=(1, 2)),
    TableSpec(name="direct", num_embeddings=8, embedding_dim=4, salts=()),
)


def rich_config(**changes) -> DatasetConfig:
    given = {
        "tables": TABLES,
        "features": FEATURES,
        "actions": ("click", "like"),
        "max_history": H,
        "max_candidates": C,
    }
    given |= {"history_actions_column": "actions", "references": ("old",)}
    return small_config(**given | changes)


INT = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(-1e6, 1e6, width=32)
TEXT = st.text("abc", max_size=2)


@st.composite
def rows(draw):
    h, c = draw(st.integers(0, 5)), draw(st.integers(1, C))

    def items(value, n, null=None):
        lists = st.lists(value, min_size=n, max_size=n)
        return draw(lists if null is None else null | lists)

    null = st.none()
    bit = null | st.integers(0, 1)
    return {
        "user_id": draw(INT),
        "langs": draw(null | st.lists(null | TEXT, max_size=4)),
        "age": draw(null | FLOAT),
        "country": draw(null | st.integers(0, 2)),
        "h_item": items(INT, h),
        "h_tags": items(null | st.lists(null | INT, max_size=3), h, null),
        "h_dwell": items(null | FLOAT, h, null),
        "actions": items(st.integers(0, 3), h),
        "item": items(INT, c),
        "name": items(null | TEXT, c, null),
        "slot": items(st.integers(0, 3), c),
        "tags": items(null | st.lists(INT, max_size=4), c, null),
        "click": items(bit, c, null),
        "like": items(bit, c, null),
        "reference_old_click": items(null | st.floats(0, 1, width=32), c, null),
        "weight": draw(null | st.floats(0.125, 8, width=32)),
        "event_time_ms": draw(null | st.integers(0, 10**12)),
    }


def row_numbers(feature: FeatureSpec, value) -> list[int]:
    table = next(table for table in TABLES if table.name == feature.table)
    if value is None:
        return [-1] * table.num_hashes
    if feature.id_type == "string":
        value = np.uint64(xxhash.xxh64_intdigest(value.encode())).astype(np.int64)
    return rows_of(np.array([value], np.int64), table)[0].tolist()


def encoded(feature: FeatureSpec, value):
    """What one user, event or candidate gives: the specification, one value at a time."""
    if feature.kind == "id":
        return row_numbers(feature, value)
    if feature.kind == "ids":
        padding = [None] * feature.max_values
        kept = [*(value or []), *padding][: feature.max_values]
        return [row for one in kept for row in row_numbers(feature, one)]
    if feature.kind == "float":
        return 0 if value is None else value
    return [float(value == i) for i in range(feature.max_values)]


def expected_batch(config: DatasetConfig, rows: Sequence[dict]) -> dict[str, np.ndarray]:
    batch = example_batch(config, B)
    groups = {"user": batch.user, "history": batch.history, "candidate": batch.candidates}
    for r, row in enumerate(rows):
        batch.weight[r] = 1 if row["weight"] is None else row["weight"]
        batch.history_length[r] = min(len(row["h_item"]), H)
        batch.candidate_length[r] = len(row["item"])
        for f in config.features:
            values, out = row[f.column], groups[f.group][f.name]
            if f.group == "user":
                out[r] = encoded(f, values)
            for i, value in enumerate((values or [])[-H if f.group == "history" else 0 :] if f.group != "user" else []):
                out[r, i] = encoded(f, value)
        for i, mask in enumerate(row["actions"][-H:]):
            batch.history_actions[r, i] = [bool(mask & 1), bool(mask & 2)]
        for a, action in enumerate(config.actions):
            for i, label in enumerate(row[action] or []):
                batch.labels[r, i, a] = label or 0
                batch.label_mask[r, i, a] = label is not None
    return flat(batch)


def flat(batch) -> dict[str, np.ndarray]:
    arrays = {}
    for key, value in batch._asdict().items():
        arrays |= {f"{key}.{name}": array for name, array in value.items()} if isinstance(value, dict) else {key: value}
    return arrays


def assert_batches_equal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name, strict=True)


def as_arrow(config: DatasetConfig, rows: Sequence[dict]) -> pa.RecordBatch:
    schema = Columns(config).schema
    return pa.RecordBatch.from_arrays([pa.array([r.get(f.name) for r in rows], f.type) for f in schema], schema=schema)


def featurized(config: DatasetConfig, rows: Sequence[dict], start=0, batch_rows=B):
    value = arrow.encode(as_arrow(config, rows)) if config.codec == "arrow" else json.dumps(list(rows)).encode()
    codec = codec_of(config)
    read, _ = codec.read(value)
    return Featurizer(config).featurize(
        codec.join([(read, start, len(rows))]), batch_rows, np.full(len(rows) - start, 5)
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=B), st.integers(0, B - 1), st.sampled_from(["arrow", "json"]))
def test_a_batch_is_what_a_loop_over_rows_would_make(rows, start, codec):
    start = min(start, len(rows) - 1)
    config = rich_config(codec=codec)
    features = featurized(config, rows, start)
    assert_batches_equal(flat(features.batch), expected_batch(config, rows[start:]))
    times = [5 if row["event_time_ms"] is None else row["event_time_ms"] for row in rows[start:]]
    assert features.newest_event_ms == max(times)
    want = np.full((B, C, 2), np.nan, np.float32)
    for r, row in enumerate(rows[start:]):
        want[r, : len(row["reference_old_click"] or []), 0] = row["reference_old_click"] or []
    np.testing.assert_array_equal(features.references["old"], want)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(rows(), min_size=1, max_size=2), min_size=1, max_size=3), st.sampled_from(["arrow", "json"]))
def test_rows_of_several_messages_join_into_the_batch_of_one(messages, codec):
    config = rich_config(codec=codec)
    rows = [row for message in messages for row in message]
    encode = {"arrow": lambda m: arrow.encode(as_arrow(config, m)), "json": lambda m: json.dumps(m).encode()}[codec]
    reader = codec_of(config)
    parts = [(reader.read(encode(message))[0], 0, len(message)) for message in messages]
    joined = Featurizer(config).featurize(reader.join(parts), B)
    assert_batches_equal(flat(joined.batch), flat(featurized(config, rows).batch))


def test_the_golden_row_gives_the_golden_batch():
    golden = json.loads((FIXTURES / "batch_golden.json").read_text())
    config = DatasetConfig.from_json(golden["config"])
    codec = codec_of(config)
    rows, _ = codec.read(json.dumps(golden["rows"]).encode())
    batch = Featurizer(config).featurize(codec.join([(rows, 0, len(rows))]), golden["batch_rows"]).batch
    got = {name: {"dtype": str(array.dtype), "values": array.tolist()} for name, array in flat(batch).items()}
    assert got == golden["batch"]


GOOD = {
    "user_id": 1, "langs": ["en"], "age": 30.0, "country": 1,
    "h_item": [1, 2], "h_tags": [[1], []], "h_dwell": [0.5, 1.0], "actions": [0, 3],
    "item": [8, 9], "name": ["a", "b"], "slot": [0, 3], "tags": [[], [1]], "click": [0, 1], "like": [None, 1],
    "reference_old_click": [0.5, None], "weight": 1.0, "event_time_ms": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("user_id", None, "feature 'user' (column 'user_id'): null, and it is required"),
        ("h_item", [1, None], "feature 'h_item' (column 'h_item'): null, and it is required"),
        ("h_item", None, "feature 'h_item' (column 'h_item'): null, and it is required"),
        ("h_item", [1, 2, 3], "column 'h_tags' holds 2 values, 'h_item' 3: expected one length"),
        ("click", [1], "column 'click' holds 1 values, 'item' 2: expected one length"),
        ("click", [0, 0.5], "label 'click': 0.5 is neither 0 nor 1"),
        ("like", [2, None], "label 'like': 2.0 is neither 0 nor 1"),
        ("age", float("inf"), "feature 'age' (column 'age'): inf is not finite in float32"),
        ("age", 1e300, "feature 'age' (column 'age'): inf is not finite in float32"),
        ("h_dwell", [0.0, float("nan")], "feature 'h_dwell' (column 'h_dwell'): nan is not finite in float32"),
        ("country", 3, "feature 'country' (column 'country'): 3 is outside 0..2"),
        ("slot", [0, -1], "feature 'slot' (column 'slot'): -1 is outside 0..3"),
        (
            "actions",
            [0, 8],
            "feature 'h_mask' (column 'actions'): id 8 is outside the directly indexed table 'direct' (0..7)",
        ),
        ("actions", [0, 4], "column 'actions': 4 sets a bit beyond the 2 actions"),
        ("reference_old_click", [0.5, 1.5], "column 'reference_old_click': 1.5 is no probability"),
        ("weight", 0.0, "column 'weight': 0.0 is no weight: expected a finite number above 0"),
        ("weight", float("nan"), "column 'weight': nan is no weight: expected a finite number above 0"),
    ],
)
def test_a_bad_value_is_named_with_its_row(column, value, reason):
    rows = [GOOD, GOOD, GOOD | {column: value}, GOOD]
    with pytest.raises(BadRecord) as raised:
        featurized(rich_config(codec="arrow"), rows)
    assert (str(raised.value), raised.value.row) == (reason, 2)


@pytest.mark.parametrize(("candidates", "reason"), [(0, "0 candidates"), (5, "5 candidates")])
def test_a_row_has_one_to_max_candidates_candidates(candidates, reason):
    fitted = {name: ([GOOD[name][0]] * candidates) for name in ("item", "name", "slot", "tags", "click", "like")}
    row = GOOD | fitted | {"reference_old_click": None}
    with pytest.raises(BadRecord, match=reason + r", expected 1..4 \(dataset.max_candidates\)"):
        featurized(rich_config(), [row])


def test_of_several_bad_rows_the_first_is_named_whatever_its_column():
    rows = [GOOD, GOOD | {"weight": -1.0}, GOOD | {"like": [2, 2]}, GOOD | {"user_id": None}]
    with pytest.raises(BadRecord, match="column 'weight': -1") as raised:
        featurized(rich_config(codec="arrow"), rows)
    assert raised.value.row == 1


def test_a_label_column_may_be_a_scalar_a_boolean_or_missing_in_single_rows():
    config = small_config()
    row = {"user_id": 1, "item_id": 2, "author_id": 3, "history": []}
    batch = featurized(config, [row | {"label": 1}, row | {"label": [True]}, row | {"label": None}, row]).batch
    assert batch.labels[:4, 0, 0].tolist() == [1, 1, 0, 0]
    assert batch.label_mask[:4, 0, 0].tolist() == [True, True, False, False]


def test_an_id_outside_a_table_with_an_oov_row_is_counted_and_does_not_wrap():
    direct = TableSpec(name="items", num_embeddings=1_000, embedding_dim=4, salts=(), oov="row")
    config = small_config(tables=(direct,), features=(feature("item", "candidate", "item_id"),))
    rows = [{"item_id": i, "label": 0} for i in (-1, 1_000, 2**31, -(2**63), 1, 2)]
    features = featurized(config, rows)
    assert features.batch.candidates["item"][:, 0, 0].tolist() == [999, 999, 999, 999, 1, 2]
    assert features.noted == {"oov.item": 4}


def test_a_longer_history_limit_only_adds_padding():
    rows = [GOOD, GOOD | {"h_item": [], "h_tags": None, "h_dwell": None, "actions": []}]
    short, long = (featurized(rich_config(max_history=n), rows).batch for n in (3, 5))
    for name, array in short.history.items():
        padding = 0 if array.dtype == np.float32 else -1
        np.testing.assert_array_equal(long.history[name][:, :3], array)
        assert (long.history[name][:, 3:] == padding).all()
    assert short.history_length.tolist() == long.history_length.tolist() == [2, 0, 0, 0, 0, 0]


def test_an_example_batch_is_all_padding_in_the_shapes_of_every_batch():
    config = rich_config()
    example, real = flat(example_batch(config, B)), flat(featurized(config, [GOOD]).batch)
    for name, array in real.items():
        assert (example[name].shape, example[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_array_equal(example[name][1:], array[1:], err_msg=name)  # row 0 is the only real one
    assert example["weight"].sum() == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": (*FEATURES, feature("x", "user", "x", table="nowhere"))}, "feature 'x': table = 'nowhere'"),
        ({"features": (*FEATURES, feature("x", "candidate", "click", "float"))}, "would tell the model the answer; remove the feature"),
        ({"features": (*FEATURES, feature("x", "candidate", "user_id"))}, "'user' and 'x' read the column 'user_id' in two ways; give both"),
        ({"features": (*FEATURES, feature("user", "user", "other"))}, "features: the name 'user' is given twice; rename one"),
        ({"features": (*FEATURES, feature("x", "user", "weight", "float"))}, "is the row's own, not an input; remove the feature"),
        ({"features": (*FEATURES, feature("x", "user", "x", "float", table="direct"))}, "a float feature has no table; remove table"),
        ({"tables": (TableSpec(name="t", num_embeddings=1, embedding_dim=1, salts=(0, -1)),)}, "'t': the salt -1 is no unsigned"),
        ({"features": (*FEATURES, feature("x", "user", "s", id_type="string", table="direct"))}, "string ids are hashes.*; give the table salts"),
        ({"actions": ("click", "click")}, "actions: the name 'click' is given twice; rename one"),
    ],
)  # fmt: skip
def test_a_config_that_contradicts_itself_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        rich_config(**changes)
