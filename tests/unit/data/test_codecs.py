import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_log import small_config

from xrex.data.codecs import arrow
from xrex.data.codecs import json as json_codec
from xrex.data.codecs.base import codec_of, encoder_of
from xrex.errors import BadRecord
from xrex.schema.specs import FeatureSpec

ROW = {"user_id": 1, "item_id": [2, 3], "author_id": [4, 5], "history": [6], "label": [0, 1]}
SEVERAL = {"max_candidates": 2}


def table(rows: list[dict], **types) -> pa.RecordBatch:
    schema = {"user_id": pa.int64(), "item_id": pa.list_(pa.int64()), "author_id": pa.list_(pa.int64())}
    schema |= {"history": pa.list_(pa.int64()), "label": pa.list_(pa.bool_())} | types
    rows = [row | {"label": None if row["label"] is None else [bool(v) for v in row["label"]]} for row in rows]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(schema))


def read(value: bytes, **changes) -> list[dict]:
    """The rows of a message as Python objects, optional columns that hold nothing left out."""
    codec = codec_of(small_config(**SEVERAL | changes))
    rows, _ = codec.read(value)
    joined = codec.join([(rows, 0, len(rows))])
    return [{k: v for k, v in row.items() if k not in ("weight", "event_time_ms")} for row in joined.to_pylist()]


@pytest.mark.parametrize("codec", ["arrow", "json"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_message_holds_the_rows_that_were_encoded(codec, rows):
    batch = table([ROW | {"user_id": i} for i in range(rows)])
    assert read(encoder_of(codec)(batch), codec=codec) == [ROW | {"user_id": i} for i in range(rows)]


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_a_candidate_scalar_is_a_list_of_one(codec):
    scalars = pa.RecordBatch.from_pylist([{"user_id": 1, "item_id": 2, "author_id": 4, "history": [6], "label": 1}])
    assert read(encoder_of(codec)(scalars), codec=codec) == [ROW | {"item_id": [2], "author_id": [4], "label": [1]}]


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_a_missing_column_is_a_bad_record_and_an_extra_one_is_told(codec):
    batch = table([ROW, ROW])
    reader = codec_of(small_config(**SEVERAL, codec=codec))
    with pytest.raises(BadRecord, match="the column 'item_id' is missing"):
        reader.read(encoder_of(codec)(batch.drop_columns(["item_id"])))
    _, extra = reader.read(
        encoder_of(codec)(batch.append_column("zip", pa.array([1, 2])).append_column("a", pa.array([1, 2])))
    )
    assert extra == ("a", "zip")


# Arrow: types are looked at, values are cast without loss.


@pytest.mark.parametrize(
    ("column", "given", "words"),
    [
        ("user_id", pa.array([1.0]), "column 'user_id' is double, expected int64"),
        ("user_id", pa.array([True]), "column 'user_id' is bool, expected int64"),
        ("user_id", pa.array(["8"]), "column 'user_id' is string, expected int64"),
        ("user_id", pa.array([[1]]), r"column 'user_id' is list<item: int64>, expected int64"),
        ("history", pa.array([1]), "column 'history' is int64, expected list"),
        ("user_id", pa.array([2**63], pa.uint64()), "column 'user_id': Integer value 9223372036854775808 not in range"),
        ("label", pa.array(["1"]), "column 'label' is string"),
    ],
)
def test_an_arrow_column_of_another_type_is_a_bad_record(column, given, words):
    batch = table([ROW])
    changed = batch.set_column(batch.schema.get_field_index(column), column, given)
    with pytest.raises(BadRecord, match=words):
        read(arrow.encode(changed), codec="arrow")


@pytest.mark.parametrize(
    "given",
    [
        pa.array([[6]], pa.list_(pa.int8())),
        pa.array([[6]], pa.large_list(pa.uint32())),
        pa.array([[6]], pa.list_(pa.int64(), 1)),
        pa.array([[9], [6]], pa.list_(pa.field("element", pa.int64(), nullable=False))).slice(1),
    ],
)
def test_every_arrow_list_of_integers_is_a_list_of_int64(given):
    batch = table([ROW])
    changed = batch.set_column(batch.schema.get_field_index("history"), "history", given)
    assert read(arrow.encode(changed), codec="arrow") == [ROW]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_string_ids_come_in_every_arrow_form_of_text(text):
    features = (FeatureSpec(name="u", group="user", column="user", id_type="string", table="users"),)
    batch = pa.record_batch({"user": pa.array(["a", None], text), "label": [1, 0]})
    assert read(arrow.encode(batch), codec="arrow", features=features) == [
        {"user": "a", "label": [1.0]},
        {"user": None, "label": [0.0]},
    ]


def stream_of(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table([ROW]).schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not an Arrow IPC stream"),
        (b"\xff\xfe\x00not-an-event", "not an Arrow IPC stream"),
        (stream_of(table([ROW]))[:-200], "not an Arrow IPC stream"),
        (stream_of(), "an Arrow stream of 0 record batches, expected exactly 1"),
        (stream_of(table([ROW]), table([ROW])), "an Arrow stream of 2 record batches, expected exactly 1"),
        (stream_of(table([])), "a record batch of 0 rows, expected at least 1"),
    ],
)
def test_an_arrow_value_is_one_stream_of_one_batch_with_rows(value, words):
    with pytest.raises(BadRecord, match=words):
        arrow.decode(value)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_flipped_byte_in_an_arrow_message_is_a_bad_record_or_other_rows_never_a_crash(at, byte):
    value = bytearray(arrow.encode(table([ROW, ROW | {"history": [1, 2, 3]}])))
    value[at % len(value)] = byte
    try:
        rows = read(bytes(value), codec="arrow")
    except BadRecord:
        return
    assert len(rows) >= 1


# JSON: strict about types, lenient about 4.0 and 1.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user_id": True}, "column 'user_id': expected an integer, got a boolean"),
        ({"user_id": "8"}, "column 'user_id': expected an integer, got a string"),
        ({"user_id": 4.5}, "column 'user_id': expected an integer, got 4.5"),
        ({"user_id": 1e17}, r"column 'user_id': expected an integer, got 1e\+17"),
        ({"user_id": 2**63}, "column 'user_id': the integer has more than 64 bits"),
        ({"user_id": [1]}, "column 'user_id': expected an integer, got a list"),
        ({"history": 6}, "column 'history': expected a list, got an integer"),
        ({"history": [6, {}]}, "column 'history': expected an integer, got an object"),
        ({"label": ["1"]}, "column 'label': expected 0, 1 or a boolean, got a string"),
    ],
)
def test_a_json_value_of_another_type_is_a_bad_record_with_its_row(changes, words):
    with pytest.raises(BadRecord, match=words) as raised:
        read(json.dumps([ROW, ROW | changes]).encode())
    assert raised.value.row == 1


