"""Which JSON values a field of each type accepts, and in which words it refuses the others."""

import json
import math
from pathlib import Path

import pytest
from pydantic import model_validator
from sample_configs import (
    Activation,
    BrokerSource,
    Dataset,
    Feature,
    FolderSource,
    Optimizer,
    Precision,
    SampleRun,
    base,
    base_with,
    base_without,
)

from xai_configlib import Config, ConfigError, configclass, field


def errors_of(mapping, **options):
    with pytest.raises(ConfigError) as caught:
        SampleRun.from_json(mapping, **options)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("path", "given", "loaded"),
    [
        ("optimizer.learning_rate", 1, 1.0),
        ("dataset.batch_size", 4.0, 4),
        ("model.dropout", 0, 0.0),
        ("optimizer.clip_norm", "Infinity", math.inf),
        ("model.activation", "swish", Activation.SWISH),
        ("model.precision", 16, Precision.HALF),
        ("model.precision", 16.0, Precision.HALF),
        ("dataset.window", [1, 2], (1, 2.0)),
        ("verbose", True, True),
    ],
)
def test_a_value_that_stands_for_another_without_doubt_is_accepted(path, given, loaded):
    value = SampleRun.from_json(base_with(path, given))
    for name in path.split("."):
        value = getattr(value, name)
    assert value == loaded
    assert type(value) is type(loaded)


def test_numbers_are_written_in_the_form_of_their_field():
    text = SampleRun.from_json(base_with("optimizer.learning_rate", 1)).to_json()
    assert '"learning_rate": 1.0' in text
    assert '"batch_size": 4,' in SampleRun.from_json(base_with("dataset.batch_size", 4.0)).to_json()


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("dataset.batch_size", 4.5, "dataset.batch_size = 4.5: expected an integer"),
        (
            "dataset.batch_size",
            1e25,
            "dataset.batch_size = 1e+25: expected an integer; write it in digits, a float is not exact here",
        ),
        ("dataset.batch_size", True, "dataset.batch_size = true: expected an integer"),
        ("dataset.batch_size", "8", "dataset.batch_size = '8': expected an integer; write it without quotes"),
        ("dataset.batch_size", "many", "dataset.batch_size = 'many': expected an integer"),
        ("dataset.batch_size", None, "dataset.batch_size = null: expected an integer"),
        ("dataset.batch_size", [4], "dataset.batch_size = [4]: expected an integer"),
        ("dataset.batch_size", {"a": "b"}, "dataset.batch_size = {…}: expected an integer"),
        ("dataset.batch_size", 0, "dataset.batch_size = 0: must be at least 1"),
        (
            "optimizer.learning_rate",
            "5e-2",
            "optimizer.learning_rate = '5e-2': expected a number; write it without quotes",
        ),
        ("optimizer.learning_rate", False, "optimizer.learning_rate = false: expected a number"),
        ("optimizer.learning_rate", math.nan, "optimizer.learning_rate = NaN: expected a number"),
        ("optimizer.learning_rate", "inf", "optimizer.learning_rate = 'inf': expected a number"),
        ("optimizer.learning_rate", 0, "optimizer.learning_rate = 0.0: must be greater than 0.0"),
        ("optimizer.clip_norm", "None", "optimizer.clip_norm = 'None': expected a number or null"),
        ("optimizer.clip_norm", True, "optimizer.clip_norm = true: expected a number or null"),
        ("optimizer.clip_norm", "1", "optimizer.clip_norm = '1': expected a number or null; write it without quotes"),
        ("optimizer.clip_norm", -1, "optimizer.clip_norm = -1.0: must be greater than 0.0"),
        ("dataset.start_offsets", [1], "dataset.start_offsets = [1]: expected an object or null"),
        ("verbose", 1, "verbose = 1: expected true or false"),
        ("verbose", "true", "verbose = 'true': expected true or false; write it without quotes"),
        ("dataset.topic_name", None, "dataset.topic_name = null: expected a string"),
        ("dataset.topic_name", 7, "dataset.topic_name = 7: expected a string; write it in quotes"),
        ("dataset.topic_name", "a b", "dataset.topic_name = 'a b': expected 1 to 249 of A-Z a-z 0-9 . _ -"),
        ("run_name", "\ud800", "run_name = '\\ud800': holds characters that UTF-8 cannot write"),
        ("model.hidden_dims", "64", "model.hidden_dims = '64': expected a list"),
        ("model.hidden_dims", [64, "32"], "model.hidden_dims[1] = '32': expected an integer; write it without quotes"),
        ("dataset.source.servers", "localhost:9092", "dataset.source.servers = 'localhost:9092': expected a list"),
        ("dataset.source.servers", [], "dataset.source.servers = []: must have at least 1 entries"),
        ("dataset.window", [1], "dataset.window: expected a list of 2 entries, found 1"),
        ("dataset.window", [True, 1], "dataset.window[0] = true: expected an integer"),
        ("dataset.features.3.column", 5, "dataset.features[3].column = 5: expected a string; write it in quotes"),
        ("dataset.features", {"column": "x"}, "dataset.features = {…}: expected a list"),
        ("dataset.source", {"__class": "FolderSource", "path": 3}, "dataset.source.path = 3: expected a path"),
        ("dataset.source", {"__class": "FolderSource", "path": ""}, "dataset.source.path = '': expected a path"),
        ("model.tables", [], "model.tables = []: expected an object"),
        ("model.tables.item_id", 3, "model.tables.item_id: expected an object, found a number"),
        ("model.tables.a b", {}, 'model.tables."a b".num_rows: missing; expected an integer'),
        ("model.head_loss_weights", {"0": "x"}, "model.head_loss_weights.\"0\" = 'x': expected a number"),
        ("dataset", [], "dataset: expected an object, found a list"),
        ("dataset.start_offsets", {"0": 10, "seven": 3}, 'dataset.start_offsets."seven": expected an integer as key'),
        ("dataset.start_offsets", {"007": 3}, 'dataset.start_offsets."007": expected an integer as key'),
        ("dataset.start_offsets", {True: 3}, 'dataset.start_offsets."1": expected an integer as key'),
    ],
)
def test_a_value_of_another_type_is_refused(path, value, line):
    assert f"config: {line}" in errors_of(base_with(path, value))


