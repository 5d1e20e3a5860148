"""from_json(to_json(c)) == c for every config, and to_json(from_json(t)) == t for canonical texts."""

import copy
import json
import math
import pickle
from pathlib import Path

import pytest
from config_strategies import runs
from hypothesis import given, settings
from sample_configs import (
    Activation,
    BrokerSource,
    Feature,
    FolderSource,
    Optimizer,
    SampleRun,
    base,
    base_with,
    base_without,
)

from xai_configlib import Config, ConfigError, configclass, field
from xai_configlib.registry import class_info


@given(runs)
@settings(max_examples=100, deadline=None)
def test_a_config_written_and_read_is_the_same_config_and_writes_the_same_bytes(run):
    canonical = run.to_json()
    again = Config.from_json(canonical.encode())
    assert again == run
    assert hash(again) == hash(run)
    assert again.to_json() == canonical
    assert SampleRun.from_json(json.loads(canonical)) == run


def test_the_canonical_text_is_sorted_complete_and_marked():
    assert FolderSource(path=Path("café")).to_json() == '{\n  "__class": "FolderSource",\n  "path": "café"\n}\n'
    written = json.loads(SampleRun.from_json(base()).to_json())
    assert written["__version"] == 1
    assert written["__class"] == "SampleRun"
    assert written["dataset"]["window"] == [0, 1.0]  # defaults are written
    assert "__version" not in written["dataset"]


def test_floats_keep_their_spelling():
    canonical = Optimizer(learning_rate=1.0, clip_norm=math.inf).to_json()
    assert '"learning_rate": 1.0' in canonical
    assert '"clip_norm": "Infinity"' in canonical
    assert '"weight": -0.0' in Feature(column="a", weight=-0.0).to_json()


@pytest.mark.parametrize("salt", [9007199254740993, 2**63 - 1, 2**64 - 1])
def test_large_integers_are_exact(salt):
    text = json.dumps(base_with("model.tables.item_id.hash_salt", salt))
    run = SampleRun.from_json(text)
    assert run.model.tables["item_id"].hash_salt == salt
    assert SampleRun.from_json(run.to_json()).model.tables["item_id"].hash_salt == salt


def test_integer_keys_are_integers_with_exact_values():
    offsets = {"0": 20414879744, "1": 0, "7": 9007199254740993}
    run = SampleRun.from_json(json.dumps(base_with("dataset.start_offsets", offsets)))
    assert run.dataset.start_offsets == {0: 20414879744, 1: 0, 7: 9007199254740993}
    assert SampleRun.from_json(run.to_json()) == run


def test_containers_have_the_declared_type_at_every_depth():
    run = SampleRun.from_json(base_with("model.hidden_dims", [64, 32, 32]))
    assert run.model.hidden_dims == (64, 32, 32)
    assert isinstance(run.dataset.features, tuple)
    assert isinstance(run.dataset.source, BrokerSource)
    assert isinstance(run.dataset.source.servers, tuple)
    assert isinstance(run.model.activation, Activation)


def test_a_config_cannot_be_changed():
    run = SampleRun.from_json(base())
    with pytest.raises(Exception, match="frozen"):
        run.seed = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot be changed"):
        run.model.tables["item_id"] = run.model.tables["author_id"]  # type: ignore[index]
    with pytest.raises(TypeError, match="cannot be changed"):
        run.model.head_loss_weights.update({3: 1.0})


def test_copies_and_pickles_are_equal():
    run = SampleRun.from_json(base())
    assert copy.deepcopy(run) == run
    assert pickle.loads(pickle.dumps(run)) == run


def test_replace_checks_the_new_values():
    optimizer = Optimizer(learning_rate=0.1)
    assert optimizer.replace(learning_rate=0.2) == Optimizer(learning_rate=0.2)
    with pytest.raises(ConfigError, match=r"^Optimizer: learning_rate = -1.0: must be greater than 0"):
        optimizer.replace(learning_rate=-1.0)


def test_an_optional_field_may_be_left_out():
    assert SampleRun.from_json(base_without("dataset.start_offsets")) == SampleRun.from_json(base())


def test_a_former_tag_and_a_former_name_are_read_and_the_new_ones_written():
    old = {"__class": "OldFolderSource", "folder": "x"}
    assert Config.from_json(old) == FolderSource(path=Path("x"))
    assert Config.from_json(old).to_dict() == {"__class": "FolderSource", "path": "x"}


def test_the_class_may_be_left_out_only_where_one_class_fits():
    assert FolderSource.from_json({"path": "x"}) == FolderSource(path=Path("x"))
    run = base_with("dataset.source", {"path": "x"})
    with pytest.raises(
        ConfigError, match=r"dataset.source.__class: missing; expected one of BrokerSource, FolderSource$"
    ):
        SampleRun.from_json(run)


