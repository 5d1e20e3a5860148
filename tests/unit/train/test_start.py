"""What the command line, a config file, a checkpoint and a run folder mean together."""

import json
import shlex
from dataclasses import replace

import pytest

from config_runs import ENVIRONMENT, START, small_config, write_step
from xai_configlib import ConfigError
from xrex.checkpoint import layout, positions
from xrex.errors import CheckpointError
from xrex.schema.positions import PartitionPosition, TopicPositions
from xrex.train.config import TrainerConfig
from xrex.train.start import Options, command_line, default_run_dir, plan, plan_child, plan_first, plan_restart
from xrex.utils.metadata import Run

FILE = {
    "dataset": {
        "topic_name": "clicks",
        "num_kafka_partitions": 2,
        "tables": [],
        "features": [{"name": "price", "group": "candidate", "column": "price", "kind": "float"}],
        "actions": ["click"],
    }
}


@pytest.fixture
def config():
    return small_config()


@pytest.fixture
def file(tmp_path):
    """The same config as a file."""
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(FILE))
    return path


@pytest.fixture
def run_dir(config, tmp_path):
    """A run of this config with the complete steps 10 and 20."""
    folder = tmp_path / "production"
    for step in (10, 20):
        write_step(folder / "checkpoints" / str(step), config, first_run())
    (folder / "config.json").write_text(config.to_json())
    (folder / "run.json").write_text(first_run().to_json())
    return folder


@pytest.fixture
def child_dir(run_dir, config, tmp_path):
    """A child of that run that has no step of its own yet."""
    folder = tmp_path / "child"
    folder.mkdir()
    parent = Run.from_json((run_dir / "run.json").read_text())
    child = Run.child_of(
        parent, str(run_dir), str(run_dir / "checkpoints" / "20"), name="x", environment=ENVIRONMENT, start=START
    )
    (folder / "config.json").write_text(config.to_json())
    (folder / "run.json").write_text(child.to_json())
    return folder


def first_run():
    origins = {"trainer.max_steps": "default", "dataset.topic_name": "file", "dataset.log.path": "default"}
    origins["trainer.prometheus_address"] = "default"
    return Run.first(name="x", environment=ENVIRONMENT, start=START, provenance=origins)


def refused(call, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return str(caught.value)


# A first start


def test_a_first_start_takes_the_file_and_the_overrides_and_notes_where_each_value_comes_from(file, tmp_path):
    planned = plan_first(Options(config=file, run_dir=tmp_path / "run", overrides=("trainer.max_steps=7",)), file)
    assert (planned.kind, planned.restore_from, planned.earlier) == ("first", None, None)
    assert planned.config.trainer.max_steps == 7
    assert planned.provenance["trainer.max_steps"] == "override"
    assert planned.provenance["dataset.topic_name"] == "file"
    assert planned.provenance["trainer.seed"] == "default"
    assert not (tmp_path / "run").exists()


def test_without_a_run_folder_the_default_is_named_by_run_and_time(file):
    name = plan(Options(config=file, overrides=("trainer.name=nightly",))).run_dir.name
    assert name.startswith("nightly-2")


def test_default_run_folders_of_one_second_differ(config):
    folders = {default_run_dir(config) for _ in range(200)}
    assert len(folders) > 1


def test_problems_of_the_file_and_of_the_command_line_are_reported_together(tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"dataset": FILE["dataset"] | {"codec": 7}}))
    overrides = ("trainer.max_step=3", "trainer.seed=x", "no equals sign")
    lines = refused(plan_first, Options(config=path, overrides=overrides), path).splitlines()
    assert lines == [
        "command line: trainer.max_step: unknown field; did you mean max_steps?",
        "command line: no override; write it as a.b.c=value",  # what has no field's name may be a secret
        f"{path}: dataset.codec = 7: expected one of arrow, json",
        "command line: trainer.seed = 'x': expected an integer",
    ]


def test_a_file_far_too_large_for_a_config_is_not_read(tmp_path):
    path = tmp_path / "events.parquet"
    with path.open("wb") as sparse:
        sparse.truncate(1234 * 2**20 + 2**19)
    said = refused(plan, Options(config=path))
    assert said == f"{path}: 1,234.5 MB, more than 64 MB; is this a config?"