def test_an_integer_key_given_twice_is_refused():
    lines = errors_of(base_with("dataset.start_offsets", {0: 1, "0": 2}))
    assert lines == ['config: dataset.start_offsets."0": the key stands twice; keep one']


def test_an_enumeration_lists_its_values_and_suggests_the_nearest():
    assert errors_of(base_with("model.activation", "swishh")) == [
        "config: model.activation = 'swishh': expected one of relu, gelu, swish; did you mean swish?"
    ]
    assert errors_of(base_with("model.activation", "RELU")) == [
        "config: model.activation = 'RELU': expected one of relu, gelu, swish; did you mean relu?"
    ]
    assert errors_of(base_with("model.dtype", "float31")) == [
        "config: model.dtype = 'float31': expected one of float32, bfloat16; did you mean float32?"
    ]
    assert errors_of(base_with("model.precision", True)) == ["config: model.precision = true: expected one of 16, 32"]


def test_unknown_fields_are_named_together_with_the_nearest_known_ones():
    mapping = base_with("dataset.bacth_size", 8)
    mapping["model"]["rotary_scale"] = 2.0
    assert sorted(errors_of(mapping, source="config.json")) == [
        "config.json: dataset.bacth_size = 8: unknown field; did you mean batch_size?",
        "config.json: model.rotary_scale = 2.0: unknown field",
    ]


def test_missing_fields_are_named_together():
    mapping = base_without("dataset.topic_name")
    del mapping["optimizer"]["learning_rate"]
    assert errors_of(mapping) == [
        "config: dataset.topic_name: missing; expected a string",
        "config: optimizer.learning_rate: missing; expected a number",
    ]


