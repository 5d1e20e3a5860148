"""Differences, what may differ in a restart and in a child, inheritance and provenance."""

import pytest
from config_strategies import runs
from hypothesis import given, settings
from sample_configs import BrokerSource, FolderSource, SampleRun, base

from xai_configlib import (
    Config,
    ConfigError,
    Difference,
    apply_overrides,
    configclass,
    diff,
    field,
    inherit,
    provenance,
    reconcile,
)


@configclass(tag="PolicyConfig")
class PolicyConfig(Config):
    vocabulary: int = field(default=1, policy="must_match")
    """Must match."""
    rate: float = field(default=1.0, policy="may_change")
    """May change."""
    max_steps: int | None = field(default=None, policy="per_start")
    """Per start."""
    topic: str = field(default="a", policy="from_checkpoint")
    """From the checkpoint."""
    group_id: str | None = field(default=None, policy="own")
    """Own."""


PRODUCTION = PolicyConfig(vocabulary=1, rate=0.1, max_steps=10, topic="clicks", group_id="production")


@pytest.fixture
def production():
    return SampleRun.from_json(base())


def test_equal_configs_have_no_difference(production):
    assert diff(production, SampleRun.from_json(production.to_json())) == []


def test_each_leaf_that_differs_is_named_with_its_policy(production):
    overrides = [
        "dataset.batch_size=8",
        "model.hidden_dims.1=16",
        "dataset.features.2.weight=-0.0",
        "model.tables.item_id.dim=8",
    ]
    assert diff(production, apply_overrides(production, overrides)) == [
        Difference("model.hidden_dims[1]", 32, 16, "must_match"),
        Difference("model.tables.item_id.dim", 16, 8, "must_match"),
        Difference("dataset.batch_size", 4, 8, "may_change"),
        Difference("dataset.features[2].weight", 1.0, -0.0, "may_change"),
    ]


def test_zero_and_minus_zero_differ(production):
    a = apply_overrides(production, ["dataset.features.0.weight=0.0"])
    b = apply_overrides(production, ["dataset.features.0.weight=-0.0"])
    assert [difference.path for difference in diff(a, b)] == ["dataset.features[0].weight"]


def test_another_length_other_keys_and_another_class_are_one_difference_of_the_field(production):
    changed = apply_overrides(
        production, ["dataset.features=[]", 'model.head_loss_weights={"0": 1.0}', "dataset.source=FolderSource"]
    )
    assert [(item.path, item.policy) for item in diff(production, changed)] == [
        ("model.head_loss_weights", "must_match"),
        ("dataset.features", "must_match"),
        ("dataset.source", "per_start"),
    ]
    assert diff(production, changed)[2].right == {"__class": "FolderSource", "path": "log"}


@given(runs, runs)
@settings(max_examples=30, deadline=None)
def test_configs_differ_if_and_only_if_their_texts_do(a, b):
    assert (diff(a, b) == []) == (a.to_json() == b.to_json())
    assert diff(a, a) == []


def verdicts(experiment, **options):
    return {row.path: row.verdict for row in reconcile(PRODUCTION, experiment, **options).rows}


EXPERIMENT = PolicyConfig(vocabulary=2, rate=0.2, max_steps=20, topic="views", group_id="mine")


def test_a_child_may_change_and_follows_the_checkpoint():
    assert verdicts(EXPERIMENT, mode="child") == {
        "vocabulary": "forbidden",
        "rate": "allowed",
        "max_steps": "allowed",
        "topic": "follows production",
        "group_id": "own: not inherited",
    }
    result = reconcile(PRODUCTION, EXPERIMENT, mode="child")
    assert result.config == EXPERIMENT.replace(topic="clicks")
    assert [row.path for row in result.forbidden] == ["vocabulary"]


def test_only_the_command_line_takes_a_child_to_another_topic():
    result = reconcile(PRODUCTION, EXPERIMENT, mode="child", overridden={"topic"}, given={"topic"})
    assert result.config == EXPERIMENT
    assert {row.path: row.verdict for row in result.rows}["topic"] == "allowed: overridden on the command line"
    assert reconcile(PRODUCTION, EXPERIMENT, mode="child", given={"topic"}).config.topic == "clicks"


def test_what_is_own_is_never_inherited():
    experiment = PRODUCTION.replace(group_id=None)
    assert reconcile(PRODUCTION, experiment, mode="child").config.group_id is None
    assert inherit(PRODUCTION).group_id is None
    assert inherit(PRODUCTION) == experiment
    assert inherit(PRODUCTION, ["group_id=mine", "rate=0.5"]) == PRODUCTION.replace(group_id="mine", rate=0.5)


def test_own_fields_inside_nested_configs_are_not_inherited(production):
    before = apply_overrides(production, ["dataset.source.group_id=production"])
    child = inherit(before, ["seed=18"])
    assert isinstance(child.dataset.source, BrokerSource)
    assert child.dataset.source.group_id is None
    assert child.run_name == "sample"  # the default of an own field
    assert child == apply_overrides(production, ["seed=18", "run_name=sample"])


