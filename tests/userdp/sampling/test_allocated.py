"""Random allocation: every user in exactly k secret rounds of T, and what that costs."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from helpers import WILD, Wild, federation_of, gathered, make, requested, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq
from scipy.stats import norm

from strategies import DPFedSGD
from userdp.accounting import Cost, Privacy, RoundLedger, epsilon_of
from userdp.accounting import allocation as module
from userdp.accounting.allocation import allocation_epsilon
from userdp.accounting.replaced_allocation import replaced_allocation_epsilon
from userdp.errors import BadInput
from userdp.problems import Quadratic
from userdp.sampling import AllocatedBatches
from userdp.sampling import allocated as sampling

DELTA = 1e-5

# --- Who is drawn ----------------------------------------------------------------------------------------------------


def table(sampler):
    """(users, rounds) who takes part when."""
    parts = np.zeros((sampler.users, sampler.rounds), dtype=bool)
    for index in range(sampler.rounds):
        parts[sampler.cohort(index), index] = True
    return parts


@settings(max_examples=60)
@given(
    st.integers(1, 40),
    st.integers(1, 12).flatmap(lambda rounds: st.tuples(st.integers(1, rounds), st.just(rounds))),
    st.sampled_from([0, 7, None]),
)
def test_every_user_takes_part_in_exactly_k_rounds(users, rounds, seed):
    sampler = AllocatedBatches(users, *rounds, seed=seed)
    assert np.all(table(sampler).sum(axis=1) == rounds[0])
    assert sampler.expected_batch == users * rounds[0] / rounds[1]


@pytest.mark.parametrize("seed", [5, None])
def test_every_set_of_rounds_is_as_likely_as_any_other(seed):
    parts = table(AllocatedBatches(15_000, 2, 6, seed=seed))
    sets = list(itertools.combinations(range(6), 2))
    counts = np.array([np.sum(parts[:, a] & parts[:, b]) for a, b in sets])
    assert counts.sum() == 15_000
    # Chi-square of 14 degrees of freedom: above 54 once in a million.
    assert ((counts - 1000) ** 2 / 1000).sum() < 54


def test_users_are_allocated_independently():
    """Two users, each in 1 of 5 rounds, share it with probability 1/5."""
    parts = table(AllocatedBatches(20_000, 1, 5, seed=8))
    together = np.sum(parts[0::2] & parts[1::2])
    assert abs(together - 2000) < 5 * math.sqrt(1600)


def test_rounds_that_the_operating_system_allocates_are_drawn_once_and_in_their_order():
    """Else what a user has left would not be what it took part in."""
    sampler = AllocatedBatches(60, 2, 9, None)
    with pytest.raises(BadInput, match="drawn once and in their order"):
        sampler.cohort(1)
    first = sampler.cohort(0).copy()
    np.testing.assert_array_equal(sampler.cohort(0), first)
    second = sampler.cohort(1)
    np.testing.assert_array_equal(sampler.cohort(1), second)
    for index in (0, 3):
        with pytest.raises(BadInput, match="start the run anew"):
            sampler.cohort(index)
    with pytest.raises(ValueError, match="read-only"):
        second[:] = 0
    assert sampler == AllocatedBatches(60, 2, 9, None)


def test_words_beyond_the_last_whole_multiple_are_drawn_again(monkeypatch):
    largest, drawn = 2**64 - 1, iter([np.array([2**64 - 1, 7], dtype=np.uint64), np.array([8], dtype=np.uint64)])
    assert (largest + 1) % 3 == 1  # the largest word is the one too many
    monkeypatch.setattr(sampling, "_words", lambda count: next(drawn))
    np.testing.assert_array_equal(AllocatedBatches(2, 1, 3, None)._below(3, 0), [8 % 3, 7 % 3])


# --- What it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "rounds", "participations", "lower", "upper"),
    [
        (1.2161807155624607, 20, 1, 0.99696, 1.00245),
        (0.6725473532380108, 20, 1, 3.99719, 4.00127),
        (0.8731102916892277, 100, 1, 0.99467, 1.00455),
        (1.9, 100, 5, 0.0, 1.07111),
    ],
)
def test_epsilons_lie_between_the_bounds_of_another_accountant(noise, rounds, participations, lower, upper):
    """Lower and upper bounds by PLD_accounting 2.0, recorded; geometric convolution, steps of 0.01 and 0.02."""
    assert lower < allocation_epsilon(noise, rounds, participations, DELTA) < upper


@pytest.mark.parametrize(("noise", "epsilon"), [(0.6, 1.5), (1.0, 0.6), (3.0, 0.1)])
def test_one_of_two_rounds_is_the_exact_divergence_of_its_two_neighbours(noise, epsilon):
    """The exact value is a quadrature over both rounds, in both directions; the bound holds and is tight."""
    z = np.linspace(-9, 9, 1201)
    weights = np.outer(norm.pdf(z), norm.pdf(z)) * (z[1] - z[0]) ** 2
    one = np.exp(z / noise - 0.5 / noise**2)
    ratio = (one[:, None] + one) / 2
    exact = {
        "remove": np.sum(weights * np.maximum(ratio - math.exp(epsilon), 0)),
        "add": np.sum(weights * np.maximum(1 - math.exp(epsilon) * ratio, 0)),
    }
    law = module._BlockLaw(noise, 2, 1e-4)
    for direction, value in exact.items():
        bound = float(getattr(law, direction)(1e-3).get_delta_for_epsilon(epsilon))
        assert value * (1 - 1e-5) <= bound <= value * 1.01 + 1e-8, direction


@pytest.mark.parametrize(("rounds", "participations"), [(4, 1), (5, 2), (6, 4)])
def test_divergences_of_uniform_subsets_by_simulation_stay_below_delta(rounds, participations):
    """The losses are of the true mixture over all subsets, not of independent blocks: weighted samples, unbiased."""
    noise, delta, rng = 1.0, 1e-2, np.random.default_rng(3)
    epsilon = allocation_epsilon(noise, rounds, participations, delta)
    z = rng.normal(size=(100_000, rounds))
    subsets = np.array(list(itertools.combinations(range(rounds), participations)))
    moved = z.copy()
    chosen = subsets[rng.integers(len(subsets), size=len(z))]
    np.add.at(moved, (np.arange(len(z))[:, None], chosen), 1 / noise)

    def ratio(seen):
        exponents = seen[:, subsets].sum(axis=2) / noise - participations / (2 * noise**2)
        return np.exp(exponents).mean(axis=1)

    removed = np.maximum(1 - math.exp(epsilon) / ratio(moved), 0)
    added = np.maximum(1 - math.exp(epsilon) * ratio(z), 0)
    for losses in (removed, added):
        assert losses.mean() - 5 * losses.std() / math.sqrt(len(losses)) <= delta
    if participations == 1:  # tight, in the worse direction
        assert removed.mean() > 0.95 * delta


@settings(max_examples=3, deadline=None)
@given(st.floats(0.4, 5.0), st.integers(2, 40), st.sampled_from([1e-3, 1e-6]))
def test_epsilon_falls_with_noise_and_rounds_and_never_exceeds_plain_composition(noise, rounds, delta):
    epsilon = allocation_epsilon(noise, rounds, 1, delta)
    assert epsilon <= epsilon_of(Cost(noise), 1, delta)
    assert allocation_epsilon(1.2 * noise, rounds, 1, delta) < epsilon
    assert allocation_epsilon(noise, 2 * rounds, 1, delta) < epsilon * (1 + 1e-3)


def test_mass_beyond_the_grid_counts_in_full(monkeypatch):
    """On a grid that ends early the bound is loose, and no bound is below the truth."""
    exact = allocation_epsilon(0.8, 4, 1, 1e-3)
    fine = float(module._BlockLaw(0.8, 4, 1e-3).remove(1e-3).get_delta_for_epsilon(exact))
    monkeypatch.setattr(module, "largest_loss", lambda noise_multiplier, delta: 0.5)
    early = float(module._BlockLaw(0.8, 4, 1e-3).remove(1e-3).get_delta_for_epsilon(exact))
    assert early >= fine * (1 - 1e-6)


@pytest.mark.parametrize("noise", [0.06, 0.2, 0.3, 40.0])
@pytest.mark.parametrize(("rounds", "participations"), [(2, 1), (50, 49), (400, 3)])
@pytest.mark.parametrize("delta", [0.1, 1e-11])
def test_whatever_is_asked_has_a_finite_epsilon_that_is_no_larger_than_plain(noise, rounds, participations, delta):
    assert (
        0 <= allocation_epsilon(noise, rounds, participations, delta) <= epsilon_of(Cost(noise), participations, delta)
    )


def test_a_small_delta_in_many_rounds_is_priced_tightly():
    """The value by hand: one ratio W is large, and the others sum up to their mean: ``E (W + 999 - 1000 c)_+``."""

    def delta(epsilon):
        least = 1000 * math.exp(epsilon) - 999
        return norm.sf((math.log(least) - 2) / 2) - least * norm.sf((math.log(least) + 2) / 2)

    by_hand = brentq(lambda epsilon: delta(epsilon) - 1e-8, 4, 7)
    assert allocation_epsilon(0.5, 1000, 1, 1e-8) == pytest.approx(by_hand, rel=1e-3)


def test_taking_part_in_every_round_is_plain_composition():
    assert allocation_epsilon(1.5, 6, 6, DELTA) == epsilon_of(Cost(1.5), 6, DELTA)
    assert allocation_epsilon(0.02, 50, 1, DELTA) == epsilon_of(Cost(0.02), 1, DELTA)
    with pytest.raises(BadInput, match="no pure privacy"):
        allocation_epsilon(1.0, 5, 1, 0.0)


def test_blocks_of_unequal_sizes_cost_between_those_of_equal_ones():
    """5 rounds of 12: two blocks of 3, three of 2."""
    uneven = allocation_epsilon(2.0, 12, 5, DELTA)
    assert allocation_epsilon(2.0, 15, 5, DELTA) < uneven < allocation_epsilon(2.0, 10, 5, DELTA)


def test_the_ledger_is_charged_in_full_with_the_first_round():
    sampler = AllocatedBatches(200, 2, 10)
    noise = sampler.calibrate(1.0, 1e-3)
    ledger = sampler.ledger(noise, Privacy(1.0, 1e-3))
    assert isinstance(ledger, RoundLedger)
    assert ledger.epsilon() == 0
    for index in range(10):
        ledger.charge(sampler.cohort(index))
        assert ledger.epsilon() == sampler.epsilon(noise, 1e-3)


# --- As an option of strategies --------------------------------------------------------------------------------------


def test_a_plan_says_how_often_users_take_part():
    method = make(DPFedSGD, Quadratic(2, 1.0, 2.0), 300, delta=1e-3, sampling="allocation", participations=2, rounds=6)
    plan = method.plan
    assert (plan.cohort, plan.numbers["participations"], plan.users_needed) == (100, 2, 1)
    assert plan.guarantee.relation == "add_or_remove"
    assert plan.numbers["l2_sensitivity"] == pytest.approx(1.0 / 100)
    replaced = replaced_allocation_epsilon(plan.numbers["noise_multiplier"] / 2, 6, 2, 1e-3)
    assert (plan.numbers["replace_one_epsilon"], plan.numbers["replace_one_delta"]) == (replaced, 1e-3)
    sampler = method.scheme.sampler
    assert sampler == AllocatedBatches(300, 2, 6, seed=method.seed)


@settings(max_examples=60, deadline=None)
@given(arrays(np.int64, (6, 3), elements=st.integers(0, len(WILD) - 1)), st.integers(0, 5))
def test_adding_or_removing_one_user_moves_its_own_rounds_by_at_most_c_and_no_others(users, who):
    """The user's rounds are its own: without it the cohorts are what they were, less the user."""
    method = make(DPFedSGD, Wild(3), 6, 1.0, 1e-3, clip_norm=0.7, sampling="allocation", participations=2, rounds=4)
    x, moved = np.array([0.1, -0.2, 5.0]), []
    for index in range(4):
        request = requested(method, index)
        whole = gathered(method, federation_of(users), index, x).values
        rows = np.zeros((0, 3))
        if len(others := request.users[request.users != who]):
            block, _ = method.problem.bound(federation_of(users).block(others))
            rows, _ = rows_of(method.problem, x, block, request.computation)
        moved.append(np.linalg.norm(whole - rows.sum(axis=0)) / method.scheme.sampler.expected_batch)
        assert (who in request.users) or moved[-1] <= 1e-12
    assert method.scheme.mechanism.l2_sensitivity == pytest.approx(0.7 / 3)
    assert max(moved) <= method.scheme.mechanism.l2_sensitivity * (1 + 1e-9)


