"""The stream through kills and outages, again and again: every row is trained exactly once, whatever happens when.

The short forms are slow tests; `make chaos` runs the long ones, which nothing else runs.
"""

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import orbax.checkpoint as ocp
import pyarrow as pa
import pytest
import xxhash

from chaos import (
    SHARES,
    Broker,
    append,
    chance,
    check_exactly_once,
    kill_again_and_again,
    newest_saved,
    rows_of,
    rows_trained,
    say,
    skewed_messages,
    started,
    still_writing,
)
from runs import QUICKSTART, ROOT, SMALL, digest, multihost, summary, train
from xrex.checkpoint.restore import read_tree
from xrex.data.log.config import KafkaLog
from xrex.data.log.directory import SCHEMA, DirectoryTopicWriter, create_topic
from xrex.data.log.kafka import KafkaTopicWriter

SHORT = (pytest.mark.slow, pytest.mark.timeout(900))
LONG = (
    pytest.mark.chaos,
    pytest.mark.timeout(7_200),
    pytest.mark.skipif("'chaos' not in config.option.markexpr", reason="takes long: make chaos"),
)
PATIENCE_MS = 30_000
"""dataset.log.request_timeout_ms here: a run may start while the broker does, and that takes seconds."""
LIMIT_S = 1_800
"""Of a run that nobody disturbs."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that may be ended."""
    broker = Broker(port=19392)
    up = broker.script("up", "--fresh")
    if up.returncode:
        complain = pytest.fail if os.environ.get("CI") else pytest.skip
        complain(f"no Kafka: {up.stderr.strip()}")
    try:
        if broker.runs_in != "java":
            pytest.skip("a broker in Docker cannot be ended by its pid; install Java 17 and Maven, or set KAFKA_HOME")
        yield broker
    finally:
        broker.script("down")


@pytest.fixture
def writer(broker, topic_name) -> Iterator[KafkaTopicWriter]:
    log = KafkaLog(bootstrap_servers=broker.address, request_timeout_ms=PATIENCE_MS)
    with closing(KafkaTopicWriter(log, topic_name, len(SHARES))) as writer:
        yield writer


@pytest.fixture
def arguments(broker, topic_name) -> tuple:
    """A run over the topic that `writer` writes."""
    return (
        "--config",
        ROOT / "configs" / "ranker_kafka.yaml",
        f"dataset.topic_name={topic_name}",
        f"dataset.log.bootstrap_servers={broker.address}",
        f"dataset.log.request_timeout_ms={PATIENCE_MS}",
        *SMALL,
    )


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("rows", "kills", "restarts"),
    [pytest.param(5_000, 5, 1, marks=SHORT, id="short"), pytest.param(50_000, 50, 5, marks=LONG, id="long")],
)
def test_a_run_killed_again_and_again_over_a_restarting_broker_ends_bit_equal(
    broker, writer, arguments, tmp_path, rows, kills, restarts
):
    moments = chance("killed over a restarting broker")
    messages = skewed_messages(rows, moments)
    append(writer, messages)
    arguments = (*arguments, "dataset.prefetch_batches=1000")
    undisturbed, run_dir = tmp_path / "undisturbed", tmp_path / "run"
    train(*arguments, "--run-dir", undisturbed, timeout=LIMIT_S)
    struck = kill_again_and_again(
        arguments, run_dir, moments, kills=kills, last_step=-(-rows // 50), broker=broker, restarts=restarts
    )
    train(*arguments, "--run-dir", run_dir, timeout=LIMIT_S)
    say(f"{rows:,} rows in {len(messages)} messages: {struck}")
    check_exactly_once(undisturbed, rows_of(messages))
    check_exactly_once(run_dir, rows_of(messages))
    assert digest(run_dir) == digest(undisturbed)
    assert summary(run_dir) == summary(undisturbed)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("kills", "restarts"),
    [pytest.param(5, 0, marks=SHORT, id="short"), pytest.param(30, 3, marks=LONG, id="long")],
)
def test_rows_that_are_still_being_written_while_the_run_is_killed_are_trained_once(
    broker, writer, arguments, tmp_path, kills, restarts
):
    moments = chance("killed while a producer writes")
    run_dir = tmp_path / "run"
    arguments = (*arguments, "dataset.stop_at_end=false", "dataset.linger_ms=200")
    with still_writing(writer, skewed_messages(20_000, moments), moments, pause_s=0.2) as written:
        struck = kill_again_and_again(arguments, run_dir, moments, kills=kills, broker=broker, restarts=restarts)
    produced = rows_of(written)
    with started(arguments, run_dir) as last:
        last.wait_until(lambda: last.is_on_its_way() and rows_trained(run_dir) >= produced.total(), every_s=0.5)
        last.process.send_signal(signal.SIGTERM)
        assert last.process.wait(timeout=120) == 128 + signal.SIGTERM
    say(f"{produced.total():,} rows in {len(written)} messages: {struck}")
    check_exactly_once(run_dir, produced)
    assert summary(run_dir)["examples_trained"] == produced.total()


