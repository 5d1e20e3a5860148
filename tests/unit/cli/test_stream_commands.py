"""`xrex data lag`, `inspect` and `resend` on a directory log: what they print and with which exit code they end."""

import json
import math
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from config_runs import ENVIRONMENT, write_step
from xrex.checkpoint import positions
from xrex.cli.main import app
from xrex.data.batching import Batcher
from xrex.data.codecs import arrow
from xrex.data.codecs import json as json_codec
from xrex.data.config import DatasetConfig
from xrex.data.dataset import start_positions
from xrex.data.hashing import partition_of_users
from xrex.data.log.config import DirectoryLog
from xrex.data.log.directory import SCHEMA, DirectorySource, DirectoryTopicWriter
from xrex.errors import ConfigError, LogUnreachable, PhoenixError, TopicMissing, exit_code
from xrex.schema.batch import BadRow
from xrex.schema.dead_letters import DeadLetter, to_line
from xrex.schema.positions import PartitionPosition, TopicPositions
from xrex.schema.specs import FeatureSpec, TableSpec
from xrex.train.config import TrainerConfig
from xrex.utils.metadata import Run, Start

T0 = 1_700_000_000_000
ROW = {"item": [5], "price": [1.5], "click": [1], "note": "not read"}


def call(*words):
    """A `data` command that must end with exit code 0."""
    done = CliRunner().invoke(app(), ["data", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def failed(*words) -> BaseException:
    """What a `data` command raises."""
    with pytest.raises((ConfigError, PhoenixError)) as caught:
        CliRunner().invoke(app(), ["data", *map(str, words)], catch_exceptions=False, standalone_mode=False)
    return caught.value


def refused(*words) -> str:
    """The line of a `data` command that must end with exit code 2."""
    error = failed(*words)
    assert exit_code(error) == 2
    return str(error)


def dataset(folder, **changes) -> DatasetConfig:
    """A topic of arrow rows: an item, its price, one label."""
    given = {
        "topic_name": "clicks",
        "num_kafka_partitions": 2,
        "log": DirectoryLog(path=str(folder)),
        "tables": (TableSpec(name="items", num_embeddings=1_000, embedding_dim=8),),
        "features": (
            FeatureSpec(name="item", group="candidate", column="item", table="items"),
            FeatureSpec(name="price", group="candidate", column="price", kind="float"),
        ),
        "actions": ("click",),
        "history_actions_column": None,
    }
    return DatasetConfig(**given | changes)


def message(*rows: dict) -> bytes:
    return arrow.encode(pa.RecordBatch.from_pylist([ROW | row for row in rows]))


def write(folder, entries: dict[int, list], partitions: int = 2, topic: str = "clicks"):
    """Appends (timestamp, key, value) entries to a topic, a file for each partition."""
    with closing(DirectoryTopicWriter(folder, topic, partitions)) as writer:
        for partition, records in entries.items():
            writer.append(partition, records)


def read(folder, topic: str = "clicks") -> list:
    """Every record of a topic, partition by partition."""
    with closing(DirectorySource(folder, topic)) as log:
        there = list(range(log.info().num_partitions))
        log.assign(log.start_offsets(there))
        records = []
        while log.fetch_positions() != log.end_offsets(there):
            records += log.poll(1_000)
    return sorted(records)


def good(count: int) -> list:
    return [(T0 + 1_000 * i, b"k", message({})) for i in range(count)]


@pytest.fixture
def log(tmp_path):
    """A topic of two partitions that hold 10 and 5 records, a second apart."""
    write(tmp_path / "log", {0: good(10), 1: good(5)})
    return tmp_path / "log"


def write_run(run_dir, config: DatasetConfig, step: int | None, held: TopicPositions, start=None):
    """A run folder with one complete step, or none, that holds these positions."""
    whole = TrainerConfig(dataset=config)
    begun = json.loads(positions.to_json({config.topic_name: start or held}))
    run = Run.first(name="x", environment=ENVIRONMENT, start=Start("2020-01-01T00:00:00+00:00", "0", begun))
    if step is not None:
        write_step(run_dir / "checkpoints" / str(step), whole, run)
        (run_dir / "checkpoints" / str(step) / "positions.json").write_text(positions.to_json({held.topic: held}))
    run_dir.mkdir(exist_ok=True)
    (run_dir / "config.json").write_text(whole.to_json())
    (run_dir / "run.json").write_text(run.to_json())
    return run_dir


def run_at(log, partitions: dict[int, PartitionPosition], step=80, **changes):
    held = TopicPositions("clicks", None, partitions)
    return write_run(log.parent / "run", dataset(log, **changes), step, held)


def lag(*words) -> dict:
    return json.loads(call("lag", *words, "--json").stdout)


# lag


def test_lag_shows_for_each_partition_where_run_and_log_stand_and_the_total_last(log):
    run_dir = run_at(log, {0: PartitionPosition(4, 2, T0 + 4_000), 1: PartitionPosition(5)})
    first, heading, *rows, total = [line.split() for line in call("lag", run_dir).stdout.splitlines()]
    assert " ".join(first) == "topic 'clicks', positions of step 80"
    assert " ".join(heading) == "partition offset row log start log end lag last trained age state"
    days = f"{(time.time() - T0 / 1_000) / 86_400:.1f}"
    assert rows == [
        ["0", "4", "2", "0", "10", "6", "2023-11-14T22:13:24Z", days, "d", "ok"],
        ["1", "5", "0", "0", "5", "0", "-", "-", "ok"],
    ]
    assert total == ["total", "6", "2023-11-14T22:13:24Z", days, "d"]


def test_lag_as_json_holds_the_same_numbers_with_the_age_in_seconds(log):
    run_dir = run_at(log, {0: PartitionPosition(4, 2, T0 + 4_000), 1: PartitionPosition(3, 0, T0 + 2_000)})
    found = lag(run_dir)
    assert (found["topic"], found["step"]) == ("clicks", 80)
    zero, one = found["partitions"]
    assert abs(zero.pop("age_s") - (time.time() - T0 / 1_000 - 4)) < 60
    assert zero == {
        "partition": 0,
        "offset": 4,
        "row": 2,
        "log_start": 0,
        "log_end": 10,
        "lag": 6,
        "trained_ms": T0 + 4_000,
        "state": "ok",
    }
    assert one["lag"] == 2
    total = found["total"]
    assert (total["lag"], total["trained_ms"], total["ok"]) == (8, T0 + 4_000, 2), "freshness is that of the newest"
    assert total["age_s"] == pytest.approx(one["age_s"] - 2)


def test_a_run_folder_its_checkpoints_and_its_step_say_the_same(log):
    run_dir = run_at(log, {0: PartitionPosition(4)})
    for path in (run_dir, run_dir / "checkpoints", run_dir / "checkpoints" / "80"):
        assert [(p["partition"], p["lag"], p["state"]) for p in lag(path)["partitions"]] == [
            (0, 6, "ok"),
            (1, 5, "new"),
        ]


def test_partitions_that_only_one_of_log_and_positions_has_are_listed(log):
    run_dir = run_at(log, {0: PartitionPosition(10), 7: PartitionPosition(3, 0, T0)})
    found = lag(run_dir)
    assert [(p["partition"], p["offset"], p["log_end"], p["lag"], p["state"]) for p in found["partitions"]] == [
        (0, 10, 10, 0, "ok"),
        (1, None, 5, 5, "new"),
        (7, 3, None, None, "lost"),
    ]
    assert {name: found["total"][name] for name in ("partitions", "lag", "ok", "new", "lost")} == {
        "partitions": 3,
        "lag": 5,
        "ok": 1,
        "new": 1,
        "lost": 1,
    }
    assert call("lag", run_dir).stdout.splitlines()[-1].endswith("1 lost, 1 new")


@pytest.mark.parametrize(("offset", "end_offset", "state"), [
    (9, None, "lost"), (10, None, "ok"), (20, None, "ok"), (21, None, "lost"),
    (9, 9, "done"), (9, 10, "lost"), (20, 20, "done"),
])  # fmt: skip
def test_a_position_outside_the_log_is_lost_unless_nothing_more_is_wanted(log, offset, end_offset, state):
    write(log, {0: good(10)})
    (log / "clicks" / "0" / f"{0:020d}.arrow").unlink()
    run_dir = run_at(log, {0: PartitionPosition(offset, end_offset=end_offset), 1: PartitionPosition(5)})
    found = lag(run_dir)["partitions"][0]
    assert (found["log_start"], found["log_end"]) == (10, 20)
    assert found["state"] == state
    assert found["lag"] == (None if state == "lost" else 20 - offset)


def test_before_the_first_complete_step_the_start_positions_are_shown_and_one_line_says_so(log):
    start = TopicPositions("clicks", None, {0: PartitionPosition(2), 1: PartitionPosition(1)})
    run_dir = write_run(log.parent / "run", dataset(log), None, start)
    begun_twice = json.loads((run_dir / "run.json").read_text())
    begun_twice["starts"].append(begun_twice["starts"][0] | {"positions": {"version": 1, "topics": []}})
    (run_dir / "run.json").write_text(json.dumps(begun_twice))
    (run_dir / "checkpoints" / "80.orbax-checkpoint-tmp").mkdir(parents=True)
    done = call("lag", run_dir, "--json")
    assert done.stderr == f"{run_dir}: no step is complete; these are the positions that the run started from\n"
    found = json.loads(done.stdout)
    assert found["step"] is None
    assert [p["lag"] for p in found["partitions"]] == [8, 4]


def test_overrides_say_where_the_log_is_now_and_a_runs_own_config_is_newer_than_its_steps(log, tmp_path):
    run_dir = run_at(log, {0: PartitionPosition(4)})
    moved = log.rename(tmp_path / "moved")
    assert isinstance(failed("lag", run_dir), TopicMissing)
    assert lag(run_dir, f"dataset.log.path={moved}")["total"]["lag"] == 11
    (run_dir / "config.json").write_text(TrainerConfig(dataset=dataset(moved)).to_json())
    assert lag(run_dir)["total"]["lag"] == 11
    assert "dataset.log.pth: unknown field" in refused("lag", run_dir, "dataset.log.pth=x")


def test_a_recreated_topic_is_told(log):
    other = TopicPositions("clicks", "0b51c9a2-0000-4000-8000-000000000001", {0: PartitionPosition(4)})
    run_dir = write_run(log.parent / "run", dataset(log), 80, other)
    (line,) = call("lag", run_dir).stderr.splitlines()
    assert "the positions are those of 0b51c9a2-0000-4000-8000-000000000001: it was recreated" in line


def test_positions_of_another_topic_are_a_config_error(log):
    run_dir = run_at(log, {0: PartitionPosition(4)})
    line = refused("lag", run_dir, "dataset.topic_name=views")
    assert line.endswith("holds no positions of topic 'views', only of clicks: name the topic it was read from")


def test_lag_of_no_run_is_a_config_error(log, tmp_path):
    assert refused("lag", tmp_path / "gone") == (
        f"checkpoint {tmp_path}/gone: no such folder; give a step, a checkpoints or a run folder"
    )
    assert "no complete step here" in refused("lag", log)


# inspect


def inspect(config: DatasetConfig, *words) -> dict:
    return json.loads(call("inspect", config_file(config), *words, "--json").stdout)


def config_file(config: DatasetConfig) -> Path:
    """The config as a file beside its log."""
    assert isinstance(config.log, DirectoryLog)
    file = Path(config.log.path) / "config.json"
    file.write_text(TrainerConfig(dataset=config).to_json())
    return file


def test_inspect_shows_a_record_and_its_first_rows(log):
    write(log, {1: [(T0 + 77_000, b"\x01\xff", message({}, {"item": [7], "price": [2.5]}, {}))]})
    file = config_file(dataset(log))
    lines = [line.split(maxsplit=1) for line in call("inspect", file, 1, 5, "--rows", 2).stdout.splitlines()]
    size = len(message({}, {"item": [7], "price": [2.5]}, {}))
    assert lines[:9] == [
        ["topic", "clicks"],
        ["partition", "1"],
        ["offset", "5"],
        ["timestamp", "2023-11-14T22:14:37Z (1700000077000)"],
        ["key", "01ff"],
        ["size", f"{size} bytes"],
        ["codec", "arrow"],
        ["rows", "3, of which this config can train 3; the first 2 shown (--rows)"],
        ["not", "read   note"],
    ]
    blocks = [" ".join(line) for line in lines[9:]]
    assert [" ".join(block.split()) for block in blocks if block] == [
        "row 0 type value",
        "item list<item: int64> [5]",
        "price list<item: double> [1.5]",
        "click list<item: int64> [1]",
        'note string "not read"',
        "row 1 type value",
        "item list<item: int64> [7]",
        "price list<item: double> [2.5]",
        "click list<item: int64> [1]",
        'note string "not read"',
    ]


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_rows_as_json_are_what_was_sent(tmp_path, codec):
    rows = [ROW | {"item": [i], "note": "ü\x1b[31m"} for i in range(4)]
    value = message(*rows) if codec == "arrow" else json.dumps(rows).encode()
    write(tmp_path, {0: [(T0, None, value)]})
    found = inspect(dataset(tmp_path, codec=codec), 0, 0, "--rows", 9)
    assert [{c["name"]: c["value"] for c in row["columns"]} for row in found["rows"]] == rows
    assert (found["found"], found["key"], found["num_rows"], found["size"]) == ("record", None, 4, len(value))
    assert found["unread_columns"] == ["note"]


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_the_rows_that_cannot_be_trained_are_those_that_a_run_passes_over_with_its_reasons(tmp_path, codec):
    rows = [ROW, {"click": [2]}, {"price": [None]}, {"price": [1.0, 2.0]}, {}, {"click": [None]}]
    rows = [ROW | row for row in rows]
    if codec == "json":
        rows += [ROW | {"item": ["x"]}, ROW | {"price": [1e400]}, ROW | {"note": [[]]}]
    value = message(*rows) if codec == "arrow" else json.dumps(rows).replace("Infinity", "1e400").encode()
    write(tmp_path, {0: [(T0, None, value)]})
    config = dataset(tmp_path, codec=codec, stop_at_end=True, skip_bad_records=99)
    with closing(DirectorySource(tmp_path, "clicks")) as log:
        bad = sorted(Batcher(config, log, start_positions(config).partitions, 20).next().bad)
    assert [b.row for b in bad] == [1, 2, 3, *([6, 7] if codec == "json" else [])]
    found = inspect(config, 0, 0, "--rows", 9)
    assert [b["row"] for b in found["bad_rows"]] == [b.row for b in bad]
    for ours, runs in zip(found["bad_rows"], bad, strict=True):
        assert runs.reason == f"topic 'clicks' partition 0 offset 0 row {ours['row']}: {ours['reason']}"
    assert [row["row"] for row in found["rows"] if not row["trainable"]] == [b.row for b in bad]
    text = call("inspect", tmp_path / "config.json", 0, 0).stdout
    assert "cannot train row 1: label 'click': 2.0 is neither 0 nor 1\n" in text
    assert "row 1: bad" in text


def test_a_message_that_lacks_a_column_is_shown_and_none_of_its_rows_can_be_trained(tmp_path):
    value = arrow.encode(pa.RecordBatch.from_pylist([{"item": [i], "click": [1]} for i in range(3)]))
    write(tmp_path, {0: [(T0, None, value)]})
    text = call("inspect", config_file(dataset(tmp_path)), 0, 0).stdout
    assert "rows       3, of which this config can train 0\n" in text
    assert "cannot train rows 0-2: the column 'price' is missing\n" in text
    assert "list<item: int64>  [2]\n" in text


def test_undecodable_bytes_are_told_with_their_reason_and_first_bytes(tmp_path):
    write(tmp_path, {0: [(T0, b"", b"\xff\x00" * 50), (T0, b"k", b"")]})
    config = dataset(tmp_path)
    text = call("inspect", config_file(config), 0, 0).stdout.splitlines()
    assert text[4] == "key        empty"
    assert text[-1].startswith("found      cannot be read: not an Arrow IPC stream: ")
    assert text[-1].endswith("; the value begins ff00ff00ff00ff00ff00ff00ff00ff00")
    assert call("inspect", config_file(config), 0, 1).stdout.endswith("; the value begins (empty)\n")
    assert inspect(config, 0, 0)["undecodable"].startswith("not an Arrow IPC stream: ")


def holes(folder):
    """Partition 0 begins at 3, has a tombstone at 4, nothing at 5 and 6, and ends with 7."""
    write(folder, {})
    path = folder / "clicks" / "0" / f"{3:020d}.arrow"
    columns = {
        "offset": pa.array([3, 4, 7], pa.int64()),
        "timestamp_ms": pa.array([T0] * 3, pa.int64()),
        "key": pa.array([b"k"] * 3, pa.binary()),
        "headers": pa.array([[]] * 3, pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        "value": pa.array([message({}), None, message({})], pa.binary()),
    }
    batch = pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    with pa.ipc.new_file(str(path), SCHEMA) as file:
        file.write_batch(batch)


@pytest.mark.parametrize(
    ("offset", "found", "words"),
    [
        (2, "before the start", "no record here, before the start; the log holds 3..7"),
        (3, "record", "1, of which this config can train 1"),
        (4, "tombstone", "a tombstone: no value, nothing to train, passed over"),
        (5, "hole", "no record here, hole: compacted away, or a marker of a transaction; the log holds 3..7"),
        (6, "hole", "no record here, hole: compacted away, or a marker of a transaction; the log holds 3..7"),
        (7, "record", "1, of which this config can train 1"),
        (8, "beyond the end", "no record here, beyond the end; the log holds 3..7"),
        (2**62, "beyond the end", "no record here, beyond the end; the log holds 3..7"),
    ],
)
def test_what_there_is_at_an_offset(tmp_path, offset, found, words):
    holes(tmp_path)
    assert inspect(dataset(tmp_path), 0, offset)["found"] == found
    assert words in call("inspect", config_file(dataset(tmp_path)), 0, offset).stdout
    assert call("inspect", config_file(dataset(tmp_path)), 1, offset).stdout.endswith("beyond the end; it is empty\n")


def test_a_value_nested_beyond_reading_is_cut(tmp_path):
    deep = "[" * 900 + "]" * 900
    write(tmp_path, {0: [(T0, None, f'{{"item": [5], "price": [1], "click": [1], "deep": {deep}}}'.encode())]})
    (row,) = inspect(dataset(tmp_path, codec="json"), 0, 0)["rows"]
    assert row["columns"][-1]["value"] == json.loads("[" * 20 + '"…"' + "]" * 20)
    assert f"deep     {'[' * 20}" in call("inspect", tmp_path / "config.json", 0, 0).stdout


def test_values_that_json_lacks_and_those_that_would_move_a_terminal(tmp_path):
    batch = pa.RecordBatch.from_pydict(
        {
            "item": [[5]],
            "price": [[math.nan]],
            "click": [[1]],
            "raw": [b"\x00\xff"],
            "when": pa.array([2**62], pa.timestamp("ns")),
            "never": pa.array([2**62], pa.timestamp("s")),
            "long": ["x" * 500],
            "sly\x1b[2J": ["\x1b[31m\x9b\u202e"],
        }
    )
    write(tmp_path, {0: [(2**62, None, arrow.encode(batch))]})
    config = dataset(tmp_path)
    (row,) = json.loads(call("inspect", config_file(config), 0, 0, "--json").stdout, parse_constant=pytest.fail)["rows"]
    values = {c["name"]: c["value"] for c in row["columns"]}
    assert (values["price"], values["raw"]) == (["nan"], "00ff")
    text = call("inspect", config_file(config), 0, 0).stdout
    assert f"timestamp  {2**62} ({2**62})" in text
    assert f'"{"x" * 118}…\n' in text
    assert "\\u001b[31m\\x9b\\u202e" in text
    assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    "words", [(), ("CONFIG",), ("CONFIG", 0), ("CONFIG", "x", 0), ("CONFIG", 0, "--rows", "-1"), ("CONFIG", "0", "1.5")]
)
def test_wrong_arguments_end_with_exit_code_2(log, words):
    config = config_file(dataset(log))
    words = [str(config if word == "CONFIG" else word) for word in words]
    assert CliRunner().invoke(app(), ["data", "inspect", *words]).exit_code == 2


def test_a_partition_that_the_topic_lacks_is_a_wrong_argument(log):
    line = refused("inspect", config_file(dataset(log)), 2, 0)
    assert line == "PARTITION = 2: topic 'clicks' has 2 partitions; give one from 0 to 1"


def test_a_log_that_cannot_be_reached_ends_with_exit_code_1(log):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    kafka = f'dataset.log={{"__class":"KafkaLog","bootstrap_servers":"{address}","request_timeout_ms":1000}}'
    run_dir = run_at(log, {0: PartitionPosition(4)})
    for words in (("inspect", run_dir, 0, 0), ("lag", run_dir)):
        error = failed(*words, kafka)
        assert isinstance(error, LogUnreachable)
        assert exit_code(error) == 1
        assert address in str(error)


# resend


def letter(offset, value, row=None, *, key=b"k", partition=0, timestamp_ms=T0, topic="clicks") -> dict:
    return to_line(DeadLetter(80, topic, BadRow(partition, offset, row, timestamp_ms, key, value, "why")))


def letters(folder, *lines: dict, process=0):
    file = folder / f"dead-letters-{process}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def resend(folder, *files, codec=None):
    options = () if codec is None else ("--codec", codec)
    return call("resend", *files, "--to", folder, "--topic", "again", *options)


@pytest.fixture
def again(tmp_path):
    """An empty topic of 4 partitions to send to."""
    write(tmp_path / "log", {}, partitions=4, topic="again")
    return tmp_path / "log"


def test_whole_messages_are_sent_as_they_were_to_the_partition_of_their_key(again, tmp_path):
    users = [7, -3, 2**40, 11, 12, 13]
    keys = [user.to_bytes(8, "little", signed=True) for user in users]
    lines = [letter(i, b"bad %d" % i, key=key, timestamp_ms=T0 + i) for i, key in enumerate(keys)]
    done = resend(again, letters(tmp_path, *lines))
    sent = read(again, "again")
    expected = partition_of_users(np.array(users), 4).tolist()
    assert sorted((r.timestamp_ms, r.kafka_partition, r.key, r.value) for r in sent) == [
        (T0 + i, expected[i], keys[i], b"bad %d" % i) for i in range(6)
    ]
    *each, total = done.stdout.splitlines()
    assert each == [
        f"sent {n} record{'s' * (n > 1)} ({n} whole) to partition {p}" for p in range(4) if (n := expected.count(p))
    ]
    assert total == f"sent 6 records (6 whole) to topic 'again' at {again}"


def test_without_a_key_the_partition_stays(again, tmp_path):
    lines = [letter(i, b"bad", key=None, partition=p) for i, p in enumerate((3, 1, 3))]
    resend(again, letters(tmp_path, *lines))
    assert [r.kafka_partition for r in read(again, "again")] == [1, 3, 3]
    write(tmp_path / "small", {}, partitions=3, topic="again")
    line = refused("resend", tmp_path / "dead-letters-0.jsonl", "--to", tmp_path / "small", "--topic", "again")
    assert line == (
        f"{tmp_path}/dead-letters-0.jsonl:1: without a key it belongs to partition 3, topic 'again' has 3 partitions: "
        "send it to a topic with as many as it came from"
    )
    assert read(tmp_path / "small", "again") == []


def test_of_a_message_with_bad_rows_only_those_are_sent_with_all_their_columns(again, tmp_path):
    rows = [ROW | {"item": [i], "note": f"row {i}"} for i in range(5)]
    value = message(*rows)
    done = resend(again, letters(tmp_path, letter(3, value, 4), letter(3, value, 1)))
    (record,) = read(again, "again")
    assert arrow.decode(record.value).to_pylist() == [rows[1], rows[4]]
    assert arrow.decode(record.value).schema == arrow.decode(value).schema
    assert (record.key, record.timestamp_ms) == (b"k", T0)
    assert done.stdout.splitlines()[-1] == f"sent 1 record (1 made of 2 bad rows) to topic 'again' at {again}"


def test_json_rows_are_sent_as_they_were_written(again, tmp_path):
    texts = ['{"a": 1.10, "b": [1e400]}', '{"a":"{\\"x\\": 1}, {"}', '{"a": "\\ud800", "n": 12345678901234567890123}']
    several = f"[ {texts[0]} ,{texts[1]},\n{texts[2]} ]".encode()
    lines = [letter(1, several, row) for row in (0, 2)] + [letter(2, several, 1, timestamp_ms=T0 + 1)]
    resend(again, letters(tmp_path, *lines, letter(3, texts[2].encode(), 0, timestamp_ms=T0 + 2)), codec="json")
    sent = [r.value.decode() for r in read(again, "again")]
    assert sent == [f"[{texts[0]},{texts[2]}]", texts[1], texts[2]]
    assert [json_codec.decode(value.encode()) for value in sent][1:] == [[json.loads(texts[1])], [json.loads(texts[2])]]


def test_what_stands_twice_is_sent_once_and_a_whole_message_holds_its_rows(again, tmp_path):
    value = message({}, {})
    first = letters(tmp_path, letter(1, value, 0), letter(2, b"x"), letter(2, b"x"))
    second = letters(tmp_path, letter(1, value), letter(1, value, 0), letter(2, b"of a topic made anew"), process=1)
    done = resend(again, first, second)
    assert [r.value for r in read(again, "again")] == [value, b"x", b"of a topic made anew"]
    assert done.stdout.splitlines()[-1].endswith("; repeated lines left out: 2")


def test_records_are_sent_in_the_order_of_time(again, tmp_path):
    lines = [letter(i, b"%d" % t, timestamp_ms=T0 + t) for i, t in enumerate((3, 1, 2))]
    resend(again, letters(tmp_path, *lines))
    assert [r.value for r in read(again, "again")] == [b"1", b"2", b"3"]


def test_what_a_run_passes_over_can_be_sent_and_is_then_read_once_each(tmp_path):
    rows = [ROW | {"item": [i]} for i in range(6)]
    rows[1]["click"], rows[4]["click"] = [3], [4]
    write(tmp_path, {0: [(T0, b"k", message(*rows)), (T0 + 1, b"k", b"?")], 1: good(2)})
    write(tmp_path, {}, topic="again")
    config = dataset(tmp_path, stop_at_end=True, skip_bad_records=9)
    with closing(DirectorySource(tmp_path, "clicks")) as source:
        bad = Batcher(config, source, start_positions(config).partitions, 20).next().bad
    resend(tmp_path, letters(tmp_path, *(to_line(DeadLetter(1, "clicks", b)) for b in bad)))
    sent = read(tmp_path, "again")
    assert [row["item"] for row in arrow.decode(sent[0].value).to_pylist()] == [[1], [4]]
    assert sent[1].value == b"?"


def test_files_without_records_send_nothing(again, tmp_path):
    assert resend(again, letters(tmp_path)).stdout == "nothing to send: the files hold no records\n"


def test_a_missing_topic_is_refused_and_not_made(tmp_path):
    file = letters(tmp_path, letter(1, b"x"))
    line = refused("resend", file, "--to", tmp_path / "log", "--topic", "again")
    assert line.startswith("--topic again: topic 'again' is not in ")
    assert line.endswith("; nothing was sent")
    assert not (tmp_path / "log").exists()


def test_no_files_is_a_wrong_command_line(again):
    assert CliRunner().invoke(app(), ["data", "resend", "--to", str(again), "--topic", "again"]).exit_code == 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{}", "not a line of dead letters (KeyError: 'key'); remove it; nothing was sent"),
        ('{"step": 1, "par', "not a line of dead letters (JSONDecodeError: "),
        ("", "not a line of dead letters (JSONDecodeError: "),
        (
            json.dumps(letter(1, b"x") | {"row": -1}),
            "not a line of dead letters (ValueError: step, partition, offset, timestamp_ms and row are whole numbers)",
        ),
        (
            json.dumps(letter(1, b"x") | {"row": "2"}),
            "not a line of dead letters (ValueError: step, partition, offset, timestamp_ms and row are whole numbers)",
        ),
        (json.dumps(letter(1, b"?", 0)), "the message cannot be read (not an Arrow IPC stream: "),
        (json.dumps(letter(1, message({}, {}), 2)), "row = 2, but the message has 2 rows: remove the line"),
    ],
)
def test_a_broken_line_is_named_and_nothing_is_sent(again, tmp_path, line, words):
    file = letters(tmp_path, letter(0, b"good"))
    file.write_text(file.read_text() + line + "\n")
    shown = refused("resend", file, "--to", again, "--topic", "again")
    assert shown.startswith(f"{file}:2: {words}")
    assert read(again, "again") == []


