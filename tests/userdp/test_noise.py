"""Noise of the operating system: its law, and its proof in floating point.

Draws cannot be repeated, so each statistical test has a false alarm in a thousand million runs at most.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from userdp.arrays.sparse_rows import clip_rows
from userdp.errors import BadInput
from userdp.estimators import RampKernel
from userdp.mechanisms import AboveThreshold, ExponentialMechanism, GaussianMechanism, LaplaceMechanism, MinimumScore
from userdp.noise import Scores, SecureNoise, SeededNoise, granularity, rounding_slack

FALSE_ALARM = 1e-9


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("source", [SecureNoise(), SeededNoise(np.random.default_rng(1))])
def test_every_entry_of_whatever_shape_has_noise_of_its_own(source, law, monkeypatch):
    """Threads that draw parts of it share none."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    values = [1e3 * np.arange(np.prod(shape)).reshape(shape) for shape in ((), (3,), (4, 1), (2, 3, 4), (3, 700))]
    noise = [getattr(source, law)(value, 1.0) - value for value in values]
    assert max(np.abs(one).max() for one in noise) < 100
    assert len(np.unique(np.concatenate([one.ravel() for one in noise]))) == sum(one.size for one in noise)


@pytest.mark.slow
def test_secure_gaussian_noise_is_normal_with_the_deviation_it_says():
    mechanism = GaussianMechanism(0.5, 3.0)
    noise = mechanism.release(np.full((100, 300), 7.0), SecureNoise()) - 7.0
    assert noise.shape == (100, 300)
    assert stats.kstest(noise.ravel() / 1.5, "norm").pvalue > FALSE_ALARM
    low, high = stats.chi2.ppf([FALSE_ALARM, 1 - FALSE_ALARM], noise.size)
    assert low < (noise**2).sum() / 1.5**2 < high


@pytest.mark.slow
def test_secure_laplace_noise_has_the_scale_it_says():
    noise = LaplaceMechanism(2.0, 0.5).release(np.zeros(30_000), SecureNoise())
    assert stats.kstest(noise / 4.0, "laplace").pvalue > FALSE_ALARM


def test_secure_noise_is_drawn_by_opendp_never_by_numpy_and_more_of_it_by_the_slack(monkeypatch):
    import opendp.prelude as dp

    used = {}

    def counted(name, make):
        return lambda *given, **named: used.update({name: named["scale"]}) or make(*given, **named)

    def forbidden(*given, **named):
        raise AssertionError("numpy's generators can be predicted")

    for name in ("make_gaussian", "make_laplace", "make_noisy_max"):
        monkeypatch.setattr(dp.m, name, counted(name, getattr(dp.m, name)))
    for name in (
        "default_rng",
        "Generator",
        "PCG64",
        "RandomState",
        "laplace",
        "normal",
        "gumbel",
        "random",
        "uniform",
    ):
        monkeypatch.setattr(np.random, name, forbidden)
    noise = SecureNoise(slack=0.5)
    GaussianMechanism(1.0, 2.0).release(np.zeros(3), noise)
    LaplaceMechanism(1.0, 2.0).release(np.zeros(3), noise)
    ExponentialMechanism(1.0, 2.0).choose(Scores(np.zeros(3), 1.0), noise)
    assert used == pytest.approx({"make_gaussian": 3.0, "make_laplace": 0.75, "make_noisy_max": 1.5})


@pytest.mark.slow
def test_a_secure_choice_follows_the_law_of_the_exponential_mechanism():
    scores = np.array([-3, -1, -3])
    drawn = SecureNoise().choose(Scores(np.tile(scores, (10_000, 1)), 1.0), 1.5)
    weights = np.exp(0.75 * scores)
    assert stats.chisquare(np.bincount(drawn), 10_000 * weights / weights.sum()).pvalue > FALSE_ALARM


@pytest.mark.sweep(1)
@pytest.mark.parametrize("test_type", [AboveThreshold, MinimumScore])
def test_a_concentration_test_with_secure_noise_passes_as_often_as_computed(test_type):
    test = test_type(batch=300, kernel=RampKernel(1.0), epsilon=0.5, delta=1e-6)
    for score in (test.threshold - 3 * test.sensitivity, test.threshold + 3 * test.sensitivity):
        passed, runs = 0, 500
        for _ in range(runs):
            session = test.session(SecureNoise())
            session.observe(test.scored(score, 300))
            passed += session.passed()
        assert stats.binomtest(passed, runs, test.pass_probability(score)).pvalue > FALSE_ALARM


def test_two_draws_differ_whatever_numpy_was_seeded_with():
    drawn = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        drawn.append(SecureNoise().gaussian(np.zeros(100), 1.0))
    assert len(np.unique(drawn)) == 200


