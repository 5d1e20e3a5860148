"""How a run begins: what the command line, a config file, a checkpoint and a run folder mean together.

Process 0 alone comes here; the others get the resulting config. Nothing is connected to, created or changed, and JAX is not
imported, so that whatever is wrong ends with exit code 2.
"""

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from xai_configlib import (
    Problem,
    Reconciliation,
    inherit,
    load_text,
    migrate,
    overridden_paths,
    provenance,
    read_overridden,
    reconcile,
)
from xai_configlib.errors import is_at_or_below, split_path
from xrex.checkpoint import layout, positions
from xrex.data import places
from xrex.errors import CheckpointError, ConfigError
from xrex.train.config import TrainerConfig
from xrex.utils.metadata import Run

EPOCH = datetime.fromtimestamp(0, UTC)
Kind = Literal["first", "child", "restart"]
MAX_CONFIG_MB = 64
"""Of 2^20 bytes."""


@dataclass(frozen=True)
class Options:
    """The command line of the trainer."""

    config: Path | None = None
    checkpoint: str | None = None
    run_dir: Path | None = None
    start_at: str | None = None
    overrides: tuple[str, ...] = ()
    keep_unknown: bool = False
    """Carry along the fields of a newer release."""
    on_lost_offset: str | None = None
    """Never part of a config: no experiment inherits a switch that loses data."""
    fresh: tuple[str, ...] = ()
    """Patterns of arrays that are not taken from the checkpoint."""


@dataclass(frozen=True)
class Plan:
    """What is going to run, decided before anything is touched."""

    kind: Kind
    config: TrainerConfig
    run_dir: Path
    restore_from: Path | None
    """Step folder with the arrays and positions to begin from; None: a fresh state."""
    earlier: Run | None
    """restart: this run so far; child: its parent."""
    checkpoint: str | None
    start_at: str | None
    provenance: Mapping[str, str]
    """Where each value comes from."""
    anew: Mapping[str, str]
    """Origin of the values that this very start gives; all others are as the parent, or the run before, had them."""
    given: Mapping[str, str]
    """Origin -> what is to be known of it: the config file as given, the version that a migration came from."""
    reconciliation: Reconciliation | None
    """Differences from the checkpoint's or the run's config."""
    on_lost_offset: str | None = None
    inherited: TrainerConfig | None = None
    """child: the checkpoint's config."""
    keep_unknown: bool = False
    fresh: tuple[str, ...] = ()
    """Patterns of arrays that a child does not take from its parent's step."""
    notes: tuple[str, ...] = ()
    """Lines for the operator."""

    def lines(self) -> list[str]:
        """The table of differences, then the notes."""
        rows = self.reconciliation.table() if self.reconciliation else []
        if self.kind == "child" and not rows:
            rows = ["no field differs from the checkpoint's config"]
        return [*rows, *self.notes]


def command_line(*words: Any) -> str:
    """The trainer with these arguments, to be copied into the shell that started this program."""
    python, here = Path(sys.executable), Path.cwd()
    python = python.relative_to(here) if python.is_relative_to(here) else python
    return shlex.join([str(python), "-m", "xrex.train.trainer_recsys", *map(str, words)])


def plan(options: Options) -> Plan:
    """Decide what to run. Raises ConfigError with every problem."""
    _check_options(options)
    if options.run_dir is not None and (options.run_dir / layout.RUN).exists():
        return plan_restart(options, options.run_dir)
    if options.checkpoint is not None:
        return plan_child(options, options.checkpoint)
    if options.config is None:
        named = f"--run-dir {options.run_dir}: no {layout.RUN} here to go on from; " if options.run_dir else ""
        raise ConfigError(f"{named}give --config FILE, --checkpoint PATH or the --run-dir of a run")
    return plan_first(options, options.config)


def plan_first(options: Options, path: Path) -> Plan:
    """A run from a config file."""
    if options.fresh:
        raise ConfigError(
            f"--fresh {options.fresh[0]}: a run without --checkpoint begins every array anew; leave it out"
        )
    mapping, config = _read_experiment(path, options.overrides)
    run_dir = options.run_dir or default_run_dir(config)
    _refuse_used(run_dir)
    _check_places(config, options.start_at)
    origins = provenance(config, file=mapping, overridden=overridden_paths(options.overrides))
    return Plan(
        "first",
        config,
        run_dir,
        restore_from=None,
        earlier=None,
        checkpoint=None,
        start_at=options.start_at,
        provenance=origins,
        anew=origins,
        given=_given(options, mapping),
        reconciliation=None,
        on_lost_offset=options.on_lost_offset,
    )