def test_the_codec_that_would_fit_is_named(again, tmp_path):
    file = letters(tmp_path, letter(0, b'[{"a": 1}, {"a": 2}]', 1))
    assert refused("resend", file, "--to", again, "--topic", "again").endswith("is it --codec json? Nothing was sent")
    file = letters(tmp_path, letter(0, message({}, {}), 1))
    line = refused("resend", file, "--to", again, "--topic", "again", "--codec", "json")
    assert line.endswith("is it --codec arrow? Nothing was sent")


def test_a_config_with_the_security_of_brokers_is_refused_for_a_folder(again, tmp_path):
    file = config_file(dataset(again))
    line = refused("resend", letters(tmp_path), "--to", again, "--topic", "again", "--config", file)
    assert line.startswith(f"--config {file}: --to {again} is a folder")


def test_a_file_that_is_not_there_is_named(again, tmp_path):
    line = refused("resend", tmp_path / "gone.jsonl", "--to", again, "--topic", "again")
    assert line == (
        f"{tmp_path}/gone.jsonl: cannot be read: No such file or directory; give dead-letters-*.jsonl files"
    )


# all of them


def test_neither_lag_nor_inspect_imports_jax_and_help_waits_for_no_arrow(log):
    run_dir = run_at(log, {0: PartitionPosition(4)})
    code = (
        "import sys; from typer.testing import CliRunner; from xrex.cli.main import app\n"
        "def run(*words):\n"
        "    done = CliRunner().invoke(app(), ['data', *words], catch_exceptions=False)\n"
        "    assert done.exit_code == 0, done.output\n"
        "for name in ('lag', 'inspect', 'resend'):\n"
        "    run(name, '--help')\n"
        "print([m for m in ('pyarrow', 'numpy') if m in sys.modules])\n"
        f"run('lag', {str(run_dir)!r}); run('inspect', {str(run_dir)!r}, '0', '1')\n"
        "print([m for m in ('jax', 'flax', 'optax', 'orbax', 'kafka') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
