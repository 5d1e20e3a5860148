"""A config that is wrong, at the commands that users run: exit code 2, one line a problem, all at once, nothing touched.

Each file of tests/fixtures/config is base.json with one defect, or with one thing that a config may well hold. All fields
against all faults of their kind stand in tests/unit/train/test_config_kinds.py.
"""

import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from runs import ROOT, run, train, xrex
from xai_configlib import describe, load_text
from xrex.train.config import TrainerConfig

FILES = ROOT / "tests" / "fixtures" / "config"
BASE = FILES / "base.json"
SECRET = "example-password-1"
NO_LITERAL = 'expected {"env": NAME} or {"file": PATH}, a secret is never written into a config'

REFUSED = {
    "unknown_fields": [
        "model.rotary_scale = 2.0: unknown field; did you mean rotary_base?",
        "trainer.global_bacth_size = 8: unknown field; did you mean global_batch_size?",
    ],
    "required_fields_missing": [
        "dataset.topic_name: missing; expected a string",
        "dataset.tables[1].num_embeddings: missing; expected an integer",
    ],
    "required_field_null": ["dataset.topic_name = null: expected a string"],
    "enum_unknown_value": [
        "model.compute_dtype = 'bfloat61': expected one of float32, bfloat16; did you mean bfloat16?"
    ],
    "enum_wrong_case": ["model.compute_dtype = 'FLOAT32': expected one of float32, bfloat16; did you mean float32?"],
    "fraction_for_integer": ["trainer.global_batch_size = 4.5: expected an integer"],
    "boolean_for_integer": ["trainer.global_batch_size = true: expected an integer"],
    "string_for_integer": ["dataset.num_kafka_partitions = '4': expected an integer; write it without quotes"],
    "string_for_number": ["optimizer.dense.learning_rate = '5e-2': expected a number; write it without quotes"],
    "string_for_list": ["dataset.actions = 'click': expected a list"],
    "literal_secret": [f"dataset.log.security.password: {NO_LITERAL}"],
    "literal_secret_beside_other_faults": [
        "dataset.log.security.protocol: expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        f"dataset.log.security.password: {NO_LITERAL}",
        "dataset.log.security.usrname: unknown field; did you mean username?",
        "dataset.log.security.pasword: unknown field; did you mean password?",
        "optimizer.dense.learning_rate = '5e-2': expected a number; write it without quotes",
    ],
}
"""File -> its problems."""

ACCEPTED = {
    "sequences": {
        "dataset.tables[0].salts": "[]",
        "dataset.tables[1].salts": "[24680, 13579, 24680]",
        "dataset.references": '["optimum", "online_lr"]',
        "model.action_weights": "[1.0, 0.25]",
    },
    "numbers_in_another_form": {
        "optimizer.dense.learning_rate": "1.0",
        "optimizer.dense.final_scale": "0.0",
        "trainer.global_batch_size": "4",
    },
    "large_integers": {
        "dataset.tables[0].salts": "[9007199254740993, 9223372036854775807]",
        "dataset.tables[1].salts": "[18446744073709551615]",
    },
    "secret_reference": {"dataset.log.security.password": '{"env": "KAFKA_PASSWORD"}'},
}
"""File -> the fields that differ from base.json, as they are saved."""

