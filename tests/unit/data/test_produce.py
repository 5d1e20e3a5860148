"""`xrex data produce`: every row once, to its user's partition, in the order of time; and nothing guessed on the way."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from typer.testing import CliRunner

from xrex.cli.data import app
from xrex.data import produce as producing
from xrex.data.codecs import arrow
from xrex.data.events import EventColumns, RowBuilder
from xrex.data.log.directory import DirectorySource
from xrex.data.produce import (
    TARGET_MESSAGE_BYTES,
    default_rows_per_message,
    open_empty_topic,
    produce,
    synthetic_source,
)
from xrex.data.synthetic import World
from xrex.errors import ConfigError, RunError

PARTITIONS = 3


class Memory:
    """A writer that keeps (partition, timestamp, key, value) in the order of arrival."""

    def __init__(self):
        self.records = []

    def append(self, kafka_partition, entries):
        self.records += [(kafka_partition, *entry) for entry in entries]

    def close(self):
        pass


@pytest.fixture(scope="module")
def builder():
    source = synthetic_source(World(users=60, items=30, slices=20, users_per_slice=25), None)
    return RowBuilder(source.events, source.columns, max_history=4)


def written(builder, **options) -> list:
    memory = Memory()
    produce(builder, memory, partitions=PARTITIONS, **({"codec": "arrow"} | options))
    return memory.records


def partition_of(user: int) -> int:
    return xxhash.xxh64_intdigest(user.to_bytes(8, "little", signed=True)) % PARTITIONS


@pytest.mark.parametrize("rows_per_message", [1, 7, 1_000])
def test_each_partition_holds_its_users_rows_in_order(builder, rows_per_message):
    rows = builder.rows(np.arange(len(builder))).to_pylist()
    got: dict[int, list] = {p: [] for p in range(PARTITIONS)}
    for kafka_partition, timestamp_ms, key, value in written(builder, rows_per_message=rows_per_message):
        message = arrow.decode(value).to_pylist()
        assert timestamp_ms == message[-1]["event_time_ms"]
        assert key == message[-1]["user"].to_bytes(8, "little")
        assert len(message) <= rows_per_message
        got[kafka_partition] += message
    assert got == {p: [row for row in rows if partition_of(row["user"]) == p] for p in range(PARTITIONS)}


def test_messages_come_by_the_time_of_their_last_row(builder, monkeypatch):
    monkeypatch.setattr(producing, "_CHUNK_BYTES", 1)
    times = [record[1] for record in written(builder, rows_per_message=7)]
    assert len(times) > 500 / 7
    assert times == sorted(times)


def test_how_much_is_held_in_memory_does_not_change_what_is_written(builder, monkeypatch):
    whole = written(builder, rows_per_message=7)
    monkeypatch.setattr(producing, "_CHUNK_ROWS", 10)
    monkeypatch.setattr(producing, "_CHUNK_BYTES", 20_000)
    for p in range(PARTITIONS):
        assert [r for r in written(builder, rows_per_message=7) if r[0] == p] == [r for r in whole if r[0] == p]


def test_arrow_messages_are_about_64_kib_and_json_messages_one_row():
    source = synthetic_source(World(), 2_000)
    builder = RowBuilder(source.events, source.columns, max_history=20)
    size = default_rows_per_message(builder, "arrow")
    full = len(arrow.encode(builder.rows(np.arange(1_000, 1_000 + size))))
    assert 0.7 * TARGET_MESSAGE_BYTES < full < 1.3 * TARGET_MESSAGE_BYTES
    assert default_rows_per_message(builder, "json") == 1


def test_string_users_are_partitioned_by_the_hash_that_ids_get():
    events = pa.table({"user": ["ann", "bob"], "item": [1, 2], "event_time_ms": [1, 2], "click": [0, 1]})
    records = written(RowBuilder(events, EventColumns(actions=("click",)), 4), rows_per_message=1)
    keys = [xxhash.xxh64_intdigest(user.encode()).to_bytes(8, "little") for user in ("ann", "bob")]
    assert [(record[0], record[2]) for record in sorted(records, key=lambda record: record[1])] == [
        (xxhash.xxh64_intdigest(key) % PARTITIONS, key) for key in keys
    ]


def test_a_topic_that_holds_records_is_refused(tmp_path):
    writer, _ = open_empty_topic(str(tmp_path), "t", 2)
    writer.append(1, [(5, b"k", b"v")])
    writer.close()
    with pytest.raises(RunError, match=r"already holds records \(partition 1: offsets 0..0\).*name another --topic"):
        open_empty_topic(str(tmp_path), "t", 2)


def run(*arguments):
    result = CliRunner().invoke(app, ["produce", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command_writes_a_topic_and_says_what_comes_next(tmp_path):
    result = run("--to", tmp_path, "--topic", "t", "--partitions", 2, "--examples", 700, "--rows-per-message", 50)
    assert "wrote 700 rows in 15 messages of up to 50 rows" in result.stdout
    command = f"-m xrex.train.trainer_recsys --config configs/quickstart.yaml dataset.log.path={tmp_path}"
    assert f"{command} dataset.topic_name=t" in result.stdout
    assert "700 of 700 rows" in result.stderr
    log = DirectorySource(tmp_path, "t")
    assert sum(log.end_offsets([0, 1]).values()) == 15
    log.assign({0: 0, 1: 0})
    values = [record.value for record in log.poll(1_000)]
    assert sum(arrow.decode(value).num_rows for value in values if value) == 700


def test_the_same_command_writes_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        run("--to", tmp_path / folder, "--topic", "t", "--examples", 600, "--seed", 5)
    contents = [
        {path.relative_to(tmp_path / folder): path.read_bytes() for path in (tmp_path / folder).rglob("*.arrow")}
        for folder in ("a", "b")
    ]
    assert contents[0]
    assert contents[0] == contents[1]


def test_a_topic_of_the_rest_holds_its_rows_with_histories_cut_where_asked(tmp_path):
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"user": [1] * 5, "event_time_ms": range(5), "item": range(5), "click": [1] * 5}), path)
    run("--to", tmp_path, "--topic", "t", "--partitions", 1, "--from", "events", path, "--actions", "click",
        "--skip", 3, "--history-until", 2, "--rows-per-message", 9)  # fmt: skip
    log = DirectorySource(tmp_path, "t")
    log.assign({0: 0})
    rows = arrow.decode(log.poll(1_000)[0].value or b"").to_pylist()
    assert [(row["item"], row["history_item"], row["user_events"]) for row in rows] == [
        ([3], [0, 1], 1),
        ([4], [0, 1], 1),
    ]
    with pytest.raises(RunError, match="no events after the first 5, which --skip leaves out"):
        run("--to", tmp_path, "--topic", "u", "--from", "events", path, "--actions", "click", "--skip", 5)


def test_own_events_are_read_by_the_options_that_name_their_columns(tmp_path):
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"m": [1, 1], "t": [1, 2], "film": [5, 6], "seen": [1, 0], "note": ["x", "y"]}), path)
    options = ("--user-column", "m", "--time-column", "t", "--candidate-columns", "film", "--actions", "seen")
    result = run("--to", tmp_path, "--topic", "t", "--partitions", 1, "--from", "events", path, *options)
    assert "not written, because no option names them: note" in result.stdout
    assert "user: m, user_gap, user_events; candidate: film; history: history_film, history_age" in result.stdout
    log = DirectorySource(tmp_path, "t")
    log.assign({0: 0})
    last = arrow.decode(log.poll(1_000)[0].value or b"").to_pylist()[-1]
    assert (last["m"], last["film"], last["history_film"], last["history_actions"]) == (1, [6], [5], [1])


def test_a_file_without_events_creates_no_topic(tmp_path):
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"user": [1], "item": [1], "event_time_ms": [1], "click": [1]}).slice(0, 0), path)
    with pytest.raises(RunError, match="there are no events"):
        run("--to", tmp_path / "log", "--topic", "t", "--from", "events", path, "--actions", "click")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "movielens"), "--from movielens needs the path of its data"),
        (("somewhere",), "--from synthetic reads no path, but 'somewhere' is given"),
        (("--actions", "click"), "--actions is read with --from events, not with --from synthetic: leave it out"),
        (("--from", "events", "x", "--taste", "1"), "--taste is read with --from synthetic, not with --from events"),
        (("--from", "events", "no-such-file", "--actions", "a"), "no-such-file: not readable as Parquet"),
    ],
)
def test_a_wrong_command_line_ends_before_anything_is_created(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        run("--to", tmp_path / "log", "--topic", "t", *arguments)
    assert not (tmp_path / "log").exists()


def test_help_answers_without_arrow_or_jax():
    code = (
        "import sys; from typer.testing import CliRunner; from xrex.cli.data import app; "
        "assert '--topic' in CliRunner().invoke(app, ['produce', '--help']).stdout; "
        "print([name for name in ('pyarrow', 'numpy', 'jax', 'kafka') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
