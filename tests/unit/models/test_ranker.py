"""The ranker's parts against plain numpy, and what its scores may depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from small_model import config, padded, random_batch
from xrex.models.layers import Attention, RMSNorm, rotate, turns
from xrex.models.losses import multi_task_loss
from xrex.models.ranker import Ranker, pairwise, token_places
from xrex.train.setup import model_inputs, ranker

CONFIG = config()
INPUTS = model_inputs(CONFIG.dataset)


@pytest.fixture(scope="module")
def model() -> Ranker:
    return ranker(CONFIG, INPUTS)


def embedded(batch):
    """What the tables give, one id after the other: random rows, summed over an id's rows; padding adds nothing."""
    groups = {"user": batch.user, "history": batch.history, "candidates": batch.candidates}
    found = {group: {} for group in groups}
    for f in INPUTS.features:
        if f.table:
            table = INPUTS.table(f)
            rows = np.random.default_rng(len(table.name)).normal(
                scale=0.3, size=(table.num_embeddings, table.embedding_dim)
            )
            group = {"candidate": "candidates"}.get(f.group, f.group)
            ids = groups[group][f.name]
            found[group][f.name] = np.where((ids >= 0)[..., None], rows[ids], 0).sum(axis=-2).astype(np.float32)
    return found


def logits_of(model, batch):
    return np.asarray(nnx.jit(lambda m, e, b: m(e, b))(model, embedded(batch), batch))


def with_candidates(batch, change):
    """The batch after `change` on every array that has candidates."""
    return batch._replace(
        candidates={name: change(x) for name, x in batch.candidates.items()},
        labels=change(batch.labels),
        label_mask=change(batch.label_mask),
    )


def all_candidates_present(batch):
    return batch._replace(candidate_length=np.full_like(batch.candidate_length, 3))


def test_a_candidates_score_does_not_depend_on_the_other_candidates(model):
    batch, other = (all_candidates_present(random_batch(CONFIG, seed)) for seed in (0, 1))
    mixed = batch._replace(
        candidates={
            n: np.concatenate([x[:, :1], other.candidates[n][:, 1:]], axis=1) for n, x in batch.candidates.items()
        }
    )
    both, alone = logits_of(model, batch), logits_of(model, mixed)
    assert np.abs(both[:, 1:] - alone[:, 1:]).max() > 1e-3
    np.testing.assert_allclose(both[:, 0], alone[:, 0], atol=1e-6)
    fewer = logits_of(model, batch._replace(candidate_length=np.full_like(batch.candidate_length, 1)))
    np.testing.assert_allclose(fewer[:, 0], both[:, 0], atol=1e-6)


def test_a_candidates_score_does_not_depend_on_where_it_stands(model):
    batch = all_candidates_present(random_batch(CONFIG))
    turned = with_candidates(batch, lambda x: x[:, [2, 0, 1]])
    np.testing.assert_allclose(logits_of(model, turned), logits_of(model, batch)[:, [2, 0, 1]], atol=1e-6)


def test_the_order_of_the_history_counts(model):
    batch = random_batch(CONFIG)
    batch = batch._replace(history_length=np.full_like(batch.history_length, 6))
    turned = batch._replace(history={n: x[:, ::-1].copy() for n, x in batch.history.items()})
    assert np.abs(logits_of(model, turned) - logits_of(model, batch)).max() > 1e-4


def test_padding_to_longer_shapes_changes_neither_logits_nor_loss(model):
    batch = random_batch(CONFIG)
    longer = padded(batch, rows=3, history=5, candidates=2)
    want, got = logits_of(model, batch), logits_of(model, longer)
    real = np.arange(3) < batch.candidate_length[:, None]
    np.testing.assert_allclose(got[:8, :3][real], want[real], atol=1e-5)
    losses = [
        multi_task_loss(logits, b.labels, b.label_mask, b.weight, jnp.ones(2))
        for logits, b in ((want, batch), (got, longer))
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_what_lies_beyond_a_historys_length_is_not_seen(model):
    batch = random_batch(CONFIG)
    beyond = np.arange(6) >= batch.history_length[:, None]
    ids = batch.history["past_item"]
    noise = np.where(beyond[..., None], np.random.default_rng(5).integers(0, 40, ids.shape), ids).astype(np.int32)
    changed = batch._replace(
        history={**batch.history, "past_item": noise}, history_actions=batch.history_actions | beyond[..., None]
    )
    np.testing.assert_array_equal(logits_of(model, changed), logits_of(model, batch))


def test_empty_histories_give_finite_logits_and_gradients(model):
    batch = random_batch(CONFIG)
    empty = batch._replace(
        history_length=np.zeros_like(batch.history_length),
        history_actions=np.zeros_like(batch.history_actions),
        history={n: np.full_like(x, -1) if x.dtype == np.int32 else np.zeros_like(x) for n, x in batch.history.items()},
    )

    @nnx.jit
    def loss_and_gradients(model, rows):
        def loss(model, rows):
            weights = jnp.ones(2)
            total, count = multi_task_loss(model(rows, empty), empty.labels, empty.label_mask, empty.weight, weights)
            return total / count

        return nnx.value_and_grad(loss, argnums=(0, 1))(model, rows)

    loss, gradients = loss_and_gradients(model, embedded(empty))
    for leaf in [loss, *jax.tree.leaves(gradients)]:
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize(("length", "shape"), [(1, 6), (3, 6), (6, 6), (3, 11)])
def test_the_newest_event_stands_right_before_the_candidates_whatever_the_length(length, shape):
    positions, is_context = token_places(2, jnp.array([length]), shape, 3)
    user, history, candidates = np.split(np.asarray(positions[0]), [2, 2 + shape])
    assert history[length - 1] == -1
    assert history[:length].tolist() == list(range(-length, 0))
    assert candidates.tolist() == [0, 0, 0]
    assert user.tolist() == [1, 2]
    assert np.flatnonzero(is_context[0]).tolist() == [0, 1, *range(2, 2 + length)]


def test_rmsnorm_divides_by_the_root_of_the_mean_square():
    norm = RMSNorm(5, epsilon=0.01)
    norm.scale[...] = jnp.arange(1.0, 6.0)
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    want = [
        [
            [v * s / np.sqrt(sum(w * w for w in row) / 5 + 0.01) for v, s in zip(row, range(1, 6), strict=True)]
            for row in rows
        ]
        for rows in x.astype(float)
    ]
    np.testing.assert_allclose(norm(x), want, rtol=1e-5)


def test_rotary_turns_pairs_as_complex_numbers_do():
    x = np.random.default_rng(0).normal(size=(1, 4, 2, 6)).astype(np.float32)
    positions = np.array([[0, 3, -2, 11]])
    turned = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * positions[..., None, None] / 100.0 ** (np.arange(3) / 3))
    np.testing.assert_allclose(
        rotate(x, turns(positions, 6, 100.0)), np.concatenate([turned.real, turned.imag], -1), atol=1e-5
    )


