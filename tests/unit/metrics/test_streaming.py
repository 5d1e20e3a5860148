import json
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from xrex.metrics import binary
from xrex.metrics.streaming import ProgressiveMetrics


def sigmoid(logits):
    return 1 / (1 + np.exp(-np.asarray(logits, np.float64)))


def world(seed: int, n: int, actions: int = 2):
    """Logits of a good but imperfect model, labels of a base rate near 5 %, some not observed."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(-3.5, 1.5, (n, actions))
    logits = (truth + rng.normal(0, 0.7, truth.shape)).astype(np.float32)
    labels = (rng.random(truth.shape) < sigmoid(truth)).astype(np.float32)
    return logits, labels, rng.random(truth.shape) < 0.9


def filled(metrics: ProgressiveMetrics, logits, labels, mask, batch: int) -> ProgressiveMetrics:
    for i in range(0, len(logits), batch):
        part = slice(i, i + batch)
        rows = len(logits[part])
        metrics.add(logits[part], labels[part], mask[part], examples_before=i, examples=rows)
    return metrics


@pytest.mark.parametrize("seed", range(3))
def test_a_summary_is_what_scikit_learn_says_of_the_same_pairs(seed):
    logits, labels, mask = world(seed, 50_000)
    summary = filled(ProgressiveMetrics(("like", "share"), 10**9), logits, labels, mask, 500).summary(50_000)
    for a, action in enumerate(("like", "share")):
        y, p = labels[mask[:, a], a], sigmoid(logits[mask[:, a], a])
        assert summary[action]["pairs"] == len(y)
        assert summary[action]["auc"] == pytest.approx(sk.roc_auc_score(y, p), abs=2e-4)
        assert summary[action]["log_loss"] == pytest.approx(sk.log_loss(y, p), rel=1e-8)
        assert summary[action]["calibration"] == pytest.approx(p.sum() / y.sum(), rel=1e-8)
        assert summary[action]["normalized_entropy"] == pytest.approx(binary.normalized_entropy(y, p), rel=1e-8)


def test_probabilities_of_a_reference_count_like_their_logits_and_nan_is_unknown():
    logits, labels, mask = world(0, 2_000)
    unknown = np.random.default_rng(1).random(logits.shape) < 0.3
    by_logit = ProgressiveMetrics(("a", "b"), 10**6)
    by_logit.add(logits, labels, mask & ~unknown, examples_before=0, examples=2_000)
    by_probability = ProgressiveMetrics(("a", "b"), 10**6)
    probabilities = np.where(unknown, np.nan, sigmoid(logits))
    by_probability.add_probabilities(probabilities, labels, mask, examples_before=0, examples=2_000)
    for action, ours in by_probability.summary(2_000).items():
        assert ours == pytest.approx(by_logit.summary(2_000)[action], abs=1e-5)


def test_certainty_that_proves_wrong_costs_64_nats_and_no_more():
    metrics = ProgressiveMetrics(("a",), 10)
    metrics.add_probabilities([[1.0], [0.0]], [[0.0], [1.0]], [[True], [True]], examples_before=0, examples=2)
    assert metrics.summary(2)["a"]["log_loss"] == 64.0
    metrics.add([[np.inf]], [[0.0]], [[True]], examples_before=2, examples=1)
    assert metrics.summary(3)["a"]["log_loss"] == 64.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 40), st.randoms())
def test_any_split_over_processes_merged_in_any_order_gives_the_same_bits(seed, processes, batch, order: random.Random):
    logits, labels, mask = world(seed, 300)
    whole = filled(ProgressiveMetrics(("a", "b"), 50), logits, labels, mask, batch)
    owner = np.random.default_rng(seed).integers(0, processes, 300)
    parts = [ProgressiveMetrics(("a", "b"), 50) for _ in range(processes)]
    for start in range(0, 300, batch):
        stop = min(start + batch, 300)
        for process, part in enumerate(parts):
            mine = start + np.flatnonzero(owner[start:stop] == process)
            part.add(logits[mine], labels[mine], mask[mine], examples_before=start, examples=stop - start)
    order.shuffle(parts)
    assert ProgressiveMetrics.merge(parts).to_json() == whole.to_json()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 9))
def test_a_run_restored_from_json_on_several_processes_equals_one_never_stopped(seed, stop_after):
    logits, labels, mask = world(seed, 100)
    whole = filled(ProgressiveMetrics(("a", "b"), 30), logits, labels, mask, 10)
    before = filled(ProgressiveMetrics(("a", "b"), 30), *(x[: stop_after * 10] for x in (logits, labels, mask)), 10)
    restored = ProgressiveMetrics.from_json(before.to_json())
    processes = [restored, restored.cleared()]
    for start in range(stop_after * 10, 100, 10):
        for process, rows in zip(processes, (slice(start, start + 4), slice(start + 4, start + 10)), strict=True):
            process.add(logits[rows], labels[rows], mask[rows], examples_before=start, examples=10)
    assert ProgressiveMetrics.merge(processes).to_json() == whole.to_json()


def test_json_reads_back_from_text_bytes_or_object_and_holds_integers_only():
    metrics = filled(ProgressiveMetrics(("a", "b"), 100), *world(0, 500), 50)
    text = metrics.to_json()
    for source in (text, text.encode(), json.loads(text)):
        assert ProgressiveMetrics.from_json(source).to_json() == text
    assert "." not in text


def test_a_batch_belongs_wholly_to_the_window_of_its_first_example():
    metrics, newest = ProgressiveMetrics(("a",), 100), []
    for before in (0, 60, 120, 180):  # 60 rows each; the second reaches into window 1, the fourth into window 2
        metrics.add(np.zeros((60, 1)), np.zeros((60, 1)), np.ones((60, 1)), examples_before=before, examples=60)
        newest.append(metrics.windows[-1].span)
    assert newest == [(0, 0, 60), (0, 0, 120), (1, 1, 60), (1, 1, 120)]


def test_only_the_newest_windows_that_hold_a_tenth_are_kept_and_summed():
    metrics = ProgressiveMetrics(("a",), 10)
    for window in range(100):
        logits = np.full((10, 1), window / 10)
        metrics.add(logits, np.ones((10, 1)), np.ones((10, 1)), examples_before=window * 10, examples=10)
    assert [window.first for window in metrics.windows] == list(range(90, 100))  # 10 windows of 10 = a tenth of 1,000
    assert metrics.summary(1_000)["a"]["pairs"] == 100
    newest = np.repeat(np.arange(90, 100) / 10, 10)
    assert metrics.summary(1_000)["a"]["calibration"] == pytest.approx(sigmoid(newest).mean(), rel=1e-8)
    assert metrics.window_summary()["a"]["calibration"] == pytest.approx(sigmoid(9.8), rel=1e-8)  # 99 may still grow


@pytest.mark.parametrize("largest_batch", [1, 10, 25])
def test_memory_stays_bounded_and_the_kept_windows_hold_little_more_than_a_tenth(largest_batch):
    batches = np.random.default_rng(0).integers(1, largest_batch, 30_000 // largest_batch, endpoint=True).tolist()
    metrics = ProgressiveMetrics(("a",), 3)
    total = 0
    for rows in batches:
        metrics.add(np.zeros((0, 1)), np.zeros((0, 1)), np.zeros((0, 1)), examples_before=total, examples=rows)
        total += rows
    assert 100 <= len(metrics.windows) <= 200
    held = sum(window.examples for window in metrics.windows)
    assert total / 10 <= held <= 1.05 * total / 10
    spans = [window.span for window in metrics.windows]
    assert all(a[1] < b[0] for a, b in pairwise(spans))


def test_what_is_undefined_is_none_and_a_batch_without_examples_is_none():
    metrics = ProgressiveMetrics(("a",), 10)
    nothing = {"auc": None, "log_loss": None, "normalized_entropy": None, "calibration": None, "pairs": 0}
    assert metrics.summary(0) == metrics.window_summary() == {"a": nothing}
    metrics.add(np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1)), examples_before=0, examples=0)
    assert metrics.windows == []
    metrics.add(np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1)), examples_before=0, examples=2)
    assert metrics.summary(2)["a"] == nothing | {"log_loss": pytest.approx(np.log(2)), "pairs": 2}


def test_metrics_of_different_batches_are_not_merged():
    one, other = ProgressiveMetrics(("a",), 10), ProgressiveMetrics(("a",), 10)
    one.add(np.zeros((1, 1)), np.zeros((1, 1)), np.ones((1, 1)), examples_before=0, examples=1)
    with pytest.raises(ValueError, match="different batches"):
        ProgressiveMetrics.merge([one, other])
