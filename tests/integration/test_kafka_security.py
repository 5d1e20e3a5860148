"""Every way to speak to a real Apache Kafka, right and wrong: rows arrive, a failure says what to do, no secret is told."""

import json
import random
import shlex
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from runs import ROOT, SMALL, digest, run, train, xrex
from secure_kafka import MECHANISMS, PASSWORD, at, security, token, write_secret
from xai_configlib import load_text
from xrex.data.log import kafka as kafka_log
from xrex.data.log.base import Entry
from xrex.data.log.config import KafkaLog
from xrex.data.log.kafka import KafkaSource, KafkaTopicWriter
from xrex.errors import LogUnreachable

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.usefixtures("secure_kafka")]  # a broker of their own
RANKER_KAFKA = ROOT / "configs" / "ranker_kafka.yaml"
ROUTES = [
    ("PLAINTEXT", None),
    ("SSL", None),
    *((protocol, mechanism) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory) -> dict[str, str]:
    """Name of a file -> the secret in it; the files lie in $PHOENIX_SECRETS_DIR."""
    folder = tmp_path_factory.mktemp("secrets")
    found = {
        "password": PASSWORD,
        "wrong": "wrong-but-kept-quiet-too",
        "token": token(),
        "expired": token(lives_s=-30),
    }
    for name, secret in found.items():
        write_secret(folder / name, secret)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHOENIX_SECRETS_DIR", str(folder))
        yield found


def log_of(protocol: str, mechanism: str | None, timeout_ms: int = 5_000, *, to: str | None = None) -> KafkaLog:
    """to   the listener of another protocol"""
    node = {"__class": "KafkaLog", "bootstrap_servers": at(to or protocol), "request_timeout_ms": timeout_ms}
    return KafkaLog.from_json(node | {"security": security(protocol, mechanism)})


def read(source: KafkaSource, number: int) -> dict[int, list[Entry]]:
    """Per partition the next records, until so many have come (at most 20 s)."""
    found: dict[int, list[Entry]] = {}
    deadline = time.monotonic() + 20
    while (missing := number - sum(map(len, found.values()))) > 0:
        assert time.monotonic() < deadline, f"{missing} of {number} records did not come"
        for record in source.poll(200):
            found.setdefault(record.kafka_partition, []).append((record.timestamp_ms, record.key, record.value))
    return found


# Right: every protocol with every mechanism


@pytest.mark.parametrize(("protocol", "mechanism"), ROUTES)
def test_records_written_over_a_route_are_read_over_it(secrets, topic_name, protocol, mechanism):
    chance = random.Random(7)
    wrote = {
        p: [(1_000 * p + i, b"%d" % i, chance.randbytes(chance.randint(1, 20_000))) for i in range(60)] for p in (0, 1)
    }
    log = log_of(protocol, mechanism)
    with closing(KafkaTopicWriter(log, topic_name, 2)) as writer:
        for kafka_partition in wrote:
            writer.append(kafka_partition, wrote[kafka_partition])
    with closing(KafkaSource(log, topic_name)) as source:
        source.assign({0: 0, 1: 0})
        assert read(source, 120) == wrote


@pytest.fixture(scope="module")
def journey(secrets, tmp_path_factory):
    """What `small_log` holds, written over TLS with a password and trained over TLS with a token: (both, run folder)."""
    folder = tmp_path_factory.mktemp("journey")
    config = load_text(RANKER_KAFKA.read_bytes(), "")
    config["dataset"]["log"]["security"] = security("SASL_SSL", "SCRAM-SHA-512")
    (folder / "secured.json").write_text(json.dumps(config))
    produced = xrex(
        "data", "produce", "--to", at("SASL_SSL"), "--config", folder / "secured.json",
        "--topic", f"journey-{uuid.uuid4().hex[:12]}", "--examples", 4000, "--rows-per-message", 30,
    )  # fmt: skip
    command = shlex.split(produced.stdout.splitlines()[-1].removeprefix("next: "))
    by_token = f"dataset.log.security={json.dumps(security('SASL_SSL', 'OAUTHBEARER'))}"
    trained = run(*command, *SMALL, by_token, "--run-dir", folder / "run")
    return (produced, trained), folder / "run"


def test_a_run_over_tls_and_sasl_trains_the_same_arrays_as_one_from_files(journey, whole_run):
    """The command that `data produce --config` prints is the one that reads what it wrote."""
    assert digest(journey[1]) == digest(whole_run)


def test_a_run_that_did_well_tells_no_secret(journey, secrets):
    done, run_dir = journey
    assert leaks(secrets, done, run_dir) == []
    assert '"file": "token"' in (run_dir / "config.json").read_text(), "the reference stands there, not what it names"


# Wrong: one line each, that says what it is and what to do

EXPECTS = "check that dataset.log.security.protocol = "
FAILURES = {
    "port closed": (
        "127.0.0.1:1", security("SASL_SSL", "PLAIN"), "no connection (Connection refused)", "is the broker up",
    ),
    "unknown host": (
        "no-such-host.invalid:9093", security("SASL_SSL", "PLAIN"),
        "host name no-such-host.invalid cannot be resolved", "check dataset.log.bootstrap_servers",
    ),
    "unknown authority": (
        at("SASL_SSL"), security("SASL_SSL", "PLAIN", ca_file=None),
        "a certificate of an unknown authority", "dataset.log.security.ca_file = null must be a PEM file",
    ),
    "other host": (
        at("SSL", host="localhost"), security("SSL"),
        "a certificate that is not for localhost", "name the brokers in dataset.log.bootstrap_servers",
    ),
    "plaintext to TLS": (
        at("SSL"), security("PLAINTEXT"), "does not answer as a Kafka broker",
        f"{EXPECTS}'PLAINTEXT' is what this listener expects; one with TLS needs SSL",
    ),
    "wrong password": (
        at("SASL_SSL"), security("SASL_SSL", "PLAIN", password={"file": "wrong"}),
        "authentication failed for user 'reader'", "check username, password and sasl_mechanism",
    ),
    "unknown user": (
        at("SASL_PLAINTEXT"), security("SASL_PLAINTEXT", "SCRAM-SHA-256", username="nobody"),
        "authentication failed for user 'nobody'", "check username, password and sasl_mechanism",
    ),
    "expired token": (
        at("SASL_SSL"), security("SASL_SSL", "OAUTHBEARER", token={"file": "expired"}),
        "authentication failed for the bearer of the token", "check token and sasl_mechanism",
    ),
    "missing topic": (
        at("SASL_SSL"), security("SASL_SSL", "SCRAM-SHA-256"),
        f"topic 'absent' is not at {at('SASL_SSL')}", "write it: xrex data produce",
    ),
}  # fmt: skip
"""Name -> (address, security, what the first line says, what to do)."""


@pytest.fixture(scope="module")
def failed(secrets, tmp_path_factory):
    """Name -> (the trainer's end, its run folder); two run at a time."""
    folder = tmp_path_factory.mktemp("failed")

    def fail(name: str):
        address, how, *_ = FAILURES[name]
        run_dir = folder / name.replace(" ", "-")
        done = train(
            "--config", RANKER_KAFKA, "--run-dir", run_dir, "dataset.topic_name=absent",
            f"dataset.log.bootstrap_servers={address}", f"dataset.log.security={json.dumps(how)}",
            "dataset.log.request_timeout_ms=2000", check=False,
        )  # fmt: skip
        return done, run_dir

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(FAILURES, pool.map(fail, FAILURES), strict=True))


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_a_line_that_says_what_it_is_and_what_to_do_and_exit_1(failed, name):
    _, _, what, fix = FAILURES[name]
    done, _ = failed[name]
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert what in lines[0]
    assert fix in lines[0]
    assert "Traceback" not in done.stderr
    assert len(lines) <= 20


