"""What the operator reads when something is wrong: one line a problem, the right exit code, nothing left half made."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zlib

import pytest

from runs import QUICKSTART, ROOT, TRAINER, digest, summary, train, xrex
from xrex.data.log.directory import DirectoryTopicWriter

MODULES = "import runpy, sys\ntry:\n runpy.run_module('xrex.cli', run_name='__main__')\nfinally:\n"
MODULES += " print(sorted({m.split('.')[0] for m in sys.modules} & {'jax', 'flax', 'optax', 'orbax'}), file=sys.stderr)"

BROKEN_LOOP = """
from xrex.train import loop, trainer_recsys
def broken(self, interrupted):
    raise ValueError("a\\ndefect")
loop.Loop.run = broken
trainer_recsys.run_command_line(trainer_recsys.app)
"""


def refused(*arguments, code, command=train, **options) -> list[str]:
    """The lines on stderr of a command that must end with this exit code."""
    done = command(*arguments, check=False, **options)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


# Exit 2: a wrong config, before anything is connected to or created


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.max_steps=many", "command line: trainer.max_steps = 'many': expected an integer or null"),
        ("trainer.global_batch_size=4.5", "command line: trainer.global_batch_size = 4.5: expected an integer"),
        ("dataset.topc_name=x", "command line: dataset.topc_name: unknown field; did you mean topic_name?"),
        ("dataset.codec=arow", "command line: dataset.codec = 'arow': expected one of arrow, json; did you mean arrow?"),
        ("model.num_heads=5", f"{QUICKSTART}: model: num_heads = 5: twice this must divide width = 32; num_kv_heads = 4: must divide num_heads = 5"),
        ("mesh.num_devices=3", "mesh.num_devices = 3: JAX sees 1 devices; ask for 1 or leave it null"),
        ("trainer.micro_batches=7", "trainer.micro_batches = 7: must divide the 50 rows of a device (trainer.global_batch_size = 50 over 1 devices); try 5"),
        ("dataset.topic_name=..", "topic name '..': use 1 to 249 of the characters A-Z a-z 0-9 . _ -, and not '.' or '..'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_line_and_no_run_folder(small, tmp_path, override, line):
    assert refused(*small, override, "--run-dir", tmp_path / "run", code=2) == [line]
    assert os.listdir(tmp_path) == []


def test_every_problem_of_a_file_is_reported_at_once(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("dataset: {num_kafka_partitions: four, bacth_size: 4, tables: [], features: []}\ntrainr: {}\n")
    for done in (train("--config", path, check=False, cwd=tmp_path), xrex("config", "check", path, check=False)):
        assert done.returncode == 2
        lines = sorted(done.stderr.splitlines())
        assert [line.removeprefix(f"{path}: ").split(" ")[0].rstrip(":") for line in lines] == [
            "dataset.actions",
            "dataset.bacth_size",
            "dataset.num_kafka_partitions",
            "dataset.topic_name",
            "trainr",
        ]
        assert lines[2] == f"{path}: dataset.num_kafka_partitions = 'four': expected an integer"
        assert lines[4] == f"{path}: trainr = {{}}: unknown field; did you mean trainer?"
    assert os.listdir(tmp_path) == ["wrong.yaml"]


def test_a_file_that_is_not_there_or_no_config_is_one_line(tmp_path):
    (tmp_path / "no.yaml").write_text("just words")
    (line,) = refused("--config", tmp_path / "gone.yaml", code=2)
    assert line == f"{tmp_path}/gone.yaml: cannot be read: No such file or directory; check the path"
    (line,) = refused("--config", tmp_path / "no.yaml", code=2)
    assert line == f"{tmp_path}/no.yaml: expected an object of sections at the top level, found a string"
    (line,) = refused("--checkpoint", tmp_path, code=2)
    assert line.startswith(f"checkpoint {tmp_path}: no complete step here; looked for commit_success.txt")


@pytest.mark.parametrize("option", [["--nosuch"], ["--config"], ["--start-at", "noon"], []])
def test_a_wrong_command_line_is_one_plain_line(option):
    assert len(refused(*option, code=2)) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nosuch"], "python -m xrex.cli: no such command 'nosuch'; see python -m xrex.cli --help"),
        (["config", "show", "--nosuch"], "python -m xrex.cli config show: no such option: --nosuch; see python -m xrex.cli config show --help"),
    ],
)  # fmt: skip
def test_usage_errors_of_xrex_are_one_plain_line(words, line):
    assert refused(*words, code=2, command=xrex) == [line]


# Exit 1: the run failed


def test_a_broker_that_does_not_answer_is_one_line_within_its_limits(tmp_path):
    address = f"127.0.0.1:{closed_port()}"
    log = json.dumps({"__class": "KafkaLog", "bootstrap_servers": address, "request_timeout_ms": 2000})
    began = time.monotonic()
    (line,) = refused("--config", QUICKSTART, f"dataset.log={log}", "--run-dir", tmp_path / "run", code=1)
    assert time.monotonic() - began < 30
    assert line == (
        f"Kafka at {address} cannot be used: no connection (Connection refused): is the broker up, "
        "and is dataset.log.bootstrap_servers right?"
    )
    found = summary(tmp_path / "run")
    assert (found["status"], found["error"], found["step"]) == ("failed", line, 0)


def test_a_topic_that_is_not_there_names_those_that_are(small, small_log, tmp_path):
    (line,) = refused(*small, "dataset.topic_name=engagement", "--run-dir", tmp_path / "run", code=1)
    assert line == f"topic 'engagement' is not in {small_log}: it holds engagements"
    train(*small, "--run-dir", tmp_path / "run", "trainer.max_steps=1")  # what was left behind is in nobody's way


@pytest.mark.parametrize(("place", "reason"), [("file", "File exists"), ("file/run", "Not a directory")])
def test_a_run_folder_that_cannot_be_made_is_named_with_the_reason(small, tmp_path, place, reason):
    (tmp_path / "file").write_text("in the way")
    (line,) = refused(*small, "--run-dir", tmp_path / place, code=1)
    assert line == f"{tmp_path / place}: the run folder cannot be written: {reason}; choose another --run-dir"
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_checkpoint_folder_that_cannot_be_written_ends_the_run_before_its_first_step(small, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("in the way")
    (line,) = refused(*small, "--run-dir", tmp_path / "run", code=1)
    assert line == f"{tmp_path}/run/checkpoints: the checkpoint folder cannot be written: File exists"
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_save_that_fails_ends_the_run_and_names_step_path_and_reason(small, tmp_path):
    run_dir = tmp_path / "run"
    train(*small, "--run-dir", run_dir, "trainer.max_steps=15")
    arrays = digest(run_dir / "checkpoints" / "15")
    (run_dir / "checkpoints" / "30").write_text("in the way")
    (line,) = refused("--run-dir", run_dir, "trainer.max_steps=null", code=1)
    assert line.startswith(f"step 30 could not be saved to {run_dir}/checkpoints/30: ")
    assert line.endswith("already exists.")
    found = summary(run_dir)
    assert (found["status"], found["step"], found["checkpoint"]) == ("failed", 15, "checkpoints/15")
    assert digest(run_dir / "checkpoints" / "15") == arrays


def test_a_corrupt_message_ends_the_run_where_it_stands_and_again_at_each_restart(
    small, small_log, whole_run, tmp_path
):
    log, run_dir = tmp_path / "log", tmp_path / "run"
    shutil.copytree(small_log, log)
    writer = DirectoryTopicWriter(log, "engagements", 4)
    writer.append(2, [(2**42, b"key", b"no arrow stream")])
    writer.close()
    arguments = (*small, f"dataset.log.path={log}", "--run-dir", run_dir)
    (line,) = refused(*arguments, code=1)
    assert line.startswith("topic 'engagements' partition 2 offset 33: not an Arrow IPC stream")
    assert line.endswith(f"the value begins {b'no arrow'.hex()}")
    found = summary(run_dir)
    assert (found["status"], found["error"], found["step"]) == ("failed", line, 75)
    assert found["checkpoint"] == "checkpoints/75"
    # Nothing lost: the newest checkpoint is the one that the undisturbed run has at this step.
    assert digest(run_dir) == digest(whole_run / "checkpoints" / "75")
    assert refused(*arguments, code=1) == [line]
    assert digest(run_dir) == digest(whole_run / "checkpoints" / "75")


def test_a_progress_json_that_makes_no_sense_is_named(whole_run, tmp_path):
    shutil.copytree(whole_run, tmp_path / "run")
    progress = tmp_path / "run" / "checkpoints" / "80" / "progress.json"
    progress.write_text('{"version": 1}'.ljust(progress.stat().st_size))
    checksums = progress.with_name("checksums.json")  # such a file was saved: no damage
    listed = json.loads(checksums.read_text())
    listed["file_checksums"]["progress.json"] = zlib.crc32(progress.read_bytes())
    checksums.write_text(json.dumps(listed))
    (line,) = refused("--run-dir", tmp_path / "run", code=1)
    assert line.startswith(f"{progress}: not what a run writes (KeyError: 'metrics')")


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_an_unexpected_failure_is_one_line_and_its_trace_is_shown_on_demand(small, tmp_path, debug):
    command = [sys.executable, "-c", BROKEN_LOOP, *map(str, small), "--run-dir", str(tmp_path / "run"), *debug]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    *trace, line = done.stderr.splitlines()
    if debug:
        assert trace[0] == "Traceback (most recent call last):"
        assert line == "unexpected ValueError: a defect"
    else:
        assert trace == []
        assert line == "unexpected ValueError: a defect; run again with --debug for the stack trace"
    assert summary(tmp_path / "run")["status"] == "failed"
    assert summary(tmp_path / "run")["error"] == "unexpected ValueError: a defect"


# Secrets


def test_a_secret_reaches_no_output_and_no_file(tmp_path):
    security = {"protocol": "SASL_PLAINTEXT", "username": "u", "password": {"env": "KAFKA_PASSWORD"}}
    log = {"__class": "KafkaLog", "bootstrap_servers": f"127.0.0.1:{closed_port()}", "request_timeout_ms": 2000}
    arguments = ("--config", QUICKSTART, f"dataset.log={json.dumps(log | {'security': security})}")
    environment = {name: value for name, value in os.environ.items() if name != "KAFKA_PASSWORD"}
    (line,) = refused(*arguments, "--run-dir", tmp_path / "run", code=2, env=environment)
    assert line == "environment variable KAFKA_PASSWORD is not set: set it to the secret"
    assert os.listdir(tmp_path) == []
    environment["KAFKA_PASSWORD"] = "example-password-1"
    done = train(*arguments, "--run-dir", tmp_path / "run", "--debug", check=False, env=environment)
    assert done.returncode == 1
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert b"example-password-1" not in b"".join([done.stdout.encode(), done.stderr.encode(), *written])


def test_a_literal_secret_is_refused_and_not_echoed(tmp_path):
    security = {"password": "example-password-1", "user": "x"}
    log = json.dumps({"__class": "KafkaLog", "security": security})
    lines = refused("--config", QUICKSTART, f"dataset.log={log}", "--run-dir", tmp_path / "run", code=2)
    assert len(lines) == 2
    assert "dataset.log.security.password" in "\n".join(lines)
    assert "example-password-1" not in "\n".join(lines)


# Output


def test_output_to_a_file_has_no_control_characters_and_a_line_an_interval(small, tmp_path):
    path = tmp_path / "log.txt"
    command = [*TRAINER, *map(str, small), "--run-dir", tmp_path / "run", "trainer.max_steps=40"]
    with open(path, "wb") as file:
        assert subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=120).returncode == 0
    text = path.read_bytes()
    assert b"\r" not in text
    assert b"\x1b" not in text
    lines = text.decode().splitlines()
    steps = [line.split()[1] for line in lines if line.startswith("step ")]
    assert steps == ["10/40", "20/40", "30/40", "40/40"]
    # Where each partition begins is said before the first step.
    begun = [
        lines.index(f"engagements partition {p}: from offset 0 row 0, to offset {e}")
        for p, e in enumerate((34, 34, 33, 33))
    ]
    assert max(begun) < lines.index(next(line for line in lines if line.startswith("step ")))


@pytest.mark.parametrize("command", ["train", "config"])
def test_a_reader_that_goes_away_is_no_stack_trace(small, whole_run, tmp_path, command):
    words = [*TRAINER, *map(str, small), "--run-dir", str(tmp_path / "run")]
    if command == "config":
        words = [sys.executable, "-m", "xrex.cli", "config", "show", str(whole_run)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    if command == "train":
        assert process.stdout.readline().startswith(b"run folder")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1
    if command == "train":
        assert summary(tmp_path / "run")["error"] == "the reader of the output has gone"


def test_a_disk_without_room_for_the_output_is_one_line(whole_run):
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "xrex.cli", "config", "show", str(whole_run)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert "No space left on device" in line


def test_dry_run_creates_nothing(small, tmp_path):
    done = train(*small, "--run-dir", tmp_path / "run", "--dry-run")
    assert done.stdout.splitlines() == [
        f"run folder {tmp_path}/run",
        "dry run: the config is valid; nothing was connected to, created or changed",
    ]
    assert os.listdir(tmp_path) == []


def test_print_config_prints_the_canonical_json_and_nothing_else(tmp_path):
    printed = train("--config", QUICKSTART, "--print-config", "--run-dir", tmp_path / "run").stdout
    assert json.loads(printed)["dataset"]["topic_name"] == "engagements"
    assert printed == xrex("config", "show", QUICKSTART).stdout
    assert os.listdir(tmp_path) == []


def test_what_is_printed_is_utf_8_in_every_locale(tmp_path):
    path = tmp_path / "café.yaml"
    path.write_text(QUICKSTART.read_text().replace("path: runs/log", 'path: "café"'), encoding="utf-8")
    environment = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    printed = xrex("config", "show", path, env=environment, encoding="utf-8").stdout
    assert json.loads(printed)["dataset"]["log"]["path"] == "café"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["config", "diff", "{run}", QUICKSTART, "--json"], 1),
        (["checkpoint", "list", "{run}", "--json"], 0),
        (["checkpoint", "positions", "{run}", "--json"], 0),
    ],
)
def test_json_output_parses(whole_run, words, code):
    done = xrex(*(str(word).format(run=whole_run) for word in words), check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["config", "--help"],
        ["config", "check", QUICKSTART],
        ["config", "show", "{run}"],
        ["config", "diff", "{run}", "{run}"],
        ["data", "--help"],
    ],
)
def test_commands_that_need_no_data_answer_in_3_s_without_jax(whole_run, words):
    words = [str(word).format(run=whole_run) for word in words]
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", MODULES, *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert time.monotonic() - began < 3


def test_xrex_and_python_m_xrex_cli_are_the_same():
    by_name = subprocess.run(
        [ROOT / ".venv" / "bin" / "xrex", "config", "show", QUICKSTART], capture_output=True, text=True, timeout=60
    )
    assert by_name.returncode == 0
    assert by_name.stdout == xrex("config", "show", QUICKSTART).stdout
