"""What people and tools see of a run: lines of metrics.jsonl, the progress bar, summary.json."""

import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xrex.checkpoint import layout, positions
from xrex.errors import CheckpointError, printable
from xrex.metrics.throughput import Throughput
from xrex.report.progress import ProgressBar, table
from xrex.report.prometheus import Prometheus
from xrex.report.sinks import JsonLines
from xrex.schema.batch import BadRow, Delivery
from xrex.schema.positions import TopicPositions
from xrex.train.progress import Progress
from xrex.train.start import command_line
from xrex.train.step import StepReport
from xrex.utils.metadata import Jsonable, atomic_write, config_sha256, utc_now
from xrex.utils.utils import gather_bytes, process_count, process_index

SHOWN_BAD = 20
"""Bad records that are told one by one."""
IDLE_LINE_S = 60.0
"""A run that waits for records says so this often."""
OPTIMUM = "optimum"
"""The reference whose columns hold the true probabilities of a synthetic world."""


@dataclass
class Standing:
    """Where a run stands at one step: the part of one process, or all parts added up."""

    progress: Progress
    positions: TopicPositions
    lag: dict[int, int]
    """Records behind the known end, by kafka partition."""
    newest_event_ms: int | None
    outages: int = 0
    """How often a broker was away."""

    @classmethod
    def of_all_processes(cls, mine: "Standing") -> "Standing":
        """The parts of all processes added up, the same on each; all come here."""
        if process_count() == 1:
            return mine
        part = {
            "progress": mine.progress.to_json(),
            "positions": positions.to_json({mine.positions.topic: mine.positions}),
            "lag": list(mine.lag.items()),
            "newest_event_ms": mine.newest_event_ms,
            "outages": mine.outages,
        }
        parts = [json.loads(text) for text in gather_bytes(json.dumps(part).encode())]
        topics = [positions.from_json(p["positions"])[mine.positions.topic] for p in parts]
        return cls(
            Progress.merge([Progress.from_json(p["progress"]) for p in parts]),
            positions.merge(topics)[mine.positions.topic],
            dict(sorted((partition, lag) for p in parts for partition, lag in p["lag"])),
            max((p["newest_event_ms"] for p in parts if p["newest_event_ms"] is not None), default=None),
            sum(p["outages"] for p in parts),
        )


