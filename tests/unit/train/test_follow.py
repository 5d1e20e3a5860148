"""Production's newest config against what a run inherited."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest

from config_runs import ENVIRONMENT, START, small_config, write_step
from xrex.errors import ConfigError
from xrex.optim.config import OptimizerConfig, SparseOptimizerConfig
from xrex.train import follow
from xrex.utils.metadata import Run

PRODUCTION = Run.first(name="production", environment=ENVIRONMENT, start=START)
FASTER = small_config(optimizer=OptimizerConfig(sparse=SparseOptimizerConfig(learning_rate=0.5)))


@pytest.fixture
def production(tmp_path):
    write_step(tmp_path / "production" / "checkpoints" / "10", small_config(), PRODUCTION)
    return tmp_path / "production"


@pytest.fixture
def sleeps(monkeypatch):
    """What happens at each wait between two looks; a test appends functions."""
    todo = []
    monkeypatch.setattr(follow.time, "sleep", lambda seconds: todo.pop(0)())
    return todo


def child(config) -> Run:
    return Run.child_of(
        PRODUCTION,
        "production",
        "/production/10",
        name="child",
        environment=ENVIRONMENT,
        start=START,
        inherited=config.to_dict(),
    )


def looks(production, run=None, said=None, **options):
    run = run or child(small_config())
    arguments = {"every_s": 60.0, "keep_unknown": False, "say": (said if said is not None else []).append} | options
    inherited = follow.inherited_config(run, "run.json", str(production))
    return follow.drift(inherited, run, str(production), **arguments)


def test_a_newer_step_with_another_value_is_told_with_the_difference(production, sleeps):
    sleeps.append(lambda: write_step(production / "checkpoints" / "20", small_config(), PRODUCTION))
    sleeps.append(lambda: None)
    sleeps.append(lambda: write_step(production / "checkpoints" / "30", FASTER, PRODUCTION))
    found = list(itertools.islice(looks(production), 3))
    assert [look.step_dir.name for look in found] == ["10", "20", "30"]
    assert [len(look.differences) for look in found] == [0, 0, 1]
    (difference,) = found[-1].differences
    assert (difference.path, difference.left, difference.right) == ("optimizer.sparse.learning_rate", 0.05, 0.5)


def test_a_look_that_fails_is_repeated_and_five_in_a_row_end_the_watch(production, sleeps):
    said = []
    watching = looks(production, said=said)
    next(watching)
    sleeps += [lambda: shutil.rmtree(production), *[lambda: None] * 4]
    with pytest.raises(ConfigError, match="no such folder"):
        next(watching)
    assert [line for line in said if "looking again in 60 s" in line] == said[-4:]


def test_a_first_look_that_fails_ends_the_watch(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        next(looks(tmp_path / "nowhere"))


def test_steps_of_another_run_than_the_parent_are_said(production):
    said = []
    run = child(small_config())
    next(looks(production, replace(run, parent=replace(run.parent, run_id="ab" * 16)), said))
    assert said[0].endswith(f": of run {PRODUCTION.run_id[:8]}; child began from run abababab")


def test_a_field_of_a_newer_production_is_a_difference_where_it_is_kept(production):
    newer = small_config().to_dict()
    newer["model"]["rotary_scale"] = 0.5
    write_step(production / "checkpoints" / "20", newer, PRODUCTION)
    with pytest.raises(ConfigError, match=r"model.rotary_scale = 0.5: unknown field"):
        next(looks(production))
    (difference,) = next(looks(production, keep_unknown=True)).differences
    assert (difference.path, difference.right) == ("model.rotary_scale", 0.5)


def test_a_run_that_inherited_nothing_has_nothing_to_compare():
    with pytest.raises(
        ConfigError, match=r"run.json: this run began from no checkpoint: .*; name a run begun with --checkpoint"
    ):
        follow.inherited_config(PRODUCTION, "run.json", "production")
    old = json.loads(child(small_config()).to_json())
    del old["parent"]["config"]
    with pytest.raises(ConfigError, match="did not keep the inherited config") as caught:
        follow.inherited_config(Run.from_json(json.dumps(old)), "run.json", "my production")
    assert str(caught.value).endswith("; compare by hand: xrex config diff /production/10 'my production'")
