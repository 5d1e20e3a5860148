"""The JSON Schema of a config class accepts what from_json accepts, as far as JSON Schema can say it."""

import json
import math
from pathlib import Path
from typing import Annotated

import pytest
from config_strategies import runs
from generated_configs import generated_configs
from hypothesis import HealthCheck, given, settings
from pydantic import Field
from sample_configs import BrokerSource, FolderSource, SampleRun, base, base_with, base_without
from schema_check import faults
from test_config_robustness import mutated_values
from test_config_types import ManyTypes

from xai_configlib import Config, ConfigError, configclass, field, json_schema, load_text
from xrex.train.config import TrainerConfig

CONFIGS = Path(__file__).parents[3] / "configs"
SCHEMA = json_schema(SampleRun)


def test_a_schema_says_what_it_is():
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "SampleRun"
    assert SCHEMA["additionalProperties"] is False
    assert SCHEMA["required"] == ["model", "dataset", "optimizer"]
    assert SCHEMA["properties"]["__class"] == {"enum": ["SampleRun"]}
    assert SCHEMA["properties"]["__version"] == {"const": 1}
    assert "__version" not in SCHEMA["$defs"]["SampleDataset"]["properties"]
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


def test_a_field_has_its_type_range_doc_and_default():
    properties = SCHEMA["$defs"]["SampleDataset"]["properties"]
    assert properties["batch_size"] == {
        "type": "integer",
        "minimum": 1,
        "description": "Examples of a step.",
        "default": 4,
    }
    assert properties["topic_name"] == {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$", "description": "Topic."}
    assert properties["features"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/SampleFeature"},
        "description": "Features.",
        "default": [],
    }
    assert properties["window"] == {
        "type": "array",
        "prefixItems": [
            {"type": "integer"},
            {"anyOf": [{"type": "number"}, {"enum": ["Infinity", "-Infinity"]}]},
        ],
        "items": False,
        "minItems": 2,
        "description": "Two numbers of different types.",
        "default": [0, 1.0],
    }
    model = SCHEMA["$defs"]["SampleModel"]["properties"]
    assert model["activation"] == {"enum": ["relu", "gelu", "swish"], "description": "Activation.", "default": "relu"}
    assert model["tables"] == {
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/SampleTable"},
        "description": "Tables by name.",
    }
    optimizer = SCHEMA["$defs"]["SampleOptimizer"]["properties"]
    assert optimizer["learning_rate"] == {
        "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"enum": ["Infinity"]}],
        "description": "Learning rate.",
    }
    assert optimizer["clip_norm"]["anyOf"][-1] == {"type": "null"}


def test_a_node_is_chosen_by_its_class():
    source = SCHEMA["$defs"]["SampleDataset"]["properties"]["source"]
    assert source["anyOf"] == [
        {"$ref": "#/$defs/BrokerSource", "required": ["__class"]},
        {"$ref": "#/$defs/FolderSource", "required": ["__class"]},
    ]
    assert SCHEMA["$defs"]["FolderSource"]["properties"]["__class"] == {"enum": ["FolderSource", "OldFolderSource"]}
    former = SCHEMA["$defs"]["FolderSource"]["properties"]["folder"]
    assert former == {**SCHEMA["$defs"]["FolderSource"]["properties"]["path"], "deprecated": True}


def test_the_schema_of_a_base_chooses_at_the_root():
    schema = json_schema(BrokerSource.__mro__[1])  # type: ignore[arg-type]
    assert faults(schema, {"__class": "FolderSource", "path": "x"}) == []
    assert faults(schema, {"__class": "BrokerSource", "path": "x"}) != []
    assert faults(schema, {"path": "x"}) != []
    assert faults(json_schema(FolderSource), {"folder": "x"}) == []


@pytest.mark.parametrize(
    "mapping",
    [
        base(),
        {**base(), "__version": 1},
        base_with("dataset.batch_size", 4.0),
        base_with("model.precision", 16),
        base_with("optimizer.clip_norm", "Infinity"),
        base_with("dataset.start_offsets", {"0": 1, "17": 2}),
        base_with("dataset.source", {"__class": "OldFolderSource", "folder": "x"}),
        base_with("dataset.source.security.password", {"env": "KAFKA_PASSWORD"}),
        base_with("dataset.source.security.password", {"file": "a b"}),
    ],
)
def test_what_is_valid_fits(mapping):
    assert SampleRun.from_json(mapping)
    assert faults(SCHEMA, mapping) == []


@pytest.mark.parametrize(
    "mapping",
    [
        base_without("dataset.topic_name"),
        base_with("dataset.bacth_size", 8),
        base_with("dataset.batch_size", 0),
        base_with("dataset.batch_size", 1.5),
        base_with("dataset.batch_size", True),
        base_with("dataset.batch_size", "8"),
        base_with("dataset.topic_name", "a b"),
        base_with("dataset.topic_name", None),
        base_with("dataset.window", [1]),
        base_with("dataset.window", [1, 2, 3]),
        base_with("dataset.start_offsets", {"007": 1}),
        base_with("dataset.source", {"path": "x"}),
        base_with("dataset.source", {"__class": "SampleTable"}),
        base_with("dataset.source.servers", []),
        base_with("dataset.source.security.password", "hunter2"),
        base_with("dataset.source.security.password", {"env": "a b"}),
        base_with("dataset.source.security.password", {"env": "A", "file": "b"}),
        base_with("model.activation", "RELU"),
        base_with("model.precision", True),
        base_with("model.dropout", 1),
        base_with("model.head_loss_weights", {"0": "x"}),
        base_with("optimizer.learning_rate", "-Infinity"),
        base_with("optimizer.clip_norm", "None"),
        {**base(), "__version": 2},
        {**base(), "__class": "SampleTable"},
    ],
)
def test_what_is_not_valid_does_not_fit(mapping):
    with pytest.raises(ConfigError):
        SampleRun.from_json(mapping)
    assert faults(SCHEMA, mapping) != []


@given(runs)
@settings(max_examples=50, deadline=None)
def test_every_canonical_text_fits(run):
    assert faults(SCHEMA, json.loads(run.to_json())) == []


@given(generated_configs())
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_config_of_any_class_fits_the_schema_of_the_class(config):
    assert faults(json_schema(type(config)), json.loads(config.to_json())) == []


@given(mutated_values())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_from_json_accepts_fits(file):
    cls, text = file
    try:
        cls.from_json(text)
    except ConfigError:
        return
    assert faults(json_schema(cls), json.loads(text)) == []


@configclass(tag="a/b~ c", policy="own")
class Limits(Config):
    share: float = field(default=0.5, ge=0, le=1)
    """No infinity."""
    even: int = field(default=2, multiple_of=2)
    """Even."""
    step: float = field(default=0.5, multiple_of=0.25)
    """A multiple."""
    anything: float = field(default=0.0, gt=-math.inf)
    """Finite or Infinity."""
    name: str = field(min_length=1, max_length=3, aliases=("title",))
    """A required field with a former name."""
    tags: frozenset[str] = field(default=frozenset(), max_length=2)
    """A set."""
    counts: dict[str, int] = field(default_factory=dict, min_length=0, max_length=1)
    """An object."""
    bounded: tuple[Annotated[int, Field(ge=0, lt=9)], ...] = field(default=())
    """Limits of the entries."""
    maybe: Annotated[int, Field(ge=0)] | None = field(default=None)
    """A limit inside."""
    wait: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern="^a")] | None = field(default=None)
    """Limits of the arms."""


