"""Names of the files of a run folder and of a step, and which steps are complete. Needs neither JAX nor Orbax.

    RUN_DIR/
      config.json  run.json  metrics.jsonl  journal-PROCESS.jsonl  dead-letters-PROCESS.jsonl  summary.json
      compiled/PROCESSOR/  (JAX's compilation cache; may be removed at any time)
      checkpoints/STEP/
        state/  config.json  run.json  positions.json  progress.json  checksums.json  commit_success.txt

A step is complete only when all of these are there and every file has the size that checksums.json lists for it.
A path here is a `pathlib.Path`, or for gs:// and s3:// an `etils.epath.Path`, which answers to the same calls.
"""

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from xrex.errors import CheckpointError, ConfigError, RunError

CONFIG = "config.json"
RUN = "run.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
COMPILED = "compiled"
LOCK = ".lock"

STATE = "state"
POSITIONS = "positions.json"
PROGRESS = "progress.json"
CHECKSUMS = "checksums.json"
COMMIT_MARKER = "commit_success.txt"
SMALL_FILES = (CONFIG, RUN, POSITIONS, PROGRESS)
STEP_PARTS = (STATE, CONFIG, RUN, POSITIONS, PROGRESS, CHECKSUMS, COMMIT_MARKER)

TEMPORARY_SUFFIX = ".orbax-checkpoint-tmp"
"""Ends the name of a step that is being written, or whose writer was killed."""
DELETED_SUFFIX = ".deleted"
"""Ends the name of a step that is being removed, or whose remover was killed."""
DAMAGED_SUFFIX = ".damaged"
"""Ends the name of a step whose bytes are not those that were saved: moved aside, the step before is used."""
INCOMPLETE_SUFFIX = ".incomplete"
"""Ends the name of a damaged step that was moved aside so that its number can be saved again."""

_CLIENTS = {"gs": "gcsfs", "s3": "s3fs"}
"""Scheme of a store -> the package that reaches it. TensorFlow, where it is installed, reaches both."""

Say = Callable[[str], None]
"""Takes one line for the operator."""


def journal(process_index: int) -> str:
    """Name of a process's journal in the run folder."""
    return f"journal-{process_index}.jsonl"


def dead_letters(process_index: int) -> str:
    """Name of a process's file of bad records in the run folder."""
    return f"dead-letters-{process_index}.jsonl"


def files_by_process(run_dir: Path) -> list[Path]:
    """The journals and dead letters of all processes that ever wrote some."""
    return [*run_dir.glob("journal-*.jsonl"), *run_dir.glob("dead-letters-*.jsonl")]


def say_on_stderr(line: str) -> None:
    """The usual `Say`."""
    print(line, file=sys.stderr, flush=True)


