import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from xrex.metrics import binary

rows = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.01, 0.2, 0.5, 0.7, 0.99])), min_size=1, max_size=60)


@given(rows)
def test_auc_is_the_share_of_pairs_won_and_half_the_ties(rows):
    scores = {label: [score for y, score in rows if y == label] for label in (0, 1)}
    won = [(p > n) + (p == n) / 2 for p in scores[1] for n in scores[0]]
    assert binary.auc(*zip(*rows, strict=True)) == (pytest.approx(np.mean(won)) if won else None)


@given(rows)
def test_log_loss_is_scikit_learns(rows):
    labels, probabilities = zip(*rows, strict=True)
    expected = sk.log_loss(labels, probabilities, labels=[0, 1])
    assert binary.log_loss(labels, probabilities) == pytest.approx(expected, rel=1e-12)


def test_always_saying_the_base_rate_has_normalized_entropy_and_calibration_one():
    labels = [0, 0, 0, 1]
    assert binary.normalized_entropy(labels, [0.25] * 4) == pytest.approx(1)
    assert binary.calibration(labels, [0.25] * 4) == 1
    assert binary.calibration(labels, [0.5] * 4) == 2


def test_what_is_undefined_is_none():
    assert binary.auc([1, 1], [0.1, 0.2]) is None
    assert binary.auc([], []) is None
    assert binary.log_loss([], []) is None
    assert binary.normalized_entropy([0, 0], [0.1, 0.2]) is None
    assert binary.calibration([0, 0], [0.1, 0.2]) is None
