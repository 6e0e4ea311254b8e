"""The smoothly truncated mean of Hu, Ni, Xiao, Wang 2022: its properties T1 to T5, by number."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.integrate import quad

from strategies.baselines.smoothed_truncation import (
    LARGEST,
    coordinate_sensitivity,
    largest_truncated,
    noisily_truncated,
    smoothed_truncation,
    smoothed_truncation_mean,
    soft_truncation,
)

EDGE = math.sqrt(2)
BETAS = [0.01, 0.3, 1.0, 2.3, 5.0, 50.0, 1000.0, math.inf]
each_beta = pytest.mark.parametrize("beta", BETAS)
wild = st.sampled_from([0.0, 5e-324, 1.0, -3.0, 1e12, -1e12, 1e300, -1e300, math.inf, -math.inf, math.nan])

VECTORS = [
    (0.5, 0.25, 0.463542325267777, 6.5860111076419e-7),
    (1, 1, 0.564087272574384, 0.23075393924105),
    (-1, 0.5, -0.730487182262447, None),
    (EDGE, 0.1, 0.939406488436264, None),
    (2, 0.5, 0.935019625842365, 0.518352959175699),
    (3, 3, 0.633665587060653, 15.6336655870607),
    (0.1, 5, 0.0149247399700185, None),
    (-5, 2, -0.926734604236793, -26.7600679375701),
]


def terms(a, b):
    """The closed form, term by term as it is printed: in float64 it leaves its bound at a million."""
    lib = mpmath.mp
    edge, root, cap = lib.sqrt(2), lib.sqrt(2 * lib.pi), 2 * lib.sqrt(2) / 3
    lower, upper = (edge - a) / b, (edge + a) / b
    below, above = lib.ncdf(-lower), lib.ncdf(-upper)
    near, far = lib.exp(-(lower**2) / 2), lib.exp(-(upper**2) / 2)
    return (
        a * (1 - b * b / 2)
        - a**3 / 6
        + cap * (below - above)
        - (a - a**3 / 6) * (below + above)
        + b / root * (1 - a * a / 2) * (far - near)
        + a * b * b / 2 * (above + below + (upper * far + lower * near) / root)
        + b**3 / (6 * root) * ((2 + lower**2) * near - (2 + upper**2) * far)
    )


def exact(a, beta):
    with mpmath.workdps(60):
        a, width = mpmath.mpf(a), mpmath.mpf(a) / mpmath.sqrt(beta)
        if a + 50 * width < 1:  # the edges are fifty deviations away: what is truncated there is below 1e-500
            return float(a * (1 - width**2 / 2) - a**3 / 6)
        return float(terms(a, width))


# --- T1, T2: phi and its smoothing -----------------------------------------------------------------------------------


def test_phi_is_odd_rising_bounded_and_smooth_at_its_edges_t01():
    u = np.arange(-100_000, 100_001) / 2000
    phi = soft_truncation(u)
    np.testing.assert_allclose(phi, -soft_truncation(-u), rtol=1e-15)
    assert np.diff(phi).min() >= -1e-15
    assert np.abs(phi).max() == pytest.approx(LARGEST, rel=1e-15)
    assert np.abs(phi).max() <= LARGEST * (1 + 1e-15)
    step = 1e-5
    inner, outer = soft_truncation(np.array([EDGE - step, EDGE + step]))
    assert outer == pytest.approx(LARGEST, rel=1e-15)
    assert (outer - inner) / (2 * step) == pytest.approx(0.0, abs=1e-4)
    slopes = (soft_truncation(u + step) - soft_truncation(u - step)) / (2 * step)
    np.testing.assert_allclose(slopes, np.maximum(0, 1 - u**2 / 2), atol=1e-4)


def test_phi_lies_between_the_logarithms_of_catoni_t01():
    u = np.arange(-100_000, 100_001) / 2000
    assert (soft_truncation(u) <= np.log1p(u + u**2 / 2) + 1e-15).all()
    assert (soft_truncation(u) >= -np.log1p(-u + u**2 / 2) - 1e-15).all()


@pytest.mark.parametrize(("a", "b", "value", "correction"), VECTORS)
def test_the_expectation_to_fifteen_digits_t02(a, b, value, correction):
    found = float(smoothed_truncation(np.array(a), np.array(b)))
    assert found == pytest.approx(value, rel=1e-14, abs=1e-15)
    assert float(smoothed_truncation(np.array(-a), np.array(b))) == -found
    if correction is not None:
        assert found - a * (1 - b**2 / 2) + a**3 / 6 == pytest.approx(correction, rel=1e-13, abs=1e-14)


@pytest.mark.slow
def test_the_expectation_is_the_integral_and_the_average_of_draws_t02():
    rng = np.random.default_rng(0)
    draws = rng.standard_normal(200_000)
    for a, b in zip(2 * rng.standard_normal(40), 2 * np.abs(rng.standard_normal(40)) + 0.05, strict=True):
        inner = quad(lambda u: float(soft_truncation(u)) * stats.norm.pdf(u, a, b), -EDGE, EDGE, epsabs=1e-14)[0]  # noqa: B023
        outer = LARGEST * (stats.norm.sf(EDGE, a, b) - stats.norm.cdf(-EDGE, a, b))
        found = float(smoothed_truncation(np.array(a), np.array(b)))
        assert found == pytest.approx(inner + outer, abs=1e-12)
        values = soft_truncation(a + b * draws)
        assert found == pytest.approx(values.mean(), abs=5 * values.std() / math.sqrt(draws.size))


# --- T3: floating point ----------------------------------------------------------------------------------------------


@each_beta
def test_every_float_gives_the_right_value_within_the_supremum_t03(beta):
    sizes = np.concatenate([np.logspace(-300, 15, 64), np.logspace(-3, 3, 61), [0.0, 5e-324]])
    found = noisily_truncated(sizes, beta)
    reference = soft_truncation(sizes) if math.isinf(beta) else np.array([exact(a, beta) for a in sizes])
    np.testing.assert_allclose(found, reference, rtol=1e-12, atol=3e-14)
    np.testing.assert_allclose(noisily_truncated(np.logspace(15, 300, 58), beta), largest_truncated(beta), rtol=1e-12)
    np.testing.assert_array_equal(noisily_truncated(-sizes, beta), -found)
    assert np.abs(found).max() <= largest_truncated(beta)


@each_beta
def test_it_rises_and_infinities_give_the_limit_t03(beta):
    line = noisily_truncated(np.linspace(-20, 20, 40_001), beta)
    assert np.diff(line).min() >= -1e-13
    ends = noisily_truncated(np.array([-math.inf, math.inf, math.nan]), beta)
    np.testing.assert_allclose(ends, [-largest_truncated(beta), largest_truncated(beta), 0.0], rtol=1e-14)


# --- T4, T5: the mean ------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(arrays(np.float64, (4, 2), elements=wild), arrays(np.float64, 2, elements=wild), st.sampled_from(BETAS))
def test_replacing_a_row_by_anything_moves_no_coordinate_by_more_than_the_sensitivity_t04(rows, other, beta):
    neighbour = rows.copy()
    neighbour[2] = other
    moved = np.abs(smoothed_truncation_mean(rows, 0.7, beta) - smoothed_truncation_mean(neighbour, 0.7, beta))
    assert moved.max() <= coordinate_sensitivity(0.7, 4, beta) * (1 + 1e-12)
    assert coordinate_sensitivity(0.7, 4, beta) <= 4 * EDGE * 0.7 / (3 * 4) * (1 + 1e-12)


@each_beta
def test_the_sensitivity_is_attained_and_the_mean_follows_units_t04(beta):
    rows = np.random.default_rng(0).standard_t(2.1, (5, 3))
    ends = []
    for far in (1e12, -1e12):
        rows[0] = far
        ends.append(smoothed_truncation_mean(rows, 1.0, beta))
    np.testing.assert_allclose(ends[0] - ends[1], coordinate_sensitivity(1.0, 5, beta), rtol=1e-9)
    np.testing.assert_allclose(smoothed_truncation_mean(8 * rows, 8.0, beta), 8 * ends[1], rtol=1e-14)


@pytest.mark.parametrize("beta", [0.5, 5.0, math.inf])
@pytest.mark.parametrize("law", [stats.t(2.1), stats.pareto(2.2), stats.lognorm(1.0)], ids=["t", "pareto", "lognormal"])
def test_the_mean_is_as_close_as_the_bound_says_t05(law, beta):
    samples, failure, repeats = 500, 0.05, 600
    second = law.var() + law.mean() ** 2
    spread = math.log(2 / failure)
    scale = math.sqrt(second * (1 + 1 / beta) * samples / (2 * spread))
    bound = second / (2 * scale) * (1 + 1 / beta) + scale / samples * spread
    draws = law.rvs((samples, repeats), random_state=np.random.default_rng(1))
    misses = np.abs(smoothed_truncation_mean(draws, scale, beta) - law.mean()) > bound
    assert stats.binomtest(int(misses.sum()), repeats, failure, alternative="greater").pvalue > 1e-9
    assert misses.mean() <= failure