def test_nothing_to_run_names_the_three_ways_to_begin(tmp_path):
    ways = "give --config FILE, --checkpoint PATH or the --run-dir of a run"
    assert refused(plan, Options()) == ways
    empty = refused(plan, Options(run_dir=tmp_path))
    assert empty == f"--run-dir {tmp_path}: no run.json here to go on from; {ways}"


def test_a_start_at_that_is_no_place_is_refused_before_anything_is_read(tmp_path):
    said = refused(plan, Options(config=tmp_path / "missing", start_at="yesterday"))
    assert said == "--start-at = 'yesterday': expected earliest, latest, timestamp:TIME or positions:FILE"


def test_a_run_folder_that_is_a_step_is_refused_whatever_it_is_asked_for(run_dir, file):
    step_dir = run_dir / "checkpoints" / "20"
    for options in (Options(run_dir=step_dir), Options(config=file, run_dir=step_dir)):
        assert "a step of a run; name its run folder" in refused(plan, options)


def test_checkpoints_without_a_run_json_are_not_written_over(run_dir, file):
    (run_dir / "run.json").unlink()
    assert "holds checkpoints but no run.json" in refused(plan, Options(config=file, run_dir=run_dir))


# A child


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/20"])
def test_a_child_begins_from_a_run_a_checkpoints_or_a_step_folder(run_dir, config, place, tmp_path):
    planned = plan_child(Options(run_dir=tmp_path / "new"), str(run_dir / place))
    assert planned.kind == "child"
    assert planned.restore_from == run_dir / "checkpoints" / "20"
    assert planned.config == config
    assert planned.lines() == ["no field differs from the checkpoint's config"]
    assert planned.earlier == Run.from_json((run_dir / "checkpoints" / "20" / "run.json").read_text())


def test_a_child_may_change_what_may_change_and_the_table_shows_it(run_dir, tmp_path):
    options = Options(run_dir=tmp_path / "new", overrides=("optimizer.dense.learning_rate=3e-4",))
    heading, row = plan_child(options, str(run_dir)).lines()
    assert heading.split() == ["field", "production", "experiment", "policy", "verdict"]
    assert row.split() == ["optimizer.dense.learning_rate", "0.001", "0.0003", "may_change", "allowed"]


def test_a_child_that_differs_where_it_must_match_is_refused_with_the_table_and_the_fix(run_dir, tmp_path):
    options = Options(run_dir=tmp_path / "new", overrides=("model.width=64", "trainer.seed=1"))
    lines = refused(plan_child, options, str(run_dir)).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["field", "model.width", "trainer.seed"]
    assert lines[3].startswith("model.width, trainer.seed may not differ: a child must agree with its checkpoint")
    assert lines[3].endswith("to change it begin anew, with --config alone")


@pytest.mark.parametrize("overrides", [(), ("dataset.topic_name=views", "dataset.num_kafka_partitions=8")])
def test_topic_and_partitions_follow_the_checkpoint_unless_the_command_line_says_otherwise(
    run_dir, tmp_path, overrides
):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"dataset": FILE["dataset"] | {"topic_name": "shares", "num_kafka_partitions": 3}}))
    options = Options(config=path, run_dir=tmp_path / "new", start_at="earliest", overrides=overrides)
    planned = plan_child(options, str(run_dir))
    dataset = planned.config.dataset
    assert (dataset.topic_name, dataset.num_kafka_partitions) == (("views", 8) if overrides else ("clicks", 2))
    verdict = "allowed: overridden on the command line" if overrides else "follows production"
    assert [line.endswith(verdict) for line in planned.lines()] == [False, True, True]
    assert planned.provenance["dataset.topic_name"] == ("override" if overrides else "checkpoint")


def test_a_child_on_another_topic_must_say_where_it_begins(run_dir, tmp_path):
    options = Options(run_dir=tmp_path / "new", overrides=("dataset.topic_name=views",))
    assert "the checkpoint's positions are of 'clicks'; say where to begin: --start-at earliest" in refused(
        plan_child, options, str(run_dir)
    )
    assert plan_child(replace(options, start_at="latest"), str(run_dir)).start_at == "latest"