@configclass(policy="own")
class Chain(Config):
    link: Limits | None = field(default=None)
    """A tag that a reference must escape."""


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 1.5}, {"share": "Infinity"}, {"even": 3}, {"step": 0.3}, {"anything": "-Infinity"},
        {"name": ""}, {"name": "abcd"}, {"name": None}, {"tags": ["a", "b", "c"]}, {"tags": ["a", "a"]},
        {"counts": {"a": 1, "b": 2}}, {"bounded": [-1]}, {"bounded": [9]}, {"maybe": -1}, {"wait": -1}, {"wait": "b"}, {"wait": []},
    ],
)  # fmt: skip
def test_a_limit_is_in_the_schema(changes):
    schema = json_schema(Chain)
    valid = {"link": {"name": "a"}}
    assert Chain.from_json(valid)
    assert faults(schema, valid) == faults(schema, {"link": {"title": "a"}}) == faults(schema, {"link": None}) == []
    assert faults(schema, {"link": {}}) != []
    with pytest.raises(ConfigError):
        Chain.from_json({"link": {"name": "a", **changes}})
    assert faults(schema, {"link": {"name": "a", **changes}}) != []


def test_a_class_that_nests_in_itself_is_defined_once():
    @configclass(tag="SchemaTree", policy="own")
    class Tree(Config):
        """Base."""

    @configclass(tag="SchemaBranch", policy="own")
    class Branch(Tree):
        below: tuple[Tree, ...] = field(default=())
        """More of them."""

    schema = json_schema(Branch)
    tree = Branch(below=(Branch(), Branch(below=(Branch(),))))
    assert faults(schema, tree.to_dict()) == []
    assert set(schema["$defs"]) == {"SchemaBranch"}
    assert faults(schema, {"below": [{"below": [{"x": 1}]}]}) != []


def test_union_types_are_in_the_schema():
    schema = json_schema(ManyTypes)
    assert faults(schema, ManyTypes().to_dict()) == []
    for changes in (
        {"number_or_text": True},
        {"since": "2026-01-31"},
        {"wait": "5"},
        {"key": "AP8"},
        {"either": {}},
        {"by_level": {"2": []}},
    ):
        assert faults(schema, changes) != []


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.name)
def test_every_shipped_config_fits(file):
    assert faults(json_schema(TrainerConfig), load_text(file.read_bytes(), str(file))) == []


def test_there_are_shipped_configs():
    assert len(list(CONFIGS.glob("*.yaml"))) >= 3


def test_a_public_validator_agrees():
    jsonschema = pytest.importorskip("jsonschema")
    for cls, value in ((SampleRun, base()), (ManyTypes, ManyTypes().to_dict()), (Chain, {"link": {"title": "a"}})):
        schema = json_schema(cls)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.Draft202012Validator(schema).validate(value)
        assert not jsonschema.Draft202012Validator(schema).is_valid({**value, "unknown": 1})
