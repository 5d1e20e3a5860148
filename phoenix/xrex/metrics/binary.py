"""Exact metrics of a binary prediction, on plain arrays; `streaming` approaches them in bounded memory."""

import numpy as np
from numpy.typing import ArrayLike

_LEAST_PROBABILITY = np.finfo(np.float64).eps
"""Probabilities are moved this far away from 0 and 1 before their logarithm is taken."""


def auc(labels: ArrayLike, scores: ArrayLike) -> float | None:
    """The chance that a positive scores above a negative, ties counting half; None unless both occur.

    labels  [n]  0 or 1
    scores  [n]  any increasing function of the probability
    """
    labels, scores = np.asarray(labels) > 0.5, np.asarray(scores)
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    # Mean rank of a group of equal scores, counted from 1.
    mean_rank = np.cumsum(sizes) - (sizes - 1) / 2
    positives = int(labels.sum())
    pairs = positives * (len(labels) - positives)
    if not pairs:
        return None
    return float((mean_rank[group][labels].sum() - positives * (positives + 1) / 2) / pairs)


def log_loss(labels: ArrayLike, probabilities: ArrayLike) -> float | None:
    """Mean of -log(probability of what happened), in nats; None of nothing."""
    labels = np.asarray(labels) > 0.5
    p = np.clip(np.asarray(probabilities, np.float64), _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    return float(-np.log(np.where(labels, p, 1 - p)).mean()) if labels.size else None


def entropy(rate: float) -> float:
    """Log loss, in nats, of always predicting `rate` where it is true; 0 at 0 and 1."""
    return float(-sum(q * np.log(q) for q in (rate, 1 - rate) if q > 0))


def normalized_entropy(labels: ArrayLike, probabilities: ArrayLike) -> float | None:
    """Log loss over the entropy of the base rate: 1 = no better than the mean label; None unless both labels occur.

    Source: He et al. 2014, Practical Lessons from Predicting Clicks on Ads at Facebook.
    """
    base = np.asarray(labels) > 0.5
    loss = log_loss(base, probabilities)
    return None if loss is None or base.all() or not base.any() else loss / entropy(float(base.mean()))


def calibration(labels: ArrayLike, probabilities: ArrayLike) -> float | None:
    """Sum of probabilities over number of positives: above 1 = predicts too much; None without a positive."""
    positives = int((np.asarray(labels) > 0.5).sum())
    return float(np.asarray(probabilities, np.float64).sum() / positives) if positives else None