UNKNOWN = {"model": {"rotary_scale": 2.0}, "trainer": {"global_bacth_size": 8}}
"""Section -> fields that this release does not know."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, where the commands run."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def refused(command: Callable, *arguments, **options) -> list[str]:
    """The lines of a command that must be refused, with no other output and nothing created in the current folder."""
    before = sorted(os.listdir())
    done = command(*arguments, check=False, **options)
    assert done.returncode == 2, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout == ""
    assert sorted(os.listdir()) == before
    return done.stderr.splitlines()


def contents(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def file(name: str) -> Path:
    return FILES / f"{name}.json"


def at(mapping: Any, path: str) -> Any:
    for step in path.replace("[", ".").replace("]", "").split("."):
        mapping = mapping[int(step)] if isinstance(mapping, list) else mapping[step]
    return mapping


# What is refused


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_file_starts_no_run_and_is_a_line_a_problem(name, folder):
    lines = refused(train, "--config", file(name), "--run-dir", "run")
    assert sorted(lines) == sorted(f"{file(name)}: {problem}" for problem in REFUSED[name])


@pytest.mark.parametrize("words", [["check"], ["show"], ["diff", BASE], ["diff", BASE, "--json"], ["check", "--debug"]])
def test_every_command_that_reads_a_config_reports_the_same(words, folder):
    name = "literal_secret_beside_other_faults"
    lines = refused(xrex, "config", *words, file(name))
    trace, problems = lines[:-5], lines[-5:]
    assert problems == [f"{file(name)}: {problem}" for problem in REFUSED[name]]
    assert bool(trace) == ("--debug" in words)
    assert SECRET not in "\n".join(lines)


def test_each_file_differs_from_base_in_what_its_name_says_alone():
    base = leaves(BASE)
    for name in REFUSED | ACCEPTED:
        given = leaves(file(name))
        changed = {path for path in base.keys() | given.keys() if base.get(path, "") != given.get(path, "")}
        problems = {problem.partition(":")[0].partition(" = ")[0] for problem in REFUSED.get(name, ())}
        expected = problems | set(ACCEPTED.get(name, ()))
        # A password needs another log than base.json's.
        assert {path for path in changed ^ expected if not path.startswith("dataset.log.")} == set(), name


def leaves(path: Path) -> dict[str, str]:
    """Path -> JSON text of every value that is no object and no list of objects."""
    found = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            for name, item in node.items():
                walk(item, f"{path}.{name}" if path else name)
        elif isinstance(node, list) and any(isinstance(item, dict) for item in node):
            for index, item in enumerate(node):
                walk(item, f"{path}[{index}]")
        else:
            found[path] = json.dumps(node)

    walk(load_text(path.read_bytes(), str(path)), "")
    return found


# What is accepted, and how it is saved


def test_fields_left_out_are_their_defaults_and_nothing_differs(folder):
    done = xrex("config", "diff", BASE, file("optional_fields_left_out"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shown = xrex("config", "show", BASE).stdout
    assert xrex("config", "show", file("optional_fields_left_out")).stdout == shown
    assert json.loads(shown)["optimizer"]["dense"]["clip_norm"] is None


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted_is_saved_in_one_form_and_means_the_same_when_it_is_read_again(name, folder):
    saved = folder / "saved.json"
    saved.write_text(xrex("config", "show", file(name)).stdout, encoding="utf-8")
    for path, text in ACCEPTED[name].items():
        assert json.dumps(at(json.loads(saved.read_text()), path)) == text
    assert xrex("config", "show", saved).stdout == saved.read_text()
    assert xrex("config", "diff", file(name), saved).stdout == ""


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A process whose locale knows no letter beyond ASCII."""


