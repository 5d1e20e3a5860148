import json

import numpy as np
import pytest

from small_model import config, random_batch
from xrex.errors import CheckpointError
from xrex.schema.batch import Delivery
from xrex.train.progress import Progress, merge_json

CONFIG = config()


def deliveries(count=6):
    """Deliveries of 6 real rows and 2 rows of padding, with the probabilities of a reference."""
    for seed in range(count):
        batch = random_batch(CONFIG, seed)
        batch.weight[6:] = 0
        yield Delivery(
            batch=batch,
            rows=6,
            next_positions={},
            trained=(),
            more=True,
            references={"optimum": np.random.default_rng(seed).uniform(0.01, 0.99, (8, 3, 2)).astype(np.float32)},
            skipped={"tombstone": seed % 2},
            noted={"oov.item": 1},
        )


def logits_of(delivery):
    return np.random.default_rng(int(delivery.batch.history_length.sum())).normal(size=(8, 3, 2)).astype(np.float32)


def after(given, window_examples=10):
    progress = Progress.start(CONFIG.dataset.actions, ("optimum",), window_examples)
    for i, delivery in enumerate(given):
        progress.add(delivery, logits_of(delivery), examples_before=6 * i, examples=6)
    return progress


def test_only_real_rows_and_observed_labels_are_counted():
    one = next(deliveries(1))
    batch, logits = one.batch, logits_of(one)
    progress = after([one])
    counted = batch.label_mask[:6, :, 0]
    clicks, p = batch.labels[:6, :, 0][counted], 1 / (1 + np.exp(-logits[:6, :, 0][counted].astype(float)))
    click = progress.metrics.summary(6)["click"]
    assert progress.examples == 6
    assert click["pairs"] == counted.sum()
    assert click["log_loss"] == pytest.approx(-np.log(np.where(clicks > 0, p, 1 - p)).mean(), rel=1e-6)
    assert progress.references["optimum"].summary(6)["click"]["pairs"] == counted.sum()


def test_skips_and_notes_add_up():
    progress = after(deliveries(6))
    assert progress.skipped == {"tombstone": 3}
    assert progress.noted == {"oov.item": 6}
    assert progress.examples == 36


def test_what_comes_back_from_json_goes_on_as_if_it_had_never_left():
    given = list(deliveries(6))
    whole, restored = after(given), Progress.from_json(json.loads(json.dumps(after(given[:3]).to_json())))
    for i, delivery in enumerate(given[3:], start=3):
        restored.add(delivery, logits_of(delivery), examples_before=6 * i, examples=6)
    assert restored.to_json() == whole.to_json()


def test_processes_that_share_the_rows_add_up_to_one_that_had_them_all():
    whole = Progress.start(CONFIG.dataset.actions, ("optimum",), 20)
    parts = [whole.cleared(), whole.cleared()]
    for i, delivery in enumerate(deliveries(6)):
        logits, step = logits_of(delivery), {"examples_before": 6 * i, "examples": 6}
        whole.add(delivery, logits, **step)
        for half, part in zip((slice(0, 3), slice(3, 8)), parts, strict=True):
            shared = Delivery(
                batch=delivery.batch._replace(
                    **{name: getattr(delivery.batch, name)[half] for name in ("labels", "label_mask", "weight")}
                ),
                rows=3,
                next_positions={},
                trained=(),
                more=True,
                references={"optimum": delivery.references["optimum"][half]},
                skipped=delivery.skipped if half.start == 0 else {},
                noted=delivery.noted if half.start == 0 else {},
            )
            part.add(shared, logits[half], **step)
    assert merge_json([part.to_json() for part in parts]) == whole.to_json()


def test_a_cleared_part_adds_nothing():
    progress = after(deliveries(3))
    assert Progress.merge([progress, progress.cleared()]).to_json() == progress.to_json()


def test_a_broken_progress_is_refused_with_its_source():
    with pytest.raises(CheckpointError, match=r"RUN/progress\.json: not what a run writes"):
        Progress.from_json({"version": 1, "examples": 3}, "RUN/progress.json")
