"""Users' sums within a fixed order, and the losses that keep one."""

import numpy as np
import pytest

from userdp.arrays.fixed_order import fixed_order
from userdp.data import Block
from userdp.problems import Huber, Quadratic, Softmax
from userdp.problems.segments import weighted_sums


def test_a_users_sum_has_the_same_bits_among_equal_users_and_among_others():
    rng = np.random.default_rng(3)
    for size, columns in [(2, 1), (3, 5), (17, 4), (40, 33)] * 20:
        values, weights = rng.normal(size=(6 * size + 1, columns)), rng.normal(size=6 * size + 1)
        equal, others = np.arange(7) * size, np.append(np.arange(6) * size, 6 * size + 1)
        with fixed_order(wanted=True):
            alike = weighted_sums(values[:-1], equal, weights[:-1])
            mixed = weighted_sums(values, others, weights)
        np.testing.assert_array_equal(alike[:5], mixed[:5])
        np.testing.assert_allclose(alike, weighted_sums(values[:-1], equal, weights[:-1]), atol=1e-12)


@pytest.mark.parametrize("problem", [Quadratic(9000, 1.0, 1.0), Huber(9000, 1.0, 1.0, 0.5)], ids=lambda one: one.name)
def test_losses_of_samples_longer_than_a_buffer_of_numpy_have_the_same_bits_alone(problem):
    rng, x = np.random.default_rng(8), np.full(problem.dimension, 0.01)
    block = Block(rng.uniform(-1, 1, (4, problem.dimension)).astype(np.float32), np.arange(5))
    with fixed_order(wanted=True):
        together = problem.sample_losses(x, block)
        alone = [problem.sample_losses(x, block.part(user, user + 1))[0] for user in range(4)]
    np.testing.assert_array_equal(alone, together)


def test_a_subclass_is_computed_user_by_user_until_it_says_otherwise():
    class Own(Softmax):
        pass

    assert Softmax.fixed_order
    assert not Own.fixed_order
