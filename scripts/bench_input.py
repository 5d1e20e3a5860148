"""How fast a topic of a real Kafka becomes device-ready batches, beside the raw client on the same topic.

`make bench` includes it where a broker can be started. `scripts/bench_input.py --minutes 10` reads one topic again and again at
full speed and prints the memory of the process, which must stay flat.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from kafka import KafkaConsumer, TopicPartition

from xai_configlib import load_text
from xrex.data.batching import Batcher
from xrex.data.config import DatasetConfig
from xrex.data.dataset import start_positions
from xrex.data.log.open import open_log
from xrex.train.config import TrainerConfig

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "ranker_kafka.yaml"
PORT = "39092"
BATCH_ROWS = 100
EXAMPLES = {1: 20_000, 64: 60_000, 512: 100_000}
"""Rows a message -> rows of the topic."""


@contextmanager
def broker() -> Iterator[str | None]:
    """HOST:PORT of a Kafka for these measurements; None where none can be started."""
    script, environment = ROOT / "scripts" / "kafka.sh", {**os.environ, "KAFKA_PORT": PORT}
    up = subprocess.run([script, "up", "--fresh"], env=environment, capture_output=True, text=True)
    if up.returncode:
        yield None
        return
    try:
        yield up.stdout.split()[-1]
    finally:
        subprocess.run([script, "down"], env=environment, capture_output=True)


def topic_of(address: str, rows_per_message: int, examples: int) -> DatasetConfig:
    """A topic of 4 partitions with the quickstart's rows, and the dataset that reads it."""
    topic = f"bench-{rows_per_message}-{uuid.uuid4().hex[:8]}"
    produce = ("data", "produce", "--to", address, "--topic", topic, "--rows-per-message", str(rows_per_message))
    command = [sys.executable, "-m", "xrex.cli", *produce, "--examples", str(examples)]
    subprocess.run(command, check=True, capture_output=True)
    mapping = load_text(CONFIG.read_bytes(), str(CONFIG))
    mapping["dataset"] |= {"topic_name": topic, "log": {"__class": "KafkaLog", "bootstrap_servers": address}}
    return TrainerConfig.from_json(mapping).dataset


def read_raw(config: DatasetConfig) -> int:
    """kafka-python alone, as we set it: bytes of every message, nothing decoded. Returns the messages."""
    partitions = [TopicPartition(config.topic_name, p) for p in range(config.num_kafka_partitions)]
    settings = {"fetch_max_bytes": 32 * 2**20, "max_partition_fetch_bytes": 2 * 2**20, "max_poll_records": 4_096}
    consumer = KafkaConsumer(
        bootstrap_servers=config.log.bootstrap_servers,  # type: ignore[attr-defined]
        group_id=None,
        isolation_level="read_committed",
        **settings,
    )
    with closing(consumer):
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        left = sum(consumer.end_offsets(partitions).values())
        messages = 0
        while messages < left:
            messages += sum(map(len, consumer.poll(1_000).values()))
    return messages


def read_batches(config: DatasetConfig) -> int:
    """Our reader: merged, decoded, featurised, hashed, cut into batches. Returns the rows."""
    with closing(open_log(config.log, config.topic_name)) as log:
        batcher, rows, more = Batcher(config, log, start_positions(config).partitions, BATCH_ROWS), 0, True
        while more:
            delivery = batcher.next()
            rows, more = rows + delivery.rows, delivery.more
    return rows


def read_confluent(config: DatasetConfig) -> int:
    """librdkafka's client, as `read_raw`. Raises ImportError where it is not installed."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Partition

    settings = {
        "bootstrap.servers": config.log.bootstrap_servers,  # type: ignore[attr-defined]
        "group.id": "bench",
        "enable.auto.commit": False,
        "fetch.max.bytes": 32 * 2**20,
        "max.partition.fetch.bytes": 2 * 2**20,
    }
    consumer = Consumer(settings)
    partitions = range(config.num_kafka_partitions)
    ends = [consumer.get_watermark_offsets(Partition(config.topic_name, p), timeout=10)[1] for p in partitions]
    consumer.assign([Partition(config.topic_name, p, 0) for p in partitions])
    messages = 0
    while messages < sum(ends):
        messages += len(consumer.consume(4_096, 1.0))
    consumer.close()
    return messages


def seconds_of(read: Callable[[DatasetConfig], int], config: DatasetConfig) -> np.ndarray:
    """float64[2]: wall and CPU seconds of this process, all its threads; the broker's are another process's."""
    began = np.array([time.perf_counter(), time.process_time()])
    read(config)
    return np.array([time.perf_counter(), time.process_time()]) - began


def compare(address: str, rows_per_message: int, rounds: int = 3) -> np.ndarray:
    """float64[rounds, 2 (ours, raw client), 2 (wall, CPU)], in turns, each round in the other order."""
    config = topic_of(address, rows_per_message, EXAMPLES[rows_per_message])
    found = np.zeros((rounds, 2, 2))
    sides = (read_batches, read_raw)
    for side in sides:
        seconds_of(side, config)
    for i in range(rounds):
        for which in (0, 1) if i % 2 else (1, 0):
            found[i, which] = seconds_of(sides[which], config)
    return found


def flat_memory(address: str, minutes: float) -> None:
    """Read one topic again and again; print the resident memory each half minute."""
    config = topic_of(address, 64, 200_000)
    began = shown = time.monotonic()
    rows = 0
    while time.monotonic() - began < 60 * minutes:
        rows += read_batches(config)
        if time.monotonic() - shown >= 30:
            shown = time.monotonic()
            print(f"{shown - began:5.0f} s  {rows:,} rows  {resident_mb():.0f} MB", flush=True)
    print(f"{rows / (time.monotonic() - began):,.0f} examples/s over {minutes:g} minutes, now {resident_mb():.0f} MB")


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> int:
    """A table of rates, or the memory over minutes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, help="read for so long and print the memory")
    minutes = options.parse_args().minutes
    with broker() as address:
        if address is None:
            print("no Kafka could be started: see scripts/kafka.sh", file=sys.stderr)
            return 1
        if minutes:
            flat_memory(address, minutes)
            return 0
        for rows_per_message, examples in EXAMPLES.items():
            config = topic_of(address, rows_per_message, examples)
            for read in (read_raw, read_batches, read_confluent):
                try:
                    wall_s, cpu_s = np.median([seconds_of(read, config) for _ in range(3)], axis=0)
                except ImportError:
                    continue
                print(
                    f"{rows_per_message:4} rows a message  {read.__name__:15} {examples / wall_s:10,.0f} examples/s  "
                    f"{1e6 * cpu_s / examples:6.1f} us of CPU an example",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