def test_a_byte_order_mark_changes_nothing_in_any_locale(folder):
    marked = file("byte_order_mark")
    assert marked.read_bytes().startswith(b"\xef\xbb\xbf")
    (folder / "plain.json").write_bytes(marked.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    shown = {
        xrex("config", "show", path, env=os.environ | locale, encoding="utf-8").stdout
        for path in (marked, folder / "plain.json")
        for locale in ({}, ASCII)
    }
    (text,) = shown
    assert text.startswith("{\n")
    assert '"path": "café"' in text
    assert train("--config", marked, "--print-config", env=os.environ | ASCII, encoding="utf-8").stdout == text


BROADCAST = """
import sys
from xrex.train.config import TrainerConfig
from xrex.utils.utils import from_process_zero, start_distributed
start_distributed()
config = from_process_zero(lambda: TrainerConfig.from_json(open(sys.argv[1], "rb").read()))
print([salt for table in config.dataset.tables for salt in table.salts], flush=True)
"""


@pytest.mark.multihost
@pytest.mark.slow
def test_integers_of_64_bits_are_exact_from_a_file_to_a_saved_one_to_every_process(folder, monkeypatch):
    (folder / "saved.json").write_text(xrex("config", "show", file("large_integers")).stdout)
    (folder / "show_salts.py").write_text(BROADCAST)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    done = run(ROOT / "scripts" / "run_multihost.sh", 2, "-m", "show_salts", "saved.json")
    salts = "[9007199254740993, 9223372036854775807, 18446744073709551615]"
    assert {f"[0] {salts}", f"[1] {salts}"} <= set(done.stdout.splitlines())


# What a run saves, and what becomes of it in a newer release


@pytest.fixture(scope="module")
def production(small_log, tmp_path_factory):
    """The run folder of a run of two steps, begun in the C locale from the file with the byte-order mark.

    Its log is `café`, beside it; so children run in the folder above.
    """
    here = tmp_path_factory.mktemp("production")
    (here / "café").symlink_to(small_log)
    done = train("--config", file("byte_order_mark"), "--run-dir", "run", cwd=here, env=os.environ | {"LC_ALL": "C"})
    assert done.stderr == ""
    return here / "run"


@pytest.fixture
def beside_log(production, folder):
    """The current folder, with the log where production's config looks for it."""
    (folder / "café").symlink_to((production.parent / "café").resolve())
    return folder


def step_of(run_dir: Path, number: int) -> Path:
    return run_dir / "checkpoints" / str(number)


def edited(step: Path, target: Path, change: Callable[[dict], object]) -> Path:
    """A copy of a step with another config.json, complete as the original."""
    shutil.copytree(step, target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    change(config)
    (target / "config.json").write_text(
        json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8"
    )
    checksums = json.loads((target / "checksums.json").read_text())
    checksums["files"]["config.json"] = (target / "config.json").stat().st_size
    checksums["file_checksums"]["config.json"] = zlib.crc32((target / "config.json").read_bytes())
    (target / "checksums.json").write_text(json.dumps(checksums))
    return target


def add_unknown(config: dict) -> None:
    for section, fields in UNKNOWN.items():
        config[section] |= fields


@pytest.fixture
def newer(production, tmp_path):
    """Production's step as a release writes it that knows two fields more."""
    return edited(step_of(production, 2), tmp_path / "newer" / "2", add_unknown)


@pytest.mark.slow
def test_a_run_saves_the_config_without_the_mark_in_utf_8_in_the_c_locale(production):
    saved = (production / "config.json").read_bytes()
    assert saved.startswith(b"{\n")
    assert '"path": "café"'.encode() in saved
    assert (step_of(production, 2) / "config.json").read_bytes() == saved


@pytest.mark.slow
def test_a_checkpoint_holds_every_field_of_the_schema_and_nothing_else(production):
    saved = json.loads((step_of(production, 2) / "config.json").read_bytes())
    known = {row.path for row in describe(TrainerConfig) if row.variant in ("", "DirectoryLog")}
    assert fields_of(saved) == known


def fields_of(node: Any, path: str = "") -> set[str]:
    """Paths of the fields in a saved config, entries of lists as `[*]`, as the schema has them."""
    if isinstance(node, list):
        return set().union(*(fields_of(item, f"{path}[*]") for item in node))
    if not isinstance(node, dict):
        return set()
    here = {f"{path}.{name}".lstrip("."): item for name, item in node.items() if not name.startswith("__")}
    return set(here).union(*(fields_of(item, name) for name, item in here.items()))


NEWER_RELEASE = """
from xrex.optim.config import DenseOptimizerConfig
DenseOptimizerConfig.model_fields["weight_decay"].default = 0.25
from xrex.train import trainer_recsys
trainer_recsys.run_command_line(trainer_recsys.app)
"""


@pytest.mark.slow
def test_a_default_of_a_newer_release_reaches_new_runs_and_no_old_checkpoint(production, folder):
    newer_release = [sys.executable, "-c", NEWER_RELEASE, "--print-config"]
    new = json.loads(run(*newer_release, "--config", BASE).stdout)
    assert new["optimizer"]["dense"]["weight_decay"] == 0.25
    old = run(*newer_release, "--checkpoint", step_of(production, 2), "trainer.max_steps=3").stdout
    expected = json.loads((step_of(production, 2) / "config.json").read_bytes())
    expected["trainer"]["max_steps"] = 3
    assert json.loads(old) == expected
    assert expected["optimizer"]["dense"]["weight_decay"] == 0.0


# Fields of a newer release


def kept_lines(source: Path) -> list[str]:
    return [
        f"{source}: model.rotary_scale = 2.0: unknown field, kept as it is",
        f"{source}: trainer.global_bacth_size = 8: unknown field, kept as it is",
    ]


@pytest.mark.slow
def test_a_checkpoint_with_unknown_fields_is_refused_with_their_names_and_the_way_to_keep_them(newer, folder):
    before = contents(newer)
    assert refused(train, "--checkpoint", newer, "--run-dir", "run", "trainer.max_steps=3") == [
        *(f"{newer}/config.json: {problem}" for problem in REFUSED["unknown_fields"]),
        f"{newer}/config.json: did a newer release write it? --keep-unknown carries such fields along",
    ]
    assert contents(newer) == before


@pytest.mark.slow
def test_unknown_fields_are_kept_on_request_in_every_checkpoint_of_a_child_and_of_its_restart(newer, beside_log):
    run_dir = beside_log / "run"
    overrides = ("checkpoint.save_every_steps=1", "checkpoint.keep_last=9")
    done = train("--checkpoint", newer, "--keep-unknown", "--run-dir", "run", *overrides, "trainer.max_steps=4")
    said = [line for line in done.stdout.splitlines() if "unknown field" in line]
    assert said == kept_lines(newer / "config.json")
    assert done.stderr == ""
    again = train("--run-dir", "run", "trainer.max_steps=5")
    assert "unknown field" not in again.stdout + again.stderr, "it was said at the first start"
    held = {path.parent.name: json.loads(path.read_bytes()) for path in run_dir.rglob("config.json")}
    assert set(held) == {"run", "2", "3", "4", "5"}
    for config in held.values():
        assert config["model"]["rotary_scale"] == 2.0
        assert config["trainer"]["global_bacth_size"] == 8
    expected = json.loads((newer / "config.json").read_bytes())
    expected["checkpoint"] |= {"save_every_steps": 1, "keep_last": 9}
    expected["trainer"]["max_steps"] = 5
    assert held["5"] == expected
    # The whole first command, but for the option, is a restart as well.
    whole_command = ("--checkpoint", newer, "--run-dir", "run", *overrides, "trainer.max_steps=5")
    assert json.loads(train(*whole_command, "--print-config").stdout) == expected


@pytest.mark.slow
def test_a_restart_with_unknown_fields_that_nobody_asked_to_keep_is_refused(production, beside_log):
    shutil.copytree(production, beside_log / "run")
    config = json.loads((beside_log / "run" / "config.json").read_bytes())
    add_unknown(config)
    (beside_log / "run" / "config.json").write_text(json.dumps(config))
    *problems, _ = refused(train, "--run-dir", "run", "trainer.max_steps=3")
    assert problems == [f"run/config.json: {problem}" for problem in REFUSED["unknown_fields"]]


@pytest.mark.slow
def test_the_option_keeps_nothing_of_an_experiments_own_file(newer, folder):
    wrong = file("unknown_fields")
    problems = [f"{wrong}: {problem}" for problem in REFUSED["unknown_fields"]]
    assert refused(train, "--config", wrong, "--keep-unknown", "--run-dir", "run") == problems
    both = ("--config", wrong, "--checkpoint", newer, "--keep-unknown", "--run-dir", "run")
    assert refused(train, *both) == problems


@pytest.mark.slow
def test_a_child_with_an_experiments_file_keeps_what_the_checkpoint_has(newer, folder):
    arguments = ("--checkpoint", newer, "--config", file("byte_order_mark"), "--keep-unknown", "trainer.max_steps=3")
    printed = json.loads(train(*arguments, "--print-config").stdout)
    assert printed["model"]["rotary_scale"] == 2.0
    assert printed["trainer"]["global_bacth_size"] == 8
    assert printed["trainer"]["max_steps"] == 3


@pytest.mark.slow
def test_config_commands_keep_unknown_fields_on_request_alone(newer, production, folder):
    place = newer / "config.json"
    problems = [f"{place}: {problem}" for problem in REFUSED["unknown_fields"]]
    offer = f"{place}: did a newer release write it? --keep-unknown carries such fields along"
    assert refused(xrex, "config", "check", place) == problems, "of a file nobody knows that it is a checkpoint's"
    for words in (["check", newer], ["show", newer], ["diff", production, newer]):
        assert refused(xrex, "config", *words) == [*problems, offer]
    checked = xrex("config", "check", place, "--keep-unknown")
    assert (checked.stdout, checked.stderr.splitlines()) == (f"{place}: valid\n", kept_lines(place))
    shown = xrex("config", "show", newer, "--keep-unknown")
    assert (shown.stdout, shown.stderr.splitlines()) == (place.read_text(encoding="utf-8"), kept_lines(place))
    different = xrex("config", "diff", production, newer, "--keep-unknown", check=False)
    assert (different.returncode, different.stderr.splitlines()) == (1, kept_lines(place))
    assert different.stdout.splitlines() == [
        'model.rotary_scale: "(absent)" -> 2.0  (from_checkpoint)',
        'trainer.global_bacth_size: "(absent)" -> 8  (from_checkpoint)',
    ]


@pytest.mark.multihost
@pytest.mark.slow
def test_every_process_gets_the_fields_that_are_kept(newer, folder):
    arguments = ("--checkpoint", newer, "--keep-unknown", "--dry-run", "trainer.max_steps=3")
    # Exit code 0: both processes hold the same bytes of config.json, or they would have said that they do not.
    done = run(ROOT / "scripts" / "run_multihost.sh", 2, *arguments)
    said = [line for line in done.stdout.splitlines() if "unknown field" in line]
    assert said == [f"[0] {line}" for line in kept_lines(newer / "config.json")]


@pytest.mark.slow
def test_a_checkpoint_with_a_wrong_config_is_refused_in_the_same_words(production, tmp_path, folder):
    def change(config):
        del config["dataset"]["topic_name"]
        config["model"]["compute_dtype"] = "FLOAT32"
        config["trainer"]["seed"] = None
        config["optimizer"]["dense"]["b1"] = "0.9"

    step = edited(step_of(production, 2), tmp_path / "2", change)
    before = contents(step)
    assert refused(train, "--checkpoint", step, "--run-dir", "run") == [
        f"{step}/config.json: dataset.topic_name: missing; expected a string",
        f"{step}/config.json: {REFUSED['enum_wrong_case'][0]}",
        f"{step}/config.json: optimizer.dense.b1 = '0.9': expected a number; write it without quotes",
        f"{step}/config.json: trainer.seed = null: expected an integer",
    ]
    assert contents(step) == before


# Secrets


def environment(**secrets: str) -> dict[str, str]:
    """This process's environment with no secret but these."""
    return {name: value for name, value in os.environ.items() if name != "KAFKA_PASSWORD"} | secrets


def with_secret(config: dict) -> None:
    """Production's config with the log of secret_reference.json."""
    config["dataset"]["log"] = json.loads(file("secret_reference").read_text())["dataset"]["log"]


@pytest.mark.parametrize("name", ["literal_secret", "literal_secret_beside_other_faults"])
def test_a_literal_secret_is_not_echoed_by_a_stack_trace_either(name, folder):
    assert SECRET in file(name).read_text()
    said = refused(train, "--config", file(name), "--run-dir", "run", "--debug")
    assert said[0] == "Traceback (most recent call last):"
    assert f"{file(name)}: dataset.log.security.password: {NO_LITERAL}" in said
    assert SECRET not in "\n".join(said)


def test_a_literal_secret_on_the_command_line_is_refused_and_not_echoed(folder):
    path = "dataset.log.security.password"
    section = "dataset.log.security"
    for override, problem in {
        f"{path}={json.dumps(SECRET)}": f"{path}: {NO_LITERAL}",
        f"{path}={SECRET}": f'{path}: expected {{"env": NAME}} or {{"file": PATH}} or null in JSON: not JSON, expecting value '
        "at line 1 column 1",
        f"{path}:{SECRET}": f"{path}: no override; write it as a.b.c=value",
        SECRET: "no override; write it as a.b.c=value",
        f"{section}={SECRET}": f"{section}: expected an object in JSON, or the name of a class: Security",
        f"{section}.protocol={SECRET}": f"{section}.protocol: expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    }.items():
        lines = refused(train, "--config", file("secret_reference"), "--run-dir", "run", override)
        assert lines == [f"command line: {problem}"]


@pytest.mark.slow
def test_a_literal_secret_in_a_checkpoint_is_refused_and_not_echoed_also_where_unknown_fields_are_kept(
    production, tmp_path, folder
):
    def change(config):
        with_secret(config)
        config["dataset"]["log"]["security"] |= {"password": SECRET, "key_password": SECRET}

    step = edited(step_of(production, 2), tmp_path / "2", change)
    lines = refused(train, "--checkpoint", step, "--keep-unknown", "--run-dir", "run", "trainer.max_steps=3")
    assert [line.removeprefix(f"{step}/config.json: ") for line in lines] == [
        f"dataset.log.security.password: {NO_LITERAL}",
        "dataset.log.security.key_password: unknown field, not kept: it may be a secret; refer to it",
    ]


@pytest.mark.parametrize(
    ("secrets", "line"),
    [
        ({}, "environment variable KAFKA_PASSWORD is not set: set it to the secret"),
        ({"KAFKA_PASSWORD": ""}, "environment variable KAFKA_PASSWORD is empty: set it to the secret"),
    ],
)
@pytest.mark.slow
def test_a_secret_that_is_not_there_is_named_and_no_broker_is_asked(production, tmp_path, beside_log, secrets, line):
    step = edited(step_of(production, 2), tmp_path / "2", with_secret)
    first = ("--config", file("secret_reference"), "--run-dir", "run")
    child = ("--checkpoint", step, "--run-dir", "run", "trainer.max_steps=3")
    for arguments in (first, child):
        done = train(*arguments, check=False, env=environment(**secrets))
        assert (done.returncode, done.stderr) == (2, f"{line}\n")
    assert os.listdir() == ["café"]


def test_a_secret_reaches_no_output_and_no_file_where_the_broker_is_not_there(folder):
    arguments = ("--config", file("secret_reference"), "--run-dir", "run", "--debug")
    done = train(*arguments, check=False, env=environment(KAFKA_PASSWORD=SECRET))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Kafka at 127.0.0.1:1 cannot be used: no connection")
    assert (folder / "run" / "summary.json").exists()
    assert_nowhere(SECRET, folder, done)


@pytest.fixture
def kafka_with_password(kafka, topic_name):
    """Arguments of a run that reads a small topic as a user whose password is SECRET."""
    port = int(kafka.rpartition(":")[2])
    if os.environ.get("PHOENIX_TEST_KAFKA") or not (ROOT / ".kafka" / str(port) / "ca.pem").exists():
        pytest.skip("the Kafka in use was not started by: scripts/kafka.sh up --fresh --secure")
    with closing(KafkaAdminClient(bootstrap_servers=kafka)) as admin:
        user = UserScramCredentialUpsertion("trainer", ScramMechanism.SCRAM_SHA_512, SECRET)
        assert admin.alter_user_scram_credentials([user]) == {"trainer": None}
    xrex("data", "produce", "--to", kafka, "--topic", topic_name, "--examples", 40, "--rows-per-message", 4)
    return (
        "--config", file("secret_reference"), f"dataset.topic_name={topic_name}", "dataset.log.request_timeout_ms=10000",
        f"dataset.log.bootstrap_servers=127.0.0.1:{port + 2}", "dataset.log.security.protocol=SASL_PLAINTEXT",
    )  # fmt: skip


@pytest.mark.kafka
@pytest.mark.slow
def test_a_run_with_a_password_saves_its_reference_alone_and_a_resumed_one_asks_for_it_again(
    kafka_with_password, folder
):
    there = environment(KAFKA_PASSWORD=SECRET)
    done = train(*kafka_with_password, "--run-dir", "run", env=there)
    for saved in (folder / "run", step_of(folder / "run", 2)):
        config = json.loads((saved / "config.json").read_bytes())
        assert at(config, "dataset.log.security.password") == {"env": "KAFKA_PASSWORD"}
    assert_nowhere(SECRET, folder, done)
    before = contents(folder)
    resume = ("--run-dir", "run", "trainer.max_steps=3")
    refusal = train(*resume, check=False, env=environment())
    assert refusal.returncode == 2
    assert refusal.stderr == "environment variable KAFKA_PASSWORD is not set: set it to the secret\n"
    assert contents(folder) == before
    assert_nowhere(SECRET, folder, train(*resume, env=there))
    assert step_of(folder / "run", 3).is_dir()


def assert_nowhere(secret: str, place: Path, done: CompletedProcess) -> None:
    """Neither in what a command printed nor in any file of the folder."""
    assert secret not in done.stdout + done.stderr
    assert [path for path, content in contents(place).items() if secret.encode() in content] == []


def test_numbers_whose_names_only_sound_secret_are_shown(folder):
    shown = json.loads(xrex("config", "show", file("secret_reference"), env=environment(KAFKA_PASSWORD=SECRET)).stdout)
    assert at(shown, "dataset.tables[0].num_embeddings") == 1000
    assert at(shown, "dataset.features[0].max_values") == 1
    assert at(shown, "dataset.log.security.username") == "trainer"
    override = "dataset.tables.0.num_embeddings=0"
    assert refused(train, "--config", BASE, "--run-dir", "run", override) == [
        "command line: dataset.tables[0].num_embeddings = 0: must be at least 1"
    ]