def test_json_takes_4_0_for_an_integer_and_1_for_a_float():
    features = (
        FeatureSpec(name="u", group="user", column="u", table="users"),
        FeatureSpec(name="f", group="user", column="f", kind="float"),
    )
    rows = read(
        b'[{"u": 4.0, "f": 1, "label": 1}, {"u": 9007199254740993, "f": 0.5, "label": true}]', features=features
    )
    assert rows == [{"u": 4, "f": 1.0, "label": [1.0]}, {"u": 9007199254740993, "f": 0.5, "label": [1.0]}]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00not-an-event", "not JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"{", "not JSON"),
        (b'{"a": 1, "a": 2}', "not JSON: an object has two keys of one name"),
        (b'{"a": NaN}', "not JSON: NaN is no JSON number"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "an empty JSON array, expected at least 1 object"),
        (b"[{}, 3]", "expected a JSON object, got an integer"),
        (b'"text"', "expected a JSON object, got a string"),
    ],
)
def test_a_json_value_is_an_object_or_an_array_of_objects(value, words):
    with pytest.raises(BadRecord, match=words):
        json_codec.decode(value)


def test_json_text_that_is_no_unicode_is_a_bad_record():
    features = (FeatureSpec(name="u", group="user", column="user", id_type="string", table="users"),)
    with pytest.raises(BadRecord, match="column 'user': the text is not Unicode"):
        read(b'{"user": "\\ud800", "label": 1}', features=features)


def test_a_decoder_that_runs_out_of_memory_is_no_bad_record(monkeypatch):
    def exhausted(value):
        raise pa.ArrowMemoryError("malloc of 1 TB failed")

    monkeypatch.setattr(arrow.pa, "RecordBatchStreamReader", exhausted)
    with pytest.raises(MemoryError):
        arrow.decode(b"x")