def plan_child(options: Options, checkpoint: str) -> Plan:
    """A run that begins from a checkpoint, with its config or an experiment's."""
    notes: list[str] = []
    step_dir = layout.resolve(checkpoint, notes.append)
    if not step_dir.name.isdecimal():
        raise ConfigError(f"--checkpoint {checkpoint}: a step folder is named by its number, such as 1000; rename it")
    production_file, production = read_checkpoint_config(
        step_dir / layout.CONFIG, keep_unknown=options.keep_unknown, say=notes.append
    )
    parent = Run.from_json(_read(step_dir / layout.RUN), str(step_dir / layout.RUN))
    mapping, experiment = None, None
    if options.config is not None:
        mapping, experiment = _read_experiment(options.config, options.overrides)
    experiment = experiment or _trainer_config(inherit(production, options.overrides))
    overridden = overridden_paths(options.overrides)
    judged = reconcile(production, experiment, mode="child", overridden=overridden)
    _refuse_forbidden(
        judged, f"a child must agree with its checkpoint {checkpoint}; to change it begin anew, with --config alone"
    )
    config = _trainer_config(judged.config)
    run_dir = options.run_dir or default_run_dir(config)
    _refuse_nested(run_dir, step_dir)
    _refuse_used(run_dir)
    _check_child(config, production, int(step_dir.name), options.start_at)
    origins = provenance(
        config, file=mapping, overridden=overridden, production=production, production_file=production_file
    )
    return Plan(
        "child",
        config,
        run_dir,
        restore_from=step_dir,
        earlier=parent,
        checkpoint=checkpoint,
        start_at=options.start_at,
        provenance=origins,
        anew={path: origin for path, origin in origins.items() if origin != "checkpoint"},
        given=_given(options, production_file),
        reconciliation=judged,
        on_lost_offset=options.on_lost_offset,
        inherited=production,
        keep_unknown=options.keep_unknown,
        fresh=options.fresh,
        notes=tuple(notes),
    )


def plan_restart(options: Options, run_dir: Path) -> Plan:
    """The same run goes on."""
    notes: list[str] = []
    run = Run.from_json(_read(run_dir / layout.RUN), str(run_dir / layout.RUN))
    keep_unknown = options.keep_unknown or run.keep_unknown
    before_file, before = read_checkpoint_config(
        run_dir / layout.CONFIG, keep_unknown=keep_unknown, say=notes.append if options.keep_unknown else _nothing
    )
    _check_same_origin(options, run, run_dir, notes)
    mapping, experiment = None, None
    if options.config is not None:
        mapping, experiment = _read_experiment(options.config, options.overrides)
    overridden = overridden_paths(options.overrides)
    if experiment is None:
        experiment = read_overridden(
            TrainerConfig,
            before.to_dict(),
            options.overrides,
            str(run_dir / layout.CONFIG),
            unknown="keep",
            say=_nothing,
        )
    elif run.parent is not None:
        # As at the first start: fields that follow the checkpoint do so whatever the file says.
        experiment = _trainer_config(reconcile(before, experiment, mode="child", overridden=overridden).config)
    given_paths = _paths(migrate(TrainerConfig, mapping or {}))
    judged = reconcile(before, experiment, mode="restart", overridden=overridden, given=given_paths)
    _refuse_forbidden(judged, _remedy(judged, options, run_dir))
    config = _trainer_config(judged.config)
    _check_places(config, None)
    checkpoints = layout.open_path(run_dir) / layout.CHECKPOINTS
    restore_from = layout.newest_step(checkpoints, notes.append)
    if restore_from is not None:
        for save in layout.unfinished_saves(checkpoints, newer_than=int(restore_from.name)):
            notes.append(f"{save} is an unfinished save: step {restore_from.name} is used instead")
    if restore_from is None and run.parent is not None:
        restore_from = layout.resolve(run.parent.step_path, notes.append)
    origins = provenance(config, file=mapping, overridden=overridden)
    anew = _by_this_release(run, before, before_file) | _changed(judged, origins)
    return Plan(
        "restart",
        config,
        run_dir,
        restore_from=restore_from,
        earlier=run,
        checkpoint=options.checkpoint,
        start_at=run.start_at,
        provenance={path: origin for path, origin in (run.provenance | anew).items() if path in origins},
        anew=anew,
        given=_given(options, before_file),
        reconciliation=judged,
        on_lost_offset=options.on_lost_offset,
        keep_unknown=keep_unknown,
        fresh=run.fresh,
        notes=tuple(notes),
    )


def default_run_dir(config: TrainerConfig) -> Path:
    """runs/NAME-UTCTIME, to the millisecond: a sweep starts several children at once."""
    return Path("runs") / f"{config.trainer.name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"[:-3]


