"""Micro-batches by history length: a step of them ends where a step on the whole padded batch does."""

from functools import partial

import jax
import numpy as np
import pytest

from compilations import compilations, compilations_logged
from small_model import Trainer, config, random_batch
from xrex.errors import ConfigError
from xrex.train.micro_batches import check_divides, history_widths

CONFIG = config()
CLOSE = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
"""They add the same float32 numbers in another order."""


def three_steps(*overrides):
    trainer = Trainer(config(*overrides))
    reports = [trainer.step(random_batch(CONFIG, seed)) for seed in range(3)]
    return jax.tree.map(np.array, (trainer.state, [report._replace(slots=()) for report in reports]))


@pytest.fixture(scope="module")
def padded():
    return three_steps()


@pytest.mark.parametrize(("num_devices", "groups", "widths"), [(1, 4, 1), (1, 1, 3), (1, 8, 64), (2, 4, 3)])
def test_micro_batches_end_where_the_padded_batch_does(padded, num_devices, groups, widths):
    overrides = f"trainer.micro_batches={groups}", f"trainer.history_widths={widths}", f"mesh.num_devices={num_devices}"
    jax.tree.map(CLOSE, three_steps(*overrides), padded)


def test_nothing_is_compiled_for_lengths_that_were_not_seen_before(caplog):
    trainer = Trainer(config("trainer.micro_batches=4", "trainer.history_widths=3"))
    trainer.step(random_batch(CONFIG, 0))
    with compilations_logged(caplog):
        for seed in range(1, 8):
            trainer.step(random_batch(CONFIG, seed))
    assert not compilations(caplog)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_and_slots_are_those_counted_by_hand(seed):
    batch = random_batch(CONFIG, seed)
    batch.weight[3] = 0
    report = Trainer(config("trainer.micro_batches=4", "trainer.history_widths=3")).step(batch)
    there = batch.weight > 0
    assert report.tokens == batch.history_length[there].sum() + batch.candidate_length[there].sum()
    longest_of_two = np.sort(batch.history_length).reshape(4, 2).max(axis=1)
    # widths 2, 4 and 6; a group of rows without history has the narrowest
    assert report.slots == sum(2 * (max(2, length + length % 2) + 3) for length in longest_of_two)


def test_a_faulty_row_in_one_group_stops_the_whole_step():
    trainer = Trainer(config("trainer.micro_batches=4"))
    batch = random_batch(CONFIG)
    batch.candidates["price"][5, 0] = np.nan
    before = jax.tree.map(np.array, trainer.state)
    report = trainer.step(batch)
    assert report.faults == 1
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.array, trainer.state), before)


@pytest.mark.parametrize(
    ("longest", "count", "widths"), [(256, 4, (64, 128, 192, 256)), (5, 2, (3, 5)), (3, 64, (1, 2, 3)), (0, 4, (0,))]
)
def test_widths_are_equal_parts_and_the_last_is_all(longest, count, widths):
    assert history_widths(longest, count) == widths


def test_groups_of_unequal_size_are_refused_with_the_number_that_fits():
    check_divides(4, 64, 2)
    with pytest.raises(ConfigError, match=r"trainer.micro_batches = 5: must divide the 32 rows of a device .* try 4"):
        check_divides(5, 64, 2)
