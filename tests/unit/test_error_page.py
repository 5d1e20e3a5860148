"""docs/errors.md has every message of a config error, and each is what the operator really reads."""

import json
import re
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import typer

import error_pages
from config_runs import ENVIRONMENT, START, small_config, write_step
from error_pages import error_messages, error_page
from xai_configlib import ConfigError, SecretRef, apply_overrides, load_text
from xrex.checkpoint import layout
from xrex.cli.main import app
from xrex.data.events import EventColumns, build_rows
from xrex.data.log.config import KafkaLog, Security
from xrex.data.log.security import client_settings
from xrex.report.failures import invoke
from xrex.train.config import TrainerConfig
from xrex.train.start import Options, plan
from xrex.utils.metadata import Run
from xrex.utils.utils import start_distributed

CATALOGUE = error_page.read_catalogue(error_page.CATALOGUE.read_text("utf-8"))
nearest = partial(error_pages.nearest, catalogue=CATALOGUE)


def test_the_page_has_every_message_of_the_code_and_no_other():
    faults = error_page.faults(CATALOGUE, error_messages.sites(), error_page.PAGE.read_text("utf-8"))
    assert not faults, "\n".join(faults)


def test_every_message_has_a_cause_and_a_cure_on_one_line():
    for heading in CATALOGUE.headings:
        assert all((heading.title, heading.intro, heading.entries)), heading
        for entry in heading.entries:
            assert all(re.fullmatch(r".+[.]", text) for text in (entry.cause, entry.cure)), entry


def test_the_commands_that_the_page_names_exist():
    commands = vars(typer.main.get_command(app()))["commands"]
    known = {f"{group} {name}" for group in commands for name in getattr(commands[group], "commands", {})}
    named = re.findall(r"`xrex (config|checkpoint|data) ([a-z]+)", error_page.PAGE.read_text("utf-8"))
    assert len(named) > 20
    assert {" ".join(words) for words in named} <= known


# What the operator reads


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "PHOENIX_ALLOW_ENV", "PHOENIX_SECRETS_DIR", "KAFKA_NONE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder: a config file, and a run of it with one step."""
    monkeypatch.chdir(tmp_path)
    config, run = small_config(), Run.first(name="x", environment=ENVIRONMENT, start=START, provenance={})
    Path("run.yaml").write_text(config.to_json())
    step = write_step(tmp_path / "production" / "checkpoints" / "10", config, run)
    for name in ("config.json", "run.json"):
        (tmp_path / "production" / name).write_bytes((step / name).read_bytes())
    return tmp_path


def from_json(**changes):
    return TrainerConfig.from_json(json.loads(small_config().to_json()) | changes, source="run.json")


def dataset(**changes):
    return {"dataset": json.loads(small_config().to_json())["dataset"] | changes}


def feature(*others, **changes):
    """A dataset with a directly indexed table and one feature of the candidates, changed so, beside others."""
    price = {"name": "price", "group": "candidate", "column": "price", "kind": "float"}
    tables = [{"name": "items", "num_embeddings": 10, "embedding_dim": 4, "salts": []}]
    return from_json(**dataset(tables=tables, features=[price | changes, *others]))


def overridden(*overrides):
    return apply_overrides(small_config(), overrides)


def planned(**options):
    return plan(Options(**options))


