"""Checkpoints in an object store: a server that speaks S3 on loopback, and what it answers when something is wrong.

The server is moto's, in memory. Nothing but 127.0.0.1 is asked: neither a profile nor a metadata service of this machine.
"""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread

import pytest
from test_damage import flip, largest_file

from runs import digest, multihost, train, xrex
from xrex.checkpoint import layout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(package) is None for package in ("moto", "flask_cors", "s3fs")),
        reason="no local S3 server: .venv/bin/pip install 'moto[s3]' flask flask-cors s3fs",
    ),
]

SECRET = "hunter2-of-the-store"
BUCKET = "models"
NO_BYTE_S = 2
"""Where a server keeps silent: how long TensorStore waits for a byte, five times. 60 s unless set."""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    """Host and port of the S3 server."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    yield moto.get_host_and_port()
    moto.stop()


@pytest.fixture(scope="module")
def upload(server) -> Callable[[Path, str], str]:
    """upload(folder, name) -> s3://models/NAME, which then holds the folder's files."""
    import boto3  # not the client that is tested

    keys = {"aws_access_key_id": "writer", "aws_secret_access_key": "-", "region_name": "us-east-1"}
    store = boto3.client("s3", endpoint_url="http://{}:{}".format(*server), **keys)
    store.create_bucket(Bucket=BUCKET)

    def put(folder: Path, name: str) -> str:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            store.upload_file(str(file), BUCKET, f"{name}/{file.relative_to(folder)}")
        return f"s3://{BUCKET}/{name}"

    return put


@pytest.fixture(scope="module")
def in_store(whole_run, upload) -> str:
    """The address of a copy of `whole_run`."""
    return upload(whole_run, "run")


