"""Overrides `a.b.c=value`: by exact path, the text read by the field's type."""

from pathlib import Path

import pytest
from sample_configs import (
    Activation,
    FolderSource,
    Precision,
    SampleRun,
    Security,
    base,
    base_without,
)

from xai_configlib import ConfigError, SecretRef, apply_overrides, overridden_paths

SECRET = "example-password-1"


@pytest.fixture
def run():
    return SampleRun.from_json(base())


def refused(run, override):
    with pytest.raises(ConfigError) as caught:
        apply_overrides(run, [override])
    return str(caught.value)


def at(config, path):
    for name in path.split("."):
        config = config[int(name)] if name.isdigit() else getattr(config, name)
    return config


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("optimizer.learning_rate=3e-4", 3e-4),
        ("optimizer.learning_rate=1", 1.0),
        ("optimizer.clip_norm=null", None),
        ('optimizer.clip_norm="Infinity"', float("inf")),
        ("verbose=true", True),
        ("seed=18446744073709551615", 2**64 - 1),
        ("run_name=7", "7"),
        ("run_name=true", "true"),
        ('run_name="x"', '"x"'),
        ("run_name=a=b", "a=b"),
        ("run_name=", ""),
        ("run_name=null", "null"),  # no field that may be null
        ("dataset.source.security.username=null", None),  # a field that may be
        ("dataset.source.security.username=nul", "nul"),
        ("model.activation=gelu", Activation.GELU),
        ("model.precision=16", Precision.HALF),
        ("model.dtype=bfloat16", "bfloat16"),
        ("model.hidden_dims=[1,2]", (1, 2)),
        ("model.hidden_dims.1=7", 7),
        ("dataset.features.0.column=9", "9"),
        ("dataset.window.1=2", 2.0),
        ('dataset.start_offsets={"3": 5}', {3: 5}),
        ("dataset.source=FolderSource", FolderSource()),
        ('dataset.source={"__class": "FolderSource", "path": "x"}', FolderSource(path=Path("x"))),
        ('dataset.source.security.password={"env": "KAFKA_PASSWORD"}', SecretRef(env="KAFKA_PASSWORD")),
        ("dataset.source.security=SampleSecurity", Security()),
    ],
)
def test_the_text_is_read_by_the_type_of_the_field(run, override, value):
    changed = apply_overrides(run, [override])
    assert at(changed, override.partition("=")[0]) == value
    assert type(at(changed, override.partition("=")[0])) is type(value) or isinstance(value, dict)


def test_brackets_quotes_and_dots_name_the_same_entry(run):
    assert apply_overrides(run, ["dataset.features[1].column=x"]).dataset.features[1].column == "x"
    assert apply_overrides(run, ['model.tables."item_id".dim=8']).model.tables["item_id"].dim == 8
    assert apply_overrides(run, ["model.head_loss_weights.1=3"]).model.head_loss_weights == {0: 1.0, 1: 3.0}
    assert apply_overrides(run, ["model.head_loss_weights.5=3"]).model.head_loss_weights[5] == 3.0


def test_overrides_apply_in_order(run):
    changed = apply_overrides(run, ["dataset.source=FolderSource", "dataset.source.path=a", "dataset.source.path=b"])
    assert changed.dataset.source == FolderSource(path=Path("b"))
    assert (
        apply_overrides(changed, ["dataset.source.path=c", "dataset.source=FolderSource"]).dataset.source
        == FolderSource()
    )


def test_a_mapping_need_not_be_complete_before():
    mapping = base_without("dataset.topic_name")
    del mapping["dataset"]["source"], mapping["dataset"]["features"]
    before = repr(mapping)
    overrides = ["dataset.topic_name=clicks", "dataset.source.path=x", "optimizer.warmup_steps=5"]
    result = apply_overrides(mapping, overrides, cls=SampleRun)
    assert repr(mapping) == before
    run = SampleRun.from_json(result)
    assert run.dataset.topic_name == "clicks"
    assert run.dataset.source == FolderSource(path=Path("x"))
    assert run.optimizer.warmup_steps == 5