@settings(max_examples=100)
@given(st.floats(2.0**-974, 1e300))
def test_the_grid_is_as_fine_as_the_proof_asks(scale):
    k = granularity(scale)
    assert Fraction(2) ** (k + 100) <= Fraction(scale) < Fraction(2) ** (k + 101)
    assert k >= -1074


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-300, np.inf, np.nan])
def test_noise_of_no_proper_scale_is_refused(scale):
    with pytest.raises(BadInput, match="other units"):
        SecureNoise().gaussian(np.zeros(2), scale)


WILD_ROWS = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@settings(max_examples=50)
@given(WILD_ROWS, st.integers(1, 200), st.sampled_from([0.3, 1.0, 7.0]))
def test_a_computed_sum_of_clipped_rows_errs_by_less_than_the_slack(rng, users, clip_norm):
    """In units of the clip, against exact sums; the proof gives each of two neighbours half of the slack."""
    rows = clip_rows(rng.normal(size=(users, 3)) * 10.0 ** rng.integers(-20, 20, (users, 1)), clip_norm)
    computed = np.zeros(3)
    for node in np.array_split(rows, rng.integers(1, users + 1)):
        computed += node.sum(axis=0)
    exact = [sum(map(Fraction, column)) for column in rows.T.tolist()]
    error = float(sum((Fraction(a) - b) ** 2 for a, b in zip(computed.tolist(), exact, strict=True))) ** 0.5
    assert error <= rounding_slack(users) / 2 * clip_norm
    assert error <= (users + 8.0) ** 2 * 2.0**-53 * clip_norm  # the part of it that is for sums
    lengths = [sum(Fraction(entry) ** 2 for entry in row) for row in rows.tolist()]
    assert max(lengths) <= (Fraction(clip_norm) * (1 + Fraction(1, 2**22))) ** 2


def test_the_slack_is_small_for_a_million_users_and_refused_where_it_is_large():
    assert rounding_slack(1000) < 1e-6
    assert rounding_slack(10**6) < 3e-4
    assert rounding_slack(10**6, 100.0) == pytest.approx(2**-20 + 100 * (10**6 + 8) ** 2 * 2**-52)
    with pytest.raises(BadInput, match=r"privacy\.noise = 'secure'.*fewer users"):
        rounding_slack(10**8)
    with pytest.raises(BadInput, match="slack = -1"):
        SecureNoise(slack=-1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_not_released(value):
    for noise in (SecureNoise(), SeededNoise(np.random.default_rng(0))):
        for release in (noise.gaussian, noise.laplace):
            with pytest.raises(BadInput, match="not finite"):
                release(np.array([0.0, value]), 1.0)
        with pytest.raises(BadInput, match="not finite"):
            noise.choose(Scores(np.array([[0.0, value]]), 1.0), 1.0)


def test_a_release_of_huge_numbers_keeps_them():
    np.testing.assert_allclose(SecureNoise().gaussian([1e300, -5.0, 0.0], 1e-9), [1e300, -5.0, 0.0], atol=1e-7)


def test_the_slack_covers_every_rounding_that_is_stated():
    for terms in (1, 9, 1000):
        for spread in (1.0, 7.0):
            assert rounding_slack(terms, spread) >= 2**-20 + spread * (terms + 8) ** 2 * 2**-52
            assert rounding_slack(terms, spread, 0.03) >= rounding_slack(terms, spread) + 0.03
    with pytest.raises(BadInput, match=r"privacy\.noise = 'secure'"):
        rounding_slack(9, 1.0, 0.2)
    assert SecureNoise().slack >= 2**-20


def test_constants_move_nobody_and_change_no_bound():
    scores = Scores(np.array([1.0, 2.0]), 0.7).plus(np.array([3.0, 0.0]))
    assert scores.moved == 0.7
    assert scores.values.tolist() == [4.0, 2.0]


@pytest.mark.parametrize(("flips", "better"), [(False, 1 / (1 + np.exp(-1))), (True, 1 - np.exp(-1) / 2)])
@pytest.mark.parametrize("source", [SecureNoise(), SeededNoise(np.random.default_rng(0))], ids=["secure", "seeded"])
def test_either_way_to_choose_has_the_law_that_its_price_is_for_in_every_row(source, flips, better):
    """False alarms: below one in a million."""
    rows = np.tile([[0.0, 1.0], [1.0, 0.0]], (750, 1))
    chosen = source.choose(Scores(rows, 0.5), 1.0, flips=flips)
    for first, column in ((0, 1), (1, 0)):
        assert np.mean(chosen[first::2] == column) == pytest.approx(better, abs=0.085)
    assert len(set(chosen[::2].tolist())) == 2
