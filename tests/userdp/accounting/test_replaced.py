"""Secret cohorts when a user is replaced: the worst pair, its price, and the losses of simulated rounds."""

import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import norm

from userdp.accounting import add_or_remove_to_replace_one, poisson_epsilon
from userdp.accounting import replaced_allocation as module
from userdp.accounting.allocation import allocation_epsilon
from userdp.accounting.amplified import poisson_round
from userdp.accounting.replaced_allocation import replaced_allocation_epsilon
from userdp.accounting.sampled_gaussian import SampledRounds, unequal_rounds_epsilon
from userdp.errors import BadInput
from userdp.sampling import AllocatedBatches, AmplifiedBands, MixedBatches, PoissonBatches

DELTA = 1e-5
STEP = 0.1
LINE = np.arange(-8, 8, STEP)  # of a normal, for sums over a grid


def ratio(moved, normals):
    """The likelihood ratio of normals moved by a vector, for arrays of coordinates."""
    along = sum(each * coordinate for each, coordinate in zip(moved, normals, strict=True))
    return np.exp(along - np.dot(moved, moved) / 2)


def poisson_divergence(rate, epsilon, first, second):
    """The divergence of one round with rows ``first`` and ``second``, by summing over a grid."""
    normals = np.meshgrid(*[LINE] * len(first), indexing="ij")
    weights = math.prod(norm.pdf(each) * STEP for each in normals)
    c = math.exp(epsilon)
    difference = (1 - rate) * (1 - c) + rate * (ratio(first, normals) - c * ratio(second, normals))
    return float((weights * np.maximum(difference, 0)).sum())


def pair_divergence(rate, epsilon, s):
    """The divergence of the claimed pair, from the root of its loss."""
    c = math.exp(epsilon)
    linear, constant = (1 - rate) * (c - 1), rate * math.exp(-(s**2) / 2)
    x = math.log((linear + math.sqrt(linear**2 + 4 * c * constant**2)) / (2 * constant)) / s
    above = (1 - rate) * ndtr(-x) + rate * ndtr(s - x)
    return above - c * ((1 - rate) * ndtr(-x) + rate * ndtr(-s - x))


# --- The worst pair --------------------------------------------------------------------------------------------------

short = st.floats(0.0, 1.0)
angles = st.floats(0.0, 2 * math.pi)


@settings(max_examples=80, deadline=None)
@given(st.floats(0.01, 1.0), st.floats(-1.0, 3.0), st.floats(0.2, 2.5), short, short, angles)
def test_no_two_rows_are_worse_than_opposite_ones_of_full_length(rate, epsilon, s, first, second, angle):
    """Two rows span a plane, whatever the dimension."""
    rows = np.array([s * first, 0.0]), s * second * np.array([math.cos(angle), math.sin(angle)])
    worst = pair_divergence(rate, epsilon, s)
    assert poisson_divergence(rate, epsilon, *rows) <= worst + 1e-3 * (1 + s**2)


def test_rows_in_three_dimensions_are_no_worse(monkeypatch):
    rng, module_of_this = np.random.default_rng(0), sys.modules[__name__]
    monkeypatch.setattr(module_of_this, "STEP", 0.25)
    monkeypatch.setattr(module_of_this, "LINE", np.arange(-6.5, 6.5, 0.25))
    for _ in range(12):
        rows = rng.normal(size=(2, 3))
        rows /= np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
        rate, epsilon = rng.uniform(0.05, 1), rng.uniform(0, 2)
        assert poisson_divergence(rate, epsilon, *rows) <= pair_divergence(rate, epsilon, 1.0) + 2e-3


def test_opposite_rows_attain_it_and_one_row_alone_does_not():
    worst, s = pair_divergence(0.3, 0.5, 1.0), np.array([1.0])
    assert poisson_divergence(0.3, 0.5, s, -s) == pytest.approx(worst, rel=1e-2)
    assert poisson_divergence(0.3, 0.5, s, 0 * s) < 0.9 * worst
    assert poisson_divergence(0.3, 0.5, 0 * s, s) < 0.9 * worst


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.5, 1.5), st.floats(0.0, 1.5))
def test_no_adaptive_rows_of_an_allocation_are_worse_than_independent_opposite_ones(seed, s, epsilon):
    """Three rounds of one number each: rows of later rounds follow from releases, as an adversary likes."""
    rng, c = np.random.default_rng(seed), math.exp(epsilon)
    line = np.arange(-6, 6, 0.2)
    normals = np.meshgrid(line, line, line, indexing="ij")
    weights = math.prod(norm.pdf(each) * 0.2 for each in normals)
    total, past = np.zeros_like(weights), np.zeros_like(weights)
    for z in normals:
        rows = []
        for _ in range(2):
            threshold, low, high = rng.normal(), *rng.choice([-1.0, 0.0, 0.5, 1.0], 2)
            rows.append(s * np.where(past > threshold, high, low))
        total += np.exp(rows[0] * z - rows[0] ** 2 / 2) - c * np.exp(rows[1] * z - rows[1] ** 2 / 2)
        past = past + rng.choice([-1.0, 1.0]) * z
    assert (weights * np.maximum(total / 3, 0)).sum() <= block(s, 3).divergence(epsilon) + 2e-3


