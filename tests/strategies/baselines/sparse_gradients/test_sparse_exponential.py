"""The exponential mechanism on lattice points of a ball: the net, the law of the choice, privacy, utility."""

import itertools
import math

import numpy as np
import pytest
from helpers_audits import epsilon_lower_bound
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from strategies.baselines.sparse_gradients.exponential_choice import (
    LARGEST_NET,
    SparseExponential,
    enumerable,
    lattice_counts,
    lattice_points,
)
from userdp.errors import BadInput
from userdp.noise import Scores, SecureNoise, SeededNoise

seeds = st.integers(0, 2**32 - 1)
FALSE_ALARM = 1e-9


def absolute(rows, targets):
    """Mean of ``|<a, x> - y|``: convex, L-Lipschitz for rows of norm L, not smooth."""
    return lambda models: np.abs(models @ rows.T - targets).mean(axis=1)


def sparse_rows(rng, records, dimension, sparsity):
    rows = np.zeros((records, dimension))
    for row in rows:
        row[rng.choice(dimension, sparsity, replace=False)] = rng.choice([-1.0, 1.0], sparsity) / math.sqrt(sparsity)
    return rows


# --- The net ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dimension", "most"), [(1, 30), (2, 17), (3, 9), (4, 6), (7, 2)])
def test_the_net_is_every_lattice_point_of_the_ball_once_c15(dimension, most):
    side = range(-math.isqrt(most), math.isqrt(most) + 1)
    expected = {z for z in itertools.product(side, repeat=dimension) if sum(v * v for v in z) <= most}
    points = lattice_points(dimension, most)
    assert len(points) == len(expected) == lattice_counts(dimension)[most]
    assert {tuple(point) for point in points.tolist()} == expected
    assert lattice_counts(dimension)[most] <= (2 * dimension + 1) ** most


def test_nets_too_large_are_refused_c15():
    assert SparseExponential(10, 20, 2, 1.0, 1.0, 1.0, 5).candidates == 585_129
    with pytest.raises(BadInput, match=r"steps = 6: .*at most 1e"):
        SparseExponential(10, 20, 2, 1.0, 1.0, 1.0, 6)
    with pytest.raises(BadInput, match="squared norm = 6"):
        lattice_points(20, 6)
    assert lattice_counts(20)[6] > LARGEST_NET
    assert len(enumerable(10**6)) == 1  # the origin alone, and entries are counted too


# --- The choice ------------------------------------------------------------------------------------------------------


def setting(seed=1, **changes):
    rng = np.random.default_rng(seed)
    rows = sparse_rows(rng, 12, 3, 2)
    targets = rng.uniform(-1, 1, 12)
    made = SparseExponential(**{
        "records": 12, "dimension": 3, "sparsity": 2, "gradient_norm": 1.0, "radius": 1.0, "epsilon": 2.0, "steps": 3
    } | changes)  # fmt: skip
    return made, rows, targets


def repeated(scores, times):
    return Scores(np.tile(scores.values, (times, 1)), scores.moved)


def law(made, risk):
    """Probabilities of the candidates, by the definition."""
    exponents = -made.epsilon * made.records * risk(made.net()) / (2 * made.range_of_losses)
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("secure", [False, True])
def test_choices_have_the_law_of_the_exponential_mechanism_c15(secure):
    made, rows, targets = setting(epsilon=20.0)
    probabilities = law(made, absolute(rows, targets))
    noise = SecureNoise() if secure else SeededNoise(np.random.default_rng(3))
    scores = repeated(made.scores(absolute(rows, targets)), 4000)
    counts = np.bincount(noise.choose(scores, made.epsilon), minlength=made.candidates)
    common = 4000 * probabilities > 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(4000 * probabilities[common], 4000 * probabilities[~common].sum())
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM
    model = made(absolute(rows, targets), noise)
    assert np.abs(made.net() - model).max(axis=1).min() == 0


