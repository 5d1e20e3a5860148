"""The synthetic world: the same for ever by its seed, and true to the probabilities it states."""

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from xrex.data import synthetic
from xrex.data.baseline import online_logistic_regression, synthetic_fields
from xrex.data.synthetic import ACTIONS, START_MS, World


@pytest.fixture(scope="module")
def world_0():
    return synthetic.events(World(seed=0))


def test_the_default_world_is_fixed(world_0):
    """Golden values of world 0, taste 0.4, intent 7."""
    ints = ("user", "item", "category", "position", *ACTIONS)
    sums = (601_883_590, 312_839_221, 1_121_459, 1_347_399, 53_846, 15_235, 6_134, 30_060, 8_117)
    assert len(world_0) == 300_000
    assert [int(world_0[name].to_numpy().sum()) for name in ints] == list(sums)
    assert [world_0[name][0].as_py() for name in ints] == [85, 1208, 3, 2, 0, 0, 0, 0, 0]
    assert [world_0[name][-1].as_py() for name in ints] == [3241, 1181, 1, 8, 0, 0, 0, 0, 0]
    assert world_0["event_time_ms"][-1].as_py() == START_MS + 2_587_680_000
    optimum = [world_0[f"reference_optimum_{action}"].to_numpy() for action in ACTIONS]
    first = [
        0.018677736498023338,
        0.004573389740361758,
        0.0001989960659511082,
        0.011345708898545654,
        0.009272750125567183,
    ]
    np.testing.assert_allclose([p[0] for p in optimum], first, rtol=1e-9)
    np.testing.assert_allclose(
        [p.sum() for p in optimum], [54018.534370, 15274.493320, 6011.164897, 30206.042199, 8211.799477], rtol=1e-6
    )


def test_fewer_examples_are_the_first_ones_and_more_take_more_slices(world_0):
    assert synthetic.events(World(seed=0), 1_234).equals(world_0.slice(0, 1_234))
    small = World(users=50, items=20, slices=4, users_per_slice=10)
    assert len(synthetic.events(small)) == 40
    longer = synthetic.events(small, 95)
    assert len(longer) == 95
    assert len(set(longer["event_time_ms"].to_pylist())) == 10


def test_labels_come_true_as_often_as_their_probabilities_say(world_0):
    for action in ACTIONS:
        label, p = world_0[action].to_numpy(), world_0[f"reference_optimum_{action}"].to_numpy()
        assert abs(label.sum() - p.sum()) < 4 * np.sqrt((p * (1 - p)).sum())


def test_a_slice_shows_one_item_to_each_of_distinct_users(world_0):
    slice_7 = world_0.slice(7 * 500, 500)
    assert len(set(slice_7["event_time_ms"].to_pylist())) == 1
    assert len(set(slice_7["user"].to_pylist())) == 500
    click = world_0["click"].to_numpy()
    assert not any((world_0[action].to_numpy() > click).any() for action in ("like", "share", "long_view"))


def test_online_lr_beats_a_constant_and_stays_below_the_optimum(world_0):
    prediction = online_logistic_regression(synthetic_fields(world_0), world_0["click"].to_numpy())
    click, optimum = (world_0[name].to_numpy()[-30_000:] for name in ("click", "reference_optimum_click"))
    lr = prediction[-30_000:]
    assert roc_auc_score(click, lr) == pytest.approx(0.7235, abs=1e-3)
    assert roc_auc_score(click, optimum) == pytest.approx(0.8477, abs=1e-3)
    assert log_loss(click, optimum) < log_loss(click, lr) < log_loss(click, np.full(30_000, click.mean()))


def test_online_lr_predicts_before_it_learns():
    fields, labels = [np.array([0, 0, 0, 0])], np.array([1, 1, 0, 0])
    prediction = online_logistic_regression(fields, labels, chunk=2)
    assert prediction[:2].tolist() == [0.5, 0.5]
    assert 0.5 < prediction[2] == prediction[3]
    other_future = online_logistic_regression(fields, np.array([1, 1, 1, 1]), chunk=2)
    assert other_future.tolist() == prediction.tolist()