@pytest.fixture(autouse=True)
def environment(server, monkeypatch) -> None:
    """What a user exports to reach this server, and nothing else that a client of S3 reads."""
    for name in [*os.environ]:
        if name.startswith(("AWS_", "FSSPEC_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")  # as a command sets it: in this process it shall not outlive the test
    monkeypatch.setenv("PYTHON", sys.executable)  # for scripts/run_multihost.sh


@pytest.mark.parametrize(
    "command",
    [
        ("config", "show"),
        ("checkpoint", "list"),
        ("checkpoint", "positions"),
        ("checkpoint", "arrays"),
        ("checkpoint", "verify"),
        ("checkpoint", "digest"),
    ],
    ids=" ".join,
)
def test_a_command_prints_of_a_run_in_a_store_what_it_prints_of_the_local_folder(in_store, whole_run, command):
    of_store, of_folder = xrex(*command, in_store), xrex(*command, whole_run)
    assert of_store.stdout.replace(in_store, str(whole_run)) == of_folder.stdout
    assert of_store.stderr == ""


@pytest.mark.parametrize("place", ["run/checkpoints/80", "run/checkpoints", "run", "run/"])
def test_a_step_a_checkpoints_and_a_run_folder_each_name_a_step(in_store, place):
    done = xrex("checkpoint", "digest", f"s3://{BUCKET}/{place}")
    assert done.stdout.split()[1] == f"{in_store}/checkpoints/80"


def test_a_child_of_a_step_in_a_store_repeats_its_parent_bit_for_bit_and_restarts_without_a_step_of_its_own(
    in_store, whole_run, tmp_path
):
    child = tmp_path / "child"
    train("--checkpoint", f"{in_store}/checkpoints/60", "--run-dir", child)
    for step in ("60", "75", "80"):  # 60 is what it took over
        assert digest(child / "checkpoints" / step) == digest(whole_run / "checkpoints" / step)
    shutil.rmtree(child / "checkpoints")
    train("--run-dir", child)
    assert digest(child) == digest(whole_run)


@pytest.mark.multihost
def test_two_processes_take_over_a_step_in_a_store(in_store, whole_run, tmp_path):
    child = tmp_path / "child"
    done = multihost(
        2, "--checkpoint", f"{in_store}/checkpoints/60", "--run-dir", child, "trainer.max_steps=61", timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert digest(child / "checkpoints" / "60") == digest(whole_run / "checkpoints" / "60")


def test_a_step_that_is_stored_later_is_seen_by_the_same_process(whole_run, upload):
    place = upload(whole_run / "checkpoints" / "60", "growing/checkpoints/60").removesuffix("/checkpoints/60")
    assert layout.resolve(place).name == "60"
    upload(whole_run / "checkpoints" / "75", "growing/checkpoints/75")
    assert layout.resolve(place).name == "75"


def test_of_an_incomplete_step_it_is_told_what_it_lacks_and_the_one_before_is_used(whole_run, upload, tmp_path):
    steps = tmp_path / "checkpoints"
    for step in ("60", "75"):
        shutil.copytree(whole_run / "checkpoints" / step, steps / step)
    largest_file(steps / "75" / "state").unlink()
    (steps / "75" / "positions.json").unlink()
    place = upload(steps, "unfinished")
    used = xrex("checkpoint", "positions", place)
    assert used.stdout == xrex("checkpoint", "positions", steps / "60").stdout
    assert f"{place}/75 is incomplete (no positions.json" in used.stderr
    assert used.stderr.endswith("step 60 is used instead\n")
    refused = xrex("checkpoint", "positions", f"{place}/75", check=False)
    assert refused.returncode == 2
    [line] = refused.stderr.splitlines()
    assert "this step is incomplete (no positions.json, no state/" in line


@pytest.mark.parametrize(
    ("part", "words"), [("state", "are not those that were saved"), ("progress.json", "is not what was saved")]
)
def test_a_flipped_byte_in_the_store_is_an_error_of_verify_and_of_the_trainer(whole_run, upload, tmp_path, part, words):
    step = tmp_path / "60"
    shutil.copytree(whole_run / "checkpoints" / "60", step)
    flip(largest_file(step / part) if part == "state" else step / part)
    place = upload(step, f"flipped-{part}/60")
    for done in (
        xrex("checkpoint", "verify", place, check=False),
        train("--checkpoint", place, "--run-dir", tmp_path / "child", check=False),
    ):
        assert done.returncode == 1
        [line] = done.stderr.splitlines()
        assert line.startswith(place)
        assert line.endswith(f" {words}; resume from another step")
    assert not (tmp_path / "child" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("no bucket", 2, "no such folder"),
        ("no folder", 2, "no such folder"),
        ("no credentials", 1, "Unable to locate credentials"),
        ("refused", 1, "Forbidden"),
        ("gone", 1, "Could not connect to the endpoint URL"),
    ],
)
def test_a_store_that_gives_nothing_is_one_line_that_names_the_address(
    in_store, monkeypatch, tmp_path, fault, code, words
):
    place = {"no bucket": "s3://another-bucket/run", "no folder": f"s3://{BUCKET}/another"}.get(fault, in_store)
    if fault == "no credentials":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with serving(Refusing) as refusing:
        if fault in ("refused", "gone"):
            monkeypatch.setenv("AWS_ENDPOINT_URL", refusing if fault == "refused" else unused_address())
        told = [
            xrex("checkpoint", "digest", place, check=False),
            train("--checkpoint", place, "--run-dir", tmp_path / "child", check=False),
        ]
    for done in told:
        assert done.returncode == code
        [line] = done.stderr.splitlines()
        assert line.startswith(f"checkpoint {place}: ")
        assert words in line
        assert SECRET not in done.stdout + done.stderr
    assert not (tmp_path / "child").exists()


def test_a_store_that_never_answers_ends_a_command_within_two_minutes(in_store, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # of 15 s, five times; 160 s unless set
    with serving(Silent) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", silent)
        done = xrex("checkpoint", "positions", in_store, check=False, timeout=120)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"checkpoint {in_store}: the store gives no access: Read timeout")


@pytest.mark.parametrize(("fault", "words"), [("gone", "retry attempts failed"), ("silent", "Operation too slow")])
def test_a_store_that_fails_while_the_arrays_are_read_ends_a_run_within_a_minute_and_a_half(
    in_store, server, monkeypatch, tmp_path, fault, words
):
    monkeypatch.setenv("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(NO_BYTE_S))
    with serving(between(server, Silent if fault == "silent" else Closing)) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        arguments = ("--checkpoint", f"{in_store}/checkpoints/60", "--run-dir", tmp_path / "child")
        done = train(*arguments, check=False, timeout=90)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{in_store}/checkpoints/60: the arrays cannot be read: ")
    assert words in line
    assert SECRET not in done.stdout + done.stderr
    assert not (tmp_path / "child" / "checkpoints").exists()


class Answer(BaseHTTPRequestHandler):
    """What a server does with a request to read."""

    def answer(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Not on stderr."""


class Refusing(Answer):
    """The keys open nothing."""

    def answer(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Silent(Answer):
    """A connection is taken, and then nothing comes."""

    def answer(self) -> None:
        Event().wait(200)


class Closing(Answer):
    """A connection is taken and closed."""

    def answer(self) -> None:
        self.close_connection = True


def between(server: tuple[str, int], arrays: type[Answer]) -> type[Answer]:
    """Passes requests on to the server, but for those that read a file of arrays."""

    class Between(Answer):
        def answer(self) -> None:
            if self.command == "GET" and "/state/" in self.path.partition("?")[0]:
                arrays.answer(self)
                return
            store = HTTPConnection(*server)
            store.request(self.command, self.path, headers=dict(self.headers))
            found = store.getresponse()
            self.send_response(found.status)
            for name, value in found.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found.read())
            store.close()

    return Between


@contextmanager
def serving(answer: type[Answer]) -> Iterator[str]:
    """The address of such a server on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def unused_address() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"
