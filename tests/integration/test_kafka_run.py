"""The main job through a real Apache Kafka."""

import uuid

import pytest

from runs import ROOT, SMALL, digest, journal, kill_and_restart, summary, train, xrex

pytestmark = pytest.mark.kafka
RANKER_KAFKA = ROOT / "configs" / "ranker_kafka.yaml"


@pytest.fixture(scope="module")
def topic(kafka):
    """A topic of 4 partitions that holds what `small_log` holds."""
    name = f"run-engagements-{uuid.uuid4().hex[:8]}"
    xrex("data", "produce", "--to", kafka, "--topic", name, "--examples", 4000, "--rows-per-message", 30)
    return name


@pytest.fixture(scope="module")
def arguments(kafka, topic):
    place = (f"dataset.topic_name={topic}", f"dataset.log.bootstrap_servers={kafka}")
    return ("--config", RANKER_KAFKA, *place, *SMALL)


@pytest.fixture(scope="module")
def never_stopped(arguments, tmp_path_factory):
    """The run folder of a run over that topic."""
    run_dir = tmp_path_factory.mktemp("kafka") / "run"
    train(*arguments, "--run-dir", run_dir)
    return run_dir


def test_a_run_through_kafka_trains_every_row_once(never_stopped):
    rows = journal(never_stopped)
    assert len(rows) == len(set(rows)) == summary(never_stopped)["examples_trained"] == 4000


def test_kafka_and_the_directory_log_give_the_same_arrays(never_stopped, whole_run):
    """Both hold the same messages in the same order."""
    assert digest(never_stopped) == digest(whole_run)


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_run_through_kafka_killed_at_random_moments_ends_bit_equal(arguments, never_stopped, tmp_path, kills):
    run_dir = tmp_path / "run"
    last = kill_and_restart([*arguments, "--run-dir", run_dir], run_dir, kills=kills, seed=kills)
    assert last.returncode == 0, last.stderr
    assert digest(run_dir) == digest(never_stopped)
    assert summary(run_dir) == summary(never_stopped)
    assert journal(run_dir) == journal(never_stopped)


def test_a_topic_that_holds_records_is_not_filled_twice(kafka, topic):
    again = xrex("data", "produce", "--to", kafka, "--topic", topic, "--examples", 100, check=False)
    assert again.returncode == 1
    assert topic in again.stderr
    assert "Traceback" not in again.stderr


def test_a_missing_topic_is_one_line_that_names_the_nearest_and_exit_1(kafka, topic, tmp_path):
    done = train(
        "--config", RANKER_KAFKA, "--run-dir", tmp_path / "run",
        f"dataset.log.bootstrap_servers={kafka}", f"dataset.topic_name={topic[:-1]}", check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"'{topic[:-1]}'" in line
    assert topic in line.replace(f"'{topic[:-1]}'", "")