def test_no_two_failures_begin_with_the_same_words(failed):
    """Apart from the address, which differs of itself."""
    lines = [done.stderr.splitlines()[0] for done, _ in failed.values()]
    assert len({line.partition("cannot be used: ")[2] or line for line in lines}) == len(FAILURES)


def test_a_run_that_failed_tells_no_secret(failed, secrets):
    for done, run_dir in failed.values():
        assert leaks(secrets, [done], run_dir) == []


def leaks(secrets: dict[str, str], done, folder: Path) -> list[tuple[str, str]]:
    """(secret, place) wherever a secret stands in what these processes printed or in a file of the folder."""
    texts = {
        f"{stream} {i}": getattr(d, stream).encode() for i, d in enumerate(done) for stream in ("stdout", "stderr")
    }
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files, f"{folder} holds nothing to look at"
    return [
        (name, place)
        for name, secret in secrets.items()
        for place, text in (texts | files).items()
        if secret.encode() in text
    ]


@pytest.mark.parametrize(
    ("protocol", "mechanism", "to", "what", "needs"),
    [
        ("SSL", None, "PLAINTEXT", "the TLS handshake failed (", "one without TLS needs PLAINTEXT or SASL_PLAINTEXT"),
        ("SASL_SSL", "PLAIN", "SASL_PLAINTEXT", "the TLS handshake failed (", "one without TLS needs PLAINTEXT or SASL_PLAINTEXT"),
        ("SASL_PLAINTEXT", "PLAIN", "SASL_SSL", "does not answer as a Kafka broker", "one with TLS needs SSL or SASL_SSL"),
        ("PLAINTEXT", None, "SASL_PLAINTEXT", "gives no metadata", "one that asks for a user needs SASL_SSL or SASL_PLAINTEXT"),
        ("SSL", None, "SASL_SSL", "gives no metadata", "one that asks for a user needs SASL_SSL or SASL_PLAINTEXT"),
        ("SASL_SSL", "PLAIN", "SSL", "asks for no user", "one without SASL needs SSL or PLAINTEXT"),
    ],
)  # fmt: skip
def test_the_protocol_of_another_listener_is_not_taken_for_a_wrong_password(
    secrets, protocol, mechanism, to, what, needs
):
    with pytest.raises(LogUnreachable) as caught:
        KafkaSource(log_of(protocol, mechanism, 1_000, to=to), "any").close()
    assert what in str(caught.value)
    assert f"{EXPECTS}'{protocol}' is what this listener expects; {needs}" in str(caught.value)


