"""Files of earlier versions are brought to the current one, step by step, before they are validated."""

import json
from pathlib import Path
from typing import Any

import pytest

from xai_configlib import (
    Config,
    ConfigError,
    apply_overrides,
    configclass,
    field,
    in_order,
    json_schema,
    migrate,
    migration,
    move,
    provenance,
    read_overridden,
    rename,
    set_default,
    split,
)

GOLDEN = Path(__file__).parents[2] / "fixtures" / "config_v1.json"


@configclass(policy="may_change")
class MovedOptimizer(Config):
    learning_rate: float = field(gt=0)
    """`lr` in version 1."""
    warmup_steps: int = field(default=100)
    """Its default was 0 before version 3."""


@configclass(policy="may_change")
class MovedFeature(Config):
    column: str = field()
    """`name` in version 1."""
    width: int = field(default=8)
    """Its default was 4 before version 3."""


@configclass(policy="per_start")
class MovedBroker(Config):
    host: str = field()
    """With `port`, `address` before version 3."""
    port: int = field()
    """Port."""
    timeout_ms: int = field(default=1_000)
    """`timeout_s` of the root in version 1."""


@configclass(policy="must_match", version=3)
class MovedRun(Config):
    features: tuple[MovedFeature, ...] = field(default=())
    """Inputs."""
    optimizer: MovedOptimizer | None = field(default=None)
    """Optimizer."""
    broker: MovedBroker | None = field(default=None)
    """Broker."""


@migration(MovedRun, from_version=1)
def one_to_two(file: dict[str, Any]) -> Any:
    if "timeout_s" in file:
        file["timeout_ms"] = file.pop("timeout_s") * 1_000
    steps = in_order(
        rename("optimizer.lr", "optimizer.learning_rate"),
        rename("features.*.name", "features.*.column"),
        move("timeout_ms", "broker.timeout_ms"),
    )
    return steps(file)


migration(MovedRun, from_version=2)(
    in_order(
        split(
            "broker.address", {"broker.host": lambda a: a.split(":")[0], "broker.port": lambda a: int(a.split(":")[1])}
        ),
        set_default("features.*.width", 4),
        set_default("optimizer.warmup_steps", 0, make_nodes=False),
    )
)


VERSION_1 = {
    "__class": "MovedRun",
    "__version": 1,
    "features": [{"name": "item"}, {"name": "user", "width": 16}],
    "optimizer": {"lr": 0.5},
    "broker": {"address": "localhost:9092"},
    "timeout_s": 3,
}
TODAY = MovedRun(
    features=(MovedFeature(column="item", width=4), MovedFeature(column="user", width=16)),
    optimizer=MovedOptimizer(learning_rate=0.5, warmup_steps=0),
    broker=MovedBroker(host="localhost", port=9092, timeout_ms=3_000),
)


def read(**changes):
    return MovedRun.from_json({**VERSION_1, **changes})


def test_a_file_of_version_1_goes_through_version_2_to_today():
    assert read() == TODAY
    assert Config.from_json(json.dumps(VERSION_1)) == TODAY
    assert json.loads(TODAY.to_json())["__version"] == 3


def test_the_golden_file_of_version_1_means_what_it_meant():
    assert Config.from_json(GOLDEN.read_bytes(), source=GOLDEN.name) == TODAY
    assert migrate(MovedRun, json.loads(GOLDEN.read_text())) == json.loads(
        GOLDEN.with_name("config_v3.json").read_text()
    )
    assert MovedRun.from_json(GOLDEN.with_name("config_v3.json").read_bytes()).to_json() == TODAY.to_json()


def test_a_file_of_today_or_without_a_version_is_taken_as_it_is():
    assert MovedRun.from_json(TODAY.to_json()) == TODAY
    assert MovedRun.from_json({}) == MovedRun()
    with pytest.raises(ConfigError, match=r"optimizer.lr = 0.5: unknown field"):
        MovedRun.from_json({"optimizer": {"lr": 0.5}})


def test_what_the_file_leaves_out_is_left_out():
    assert MovedRun.from_json({"__version": 1}).features == ()
    assert (
        MovedRun.from_json(
            {"__version": 1, "optimizer": None, "features": None, "broker": None} | {"features": []}
        ).broker
        is None
    )
    two = {"__version": 2, "features": [{"column": "item"}], "broker": {"host": "a", "port": 1}}
    assert MovedRun.from_json(two).broker == MovedBroker(host="a", port=1)


def test_a_migration_does_not_change_what_it_was_given():
    before = json.dumps(VERSION_1)
    migrate(MovedRun, VERSION_1)
    assert json.dumps(VERSION_1) == before
    once = migrate(MovedRun, VERSION_1)
    assert migrate(MovedRun, once) == once


def test_overrides_and_origins_use_todays_names():
    config = read_overridden(MovedRun, VERSION_1, ["optimizer.learning_rate=0.1", "features.0.width=2"])
    assert config.optimizer.learning_rate == 0.1  # type: ignore[union-attr]
    assert config.features[0].width == 2
    assert apply_overrides(VERSION_1, ["broker.port=1"], cls=MovedRun)["broker"]["port"] == 1
    origins = provenance(config, file=VERSION_1, overridden={"optimizer.learning_rate"})
    assert origins["optimizer.learning_rate"] == "override"
    assert origins["broker.port"] == "migration"


