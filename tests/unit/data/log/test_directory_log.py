"""A topic as a folder: what is on disk, and what a damaged or unfinished file does."""

import json
import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrex.data.log.directory import SCHEMA, DirectorySource, DirectoryTopicWriter
from xrex.errors import ConfigError, LogError, RunError, TopicMissing


@pytest.fixture
def writer(tmp_path: Path):
    writer = DirectoryTopicWriter(tmp_path, "events", 2)
    yield writer
    writer.close()


def log_file(tmp_path: Path, first: int = 0) -> Path:
    return tmp_path / "events" / "0" / f"{first:020d}.arrow"


def entries(count: int, size: int = 10) -> list[tuple[int, bytes, bytes]]:
    return [(n, b"k", os.urandom(size)) for n in range(count)]


def read_all(tmp_path: Path, kafka_partition: int = 0) -> list[tuple[int, int, bytes | None, bytes | None]]:
    log = DirectorySource(tmp_path, "events")
    log.assign({kafka_partition: 0})
    records = []
    while log.fetch_positions() != log.end_offsets([kafka_partition]):
        records += [record[1:] for record in log.poll(0)]
    return records


def test_the_files_on_disk_are_those_of_the_data_contract(writer, tmp_path):
    writer.append(0, [(11, b"k", b"v"), (12, b"k", None)])
    writer.append(0, [(13, None, b"w")])
    info = json.loads((tmp_path / "events" / "topic.json").read_text())
    assert info == {"version": 1, "topic_id": info["topic_id"], "partitions": 2}
    assert sorted(os.listdir(tmp_path / "events" / "0")) == [f"{0:020d}.arrow", f"{2:020d}.arrow"]
    table = pa.ipc.open_file(log_file(tmp_path)).read_all()
    assert table.schema == SCHEMA
    assert table.to_pylist() == [
        {"offset": 0, "timestamp_ms": 11, "key": b"k", "headers": [], "value": b"v"},
        {"offset": 1, "timestamp_ms": 12, "key": b"k", "headers": [], "value": None},
    ]


def test_a_large_append_is_cut_into_record_batches_of_about_a_mebibyte(writer, tmp_path):
    writer.append(0, entries(50, size=100_000))
    file = pa.ipc.open_file(log_file(tmp_path))
    assert [file.get_batch(i).num_rows for i in range(file.num_record_batches)] == [11, 11, 11, 11, 6]


def test_one_poll_holds_a_bounded_share_of_every_partition(writer, tmp_path):
    for kafka_partition in (0, 1):
        writer.append(kafka_partition, entries(200, size=100_000))
    log = DirectorySource(tmp_path, "events")
    log.assign({0: 0, 1: 0})
    records = log.poll(0)
    assert {r.kafka_partition for r in records} == {0, 1}
    assert sum(len(r.value or b"") for r in records) <= 8 * 2**20


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(-(2**63), 2**63 - 1), st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=90)
            ),
            max_size=9,
        ),
        max_size=5,
    )
)
def test_whatever_is_appended_comes_back_numbered_from_zero(tmp_path_factory, appends):
    folder = tmp_path_factory.mktemp("log")
    writer = DirectoryTopicWriter(folder, "events", 1)
    for append in appends:
        writer.append(0, append)
    writer.close()
    flat = [entry for append in appends for entry in append]
    assert read_all(folder) == [(offset, *entry) for offset, entry in enumerate(flat)]


def test_an_append_that_fails_half_way_leaves_the_log_as_it_was(writer, tmp_path):
    def broken():
        yield from entries(3)
        raise OSError(28, "No space left on device")

    writer.append(0, entries(2))
    with pytest.raises(LogError, match="cannot be written: No space left on device"):
        writer.append(0, broken())
    assert [offset for offset, *_ in read_all(tmp_path)] == [0, 1]
    writer.append(0, entries(1))
    assert [offset for offset, *_ in read_all(tmp_path)] == [0, 1, 2]


def test_unfinished_files_are_not_read(writer, tmp_path):
    writer.append(0, entries(2))
    for name in (f".{2:020d}.arrow.part", f"{2:020d}.arrow.tmp", "2.arrow", "notes.txt"):
        (tmp_path / "events" / "0" / name).write_bytes(b"unfinished")
    assert len(read_all(tmp_path)) == 2


def test_two_writers_cannot_have_a_topic_open(writer, tmp_path):
    with pytest.raises(RunError, match="is being written by another process"):
        DirectoryTopicWriter(tmp_path, "events", 2)
    writer.close()
    DirectoryTopicWriter(tmp_path, "events", 2).close()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def overwrite(path: Path) -> None:
    path.write_bytes(b"this is no Arrow file")


def write_table(path: Path, offsets: list[int], **more: pa.Array) -> None:
    columns = {f.name: pa.nulls(len(offsets), f.type) for f in SCHEMA}
    columns |= {"offset": pa.array(offsets, pa.int64()), "timestamp_ms": pa.array(offsets, pa.int64()), **more}
    with pa.ipc.new_file(path, pa.table(columns).schema) as file:
        file.write_table(pa.table(columns))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_short, "not a readable Arrow IPC file"),
        (overwrite, "not a readable Arrow IPC file"),
        (lambda path: write_table(path, [1, 2]), "begins with offset 1, its name says 0"),
        (lambda path: write_table(path, [0, 2, 1]), "offsets do not ascend in record batch 0"),
        (lambda path: write_table(path, [0, 1], value=pa.array(["a", "b"])), "not those of a directory log"),
        (lambda path: write_table(path, [0, 1], more=pa.array([1, 2])), "not those of a directory log"),
        (lambda path: write_table(path, [0, 1], timestamp_ms=pa.array([1, None])), "a null offset or timestamp"),
    ],
    ids=["cut short", "overwritten", "renamed", "descending", "other type", "other columns", "null"],
)
def test_a_damaged_file_is_an_error_that_names_it(writer, tmp_path, damage, reason):
    writer.append(0, entries(2))
    damage(log_file(tmp_path))
    with pytest.raises(LogError, match=rf"{log_file(tmp_path)}: .*{reason}"):
        read_all(tmp_path)


def test_a_flipped_byte_never_ends_the_process(writer, tmp_path):
    writer.append(0, entries(3, size=60))
    whole = log_file(tmp_path).read_bytes()
    for at in range(0, len(whole), 3):
        log_file(tmp_path).write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with suppress(LogError):  # or it lies in a value or a filler, and is not seen
            read_all(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "topic_id": "x", "partitions": 1}'])
def test_a_damaged_topic_file_is_an_error_that_names_it(writer, tmp_path, text):
    (tmp_path / "events" / "topic.json").write_text(text)
    with pytest.raises(LogError, match=r"topic\.json: cannot be read"):
        DirectorySource(tmp_path, "events")


@pytest.mark.parametrize("name", ["", ".", "..", "../events", "a/b", "/etc", "a\0b", "x" * 250])
def test_a_topic_name_cannot_leave_the_folder(tmp_path, name):
    for opened in (lambda: DirectorySource(tmp_path, name), lambda: DirectoryTopicWriter(tmp_path, name, 1)):
        with pytest.raises(ConfigError, match="topic name"):
            opened()


def test_a_missing_topic_names_what_is_there_or_how_to_write_it(writer, tmp_path):
    with pytest.raises(TopicMissing, match="it holds events"):
        DirectorySource(tmp_path, "evnts")
    with pytest.raises(TopicMissing, match=f"xrex data produce --to {tmp_path / 'none'} --topic events"):
        DirectorySource(tmp_path / "none", "events")
