"""Groups in turn with secret coins: who takes part, what a user moves, and the price against simulated losses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from userdp.accounting.costs import Cost, epsilon_of
from userdp.errors import BadInput, PopulationTooSmall
from userdp.sampling import AmplifiedBands, CorrelatedBatches, PoissonBatches
from userdp.sampling.amplified_bands import BANDED, best_bands


def matrix(sampler):
    encoder = sampler.factorisation.encoder()
    return np.array([encoder.add(row) for row in np.eye(sampler.rounds)])


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(1, 30), st.sampled_from(BANDED))
def test_a_users_rounds_touch_rows_of_their_own_and_none_by_more_than_stated(bands, rounds, kind):
    sampler = AmplifiedBands(600, 20, rounds, bands, kind)
    encoded = matrix(sampler)
    for turn in range(min(bands, rounds)):
        columns = encoded[:, turn::bands]
        assert (np.count_nonzero(columns, axis=1) <= 1).all()
        assert np.linalg.norm(columns, axis=0).max() <= sampler.sensitivity * (1 + 1e-12)
    assert np.linalg.norm(encoded[:, 0]) == pytest.approx(sampler.sensitivity)


@pytest.mark.parametrize("seed", [5, None])
def test_users_take_part_in_their_groups_turns_alone_and_as_often_as_priced(seed):
    sampler = AmplifiedBands(1003, 50, 80, 4, seed=seed)
    took = np.zeros((1003, 80), dtype=bool)
    for index in range(80):
        took[sampler.cohort(index), index] = True
    turns = took.reshape(1003, 20, 4).any(axis=1)
    assert (turns.sum(axis=1) <= 1).all()
    assert sorted(turns[:, group].sum() for group in range(4))[0] >= 240  # nearly everybody takes part some time
    assert took.sum() / (1003 * 20) == pytest.approx(sampler.rate, abs=4 * math.sqrt(sampler.rate / 20_060))
    assert took.sum(axis=0).mean() == pytest.approx(50, rel=0.05)


def test_one_band_is_poisson_sampling_and_all_bands_are_one_gaussian():
    one, poisson = AmplifiedBands(1000, 50, 30, 1), PoissonBatches(1000, 0.05, 30)
    assert one.sensitivity == 1.0
    assert one.epsilon(1.3, 1e-5) == poisson.epsilon(1.3, 1e-5)
    whole = AmplifiedBands(1000, 50, 20, 20)
    assert whole.rate == 1
    assert whole.epsilon(1.3, 1e-5) == epsilon_of(Cost(1.3), 1, 1e-5)


@pytest.mark.parametrize(
    ("sampler", "multiplier", "delta", "theirs"),
    [
        (AmplifiedBands(2000, 100, 20, 1), 1.0, 1e-5, 1.98472),
        (AmplifiedBands(2000, 100, 20, 2), 1.0, 1e-5, 2.85452),
        (AmplifiedBands(2000, 100, 20, 4), 0.8, 1e-5, 5.81756),
        (AmplifiedBands(1000, 50, 100, 3), 1.5, 1e-5, 3.22998),
        (AmplifiedBands(1000, 50, 100, 7), 0.6, 1e-4, 19.43416),
        (AmplifiedBands(1000, 100, 64, 8), 1.2, 1e-5, 10.3786),
        (AmplifiedBands(500, 100, 33, 5), 2.5, 1e-3, 3.36701),
        (AmplifiedBands(10_000, 100, 100, 10), 2.0, 1e-6, 0.96142),
        (AmplifiedBands(15_535, 777, 60, 12), 4.0, 1e-6, 1.60421),
        (AmplifiedBands(100_000, 1000, 500, 20), 0.7, 1e-7, 17.992),
    ],
)
def test_prices_are_those_of_jax_privacy(sampler, multiplier, delta, theirs):
    """The epsilon of ``amplified_bandmf_event`` of jax_privacy 2.0.0, at the sampler's rate."""
    assert sampler.epsilon(multiplier, delta) == pytest.approx(theirs, rel=3e-5)


def test_rounds_are_charged_turn_by_turn():
    sampler = AmplifiedBands(1000, 10, 12, 4)
    spent = [sampler.epsilon(1.0, 1e-5, rounds) for rounds in range(13)]
    assert spent[0] == 0
    assert spent[1] == spent[4] < spent[5] == spent[8] < spent[9] == spent[12] == sampler.epsilon(1.0, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("bands", "kind"), [(2, "banded"), (3, "square_root")])