@settings(max_examples=60)
@given(seeds, st.floats(0.1, 5.0))
def test_neighbours_laws_differ_by_epsilon_at_most_exactly_c15(seed, epsilon):
    made, rows, targets = setting(epsilon=epsilon)
    rng = np.random.default_rng(seed)
    other, moved = rows.copy(), targets.copy()
    other[0], moved[0] = sparse_rows(rng, 1, 3, 2)[0], rng.uniform(-1e3, 1e3)  # a loss far off counts by its slope
    ratio = np.log(law(made, absolute(rows, targets)) / law(made, absolute(other, moved)))
    assert np.abs(ratio).max() <= epsilon * (1 + 1e-9)


def test_a_declared_spread_counts_where_it_is_smaller_c15():
    made, rows, targets = setting(spread=0.5)
    assert made.range_of_losses == 0.5
    assert setting(spread=9.0)[0].range_of_losses == 2.0
    # Losses within [0, 1/2] of each other: truncated absolute errors, which need not be convex for privacy.
    truncated = [np.minimum(np.abs(made.net() @ rows.T - shift), 0.5) for shift in (targets, targets)]
    truncated[1][:, 0] = 0.5 - truncated[0][:, 0]
    laws = [law(made, lambda _, part=part: part.mean(axis=1)) for part in truncated]
    assert np.abs(np.log(laws[0] / laws[1])).max() <= made.epsilon


@pytest.mark.slow
def test_the_excess_is_below_its_bound_and_falls_with_n_c25():
    rng = np.random.default_rng(4)
    dimension, bounds = 3, []
    direction = np.zeros(dimension)
    direction[0] = 0.9
    for n in (200, 2000, 20_000):
        kinds, counts = np.unique(sparse_rows(rng, n, dimension, 2), axis=0, return_counts=True)

        def risk(models, kinds=kinds, shares=counts / n):  # the best model is perfect
            return np.abs((models - direction) @ kinds.T) @ shares

        made = SparseExponential.planned(n, dimension, 2, 1.0, 1.0, 1.0)
        bounds.append(made.excess_bound(0.1))
        scores = repeated(made.scores(risk), 20)
        chosen = made.net()[SeededNoise(rng).choose(scores, made.epsilon)]
        assert np.mean(risk(chosen) > bounds[-1]) <= 0.1
        others = [SparseExponential(n, dimension, 2, 1.0, 1.0, 1.0, steps) for steps in (1, made.steps - 1)]
        assert all(made.excess_bound(0.1) <= other.excess_bound(0.1) for other in others)
    assert bounds[0] > 2 * bounds[1] > 2 * bounds[2]


def test_choices_do_not_refute_epsilon_and_do_refute_a_sensitivity_that_is_too_small_c26():
    """One record, f(x) = x against -x: both laws add up to the same, so half of epsilon is what can be seen."""
    runs, bounds = 20_000, []
    for spread in (2.0, 0.5):  # the second is four times too small
        made = SparseExponential(1, 1, 1, 1.0, 1.0, 2.0, 1, spread=spread)
        rng = np.random.default_rng(6)
        ends = []
        for sign in (1.0, -1.0):
            scores = repeated(made.scores(lambda models, sign=sign: sign * models[:, 0]), runs)
            ends.append(made.net()[SeededNoise(rng).choose(scores, 2.0), 0])
        bounds.append(epsilon_lower_bound(*ends))
    assert 0.9 < bounds[0] <= 1.0
    assert bounds[1] > 2.0


def test_numbers_out_of_range_are_refused():
    for change, message in [
        ({"records": 0}, "records = 0"),
        ({"sparsity": 4}, "sparsity = 4"),
        ({"gradient_norm": math.nan}, "gradient_norm = nan"),
        ({"epsilon": 0.0}, "epsilon = 0"),
        ({"radius": math.inf}, "radius = inf"),
        ({"spread": math.nan}, "range_of_losses = nan"),
        ({"steps": 0}, "steps = 0"),
    ]:
        with pytest.raises(BadInput, match=message):
            setting(**change)
    made, _, _ = setting()
    with pytest.raises(BadInput, match="no finite number"):
        made(lambda models: np.full(len(models), np.nan), SeededNoise(np.random.default_rng(0)))
    with pytest.raises(BadInput, match="failure = 1"):
        made.excess_bound(1.0)
