"""A day's work at the command line: branch off from production, go on after a stop, and what is kept of both."""

import fcntl
import getpass
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runs import QUICKSTART, SMALL, digest, journal, run, summary, train, xrex

RATE = "optimizer.dense.learning_rate=3e-4"


def refused(*arguments, **options) -> list[str]:
    """The lines on stderr of a start that is refused before anything is touched."""
    done = train(*arguments, check=False, **options)
    assert done.returncode == 2, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def contents(folder) -> dict:
    """Every file with its bytes, but for the lock."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def record(run_dir) -> dict:
    return json.loads((run_dir / "run.json").read_text())


def steps_of(file) -> list[int]:
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def child(whole_run, tmp_path_factory):
    """A child of step 60 of `whole_run`, with another learning rate, over the 1,000 rows that are left."""
    run_dir = tmp_path_factory.mktemp("child") / "run"
    before = contents(whole_run)
    done = train("--checkpoint", whole_run / "checkpoints" / "60", "--run-dir", run_dir, RATE)
    assert contents(whole_run) == before, "the parent is read only"
    return run_dir, done


@pytest.fixture
def copy(whole_run, tmp_path):
    """A copy of `whole_run` whose newest step is 60: what a kill shortly before step 75 leaves."""
    run_dir = tmp_path / "run"
    shutil.copytree(whole_run, run_dir)
    for step in (75, 80):
        shutil.rmtree(run_dir / "checkpoints" / str(step))
    return run_dir


# A child


def test_a_child_trains_on_where_its_checkpoint_ends(child):
    run_dir, done = child
    assert steps_of(run_dir / "metrics.jsonl") == [70, 80]
    assert len(journal(run_dir)) == summary(run_dir)["examples_trained"] == 1000
    assert summary(run_dir)["step"] == 80
    table = [line.split() for line in done.stdout.splitlines()[1:3]]
    assert table == [
        ["field", "production", "experiment", "policy", "verdict"],
        ["optimizer.dense.learning_rate", "0.001", "0.0003", "may_change", "allowed"],
    ]


def test_diff_of_parent_and_child_is_the_one_changed_line(child, whole_run):
    done = xrex("config", "diff", whole_run, child[0], check=False)
    assert done.returncode == 1
    assert done.stdout == "optimizer.dense.learning_rate: 0.001 -> 0.0003  (may_change)\n"
    assert done.stderr == ""
    same = xrex("config", "diff", whole_run, whole_run / "checkpoints" / "80")
    assert (same.returncode, same.stdout) == (0, "")


def test_the_config_in_the_newest_checkpoint_is_byte_equal_to_the_runs(child, whole_run):
    for run_dir in (child[0], whole_run):
        config = (run_dir / "config.json").read_bytes()
        assert (run_dir / "checkpoints" / "80" / "config.json").read_bytes() == config
        assert xrex("config", "show", run_dir).stdout.encode() == config


@pytest.mark.slow
def test_a_childs_own_command_goes_on_with_it_also_without_its_parent(child, whole_run, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(child[0], run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "80")
    gone = str(whole_run / "checkpoints" / "60")
    (run_dir / "run.json").write_text((run_dir / "run.json").read_text().replace(gone, "/gone/checkpoints/60"))
    train("--checkpoint", "/gone/checkpoints/60", "--run-dir", run_dir, RATE)
    assert digest(run_dir) == digest(child[0])
    assert summary(run_dir) == summary(child[0])


def test_lineage_provenance_and_differences_are_kept_over_a_child_of_a_child(child, whole_run, tmp_path):
    run_dir = tmp_path / "grandchild"
    train("--checkpoint", child[0], "--run-dir", run_dir, "trainer.max_steps=90")
    grandparent, parent, run = record(whole_run), record(child[0]), record(run_dir)
    assert grandparent["lineage_id"] == grandparent["run_id"] == parent["lineage_id"] == run["lineage_id"]
    assert len({grandparent["run_id"], parent["run_id"], run["run_id"]}) == 3
    assert run["parent"] == {
        "checkpoint": str(child[0]),
        "step_path": str(child[0] / "checkpoints" / "80"),
        "run_id": parent["run_id"],
        "config": json.loads((child[0] / "config.json").read_text()),
    }
    assert [row["path"] for row in parent["differences"]] == ["optimizer.dense.learning_rate"]
    assert [row["path"] for row in run["differences"]] == ["trainer.max_steps"]
    assert grandparent["provenance"]["optimizer.dense.learning_rate"] == "file"
    assert grandparent["provenance"]["trainer.global_batch_size"] == "override"
    assert grandparent["provenance"]["trainer.max_steps"] == "default"
    assert parent["provenance"]["optimizer.dense.learning_rate"] == "override"
    assert run["provenance"]["optimizer.dense.learning_rate"] == "checkpoint"
    assert run["provenance"]["trainer.max_steps"] == "override"
    assert digest(run_dir) == digest(child[0]), "no record was left to train"


def test_over_four_generations_blame_names_the_one_that_set_each_field_and_diff_of_the_ends_is_exact(
    child, whole_run, tmp_path
):
    third, fourth = tmp_path / "third", tmp_path / "fourth"
    overrides = ("optimizer.sparse.learning_rate=0.03", "trainer.name=third")
    train("--checkpoint", child[0], "--run-dir", third, *overrides)
    newer_release("train", "--checkpoint", third, "--run-dir", fourth, "trainer.name=fourth")
    runs = [record(run_dir) for run_dir in (whole_run, child[0], third, fourth)]
    blamed = {row["path"]: row for row in json.loads(newer_release("config", "blame", fourth, "--json").stdout)}
    expected = {path: (0, origin) for path, origin in runs[0]["provenance"].items()}
    expected |= {
        "optimizer.dense.learning_rate": (1, "override"),
        "optimizer.sparse.learning_rate": (2, "override"),
        "trainer.log_every_steps": (3, "migration"),
        "trainer.name": (3, "override"),
        "trainer.prometheus_address": (3, "default"),  # never inherited
    }
    assert {path: (row["generation"], row["origin"]) for path, row in blamed.items()} == expected
    for row in blamed.values():
        assert row["run_id"] == runs[row["generation"]]["run_id"]
        assert row["time"] == runs[row["generation"]]["starts"][0]["time"]
    assert blamed["dataset.topic_name"]["given"] == str(QUICKSTART)
    assert blamed["trainer.log_every_steps"]["given"] == "version 1"
    assert blamed["trainer.log_every_steps"]["code_version"] == "0.2.0+newer"
    assert blamed["trainer.log_every_steps"]["value"] == 20

    ends = newer_release("config", "diff", whole_run, fourth, check=False).stdout.splitlines()
    assert ends == [
        "optimizer.dense.learning_rate: 0.001 -> 0.0003  (may_change)",
        "optimizer.sparse.learning_rate: 0.07 -> 0.03  (may_change)",
        'trainer.name: "quickstart" -> "fourth"  (per_start)',
    ], "both ends as the newer release reads them"


def newer_release(*arguments, **options):
    """`xrex ARGUMENTS` of a release whose configs are of version 2."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return run(sys.executable, "-m", "newer_release", *arguments, env=environment, **options)