def test_the_price_of_replacing_a_user_is_that_of_simulated_losses(bands, kind):
    """The simulation is as in the test below; the other user's gradient is the opposite one."""
    sampler = AmplifiedBands(60, 6, 6, bands, kind, relation="replace_one")
    z, q, runs, rng = 1.0, sampler.rate, 400_000, np.random.default_rng(2)
    encoded, rows, losses = matrix(sampler), np.zeros((runs, 6)), np.zeros(runs)
    deviation = 2 * z * sampler.sensitivity
    for start in range(0, 6, bands):
        own = slice(start, min(start + bands, 6))
        gradient = np.sign(rows[:, start - 1]) if start else np.ones(runs)
        moved = gradient[:, None] * encoded[own, start]
        there = rng.random((runs, 1)) < q
        rows[:, own] = rng.normal(scale=deviation, size=moved.shape) + there * moved
        along, length = (rows[:, own] * moved).sum(axis=1) / deviation**2, (moved**2).sum(axis=1) / 2 / deviation**2
        ratios = (np.logaddexp(math.log1p(-q), math.log(q) + sign * along - length) for sign in (1, -1))
        losses += np.subtract(*ratios)
    for delta in (0.02, 1e-3):
        missed = np.maximum(0.0, -np.expm1(sampler.epsilon(z, delta) - losses))
        error = missed.std() / math.sqrt(runs)
        assert 0.85 * delta - 3 * error <= missed.mean() <= delta + 3 * error


@pytest.mark.slow
@pytest.mark.parametrize(("bands", "kind"), [(2, "banded"), (3, "square_root")])
def test_the_price_is_that_of_simulated_losses(bands, kind):
    """The exact likelihood ratio of whole transcripts; the user's gradient follows the sign of the last row."""
    sampler = AmplifiedBands(60, 6, 6, bands, kind)
    z, q, rounds, runs = 0.8, sampler.rate, sampler.rounds, 400_000
    encoded, rng = matrix(sampler), np.random.default_rng(1)
    deviation = z * sampler.sensitivity
    turns = range(0, rounds, bands)

    def losses(present):
        noise = rng.normal(scale=deviation, size=(runs, rounds))
        rows, ratio = np.zeros((runs, rounds)), np.zeros(runs)
        for start in turns:
            own = slice(start, min(start + bands, rounds))
            # What a user adds may depend on all that was released before.
            gradient = np.sign(rows[:, start - 1]) if start else np.ones(runs)
            moved = gradient[:, None] * encoded[own, start]
            there = (rng.random(runs) < q) if present else np.zeros(runs, dtype=bool)
            rows[:, own] = noise[:, own] + there[:, None] * moved
            exponent = ((rows[:, own] * moved).sum(axis=1) - (moved**2).sum(axis=1) / 2) / deviation**2
            ratio += logsumexp([np.full(runs, math.log1p(-q)), math.log(q) + exponent], axis=0)
        return ratio if present else -ratio

    for delta in (0.02, 1e-3):
        claimed = sampler.epsilon(z, delta)
        for present in (True, False):
            missed = np.maximum(0.0, -np.expm1(claimed - losses(present)))
            found, error = missed.mean(), missed.std() / math.sqrt(runs)
            assert found <= delta + 3 * error
            assert not present or found >= 0.85 * delta - 3 * error  # the claim wastes little


@pytest.mark.parametrize(("users", "batch", "rounds"), [(2000, 100, 20), (1000, 50, 100)])
def test_the_best_number_of_bands_has_no_more_noise_than_either_end(users, batch, rounds):
    bands, kind = best_bands(users, batch, rounds, 1.0, 1e-5, BANDED)
    best = AmplifiedBands(users, batch, rounds, bands, kind).last_error(1.0, 1e-5)
    poisson = PoissonBatches(users, batch / users, rounds).calibrate(1.0, 1e-5) * math.sqrt(rounds)
    cyclic = CorrelatedBatches(users, batch, rounds, kind="banded")
    turns = cyclic.calibrate(1.0, 1e-5) * cyclic.sensitivity * cyclic.factorisation.deviations()[-1]
    assert best <= min(poisson, turns) * (1 + 1e-9)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(BadInput, match="there are only 100 users"):
        AmplifiedBands(100, 20, 10, 6)
    with pytest.raises(BadInput, match="must be at least 1"):
        AmplifiedBands(100, 20, 10, 0)
    with pytest.raises(PopulationTooSmall):
        best_bands(100, 200, 10, 1.0, 1e-5, BANDED)
