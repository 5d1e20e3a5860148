"""Run folders that hold configs and no arrays: enough for whatever reads config.json and run.json."""

import json
from pathlib import Path

from xrex.data.config import DatasetConfig
from xrex.schema.specs import FeatureSpec
from xrex.train.config import TrainerConfig
from xrex.utils.metadata import Environment, Run, Start

PRICE = FeatureSpec(name="price", group="candidate", column="price", kind="float")
ENVIRONMENT = Environment("0.0.0", {}, "1 x cpu", 1)
START = Start("2020-01-01T00:00:00+00:00", "0" * 64, {"version": 1, "topics": []})


def small_config(**sections) -> TrainerConfig:
    dataset = DatasetConfig(
        topic_name="clicks", num_kafka_partitions=2, tables=(), features=(PRICE,), actions=("click",)
    )
    return TrainerConfig(**{"dataset": dataset} | sections)


def write_step(step_dir: Path, config: TrainerConfig | dict, run: Run) -> Path:
    """A step that counts as complete; a dict is written as it is."""
    (step_dir / "state").mkdir(parents=True)
    (step_dir / "config.json").write_text(json.dumps(config) if isinstance(config, dict) else config.to_json())
    (step_dir / "run.json").write_text(run.to_json())
    for name in ("positions.json", "progress.json", "commit_success.txt"):
        (step_dir / name).write_text("{}")
    (step_dir / "checksums.json").write_text('{"files": {}}')
    return step_dir