def attention(num_heads, num_kv_heads):
    layer = Attention(16, num_heads, num_kv_heads, dtype=jnp.float32, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 5, 16)).astype(np.float32)
    is_context = np.array([[True, True, True], [True, False, True]])  # then come two candidates
    return layer, x, np.array([[0, 1, 2, 3, 4], [7, 3, 3, 0, 1]]), is_context


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_attention_equals_a_plain_one_over_all_pairs_with_repeated_heads_and_a_mask(num_heads, num_kv_heads):
    layer, x, positions, is_context = attention(num_heads, num_kv_heads)
    by = turns(positions, 16 // num_heads, 100.0)
    sees = np.array([[True] * 3 + [False] * 2] * 5) | np.diag([False] * 3 + [True] * 2)
    mask = sees & np.concatenate([is_context, np.ones((2, 2), bool)], axis=1)[:, None]
    kernels = {n: np.asarray(getattr(layer, n).kernel[...], np.float64) for n in ("query", "key", "value", "out")}
    query, key, value = (np.einsum("btd,dnh->btnh", x, kernels[n]) for n in ("query", "key", "value"))
    query, key = (np.asarray(rotate(y.astype(np.float32), by), np.float64) for y in (query, key))
    want = np.zeros((2, 5, 16))
    for row in range(2):
        for head in range(num_heads):
            shared = head // (num_heads // num_kv_heads)
            scores = query[row, :, head] @ key[row, :, shared].T / np.sqrt(16 / num_heads)
            weights = np.where(mask[row], np.exp(scores), 0)
            weights /= weights.sum(axis=1, keepdims=True)
            want[row] += weights @ value[row, :, shared] @ kernels["out"][head]
    np.testing.assert_allclose(layer(x, by, is_context), want, atol=1e-5)
    np.testing.assert_allclose(layer(x, by, is_context, candidates_only=True), want[:, 3:], atol=1e-5)


def test_attention_sees_distances_not_places():
    layer, x, positions, is_context = attention(4, 2)
    here, there, stretched = (
        layer(x, turns(p, 4, 100.0), is_context) for p in (positions, positions + 40, positions * 2)
    )
    np.testing.assert_allclose(there, here, atol=1e-5)
    assert np.abs(stretched - here).max() > 1e-3


def test_pairwise_is_the_sum_over_all_pairs():
    rng = np.random.default_rng(0)
    user, candidates = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4))
    want = np.zeros((2, 5, 4))
    for row in range(2):
        for c in range(5):
            vectors = [*user[row], candidates[row, c]]
            for i, first in enumerate(vectors):
                for second in vectors[i + 1 :]:
                    want[row, c] += first * second
    np.testing.assert_allclose(pairwise(user, candidates), want, atol=1e-5)


def test_bfloat16_compute_stays_near_float32():
    batch = random_batch(CONFIG)
    exact, rough = (
        logits_of(ranker(config(f"model.compute_dtype={dtype}"), INPUTS), batch) for dtype in ("float32", "bfloat16")
    )
    assert rough.dtype == np.float32
    assert 0 < np.abs(rough - exact).max() < 0.05 * np.abs(exact).max()


def test_without_its_weights_the_factorization_adds_nothing():
    batch, model = random_batch(CONFIG), ranker(CONFIG, INPUTS)
    whole = logits_of(model, batch)
    model.interaction[...] = jnp.zeros_like(model.interaction[...])
    plain = logits_of(ranker(config("model.factorization=false"), INPUTS), batch)
    np.testing.assert_allclose(logits_of(model, batch), plain, atol=1e-6)
    assert np.abs(whole - plain).max() > 1e-3