class Reporter:
    """Collects numbers between two lines and, on process 0, writes them."""

    def __init__(
        self,
        run_dir: Path,
        *,
        log_every_steps: int,
        total_steps: int | None,
        examples_before: int,
        prometheus: Prometheus | None = None,
    ):
        """examples_before  examples that earlier starts of the run have trained: no part of this one's speed"""
        self.run_dir, self.log_every_steps = run_dir, log_every_steps
        primary = process_index() == 0
        self.sink = JsonLines(run_dir / layout.METRICS) if primary else None
        self.bar = ProgressBar(total_steps, sys.stdout) if primary else None
        self.prometheus = prometheus
        self.throughput = Throughput(time.monotonic())
        self.started, self.started_s, self.examples_before = utc_now(), time.monotonic(), examples_before
        self.loss_sum = self.loss_weight = 0.0
        self.tokens = self.slots = 0
        self.newest_event_ms: int | None = None
        self.bad_seen = 0
        self.line_s = time.monotonic()
        """When something was said last."""

    def after_step(self, delivery: Delivery, report: StepReport, waited_s: float) -> bool:
        """Count a step; whether a line is due. All processes come here at the same steps and get the same answer."""
        self.throughput.add(int(report.examples), waited_s)
        if report.faults == 0:
            self.loss_sum += float(report.loss_sum)
            self.loss_weight += float(report.loss_weight)
        self.tokens += int(report.tokens)
        self.slots += int(report.slots)
        self.newest_event_ms = max(self.newest_event_ms or 0, delivery.newest_event_ms or 0) or None
        return bool(report.examples > 0 and report.faults == 0 and report.step % self.log_every_steps == 0)

    def passed_over(self, bad: BadRow) -> None:
        """Tell the operator of a bad record, of the first SHOWN_BAD ones; summary.json and the dead letters have all."""
        self.bad_seen += 1
        if self.bad_seen <= SHOWN_BAD:
            rest = "; further ones only in dead-letters-*.jsonl" if self.bad_seen == SHOWN_BAD else ""
            layout.say_on_stderr(f"passed over: {printable(bad.reason)}{rest}")

    def note(self, text: str) -> None:
        """A line of its own, on process 0."""
        if self.bar:
            self.bar.line(text)

    def idle(self, mine: Standing) -> None:
        """Called after each step without rows: says every IDLE_LINE_S that the run waits, and for what."""
        now_s = time.monotonic()
        if self.prometheus:
            # Only what this process alone knows: of the others' partitions, and of sums, the newest line stays.
            known = _state_of_stream(mine, time.time() * 1_000)
            record = known if process_count() == 1 else {"lag": known["lag"]}
            self.prometheus.update(record, {p: at for p, at in _next_offsets(mine).items() if p in mine.lag})
        if not self.bar or now_s - self.line_s < IDLE_LINE_S:
            return
        self.line_s = now_s
        newest = "none yet"
        if self.newest_event_ms is not None:
            newest = f"{time.time() - self.newest_event_ms / 1_000:,.0f} s old"
        away = f"; a broker was away {mine.outages} times" if mine.outages else ""
        self.bar.line(f"waiting for records: {sum(mine.lag.values()):,} behind, the newest trained is {newest}{away}")

    def line(self, step: int, whole: Standing, learning_rate: float) -> None:
        """Write a line of metrics.jsonl and show it.

        whole          of all processes
        learning_rate  of the dense weights, as this step took it
        """
        rates, now_ms = self.throughput.take(time.monotonic()), time.time() * 1_000
        self.line_s = time.monotonic()
        loss = self.loss_sum / max(self.loss_weight, 1e-9)
        self.loss_sum = self.loss_weight = 0.0
        useful_share, self.tokens, self.slots = self.tokens / max(self.slots, 1), 0, 0
        if not (self.sink and self.bar):
            return
        window = whole.progress.metrics.window_summary()
        record = {
            "step": step,
            "time": utc_now(),
            "loss": loss,
            "metrics": window,
            "learning_rate": learning_rate,
            "examples_per_s": rates.examples_per_s,
            "input_wait_share": rates.input_wait_share,
            "useful_slot_share": useful_share,
            **_state_of_stream(whole, now_ms),
        }
        self.sink.append(record)
        if self.prometheus:
            self.prometheus.update(record, _next_offsets(whole))
        action, first = next(iter(window.items()))
        self.bar.update(
            step,
            {
                "loss": loss,
                f"{action} auc": first["auc"],
                "log loss": first["log_loss"],
                "examples/s": round(rates.examples_per_s),
                "waiting": f"{rates.input_wait_share:.0%}",
                "lag": sum(whole.lag.values()),
                **({"skipped": skipped} if (skipped := sum(whole.progress.skipped.values())) else {}),
            },
        )

    def finish(self, whole: Standing, *, status: str, step: int, config: Jsonable) -> dict[str, Any]:
        """Write summary.json, on process 0, and return it; the checkpoint of `step` is complete."""
        partitions = _partitions(whole.positions)
        sha256 = config_sha256(config)
        summary = summarise(whole.progress, partitions, status=status, step=step, checkpoint=step, config_sha256=sha256)
        seconds = time.monotonic() - self.started_s
        summary["times"] = {
            "started": self.started,
            "finished": utc_now(),
            "seconds": round(seconds, 3),
            "examples_per_s": round((whole.progress.examples - self.examples_before) / seconds, 1),
        }
        if self.sink:
            write_summary(self.run_dir, summary)
        return summary

    def close(self) -> None:
        """Leave the terminal as it was, and close the file; also of a run that fails."""
        if self.sink and self.bar:
            self.bar.close()
            self.sink.close()


def _state_of_stream(standing: Standing, now_ms: float) -> dict[str, Any]:
    newest_ms = standing.newest_event_ms
    return {
        "examples": standing.progress.examples,
        "lag": {str(partition): lag for partition, lag in standing.lag.items()},
        "freshness_s": None if newest_ms is None else (now_ms - newest_ms) / 1_000,
        "skipped": dict(sorted(standing.progress.skipped.items())),
        "outages": standing.outages,
    }


def _next_offsets(standing: Standing) -> dict[int, int]:
    return {partition: position.offset for partition, position in standing.positions.partitions.items()}


def summarise(
    progress: Progress,
    partitions: dict[str, Any],
    *,
    status: str,
    step: int,
    checkpoint: int | None,
    config_sha256: str,
) -> dict[str, Any]:
    """summary.json but for its times: nothing in it depends on a clock, so a killed run's equals an undisturbed one's."""
    references = {name: m.summary(progress.examples) for name, m in progress.references.items()}
    return {
        "status": status,
        "step": step,
        "examples_trained": progress.examples,
        "examples_skipped": dict(sorted(progress.skipped.items())),
        "noted": dict(sorted(progress.noted.items())),
        "metrics": progress.metrics.summary(progress.examples),
        "reference": references.pop(OPTIMUM, None),
        "baselines": references,
        "positions": partitions,
        "checkpoint": None if checkpoint is None else f"{layout.CHECKPOINTS}/{checkpoint}",
        "config_sha256": config_sha256,
    }


def write_summary(run_dir: Path, summary: dict[str, Any]) -> None:
    """summary.json, by one rename."""
    atomic_write(run_dir / layout.SUMMARY, (json.dumps(summary, indent=2, sort_keys=True) + "\n").encode())


def write_failure(run_dir: Path, config: Jsonable, error: str) -> None:
    """summary.json of a run that failed: what its newest complete step holds, since that is what is left of it."""
    steps = layout.complete_steps(run_dir / layout.CHECKPOINTS)
    sha256 = config_sha256(config)
    summary: dict[str, Any] = {"status": "failed", "step": 0, "checkpoint": None, "config_sha256": sha256}
    if steps:
        summary |= {"step": steps[-1], "checkpoint": f"{layout.CHECKPOINTS}/{steps[-1]}"}
        # The step's own files may be what the run has failed of.
        with suppress(CheckpointError, OSError, ValueError, LookupError):
            summary = _summary_of_step(run_dir / layout.CHECKPOINTS / str(steps[-1]), sha256)
    write_summary(run_dir, {**summary, "error": error, "times": {"finished": utc_now()}})


def _partitions(topic: TopicPositions) -> dict[str, Any]:
    """As in positions.json."""
    return json.loads(positions.to_json({topic.topic: topic}))["topics"][0]["partitions"]


def _summary_of_step(step_dir: Path, config_sha256: str) -> dict[str, Any]:
    topics = json.loads((step_dir / layout.POSITIONS).read_bytes())["topics"]
    return summarise(
        Progress.from_json(json.loads((step_dir / layout.PROGRESS).read_bytes())),
        topics[0]["partitions"],
        status="failed",
        step=int(step_dir.name),
        checkpoint=int(step_dir.name),
        config_sha256=config_sha256,
    )


def closing_lines(run_dir: Path, summary: dict[str, Any]) -> str:
    """What the operator reads last: the figures beside the references, where things are, what to do next."""
    branch = run_dir
    at_end = all(p["end_offset"] is not None and p["offset"] >= p["end_offset"] for p in summary["positions"].values())
    earlier = [s for s in layout.complete_steps(run_dir / layout.CHECKPOINTS) if s < summary["step"]]
    notes = ["every partition is at its fixed end: nothing is left of the stream behind this step"] if at_end else []
    if at_end and earlier:
        branch = run_dir / layout.CHECKPOINTS / str(earlier[-1])
    done = f"{summary['status']}: {summary['examples_trained']:,} examples, step {summary['step']:,}"
    return "\n".join(
        [
            f"{done}, {summary['times']['examples_per_s']:,.0f} examples/s",
            *(_metric_lines(summary) if summary["examples_trained"] else ()),
            "",
            f"run folder  {run_dir}",
            f"checkpoint  {run_dir / summary['checkpoint']}",
            *notes,
            f"go on       {command_line('--run-dir', run_dir)}",
            f"branch off  {command_line('--checkpoint', branch, 'optimizer.dense.learning_rate=3e-4')}",
        ]
    )


def _metric_lines(summary: dict[str, Any]) -> list[str]:
    action, ours = next(iter(summary["metrics"].items()))
    rows = [[f"{name} (reference)", *_figures(m[action])] for name, m in summary["baselines"].items()]
    rows.append(["this run", *_figures(ours)])
    if summary["reference"]:
        rows.append(["optimum (reference)", *_figures(summary["reference"][action])])
    return [
        "",
        f"Progressive metrics of {action!r} (scored before trained) over the newest tenth:",
        table(["", "auc", "log loss", "normalized entropy", "calibration"], rows),
        *_gap_line(summary, action),
    ]


def _figures(metrics: dict[str, Any]) -> list[Any]:
    return [metrics[name] for name in ("auc", "log_loss", "normalized_entropy", "calibration")]


def _gap_line(summary: dict[str, Any], action: str) -> list[str]:
    """Share of the way from the first baseline to the optimum."""
    if not summary["reference"] or not summary["baselines"]:
        return []
    name, baseline = next(iter(summary["baselines"].items()))
    ours, base, best = (m[action]["auc"] for m in (summary["metrics"], baseline, summary["reference"]))
    if None in (ours, base, best) or best <= base:
        return []
    return [f"gap from {name} to the optimum closed: {(ours - base) / (best - base):.0%}"]