def block(s, size, delta=DELTA):
    return module._Block(0.5 / s, size, delta)


# --- Prices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.2, 0.6), (0.9, 3.0)])
@pytest.mark.parametrize("epsilon", [-0.5, 0.0, 0.3, 2.0])
def test_the_losses_of_a_poisson_round_are_those_of_the_pair_rounded_up(rate, noise, epsilon):
    exact = pair_divergence(rate, epsilon, 1 / noise)
    found = poisson_round(noise / 2, rate, 1e-3, "replace_one").get_delta_for_epsilon(epsilon)
    assert exact * (1 - 1e-9) <= found <= exact * 1.001 + 1e-9


@pytest.mark.parametrize(("s", "epsilon"), [(0.5, 0.1), (1.0, 0.5), (1.5, 1.5)])
def test_a_block_of_two_rounds_costs_what_summing_over_a_grid_says(s, epsilon):
    exact = two_rounds(s, epsilon)
    assert exact * (1 - 1e-3) <= block(s, 2).divergence(epsilon) <= exact * 1.02


def two_rounds(s, epsilon):
    line = np.arange(-9, 9, 0.03)
    own, difference = norm.pdf(line) * 0.03, np.exp(s * line) - math.exp(epsilon) * np.exp(-s * line)
    summed = np.add.outer(difference, difference) * math.exp(-(s**2) / 2) / 2
    return own @ np.maximum(0, summed) @ own


@pytest.mark.parametrize("s", [0.3, 1.0, 2.0])
def test_one_round_of_one_is_a_gaussian_of_twice_the_clip(s):
    for epsilon in (0.0, 0.7, 3.0):
        exact = ndtr(s - epsilon / (2 * s)) - math.exp(epsilon) * ndtr(-s - epsilon / (2 * s))
        assert exact <= block(s, 1).divergence(epsilon) <= exact * 1.01 + 1e-4 * DELTA


ROWS = pd.read_csv(Path(__file__).parents[3] / "research" / "results" / "replaced_users.csv")
QUICK = ROWS.index[::6]


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ROWS.index]
)
def test_prices_are_those_of_simulated_losses_never_below_and_hardly_above(number):
    """The table's intervals are four standard errors wide on either side."""
    row = ROWS.loc[number]
    noise, rounds, delta = row["noise"] / 2, int(row["rounds"]), row["delta"]
    if row["kind"] == "poisson":
        price = poisson_epsilon(noise, row["rate"], rounds, delta, "replace_one")
    else:
        price = replaced_allocation_epsilon(noise, rounds, int(row["participations"]), delta)
    assert row["low"] <= price <= 1.02 * row["high"]


def test_the_table_holds_a_hundred_settings_that_tell_something():
    assert len(ROWS) == 100
    assert set(ROWS["kind"]) == {"poisson", "allocation"}
    assert (ROWS["high"] / ROWS["low"].clip(lower=1e-12) < 1.05).sum() >= 95


@settings(max_examples=6, deadline=None)
@given(st.floats(0.7, 4.0), st.floats(0.01, 0.6), st.integers(1, 60), st.sampled_from([1e-4, 1e-6]))
def test_replacing_costs_more_than_adding_and_no_more_than_two_users(noise, rate, rounds, delta):
    added = poisson_epsilon(noise, rate, rounds, delta)
    replaced = poisson_epsilon(noise / 2, rate, rounds, delta, "replace_one")
    assert added <= replaced * (1 + 1e-6) + 1e-9
    doubled, more = add_or_remove_to_replace_one(added, delta)
    assert more >= 1 or poisson_epsilon(noise / 2, rate, rounds, more, "replace_one") <= doubled * 1.001 + 1e-9


@pytest.mark.parametrize(("noise", "rounds", "times"), [(1.0, 60, 1), (0.8, 40, 4), (2.0, 100, 3)])
def test_replacing_an_allocated_user_costs_more_than_adding_it_and_no_more_than_two(noise, rounds, times):
    added = allocation_epsilon(noise, rounds, times, 1e-5)
    doubled, more = add_or_remove_to_replace_one(added, 1e-5)
    assert added < replaced_allocation_epsilon(noise / 2, rounds, times, 1e-5)
    assert more >= 1 or replaced_allocation_epsilon(noise / 2, rounds, times, more) < doubled


def test_rounds_with_all_users_are_one_gaussian_of_twice_the_clip():
    steps = [SampledRounds(3.0, 1.0, 2), SampledRounds(1.2, 0.05, 10)]
    both, drawn = (unequal_rounds_epsilon(some, DELTA, "replace_one") for some in (steps, steps[1:]))
    assert drawn == pytest.approx(poisson_epsilon(1.2, 0.05, 10, DELTA, "replace_one"), rel=1e-3)
    nearly = [SampledRounds(3.0, 1 - 1e-9, 2), steps[1]]
    assert both == pytest.approx(unequal_rounds_epsilon(nearly, DELTA, "replace_one"), rel=1e-3)


