"""Samplers that own their accounting: what is drawn, what it costs, and ledgers that count rounds."""

import math
from functools import partial

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from userdp.accounting import Cost, Ledger, Privacy, RoundLedger, add_or_remove_to_replace_one, epsilon_of
from userdp.accounting.amplified import _fixed_size_round, calibrate_amplified, fixed_size_epsilon, poisson_epsilon
from userdp.errors import BadInput, PopulationTooSmall, RunFailed
from userdp.randomness import stream
from userdp.sampling import (
    AllocatedBatches,
    ConcentratedBatches,
    CyclicBatches,
    DisjointBatches,
    FixedSizeBatches,
    MixedBatches,
    PoissonBatches,
    SampleCoins,
    Sampler,
    WeightedBatches,
    WeightedSlots,
)

DELTA = 1e-5
SHARES = (0.2, 0.3, 0.5)
SAMPLERS: dict[str, Sampler] = {
    "disjoint": DisjointBatches(1000, 100, 3),
    "cyclic": CyclicBatches(1000, 100, 3),
    "concentrated": ConcentratedBatches(1000, 100, 3),
    "weighted": WeightedBatches(1000, 100, 3, shares=SHARES),
    "slots": WeightedSlots(1000, 100, 3, shares=SHARES),
    "poisson": PoissonBatches(1000, 0.1, 30),
    "fixed_size": FixedSizeBatches(1000, 100, 30),
    "allocation": AllocatedBatches(1000, 3, 30),
    "mixed": MixedBatches(1000, (*(0.1,) * 29, 1.0), (*(0.03,) * 29, 0.13)),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
SECONDS = [name for name, sampler in SAMPLERS.items() if sampler.secret and name != "poisson"]
"""Samplers with a calibration that takes seconds."""
every_calibrated_sampler = pytest.mark.parametrize(
    "sampler",
    [pytest.param(each, id=name, marks=[pytest.mark.slow] * (name in SECONDS)) for name, each in SAMPLERS.items()],
)

# --- What is drawn -------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    st.integers(1, 60).flatmap(
        lambda users: st.tuples(st.just(users), st.integers(1, users), st.integers(1, 4), st.integers(0, 2**31))
    )
)
def test_batches_of_an_epoch_are_disjoint_and_of_one_size(case):
    """So nobody takes part more often than there are epochs."""
    users, batch, epochs, seed = case
    sampler = DisjointBatches(users, batch, epochs, seed)
    assert sampler.rounds == epochs * (users // batch)
    for epoch in range(epochs):
        first = epoch * sampler.rounds_per_epoch
        cohorts = [sampler.cohort(first + index) for index in range(sampler.rounds_per_epoch)]
        together = np.concatenate(cohorts)
        assert {len(cohort) for cohort in cohorts} == {batch}
        assert len(np.unique(together)) == len(together)
        assert together.min() >= 0
        assert together.max() < users


@pytest.mark.parametrize("make", [lambda s: DisjointBatches(20, 5, 1, s), lambda s: FixedSizeBatches(20, 5, 1, s)])
def test_every_user_is_as_likely_as_any_other_in_cohorts_of_one_size(make):
    counts = np.bincount(np.concatenate([make(seed).cohort(0) for seed in range(2000)]), minlength=20)
    assert counts.sum() == 5 * 2000
    # A chi-square of 19 degrees of freedom (a little less, for cohorts have a fixed size): above 50 once in 10,000.
    assert ((counts - 500) ** 2 / 500).sum() < 50


def test_poisson_cohorts_have_the_mean_and_the_variance_of_independent_coins():
    sampler = PoissonBatches(500, 0.2, 2000, seed=3)
    cohorts = [sampler.cohort(index) for index in range(sampler.rounds)]
    sizes = np.array([len(cohort) for cohort in cohorts])
    # Mean 100, variance 80: six standard errors each.
    assert abs(sizes.mean() - 100) < 6 * math.sqrt(80 / 2000)
    assert abs(sizes.var() - 80) < 6 * 80 * math.sqrt(2 / 2000)
    assert sampler.expected_batch == 100
    counts = np.bincount(np.concatenate(cohorts), minlength=500)
    # Chi-square of 500 degrees of freedom and standard deviation 32: six of them.
    assert abs(((counts - 400) ** 2 / 320).sum() - 500) < 190


@settings(max_examples=50)
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(1, 4))))
def test_cyclic_batches_return_after_exactly_the_separation(case):
    users, batch, epochs = case
    sampler = CyclicBatches(users, batch, epochs, seed=7)
    assert sampler.separation == users // batch
    for index in range(sampler.rounds - sampler.separation):
        np.testing.assert_array_equal(sampler.cohort(index), sampler.cohort(index + sampler.separation))
    first = np.concatenate([sampler.cohort(index) for index in range(sampler.separation)])
    assert len(np.unique(first)) == len(first)
    assert not np.array_equal(SAMPLERS["disjoint"].cohort(3), SAMPLERS["disjoint"].cohort(13))  # an epoch of its own


