"""Small runs to compare with, and a Kafka that asks who is there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runs import QUICKSTART, SMALL, train, xrex
from secure_kafka import started


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[None]:
    """The real Apache Kafka of secure_kafka.py, which listens with every protocol."""
    yield from started()


@pytest.fixture(scope="session")
def small_log(tmp_path_factory) -> Path:
    """A directory log: 4,000 rows of the synthetic world in messages of 30 rows over 4 partitions."""
    folder = tmp_path_factory.mktemp("log")
    xrex("data", "produce", "--to", folder, "--topic", "engagements", "--examples", 4000, "--rows-per-message", 30)
    return folder


@pytest.fixture(scope="session")
def small(small_log) -> tuple:
    """Arguments of a run of 80 steps over `small_log`."""
    return ("--config", QUICKSTART, f"dataset.log.path={small_log}", *SMALL)


@pytest.fixture(scope="session")
def whole_run(small, tmp_path_factory) -> Path:
    """The run folder of that run, never stopped."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(*small, "--run-dir", run_dir)
    return run_dir