def test_every_problem_of_a_file_is_reported_at_once():
    mapping = base_with("dataset.source.security.protocol", "TLS")
    mapping["dataset"]["features"][2] = {"column": 1, "wieght": 2}
    mapping["model"]["tables"]["item_id"]["num_rows"] = 0
    mapping["seed"] = 1.5
    with pytest.raises(ConfigError) as caught:
        SampleRun.from_json(mapping)
    assert [problem.path for problem in caught.value.problems] == [
        "seed",
        "model.tables.item_id.num_rows",
        "dataset.features[2].column",
        "dataset.features[2].wieght",
        "dataset.source.security.protocol",
    ]
    first = caught.value.problems[0]
    assert (first.source, first.value, first.expected, first.fix) == ("config", "1.5", "expected an integer", "")


def test_a_rule_between_fields_speaks_in_its_own_words():
    lines = errors_of(base_with("optimizer.warmup_steps", 20000))
    assert lines == ["config: optimizer: warmup_steps = 20000: keep it below decay_steps"]


def test_a_rule_that_quotes_a_value_still_speaks_on_one_short_line():
    @configclass(policy="own")
    class Ruled(Config):
        name: str = field()
        """Name."""

        @model_validator(mode="after")
        def _refuses(self) -> "Ruled":
            raise ValueError(f"the name {self.name!s}\nis not good")

    def line(name):
        with pytest.raises(ConfigError) as caught:
            Ruled.from_json({"name": name})
        return str(caught.value)

    assert line("a") == "config: the name a is not good"
    assert line("\x1b") == "config: the name \\x1b is not good"
    assert line("a" * 500) == f"config: the name {'a' * 119}… is not good"
    assert len(line("a " * 5_000)) < 2_100


def test_a_field_given_under_two_of_its_names_is_refused():
    with pytest.raises(ConfigError, match="folder: the field path is given twice, by two of its names; keep path"):
        FolderSource.from_json({"path": "a", "folder": "b"})


def test_values_in_errors_are_on_one_short_line():
    for value in ("a\nb\x1b[31m" + "c" * 500, [1] * 500, {"a": {"b": 1}}, [[1], [2]]):
        (line,) = errors_of(base_with("dataset.batch_size", value))
        assert len(line) < 200
        assert line.isprintable()


def test_a_deep_or_huge_value_in_the_wrong_place_is_one_line():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert errors_of(base_with("dataset.batch_size", deep)) == ["config: dataset.batch_size = […]: expected an integer"]
    assert errors_of(base_with("run_name", 10**5000)) == [
        "config: run_name = a huge integer: expected a string; write it in quotes"
    ]
    assert errors_of(base_with("optimizer.learning_rate", 10**400))[0].endswith("a number that a 64-bit float can hold")
    while deep:  # unwound by hand: freeing it at once would recurse
        deep = deep.pop()


def test_a_call_of_the_class_is_checked_in_the_same_way():
    with pytest.raises(ConfigError, match=r"^Feature: weight = '1': expected a number; write it without quotes$"):
        Feature(column="a", weight="1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^Feature: column: missing; expected a string$"):
        Feature()  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^Feature: wieght = 1: unknown field; did you mean weight\?$"):
        Feature(column="a", wieght=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^Dataset: source: expected an object, found a complex$"):
        Dataset(topic_name="a", num_kafka_partitions=1, source=1j)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^Dataset: source = .*: expected Source"):
        Dataset(topic_name="a", num_kafka_partitions=1, source=Feature(column="a"))  # type: ignore[arg-type]
    assert BrokerSource(servers=["a"]).servers == ("a",)  # type: ignore[arg-type]
    assert FolderSource(path=Path("a")) == FolderSource(path="a")  # type: ignore[arg-type]
    assert Optimizer(learning_rate=1) == Optimizer(learning_rate=1.0)


def test_problems_below_an_override_name_the_command_line():
    mapping = base_with("dataset.batch_size", "x")
    mapping["seed"] = "y"
    assert errors_of(mapping, source="f.json", overridden={"dataset.batch_size"}) == [
        "f.json: seed = 'y': expected an integer",
        "command line: dataset.batch_size = 'x': expected an integer",
    ]


def test_reading_the_parsed_mapping_leaves_it_as_it_was():
    mapping = {**base(), "__version": 1}
    before = json.dumps(mapping)
    SampleRun.from_json(mapping)
    assert json.dumps(mapping) == before
