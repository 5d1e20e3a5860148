"""What `make docs` writes is what the code says today; and each run error that the page has is what the operator reads."""

import errno
import json
import re
import socket
import time
from functools import partial
from pathlib import Path

import jax
import pyarrow as pa
import pytest
import typer

import error_pages
from config_runs import ENVIRONMENT, START, small_config, write_step
from error_pages import error_messages, error_page
from runs import ROOT
from xai_configlib import apply_overrides, describe, json_schema
from xrex.checkpoint import layout, positions
from xrex.checkpoint.restore import read_files
from xrex.cli.main import app
from xrex.data.batching import Batcher
from xrex.data.codecs import arrow
from xrex.data.codecs import json as json_codec
from xrex.data.dataset import check_positions, start_positions
from xrex.data.events import EventColumns, build_rows
from xrex.data.log.config import DirectoryLog, KafkaLog
from xrex.data.log.directory import DirectoryTopicWriter, create_topic
from xrex.data.log.open import open_log
from xrex.data.produce import open_empty_topic
from xrex.errors import RunError
from xrex.report.config_page import config_page
from xrex.report.failures import exit_code_of
from xrex.report.prometheus import Prometheus
from xrex.report.sinks import drop_after
from xrex.schema.dead_letters import from_line
from xrex.schema.positions import PartitionPosition, TopicPositions
from xrex.train.config import TrainerConfig
from xrex.train.run import machine_errors_in_words
from xrex.utils import utils
from xrex.utils.metadata import Run

RUN_ERRORS = error_page.read_catalogue(error_page.CATALOGUE.read_text("utf-8"), error_page.RUN.part)
nearest = partial(error_pages.nearest, catalogue=RUN_ERRORS)
RUN_PAGE = error_page.RUN_PAGE.read_text("utf-8")


def test_docs_config_md_lists_the_fields_of_today():
    page = (ROOT / "docs" / "config.md").read_text()
    assert page == config_page(describe(TrainerConfig)), "run make docs"
    for row in describe(TrainerConfig):
        assert f"`{row.path}`" in page or f"## {row.path}\n" in page


def test_the_schema_beside_the_configs_is_todays():
    assert json.loads((ROOT / "configs" / "schema.json").read_text()) == json_schema(TrainerConfig), "run make docs"


@pytest.mark.parametrize("name", ["quickstart", "ranker_kafka", "movielens"])
def test_every_config_names_the_schema(name):
    assert (ROOT / "configs" / f"{name}.yaml").read_text().startswith("# yaml-language-server: $schema=schema.json\n")


# docs/run_errors.md


def test_the_page_of_run_errors_has_every_message_of_the_code_and_no_other():
    faults = error_page.faults(
        RUN_ERRORS, error_messages.sites(kind=error_messages.RUN_ERRORS), RUN_PAGE, error_page.RUN
    )
    assert not faults, "\n".join(faults)


def test_every_run_error_has_a_cause_and_a_cure_on_one_line():
    for heading in RUN_ERRORS.headings:
        assert all((heading.title, heading.intro, heading.entries)), heading
        for entry in heading.entries:
            assert all(re.fullmatch(r".+[.]", text) for text in (entry.cause, entry.cure)), entry


def test_the_commands_options_and_fields_that_the_page_names_exist():
    commands = vars(typer.main.get_command(app()))["commands"]
    known = {f"{group} {name}" for group in commands for name in getattr(commands[group], "commands", {})}
    named = re.findall(r"`xrex (config|checkpoint|data) ([a-z]+)", RUN_PAGE)
    assert len(named) > 10
    assert {" ".join(words) for words in named} <= known
    train = {option for parameter in commands["train"].params for option in parameter.opts}
    used = re.findall(r"`xrex train ([^`]+)`", RUN_PAGE)
    assert {word for words in used for word in words.split() if word.startswith("--")} <= train
    fields = {row.path for row in describe(TrainerConfig)}
    set_here = {path for path in re.findall(r"\b([a-z_.]+\.[a-z_]+)=", RUN_PAGE) if path.split(".")[0] in SECTIONS}
    assert len(set_here) > 5
    assert set_here <= fields


SECTIONS = json.loads(small_config().to_json()).keys()

# What the operator reads