def test_inherit_names_the_command_line_for_a_wrong_override():
    with pytest.raises(ConfigError, match=r"^command line: vocabulary = 'x': expected an integer$"):
        inherit(PRODUCTION, ['vocabulary="x"'])


def test_a_restart_changes_only_what_is_per_start():
    assert verdicts(EXPERIMENT, mode="restart") == {
        "vocabulary": "forbidden",
        "rate": "forbidden",
        "max_steps": "allowed",
        "topic": "forbidden",
        "group_id": "as before",
    }


def test_a_restart_keeps_what_is_own_unless_it_is_given_anew():
    experiment = PRODUCTION.replace(group_id=None, max_steps=20)
    assert reconcile(PRODUCTION, experiment, mode="restart").config == PRODUCTION.replace(max_steps=20)
    for anew in ({"overridden": {"group_id"}}, {"given": {"group_id"}}):
        assert reconcile(PRODUCTION, experiment, mode="restart", **anew).config == experiment


def test_a_followed_value_is_found_at_any_depth(production):
    changed = apply_overrides(production, ["dataset.topic_name=views", "dataset.num_kafka_partitions=2", "seed=17"])
    assert reconcile(production, changed, mode="child").config == production
    by_section = reconcile(production, changed, mode="child", overridden={"dataset"})
    assert by_section.config == changed


def test_the_table_is_aligned_and_short():
    experiment = PRODUCTION.replace(group_id=None, topic="x" * 200, rate=0.2)
    assert reconcile(PRODUCTION, experiment, mode="child").table() == [
        "field     production    experiment                                                    policy           verdict",
        "rate      0.1           0.2                                                           may_change       allowed",
        f'topic     "clicks"      "{"x" * 58}…  from_checkpoint  follows production',
        "group_id  "
        '"production"  null                                                          own              own: not inherited',
    ]
    assert reconcile(PRODUCTION, PRODUCTION, mode="child").table() == []
    hostile = reconcile(PRODUCTION, PRODUCTION.replace(topic="\x1b[31m\u202e\n"), mode="child").table()[1]
    assert hostile.isprintable()


def test_a_swapped_class_is_shown_by_its_tag(production):
    swapped = apply_overrides(production, ["dataset.source=FolderSource"])
    assert reconcile(production, swapped, mode="child").table()[1].split() == [
        "dataset.source", "BrokerSource", "FolderSource", "per_start", "allowed",
    ]  # fmt: skip


def leaf_paths(node, path=""):
    """The paths of a canonical object's leaves, read off the object alone, in the order of its fields."""
    for key, value in node.items():
        below = f"{path}.{key}" if path else key
        if key in ("__class", "__version"):
            continue
        entries = value if isinstance(value, list) else [value]
        if isinstance(value, dict) and ("__class" in value or key == "tables"):
            yield from leaf_paths(value, below)
        elif entries and all(isinstance(entry, dict) and "__class" in entry for entry in entries):
            for index, entry in enumerate(entries):
                yield from leaf_paths(entry, f"{below}[{index}]")
        else:
            yield below


def test_every_leaf_has_an_origin(production):
    origins = provenance(production, file=base(), overridden={"dataset.batch_size", "model.hidden_dims.1"})
    assert origins["dataset.batch_size"] == "override"
    assert origins["model.hidden_dims"] == "override"
    assert origins["dataset.topic_name"] == "file"
    assert origins["dataset.features[3].column"] == "file"
    assert origins["dataset.features[3].weight"] == "default"
    assert origins["dataset.window"] == "default"
    assert origins["dataset.source.servers"] == "file"
    assert origins["model.tables.item_id.dim"] == "file"
    assert origins["model.head_loss_weights"] == "file"
    assert list(origins) == list(leaf_paths(production.to_dict()))


def test_a_section_that_was_replaced_is_overridden_as_a_whole(production):
    changed = apply_overrides(production, ["dataset.source=FolderSource"])
    assert provenance(changed, file=base(), overridden={"dataset.source"})["dataset.source.path"] == "override"
    assert provenance(FolderSource(), file={"folder": "log"}) == {"path": "file"}


def test_a_child_has_its_values_from_the_checkpoint():
    child = inherit(PRODUCTION, ["rate=0.5"])
    assert provenance(child, production=PRODUCTION, overridden={"rate"}) == {
        "vocabulary": "checkpoint",
        "rate": "override",
        "max_steps": "checkpoint",
        "topic": "checkpoint",
        "group_id": "default",
    }
    with_file = reconcile(PRODUCTION, PolicyConfig(rate=0.2, topic="views"), mode="child").config
    assert provenance(with_file, file={"rate": 0.2, "topic": "views"}, production=PRODUCTION) == {
        "vocabulary": "default",
        "rate": "file",
        "max_steps": "default",
        "topic": "checkpoint",
        "group_id": "default",
    }
