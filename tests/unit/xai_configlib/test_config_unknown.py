"""Fields of a newer release: an error, unless the reader asks to keep them; then no byte of them changes."""

import copy
import json
import pickle

import pytest
from sample_configs import FolderSource, SampleRun, base, base_with

from xai_configlib import (
    ABSENT,
    Config,
    ConfigError,
    Difference,
    apply_overrides,
    diff,
    inherit,
    provenance,
    read_overridden,
    reconcile,
)


def newer():
    """A canonical config.json of a release that knows more fields."""
    written = SampleRun.from_json(base()).to_dict()
    written["dataset"]["bacth_size"] = 8
    written["model"]["rotary_scale"] = 2.0
    written["model"]["tables"]["item_id"]["init"] = {"kind": "normal", "range": [-0.0, 1e-9, 2**70, None, True, ["é"]]}
    written["dataset"]["features"][1]["vocabulary"] = {}
    return json.dumps(written, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


@pytest.fixture
def kept():
    return SampleRun.from_json(newer(), unknown="keep", say=lambda line: None)


def test_by_default_unknown_fields_are_errors():
    with pytest.raises(ConfigError) as caught:
        SampleRun.from_json(base_with("dataset.bacth_size", 8))
    assert str(caught.value) == "config: dataset.bacth_size = 8: unknown field; did you mean batch_size?"


def test_on_request_they_are_kept_byte_for_byte_and_each_is_said():
    lines = []
    config = SampleRun.from_json(newer(), source="config.json", unknown="keep", say=lines.append)
    assert config.to_json() == newer()
    assert lines == [
        "config.json: model.rotary_scale = 2.0: unknown field, kept as it is",
        "config.json: model.tables.item_id.init = {…}: unknown field, kept as it is",
        "config.json: dataset.bacth_size = 8: unknown field, kept as it is",
        "config.json: dataset.features[1].vocabulary = {}: unknown field, kept as it is",
    ]
    assert config.dataset.batch_size == 4
    assert config.dataset.kept_unknown == {"bacth_size": 8}
    assert config.optimizer.kept_unknown == {}


def test_who_passes_no_callback_is_warned():
    with pytest.warns(UserWarning, match=r"dataset.bacth_size = 8: unknown field, kept as it is"):
        SampleRun.from_json(base_with("dataset.bacth_size", 8), unknown="keep")


def test_a_config_that_keeps_something_is_another_config(kept):
    known = SampleRun.from_json(base())
    assert kept != known
    assert len({kept, known, SampleRun.from_json(newer(), unknown="keep", say=print)}) == 2
    assert kept == copy.deepcopy(kept) == pickle.loads(pickle.dumps(kept))
    assert kept.replace(seed=1).replace(seed=17) == kept
    with pytest.raises(TypeError, match="cannot be changed"):
        kept.dataset.kept_unknown["bacth_size"] = 9
    with pytest.raises(TypeError, match="cannot be changed"):
        kept.model.tables["item_id"].kept_unknown["init"]["kind"] = "uniform"


def test_its_source_can_change_without_changing_it():
    mapping = base_with("dataset.later", {"list": [1]})
    config = SampleRun.from_json(mapping, unknown="keep", say=print)
    mapping["dataset"]["later"]["list"].append(2)
    assert config.to_dict()["dataset"]["later"] == {"list": [1]}


def test_the_differences_show_them(kept):
    known = SampleRun.from_json(base())
    assert diff(known, kept)[1] == Difference("model.rotary_scale", ABSENT, 2.0, "from_checkpoint")
    other = SampleRun.from_json(newer().replace('"bacth_size": 8', '"bacth_size": 8.0'), unknown="keep", say=print)
    assert diff(kept, other) == [Difference("dataset.bacth_size", 8, 8.0, "from_checkpoint")]
    text = SampleRun.from_json(base_with("dataset.bacth_size", "(absent)"), unknown="keep", say=print)
    assert [d.path for d in diff(known, text)] == ["dataset.bacth_size"]
    assert json.dumps(diff(kept, known)[1].right) == '"(absent)"'
    assert diff(kept, kept) == []


def test_a_child_and_a_restart_keep_what_production_has(kept):
    experiment = SampleRun.from_json(base())
    for mode in ("child", "restart"):
        result = reconcile(kept, experiment, mode=mode)
        assert result.config == kept
        assert result.forbidden == ()
        assert "2.0" in "\n".join(result.table())
        assert "(absent)" in "\n".join(result.table())
    assert inherit(kept).to_dict()["model"]["rotary_scale"] == 2.0
    assert inherit(kept, ["seed=3"]) == inherit(kept).replace(seed=3)


def test_what_only_the_experiment_has_is_allowed_in_a_child_only(kept):
    production = SampleRun.from_json(base())
    assert reconcile(production, kept, mode="child").config == kept
    assert len(reconcile(production, kept, mode="child").forbidden) == 0
    assert {row.path for row in reconcile(production, kept, mode="restart").forbidden} == {
        row.path for row in diff(production, kept)
    }


def test_names_of_any_length_and_letters_are_kept():
    for name in ("a" * 500, "a.b[0]", "é \n", ""):
        config = SampleRun.from_json(base_with("dataset.later", {name: 1}) | {name: 2}, unknown="keep", say=print)
        assert reconcile(config, SampleRun.from_json(base()), mode="child").config == config


def test_overrides_leave_them_and_never_make_new_ones(kept):
    assert apply_overrides(kept, ["seed=3"]) == kept.replace(seed=3)
    with pytest.raises(ConfigError, match=r"dataset.bacth_size: unknown field; did you mean batch_size"):
        apply_overrides(kept, ["dataset.bacth_size=9"])
    with pytest.raises(ConfigError, match=r"dataset.source.folderr = 'x': unknown field"):
        apply_overrides(SampleRun.from_json(base()), ['dataset.source={"__class": "FolderSource", "folderr": "x"}'])
    lines = []
    config = read_overridden(SampleRun, base_with("later", 1), ["seed=3"], "f.json", unknown="keep", say=lines.append)
    assert (config.seed, lines) == (3, ["f.json: later = 1: unknown field, kept as it is"])


def test_their_origin_is_known():
    mapping = base_with("dataset.later", 1)
    config = SampleRun.from_json(mapping, unknown="keep", say=print)
    assert provenance(config, file=mapping)["dataset.later"] == "file"
    assert provenance(config, production=config)["dataset.later"] == "checkpoint"


CURE = "remove it, or read the file with the release that wrote it"


def refused(path, value):
    with pytest.raises(ConfigError) as caught:
        SampleRun.from_json(base_with(path, value), unknown="keep", say=print)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dataset.source.security.pasword", "hunter2"),
        ("dataset.source.security.pasword", 987654321),
        ("dataset.source.security.env", "hunter2"),
        ("dataset.source.security.later", {"deep": ["hunter2"]}),
        ("optimizer.api_key", "hunter2"),
        ("optimizer.later", {"deep": [{"password": "hunter2"}]}),
        ("optimizer.password", ["hunter2"]),
    ],
)
def test_what_may_be_a_literal_secret_is_never_kept(path, value):
    line = refused(path, value)
    assert line == f"config: {path}: unknown field, not kept: it may be a secret; refer to it" or "{…}" in line
    assert "hunter2" not in line
    assert "987654321" not in line