def test_grids_and_long_doubles_change_little(monkeypatch):
    coarse = replaced_allocation_epsilon.__wrapped__(0.5, 100, 1, 1e-6)
    monkeypatch.setattr(module, "_STEP", 0.1)
    monkeypatch.setattr(module, "_ROUNDED", 0.0)  # always long doubles
    fine = replaced_allocation_epsilon.__wrapped__(0.5, 100, 1, 1e-6)
    assert fine <= coarse <= 1.01 * fine


def test_mass_beyond_the_grid_counts_in_full():
    exact, early = two_rounds(1.0, 0.0), module._Sum(1.0, 2, 1.0, lost=1.0)
    assert early._cells()[-1] > 0.01  # far more than the error of the rest
    assert exact < early.divergence(1e-9) < exact + 0.03


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("lost", [1e-9, 1.0])
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_what_is_added_for_rounding_is_added_where_the_proof_adds_it(size, lost, ratio, monkeypatch):
    """Each probability is raised, or lowered, and so is each sum; errors are made so large that they show."""
    unit, error = 1e-9, 1e-5
    monkeypatch.setattr(module, "_UNIT", unit)
    monkeypatch.setattr(module, "transform_error", lambda real, length: error * length)
    one = module._Sum(1.0, size, ratio, lost)
    law, values, beyond = one._cells()
    points, half = len(law), len(law) // 2
    others = (np.arange(points) == half).astype(float)
    for _ in range(size - 1):
        whole = np.convolve(others, law)
        others = np.append(whole[: half + 1].sum(), whole[half + 1 : half + points])
    above = np.array([others[points - place :].sum() for place in range(points)])  # minus the value at each place
    slack = error * 2 * (points + 1) * math.sqrt(2) * size * np.linalg.norm(law)
    gained = np.where(values > 0, values * np.minimum(1, above + slack), 0) @ law * (1 + 4 * points * unit)
    lost_by = np.where(values < 0, -values * np.maximum(0, above - slack), 0) @ law * (1 - 4 * points * unit)
    missing = beyond + max(0.0, 1 - others.sum()) + points * unit + slack
    assert one.divergence(math.inf) == pytest.approx(gained - lost_by + missing, rel=0, abs=1e-10)


def test_little_noise_has_the_price_of_plain_composition():
    assert replaced_allocation_epsilon(0.05, 10, 2, DELTA) == poisson_epsilon(0.05, 1.0, 2, DELTA, "replace_one")


# --- Samplers --------------------------------------------------------------------------------------------------------

EITHER = {
    "poisson": partial(PoissonBatches, 1000, 0.1, 30),
    "allocation": partial(AllocatedBatches, 1000, 1, 30),
    "mixed": partial(MixedBatches, 1000, (*(0.1,) * 29, 1.0), (*(0.03,) * 29, 0.13)),
    "bands": partial(AmplifiedBands, 1000, 10, 30, 4),
}


@pytest.mark.parametrize("made", EITHER.values(), ids=EITHER)
def test_a_sampler_prices_the_relation_that_it_is_asked_for(made):
    added, replaced = made(), made(relation="replace_one")
    assert (added.relation, replaced.relation) == ("add_or_remove", "replace_one")
    assert (added.sensitivity_factor, replaced.sensitivity_factor) == (1, 2)
    assert added.replaced(3.0, DELTA) == replaced.replaced(1.5, DELTA) == (replaced.epsilon(1.5, DELTA), DELTA)
    assert replaced.guarantee(1.5, DELTA, "anybody", ()).relation == "replace_one"
    np.testing.assert_array_equal(added.cohort(0), replaced.cohort(0))
    with pytest.raises(BadInput, match="relation = 'replace-one'"):
        made(relation="replace-one")


def test_noise_is_calibrated_for_replacing_a_user():
    noise = PoissonBatches(1000, 0.1, 30, relation="replace_one").calibrate(1.0, DELTA)
    assert 0.999 < poisson_epsilon(noise, 0.1, 30, DELTA, "replace_one") <= 1.0
    added = PoissonBatches(1000, 0.1, 30).calibrate(1.0, DELTA)
    assert added < 2 * noise < 2 * added


def test_wrong_relations_are_refused():
    for price in (partial(poisson_epsilon, 1.0, 0.1, 3, DELTA), partial(unequal_rounds_epsilon, [], DELTA)):
        with pytest.raises(BadInput, match="relation = 'both'"):
            price("both")
    with pytest.raises(BadInput, match="delta = 0"):
        replaced_allocation_epsilon(1.0, 3, 1, 0.0)
    with pytest.raises(BadInput, match="participations = 4"):
        replaced_allocation_epsilon(1.0, 3, 4, DELTA)
