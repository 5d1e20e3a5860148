"""What an operator does about a stream: trains a few steps again, sees how far a run is behind, looks at a record."""

import json
import re
import shutil
import uuid
from contextlib import closing

import jax.numpy as jnp
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from typer.testing import CliRunner

from config_runs import ENVIRONMENT, START, small_config, write_step
from runs import journal, xrex
from xai_configlib import apply_overrides
from xrex.checkpoint import positions
from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.manager import Checkpoints
from xrex.cli import replay
from xrex.cli.main import app
from xrex.data.log.config import KafkaLog
from xrex.data.log.kafka import KafkaSource, create_topic
from xrex.errors import ConfigError
from xrex.schema.batch import BadRow
from xrex.schema.dead_letters import DeadLetter, to_line
from xrex.schema.positions import PartitionPosition, TopicPositions
from xrex.utils.metadata import Environment, Run

pytestmark = pytest.mark.slow  # whole runs; what does not need them stands in tests/unit/cli/test_stream_commands.py

T0 = 1_700_000_000_000


def call(*words) -> str:
    """What a command prints in this process; it must end with exit code 0."""
    done = CliRunner().invoke(app(), list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


# replay


def test_a_replay_ends_with_the_arrays_that_the_run_had_there(whole_run, tmp_path):
    before = sorted(whole_run.rglob("*"))
    printed = xrex("replay", whole_run / "checkpoints" / "60", "--steps", 15, cwd=tmp_path).stdout.splitlines()
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"replay-quickstart-60-\d{8}-\d{6}-\d{3}", run_dir.name)
    ours, theirs = (call("checkpoint", "digest", folder / "checkpoints" / "75") for folder in (run_dir, whole_run))
    sha256 = ours.split()[0]
    assert sha256 == theirs.split()[0]
    assert printed[-2:] == [
        f"metrics     runs/{run_dir.name}/metrics.jsonl: a line for each step",
        f"step 75: equal to {whole_run}/checkpoints/75, every array bit for bit (SHA-256 {sha256})",
    ]
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(61, 76))
    again, once = journal(run_dir), journal(whole_run)
    assert len(again) == 15 * 50
    assert set(again) < set(once)
    assert sorted(whole_run.rglob("*")) == before, "the run that is repeated is only read"