def missing_parts(step_dir: Path) -> list[str]:
    """What keeps a step from being complete, each in a few words: "no config.json"; empty when it is complete."""
    missing = [f"no {name}" for name in STEP_PARTS if not (step_dir / name).exists()]
    if not (step_dir / CHECKSUMS).exists():
        return missing
    try:
        sizes = {
            str(name): int(size) for name, size in json.loads((step_dir / CHECKSUMS).read_bytes())["files"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return [*missing, f"unreadable {CHECKSUMS}"]
    return missing + [problem for name, size in sizes.items() if (problem := _size_problem(step_dir, name, size))]


def complete_steps(checkpoints_dir: Path) -> list[int]:
    """Numbers of the complete steps, ascending; none where the folder is not there."""
    return [step for step in _numbered(checkpoints_dir) if not missing_parts(checkpoints_dir / str(step))]


def incomplete_steps(checkpoints_dir: Path) -> dict[int, list[str]]:
    """The other numbered folders, ascending, each with what it lacks."""
    lacking = {step: missing_parts(checkpoints_dir / str(step)) for step in _numbered(checkpoints_dir)}
    return {step: missing for step, missing in lacking.items() if missing}


def newest_step(checkpoints_dir: Path, say: Say) -> Path | None:
    """The newest complete step's folder; None where no step was ever committed.

    say  gets one line for each newer step that is incomplete, and one where only temporary folders are there
    Raises CheckpointError if steps are there and none is complete: a run never starts over in silence.
    """
    skipped: dict[int, list[str]] = {}
    for step in reversed(_numbered(checkpoints_dir)):
        missing = missing_parts(checkpoints_dir / str(step))
        if not missing:
            for newer, why in skipped.items():
                say(f"{checkpoints_dir / str(newer)} is incomplete ({_few(why)}): step {step} is used instead")
            return checkpoints_dir / str(step)
        skipped[step] = missing
    if skipped:
        found = "; ".join(f"{step}: {_few(why)}" for step, why in skipped.items())
        raise CheckpointError(
            f"{checkpoints_dir} has no complete step ({found}): restore one from a copy, or begin a new run folder"
        )
    if any(name.endswith(TEMPORARY_SUFFIX) for name in _names(checkpoints_dir)):
        say(f"{checkpoints_dir} holds no step, only an unfinished save: the run starts again from its first positions")
    return None


def unfinished_saves(checkpoints_dir: Path, newer_than: int) -> list[Path]:
    """Temporary folders of later steps: in a run that nobody trains, what a killed save has left."""
    found = {
        name: name.removesuffix(TEMPORARY_SUFFIX) for name in _names(checkpoints_dir) if name.endswith(TEMPORARY_SUFFIX)
    }
    return [
        checkpoints_dir / name for name, step in sorted(found.items()) if step.isdecimal() and int(step) > newer_than
    ]


def resolve(path: str | Path, say: Say = say_on_stderr) -> Path:
    """The complete step that `--checkpoint` means: a step folder, a checkpoints folder or a run folder.

    path  local, gs:// or s3://
    Raises ConfigError naming the path and what was looked for.
    """
    root, named = open_path(path), _without_credentials(path)
    try:
        if not root.is_dir():
            raise ConfigError(f"checkpoint {named}: no such folder; give a step, a checkpoints or a run folder")
        if (root / COMMIT_MARKER).exists() or (root / STATE).exists():
            return _complete_step(root)
        newest = newest_step(root / CHECKPOINTS if (root / CHECKPOINTS).is_dir() else root, say)
    except (CheckpointError, OSError) as error:
        raise ConfigError(f"checkpoint {named}: {error}") from None
    if newest is None:
        raise ConfigError(
            f"checkpoint {named}: no complete step here; looked for {COMMIT_MARKER}, for folders named by a step "
            f"(such as 1000) and for {CHECKPOINTS}/"
        )
    return newest


def open_path(path: str | Path) -> Any:
    """The path to call exists(), read_bytes() and so on upon: a resolved `Path`, or an epath for a URL.

    Raises ConfigError for a store that is none of those that can be read, or whose package is not installed, CheckpointError for
    one that does not answer or lets nobody in.
    """
    scheme, is_url, _ = str(path).partition("://")
    if not is_url:
        return Path(path).expanduser().absolute()
    named = _without_credentials(path)
    if scheme not in _CLIENTS:
        raise ConfigError(
            f"checkpoint {named}: only local paths, gs:// and s3:// can be read; copy it to a local folder"
        )
    client = _CLIENTS[scheme]
    if find_spec(client) is None and find_spec("tensorflow") is None:
        raise ConfigError(f"checkpoint {named}: {scheme}:// needs {client}: .venv/bin/pip install {client}")
    return _reached(str(path), scheme)


def _reached(path: str, scheme: str) -> Any:
    """The epath of a URL, once its store has answered: later errors are then no matter of address or credentials."""
    from etils import epath  # a tenth of a second that only a remote path should cost
    from fsspec.config import conf

    # No listing is kept, or a step that is saved later would never be seen.
    conf.setdefault(scheme, {}).setdefault("use_listings_cache", False)
    os.environ.setdefault("AWS_MAX_ATTEMPTS", "2")  # s3fs takes it five times: a silent store would cost seven minutes
    place = epath.Path(path)
    try:
        place.exists()
    except Exception as error:  # those of the stores' clients have no class in common
        reason = _without_credentials(" ".join(str(error).split()))[:300]
        raise CheckpointError(
            f"checkpoint {_without_credentials(path)}: the store gives no access: {reason}; check its address, the credentials "
            "and the network"
        ) from None
    return place


def move_damaged_aside(step_dir: Path) -> Path:
    """Rename the step, so that it is no longer found and its number can be saved again; its new path."""
    aside = step_dir.with_name(step_dir.name + DAMAGED_SUFFIX)
    if aside.exists():
        shutil.rmtree(aside)
    return step_dir.rename(aside)


@contextmanager
def in_use(step_dir: Path) -> Iterator[None]:
    """Hold a step while a run begins from it, so that the run that owns it does not remove it.

    Nothing is written: the hold is a shared lock of its config.json, which ends with the process at the latest. Where the file
    system gives no lock, there is none.
    """
    if not isinstance(step_dir, Path):
        yield  # an object store removes nothing by itself
        return
    with ExitStack() as held:
        with suppress(OSError):
            file = held.enter_context(open(step_dir / CONFIG, "rb"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def is_in_use(step_dir: Path) -> bool:
    """Whether another process holds the step with `in_use`."""
    try:
        with open(step_dir / CONFIG, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def lock_run_folder(run_dir: Path) -> TextIO:
    """Make the run folder if it is not there and hold it for this process, until the returned file is closed.

    Raises ConfigError if another process holds it, RunError if the folder cannot be made or written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = open(run_dir / LOCK, "a+")  # noqa: SIM115  held as long as the process lives
    except OSError as error:
        raise RunError(
            f"{run_dir}: the run folder cannot be written: {error.strerror}; choose another --run-dir"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigError(f"{run_dir} is in use by process {holder}: stop it, or choose another --run-dir") from None
    except OSError as error:
        raise RunError(f"{run_dir / LOCK}: this file system gives no lock: {error.strerror}") from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _without_credentials(path: str | Path) -> str:
    """The path as it may be shown: an address may hold a user and a password."""
    return re.sub(r"://[^/@]*@", "://…@", str(path))


def _complete_step(step_dir: Path) -> Path:
    if missing := missing_parts(step_dir):
        raise ConfigError(f"checkpoint {step_dir}: this step is incomplete ({_few(missing)}); choose another step")
    return step_dir


def _size_problem(step_dir: Path, name: str, size: int) -> str | None:
    path = step_dir / name
    try:
        stat: Any = path.stat()
    except FileNotFoundError:
        return f"no {name}" if name not in STEP_PARTS else None
    found = stat.st_size if isinstance(path, Path) else stat.length
    return None if found == size else f"{name} has {found} of {size} bytes"


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _numbered(folder: Path) -> list[int]:
    names = [name for name in _names(folder) if name.isdecimal() and name == str(int(name))]
    return sorted(int(name) for name in names if (folder / name).is_dir())


def _few(missing: list[str]) -> str:
    return ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