RUN_FILE, PRODUCTION = Path("run.yaml"), Path("production")
EVENTS = pa.table({"user": [1.5], "item": [1], "event_time_ms": [1], "click": [1]})
MAY_NOT = "<fields> may not differ: "
REAL_ERRORS = {
    "<file>: is empty: write the config into it, or check the path": lambda: load_text(b"\n", "run.json"),
    "<file>: is UTF-16: save it as UTF-8": lambda: load_text("{}".encode("utf-16"), "run.json"),
    "<file>: is not UTF-8 at byte <number>: save it as UTF-8": lambda: load_text(b"a: \xff", "run.json"),
    "<file>: the text is cut short at line <line> column <column>": lambda: load_text('{"a": ', "run.json"),
    "<file>: not JSON, <what> at line <line> column <column>": lambda: load_text("{'a': 1}", "run.json"),
    "<file>: not YAML, <what> at line <line> column <column>": lambda: load_text("a: [1", "run.yaml"),
    "<file>: the key <key> stands twice in one object": lambda: load_text('{"a": 1, "a": 2}', "run.json"),
    "<file>: the key <key> stands twice at line <line> column <column>": lambda: load_text("a: 1\na: 2", "run.yaml"),
    '<file>: <token> is not JSON: write "<token>" in quotes': lambda: load_text('{"a": -Infinity}', "run.json"),
    "<file>: <key> is a <type>: write the text in quotes": lambda: load_text("a: 2026-01-31", "run.yaml"),
    "<file>: expected an object of sections at the top level, found <kind>": lambda: load_text("- 1", "run.yaml"),
    "… expected an integer": lambda: from_json(trainer={"seed": 1.5}),
    "… <what is expected>; write it without quotes": lambda: from_json(trainer={"seed": "1"}),
    "… <what is expected>; write it in quotes": lambda: from_json(trainer={"name": 7}),
    "… must be at least <limit>": lambda: from_json(trainer={"log_every_steps": 0}),
    "… must have at least <limit> entries": lambda: from_json(**dataset(actions=[])),
    "… missing; expected <type>": lambda: TrainerConfig.from_json({}),
    "… expected one of <choices>": lambda: from_json(**dataset(codec="protobuf")),
    "… expected one of <choices>; did you mean <choice>?": lambda: from_json(**dataset(log={"__class": "Kafka"})),
    "… unknown field; did you mean <name>?": lambda: from_json(trainer={"max_step": 3}),
    "… unknown field": lambda: from_json(wheels=4),
    "… unknown field, not kept: it may be a secret; refer to it": lambda: TrainerConfig.from_json(
        dataset(password="hunter2"), unknown="keep"
    ),
    "… <list>: the name <name> is given twice; rename one": lambda: from_json(**dataset(actions=["a", "a"])),
    "… feature <name>: table = <table>, the tables are <tables>": lambda: feature(kind="id", table="users"),
    "… feature <name>: a <kind> feature has no table; remove table": lambda: feature(table="items"),
    "… feature <name>: string ids are hashes, the directly indexed table <table> cannot hold them; give the table salts, "
    "or oov: hash": lambda: feature(kind="id", table="items", id_type="string"),
    "… features <name> and <name> read the column <column> in two ways; give both one group, kind and id_type": lambda: (
        feature({"name": "other", "group": "user", "column": "price", "kind": "float"})
    ),
    "… feature <name>: the column <column> would tell the model the answer; remove the feature": lambda: feature(
        column="click"
    ),
    "… feature <name>: the column <column> is the row's own, not an input; remove the feature": lambda: feature(
        column="weight"
    ),
    "… feature <name>: the column <column> holds one integer mask an event": lambda: feature(column="history_actions"),
    "… dataset.features has none of group candidate: the model could not tell candidates apart": lambda: feature(
        group="user"
    ),
    "… num_heads = <number>: twice this must divide width = <width>": lambda: from_json(model={"width": 30}),
    "… model.action_weights has <number> values, dataset.actions has <number>: give one for each": lambda: from_json(
        model={"action_weights": [1, 2]}
    ),
    '… expected {"env": NAME} or {"file": PATH}, a secret is never written into a config': lambda: from_json(
        **dataset(log={"__class": "KafkaLog", "security": {"password": "hunter2"}})
    ),
    "<file>: __version = <version>: the file was written by a newer release; this one reads up to version <version>; "
    "upgrade it": lambda: from_json(__version=99),
    "… no override; write it as a.b.c=value": lambda: overridden("max_steps"),
    "command line: <path> is no path of dotted names; write it as a.b.c=value": lambda: overridden("trainer..seed=1"),
    "… unknown path, <path> has no parts; end the path at <path>": lambda: overridden("trainer.seed.low=1"),
    "… unknown field; write <path>=<class>": lambda: overridden("dataset.log.__class=KafkaLog"),
    "… expected an object in JSON, or the name of a class: <classes>": lambda: overridden("mesh=null"),
    "… unknown entry, <path> has entries 0 to <number>; an override adds no entry; give the whole list": lambda: (
        overridden("dataset.actions.9=a")
    ),
    "… expected <type> in JSON: <reason>": lambda: overridden("dataset.actions=[a]"),
    "environment variable <name> is not set: set it to the secret": lambda: SecretRef(env="KAFKA_NONE").resolve(),
    "environment variable <name>: a config may read only PHOENIX_* and KAFKA_*; to allow this one, set "
    "PHOENIX_ALLOW_ENV=<name>": lambda: SecretRef(env="HOME").resolve(),
    "secret file <path>: <reason>; looked in <folder>": lambda: SecretRef(file="none").resolve(),
    "give --config FILE, --checkpoint PATH or the --run-dir of a run": planned,
    "<file>: cannot be read: <reason>; check the path": lambda: planned(config=Path("none.yaml")),
    "<option> = <text>: expected earliest, latest, timestamp:TIME or positions:FILE": lambda: planned(start_at="noon"),
    "--checkpoint: the address holds credentials; give them to the storage client's own settings": lambda: planned(
        checkpoint="s3://me:hunter2@bucket/run"
    ),
    "--run-dir <folder>: must not be, contain or lie in <folder>, where the child begins; choose another": lambda: (
        planned(checkpoint="production", run_dir=Path("production/child"))
    ),
    "trainer.max_steps = <number>: the checkpoint is at step <step> already; raise it, or trainer.max_steps=null": (
        lambda: planned(checkpoint="production", overrides=("trainer.max_steps=10",))
    ),
    "dataset.topic_name = <topic>: the checkpoint's positions are of <topic>; say where to begin: --start-at earliest": (
        lambda: planned(checkpoint="production", overrides=("dataset.topic_name=views",))
    ),
    "--checkpoint <path>: <folder> began from no checkpoint; leave it out to go on, or choose another --run-dir": (
        lambda: planned(checkpoint="other", run_dir=PRODUCTION)
    ),
    MAY_NOT + "a child must agree with its checkpoint <path>; to change it begin anew, with --config alone": lambda: (
        planned(checkpoint="production", overrides=("trainer.seed=1",))
    ),
    MAY_NOT + "<folder> was trained with the other value; to change it begin anew, with --config and a new --run-dir": (
        lambda: planned(run_dir=PRODUCTION, overrides=("trainer.seed=1",))
    ),
    MAY_NOT + "a restart goes on unchanged; to change it begin a child:\n<command>": lambda: planned(
        run_dir=PRODUCTION, overrides=("trainer.global_batch_size=7",)
    ),
    "--start-at <place>: acts at a run's first start only, <folder> has its own positions; leave it out to go on, or begin "
    "a child:\n<command>": lambda: planned(run_dir=PRODUCTION, start_at="latest"),
    "checkpoint <path>: no such folder; give a step, a checkpoints or a run folder": lambda: layout.resolve("none"),
    "checkpoint <path>: no complete step here; looked for commit_success.txt, for folders named by a step (such as 1000) "
    "and for checkpoints/": lambda: layout.resolve("."),
    "dataset.log.security.<field> = null: <protocol> needs one, or choose PLAINTEXT or SSL": lambda: client_settings(
        KafkaLog(security=Security(protocol="SASL_SSL"))
    ),
    "user column <name> is <type>: user ids are integers or strings; convert it first": lambda: build_rows(
        EVENTS, EventColumns(actions=("click",)), 1
    ),
    "events have no column <name>; they have <names>; name yours with --user-column, --time-column, --candidate-columns or "
    "--actions": lambda: build_rows(EVENTS, EventColumns(user="buyer"), 1),
    "<command>: <what is wrong>; see <command> --help": lambda: invoke(app(), ["config", "show", "--quietly"]),
    "<path> is no path of dotted names; write it as a.b.c": lambda: invoke(app(), ["config", "fields", "a..b"]),
    "<path>: unknown field; xrex config fields lists them": lambda: invoke(app(), ["config", "fields", "wheels"]),
}