def test_what_no_replay_can_begin_from_ends_with_exit_code_2(whole_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    step = shutil.copytree(whole_run / "checkpoints" / "80", tmp_path / "final")
    for words, said in (
        ((tmp_path / "gone", "--steps", 1), "no such folder"),
        ((tmp_path, "--steps", 1), "no complete step here"),
        ((step, "--steps", 1), f"{step}: not a step of a run, whose folder is named by its number, such as 1000"),
        ((whole_run, "--steps", 1, "trainer.max_step=9"), "trainer.max_step: unknown field"),
        ((whole_run, "--steps", 0), "--steps"),
        ((whole_run,), "--steps"),
    ):
        done = CliRunner().invoke(app(), ["replay", *map(str, words)])
        assert done.exit_code == 2
        assert said in done.stderr + capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Run folders with step 5: `run` and `equal` with the same arrays, `moved` with others, `changed` by another config and code."""
    folder, other_code = tmp_path_factory.mktemp("saved"), Environment("0.0.1", {}, "1 x cpu", 1)
    other_config = apply_overrides(small_config(), ["optimizer.sparse.learning_rate=0.5", "trainer.max_steps=9"])
    for name, value in (("run", 0), ("equal", 0), ("moved", 1), ("changed", 1)):
        config, environment = (other_config, other_code) if name == "changed" else (small_config(), ENVIRONMENT)
        run = Run.first(name=name, environment=environment, start=START)
        checkpoints = Checkpoints(folder / name / "checkpoints", CheckpointConfig(), merge_progress=lambda parts: {})
        checkpoints.prepare()
        files = {"config.json": config.to_json().encode(), "run.json": run.to_json().encode()}
        state = {"w": jnp.arange(8) + value}
        checkpoints.save(5, state, positions=TopicPositions("clicks", None), progress={}, files=files)
        checkpoints.close()
    return folder


def replayed(monkeypatch, run_dir, code=0):
    """Instead of the trainer: the run folder that it would have written, and the options that it was given."""
    given = []

    def train(options):
        given.append(options)
        return code

    monkeypatch.setattr(replay, "train", train)
    done = CliRunner().invoke(
        app(), ["replay", *map(str, (run_dir.parent / "run", "--steps", 7, "--run-dir", run_dir))]
    )
    assert done.exit_code == code
    (options,) = given
    return options, done.stdout.splitlines()


def test_a_replay_is_a_child_of_the_step_that_sets_only_what_no_weight_depends_on(saved, monkeypatch):
    options, _ = replayed(monkeypatch, saved / "equal")
    assert options.checkpoint == str(saved / "run" / "checkpoints" / "5")
    assert options.run_dir == saved / "equal"
    assert options.overrides == (
        "trainer.max_steps=12",
        "trainer.log_every_steps=1",
        "trainer.journal=true",
        "checkpoint.save_every_steps=7",
    )


def test_it_says_where_the_stream_ended_and_whether_the_arrays_are_equal_there(saved, monkeypatch):
    step = saved / "run" / "checkpoints" / "5"
    for name, first, last in (
        ("equal", f"step 5: equal to {step}, every array bit for bit (SHA-256 ", ")"),
        ("moved", f"step 5: differs from {step} (SHA-256 ", "an end that has moved, or in a log that changed"),
        ("changed", f"step 5: differs from {step} (", "; different too: code_version, optimizer.sparse.learning_rate"),
    ):
        metrics, ended, compared = replayed(monkeypatch, saved / name)[1]
        assert metrics == f"metrics     {saved}/{name}/metrics.jsonl: a line for each step"
        assert ended == "the stream ended at step 5, before step 12"
        assert compared.startswith(first)
        assert compared.endswith(last)


def test_a_replay_that_was_stopped_compares_nothing_and_keeps_the_exit_code(saved, monkeypatch):
    assert replayed(monkeypatch, saved / "equal", code=143)[1] == [
        f"metrics     {saved}/equal/metrics.jsonl: a line for each step"
    ]


def test_a_step_that_the_run_no_longer_has_is_not_compared(saved, tmp_path):
    step = saved / "run" / "checkpoints" / "5"
    line = f"step 5: not compared, {tmp_path}/5 is not there (any more)"
    assert replay.comparison(tmp_path / "5", step) == line
    (shutil.copytree(step, tmp_path / "5") / "run.json").unlink()
    assert replay.comparison(tmp_path / "5", step) == line


# lag, inspect and resend on a real Apache Kafka


@pytest.fixture(scope="module")
def topic(kafka) -> str:
    """Three partitions. Partition 0 held ten rows, of which the first two are gone, then a tombstone, the two records of a
    transaction and its marker: offsets 2 to 13. The others are empty."""
    name, value = f"operator-{uuid.uuid4().hex[:8]}", b'{"price": 1.5, "click": 1, "history_actions": []}'
    create_topic(KafkaLog(bootstrap_servers=kafka), name, 3)
    with closing(KafkaProducer(bootstrap_servers=kafka, transactional_id=name)) as producer:
        producer.init_transactions()
        with closing(KafkaProducer(bootstrap_servers=kafka)) as plain:
            for i in range(10):
                plain.send(name, value, key=b"k%d" % i, partition=0, timestamp_ms=T0 + i).get(timeout=10)
            plain.send(name, None, key=b"gone", partition=0, timestamp_ms=T0 + 10).get(timeout=10)
        producer.begin_transaction()
        for i in (11, 12):
            producer.send(name, b"?" if i == 12 else value, partition=0, timestamp_ms=T0 + i)
        producer.commit_transaction()
    with closing(KafkaAdminClient(bootstrap_servers=kafka)) as admin:
        admin.delete_records({TopicPartition(name, 0): 2})
    return name


def run_at(kafka, topic, folder, held: dict[int, PartitionPosition]):
    """A run folder whose step 80 holds these positions of the topic."""
    log = {"__class": "KafkaLog", "bootstrap_servers": kafka}
    given = [f"dataset.topic_name={topic}", f"dataset.log={json.dumps(log)}", "dataset.codec=json"]
    step = folder / "checkpoints" / "80"
    run = Run.first(name="x", environment=ENVIRONMENT, start=START)
    write_step(step, apply_overrides(small_config(), given), run)
    (step / "positions.json").write_text(positions.to_json({topic: TopicPositions(topic, None, held)}))
    return folder


@pytest.mark.kafka
def test_lag_is_what_kafka_has_beyond_the_saved_positions(kafka, topic, tmp_path):
    run_dir = run_at(kafka, topic, tmp_path, {0: PartitionPosition(5, 0, T0 + 4), 1: PartitionPosition(0)})
    found = json.loads(call("data", "lag", run_dir, "--json"))
    columns = ("partition", "offset", "log_start", "log_end", "lag", "trained_ms", "state")
    assert [tuple(p[name] for name in columns) for p in found["partitions"]] == [
        (0, 5, 2, 14, 9, T0 + 4, "ok"),
        (1, 0, 0, 0, 0, None, "ok"),
        (2, None, 0, 0, 0, None, "new"),
    ]
    assert found["total"]["lag"] == 9


@pytest.mark.kafka
def test_positions_that_kafka_no_longer_or_never_held_are_lost(kafka, topic, tmp_path):
    run_dir = run_at(
        kafka, topic, tmp_path, {0: PartitionPosition(1), 1: PartitionPosition(1), 2: PartitionPosition(0)}
    )
    found = json.loads(call("data", "lag", run_dir, "--json"))
    assert [(p["lag"], p["state"]) for p in found["partitions"]] == [(None, "lost"), (None, "lost"), (0, "ok")]
    assert call("data", "lag", run_dir).splitlines()[-1].split() == ["total", "0", "-", "-", "2", "lost"]


@pytest.mark.kafka
def test_inspect_tells_rows_from_tombstones_holes_and_what_is_outside_the_log(kafka, topic, tmp_path):
    run_dir = run_at(kafka, topic, tmp_path, {0: PartitionPosition(5)})

    def inspected(offset):
        return json.loads(call("data", "inspect", run_dir, 0, offset, "--json"))

    found = {offset: inspected(offset)["found"] for offset in (1, 2, 9, 10, 11, 13, 14)}
    assert found == {
        1: "before the start",
        2: "record",
        9: "record",
        10: "tombstone",
        11: "record",
        13: "hole",
        14: "beyond the end",
    }
    nine = inspected(9)
    assert (nine["timestamp_ms"], nine["key"], nine["bad_rows"]) == (T0 + 9, b"k9".hex(), [])
    assert [c["value"] for c in nine["rows"][0]["columns"]] == [1.5, 1, []]
    assert inspected(12)["undecodable"].startswith("not JSON: ")


@pytest.mark.kafka
def test_a_dead_letter_is_sent_to_a_topic_of_kafka_with_its_key_and_time(kafka, topic, tmp_path):
    name = f"{topic}-again"
    file = tmp_path / "dead-letters-0.jsonl"
    letters = [BadRow(2, 7, None, T0 + 7, None, b"without a key", "why"), BadRow(0, 8, None, T0 + 8, b"k", b"?", "why")]
    file.write_text("".join(json.dumps(to_line(DeadLetter(80, topic, bad))) + "\n" for bad in letters))
    words = ["data", "resend", str(file), "--to", kafka, "--topic", name]
    with pytest.raises(ConfigError, match=f"topic '{name}' is not at {kafka}: did you mean '{topic}'"):
        CliRunner().invoke(app(), words, catch_exceptions=False)
    create_topic(KafkaLog(bootstrap_servers=kafka), name, 3)
    call(*words)
    with closing(KafkaSource(KafkaLog(bootstrap_servers=kafka), name)) as source:
        ends = source.end_offsets([0, 1, 2])
        source.assign(dict.fromkeys(ends, 0))
        records = []
        while source.fetch_positions() != ends:
            records += source.poll(500)
    by_key = {record.key: record for record in records}
    assert (by_key[None].kafka_partition, by_key[None].timestamp_ms, by_key[None].value) == (
        2,
        T0 + 7,
        b"without a key",
    )
    # xxh64 of the byte "k" is 0xc3d31922c50b1b63, which is 1 modulo 3.
    assert (by_key[b"k"].kafka_partition, by_key[b"k"].timestamp_ms, by_key[b"k"].value) == (1, T0 + 8, b"?")