CLICKS = json.dumps({"price": 1.0, "click": 1}).encode()
CHILD = "begin a child: --checkpoint RUN_DIR --run-dir NEW --start-at earliest"
GO_ON = f"to go on without what is lost, start it with --on-lost-offset earliest (or timestamp:TIME), or {CHILD}"
LOG = "topic '<topic>' partition <number>: "


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder: a file, a run with one step, and a topic 'clicks' of 2 partitions in log/."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text('{"step": 1}\nodd\n{"step": 2}\n')
    run = Run.first(name="x", environment=ENVIRONMENT, start=START, provenance={})
    write_step(tmp_path / "run" / "checkpoints" / "10", small_config(), run)
    write(CLICKS, CLICKS)
    return tmp_path


def write(*values: bytes) -> None:
    """More messages in partition 0."""
    writer = DirectoryTopicWriter("log", "clicks", 2)
    writer.append(0, [(1_700_000_000_000, None, value) for value in values])
    writer.close()


def dataset(*overrides: str):
    paths = ("dataset.log.path=log", "dataset.codec=json", "dataset.history_actions_column=null", *overrides)
    return apply_overrides(small_config(), paths).dataset


def saved(offset=0, topic_id=None, partitions=2, **given) -> TopicPositions:
    return TopicPositions("clicks", topic_id, {p: PartitionPosition(offset, **given) for p in range(partitions)})


def trained(*values: bytes, skip=0, row=0) -> None:
    """Read the topic, with these messages at its end, to the end."""
    write(*values)
    config = dataset(f"dataset.skip_bad_records={skip}", "dataset.stop_at_end=true")
    begin = {0: PartitionPosition(2, row, end_offset=2 + len(values))}
    batcher = Batcher(config, open_log(config.log, "clicks"), begin, 4)
    while batcher.next().more:
        pass


def damaged_step(name="positions.json", text="{}"):
    step = Path("run/checkpoints/10")
    (step / name).write_text(text)
    return read_files(step)


def machine(error: Exception) -> None:
    with machine_errors_in_words(Path("run")):
        raise error


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def taken_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        Prometheus(str(taken.getsockname()[1]))


def a_log_file(change) -> None:
    """Change the topic's first file, then read it."""
    (file,) = Path("log/clicks/0").glob("*.arrow")
    change(file)
    config = dataset()
    start_positions(config)


def events(**columns) -> None:
    build_rows(
        pa.table({"user": [1], "item": [1], "event_time_ms": [1], "click": [1]} | columns),
        EventColumns(actions=("click",)),
        1,
    )


