"""The training loop: next, place, step, report, save, stop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from xrex.checkpoint.manager import Checkpoints
from xrex.data.prefetch import Stream
from xrex.report.sinks import JsonLines
from xrex.schema.batch import Delivery
from xrex.schema.dead_letters import DeadLetter, to_line
from xrex.schema.positions import TopicPositions
from xrex.sharding.global_batch import local_rows, place
from xrex.train.config import TrainerConfig
from xrex.train.progress import Progress
from xrex.train.reporting import Reporter, Standing
from xrex.train.state import TrainState
from xrex.train.step import StepReport
from xrex.utils.metadata import MetadataRecorder

COMPLETED, INTERRUPTED = "completed", "interrupted"


@dataclass
class Loop:
    """A run in motion: what the steps change, and the parts that were built for it."""

    config: TrainerConfig
    mesh: Mesh
    step: Callable[..., tuple[TrainState, Any, StepReport]]
    state: TrainState
    scratch: dict[str, jax.Array]
    stream: Stream
    positions: TopicPositions
    """Where this process's partitions stand: the next row after what `state` was trained on."""
    progress: Progress
    examples: int
    """Rows that all processes have trained in this run."""
    checkpoints: Checkpoints
    recorder: MetadataRecorder
    reporter: Reporter
    journal: JsonLines | None
    dead_letters: JsonLines
    saved_step: int | None = None
    """Step of the newest checkpoint of this run; None before the first."""

    def run(self, interrupted: Callable[[], bool]) -> str:
        """Train until the stream ends, trainer.max_steps is reached, or a process is told to stop; then save.

        Returns COMPLETED or INTERRUPTED, the same on every process.
        """
        if self.saved_step is None and self.current_step > 0:
            self.save()  # A child's own copy of where it began: from here on its parent may go.
        status = COMPLETED if self._steps_done(self.current_step) else None
        while status is None:
            waited_before_s = self.stream.wait_seconds
            delivery = self.stream.next(interrupted)
            waited_s = self.stream.wait_seconds - waited_before_s
            batch, signals = self._place(delivery, interrupted())
            self.state, self.scratch, report = self.step(self.state, self.scratch, batch, signals)
            report, logits = self._fetch(report)
            if report.stop > 0:
                status = INTERRUPTED
                break
            self._adopt(delivery, report, logits)
            if self.reporter.after_step(delivery, report, waited_s):
                self.reporter.line(int(report.step), self.standing(self.progress.newest()))
            status = self._status(report)
            if status is None and self._save_due():
                self.save()
        if self.saved_step != self.current_step:
            self.save()
        self.checkpoints.wait()
        return status

    @property
    def current_step(self) -> int:
        """Optimizer steps of the lineage so far."""
        return int(self.state.step)

    def standing(self, progress: Progress | None = None) -> Standing:
        """Where all processes stand together, with the whole progress or the part that is given; all come here."""
        mine = Standing(progress or self.progress, self.positions, self.stream.lag(), self.reporter.newest_event_ms)
        return Standing.of_all_processes(mine)

    def _place(self, delivery: Delivery, stop: bool):
        """The global batch, and what each process wants the others to know."""
        signals = np.zeros((len(self.mesh.local_devices), 2), np.int32)
        signals[0] = delivery.more, stop
        return place(self.mesh, (delivery.batch, signals))

    def _fetch(self, report: StepReport) -> tuple[StepReport, np.ndarray]:
        # Waiting for each step keeps at most one in flight: jax before 0.12 deadlocks on CPU with many un-awaited collectives.
        return jax.device_get(report._replace(logits=())), local_rows(report.logits)

    def _adopt(self, delivery: Delivery, report: StepReport, logits: np.ndarray) -> None:
        """Adopt positions after the step returned: a batch that was fetched but not trained must be read again."""
        self.positions = self.positions.updated(delivery.next_positions)
        self.progress.add(delivery, logits, examples_before=self.examples, examples=int(report.examples))
        self.examples += int(report.examples)
        # Without rows this is no step: what was passed over is then covered by the save of the next one.
        step = int(report.step) + (report.examples == 0)
        for bad in delivery.bad:
            self.dead_letters.append(to_line(DeadLetter(step, self.positions.topic, bad)))
            self.reporter.passed_over(bad)
        if self.journal is not None and delivery.trained:
            self.journal.append({"step": int(report.step), "trained": [list(span) for span in delivery.trained]})

    def _status(self, report: StepReport) -> str | None:
        no_more = report.examples == 0 and report.more == 0
        return COMPLETED if no_more or self._steps_done(int(report.step)) else None

    def _steps_done(self, step: int) -> bool:
        limit = self.config.trainer.max_steps
        return limit is not None and step >= limit

    def _save_due(self) -> bool:
        self.checkpoints.check()
        step = self.current_step
        return step != self.saved_step and step > 0 and step % self.config.checkpoint.save_every_steps == 0

    def save(self) -> None:
        """Start the save of this step: state, positions and progress as one commit."""
        step = self.current_step
        self.checkpoints.save(
            step,
            self.state,
            positions=self.positions,
            progress=self.progress.to_json(),
            files=self.recorder.files(),
        )
        self.saved_step = step
