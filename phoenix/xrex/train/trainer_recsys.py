"""The trainer: `python -m xrex.train.trainer_recsys --config FILE | --checkpoint PATH | --run-dir RUN_DIR [a.b.c=value ...]`.

The same command runs on a laptop and on every host of a pod. Process 0 reads the config and decides; the others receive it.
"""

import re
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from xai_configlib.errors import shown
from xrex.checkpoint import layout
from xrex.data.log.config import TOPIC_NAME
from xrex.data.log.security import check_log
from xrex.errors import ConfigError
from xrex.report.failures import exit_code_of, invoke, leave, utf8_output
from xrex.report.prometheus import check_prometheus
from xrex.train.config import TrainerConfig
from xrex.train.launch import with_machine_settings
from xrex.train.start import Options, Plan, json_object, plan
from xrex.utils.metadata import code_version, package_versions
from xrex.utils.utils import (
    agree,
    agree_on_versions,
    exit_now,
    first_cause,
    from_process_zero,
    process_count,
    process_index,
    raise_together,
    start_distributed,
)

_CONFIG_FILENAME = layout.CONFIG


def _read_checkpoint_kafka_config(ctx: Any) -> tuple[str | None, int | None]:
    """Topic and partition count that a checkpoint's config names; (None, None) where it has no config.json.

    ctx  anything with `ctx.checkpoint.path`, the checkpoint's step folder
    The file may hold a whole config, or a dataset section alone; a field that it leaves out is None.
    Raises ConfigError if it is broken.
    """
    path = layout.open_path(ctx.checkpoint.path) / _CONFIG_FILENAME
    try:
        mapping = json_object(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}; check the path") from None
    dataset = mapping.get("dataset", mapping)
    if not isinstance(dataset, dict):
        raise ConfigError(
            f"{path}: dataset = {shown(dataset)}: expected an object with topic_name and num_kafka_partitions; "
            "restore the file, or choose another checkpoint"
        )
    topic, partitions = dataset.get("topic_name"), dataset.get("num_kafka_partitions")
    problems = []
    if "topic_name" in dataset and not (isinstance(topic, str) and re.fullmatch(TOPIC_NAME, topic)):
        problems.append(f"{path}: dataset.topic_name = {shown(topic)}: expected 1 to 249 of A-Z a-z 0-9 . _ -")
    if "num_kafka_partitions" in dataset and (type(partitions) is not int or partitions < 1):
        problems.append(f"{path}: dataset.num_kafka_partitions = {shown(partitions)}: expected an integer from 1 on")
    if problems:
        raise ConfigError("\n".join(problems))
    return topic, partitions


@first_cause()
def train(options: Options, *, dry_run: bool = False, print_config: bool = False, other_versions: bool = False) -> int:
    """A run from its command line to its exit code. Raises ConfigError or PhoenixError, with the same words everywhere."""
    start_distributed()
    agree_on_versions({"phoenix": code_version(), **package_versions()}, only_warn=other_versions)
    chosen: list[Plan] = []
    config = from_process_zero(lambda: decide(options, chosen, quiet=print_config))
    agree("config.json", config.to_json())
    if print_config:
        return say(config.to_json())
    raise_together(wrong_here(config))
    if dry_run:
        return say("dry run: the config is valid; nothing was connected to, created or changed\n")
    # JAX and the rest of the program come in only now: a wrong config is reported in the time that reading it takes.
    from xrex.train.run import run

    return run(config, chosen[0] if chosen else None, plan_again=lambda: plan(options))


def decide(options: Options, chosen: list[Plan], *, quiet: bool) -> TrainerConfig:
    """Process 0: the plan, kept in `chosen` and printed, and the config that all processes get."""
    chosen.append(plan(options))
    if not quiet:
        print(f"run folder {chosen[0].run_dir}", *chosen[0].lines(), sep="\n", flush=True)
    return chosen[0].config


def wrong_here(config: TrainerConfig) -> ConfigError | None:
    """What a valid config lacks on this machine, such as a secret."""
    try:
        check_log(config.dataset.log, config.dataset.topic_name)
        if process_index() == 0:
            check_prometheus(config.trainer.prometheus_address)
    except ConfigError as error:
        return error
    return None


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
        str | None,
        typer.Option(
            metavar="PLACE",
            help="earliest, latest, timestamp:TIME or positions:FILE: where the stream begins, at a run's first start.",
        ),
    ] = None,
    on_lost_offset: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="earliest or timestamp:TIME: where partitions go on whose saved position the log no longer holds.",
        ),
    ] = None,
    fresh: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Arrays that a child begins anew, not from the checkpoint, such as 'params/head/*'; repeatable.",
        ),
    ] = None,
    keep_unknown: Annotated[
        bool,
        typer.Option("--keep-unknown", help="Carry along the fields that a newer release wrote into the checkpoint."),
    ] = False,
    other_versions: Annotated[
        bool,
        typer.Option("--allow-other-versions", help="Only warn when processes run other code or package versions."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check what can be checked without a broker and without devices.")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved config.json.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show stack traces.")] = False,
) -> None:
    """Train a recommender on a stream, from a config or from production's checkpoint."""
    del debug  # exit_code_of looks at the command line: it must also know when this function is never reached.
    options = Options(
        config, checkpoint, run_dir, start_at, tuple(overrides or ()), keep_unknown, on_lost_offset, tuple(fresh or ())
    )
    raise typer.Exit(
        exit_code_of(lambda: train(options, dry_run=dry_run, print_config=print_config, other_versions=other_versions))
    )


def run_command_line(app: typer.Typer) -> NoReturn:
    """Run a command line and end the process with its exit code; of several processes, an error ends this one at once."""
    utf8_output()
    code = exit_code_of(lambda: invoke(app, sys.argv[1:]))
    if code and process_count() > 1:
        exit_now(code)
    leave(code)


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(command)

if __name__ == "__main__":
    with_machine_settings()
    run_command_line(app)