def test_run_json_names_no_host_no_user_and_no_command_line(whole_run):
    text = (whole_run / "run.json").read_text()
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert not re.search(rf"\b{re.escape(getpass.getuser())}\b", text.replace(str(whole_run.parents[1]), ""))
    assert sys.executable not in text
    assert "--run-dir" not in text
    assert set(record(whole_run)["provenance"]) >= {"dataset.topic_name", "mesh.num_devices", "trainer.seed"}


def test_a_child_that_may_not_be_is_refused_and_leaves_nothing(whole_run, tmp_path):
    before = contents(whole_run)
    *table, line = refused("--checkpoint", whole_run, "--run-dir", tmp_path / "run", "model.width=64")
    assert table[1].split() == ["model.width", "32", "64", "must_match", "forbidden"]
    assert line == (
        f"model.width may not differ: a child must agree with its checkpoint {whole_run}; "
        "to change it begin anew, with --config alone"
    )
    assert refused("--checkpoint", whole_run, "--run-dir", tmp_path / "run", "trainer.max_steps=80") == [
        "trainer.max_steps = 80: the checkpoint is at step 80 already; raise it, or trainer.max_steps=null"
    ]
    assert refused("--checkpoint", whole_run, "--run-dir", tmp_path / "run", "dataset.topic_name=views") == [
        "dataset.topic_name = 'views': the checkpoint's positions are of 'engagements'; say where to begin: "
        "--start-at earliest"
    ]
    assert refused("--checkpoint", whole_run, "--run-dir", whole_run / "sub") == [
        f"--run-dir {whole_run}/sub: must not be, contain or lie in {whole_run}, where the child begins; choose another"
    ]
    assert list(tmp_path.iterdir()) == []
    assert contents(whole_run) == before