def test_samples_beyond_the_declared_number_are_never_drawn():
    for index in range(3):
        keys = stream(1, "sampling", index).integers(0, 1 << 64, size=50, dtype=np.uint64)
        coins = SampleCoins(0.5, keys, most=7).draw(slice(0, 50), np.full(50, 40)).reshape(50, 40)
        assert coins[:, :7].any(axis=0).all()
        assert not coins[:, 7:].any()


NO_MIXES = [
    *((0, (1.0,), (1.0,)), (9, (), ()), (9, (1.5,), (1.0,)), (9, (0.0,), (1.0,)), (9, (0.5,), (0.5, 0.5))),
    *((9, (0.5, 0.5), (0.7, 0.7)), (9, (0.5, 0.5), (1.0, 0.0)), (9, (0.5,), (math.nan,))),
]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        *[(partial(DisjointBatches, *numbers), BadInput) for numbers in ((0, 1), (5, 0), (5, 2, 0), (5, -1))],
        *[(partial(AllocatedBatches, *numbers), BadInput) for numbers in ((0, 1, 1), (5, 1, 0), (5, 0, 3), (5, 4, 3))],
        *[(partial(MixedBatches, *numbers), BadInput) for numbers in NO_MIXES],
        (lambda: PoissonBatches(0, 0.5, 1), BadInput),
        (lambda: PoissonBatches(5, 0.5, 0), BadInput),
        (lambda: PoissonBatches(5, 1.1, 1), BadInput),
        (lambda: FixedSizeBatches(5, 0, 1), BadInput),
        (lambda: FixedSizeBatches(5, 2, 0), BadInput),
        (lambda: FixedSizeBatches(5, 6, 1), PopulationTooSmall),
        (lambda: CyclicBatches(5, 6), PopulationTooSmall),
        (lambda: poisson_epsilon(1.0, 0.0, 1, DELTA), BadInput),
        (lambda: fixed_size_epsilon(1.0, 1.5, 1, DELTA), BadInput),
        (lambda: poisson_epsilon(0.0, 0.5, 1, DELTA), BadInput),
        (lambda: fixed_size_epsilon(1.0, 0.5, 1, 0.0), BadInput),
        (lambda: PoissonBatches(5, 0.5, 1).calibrate(-1.0, DELTA), BadInput),
    ],
)
def test_what_cannot_be_drawn_or_accounted_is_refused(make, error):
    with pytest.raises(error):
        make()


# --- What it costs -------------------------------------------------------------------------------------------------


def test_the_known_epsilons_of_poisson_and_fixed_size_sampling():
    assert 7.0 <= PoissonBatches(1000, 0.1, 100).epsilon(1.0, DELTA) <= 7.1
    assert FixedSizeBatches(1000, 100, 100).epsilon(1.0, DELTA) == pytest.approx(14.05, rel=0.01)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("noise", "rate", "rounds"), [(0.7, 0.02, 200), (1.5, 0.3, 10), (6.0, 0.05, 50)])
def test_poisson_agrees_with_dp_accounting_on_a_finer_grid(noise, rate, rounds):
    fine = PLDAccountant(value_discretization_interval=min(1e-4, rate / noise / 50))
    fine.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), rounds)
    assert poisson_epsilon(noise, rate, rounds, DELTA) == pytest.approx(fine.get_epsilon(DELTA), rel=5e-3)


def _renyi(first, second, order):
    """The Renyi divergence of two densities on the line, by quadrature."""
    value, _ = quad(lambda t: first(t) ** order * second(t) ** (1 - order), -30, 30, limit=400)
    return math.log(value) / (order - 1)


def _mixture(rate, out, inside, deviation):
    return lambda t: (1 - rate) * norm.pdf(t, out, deviation) + rate * norm.pdf(t, inside, deviation)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("noise", [1.0, 2.0])
