"""`xrex replay`: the steps after a checkpoint once more, to find the one at which a metric went wrong."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from xai_configlib import diff
from xrex.checkpoint import layout
from xrex.errors import ConfigError
from xrex.report.failures import exit_code_of
from xrex.train.start import Options, read_checkpoint_config
from xrex.train.trainer_recsys import train
from xrex.utils.metadata import Run
from xrex.utils.utils import process_count, process_index


def command(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A step, a checkpoints or a run folder.")],
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="How many steps after the checkpoint to train again.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[a.b.c=value]...", help="Overrides, by exact path.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where to write; runs/replay-NAME-STEP-TIME unless given.")
    ] = None,
    keep_unknown: Annotated[
        bool,
        typer.Option("--keep-unknown", help="Carry along the fields that a newer release wrote into the checkpoint."),
    ] = False,
) -> None:
    """Train the N steps after a checkpoint again, as the run did, with metrics and a journal of every step.

    The replay is a child of the checkpoint: the run that it repeats is only read. While the log holds the same records,
    with the same code, packages and processes, it ends with the same arrays, bit for bit.

    xrex replay runs/ranker/checkpoints/2000 --steps 500
    """
    raise typer.Exit(exit_code_of(lambda: replay(checkpoint, steps, tuple(overrides or ()), run_dir, keep_unknown)))


def replay(checkpoint: str, steps: int, overrides: tuple[str, ...], run_dir: Path | None, keep_unknown: bool) -> int:
    """The trainer's exit code, once the replay and what came of it are printed. Raises what the trainer raises."""
    origin = layout.resolve(checkpoint)
    if not origin.name.isdecimal():
        raise ConfigError(
            f"{origin}: not a step of a run, whose folder is named by its number, such as 1000; rename it"
        )
    first = int(origin.name)
    run_dir = run_dir or _default_run_dir(origin)
    options = Options(
        # The step, not what led to it: a run that goes on may have saved another one by now.
        checkpoint=str(origin),
        run_dir=run_dir,
        overrides=(*(f"{path}={text}" for path, text in _settings(first, steps).items()), *overrides),
        keep_unknown=keep_unknown,
    )
    code = train(options)
    if process_index() == 0:
        print(*_closing_lines(origin, run_dir, first + steps, done=code == 0), sep="\n", flush=True)
    return code


def _settings(first: int, steps: int) -> dict[str, str]:
    """What a replay sets, all of it such that no weight depends on it."""
    return {
        "trainer.max_steps": str(first + steps),
        "trainer.log_every_steps": "1",
        "trainer.journal": "true",
        "checkpoint.save_every_steps": str(steps),
    }


def _default_run_dir(origin: Path) -> Path:
    # The plan reports what is wrong with the config; here only its name is wanted.
    _, config = read_checkpoint_config(origin / layout.CONFIG, keep_unknown=True, say=_nothing)
    time = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"[:-3]
    return Path("runs") / f"replay-{config.trainer.name}-{origin.name}-{time}"


def _closing_lines(origin: Path, run_dir: Path, last: int, *, done: bool) -> list[str]:
    lines = [f"metrics     {run_dir / layout.METRICS}: a line for each step"]
    if not done:
        return lines
    own = layout.open_path(run_dir) / layout.CHECKPOINTS
    reached = layout.complete_steps(own)[-1]
    if reached < last:
        lines.append(f"the stream ended at step {reached}, before step {last}")
    return [*lines, comparison(origin.parent / str(reached), own / str(reached))]


def comparison(original: Any, repeated: Path) -> str:
    """Whether a step of a replay holds the arrays that the run had there, on one line.

    original  the run's own step, which may be gone
    """
    step = repeated.name
    if not original.is_dir() or layout.missing_parts(original):
        return f"step {step}: not compared, {original} is not there (any more)"
    if process_count() > 1:
        return f"step {step}: not compared by several processes: xrex checkpoint digest {original}, and of {repeated}"
    from xrex.checkpoint.digest import digest

    ours, theirs = digest(repeated), digest(original)
    if ours == theirs:
        return f"step {step}: equal to {original}, every array bit for bit (SHA-256 {ours})"
    return (
        f"step {step}: differs from {original} (SHA-256 {ours[:12]}, there {theirs[:12]}); {_why(original, repeated)}"
    )


def _why(original: Any, repeated: Path) -> str:
    """What differs beside the arrays."""
    other = _other_environment(original, repeated) + _other_fields(original, repeated)
    if other:
        return f"different too: {', '.join(other)}"
    return "nothing else does, so the batches did: at the live edge, at an end that has moved, or in a log that changed"


def _other_environment(original: Any, repeated: Path) -> list[str]:
    """What run.json tells of the code, the packages and the machines."""
    runs = (Run.from_json((step / layout.RUN).read_bytes(), str(step / layout.RUN)) for step in (original, repeated))
    there, here = (asdict(run.environment) for run in runs)
    return [name for name in there if there[name] != here[name]]


def _other_fields(original: Any, repeated: Path) -> list[str]:
    """Fields of the config, but for those that every replay sets."""
    configs = (
        read_checkpoint_config(step / layout.CONFIG, keep_unknown=True, say=_nothing)[1]
        for step in (original, repeated)
    )
    return [difference.path for difference in diff(*configs) if difference.path not in _settings(0, 0)]


def _nothing(line: str) -> None:
    """Takes what the plan says itself."""