def _read_experiment(path: Path, overrides: tuple[str, ...]) -> tuple[Mapping[str, Any], TrainerConfig]:
    """The mapping of a config file and, with the overrides, the config that it makes."""
    mapping = load_text(_read(path), str(path))
    return mapping, read_overridden(TrainerConfig, mapping, overrides, str(path))


def read_checkpoint_config(
    path: Path, *, keep_unknown: bool, say: Callable[[str], object]
) -> tuple[Mapping[str, Any], TrainerConfig]:
    """The mapping of a checkpoint's or a run's config.json as it is written, and the config that it makes.

    keep_unknown  carry along the fields that a newer release wrote; `say` gets a line for each
    Raises ConfigError with every problem.
    """
    mapping = json_object(_read(path), str(path))
    try:
        return mapping, TrainerConfig.from_json(
            mapping, source=str(path), unknown="keep" if keep_unknown else "error", say=say
        )
    except ConfigError as wrong:
        if keep_unknown or not any(problem.expected == "unknown field" for problem in wrong.problems):
            raise
        hint = Problem(str(path), "", None, "did a newer release write it? --keep-unknown carries such fields along")
        raise ConfigError([*wrong.problems, hint]) from None


def json_object(text: bytes, source: str) -> dict[str, Any]:
    """A config.json as a mapping. Unlike a file that people write it is never YAML. Raises ConfigError."""
    if not text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        raise ConfigError(f"{source}: not a JSON object; restore the file, or choose another checkpoint")
    return load_text(text, source)


def _trainer_config(config: Any) -> TrainerConfig:
    assert isinstance(config, TrainerConfig)
    return config


def _read(path: Path) -> bytes:
    try:
        # A path of an object store has no st_size.
        size_mb = path.stat().st_size / 2**20 if isinstance(path, Path) else 0
        if size_mb > MAX_CONFIG_MB:
            raise ConfigError(f"{path}: {size_mb:,.1f} MB, more than {MAX_CONFIG_MB} MB; is this a config?")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}; check the path") from None