def test_an_interrupted_secure_run_cannot_go_on_with_another_allocation():
    before, after = AllocatedBatches(60, 1, 5, None), AllocatedBatches(60, 1, 5, None)
    privacy = Privacy(1.0, 1e-3, noise="secure")
    noise = before.calibrate(1.0, 1e-3)
    first, second = RoundLedger(before, noise, privacy), RoundLedger(after, noise, privacy)
    first.charge(before.cohort(0))
    second.restore(first.state())
    with pytest.raises(BadInput, match="start the run anew"):
        second.charge(np.arange(12))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampling": "allocation", "cohort": 10}, "cohorts follow from strategy.participations"),
        ({"sampling": "poisson", "participations": 2}, "cohorts follow from strategy.cohort"),
        ({"sampling": "allocation", "participations": 5}, "must lie between 1 and the number of rounds, 4"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(BadInput, match=words):
        make(DPFedSGD, Quadratic(2, 1.0, 2.0), 300, delta=1e-3, rounds=4, **options)


# --- Rounding ---------------------------------------------------------------------------------------------------


def exact_sum(first, second):
    """The convolution of two laws, in whole numbers: nothing is rounded."""
    whole = [[int(Fraction(float(one)) * 2**1100) for one in law] for law in (first, second)]
    found = [0] * len(first)
    for place, one in enumerate(whole[0]):
        for other in range(len(first) - place):
            found[place + other] += one * whole[1][other]
    return np.array([float(Fraction(one, 2**2200)) for one in found])


@pytest.mark.parametrize("real", [np.float64, np.longdouble])
@given(seed=st.integers(0, 2**32), times=st.integers(2, 9), spread=st.floats(0.01, 8.0))
def test_rounding_of_sums_is_below_what_is_proven(real, seed, times, spread):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CELLS", 32)
        masses = np.random.default_rng(seed).gamma(1 / spread, size=32)
        masses /= masses.sum() * (1 + 1e-12)
        expected = masses
        for _ in range(times - 1):
            expected = exact_sum(expected, masses)
        computed = module.power(masses.astype(real), times, module._convolved)
        bound = module.transform_error(real, 2 * module._CELLS) * times * np.linalg.norm(masses)
        represented = 32 * np.finfo(np.float64).eps  # of what is expected, which has few digits itself
        assert np.abs(computed.astype(float) - expected).sum() <= bound + represented * expected.sum()


def test_what_is_added_for_rounding_is_the_formula_of_its_proof():
    """The constant is the proof's formula in numbers of many digits, and covers laws of any size."""
    with mpmath.workdps(50):
        for real in (np.float64, np.longdouble):
            u, length = mpmath.mpf(float(np.finfo(real).eps)) / 2, 2 * module._CELLS
            eta = u + 4 * u / (1 - 4 * u) * (mpmath.sqrt(2) + u)
            f = mpmath.log(length, 2) * eta / (1 - mpmath.log(length, 2) * eta)
            proven = 2 * mpmath.sqrt(length / 2) * 3 * (f + u)
            assert module.transform_error(real, 2 * module._CELLS) == pytest.approx(float(proven), rel=1e-12)
    for size, longest in ((1, 1.0), (17, 0.3), (4000, 0.02)):
        for delta in (1e-3, 1e-12):
            slack, real = module._BlockLaw(1.0, size, delta)._slack(longest)
            assert slack >= module.transform_error(real, 2 * module._CELLS) * size * longest


def test_where_float64_would_cost_a_thousandth_of_delta_numbers_are_wider():
    small, large = (module._BlockLaw(1.0, 1000, delta)._slack(0.3) for delta in (1e-9, 1e-3))
    assert large[1] is np.float64
    assert large[0] <= 1e-6
    if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        assert small[1] is np.longdouble
        assert small[0] < 1e-11


def test_rounding_is_priced_and_hardly_seen(monkeypatch):
    """The price of allocation with and without it: never less, and by less than a hundred-thousandth at delta 1e-5."""
    priced = allocation_epsilon.__wrapped__(1.0, 10, 1, 1e-5)
    monkeypatch.setattr(module._BlockLaw, "_slack", lambda law, longest: (0.0, np.float64))
    monkeypatch.setattr(module, "_SUMMED", 0.0)
    without = allocation_epsilon.__wrapped__(1.0, 10, 1, 1e-5)
    assert without < priced < without * (1 + 1e-5)