@pytest.mark.parametrize(("limit", "allowed"), [(19, False), (20, False), (21, True)])
def test_a_child_whose_first_step_has_reached_max_steps_is_refused(run_dir, tmp_path, limit, allowed):
    options = Options(run_dir=tmp_path / "new", overrides=(f"trainer.max_steps={limit}",))
    if allowed:
        assert plan_child(options, str(run_dir)).config.trainer.max_steps == 21
    else:
        said = refused(plan_child, options, str(run_dir))
        assert said.startswith(f"trainer.max_steps = {limit}: the checkpoint is at step 20 already")


@pytest.mark.parametrize("nested", [".", "sub", "checkpoints/sub", ".."])
def test_a_child_neither_is_nor_contains_nor_lies_in_its_parents_folder(run_dir, nested):
    said = refused(plan_child, Options(run_dir=run_dir / nested), str(run_dir))
    assert "must not be, contain or lie in" in said


def test_a_link_into_the_parents_folder_lies_in_it(run_dir, tmp_path):
    (tmp_path / "link").symlink_to(run_dir)
    said = refused(plan_child, Options(run_dir=tmp_path / "link" / "sub"), str(run_dir))
    assert "must not be, contain or lie in" in said


def test_a_step_copied_out_of_its_run_has_children_beside_it(config, tmp_path):
    write_step(tmp_path / "20", config, first_run())
    assert plan_child(Options(run_dir=tmp_path / "new"), str(tmp_path / "20")).restore_from == tmp_path / "20"
    assert "must not be" in refused(plan_child, Options(run_dir=tmp_path / "20" / "new"), str(tmp_path / "20"))
    (tmp_path / "20").rename(tmp_path / "best")
    assert "named by its number" in refused(plan_child, Options(run_dir=tmp_path / "new"), str(tmp_path / "best"))


def test_an_incomplete_newest_step_is_passed_over_with_one_line(run_dir, config, tmp_path):
    write_step(run_dir / "checkpoints" / "30", config, first_run())
    (run_dir / "checkpoints" / "30" / "config.json").unlink()
    planned = plan_child(Options(run_dir=tmp_path / "new"), str(run_dir))
    assert planned.restore_from == run_dir / "checkpoints" / "20"
    (note,) = planned.notes
    assert note == f"{run_dir}/checkpoints/30 is incomplete (no config.json): step 20 is used instead"


def test_credentials_in_a_checkpoints_address_are_not_echoed(run_dir):
    for options in (
        Options(checkpoint="s3://key:hunter2@bucket/run"),
        Options(checkpoint="s3://hunter2@b", run_dir=run_dir),
    ):
        said = refused(plan, options)
        assert "holds credentials" in said
        assert "hunter2" not in said


# A restart


def test_a_restart_goes_on_from_its_newest_step_with_its_own_config(run_dir, config):
    planned = plan(Options(run_dir=run_dir))
    assert (planned.kind, planned.config, planned.lines()) == ("restart", config, [])
    assert planned.restore_from == run_dir / "checkpoints" / "20"
    assert planned.provenance == first_run().provenance


def test_the_step_to_restore_is_absolute_also_when_the_run_folder_is_not(run_dir, monkeypatch):
    monkeypatch.chdir(run_dir.parent)
    planned = plan(Options(run_dir=run_dir.relative_to(run_dir.parent)))
    assert planned.restore_from == run_dir / "checkpoints" / "20"


def test_the_first_starts_own_command_is_a_restart(run_dir, file):
    assert plan(Options(config=file, run_dir=run_dir)).kind == "restart"


def test_a_restart_may_change_what_is_of_one_start_and_says_so(run_dir):
    planned = plan(Options(run_dir=run_dir, overrides=("trainer.max_steps=90", "dataset.log.path=/elsewhere")))
    assert planned.config.trainer.max_steps == 90
    assert [(row.path, row.experiment, row.verdict) for row in planned.reconciliation.rows] == [
        ("dataset.log.path", "/elsewhere", "allowed"),
        ("trainer.max_steps", 90, "allowed"),
    ]
    changed = {"trainer.max_steps": "override", "dataset.log.path": "override"}
    assert planned.provenance == first_run().provenance | changed


