"""`xrex config`: what it prints and with which exit code it ends."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from config_runs import ENVIRONMENT, START, small_config, write_step
from xai_configlib import describe
from xrex.cli.config import app
from xrex.errors import ConfigError
from xrex.optim.config import OptimizerConfig, SparseOptimizerConfig
from xrex.train.config import TrainerConfig
from xrex.utils.metadata import Run

FASTER = small_config(optimizer=OptimizerConfig(sparse=SparseOptimizerConfig(learning_rate=0.5)))


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def refused(*words) -> str:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False, standalone_mode=False)
    return str(caught.value)


@pytest.fixture
def lineage(tmp_path):
    """Step 10 of production, and step 20 of its child, which learns faster."""
    origins = {"trainer.seed": "default", "optimizer.sparse.learning_rate": "file", "dataset.topic_name": "file"}
    production = Run.first(name="production", environment=ENVIRONMENT, start=START, provenance=origins)
    production = production.blaming(origins, None, {"file": "production.yaml"})
    child = Run.child_of(
        production,
        "production",
        "/production/checkpoints/10",
        name="faster",
        environment=ENVIRONMENT,
        start=replace(START, time="2020-02-03T04:05:06+00:00"),
        provenance=dict.fromkeys(origins, "checkpoint") | {"optimizer.sparse.learning_rate": "override"},
        inherited=small_config().to_dict(),
    )
    child = child.blaming({"optimizer.sparse.learning_rate": "override"}, production, {})
    write_step(tmp_path / "production" / "checkpoints" / "10", small_config(), production)
    write_step(tmp_path / "child" / "checkpoints" / "20", FASTER, child)
    return tmp_path / "production", tmp_path / "child", production.run_id[:8], child.run_id[:8]


def test_blame_names_for_each_field_the_run_the_time_and_the_file(lineage):
    _, child, production_id, child_id = lineage
    heading, *lines = call("blame", child).stdout.splitlines()
    assert heading.split() == ["field", "value", "by", "run", "when", "from"]
    assert [line.split() for line in lines] == [
        [
            "dataset.topic_name",
            '"clicks"',
            "file",
            "production",
            production_id,
            "2020-01-01",
            "00:00",
            "production.yaml",
        ],
        ["optimizer.sparse.learning_rate", "0.5", "override", "faster", child_id, "2020-02-03", "04:05"],
        ["trainer.seed", "0", "default", "production", production_id, "2020-01-01", "00:00", "0.0.0"],
    ]


def test_blame_of_a_section_and_of_a_field(lineage):
    _, child, *_ = lineage
    for path in ("optimizer", "optimizer.sparse.learning_rate"):
        (line,) = call("blame", child, path).stdout.splitlines()[1:]
        assert line.split() == call("blame", child).stdout.splitlines()[2].split()
    (row,) = json.loads(call("blame", child, "trainer", "--json").stdout)
    assert (row["path"], row["value"], row["generation"], row["origin"]) == ("trainer.seed", 0, 0, "default")


def test_blame_of_an_unknown_field_names_the_nearest(lineage):
    line = refused("blame", lineage[1], "optimizer.sparse.learning_rat")
    assert line == "optimizer.sparse.learning_rat: unknown field; did you mean optimizer.sparse.learning_rate?"


def test_watch_once_tells_by_its_exit_code_whether_production_has_moved(lineage):
    production, child, *_ = lineage
    run = Run.from_json((production / "checkpoints" / "10" / "run.json").read_text())
    assert call("watch", production, "--against", child, "--once").exit_code == 0
    write_step(production / "checkpoints" / "30", FASTER, run)
    for options in (("--once",), ()):
        moved = call("watch", production, "--against", child, *options)
        assert moved.exit_code == 1
        assert moved.stdout == "optimizer.sparse.learning_rate: 0.05 -> 0.5  (may_change)\n"
    (row,) = json.loads(call("watch", production, "--against", child, "--json").stdout)
    assert row["right"] == 0.5


def test_fields_prints_every_field_with_type_unit_default_policy_and_doc():
    lines = call("fields").stdout.splitlines()
    assert len(lines) == len(describe(TrainerConfig))
    line = next(line for line in lines if line.startswith("dataset.stall_timeout_s"))
    assert line.startswith("dataset.stall_timeout_s: number, s, default 60.0, per_start: ")
    assert [line.partition(":")[0] for line in call("fields", "trainer").stdout.splitlines()] == [
        "trainer",
        *(
            f"trainer.{name}"
            for name in (
                "name",
                "max_steps",
                "global_batch_size",
                "micro_batches",
                "history_widths",
                "seed",
                "log_every_steps",
                "journal",
                "prometheus_address",
            )
        ),
    ]
    assert refused("fields", "trainer.sed") == "trainer.sed: unknown field; did you mean trainer.seed?"
    assert refused("fields", "wheels") == "wheels: unknown field; xrex config fields lists them"
    assert refused("fields", "a..b") == "'a..b' is no path of dotted names; write it as a.b.c"


def test_fields_of_a_lists_entries_are_asked_for_by_the_list():
    paths = {row["path"] for row in json.loads(call("fields", "dataset.tables", "--json").stdout)}
    assert {"dataset.tables", "dataset.tables[*].salts"} <= paths


def test_schema_is_json_schema_of_a_whole_config():
    schema = json.loads(call("schema").stdout)
    assert schema["title"] == "TrainerConfig"
    assert set(schema["properties"]) == {"__class", "__version", *TrainerConfig.model_fields}


def test_check_and_show_keep_unknown_fields_on_request(tmp_path):
    newer = small_config().to_dict()
    newer["trainer"]["later"] = [1, 2]
    file = tmp_path / "newer.json"
    file.write_text(json.dumps(newer))
    for command in ("check", "show"):
        assert "trainer.later = [1, 2]: unknown field" in refused(command, file)
        kept = call(command, file, "--keep-unknown")
        assert "trainer.later = [1, 2]: unknown field, kept as it is" in kept.stderr
    assert json.loads(kept.stdout)["trainer"]["later"] == [1, 2]


def test_unknown_fields_of_a_step_or_a_run_come_with_the_offer_to_keep_them_and_those_of_a_file_do_not(tmp_path):
    newer = small_config().to_dict()
    newer["trainer"]["later"] = 1
    run = Run.first(name="newer", environment=ENVIRONMENT, start=START)
    step = write_step(tmp_path / "run" / "checkpoints" / "10", newer, run)
    for name in ("config.json", "run.json"):
        (tmp_path / "run" / name).write_bytes((step / name).read_bytes())
    unknown = "trainer.later = 1: unknown field"
    for words in (["show"], ["check"], ["diff", step], ["blame"]):
        for place in (step, tmp_path / "run"):
            lines = refused(*words, place).splitlines()
            file = (step if words == ["diff", step] else place) / "config.json"
            assert lines == [
                f"{file}: {unknown}",
                f"{file}: did a newer release write it? --keep-unknown carries such fields along",
            ]
    for words in (["show"], ["check"]):
        assert refused(*words, step / "config.json") == f"{step}/config.json: {unknown}"


def test_import_prints_a_config_on_stdout_and_what_became_of_each_value_on_stderr(tmp_path):
    published = Path(__file__).parents[2] / "fixtures" / "published_config.json"
    done = call("import", published)
    file = tmp_path / "experiment.json"
    file.write_text(done.stdout)
    assert call("check", file).stdout == f"{file}: valid\n"
    assert done.stderr.splitlines()[0].split() == ["published", "verdict", "here", "why"]
    assert any(line.split()[:3] == ["max_steps", "taken", "trainer.max_steps"] for line in done.stderr.splitlines())
    rows = json.loads(call("import", published, "--json").stderr)
    assert {row["verdict"] for row in rows} == {"taken", "translated", "ignored"}


def test_import_of_what_is_no_such_file_is_an_error(tmp_path):
    assert "cannot be read: No such file" in refused("import", tmp_path / "gone.json")
