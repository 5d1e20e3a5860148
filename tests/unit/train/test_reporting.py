"""What an operator sees of a run that waits, or that passes something over."""

import io
import json
import socket
import time
from contextlib import closing
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

from small_model import config, random_batch
from xrex.errors import ConfigError, RunError
from xrex.report import prometheus
from xrex.report.prometheus import Prometheus
from xrex.schema.batch import BadRow, Delivery
from xrex.schema.positions import PartitionPosition, TopicPositions
from xrex.train import reporting
from xrex.train.progress import Progress
from xrex.train.reporting import Reporter, Standing
from xrex.train.step import StepReport

CONFIG = config()
TOPIC = TopicPositions("engagements", None, {0: PartitionPosition(3), 1: PartitionPosition(5)})


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests move by hand: monotonic and wall time alike."""
    now = [1_700_000_000.0]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(reporting.time, "time", lambda: now[0])
    return now


@pytest.fixture
def printed(monkeypatch):
    """What goes to stdout."""
    stream = io.StringIO()
    monkeypatch.setattr(reporting.sys, "stdout", stream)
    return stream


@pytest.fixture
def reporter(tmp_path, clock, printed):
    made = Reporter(tmp_path, log_every_steps=10, total_steps=None, examples_before=0)
    yield made
    made.close()


def standing(**given):
    progress = Progress.start(CONFIG.dataset.actions, (), 1_000)
    return Standing(progress, TOPIC, {0: 1_200, 1: 34}, None, **given)


def step_report(step: int) -> StepReport:
    return StepReport(
        step=np.int32(step),
        loss_sum=1.0,
        loss_weight=2.0,
        examples=np.int32(8),
        more=1,
        stop=0,
        faults=0,
        tokens=np.int32(30),
        slots=np.int32(40),
        logits=np.zeros(1),
    )


def test_a_run_without_records_says_once_a_minute_that_it_waits(reporter, clock, printed):
    for seconds in (30, 29.9, 0.2, 30, 30, 59):
        clock[0] += seconds
        reporter.idle(standing())
    lines = printed.getvalue().splitlines()
    assert lines == ["waiting for records: 1,234 behind, the newest trained is none yet"] * 2


def test_it_says_how_old_the_newest_record_is_and_how_often_a_broker_was_away(reporter, clock, printed):
    delivery = Delivery(random_batch(CONFIG), 8, {}, (), True, newest_event_ms=int(clock[0] * 1_000) - 5_000)
    reporter.after_step(delivery, step_report(1), 0.0)
    clock[0] += 60
    reporter.idle(standing(outages=2))
    (line,) = printed.getvalue().splitlines()
    assert line == "waiting for records: 1,234 behind, the newest trained is 65 s old; a broker was away 2 times"


def test_a_line_of_numbers_is_a_sign_of_life_too(reporter, clock, printed):
    clock[0] += 50
    reporter.line(10, standing(), 0.1)
    clock[0] += 50
    reporter.idle(standing())
    assert "waiting for records" not in printed.getvalue()


def test_of_bad_records_the_first_20_are_told_one_by_one(reporter, capsys):
    for offset in range(100):
        reporter.passed_over(BadRow(0, offset, None, 0, None, b"", f"offset {offset}: why"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "passed over: offset 0: why"
    assert lines[-1] == "passed over: offset 19: why; further ones only in dead-letters-*.jsonl"
    assert len(lines) == 20


def test_a_line_holds_the_share_of_slots_that_held_a_token_since_the_line_before(reporter, printed, tmp_path):
    delivery = Delivery(random_batch(CONFIG), 8, {}, (), True)
    reporter.after_step(delivery, step_report(1), 0.0)
    reporter.after_step(delivery, step_report(2)._replace(tokens=20), 0.0)
    reporter.line(2, standing(), 0.1)
    reporter.after_step(delivery, step_report(3), 0.0)
    reporter.line(3, standing(), 0.1)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["useful_slot_share"] for line in lines] == [50 / 80, 30 / 40]


def test_prometheus_is_served_lag_positions_rate_freshness_and_skips_on_loopback(tmp_path, printed):
    served_at = Prometheus("0")
    made = Reporter(tmp_path, log_every_steps=10, total_steps=None, examples_before=0, prometheus=served_at)
    with closing(served_at), closing(made):
        whole = standing(outages=3)
        whole.progress.skipped["bad_record"] = 2
        whole.newest_event_ms = int(time.time() * 1_000) - 5_000
        made.line(10, whole, 0.1)
        url = f"http://127.0.0.1:{served_at.port}/metrics"
        served = dict(line.rsplit(" ", 1) for line in urlopen(url).read().decode().splitlines() if line[0] != "#")
    assert float(served['phoenix_lag_records{partition="0"}']) == 1_200
    assert float(served['phoenix_next_offset{partition="1"}']) == 5
    assert float(served['phoenix_skipped_records{reason="bad_record"}']) == 2
    assert 5 <= float(served["phoenix_freshness_seconds"]) < 60
    assert float(served["phoenix_broker_outages"]) == 3
    assert {"phoenix_step", "phoenix_examples", "phoenix_examples_per_second", "phoenix_loss"} <= set(served)
    assert served_at._server.server_address[0] == "127.0.0.1"
    with pytest.raises(URLError):
        urlopen(url)


def test_a_port_that_is_taken_is_a_run_error_that_names_the_field(tmp_path, printed):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            RunError, match=f"trainer.prometheus_address = '{address}': cannot listen: Address already in"
        ):
            Prometheus(address)


def test_without_its_package_the_address_is_a_config_error(monkeypatch):
    monkeypatch.setattr(prometheus, "find_spec", lambda name: None)
    prometheus.check_prometheus(None)
    with pytest.raises(ConfigError, match=r"trainer\.prometheus_address = '9100': needs prometheus-client"):
        prometheus.check_prometheus("9100")


def test_text_of_a_message_does_not_reach_the_terminal_raw(reporter, capsys):
    reporter.passed_over(BadRow(0, 1, None, 0, None, b"", "why: \x1b[2Jevil\nline" + "x" * 5_000))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("passed over: why: \\x1b[2Jevil\\nlinexxx")
    assert len(line) < 1_100