def _paths(mapping: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted paths of the leaves that a file names."""
    found = []
    for key, value in mapping.items():
        path = f"{prefix}{key}"
        found += _paths(value, f"{path}.") if isinstance(value, Mapping) else [path]
    return found


def _given(options: Options, file: Mapping[str, Any]) -> dict[str, str]:
    """Origin -> what run.json shall tell of it."""
    version = file.get("__version")
    return {"file": str(options.config or ""), "migration": "" if version is None else f"version {version}"}


def _by_this_release(run: Run, before: TrainerConfig, before_file: Mapping[str, Any]) -> dict[str, str]:
    """The origins of what a restart reads otherwise than it was written: migrated, or a new field's default."""
    origins = provenance(before, production=before, production_file=before_file)
    return {
        path: origin
        for path, origin in origins.items()
        if origin == "migration" or (origin == "default" and path not in run.provenance)
    }


def _nothing(line: str) -> None:
    """Takes what has been said at an earlier start."""


def _changed(judged: Reconciliation, origins: Mapping[str, str]) -> dict[str, str]:
    """The origins of what a restart changes."""
    changed = [split_path(row.path) for row in judged.rows if not row.takes_production]
    return {path: origin for path, origin in origins.items() if is_at_or_below(split_path(path), changed)}


def _refuse_forbidden(judged: Reconciliation, fix: str) -> None:
    if judged.forbidden:
        names = ", ".join(row.path for row in judged.forbidden)
        raise ConfigError("\n".join([*judged.table(), f"{names} may not differ: {fix}"]))


def _remedy(judged: Reconciliation, options: Options, run_dir: Path) -> str:
    """What to do about differences that a restart may not have."""
    if any(row.policy == "must_match" for row in judged.forbidden):
        return f"{run_dir} was trained with the other value; to change it begin anew, with --config and a new --run-dir"
    return f"a restart goes on unchanged; to change it begin a child:\n{_child_command(options, run_dir, judged)}"


def _child_command(options: Options, run_dir: Path, judged: Reconciliation) -> str:
    words = ["--checkpoint", str(run_dir)]
    if options.config is not None:
        words += ["--config", str(options.config)]
    if any(row.path == "dataset.topic_name" for row in judged.forbidden):
        words += ["--start-at", "earliest"]
    return command_line(*words, *options.overrides)


def _check_options(options: Options) -> None:
    """What is wrong whatever the run is."""
    if options.checkpoint is not None and re.search(r"://[^/@]*@", options.checkpoint):
        raise ConfigError("--checkpoint: the address holds credentials; give them to the storage client's own settings")
    places.start_at(options.start_at)
    places.on_lost_offset(options.on_lost_offset)
    if options.run_dir is not None and (options.run_dir / layout.STATE).is_dir():
        raise ConfigError(
            f"--run-dir {options.run_dir}: a step of a run; name its run folder, or give it to --checkpoint"
        )


def _refuse_used(run_dir: Path) -> None:
    if (run_dir / layout.CHECKPOINTS).is_dir():
        raise ConfigError(
            f"--run-dir {run_dir}: holds checkpoints but no {layout.RUN}; choose another and give this one to --checkpoint"
        )


def _refuse_nested(run_dir: Path, step_dir: Any) -> None:
    """A child writes nothing into the folder that it begins from: the run folder of the step, or the step alone."""
    if not isinstance(step_dir, Path):
        return  # An object store holds no local folder.
    parent = step_dir.parent.parent if step_dir.parent.name == layout.CHECKPOINTS else step_dir
    ours, theirs = run_dir.resolve(), parent.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise ConfigError(
            f"--run-dir {run_dir}: must not be, contain or lie in {parent}, where the child begins; choose another"
        )


def _check_child(config: TrainerConfig, production: TrainerConfig, step: int, start_at: str | None) -> None:
    problems, limit = [], config.trainer.max_steps
    if limit is not None and step >= limit:
        problems.append(
            f"trainer.max_steps = {limit}: the checkpoint is at step {step} already; raise it, or trainer.max_steps=null"
        )
    ours, theirs = config.dataset.topic_name, production.dataset.topic_name
    if ours != theirs and start_at is None:
        problems.append(
            f"dataset.topic_name = {ours!r}: the checkpoint's positions are of {theirs!r}; say where to begin: "
            "--start-at earliest"
        )
    before = {table.name: table for table in production.dataset.tables}
    for index, table in enumerate(config.dataset.tables):
        if table.name in before and (why := table.cannot_continue(before[table.name])):
            problems.append(
                f"dataset.tables[{index}].num_embeddings = {table.num_embeddings}: table {table.name!r} cannot change its "
                f"rows: {why}; keep {before[table.name].num_embeddings}, or begin anew with --config alone"
            )
    if problems:
        raise ConfigError("\n".join(problems))
    _check_places(config, start_at)


def _check_places(config: TrainerConfig, start_at: str | None) -> None:
    """Where a first start shall begin and end can be found at once."""
    time, topic, place = config.dataset.stop_at_timestamp, config.dataset.topic_name, places.start_at(start_at)
    # Ends are offsets, found once: what is still to come cannot be among them.
    if time is not None and not EPOCH <= time <= datetime.now(UTC):
        raise ConfigError(
            f"dataset.stop_at_timestamp = {time.isoformat()}: lies in the future, or before 1970; give a time that has passed"
        )
    if place is not None and place.kind == "positions":
        fix = f"give a positions.json of a run that read {topic}"
        try:
            held = positions.from_json(_read(place.file), str(place.file))
        except CheckpointError as error:
            raise ConfigError(f"--start-at = {start_at!r}: {error}; {fix}") from None
        if topic not in held:
            topics = ", ".join(held) or "none"
            raise ConfigError(f"--start-at = {start_at!r}: holds no topic '{topic}', only {topics}; {fix}")


def _check_same_origin(options: Options, run: Run, run_dir: Path, notes: list[str]) -> None:
    given = run.parent.checkpoint if run.parent else None
    if options.checkpoint is not None and options.checkpoint != given:
        raise ConfigError(
            f"--checkpoint {options.checkpoint}: {run_dir} began from {given or 'no checkpoint'}; "
            "leave it out to go on, or choose another --run-dir"
        )
    if options.fresh and options.fresh != run.fresh:
        words = [word for pattern in options.fresh for word in ("--fresh", pattern)]
        raise ConfigError(
            f"--fresh {options.fresh[0]}: acts at a run's first start only; leave it out to go on, or begin a child:\n"
            f"{command_line('--checkpoint', run_dir, *words, *options.overrides)}"
        )
    if options.start_at is None:
        return
    if options.start_at != run.start_at:
        words = ["--checkpoint", str(run_dir), "--start-at", options.start_at, *options.overrides]
        raise ConfigError(
            f"--start-at {options.start_at}: acts at a run's first start only, {run_dir} has its own positions; "
            f"leave it out to go on, or begin a child:\n{command_line(*words)}"
        )
    notes.append(f"--start-at {options.start_at}: {run_dir} has begun already, its own positions are used")