def test_origins_tell_what_a_migration_made_from_what_stands_in_the_file():
    file = {"__version": 2, "features": [{"column": "a", "width": 3}], "optimizer": {"learning_rate": 0.5}}
    config = MovedRun.from_json(file)
    origins = {"features[0].column": "file", "features[0].width": "file", "optimizer.learning_rate": "file"}
    assert provenance(config, file=file) == origins | {"optimizer.warmup_steps": "migration", "broker": "default"}
    inherited = provenance(config, production=config, production_file=file)
    assert inherited == dict.fromkeys(origins, "checkpoint") | {
        "optimizer.warmup_steps": "migration",
        "broker": "default",
    }
    assert set(provenance(config, production=config).values()) == {"checkpoint"}, "as a current file would have it"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"__version": 4}, "config: __version = 4: the file was written by a newer release; this one reads up to version 3; upgrade it"),
        ({"__version": 0}, "config: __version = 0: expected an integer from 1 on; this release writes 3"),
        ({"__version": 1.0}, "config: __version = 1.0: expected an integer from 1 on; this release writes 3"),
        ({"optimizer": {"lr": 0.5, "learning_rate": 0.5}},
         "config: optimizer.learning_rate: given beside optimizer.lr of an earlier version; keep one of the two"),
        ({"broker": 3}, "config: broker.timeout_ms: timeout_ms of an earlier version belongs here, where no object is"),
        ({"broker": {"address": "localhost"}},
         "config: __version = 2: the file cannot be brought to version 3, IndexError; is it a valid file of version 2?"),
        ({"timeout_s": {}}, "config: __version = 1: the file cannot be brought to version 2, TypeError; is it a valid file of version 1?"),
        ({"optimizer": {"lr": "x"}}, "config: optimizer.learning_rate = 'x': expected a number"),
        ({"features": [3]}, "config: features[0]: expected an object, found a number"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_brought_here_is_one_line(changes, line):
    with pytest.raises(ConfigError) as caught:
        read(**changes)
    assert str(caught.value) == line


def test_a_version_from_before_the_oldest_migration_is_refused():
    @configclass(policy="own", version=4)
    class Gap(Config):
        x: int = field(default=1)
        """X."""

    migration(Gap, from_version=1)(lambda file: file)
    migration(Gap, from_version=3)(lambda file: file)
    assert Gap.from_json({"__version": 3}) == Gap()
    for version in (1, 2):
        with pytest.raises(
            ConfigError, match=r"this release reads versions 3 to 4; let an earlier release read and save it"
        ):
            Gap.from_json({"__version": version})


def test_a_migration_is_registered_once_and_only_for_a_version_there_was():
    for cls, version in ((MovedRun, 3), (MovedRun, 0), (MovedFeature, 1)):
        with pytest.raises(TypeError, match=f"has no version after {version}"):
            migration(cls, from_version=version)
    with pytest.raises(TypeError, match="MovedRun: two migrations from version 1"):
        migration(MovedRun, from_version=1)
    with pytest.raises(TypeError, match="the name alone may differ; use move"):
        rename("a.b", "c.b")
    with pytest.raises(TypeError, match=r"up to the last \* the paths must be the same"):
        move("features.*.name", "names.*.name")
    with pytest.raises(TypeError, match=r"up to the last \* the paths must be the same"):
        move("name", "features.*.name")


def test_a_star_is_every_entry_of_a_list_or_an_object():
    file = {"tables": {"a": {"n": 1}, "b": {"n": 2, "dim": 3}, "c": None}, "lists": [[{"n": 1}], 3]}
    renamed = in_order(rename("tables.*.n", "tables.*.rows"), rename("lists.*.*.n", "lists.*.*.rows"))(file)
    assert renamed == {"tables": {"a": {"rows": 1}, "b": {"rows": 2, "dim": 3}, "c": None}, "lists": [[{"rows": 1}], 3]}
    assert set_default("tables.*.dim", 5)(file)["tables"] == {
        "a": {"n": 1, "dim": 5},
        "b": {"n": 2, "dim": 3},
        "c": None,
    }
    assert move("tables.*.n", "tables.*.deep.n")(file)["tables"]["a"] == {"deep": {"n": 1}}
    assert rename("x.*.n", "x.*.m")(file) == file
    assert move("lists.n", "m")(file) == file


def test_a_default_that_was_changed_makes_the_section_that_was_left_out():
    assert set_default("optimizer.warmup_steps", 0)({}) == {"optimizer": {"warmup_steps": 0}}
    for section in (None, 3):
        assert set_default("optimizer.warmup_steps", 0)({"optimizer": section}) == {"optimizer": section}
    assert set_default("optimizer.warmup_steps", 0, make_nodes=False)({}) == {}
    assert set_default("a.b.c", 0)({"a": 1}) == {"a": 1}


def test_a_changed_default_never_changes_an_old_run():
    def release(default: int) -> type[Config]:
        @configclass(tag="Released", policy="may_change", version=1)
        class Released(Config):
            batch_size: int = field(default=default)
            """Examples of a step."""

        return Released

    saved = release(4)().to_json()
    newer_release = release(8)
    assert newer_release().to_dict()["batch_size"] == 8
    assert newer_release.from_json(saved).to_json() == saved


def test_the_schema_is_of_the_current_version():
    assert json_schema(MovedRun)["properties"]["__version"] == {"const": 3}