@pytest.mark.parametrize("order", [2.0, 3.0, 5.0])
def test_fixed_size_covers_true_neighbours_at_every_order_when_noise_is_over_twice_the_clip(rate, noise, order):
    """Sums of a cohort with the user in it or another one of vector c in its place; the clip is 1, the noise 2z."""
    orders, bounds = _fixed_size_round(noise, rate)
    bound, deviation = bounds[orders == order].item(), 2 * noise
    for others in (-1.0, 0.0, 1.0):
        for mine, yours in ((1.0, -1.0), (-1.0, 1.0), (1.0, 0.0), (0.0, 1.0)):
            first = _mixture(rate, 0.0, mine - others, deviation)
            second = _mixture(rate, 0.0, yours - others, deviation)
            assert _renyi(first, second, order) <= bound * (1 + 1e-9)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.1), (1.0, 0.5), (2.0, 0.3)])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_one_poisson_round_is_the_exact_divergence_of_its_two_neighbours(noise, rate, delta):
    with_user, without = _mixture(rate, 0.0, 1.0, noise), _mixture(rate, 0.0, 0.0, noise)
    epsilon = poisson_epsilon(noise, rate, 1, delta)
    grid = np.linspace(-15, 16, 400_001)
    for first, second in ((with_user, without), (without, with_user)):
        gap = first(grid) - math.exp(epsilon) * second(grid)
        assert np.trapezoid(np.maximum(gap, 0), grid) <= delta * (1 + 1e-6)
    # One direction is tight: a hair less epsilon is not enough.
    gap = with_user(grid) - math.exp(epsilon - 3e-3) * without(grid)
    assert np.trapezoid(np.maximum(gap, 0), grid) > delta


@pytest.mark.parametrize("price", [poisson_epsilon, fixed_size_epsilon])
@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.9), (1.0, 0.1), (50.0, 0.5)])
def test_sampling_never_costs_more_than_taking_part_every_time(price, noise, rate):
    plain = epsilon_of(Cost(noise), 20, DELTA)
    assert price(noise, rate, 20, DELTA) <= plain
    assert price(noise, 1.0, 20, DELTA) == plain


@pytest.mark.parametrize("price", [poisson_epsilon, fixed_size_epsilon])
def test_calibration_stops_at_noise_that_protects_nobody(price):
    noise = calibrate_amplified(lambda z: price(z, 0.01, 1, DELTA), 5000.0, DELTA, 1)
    assert noise <= 0.05
    assert price(noise, 0.01, 1, DELTA) <= 5000


@every_sampler
def test_every_epsilon_is_shown_for_replacing_a_user_too(sampler):
    epsilon, delta = sampler.replaced(4.0, DELTA)
    own, (doubled, more) = sampler.epsilon(4.0, DELTA), add_or_remove_to_replace_one(sampler.epsilon(4.0, DELTA), DELTA)
    assert delta == DELTA
    if sampler.relation == "replace_one":
        assert epsilon == own
    else:  # no more than group privacy says at its own delta
        assert own < epsilon
        assert sampler.replaced(4.0, more)[0] <= doubled


# --- The ledger ----------------------------------------------------------------------------------------------------


@every_calibrated_sampler
def test_the_samplers_ledger_spends_what_the_sampler_says_and_not_a_round_more(sampler):
    noise = sampler.calibrate(1.0, DELTA)
    ledger = sampler.ledger(noise, Privacy(1.0, DELTA))
    assert isinstance(ledger, Ledger if type(sampler) in (DisjointBatches, CyclicBatches) else RoundLedger)
    assert ledger.epsilon() == 0
    for index in range(sampler.rounds):
        ledger.charge(sampler.cohort(index))
        if index in (0, 9, 10, 20):
            assert ledger.epsilon() == sampler.epsilon(noise, DELTA, index + 1)
    assert 0.999 < ledger.epsilon() <= 1
    with pytest.raises(RunFailed, match="planned"):
        ledger.charge(sampler.cohort(0))
    assert ledger.epsilon() <= 1


@every_sampler
def test_a_plan_beyond_the_budget_is_refused(sampler):
    with pytest.raises(BadInput, match="would cost epsilon"):
        sampler.ledger(0.9 * sampler.calibrate(1.0, DELTA), Privacy(1.0, DELTA))


def test_a_round_ledger_continues_from_its_checkpoint_and_from_no_other():
    sampler = SAMPLERS["poisson"]
    noise = sampler.calibrate(1.0, DELTA)
    first, second = (RoundLedger(sampler, noise, Privacy(1.0, DELTA)) for _ in range(2))
    for index in range(4):
        first.charge(sampler.cohort(index))
    second.restore(first.state())
    assert second.epsilon() == first.epsilon() > 0
    second.charge(sampler.cohort(4))
    with pytest.raises(BadInput, match="for 7 rounds, the run plans 30"):
        second.restore({"charged": 2, "rounds": 7})
    for charged in (-1, 31):
        with pytest.raises(BadInput, match="no run of this plan wrote it"):
            second.restore({"charged": charged, "rounds": 30})
    assert second.rounds == 5