def test_what_a_section_on_the_command_line_changes_comes_from_there(run_dir):
    planned = plan(Options(run_dir=run_dir, overrides=('dataset.log={"__class": "DirectoryLog", "path": "x"}',)))
    assert planned.provenance["dataset.log.path"] == "override"
    assert planned.provenance["dataset.topic_name"] == "file"


def test_what_an_edited_file_changes_comes_from_the_file(run_dir, tmp_path):
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(FILE | {"trainer": {"max_steps": 90}}))
    assert plan(Options(config=path, run_dir=run_dir)).provenance["trainer.max_steps"] == "file"


@pytest.mark.parametrize("with_file", [False, True])
def test_a_restart_that_changes_more_is_refused_with_the_command_of_a_child_that_may(
    run_dir, file, with_file, tmp_path
):
    overrides = ("optimizer.dense.learning_rate=3e-4",)
    options = Options(config=file if with_file else None, run_dir=run_dir, overrides=overrides)
    *table, problem, command = refused(plan_restart, options, run_dir).splitlines()
    assert table[1].split()[:3] == ["optimizer.dense.learning_rate", "0.001", "0.0003"]
    assert problem.endswith("a restart goes on unchanged; to change it begin a child:")
    expected = ["--checkpoint", run_dir, *(["--config", file] if with_file else []), *overrides]
    assert command == command_line(*expected)
    child = Options(config=options.config, run_dir=tmp_path / "new", overrides=overrides)
    assert plan_child(child, str(run_dir)).config.optimizer.dense.learning_rate == 3e-4


def test_the_command_of_a_child_on_another_topic_says_where_it_begins(run_dir):
    said = refused(plan, Options(run_dir=run_dir, overrides=("dataset.topic_name=views",)))
    assert said.splitlines()[-1].endswith("--start-at earliest dataset.topic_name=views")


def test_what_not_even_a_child_may_change_needs_a_new_run(run_dir):
    said = refused(plan, Options(run_dir=run_dir, overrides=("model.width=64",)))
    assert said.splitlines()[-1].endswith("to change it begin anew, with --config and a new --run-dir")


def test_a_command_is_quoted_for_a_shell():
    words = ["--run-dir", "runs/my run", "dataset.actions=[1, 2]"]
    assert shlex.split(command_line(*words))[1:] == ["-m", "xrex.train.trainer_recsys", *words]


def test_a_restart_takes_the_checkpoint_only_as_it_was_first_given(child_dir, run_dir):
    assert plan(Options(run_dir=child_dir, checkpoint=str(run_dir))).kind == "restart"
    said = refused(plan, Options(run_dir=child_dir, checkpoint=f"{run_dir}/"))
    assert said.startswith(f"--checkpoint {run_dir}/: {child_dir} began from {run_dir}; leave it out to go on")
    said = refused(plan, Options(run_dir=run_dir, checkpoint="elsewhere"))
    assert "began from no checkpoint" in said


def test_start_at_acts_at_the_first_start_only(run_dir):
    said = refused(plan, Options(run_dir=run_dir, start_at="earliest"))
    assert said.splitlines()[-1] == command_line("--checkpoint", run_dir, "--start-at", "earliest")
    run = replace(Run.from_json((run_dir / "run.json").read_text()), start_at="earliest")
    (run_dir / "run.json").write_text(run.to_json())
    planned = plan(Options(run_dir=run_dir, start_at="earliest"))
    assert planned.notes == (f"--start-at earliest: {run_dir} has begun already, its own positions are used",)
    assert "acts at a run's first start only" in refused(plan, Options(run_dir=run_dir, start_at="latest"))


def test_fresh_acts_at_a_childs_first_start_only_and_is_kept_until_it_has_a_step(child_dir, run_dir, file):
    pattern = ("dense_optimizer/*",)
    assert "begins every array anew" in refused(plan, Options(config=file, fresh=pattern))
    assert plan(Options(checkpoint=str(run_dir), fresh=pattern)).fresh == pattern
    run = replace(Run.from_json((child_dir / "run.json").read_text()), fresh=pattern)
    (child_dir / "run.json").write_text(run.to_json())
    for fresh in (pattern, ()):
        assert plan(Options(run_dir=child_dir, fresh=fresh)).fresh == pattern
    said = refused(plan, Options(run_dir=child_dir, fresh=("params/*",)))
    assert said.splitlines()[-1] == command_line("--checkpoint", child_dir, "--fresh", "params/*")


