"""describe: a row for each field, in words that a table of the docs can show."""

from dataclasses import astuple

import pytest
from sample_configs import SampleRun
from test_config_types import ManyTypes

from xai_configlib import Config, FieldRow, configclass, describe, field

ROWS = {(row.path, row.variant): row for row in describe(SampleRun)}


def test_a_row_tells_all_about_a_field():
    assert ROWS["dataset.batch_size", ""] == FieldRow(
        path="dataset.batch_size",
        variant="",
        type="integer",
        unit="",
        required=False,
        default=4,
        policy="may_change",
        doc="Examples of a step.",
        constraints={"ge": 1},
    )
    assert astuple(ROWS["model", ""])[:7] == ("model", "", "SampleModel", "", True, None, None)


def test_rows_stand_in_the_order_of_the_fields_each_node_before_its_fields():
    paths = [row.path for row in describe(SampleRun)]
    assert paths[:5] == ["run_name", "seed", "verbose", "model", "model.embedding_dim"]
    assert paths.index("dataset") < paths.index("dataset.topic_name") < paths.index("optimizer")


def test_entries_and_variants_are_told_by_the_path_and_the_class():
    assert ROWS["dataset.features[*].column", ""].constraints == {"min_length": 1}
    assert ROWS["model.tables.*.num_rows", ""].required
    assert ROWS["dataset.source", ""].type == "BrokerSource or FolderSource"
    assert ROWS["dataset.source", ""].default == {"__class": "FolderSource", "path": "log"}
    assert ROWS["dataset.source.path", "FolderSource"].type == "path"
    assert ROWS["dataset.source.security.password", "BrokerSource"].type == "secret reference or null"
    assert ROWS["dataset.source.group_id", "BrokerSource"].policy == "own"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("seed", "integer"),
        ("verbose", "true or false"),
        ("model.hidden_dims", "list of integer"),
        ("model.activation", "relu or gelu or swish"),
        ("model.head_loss_weights", "object of number by integer"),
        ("model.tables", "object of SampleTable by string"),
        ("dataset.window", "list of 2 (integer, number)"),
        ("dataset.start_offsets", "object of integer by integer or null"),
        ("optimizer.clip_norm", "number or null"),
    ],
)
def test_a_type_is_told_in_words(path, kind):
    assert ROWS[path, ""].type == kind


def test_the_newer_types_are_told_in_words_and_their_limits_as_json_writes_them():
    rows = {row.path: row for row in describe(ManyTypes)}
    assert rows["number_or_text"].type == "integer or string"
    assert rows["ids"].type == "set of integer"
    assert rows["key"].type == "base64"
    assert rows["since"].constraints == {"ge": "2000-01-01T00:00:00Z"}
    assert (rows["wait"].type, rows["wait"].default) == ("duration", "PT1H30M")
    assert rows["either"].type == "Left or Right"
    assert rows["either.y"].variant == "Right"
    assert rows["by_level"].type == "object of set of relu or gelu or swish by 0 or 1"


def test_units_end_the_names():
    @configclass(policy="own")
    class Units(Config):
        poll_timeout_ms: int = field(default=1)
        """Wait."""
        queue_bytes: int = field(default=1)
        """Size."""
        steps: int = field(default=1)
        """The name is the noun itself."""
        pair: tuple[SampleRun, int] | None = field(default=None)
        """A config inside a pair."""

    rows = {row.path: row.unit for row in describe(Units)}
    assert (rows["poll_timeout_ms"], rows["queue_bytes"], rows["steps"]) == ("ms", "bytes", "")
    assert "pair[0].seed" in rows


def test_a_class_that_nests_in_itself_is_described_once():
    @configclass(tag="FieldsTree", policy="own")
    class Tree(Config):
        """Base."""

    @configclass(tag="FieldsBranch", policy="own")
    class Branch(Tree):
        name: str = field(default="")
        """Name."""
        below: tuple[Tree, ...] = field(default=())
        """More of them."""

    assert [row.path for row in describe(Branch)] == ["name", "below"]


def test_a_class_that_is_not_registered_has_no_rows():
    class Plain(Config):
        x: int = field(default=1)
        """X."""

    with pytest.raises(TypeError, match="Plain: put @configclass above the class"):
        describe(Plain)