@pytest.mark.kafka
@pytest.mark.multihost
@pytest.mark.parametrize(
    ("rows", "kills", "restarts", "with_a_save"),
    [
        pytest.param(12_000, 3, 0, 1.0, marks=SHORT, id="short"),
        pytest.param(50_000, 24, 2, 0.5, marks=LONG, id="long"),
    ],
)
def test_a_run_killed_on_1_then_2_then_4_processes_and_ended_on_1_trains_every_row_once(
    broker, writer, arguments, tmp_path, rows, kills, restarts, with_a_save
):
    moments = chance("killed on 1, 2, 4 processes")
    messages = skewed_messages(rows, moments)
    append(writer, messages)
    run_dir = tmp_path / "run"
    arguments = (*arguments, "trainer.global_batch_size=48")
    struck = kill_again_and_again(
        arguments,
        run_dir,
        moments,
        kills=kills,
        processes=(1, 2, 4),
        with_a_save=with_a_save,
        broker=broker,
        restarts=restarts,
    )
    done = multihost(1, *arguments, "--run-dir", run_dir, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    say(f"{rows:,} rows in {len(messages)} messages: {struck}")
    # Of the processes that are no more: the fourth of four had the empty partition alone.
    assert {file.name for file in run_dir.glob("journal-*.jsonl")} == {f"journal-{i}.jsonl" for i in range(3)}
    check_exactly_once(run_dir, rows_of(messages))
    assert summary(run_dir)["examples_trained"] == rows


@pytest.mark.multihost
@pytest.mark.slow
def test_offsets_above_2_31_and_ids_above_2_53_pass_through_save_merge_and_restore(tmp_path):
    messages = skewed_messages(1_500, random.Random(0), least_id=2**53 + 1)
    first_offsets = (2**31 + 7, 2**40 + 3, 2**53 + 1, 2**62)
    write_from(tmp_path / "log", first_offsets, messages)
    run_dir = tmp_path / "run"
    arguments = ("--config", QUICKSTART, f"dataset.log.path={tmp_path / 'log'}", *SMALL)
    with started(arguments, run_dir, processes=2) as start:
        start.wait_until(lambda: newest_saved(run_dir))
        start.kill()
    saved = newest_saved(run_dir)
    assert places(positions_of(run_dir, saved)) == places_after(run_dir, saved, messages, first_offsets)
    train("--run-dir", run_dir)
    check_exactly_once(run_dir, rows_of(messages, first_offsets))
    assert positions_of(run_dir, newest_saved(run_dir)) == positions_at_the_end(messages, first_offsets)
    users, items = ids_in(messages, "user"), ids_in(messages, "item")
    assert min(users | items) > 2**53
    assert len({int(float(user)) for user in users}) < len(users)  # what a float64 on the way would make of them
    tables = json.loads((run_dir / "config.json").read_text())["dataset"]["tables"]
    trained = trained_rows(run_dir, initial_accumulator=5e-4)
    assert trained[trained < 65_536].tolist() == hashed(users, tables[0])
    assert (trained[(trained >= 65_536) & (trained < 2 * 65_536)] - 65_536).tolist() == hashed(items, tables[1])


def write_from(path, first_offsets, messages) -> None:
    """A directory log whose partitions begin at these offsets: a file without records, named so, is their beginning."""
    folder = create_topic(path, "engagements", len(first_offsets))
    for kafka_partition, offset in enumerate(first_offsets):
        with pa.ipc.new_file(folder / str(kafka_partition) / f"{offset:020d}.arrow", SCHEMA):
            pass
    with closing(DirectoryTopicWriter(path, "engagements", len(first_offsets))) as writer:
        append(writer, messages)


def positions_of(run_dir, step) -> dict[str, dict]:
    """The partitions of a step's positions.json."""
    return json.loads((run_dir / "checkpoints" / str(step) / "positions.json").read_text())["topics"][0]["partitions"]


def places(positions) -> dict[int, tuple[int, int]]:
    return {int(p): (position["offset"], position["row"]) for p, position in positions.items()}


def places_after(run_dir, step, messages, first_offsets) -> dict[int, tuple[int, int]]:
    """Next (offset, row) of each partition by what the journals say was trained up to a step."""
    sizes: dict[int, list[int]] = {p: [] for p in range(len(first_offsets))}
    for message in messages:
        sizes[message.kafka_partition].append(message.rows)
    found = {p: (offset, 0) for p, offset in enumerate(first_offsets)}
    for file in run_dir.glob("journal-*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            for p, offset, first_row, rows in line["trained"] if line["step"] <= step else ():
                row = first_row + rows
                found[p] = (offset + 1, 0) if row == sizes[p][offset - first_offsets[p]] else (offset, row)
    return found


def positions_at_the_end(messages, first_offsets) -> dict[str, dict]:
    found = {}
    for p, first in enumerate(first_offsets):
        entries = [message.entry for message in messages if message.kafka_partition == p]
        end, last = first + len(entries), entries[-1] if entries else None
        found[str(p)] = {
            "offset": end,
            "row": 0,
            "timestamp_ms": last[0] if last else None,
            "fingerprint": xxhash.xxh64_hexdigest(last[2]) if last else None,
            "fingerprint_offset": end - 1 if last else None,
            "end_offset": end,
        }
    return found


def ids_in(messages, column) -> set[int]:
    """All ids of a column, as the messages have them."""
    tables = [pa.ipc.open_stream(message.entry[2]).read_all() for message in messages]
    values = pa.concat_tables(tables)[column].combine_chunks()
    return set((values.flatten() if pa.types.is_list(values.type) else values).to_pylist())


def hashed(ids, table) -> list[int]:
    """docs/data.md in plain integers: the rows that ids have in a table, ascending."""
    return sorted({splitmix64(number ^ salt) % table["num_embeddings"] for number in ids for salt in table["salts"]})


def splitmix64(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def trained_rows(run_dir, *, initial_accumulator) -> np.ndarray:
    """Rows of the tables, one table after the other, that the newest step has updated at least once."""
    step_dir = run_dir / "checkpoints" / str(newest_saved(run_dir))
    as_numpy = {"slots": {"d32": ocp.RestoreArgs(restore_type=np.ndarray)}}
    accumulators = read_tree(step_dir, {"slots": {"d32": 0}}, as_numpy)["slots"]["d32"]
    return np.flatnonzero(accumulators != np.float32(initial_accumulator))
