"""Saves of a run: in the background, one commit a step, and never a worse set of steps on disk than before."""

import logging
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from xrex.checkpoint import arrays, layout
from xrex.checkpoint.config import CheckpointConfig
from xrex.checkpoint.handler import MergeProgress, StepHandler, StepSave
from xrex.errors import CheckpointError, RunError
from xrex.schema.positions import TopicPositions
from xrex.utils.metadata import sync_directory, write_synced


class Checkpoints:
    """The steps under RUN_DIR/checkpoints.

    Every process calls `save`, `check`, `wait` and `close` at the same steps, from its main thread. After an error of
    any of them the process must end: the others wait for it up to `config.timeout_s`.

        checkpoints.prepare()                                     # before the first step
        checkpoints.save(n, state, positions=..., progress=..., files=recorder.files())
        checkpoints.check()                                       # once a step
        checkpoints.close()
    """

    def __init__(
        self,
        directory: Path,
        config: CheckpointConfig,
        *,
        merge_progress: MergeProgress,
        on_commit: Callable[[Path], object] = lambda step_dir: None,
    ):
        """directory       RUN_DIR/checkpoints; a relative path is resolved here, once
        merge_progress  makes one progress.json of the processes' progress, in the order of process_index; called in a
                        background thread of process 0
        on_commit       gets each step's folder once it is complete and durable; called by process 0, in `wait`
        """
        self._on_commit = on_commit
        self._directory = directory.absolute()
        self._config = config
        # Orbax logs a traceback of a failed save; ours is one line, and carries Orbax's as its cause.
        logging.getLogger("absl").addFilter(_not_of_orbax)
        _let_late_failures_be()
        self._saving: int | None = None
        self._snapshot: dict[str, jax.Array] | None = None
        self._refill = jax.jit(
            lambda snapshot, state: jax.tree.map(jnp.copy, state), donate_argnums=0, keep_unused=True
        )
        self._checkpointer = ocp.AsyncCheckpointer(
            StepHandler(merge_progress),
            async_options=ocp.AsyncOptions(timeout_secs=config.timeout_s, create_directories_asynchronously=False),
        )

    def prepare(self, say: layout.Say = layout.say_on_stderr) -> None:
        """Make the folder, see that it can be written, and clear what a killed run left. Only process 0 acts.

        say  gets one line for each damaged step, which is moved aside to STEP.incomplete so that it can be saved again
        Raises RunError naming the path and the reason.
        """
        if jax.process_index():
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            probe = self._directory / f".writable-{os.getpid()}"
            write_synced(probe, b"")
            probe.unlink()
            self._clear_leftovers(say)
        except OSError as error:
            raise RunError(f"{self._directory}: the checkpoint folder cannot be written: {error.strerror}") from None

    def save(
        self, step: int, state: Any, *, positions: TopicPositions, progress: dict[str, Any], files: dict[str, bytes]
    ) -> None:
        """Start the save of a step; returns once the state is copied, so that the next update may overwrite it.

        state      pytree of jax arrays; tables sharded by rows over a device count that divides 1,024, the rest
                   replicated
        positions  this process's, after batch `step`
        progress   this process's; becomes progress.json through merge_progress
        files      config.json and run.json; process 0's bytes are written as they are
        Waits for the save before; raises CheckpointError naming the step, its path and the system's reason if that one,
        or the start of this one, failed.
        """
        named = arrays.named(state)
        self.wait()
        # A copy into buffers that stay where they are: Orbax reads them in the background, and an update of the live
        # table in the meantime still happens in place.
        fresh = jax.tree.map(jnp.copy, named) if self._snapshot is None else self._refill(self._snapshot, named)
        snapshot = self._snapshot = jax.block_until_ready(fresh)
        self._saving = step
        try:
            self._checkpointer.save(self._path(step), args=StepSave(snapshot, positions, progress, files))
        except Exception as error:
            raise self._failure(error) from error

    def check(self) -> None:
        """Raise the failure of the save in the background, if there is one. Costs nothing; call it once a step."""
        try:
            self._checkpointer.check_for_errors()
        except Exception as error:
            raise self._failure(error) from error

    def wait(self) -> None:
        """Wait until the last save is committed, by all processes, and old steps are removed; raises as `check`."""
        if self._saving is None:
            return
        try:
            self._checkpointer.wait_until_finished()
            if jax.process_index() == 0:
                # Orbax syncs neither its marker nor its rename; a commit must survive a power loss too.
                sync_directory(self._path(self._saving))
                sync_directory(self._directory)
        except Exception as error:
            raise self._failure(error) from error
        step, self._saving = self._saving, None
        if jax.process_index() == 0:
            self._on_commit(self._path(step))
            self._retain()

    def close(self) -> None:
        """Wait for the last save and release the threads."""
        self.wait()
        self._checkpointer.close()

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def _failure(self, error: Exception) -> CheckpointError:
        step, self._saving = self._saving, None
        reason = " ".join(str(error).split()) or type(error).__name__
        if len(reason) > 500:
            reason = f"{reason[:150]} … {reason[-350:]}"  # the system's own words stand at the end, behind long paths
        return CheckpointError(f"step {step} could not be saved to {self._directory / str(step)}: {reason}")

    def _retain(self) -> None:
        """Remove the complete steps that are neither among the newest, nor a multiple of keep_every, nor where a child begins."""
        every = self._config.keep_every
        for step in layout.complete_steps(self._directory)[: -self._config.keep_last]:
            if (every is None or step % every) and not layout.is_in_use(self._path(step)):
                self._remove(self._path(step))

    def _remove(self, step_dir: Path) -> None:
        try:
            # Renamed first: a kill while the files go must not leave a numbered step that lacks some.
            shutil.rmtree(step_dir.rename(step_dir.with_name(step_dir.name + layout.DELETED_SUFFIX)))
        except OSError as error:
            raise CheckpointError(f"{step_dir}: the old step could not be removed: {error.strerror}") from error

    def _clear_leftovers(self, say: layout.Say) -> None:
        for path in self._directory.iterdir():
            if path.name.endswith((layout.TEMPORARY_SUFFIX, layout.DELETED_SUFFIX)) and path.is_dir():
                shutil.rmtree(path)
        for step in layout.incomplete_steps(self._directory):
            aside = self._directory / f"{step}{layout.INCOMPLETE_SUFFIX}"
            if aside.exists():
                shutil.rmtree(aside)
            self._path(step).rename(aside)
            say(f"{self._path(step)}: moved aside to {aside.name}")


@cache  # one hook a process
def _let_late_failures_be() -> None:
    """Writes of a save that fail after the first failure: no stack trace of them, neither where they report to an event
    loop that has ended nor where that loop says that nobody asked for their errors.

    Nobody waits for them any more; the first one is the reason that is told.
    """
    logging.getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"):
            before(unraisable)

    sys.unraisablehook = hook


def _not_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname
