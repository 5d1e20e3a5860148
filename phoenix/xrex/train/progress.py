"""What a run has done so far, kept in progress.json: sums of integers, so that parts of processes add up in any order."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xrex.errors import CheckpointError
from xrex.metrics.streaming import ProgressiveMetrics
from xrex.schema.batch import Delivery

NOT_FINITE = "not_finite"
"""Reason under which rows are counted whose batch gave a loss or gradients that are not finite."""


@dataclass
class Progress:
    """The part of one process: rows, skips and metrics of the records that it trained itself."""

    metrics: ProgressiveMetrics
    references: dict[str, ProgressiveMetrics]
    """Other predictors over the same pairs, by name."""
    examples: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Records passed over, by reason."""
    noted: Counter[str] = field(default_factory=Counter)
    """What was remarkable about trained records, by `kind.name`."""

    @classmethod
    def start(cls, actions: tuple[str, ...], references: tuple[str, ...], window_examples: int) -> "Progress":
        """Nothing done yet."""
        fresh = ProgressiveMetrics(actions, window_examples)
        return cls(fresh, {name: fresh.cleared() for name in references})

    def cleared(self) -> "Progress":
        """The same windows with nothing counted: what every process but one restores, so that a sum counts once."""
        return Progress(self.metrics.cleared(), {name: m.cleared() for name, m in self.references.items()})

    def newest(self) -> "Progress":
        """What a line of metrics needs: the counts, and of the metrics the newest windows, without references."""
        return Progress(self.metrics.newest(), {}, self.examples, self.skipped, self.noted)

    def add(self, delivery: Delivery, logits: np.ndarray, *, examples_before: int, examples: int) -> None:
        """Count a trained delivery. logits float32[B, C, A] are from the weights before its step; `examples_before` and
        `examples` count the rows of all processes before and in the step, so that windows are cut alike everywhere."""
        self.examples += delivery.rows
        self.skipped.update(delivery.skipped)
        self.noted.update(delivery.noted)
        labels, mask = delivery.batch.labels, delivery.batch.label_mask & (delivery.batch.weight > 0)[:, None, None]
        window = {"examples_before": examples_before, "examples": examples}
        self.metrics.add(logits, labels, mask, **window)
        unknown = np.full_like(labels, np.nan)
        for name, reference in self.references.items():
            # Also without rows of its own a process is told of every batch: all must cut the same windows.
            reference.add_probabilities(delivery.references.get(name, unknown), labels, mask, **window)

    def pass_over(self, delivery: Delivery) -> None:
        """Count a delivery whose step was not applied, since its loss or gradients are not finite: its logits mean nothing."""
        self.skipped.update(delivery.skipped)
        self.skipped[NOT_FINITE] += delivery.rows
        self.noted.update(delivery.noted)

    def to_json(self) -> dict[str, Any]:
        """As it stands in progress.json."""
        return {
            "version": 1,
            "examples": self.examples,
            "skipped": dict(sorted(self.skipped.items())),
            "noted": dict(sorted(self.noted.items())),
            "metrics": json.loads(self.metrics.to_json()),
            "references": {name: json.loads(m.to_json()) for name, m in sorted(self.references.items())},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], source: str = "progress.json") -> "Progress":
        """Inverse of to_json. Raises CheckpointError, naming the source, where the value is none of its results."""
        try:
            return cls(
                ProgressiveMetrics.from_json(value["metrics"]),
                {name: ProgressiveMetrics.from_json(m) for name, m in value["references"].items()},
                value["examples"],
                Counter(value["skipped"]),
                Counter(value["noted"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"{source}: not what a run writes ({type(error).__name__}: {error}): resume from another step"
            ) from error

    @classmethod
    def merge(cls, parts: "list[Progress]") -> "Progress":
        """The sum over processes."""
        return cls(
            ProgressiveMetrics.merge([p.metrics for p in parts]),
            {n: ProgressiveMetrics.merge([p.references[n] for p in parts]) for n in parts[0].references},
            sum(p.examples for p in parts),
            sum((p.skipped for p in parts), Counter()),
            sum((p.noted for p in parts), Counter()),
        )


def merge_json(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """`Progress.merge` on what to_json gave."""
    return Progress.merge([Progress.from_json(p) for p in parts]).to_json()