@pytest.mark.parametrize("template", REAL_ERRORS)
def test_a_real_error_is_found_on_the_page(template, folder):
    with pytest.raises(ConfigError) as caught:
        REAL_ERRORS[template]()
    lines = str(caught.value).splitlines()[-1 - template.count("\n") :]  # a table of differences may stand above
    assert nearest("\n".join(lines)) == template


@pytest.mark.parametrize(("count", "most"), [("none", False), ("2", True)])
def test_a_wrong_number_of_processes_is_found_on_the_page(count, most, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", count)
    with pytest.raises(ConfigError) as caught:
        start_distributed()
    assert nearest(str(caught.value)) == "<variable> = <text>: give a whole number from <least>" + " to <most>" * most


# How messages are found in the code


@pytest.mark.parametrize(
    ("code", "templates"),
    [
        ('raise ConfigError(f"{path}: no such folder; choose another")', ["<path>: no such folder; choose another"]),
        ('raise ConfigError(f"{name} is {\'empty\' if x else \'not set\'}")', ["<name> is empty", "<name> is not set"]),
        ('what = "wrong" if x else "odd"\nraise ConfigError(f"a: {what}")', ["a: wrong", "a: odd"]),
        ('raise ConfigError(f"at most {LIMIT:,} MB")', ["at most 64,000 MB"]),
        ('raise ConfigError("a: b" + ("" if x is None else f" to {x}"))', ["a: b", "a: b to <x>"]),
        ('p = []\np.append("a: 1")\np += [f"b: {x}"]\nraise ConfigError("\\n".join(p))', ["a: 1", "b: <x>"]),
        ('raise ConfigError(Problem(source, "a.b", shown(x), "bad", "fix it"))', ["<source>: a.b = <x>: bad; fix it"]),
        ('raise ConfigError(Problem(source, path, None, "bad"))', ["… bad"]),
        ('return Refused(shown(x), f"expected one of {names}")', ["… expected one of <names>"]),
        ('if x:\n    e, f = "a", "b"\nelse:\n    e, f = "c", "d"\nProblem("", y, x, e, f)', ["… a; b", "… c; d"]),
        ('if x:\n    e = "a"\n    raise ConfigError(e + f"{x}")\ne = "b"\nraise ConfigError(e + f"{x}")', ["a<x>", "b<x>"]),
        ('say(str(Problem(source, path, None, "kept as it is")))', []),
        ('raise RunError("the broker is gone")', []),
    ],
)  # fmt: skip
def test_a_message_is_read_from_the_code_that_words_it(code, templates, tmp_path):
    body = "\n".join(f"    {line}" for line in code.splitlines())
    assert scanned(tmp_path, f"LIMIT = 64 * 1_000\n\ndef function(x, path):\n{body}\n") == templates


def test_a_validator_of_a_config_class_words_a_config_error_and_another_function_does_not(tmp_path):
    code = """
class Config:
    @model_validator(mode="after")
    def _fits(self):
        if problems := list(_problems(self)):
            raise ValueError("; ".join(problems))

def _problems(config):
    yield f"width = {config.width}: must be even"

def parse(text):
    raise ValueError("no number")
"""
    assert scanned(tmp_path, code) == ["… width = <width>: must be even"]


def test_words_that_callers_pass_are_part_of_the_message(tmp_path):
    code = """
def _refuse(names, fix):
    raise ConfigError(f"{names} may not differ: {fix}")

def child():
    _refuse(names, f"leave {path} as it is")

def restart():
    _refuse(names, "begin a child instead")
"""
    assert scanned(tmp_path, code) == [
        "<names> may not differ: leave <path> as it is",
        "<names> may not differ: begin a child instead",
    ]


def test_an_error_below_config_error_counts_as_one(tmp_path):
    assert scanned(tmp_path, 'class Odd(ConfigError): ...\ndef f(): raise Odd("odd: one of these")') == [
        "odd: one of these"
    ]


def scanned(folder: Path, code: str) -> list[str]:
    (folder / "module.py").write_text(code)
    return [site.template for site in error_messages.sites(folder)]


# What the check says

TOML = """
[[heading]]
title = "A"
intro = "B."
[[heading.error]]
messages = ["<a>: wrong"]
cause = "C."
cure = "D."
"""


def faults_of(tmp_path, code, toml=TOML, written=None):
    (tmp_path / "module.py").write_text(code)
    catalogue = error_page.read_catalogue(toml)
    page = error_page.page(catalogue) if written is None else written
    return error_page.faults(catalogue, error_messages.sites(tmp_path), page)


def test_the_check_is_silent_where_placeholders_alone_have_other_names(tmp_path):
    assert faults_of(tmp_path, 'ConfigError(f"{path}: wrong")') == []


def test_the_check_names_what_is_missing_with_its_place_and_what_no_code_prints(tmp_path):
    missing, superfluous = faults_of(tmp_path, 'ConfigError(f"{x}: new")')[::-1]
    assert missing == 'module.py:1: not in docs/errors.toml: messages = ["<x>: new"]'
    assert superfluous == "docs/errors.toml: no code prints this, remove it: <a>: wrong"


def test_the_check_wants_to_know_where_a_message_is_worded_that_a_call_passes_on(tmp_path):
    code = 'ConfigError(f"{a}: wrong")\nConfigError(made_elsewhere(x))'
    (said,) = faults_of(tmp_path, code)
    assert "module.py:2: no word of this message stands here" in said
    known = TOML + '[[passed_on]]\ncall = "module.py: ConfigError(made_elsewhere(x))"\nmade_by = "x"\n'
    assert faults_of(tmp_path, code, known) == []
    assert "passed_on names a call that is not there" in faults_of(tmp_path, code.splitlines()[0], known)[0]


def test_the_check_finds_a_message_that_stands_twice_and_a_page_that_is_out_of_date(tmp_path):
    code = 'ConfigError(f"{a}: wrong")'
    twice = TOML.replace('["<a>: wrong"]', '["<a>: wrong", "<b>: wrong"]')
    assert faults_of(tmp_path, code, twice) == ["docs/errors.toml: stands 2 times: <b>: wrong"]
    assert "errors.toml makes: make docs" in faults_of(tmp_path, code, written="# old")[0]


def test_a_block_without_a_cure_or_with_a_part_that_is_not_known_is_an_error():
    for wrong in (TOML.replace('cure = "D."', ""), TOML + 'remedy = "E."\n'):
        with pytest.raises(TypeError):
            error_page.read_catalogue(wrong)