REAL_ERRORS = {
    "<run folder>: the run folder cannot be written: <reason>; choose another --run-dir": lambda: (
        layout.lock_run_folder(Path("file/run"))
    ),
    "<file>, line <number> = <line>: not an object with a step; remove the line and start again": lambda: drop_after(
        "file", 1
    ),
    "trainer.prometheus_address = <address>: cannot listen: <reason>; choose another": taken_port,
    "<file>: <reason>; once that is mended, go on: <command>": lambda: machine(
        OSError(errno.ENOSPC, "No space left on device", "run/metrics.jsonl")
    ),
    "a device is out of memory: lower trainer.global_batch_size, make tables smaller, or use more devices (<reason>)": (
        lambda: machine(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"))
    ),
    "a device failed, or another process has gone: look at the others' last lines; to go on: <command> (<reason>)": (
        lambda: machine(jax.errors.JaxRuntimeError("INTERNAL: Gloo allreduce failed"))
    ),
    "<checkpoints folder> has no complete step (<what each lacks>): restore one from a copy, or begin a new run folder": (
        lambda: (
            Path("run/checkpoints/10/commit_success.txt").unlink(),
            layout.newest_step(Path("run/checkpoints"), print),
        )
    ),
    "<file>: cannot be read: <reason>; resume from another step": lambda: (
        Path("run/checkpoints/10/progress.json").unlink(),
        damaged_step(text=positions.to_json({"clicks": saved()})),
    ),
    "<file>: not valid: <reason>; resume from another step": damaged_step,
    "<file>: not valid JSON (<reason>): resume from another step": lambda: positions.from_json("[", "p.json"),
    "<file>: <field> = <value>: expected 1; another release wrote this file": lambda: positions.from_json(
        '{"version": 2, "topics": []}', "p.json"
    ),
    "<file>: <field> is missing": lambda: Run.from_json("{}", "r.json"),
    "<file>: not a run.json (<reason>)": lambda: Run.from_json("[]", "r.json"),
    "Kafka at <addresses> cannot be used: no connection (<reason>): is the broker up, and is dataset.log.bootstrap_servers "
    "right?": lambda: open_log(
        KafkaLog(bootstrap_servers=f"127.0.0.1:{closed_port()}", request_timeout_ms=1_000), "clicks"
    ),
    LOG
    + "saved next offset <offset>, but the log ends at <offset> (start <offset>): was the topic recreated? "
    + GO_ON: (lambda: check_positions(dataset(), saved(9))),
    LOG
    + "saved next offset <offset>, but the log starts at <offset> (end <offset>): <number> records are lost; "
    + GO_ON: (
        lambda: (
            write(CLICKS),
            next(Path("log/clicks/0").glob("*0.arrow")).unlink(),
            check_positions(dataset(), saved(1)),
        )
    ),
    "topic '<topic>' has the id <id>, the positions are those of <id>: it was recreated, its offsets mean other records; "
    + CHILD: lambda: check_positions(dataset(), saved(topic_id="another")),
    "topic '<topic>' partition <number> offset <offset>: the message has fingerprint <hash>, the one trained had <hash>: was "
    "the topic recreated? " + CHILD: lambda: check_positions(
        dataset(), TopicPositions("clicks", None, {0: PartitionPosition(1, 0, 9, "0" * 16, 0)})
    ),
    "topic '<topic>' has <number> partitions, dataset.num_kafka_partitions = <number>: a topic cannot shrink; is it the right "
    "cluster, and was the topic recreated?": lambda: start_positions(dataset("dataset.num_kafka_partitions=3")),
    "positions.json has <number> partitions, topic '<topic>' has <number>: a topic cannot shrink; was it recreated? "
    + CHILD: (lambda: check_positions(dataset(), saved(partitions=3))),
    "topic '<topic>' has <number> partitions, dataset.num_kafka_partitions = <number>, and dataset.on_new_partitions = error: "
    "to read the new ones from their beginning say dataset.on_new_partitions=earliest": lambda: start_positions(
        dataset("dataset.num_kafka_partitions=1", "dataset.on_new_partitions=error")
    ),
    "topic '<topic>' is not in <folder>: it holds <names>": lambda: open_log(DirectoryLog(path="log"), "views"),
    "topic '<topic>' is not in <folder>: <folder> holds none; write it: xrex data produce --to <folder> --topic <topic>": (
        lambda: open_log(DirectoryLog(path="none"), "views")
    ),
    "<file>: not a readable Arrow IPC file (<reason>): remove or rewrite it": lambda: a_log_file(
        lambda file: file.write_bytes(b"no arrow")
    ),
    "<file>: cannot be read (<reason>): restore it, or produce the topic again": lambda: (
        Path("log/clicks/topic.json").write_text("{"),
        open_log(DirectoryLog(path="log"), "clicks").info(),
    ),
    "… not an Arrow IPC stream: <reason>": lambda: arrow.decode(b"no arrow"),
    "… not JSON: <reason>": lambda: json_codec.decode(b"no json"),
    "… expected a JSON object, got <type>": lambda: json_codec.decode(b"[1]"),
    "… an empty JSON array, expected at least 1 object": lambda: json_codec.decode(b"[]"),
    "… <value> is neither 0 nor 1": lambda: trained(CLICKS.replace(b'"click": 1', b'"click": 3')),
    "… null, and it is required": lambda: trained(CLICKS.replace(b"1.0", b"null")),
    "process 0 has not come to <address> within <number> s (<reason>), or has given up to wait for another: see that it runs, "
    "with the same JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES; where hosts start further apart, set "
    "PHOENIX_JOIN_TIMEOUT_S=SECONDS on all": lambda: utils._call_process_0(
        1, 2, f"127.0.0.1:{closed_port()}", time.monotonic() + 0.5, 1
    ),
    "topic '<topic>' at <address> already holds records (partition <number>: offsets <start>..<end>): they would be trained "
    "twice; name another --topic": lambda: open_empty_topic("log", "clicks", 2),
    "topic '<topic>' in <folder> has <number> partitions, not <number>: say --partitions <number>": lambda: (
        create_topic("log", "clicks", 3)
    ),
    "<folder>: cannot be created: <reason>": lambda: create_topic("file", "clicks", 1),
    "column <name> holds <number>: event times are unix milliseconds, 0 or later": lambda: events(event_time_ms=[-1]),
    "label column <name> holds <value>: a label is 0, 1 or null; make one, e.g. rating >= 4": lambda: events(click=[5]),
    "<file and line>: not a line of dead letters (<type>: <reason>); remove it": lambda: from_line(
        "{}", "letters.jsonl:1"
    ),
}


# Around the reason of a bad record, which has its own block on the page.
AROUND_A_REASON = {
    "<record>: <reason>; the value begins <hex>": lambda: trained(b"{"),
    "<record>: <reason>; the value begins (empty)": lambda: trained(b""),
    f"<record>: <reason>; the value begins <hex>; some of its rows were trained before: {CHILD}": lambda: trained(
        b"{", row=1
    ),
    "<reason>; <number> bad records were passed over before it, dataset.skip_bad_records = <number>: mend what produces them, "
    "or raise it": lambda: trained(b"{", b"{", skip=1),
}


@pytest.mark.parametrize("template", AROUND_A_REASON)
def test_what_stands_around_the_reason_of_a_bad_record_is_on_the_page(template, folder):
    assert template in RUN_ERRORS.messages()
    with pytest.raises(RunError) as caught:
        AROUND_A_REASON[template]()
    assert error_messages.pattern(template).match(str(caught.value))
    assert "… not JSON: <reason>" in {
        t for t in RUN_ERRORS.messages() if error_messages.pattern(t).match(str(caught.value))
    }


@pytest.mark.parametrize("template", REAL_ERRORS)
def test_a_real_run_error_is_found_on_the_page(template, folder):
    with pytest.raises(RunError) as caught:
        REAL_ERRORS[template]()
    assert nearest(str(caught.value).splitlines()[0]) == template


def test_an_error_that_nobody_foresaw_is_found_on_the_page(folder, capsys):
    assert exit_code_of(lambda: 1 // 0) == 1
    assert nearest(capsys.readouterr().err.strip()) == (
        "unexpected <type>: <text>; run again with --debug for the stack trace"
    )


# How run errors are found in the code


@pytest.mark.parametrize(
    ("code", "templates"),
    [
        ('raise RunError(f"{path}: gone; restore it")', ["<path>: gone; restore it"]),
        ('class Odd(RunError): ...\nclass Odder(Odd): ...\nraise Odder("odd: why")', ["odd: why"]),
        ('raise ConfigError("a config error")', []),
        ('class A(RunError): ...\ndef f():\n    return A("returned, and raised by the caller")', ["returned, and raised by the caller"]),
        ('H = "look"\nT = f"gone: {H}"\nraise RunError(T)', ["gone: look"]),
        ('words = f"{x} is missing" if x else ""\nif x:\n    raise RunError(words)', ["<x> is missing"]),
        ('lost = {p: f"partition {p} is lost" for p in x}\nraise RunError("\\n".join(lost.values()))', ["partition <p> is lost"]),
        ('p = {}\np[x] = f"{x}: below"\nraise RunError("\\n".join(p.values()))', ["<x>: below"]),
        ('p = []\np.append(f"{x} differs")\nraise RunError("\\n".join(f"{q}; go on" for q in p))', ["<x> differs; go on"]),
    ],
)  # fmt: skip
def test_run_errors_are_read_from_the_code_that_words_them(code, templates, tmp_path):
    assert scanned(tmp_path, f"def f(x, path):\n    {code.replace(chr(10), chr(10) + '    ')}") == templates


def test_what_a_function_gathers_is_read_where_it_is_raised(tmp_path):
    code = 'def g(x):\n    p = {}\n    p[x] = f"{x} is lost"\n    return p\ndef f(x):\n    lost = g(x)\n    raise RunError("\\n".join(lost.values()))\n'
    assert scanned(tmp_path, code) == ["<x> is lost"]


def test_a_bad_record_is_named_before_its_reason(tmp_path):
    assert scanned(tmp_path, 'class BadRecord(RunError): ...\ndef f(x): raise BadRecord(f"{x} is no weight")') == [
        "… <x> is no weight"
    ]


def scanned(folder: Path, code: str) -> list[str]:
    (folder / "module.py").write_text(code)
    return [site.template for site in error_messages.sites(folder, error_messages.RUN_ERRORS)]


def test_the_check_looks_for_words_that_no_call_shows_in_the_file_that_makes_them(tmp_path):
    (tmp_path / "module.py").write_text('def f(n): send(b"N = %d: give all the same" % n)')
    text = (
        '[[run.heading]]\ntitle = "A"\nintro = "B."\n[[run.heading.error]]\n'
        'messages = ["N = <number>: give all the same"]\nmade_in = "module.py"\ncause = "C."\ncure = "D."\n'
    )
    for wrong, faults in (
        ("", []),
        ("other ", ["docs/errors.toml: module.py does not hold these words, remove them: "]),
    ):
        catalogue = error_page.read_catalogue(text.replace("the same", f"the {wrong}same"), "run")
        said = error_page.faults(catalogue, [], error_page.page(catalogue, error_page.RUN), error_page.RUN, tmp_path)
        assert [line[: len(fault)] for line, fault in zip(said, faults, strict=True)] == faults