def test_a_child_may_give_a_directly_indexed_table_more_rows_and_nothing_else(tmp_path):
    tables = [{"name": "items", "num_embeddings": 100, "embedding_dim": 4, "salts": []}]
    tables.append({"name": "users", "num_embeddings": 100, "embedding_dim": 4})
    dataset = FILE["dataset"] | {"tables": tables}
    parent = TrainerConfig.from_json({"dataset": dataset})
    write_step(tmp_path / "production" / "checkpoints" / "10", parent, first_run())

    def child(items, users):
        tables[0]["num_embeddings"], tables[1]["num_embeddings"] = items, users
        path = tmp_path / "experiment.json"
        path.write_text(json.dumps({"dataset": dataset}))
        return Options(config=path, checkpoint=str(tmp_path / "production"), run_dir=tmp_path / "child")

    assert plan(child(200, 100)).config.dataset.tables[0].num_embeddings == 200
    said = refused(plan, child(50, 200)).splitlines()
    assert said == [
        "dataset.tables[0].num_embeddings = 50: table 'items' cannot change its rows: it has 100 rows in the checkpoint: "
        "rows would be lost; keep 100, or begin anew with --config alone",
        "dataset.tables[1].num_embeddings = 200: table 'users' cannot change its rows: ids are hashed over all rows and "
        "would find other ones; keep 100, or begin anew with --config alone",
    ]


def test_a_childs_own_command_with_a_file_is_a_restart_though_the_file_names_another_topic(
    child_dir, run_dir, tmp_path
):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"dataset": FILE["dataset"] | {"topic_name": "shares", "num_kafka_partitions": 3}}))
    planned = plan(Options(config=path, checkpoint=str(run_dir), run_dir=child_dir))
    assert (planned.kind, planned.config.dataset.topic_name) == ("restart", "clicks")


def test_a_child_without_a_step_of_its_own_begins_again_from_its_parents(child_dir, run_dir, config):
    assert plan(Options(run_dir=child_dir)).restore_from == run_dir / "checkpoints" / "20"
    write_step(child_dir / "checkpoints" / "20", config, first_run())
    for step in (run_dir / "checkpoints").iterdir():
        (step / "config.json").unlink()  # the parent is no longer read
    assert plan(Options(run_dir=child_dir)).restore_from == child_dir / "checkpoints" / "20"


def test_a_run_without_a_complete_step_is_no_silent_new_start(run_dir):
    for step in (10, 20):
        (run_dir / "checkpoints" / str(step) / "run.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no complete step \(20: no run.json; 10: no run.json\)"):
        plan(Options(run_dir=run_dir))


def test_only_unfinished_saves_mean_that_the_run_starts_again(run_dir, tmp_path):
    for step in (10, 20):
        (run_dir / "checkpoints" / str(step)).rename(run_dir / "checkpoints" / f"{step}{layout.TEMPORARY_SUFFIX}")
    planned = plan(Options(run_dir=run_dir))
    assert planned.restore_from is None
    assert "only an unfinished save: the run starts again from its first positions" in planned.notes[0]


def test_sizes_that_do_not_fit_are_problems_of_the_config(config, file):
    said = refused(plan, Options(config=file, overrides=("model.num_heads=3", "model.num_kv_heads=2")))
    assert "num_heads = 3: twice this must divide width = 32; num_kv_heads = 2: must divide num_heads = 3" in said
    said = refused(plan, Options(config=file, overrides=("model.action_weights=[1,2]",)))
    assert "model.action_weights has 2 values, dataset.actions has 1" in said


# What a newer release wrote


def from_a_newer_release(step_or_run, **fields):
    """Two unknown fields in a config.json."""
    file = step_or_run / "config.json"
    written = json.loads(file.read_text())
    written["dataset"]["bacth_size"] = 8
    written["model"]["rotary_scale"] = 0.5
    file.write_text(json.dumps(written))


