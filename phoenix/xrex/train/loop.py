"""The training loop: next, place, step, report, save, stop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from xrex.checkpoint import layout
from xrex.checkpoint.manager import Checkpoints
from xrex.data.prefetch import Stream
from xrex.errors import RunError
from xrex.optim.dense import learning_rate_taken
from xrex.report.sinks import JsonLines
from xrex.schema.batch import Delivery, Span
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


def is_faulty(report: StepReport) -> bool:
    """Whether the step was not applied because of its numbers."""
    return bool(report.examples > 0 and report.faults > 0)


def _places(spans: tuple[Span, ...]) -> str:
    """Where rows come from, for people: the first few messages."""
    shown = [
        f"partition {s.kafka_partition} offset {s.offset} rows {s.first_row}-{s.first_row + s.rows - 1}" for s in spans
    ]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more messages" if len(shown) > 3 else "") or "no rows here"


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
    faulty_batches: int = 0
    """Batches in a row whose loss or gradients were not finite."""
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
                self.reporter.line(int(report.step), self.standing(self.progress.newest()), self.learning_rate)
            elif report.examples == 0:
                self.reporter.idle(self._mine(self.progress))
            self._note_new_partitions()
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

    @property
    def learning_rate(self) -> float:
        """Of the dense weights, as the newest step took it."""
        return learning_rate_taken(self.config.optimizer.dense, self.state.dense_optimizer)

    def standing(self, progress: Progress | None = None) -> Standing:
        """Where all processes stand together, with the whole progress or the part that is given; all come here."""
        return Standing.of_all_processes(self._mine(progress or self.progress))

    def _mine(self, progress: Progress) -> Standing:
        lag, newest_event_ms = self.stream.lag(), self.reporter.newest_event_ms
        return Standing(progress, self.positions, lag, newest_event_ms, self.stream.outages)

    def _place(self, delivery: Delivery, stop: bool):
        """The global batch, and what each process wants the others to know."""
        signals = np.zeros((len(self.mesh.local_devices), 2), np.int32)
        signals[0] = delivery.more, stop
        return place(self.mesh, (delivery.batch, signals))

    def _fetch(self, report: StepReport) -> tuple[StepReport, np.ndarray]:
        # Waiting for each step keeps at most one in flight: jax before 0.12 deadlocks on CPU with many un-awaited collectives.
        for number in report:
            number.copy_to_host_async()  # from an accelerator all at once, not one after the other
        numbers = StepReport(*map(np.asarray, report[:-1]), logits=())
        return numbers, local_rows(report.logits)

    def _adopt(self, delivery: Delivery, report: StepReport, logits: np.ndarray) -> None:
        """Adopt positions after the step returned: a batch that was fetched but not trained must be read again."""
        self.positions = self.positions.updated(delivery.next_positions)
        if is_faulty(report):
            self._pass_over(delivery, report)
        else:
            self._count(delivery, report, logits)
        # Where nothing was applied it is no step: the next save covers it, of this step if that is not saved yet.
        step = int(report.step)
        if report.examples == 0 or is_faulty(report):
            step = max(step, 0 if self.saved_step is None else self.saved_step + 1)
        for bad in delivery.bad:
            self.dead_letters.append(to_line(DeadLetter(step, self.positions.topic, bad)))
            self.reporter.passed_over(bad)

    def _count(self, delivery: Delivery, report: StepReport, logits: np.ndarray) -> None:
        self.progress.add(delivery, logits, examples_before=self.examples, examples=int(report.examples))
        self.examples += int(report.examples)
        self.faulty_batches = self.faulty_batches if report.examples == 0 else 0
        if self.journal is not None and delivery.trained:
            self.journal.append({"step": int(report.step), "trained": [list(span) for span in delivery.trained]})

    def _pass_over(self, delivery: Delivery, report: StepReport) -> None:
        """A loss or gradient that is not finite: the batch has changed nothing and is not trained again."""
        self.progress.pass_over(delivery)
        self.faulty_batches += 1
        limit = self.config.optimizer.max_faulty_batches
        what = f"behind step {int(report.step)}: loss or gradients are not finite: {_places(delivery.trained)}"
        if self.faulty_batches > limit:
            raise RunError(
                f"{what}; {limit} batches in a row were passed over before (optimizer.max_faulty_batches): lower the "
                "learning rates, or look at these rows: xrex data inspect"
            )
        if delivery.trained:  # each process tells of its own rows
            layout.say_on_stderr(f"passed over a batch {what}")

    def _note_new_partitions(self) -> None:
        if found := self.stream.new_partitions():
            read = len(self.positions.partitions)
            self.reporter.note(
                f"topic '{self.positions.topic}' has {found} partitions now, {read} are read: "
                "stop the run and start it again to read the new ones too"
            )

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