@pytest.mark.slow
def test_the_topic_follows_the_checkpoint_where_the_file_says_otherwise(whole_run, small_log, tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(QUICKSTART.read_text().replace("topic_name: engagements", "topic_name: views"))
    run_dir = tmp_path / "run"
    arguments = ("--config", path, f"dataset.log.path={small_log}", *SMALL, "--run-dir", run_dir)
    done = train("--checkpoint", whole_run / "checkpoints" / "75", *arguments)
    row = next(line for line in done.stdout.splitlines() if line.startswith("dataset.topic_name"))
    assert row.split(maxsplit=4) == ["dataset.topic_name", '"engagements"', '"views"', "from_checkpoint", "follows production"]  # fmt: skip
    assert record(run_dir)["provenance"]["dataset.topic_name"] == "checkpoint"
    assert summary(run_dir)["examples_trained"] == 250
    # The same command is a restart.
    again = train("--checkpoint", whole_run / "checkpoints" / "75", *arguments)
    assert len(record(run_dir)["starts"]) == 2
    assert "follows production" not in again.stdout


def test_a_second_trainer_on_a_run_folder_is_refused(copy):
    with open(copy / ".lock", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        before = contents(copy)
        (line,) = refused("--run-dir", copy)
        assert line == f"{copy} is in use by process 4711: stop it, or choose another --run-dir"
        assert contents(copy) == before


# A restart


@pytest.mark.slow
def test_lines_above_the_restored_step_are_dropped_and_the_run_ends_as_if_never_stopped(copy, whole_run, small):
    assert steps_of(copy / "metrics.jsonl")[-1] == 80
    done = train(*small, "--run-dir", copy)  # the whole command of the first start
    assert "step 70" in done.stdout
    assert steps_of(copy / "metrics.jsonl") == [10, 20, 30, 40, 50, 60, 70, 80]
    assert steps_of(copy / "journal-0.jsonl") == list(range(1, 81))
    assert journal(copy) == journal(whole_run)
    assert summary(copy) == summary(whole_run)
    assert digest(copy) == digest(whole_run)


@pytest.mark.slow
def test_a_relative_run_folder_goes_on(copy, whole_run):
    done = train("--run-dir", "run", cwd=copy.parent)
    assert "run folder  run\n" in done.stdout
    assert digest(copy) == digest(whole_run)


def test_what_is_of_one_start_may_change_and_is_kept_in_run_json(copy, small_log, tmp_path):
    (tmp_path / "elsewhere").symlink_to(small_log)
    changes = ("trainer.max_steps=70", "trainer.log_every_steps=5", f"dataset.log.path={tmp_path}/elsewhere")
    done = train("--run-dir", copy, *changes)
    assert [line.split()[0] for line in done.stdout.splitlines()[2:5]] == [
        "dataset.log.path",
        "trainer.max_steps",
        "trainer.log_every_steps",
    ]
    assert record(copy)["starts"][-1]["per_start"] == {
        "dataset.log.path": f"{tmp_path}/elsewhere",
        "trainer.max_steps": 70,
        "trainer.log_every_steps": 5,
    }
    assert record(copy)["provenance"]["trainer.max_steps"] == "override"
    assert steps_of(copy / "metrics.jsonl")[-2:] == [65, 70]
    assert summary(copy)["step"] == 70
    assert (copy / "config.json").read_bytes() == (copy / "checkpoints" / "70" / "config.json").read_bytes()


def test_a_change_that_a_restart_may_not_make_names_the_command_that_may(copy):
    before = contents(copy)
    *_, problem, command = refused("--run-dir", copy, RATE, "trainer.max_steps=61")
    assert problem == (
        "optimizer.dense.learning_rate may not differ: a restart goes on unchanged; to change it begin a child:"
    )
    assert contents(copy) == before
    words = shlex.split(command)
    assert words[1:3] == ["-m", "xrex.train.trainer_recsys"]
    assert Path(words[0]).samefile(sys.executable), "it can be copied into the shell that started the run"
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=copy.parent, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (created,) = (copy.parent / "runs").iterdir()
    assert summary(created)["step"] == 61
    assert record(created)["parent"]["run_id"] == record(copy)["run_id"]


def test_another_checkpoint_or_a_new_start_at_are_refused_at_a_restart(copy):
    before = contents(copy)
    assert refused("--run-dir", copy, "--checkpoint", "elsewhere") == [
        f"--checkpoint elsewhere: {copy} began from no checkpoint; leave it out to go on, or choose another --run-dir"
    ]
    problem, command = refused("--run-dir", copy, "--start-at", "latest")
    assert problem == (
        f"--start-at latest: acts at a run's first start only, {copy} has its own positions; "
        "leave it out to go on, or begin a child:"
    )
    assert command.endswith(f" -m xrex.train.trainer_recsys --checkpoint {copy} --start-at latest")
    assert contents(copy) == before


@pytest.mark.slow
def test_start_at_repeated_unchanged_is_one_line(small, tmp_path):
    arguments = (*small, "--start-at", "latest", "--run-dir", tmp_path / "run")
    first = train(*arguments)
    assert "engagements partition 0: from offset 34 row 0, to offset 34" in first.stdout
    assert summary(tmp_path / "run")["examples_trained"] == 0
    again = train(*arguments).stdout.splitlines()
    assert f"--start-at latest: {tmp_path}/run has begun already, its own positions are used" in again


@pytest.mark.slow
def test_a_first_save_that_was_cut_short_means_to_start_again(copy, whole_run):
    for step in (copy / "checkpoints").iterdir():
        shutil.rmtree(step)
    (copy / "checkpoints" / "15.orbax-checkpoint-tmp").mkdir()
    done = train("--run-dir", copy)
    assert [line for line in done.stdout.splitlines() if "unfinished save" in line] == [
        f"{copy}/checkpoints holds no step, only an unfinished save: the run starts again from its first positions"
    ]
    assert digest(copy) == digest(whole_run)
    assert summary(copy) == summary(whole_run)
    assert journal(copy) == journal(whole_run)


def test_an_unfinished_newest_step_is_passed_over_and_a_run_without_any_complete_one_is_an_error(copy):
    broken = copy / "checkpoints" / "120"
    broken.mkdir()
    done = train("--run-dir", copy, "trainer.max_steps=61")
    (line,) = [line for line in done.stdout.splitlines() if "is incomplete" in line]
    assert line.startswith(f"{broken} is incomplete (no state, no config.json")
    assert line.endswith("step 60 is used instead")
    for step in (60, 61):
        (copy / "checkpoints" / str(step) / "commit_success.txt").unlink()
    before = contents(copy)
    none = train("--run-dir", copy, check=False)
    assert none.returncode == 1
    (line,) = none.stderr.splitlines()
    assert line.startswith(
        f"{copy}/checkpoints has no complete step (61: no commit_success.txt; 60: no commit_success.txt"
    )
    assert contents(copy) == before