def test_unknown_fields_of_a_checkpoint_are_errors_that_offer_to_keep_them(run_dir):
    from_a_newer_release(run_dir / "checkpoints" / "20")
    lines = refused(plan, Options(checkpoint=str(run_dir))).splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "dataset.bacth_size = 8: unknown field",
        "model.rotary_scale = 0.5: unknown field; did you mean rotary_base?",
        "did a newer release write it? --keep-unknown carries such fields along",
    ]


def test_they_are_kept_on_request_with_a_line_for_each(run_dir):
    from_a_newer_release(run_dir / "checkpoints" / "20")
    planned = plan(Options(checkpoint=str(run_dir), keep_unknown=True, overrides=("trainer.max_steps=99",)))
    assert [note.partition(": ")[2] for note in planned.notes] == [
        "dataset.bacth_size = 8: unknown field, kept as it is",
        "model.rotary_scale = 0.5: unknown field, kept as it is",
    ]
    kept = json.loads(planned.config.to_json())
    assert (kept["dataset"]["bacth_size"], kept["model"]["rotary_scale"]) == (8, 0.5)
    assert planned.keep_unknown
    assert planned.provenance["model.rotary_scale"] == "checkpoint"


def test_a_restart_keeps_them_without_being_asked_again(run_dir):
    from_a_newer_release(run_dir)
    assert "unknown field" in refused(plan, Options(run_dir=run_dir))
    run = replace(Run.from_json((run_dir / "run.json").read_text()), keep_unknown=True)
    (run_dir / "run.json").write_text(run.to_json())
    planned = plan(Options(run_dir=run_dir, overrides=("trainer.max_steps=99",)))
    assert (planned.notes, planned.keep_unknown) == ((), True)
    assert json.loads(planned.config.to_json())["model"]["rotary_scale"] == 0.5


# Who gave which value


def test_a_child_gives_what_it_overrides_and_what_its_release_adds(run_dir, config):
    written = config.to_dict()
    del written["evaluation"]["window_examples"]  # a field that came after the checkpoint
    (run_dir / "checkpoints" / "20" / "config.json").write_text(json.dumps(written))
    planned = plan(Options(checkpoint=str(run_dir), overrides=("trainer.max_steps=99",)))
    never_inherited = {"trainer.prometheus_address": "default"}
    assert planned.anew == {"trainer.max_steps": "override", "evaluation.window_examples": "default"} | never_inherited
    assert planned.inherited == config


def test_a_restart_gives_only_what_it_changes(run_dir):
    assert plan(Options(run_dir=run_dir)).anew == {}
    assert plan(Options(run_dir=run_dir, overrides=("trainer.max_steps=99",))).anew == {"trainer.max_steps": "override"}


# Where the stream begins and ends


def test_positions_of_a_file_must_be_of_this_topic(file, tmp_path):
    given = tmp_path / "positions.json"
    given.write_text(positions.to_json({"shares": TopicPositions("shares", None, {0: PartitionPosition(3)})}))
    said = refused(plan, Options(config=file, start_at=f"positions:{given}"))
    fix = "give a positions.json of a run that read clicks"
    assert said == f"--start-at = 'positions:{given}': holds no topic 'clicks', only shares; {fix}"
    given.write_text("{")
    said = refused(plan, Options(config=file, start_at=f"positions:{given}"))
    assert "not valid JSON" in said
    assert said.endswith(f"; {fix}")


def test_a_time_to_stop_at_must_have_passed(file):
    said = refused(plan, Options(config=file, overrides=("dataset.stop_at_timestamp=2999-01-01T00:00:00Z",)))
    assert said.startswith("dataset.stop_at_timestamp = 2999-01-01T00:00:00+00:00: lies in the future")


def test_where_lost_positions_go_on_is_for_this_start_alone_and_in_no_config(run_dir):
    planned = plan(Options(checkpoint=str(run_dir), on_lost_offset="earliest"))
    assert planned.on_lost_offset == "earliest"
    assert "lost" not in planned.config.to_json()
    assert plan(Options(run_dir=run_dir)).on_lost_offset is None
    assert "--on-lost-offset = 'latest'" in refused(plan, Options(checkpoint=str(run_dir), on_lost_offset="latest"))