def test_an_unknown_class_offers_the_permitted_ones():
    expected = (
        "config: dataset.source.__class = 'FolderSorce': "
        "expected one of BrokerSource, FolderSource; did you mean FolderSource?"
    )
    with pytest.raises(ConfigError) as caught:
        SampleRun.from_json(base_with("dataset.source", {"__class": "FolderSorce", "path": "x"}))
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    "tag", ["SampleTable", "Source", "os.path", "sample_configs.FolderSource", 3, None, ["FolderSource"]]
)
def test_only_a_registered_class_below_the_called_one_is_read(tag):
    with pytest.raises(ConfigError, match=r"__class = .*expected one of FolderSource"):
        FolderSource.from_json({"__class": tag})


def test_a_base_without_fields_is_no_config_of_its_own():
    source_class = BrokerSource.__mro__[1]
    with pytest.raises(ConfigError, match="expected one of BrokerSource, FolderSource"):
        source_class()


def test_a_file_of_a_newer_release_is_refused_by_its_version():
    assert SampleRun.from_json({**base(), "__version": 1}) == SampleRun.from_json(base())
    with pytest.raises(ConfigError, match=r"^f.json: __version = 2: the file was written by a newer release"):
        SampleRun.from_json({**base(), "__version": 2}, source="f.json")
    for version in (True, "1", 0, None):
        with pytest.raises(ConfigError, match=r"__version = .*expected an integer from 1 on"):
            SampleRun.from_json({**base(), "__version": version})
    with pytest.raises(ConfigError, match=r"FolderSource has no version; remove it"):
        Config.from_json({"__class": "FolderSource", "__version": 1})
    with pytest.raises(ConfigError, match=r"dataset.__version = 1: stands at the root of a file only"):
        SampleRun.from_json(base_with("dataset.__version", 1))


def test_a_tag_belongs_to_one_class_and_the_same_class_may_come_again():
    def make():
        @configclass(policy="own")
        class Reloaded(Config):
            x: int = field(default=1)
            """X."""

        return Reloaded

    assert make() is not make()
    with pytest.raises(TypeError, match="tag 'Reloaded' belongs to"):

        @configclass(tag="Reloaded")
        class Other(Config):
            """Another class."""


def test_a_field_needs_a_policy_a_doc_and_a_config_type():
    with pytest.raises(TypeError, match=r"Lawless.x: declare a policy"):

        @configclass
        class Lawless(Config):
            x: int = field(default=1)
            """X."""

    with pytest.raises(TypeError, match=r"Undocumented.x: document the field"):

        @configclass(policy="own")
        class Undocumented(Config):
            x: int = field(default=1)

    for kind in (object, complex, tuple, tuple[()], dict, frozenset, object | None):
        with pytest.raises(TypeError, match=r"Untyped.x: .* is no config type"):

            @configclass(policy="own")
            class Untyped(Config):
                x: kind = field()  # type: ignore[valid-type]
                """X."""

    with pytest.raises(TypeError, match="the policies are must_match"):
        field(policy="keep")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="field\\(\\) knows no minimum"):
        field(minimum=3)


def test_an_inherited_field_keeps_its_policy_and_a_nested_config_needs_none():
    @configclass(policy="may_change")
    class Parent(Config):
        x: int = field(default=1)
        """X."""

    @configclass(policy="own")
    class Child(Parent):
        y: int = field(default=1)
        """Y."""

    assert class_info(Child).policies == {"x": "may_change", "y": "own"}
    assert class_info(SampleRun).policies["dataset"] is None
    assert Parent(x=2).x == 2  # a parent with fields is a config of its own
    assert Config.from_json(Child(x=3).to_json()) == Child(x=3)


def test_a_field_of_a_base_without_the_decorator_has_the_policy_of_the_class_below():
    class Mixin(Config):
        x: int = field(default=1)
        """X."""

    @configclass(policy="own")
    class Other(Config):
        y: int = field(default=1)
        """Y."""

    @configclass(policy="per_start")
    class Both(Other, Mixin):
        z: int = field(default=1, policy="must_match")
        """Z."""

    assert class_info(Both).policies == {"x": "per_start", "y": "own", "z": "must_match"}


def test_two_fields_cannot_share_a_name():
    with pytest.raises(TypeError, match=r"Shared.y: the name 'x' belongs to x"):

        @configclass(policy="own")
        class Shared(Config):
            x: int = field(default=1)
            """X."""
            y: int = field(default=1, aliases=("x",))
            """Y."""


def test_a_class_without_the_decorator_is_refused_where_it_is_used():
    class Plain(Config):
        x: int = field(default=1)
        """X."""

    with pytest.raises(TypeError, match=r"Plain: put @configclass above the class"):
        Plain()
    with pytest.raises(TypeError, match=r"Plain: put @configclass above the class"):
        Plain.from_json({})
