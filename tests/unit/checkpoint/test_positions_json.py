import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xrex.checkpoint import positions
from xrex.errors import CheckpointError
from xrex.schema.positions import PartitionPosition, TopicPositions

TEXT = """\
{
  "version": 1,
  "topics": [
    {
      "topic": "clicks",
      "topic_id": "id-1",
      "partitions": {
        "2": {
          "offset": 9007199254740993,
          "row": 3,
          "timestamp_ms": 1700000000000,
          "fingerprint": "00ff00ff00ff00ff",
          "fingerprint_offset": 9007199254740992,
          "end_offset": null
        },
        "10": {
          "offset": 0,
          "row": 0,
          "timestamp_ms": null,
          "fingerprint": null,
          "fingerprint_offset": null,
          "end_offset": 500
        }
      }
    }
  ]
}
"""
TOPIC = TopicPositions(
    "clicks",
    "id-1",
    {
        10: PartitionPosition(0, end_offset=500),
        2: PartitionPosition(2**53 + 1, 3, 1_700_000_000_000, "00ff00ff00ff00ff", 2**53, None),
    },
)


def test_positions_are_written_in_the_contracts_format():
    assert positions.to_json({"clicks": TOPIC}) == TEXT


def test_positions_are_read_exactly():
    assert positions.from_json(TEXT) == {"clicks": TOPIC}


_offsets = st.integers(0, 2**63 - 1)
_trained = st.builds(
    PartitionPosition,
    offset=_offsets,
    row=st.integers(0, 2**31),
    timestamp_ms=st.integers(-1, 2**62),
    fingerprint=st.integers(0, 2**64 - 1).map(lambda x: f"{x:016x}"),
    fingerprint_offset=_offsets,
    end_offset=st.none() | _offsets,
)
_untouched = st.builds(PartitionPosition, offset=_offsets, end_offset=st.none() | _offsets)
_partitions = st.dictionaries(st.integers(0, 5000), _trained | _untouched)


@given(_partitions, st.none() | st.text())
def test_reading_what_was_written_gives_it_back(partitions, topic_id):
    topics = {"t": TopicPositions("t", topic_id, partitions), "u": TopicPositions("u", None, {})}
    assert positions.from_json(positions.to_json(topics)) == topics


def _changed(path, value):
    document = json.loads(TEXT)
    node = document
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return json.dumps(document)


_P2 = ["topics", 0, "partitions", "2"]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["version"], 2, "version = 2: expected 1"),
        (["version"], True, "version = True: expected 1"),
        (["version"], ..., "version = nothing"),
        (["topics"], {}, "topics = {}: expected a list"),
        (["topics", 0, "topic"], "", "topics[0].topic = ''"),
        (["topics", 0, "topic_id"], 5, "topics[0].topic_id = 5"),
        (["topics", 0, "partitions"], [], "topics[0].partitions = []"),
        (["topics", 0, "partitions", "02"], {}, "topics[0].partitions = '02'"),
        (["topics", 0, "extra"], 1, "topics[0].extra = 1: expected no such field"),
        ([*_P2, "offset"], -1, "topics[0].partitions.2.offset = -1: expected an integer >= 0"),
        ([*_P2, "offset"], 1.0, "topics[0].partitions.2.offset = 1.0"),
        ([*_P2, "offset"], "7", "topics[0].partitions.2.offset = '7'"),
        ([*_P2, "offset"], True, "topics[0].partitions.2.offset = True"),
        ([*_P2, "offset"], ..., "topics[0].partitions.2.offset = nothing"),
        ([*_P2, "row"], None, "topics[0].partitions.2.row = None"),
        ([*_P2, "timestamp_ms"], "now", "topics[0].partitions.2.timestamp_ms = 'now'"),
        ([*_P2, "fingerprint"], "00FF00FF00FF00FF", "topics[0].partitions.2.fingerprint = '00FF00FF00FF00FF'"),
        ([*_P2, "fingerprint"], None, "topics[0].partitions.2.fingerprint_offset = 9007199254740992: expected set tog"),
        ([*_P2, "end_offset"], 1.5, "topics[0].partitions.2.end_offset = 1.5"),
    ],
)
def test_a_wrong_value_is_an_error_naming_file_and_field(path, value, says):
    with pytest.raises(CheckpointError) as error:
        positions.from_json(_changed(path, value), "20/positions.json")
    assert str(error.value).startswith(f"20/positions.json: {says}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", TEXT.replace('"10"', '"2"'), TEXT[: len(TEXT) // 2], b"\xff\xfe", "[" * 100_000]
)
def test_a_broken_file_is_an_error_naming_it(text):
    with pytest.raises(CheckpointError, match=r"^20/positions\.json: "):
        positions.from_json(text, "20/positions.json")


def test_a_topic_stands_once():
    document = json.loads(TEXT)
    document["topics"] *= 2
    with pytest.raises(CheckpointError, match="each topic once"):
        positions.from_json(json.dumps(document))


def test_merging_keeps_every_partition_of_every_process():
    parts = [TopicPositions("t", None, {p: PartitionPosition(10 * p)}) for p in range(5)]
    merged = positions.merge(
        [*parts, TopicPositions("t", "id", {}), TopicPositions("u", None, {0: PartitionPosition(1)})]
    )
    assert merged == {
        "t": TopicPositions("t", "id", {p: PartitionPosition(10 * p) for p in range(5)}),
        "u": TopicPositions("u", None, {0: PartitionPosition(1)}),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_copies_of_a_partition_the_furthest_stands(order):
    old = TopicPositions("t", None, {0: PartitionPosition(5, 2), 1: PartitionPosition(8, 0)})
    new = TopicPositions("t", None, {0: PartitionPosition(5, 3)})
    merged = positions.merge([old, new][::order])
    assert merged["t"].partitions == {0: PartitionPosition(5, 3), 1: PartitionPosition(8, 0)}


def test_two_ids_of_one_topic_do_not_merge():
    with pytest.raises(CheckpointError, match="'t' has id a on one process and b on another"):
        positions.merge([TopicPositions("t", "a"), TopicPositions("t", "b")])