def test_an_override_of_a_field_that_the_file_gives_under_a_former_name():
    result = apply_overrides({"__class": "FolderSource", "folder": "a"}, ["path=b"])
    assert FolderSource.from_json(result) == FolderSource(path=Path("b"))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("dataset.bacth_size=4", "dataset.bacth_size: unknown field; did you mean batch_size?"),
        ("datset.batch_size=4", "datset: unknown field; did you mean dataset?"),
        (
            "dataset.batch_size.x=4",
            "dataset.batch_size.x: unknown path, dataset.batch_size has no parts; end the path at dataset.batch_size",
        ),
        (
            "dataset.features.9.column=x",
            "dataset.features[9]: unknown entry, dataset.features has entries 0 to 3; an override adds no entry; "
            "give the whole list",
        ),
        (
            "dataset.features.item.column=x",
            "dataset.features.item: unknown entry, dataset.features has entries 0 to 3; an override adds no entry; "
            "give the whole list",
        ),
        (
            "dataset.source=FolderSorce",  # not shown: a source holds a password
            "dataset.source: expected an object in JSON, or the name of a class: BrokerSource, FolderSource; "
            "did you mean FolderSource?",
        ),
        ("model=Modell", "model = 'Modell': expected an object in JSON, or the name of a class: SampleModel"),
        ("model=null", "model = null: expected an object in JSON, or the name of a class: SampleModel"),
        (
            "dataset.features.0=3",
            "dataset.features[0] = 3: expected an object in JSON, or the name of a class: SampleFeature",
        ),
        (
            "dataset.source.__class=FolderSource",
            "dataset.source.__class: unknown field; write dataset.source=FolderSource",
        ),
        (
            "dataset.source.__class=Folder",
            "dataset.source.__class: unknown field; write dataset.source=CLASS with one of BrokerSource, FolderSource",
        ),
        ("__class=SampleRun", "__class: unknown field; leave it out"),
        (
            "dataset.batch_size=four",
            "dataset.batch_size = 'four': expected an integer",
        ),
        ("verbose=True", "verbose = 'True': expected true or false"),
        (
            "optimizer.learning_rate=NaN",
            "optimizer.learning_rate = 'NaN': expected a number",
        ),
        (
            "model.hidden_dims=[a]",
            "model.hidden_dims = '[a]': expected a list in JSON: not JSON, expecting value at line 1 column 2",
        ),
        (
            "model.hidden_dims=" + "[" * 100_000,
            "model.hidden_dims = '"
            + "[" * 118
            + "…: expected a list in JSON: is nested too deep, or too large to read",
        ),
        ("dataset.batch_size", "dataset.batch_size: no override; write it as a.b.c=value"),
        ("dataset..batch_size=1", "'dataset..batch_size' is no path of dotted names; write it as a.b.c=value"),
        ("=1", "'' is no path of dotted names; write it as a.b.c=value"),
        ('dataset.batch_size="4"', "dataset.batch_size = '4': expected an integer; write it without quotes"),
        ("dataset.batch_size=0", "dataset.batch_size = 0: must be at least 1"),
        (
            "model.activation=swishh",
            "model.activation = 'swishh': expected one of relu, gelu, swish; did you mean swish?",
        ),
    ],
)
def test_a_wrong_override_names_the_command_line(run, override, line):
    assert refused(run, override) == f"command line: {line}"


def test_every_wrong_override_is_reported(run):
    with pytest.raises(ConfigError) as caught:
        apply_overrides(run, ["a=1", "seed=2", "b=3"])
    assert [problem.path for problem in caught.value.problems] == ["a", "b"]


def test_a_secret_on_the_command_line_is_not_echoed(run):
    for override in (
        "dataset.source.security.password=hunter2",
        "dataset.source.security.pasword=hunter2",
        "dataset.source.security.keys=hunter2",
        'dataset.source.security.password="hunter2"',
        "dataset.source.security.password.hunter2=1",
        'dataset.source.security={"password" "hunter2"}',
    ):
        assert "hunter2" not in refused(run, override)


@pytest.mark.parametrize("section", ["dataset.source.security", "dataset.source", "dataset"])
def test_a_secret_for_a_section_around_its_field_is_not_echoed(run, section):
    line = refused(run, f"{section}={SECRET}")
    assert line.startswith(f"command line: {section}: expected an object in JSON, or the name of a class: ")
    assert SECRET not in line


@pytest.mark.parametrize("field", ["protocol", "username.first", "__class"])
def test_a_secret_for_the_field_beside_its_own_is_not_echoed(run, field):
    assert SECRET not in refused(run, f"dataset.source.security.{field}={SECRET}")


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (f"dataset.source.security.password:{SECRET}", "dataset.source.security.password: no override"),
        (f"dataset.source.security.password {SECRET}", "dataset.source.security.password: no override"),
        (f"dataset.source.security.password{SECRET}", "dataset.source.security: no override"),
        (f"dataset.source.security.{SECRET}", "dataset.source.security: no override"),
        (SECRET, "no override"),  # what a blank has cut off
        (SECRET.replace("-", ""), "no override"),
        (SECRET.replace("-", "."), "no override"),
        (f'{{"password": "{SECRET}"}}', "no override"),
        (f'{{"password": "{SECRET}=="}}', "'…' is no path of dotted names"),
        (
            f"dataset.source.security.password: {SECRET}==",
            "'dataset.source.security.password…' is no path of dotted names",
        ),
    ],
)
def test_of_a_word_that_is_no_override_only_the_names_of_fields_are_shown(run, word, line):
    assert refused(run, word) == f"command line: {line}; write it as a.b.c=value"
    with pytest.raises(ConfigError) as caught:
        overridden_paths([word])
    assert SECRET not in str(caught.value)


def test_of_a_step_beside_a_secret_only_the_name_is_shown(run):
    above = "dataset.source.security"
    assert refused(run, f"{above}.password:{SECRET}==") == (
        f"command line: {above}.password: unknown field; write it as {above}.password=value"
    )
    assert refused(run, f"{above}.pasword:{SECRET}==").startswith(f"command line: {above}.pasword: unknown field")
    assert refused(run, f"{above}.+{SECRET}==") == f"command line: {above}: unknown field"


def test_a_node_of_unknown_class_asks_for_the_class():
    with pytest.raises(ConfigError, match=r"command line: __class: missing; expected one of"):
        apply_overrides({}, ["x=1"])
    fix = "the file holds a value here that has no parts; make it"
    with pytest.raises(ConfigError, match=f"dataset: {fix} an object in the file"):
        apply_overrides({"dataset": 3}, ["dataset.batch_size=1"], cls=SampleRun)
    with pytest.raises(ConfigError, match=f"dataset.features: {fix} a list in the file"):
        apply_overrides({"dataset": {"features": 3}}, ["dataset.features.0.column=a"], cls=SampleRun)


def test_the_overridden_paths_are_known():
    assert overridden_paths(["a.b=1", "c[0].d=x=y"]) == {"a.b", "c[0].d"}
    with pytest.raises(ConfigError, match=r"write it as a.b.c=value"):
        overridden_paths(["a"])
