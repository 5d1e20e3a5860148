import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xrex.models.losses import multi_task_loss

ACTION_WEIGHTS = np.array([1.0, 0.5], np.float32)


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3, size=(5, 3, 2)).astype(np.float32)
    labels = (rng.random((5, 3, 2)) < 0.4).astype(np.float32)
    mask = rng.random((5, 3, 2)) < 0.7
    mask[0, 0], mask[1, 1] = False, [True, False]  # nothing observed; one of two
    return logits, labels, mask, np.array([1, 2, 0.5, 0, 1], np.float32)


def plain_loop(logits, labels, mask, weight):
    loss = count = 0.0
    for b in range(5):
        for c in range(3):
            if mask[b, c].any():
                count += weight[b]
            for a in range(2):
                if mask[b, c, a]:
                    p = 1 / (1 + np.exp(-float(logits[b, c, a])))
                    happened = p if labels[b, c, a] else 1 - p
                    loss -= weight[b] * ACTION_WEIGHTS[a] * np.log(happened)
    return loss, count


def test_the_loss_equals_a_plain_loop(case):
    np.testing.assert_allclose(multi_task_loss(*case, ACTION_WEIGHTS), plain_loop(*case), rtol=1e-6)


def test_the_loss_of_large_logits_is_finite():
    logits = np.full((1, 1, 2), 1e4, np.float32)
    loss, _ = multi_task_loss(logits, np.zeros_like(logits), np.ones((1, 1, 2), bool), np.ones(1), np.ones(2))
    assert float(loss) == 2e4


def test_a_label_that_was_not_observed_has_no_gradient_and_its_value_no_effect(case):
    logits, labels, mask, weight = case
    loss_of = lambda logits, labels: multi_task_loss(logits, labels, mask, weight, ACTION_WEIGHTS)[0]  # noqa: E731
    gradient = np.asarray(jax.grad(loss_of)(jnp.asarray(logits), labels))
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask & (weight > 0)[:, None, None]] != 0).all()
    assert loss_of(logits, np.where(mask, labels, 1 - labels)) == loss_of(logits, labels)


def test_rows_of_weight_0_have_no_effect(case):
    logits, labels, mask, weight = case
    kept = weight > 0
    without = multi_task_loss(logits[kept], labels[kept], mask[kept], weight[kept], ACTION_WEIGHTS)
    np.testing.assert_allclose(multi_task_loss(*case, ACTION_WEIGHTS), without, rtol=1e-6)


def test_a_row_of_weight_2_counts_as_two_rows(case):
    logits, labels, mask, _ = case
    once = np.ones(5, np.float32)
    twice = [np.concatenate([x, x[1:2]]) for x in (logits, labels, mask, once)]
    once[1] = 2
    np.testing.assert_allclose(
        multi_task_loss(logits, labels, mask, once, ACTION_WEIGHTS), multi_task_loss(*twice, ACTION_WEIGHTS), rtol=1e-6
    )
