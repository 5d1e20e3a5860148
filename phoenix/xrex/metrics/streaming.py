"""Progressive metrics: every batch is scored before it is trained, and the scores of the newest examples are kept.

Only integers are kept (histograms of the logit, sums in units of 2**-32), so that adding and merging give the same bits
in any order: over batches, processes and restarts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrex.metrics.binary import entropy

BINS = 1_024
"""Bins of the logit over [-16, 16); what lies outside falls into the outermost."""
BIN_RANGE = 16.0
LOGIT_LIMIT = 64.0
"""Logits are clipped to +-64 for log loss, so that one pair costs at most 64 nats."""
FIXED_POINT = 2.0**32
MAX_WINDOWS = 200

Summary = dict[str, dict[str, float | int | None]]
"""action -> {auc, log_loss, normalized_entropy, calibration, pairs}."""


@dataclass
class Window:
    """What was predicted over some consecutive examples."""

    first: int
    """Number of the first window of `window_examples` that it covers."""
    last: int
    """Number of the last one; larger than `first` after merging."""
    examples: int
    """Examples of all processes together."""
    histogram: np.ndarray
    """int64[A, 2, BINS]: pairs by action, label and bin of the logit. An AUC of two bins counts ties half."""
    loss: list[int]
    """Per action: sum of the log losses, in 2**-32 nats. Python integers: they cannot overflow."""
    predicted: list[int]
    """Per action: sum of the probabilities, in 2**-32."""

    def absorb(self, other: "Window") -> None:
        """Add the other's pairs to this one's; which examples it covers stays as it is."""
        self.histogram += other.histogram
        self.loss = [a + b for a, b in zip(self.loss, other.loss, strict=True)]
        self.predicted = [a + b for a, b in zip(self.predicted, other.predicted, strict=True)]

    @property
    def span(self) -> tuple[int, int, int]:
        """Which examples it covers."""
        return self.first, self.last, self.examples


class ProgressiveMetrics:
    """AUC, log loss, normalized entropy and calibration of each action over the newest tenth of all examples.

    A batch belongs wholly to the window in which its first example falls. Windows depend on global numbers alone: every
    process that is told of every batch holds the same ones, whatever rows it had.
    """

    def __init__(self, actions: Sequence[str], window_examples: int):
        self.actions = tuple(actions)
        self.window_examples = window_examples
        self.windows: list[Window] = []

    def add(self, logits, labels, mask, *, examples_before: int, examples: int) -> None:
        """Count this process's pairs of one global batch.

        logits  [..., A]  of the model before it trained on them; NaN = unknown, not counted
        labels  [..., A]  0 or 1
        mask    [..., A]  false = not observed, not counted
        examples_before   examples of all processes before this batch
        examples          examples of this batch on all processes; 0: nothing happens
        """
        if not examples:
            return
        pairs = [np.asarray(x).reshape(-1, len(self.actions)) for x in (logits, labels, mask)]
        self._window_at(examples_before // self.window_examples, examples).absorb(self._count(*pairs))
        self._forget(examples_before + examples)

    def add_probabilities(self, probabilities, labels, mask, *, examples_before: int, examples: int) -> None:
        """The same for a predictor that gives probabilities; NaN = unknown, not counted."""
        p = np.asarray(probabilities, np.float64)
        with np.errstate(divide="ignore"):
            logits = np.log(p) - np.log1p(-p)
        self.add(logits, labels, mask, examples_before=examples_before, examples=examples)

    def summary(self, total_examples: int) -> Summary:
        """Metrics over the fewest newest windows that hold at least a tenth of `total_examples`.

        None are auc and normalized_entropy unless both labels occur, calibration (sum of probabilities over positives)
        without a positive, log_loss without a pair.
        """
        return self._summary(self.windows[_newest_tenth(self.windows, total_examples) :])

    def window_summary(self) -> Summary:
        """The same over the newest window that is full, or the current one where no full one is held."""
        return self._summary(self.windows[-2:-1] or self.windows[-1:])

    def newest(self) -> "ProgressiveMetrics":
        """The windows that `window_summary` looks at, shared with this object."""
        other = ProgressiveMetrics(self.actions, self.window_examples)
        other.windows = self.windows[-2:]
        return other

    def cleared(self) -> "ProgressiveMetrics":
        """The same windows with nothing counted: what all processes but one restore, so that a merge counts once."""
        other = ProgressiveMetrics(self.actions, self.window_examples)
        other.windows = [self._empty(*window.span) for window in self.windows]
        return other

    @staticmethod
    def merge(parts: Sequence["ProgressiveMetrics"]) -> "ProgressiveMetrics":
        """What one process would hold had it seen the pairs of all; ValueError if told of different batches."""
        whole = parts[0].cleared()
        for part in parts:
            if part._identity() != whole._identity():
                raise ValueError(
                    f"metrics of different batches cannot be merged: {part._identity()} and {whole._identity()}"
                )
            for mine, theirs in zip(whole.windows, part.windows, strict=True):
                mine.absorb(theirs)
        return whole

    def to_json(self) -> str:
        """One line of JSON; a histogram is [first non-zero bin, its count, ... to the last non-zero bin]."""
        windows = [
            {
                "first": w.first,
                "last": w.last,
                "examples": w.examples,
                "histogram": [[_trimmed(counts) for counts in action] for action in w.histogram],
                "loss": w.loss,
                "predicted": w.predicted,
            }
            for w in self.windows
        ]
        return json.dumps(
            {"actions": self.actions, "window_examples": self.window_examples, "windows": windows},
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, source: str | bytes | Mapping[str, Any]) -> "ProgressiveMetrics":
        """The inverse of to_json; takes the parsed object too."""
        state = source if isinstance(source, Mapping) else json.loads(source)
        metrics = cls(state["actions"], state["window_examples"])
        for w in state["windows"]:
            window = metrics._empty(w["first"], w["last"], w["examples"])
            for action, labels in enumerate(w["histogram"]):
                for label, (first, *counts) in enumerate(labels):
                    window.histogram[action, label, first : first + len(counts)] = counts
            window.loss, window.predicted = list(w["loss"]), list(w["predicted"])
            metrics.windows.append(window)
        return metrics

    def _identity(self) -> tuple:
        return self.actions, self.window_examples, [window.span for window in self.windows]

    def _empty(self, first: int, last: int, examples: int) -> Window:
        actions = len(self.actions)
        return Window(first, last, examples, np.zeros((actions, 2, BINS), np.int64), [0] * actions, [0] * actions)

    def _window_at(self, number: int, examples: int) -> Window:
        """The window of a batch, its examples counted. Batches come in order: it is the newest window or a new one."""
        if not self.windows or number > self.windows[-1].last:
            self.windows.append(self._empty(number, number, 0))
        self.windows[-1].examples += examples
        return self.windows[-1]

    def _count(self, logits_NA: np.ndarray, labels_NA: np.ndarray, mask_NA: np.ndarray) -> Window:
        """The pairs of one batch, as a window of their own."""
        counted = mask_NA.astype(bool) & ~np.isnan(logits_NA)
        logits = np.clip(np.where(counted, logits_NA, 0).astype(np.float64), -LOGIT_LIMIT, LOGIT_LIMIT)
        positive = labels_NA > 0.5
        # -log of the probability of what happened is softplus of the logit, its sign turned for a positive.
        loss = np.logaddexp(0.0, np.where(positive, -logits, logits))
        probability = 1 / (1 + np.exp(-logits))
        bins = np.clip((logits + BIN_RANGE) * (BINS / (2 * BIN_RANGE)), 0, BINS - 1).astype(np.int64)
        actions = len(self.actions)
        cell = (np.arange(actions) * 2 + positive) * BINS + bins
        histogram = np.bincount(cell[counted], minlength=actions * 2 * BINS).astype(np.int64)
        return Window(
            0, 0, 0, histogram.reshape(actions, 2, BINS), _fixed_sums(loss, counted), _fixed_sums(probability, counted)
        )

    def _forget(self, total_examples: int) -> None:
        """Drop what lies before the newest tenth: no later tenth reaches back to it. Merge beyond MAX_WINDOWS."""
        del self.windows[: _newest_tenth(self.windows, total_examples)]
        while len(self.windows) > MAX_WINDOWS:
            # The smallest adjacent pair, the older one of equals, but never the window that still grows: sizes stay
            # within a small factor of each other, so the summary's overshoot stays small.
            sizes = [a.examples + b.examples for a, b in zip(self.windows[:-2], self.windows[1:-1], strict=True)]
            i = sizes.index(min(sizes))
            older, newer = self.windows[i], self.windows.pop(i + 1)
            older.last = newer.last
            older.examples += newer.examples
            older.absorb(newer)

    def _summary(self, windows: Sequence[Window]) -> Summary:
        whole = self._empty(0, 0, 0)
        for window in windows:
            whole.absorb(window)
        return {
            action: _metrics(whole.histogram[i], whole.loss[i], whole.predicted[i])
            for i, action in enumerate(self.actions)
        }


def _newest_tenth(windows: Sequence[Window], total_examples: int) -> int:
    """Index of the first of the fewest newest windows that hold a tenth of all examples."""
    held = 0
    for i in range(len(windows) - 1, -1, -1):
        held += windows[i].examples
        if held * 10 >= total_examples:
            return i
    return 0


def _fixed_sums(values_NA: np.ndarray, counted_NA: np.ndarray) -> list[int]:
    """Per action the sum of the counted values in 2**-32, each rounded alone: integers add up alike in any order."""
    fixed = np.rint(values_NA * FIXED_POINT).astype(np.int64)
    return [int(total) for total in np.where(counted_NA, fixed, 0).sum(axis=0)]


def _metrics(histogram: np.ndarray, loss_sum: int, predicted_sum: int) -> dict[str, float | int | None]:
    """The metrics of one action from int64[2, BINS] and the two fixed-point sums."""
    negatives, positives = (counts.astype(object) for counts in histogram)  # Python integers: products cannot overflow
    num_negatives, num_positives = int(negatives.sum()), int(positives.sum())
    pairs = num_negatives + num_positives
    both = bool(num_negatives and num_positives)
    loss = loss_sum / FIXED_POINT / pairs if pairs else None
    twice_won = int((positives * (2 * np.cumsum(negatives) - negatives)).sum())
    return {
        "auc": twice_won / (2 * num_negatives * num_positives) if both else None,
        "log_loss": loss,
        "normalized_entropy": loss / entropy(num_positives / pairs) if both and loss is not None else None,
        "calibration": predicted_sum / FIXED_POINT / num_positives if num_positives else None,
        "pairs": pairs,
    }


def _trimmed(counts: np.ndarray) -> list[int]:
    """[first non-zero bin, its count, ... to the last non-zero bin]; [0] of an empty histogram."""
    used = np.flatnonzero(counts)
    return [int(used[0]), *counts[used[0] : used[-1] + 1].tolist()] if used.size else [0]
