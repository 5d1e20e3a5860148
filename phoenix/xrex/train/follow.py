"""Following production: is its newest config still the one that a run inherited?"""

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xai_configlib import Difference, diff
from xrex.checkpoint import layout
from xrex.errors import CheckpointError, ConfigError
from xrex.train.config import TrainerConfig
from xrex.train.start import read_checkpoint_config
from xrex.utils.metadata import Run

FAILED_LOOKS = 5
"""Looks in a row that may fail, since retention removes steps while we read, before the watch gives up."""


@dataclass(frozen=True)
class Look:
    """What was found at one look."""

    step_dir: Path
    """Production's newest complete step."""
    differences: tuple[Difference, ...]
    """Inherited -> production now; without `own` fields, which nobody inherits."""

    def in_words(self) -> str:
        """For the operator."""
        return f"{len(self.differences)} of the inherited values differ" if self.differences else "as inherited"


def inherited_config(run: Run, source: str, production: str) -> TrainerConfig:
    """The config of the checkpoint that the run began from, as run.json keeps it. Raises ConfigError without one.

    production  what it is to be compared with, for the command that an error names
    """
    if run.parent is None:
        raise ConfigError(
            f"{source}: this run began from no checkpoint: it inherited nothing to compare with; "
            "name a run begun with --checkpoint"
        )
    if not run.parent.config:
        command = shlex.join(["xrex", "config", "diff", run.parent.step_path, production])
        raise ConfigError(
            f"{source}: written by a release that did not keep the inherited config; compare by hand: {command}"
        )
    # What is unknown in it was kept when the run began.
    return TrainerConfig.from_json(run.parent.config, source=source, unknown="keep", say=lambda line: None)


def drift(
    inherited: TrainerConfig,
    run: Run,
    production: str,
    *,
    every_s: float,
    keep_unknown: bool,
    say: layout.Say,
) -> Iterator[Look]:
    """A look at production's newest complete step at once, then one whenever it has a newer one, for ever.

    production  its checkpoints, run or step folder
    every_s     seconds between two looks
    say         gets a line for each new step, and one if production is another run than the one inherited from
    Raises ConfigError if the first look fails, or FAILED_LOOKS in a row.
    """
    seen: Path | None = None
    failed = 0
    while True:
        try:
            step_dir = layout.resolve(production, say)
            if step_dir != seen:
                if seen is None and (another := _another_run(step_dir, run)):
                    say(f"{production}: {another}")
                look = _look(inherited, step_dir, keep_unknown, say)
                say(f"{production}: step {step_dir.name}: {look.in_words()}")
                yield look
                seen = step_dir
            failed = 0
        except (ConfigError, CheckpointError, OSError) as error:
            failed += 1
            if seen is None or failed == FAILED_LOOKS:
                raise
            say(f"{error}; looking again in {every_s:g} s")
        time.sleep(every_s)


def _look(inherited: TrainerConfig, step_dir: Path, keep_unknown: bool, say: layout.Say) -> Look:
    _, config = read_checkpoint_config(step_dir / layout.CONFIG, keep_unknown=keep_unknown, say=say)
    return Look(step_dir, tuple(found for found in diff(inherited, config) if found.policy != "own"))


def _another_run(step_dir: Path, run: Run) -> str:
    """What is to be said if production is another run than the one inherited from; else empty."""
    theirs = Run.from_json((step_dir / layout.RUN).read_bytes(), str(step_dir / layout.RUN))
    if run.parent is None or theirs.run_id == run.parent.run_id:
        return ""
    return f"of run {theirs.run_id[:8]}; {run.name} began from run {run.parent.run_id[:8]}"