def test_references_flags_and_numbers_beside_secrets_are_kept():
    mapping = base_with("dataset.source.security.key_password", {"env": "KAFKA_KEY"})
    mapping["dataset"]["source"]["security"]["verify"] = True
    mapping["model"]["num_tokens"] = 5
    config = SampleRun.from_json(mapping, unknown="keep", say=print)
    assert config.to_dict()["dataset"]["source"]["security"]["key_password"] == {"env": "KAFKA_KEY"}
    assert config.to_dict()["model"]["num_tokens"] == 5


def test_what_cannot_be_written_again_is_refused():
    deep: list = []
    for _ in range(101):
        deep = [deep]
    for value, words in {
        float("nan"): "it holds a value that JSON cannot write",
        b"a": "it holds a value that JSON cannot write",
        "\ud83e": "it holds characters that UTF-8 cannot write",
        10**5000: "it holds a huge integer",
    }.items():
        assert refused("later", value).endswith(f": unknown field, not kept: {words}; {CURE}")
    assert refused("later", deep).endswith(f"it is nested deeper than 100 levels; {CURE}")
    for key in (1, "\ud83e"):
        assert refused("later", {key: 1}).endswith(f"it holds a key that is no text; {CURE}")
        with pytest.raises(ConfigError, match="no text"):
            SampleRun.from_json({**base(), key: 1}, unknown="keep")


def test_a_version_or_a_class_that_is_not_known_is_an_error_all_the_same():
    with pytest.raises(ConfigError, match="the file was written by a newer release"):
        SampleRun.from_json({**base(), "__version": 2}, unknown="keep")
    with pytest.raises(ConfigError, match="expected one of BrokerSource, FolderSource"):
        SampleRun.from_json(base_with("dataset.source", {"__class": "NewSource"}), unknown="keep")
    with pytest.raises(ConfigError, match="stands at the root of a file only"):
        SampleRun.from_json(base_with("dataset.__version", 1), unknown="keep")


def test_a_node_chosen_by_its_class_keeps_them_too():
    text = '{\n  "__class": "FolderSource",\n  "later": 1,\n  "path": "log"\n}\n'
    assert Config.from_json(text, unknown="keep", say=print).to_json() == text
    assert FolderSource.from_json({"folder": "x", "z": 1}, unknown="keep", say=print).to_dict() == {
        "__class": "FolderSource",
        "path": "x",
        "z": 1,
    }
