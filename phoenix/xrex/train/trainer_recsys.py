"""The trainer: `python -m xrex.train.trainer_recsys --config FILE | --checkpoint PATH | --run-dir RUN_DIR [a.b.c=value ...]`.

The same command runs on a laptop and on every host of a pod. Process 0 reads the config and decides; the others receive it.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from xai_configlib import load_text
from xrex.checkpoint import layout
from xrex.errors import ConfigError
from xrex.report.failures import exit_code_of, leave
from xrex.train.config import TrainerConfig
from xrex.train.start import Options, Plan, plan
from xrex.utils.metadata import code_version, package_versions
from xrex.utils.utils import agree, exit_now, from_process_zero, process_count, process_index, start_distributed

_CONFIG_FILENAME = layout.CONFIG


def _read_checkpoint_kafka_config(ctx: Any) -> tuple[str | None, int | None]:
    """Topic and partition count that a checkpoint's config names; (None, None) where it has no config.json.

    ctx  anything with `ctx.checkpoint.path`, the checkpoint's step folder
    The file may hold a whole config, or a dataset section alone. Raises ConfigError if it is broken.
    """
    path = Path(ctx.checkpoint.path) / _CONFIG_FILENAME
    if not path.exists():
        return None, None
    mapping = load_text(path.read_bytes(), str(path))
    dataset = mapping.get("dataset", mapping)
    if not isinstance(dataset, dict):
        raise ConfigError(f"{path}: dataset: expected an object with topic_name and num_kafka_partitions")
    topic, partitions = dataset.get("topic_name"), dataset.get("num_kafka_partitions")
    if topic is not None and not isinstance(topic, str):
        raise ConfigError(f"{path}: dataset.topic_name = {topic!r}: expected a topic's name")
    if partitions is not None and (type(partitions) is not int or partitions < 1):
        raise ConfigError(f"{path}: dataset.num_kafka_partitions = {partitions!r}: expected an integer from 1 on")
    return topic, partitions


def train(options: Options, *, dry_run: bool = False, print_config: bool = False) -> int:
    """A run from its command line to its exit code. Raises ConfigError or PhoenixError, with the same words everywhere."""
    start_distributed()
    chosen: list[Plan] = []
    config = from_process_zero(lambda: decide(options, chosen, quiet=print_config))
    agree("config.json", config.to_json())
    agree("the code and its packages", f"{code_version()} {package_versions()}")
    if print_config:
        return say(config.to_json())
    if dry_run:
        return say("dry run: the config is valid; nothing was connected to, created or changed\n")
    # JAX and the rest of the program come in only now: a wrong config is reported in the time that reading it takes.
    from xrex.train.run import run

    return run(config, chosen[0] if chosen else None)


def decide(options: Options, chosen: list[Plan], *, quiet: bool) -> TrainerConfig:
    """Process 0: the plan, kept in `chosen` and printed, and the config that all processes get."""
    chosen.append(plan(options))
    if not quiet:
        print(f"run folder {chosen[0].run_dir}", *chosen[0].lines(), sep="\n", flush=True)
    return chosen[0].config


def say(text: str) -> int:
    """Print from process 0 alone; done."""
    if process_index() == 0:
        sys.stdout.write(text)
    return 0


def command(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[a.b.c=value]...", help="Overrides, by exact path.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="JSON or YAML config of the run.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Begin a child from this step, checkpoints or run folder.")
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where to write; a folder that holds a run goes on.")] = None,
    start_at: Annotated[
        str | None, typer.Option(help="earliest or latest: where the stream begins, at a run's first start.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything that can be checked without a broker.")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved config.json.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show stack traces.")] = False,
) -> None:
    """Train a recommender on a stream, from a config or from production's checkpoint."""
    options = Options(config, checkpoint, run_dir, start_at, tuple(overrides or ()))
    code = exit_code_of(lambda: train(options, dry_run=dry_run, print_config=print_config), debug=debug)
    if code and process_count() > 1:
        exit_now(code)
    leave(code)


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(command)

if __name__ == "__main__":
    app()