# Before anything is connected to: exit 2

NOT_SET = "environment variable KAFKA_NOT_THERE is not set: set it to the secret"


@pytest.mark.parametrize(
    ("mechanism", "changes", "line"),
    [
        ("PLAIN", {"password": {"env": "KAFKA_NOT_THERE"}}, NOT_SET),
        ("OAUTHBEARER", {"token": {"env": "KAFKA_NOT_THERE"}}, NOT_SET),
        ("PLAIN", {"username": None}, "dataset.log.security.username = null: SASL_SSL needs one, or choose PLAINTEXT or SSL"),
        ("OAUTHBEARER", {"token": None}, "dataset.log.security.token = null: OAUTHBEARER needs one, or choose PLAINTEXT or SSL"),
    ],
)  # fmt: skip
def test_a_dry_run_names_what_is_missing(secrets, tmp_path, mechanism, changes, line):
    how = f"dataset.log.security={json.dumps(security('SASL_SSL', mechanism, **changes))}"
    done = train("--config", RANKER_KAFKA, "--dry-run", "--run-dir", tmp_path / "run", how, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (2, [line])
    assert list(tmp_path.iterdir()) == []


# Tokens that end


@pytest.fixture
def token_file(tmp_path, monkeypatch) -> Path:
    """Where the token of a test stands, alone in $PHOENIX_SECRETS_DIR."""
    monkeypatch.setenv("PHOENIX_SECRETS_DIR", str(tmp_path))
    return tmp_path / "token"


@pytest.fixture
def sent(monkeypatch) -> list[str]:
    """Every token that was asked for in order to be sent."""
    tokens: list[str] = []
    real = kafka_log.bearer_token
    monkeypatch.setattr(kafka_log, "bearer_token", lambda security: tokens.append(real(security)) or tokens[-1])
    return tokens


def test_a_token_that_is_replaced_in_its_file_is_picked_up_when_the_session_ends(token_file, sent, topic_name):
    first, second, first_ends = token(lives_s=5), token(lives_s=600), time.monotonic() + 5
    write_secret(token_file, first)
    log = log_of("SASL_SSL", "OAUTHBEARER")
    with closing(KafkaTopicWriter(log, topic_name, 1)) as writer, closing(KafkaSource(log, topic_name)) as source:
        source.assign({0: 0})
        writer.append(0, [(1, b"k", b"before")])
        assert read(source, 1) == {0: [(1, b"k", b"before")]}
        assert set(sent) == {first}
        write_secret(token_file, second)
        while time.monotonic() < first_ends + 1:
            assert source.poll(200) == []
        writer.append(0, [(2, b"k", b"after")])
        assert read(source, 1) == {0: [(2, b"k", b"after")]}
    assert sent[-1] == second


def test_a_token_that_is_gone_is_named_by_its_reference(token_file, topic_name):
    write_secret(token_file, token())
    with closing(KafkaSource(log_of("SASL_SSL", "OAUTHBEARER", timeout_ms=1_000), topic_name)) as source:
        token_file.unlink()
        with pytest.raises(LogUnreachable, match=r"cannot be used: secret file 'token': No such file"):
            source.info()


@pytest.mark.slow
def test_a_reader_whose_token_is_not_replaced_ends_with_an_error_that_says_so(token_file, topic_name):
    write_secret(token_file, token(lives_s=4))
    log = log_of("SASL_SSL", "OAUTHBEARER", timeout_ms=1_000)
    KafkaTopicWriter(log, topic_name, 1).close()
    with closing(KafkaSource(log, topic_name)) as source:
        source.assign({0: 0})
        with pytest.raises(LogUnreachable, match="authentication failed for the bearer of the token"):
            read(source, 1)
