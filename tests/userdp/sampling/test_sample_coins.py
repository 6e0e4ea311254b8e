"""Coins of samples: other ones every round, and none for samples beyond the declared number."""

import numpy as np

from userdp.sampling import PoissonSamples

SIZES = np.full(50, 40)


def drawn(sampler, index):
    return sampler.coins(index).draw(slice(0, 50), SIZES).reshape(50, 40)


def test_every_round_throws_coins_of_its_own():
    """2,000 coins of rate 0.5: two rounds agree in more than 1,200 of them once in 10^18 runs."""
    sampler = PoissonSamples(50, 0.5, 3, seed=1, joint=False)
    rounds = [drawn(sampler, index) for index in range(3)]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert 800 < (rounds[first] == rounds[second]).sum() < 1200
    np.testing.assert_array_equal(rounds[1], drawn(PoissonSamples(50, 0.5, 3, seed=1, joint=False), 1))


def test_samples_beyond_the_declared_number_are_never_drawn():
    for index in range(3):
        coins = drawn(PoissonSamples(50, 0.5, 3, seed=1, most=7, joint=False), index)
        assert coins[:, :7].any(axis=0).all()
        assert not coins[:, 7:].any()
