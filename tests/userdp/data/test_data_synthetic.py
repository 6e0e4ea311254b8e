import math
import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from strategies.baselines.robust.hard_instance import HardInstance
from userdp.arrays.sparse_rows import dense
from userdp.data import (
    POPULATIONS,
    BernoulliRates,
    Categorical,
    Gaussian,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SyntheticFederation,
)
from userdp.data.synthetic.populations import Source
from userdp.errors import BadInput
from userdp.randomness import seed_sequence


def population(name: str, **options):
    width = {"levels": 5} if name == "categorical" else {"dimension": 3}
    if name == "sparse_regression":
        width["nonzeros"] = 2
    return POPULATIONS[name](**width, heterogeneity=0.2, outliers=0.3, outlier_shift=1.0, **options)


def everything(federation: SyntheticFederation):
    return federation.block(np.arange(federation.users))


@pytest.mark.sweep(11)
@pytest.mark.parametrize("tail", [None, 0.8])
@pytest.mark.parametrize("name", POPULATIONS)
def test_a_users_samples_depend_on_the_seed_and_its_index_alone(name, tail):
    federation = SyntheticFederation(population(name), 40, seed=5, samples_per_user=3, samples_tail=tail, samples_max=9)
    whole = everything(federation)

    @settings(max_examples=15)
    @given(st.lists(st.integers(0, 39), min_size=1, max_size=25))
    def check(users):
        block = federation.block(np.array(users))
        for position, user in enumerate(users):
            mine, reference = block.part(position, position + 1), whole.part(user, user + 1)
            assert dense(mine.features).tobytes() == dense(reference.features).tobytes()
            if reference.targets is not None:
                assert mine.targets.tobytes() == reference.targets.tobytes()

    check()


@pytest.mark.parametrize("tail", [None, 0.8])
@pytest.mark.parametrize("name", POPULATIONS)
def test_samples_are_the_same_however_many_threads_draw_them(name, tail, monkeypatch):
    federation = SyntheticFederation(population(name), 41, seed=5, samples_per_user=3, samples_tail=tail, samples_max=9)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = everything(federation)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setattr("userdp.data.synthetic.federation.NUMBERS_A_THREAD", 1)
    together = everything(federation)
    assert dense(together.features).tobytes() == dense(alone.features).tobytes()
    assert alone.targets is None or together.targets.tobytes() == alone.targets.tobytes()


@pytest.mark.parametrize("name", POPULATIONS)
def test_samples_have_the_declared_shape_and_are_finite(name):
    federation = SyntheticFederation(population(name), 7, samples_per_user=4)
    block = everything(federation)
    assert block.features.shape == (28, federation.columns)
    assert dense(block.features).flags.c_contiguous
    assert np.isfinite(dense(block.features)).all()
    assert block.features.dtype == (np.int32 if name == "categorical" else np.float32)
    if name == "sparse_regression":  # a column drawn twice is one entry; one more end than samples
        assert block.nbytes - block.offsets.nbytes <= federation.nbytes + 4
        assert block.features.nnz <= 2 * 28
    else:
        assert block.nbytes - block.offsets.nbytes == federation.nbytes
    assert federation.truth.shape == (5 if name == "categorical" else 3,)
    assert (federation.population_mean is None) == (block.targets is not None)
    assert block.targets is None or np.isfinite(block.targets).all()


@pytest.mark.parametrize("tail", [None, 1.0])
def test_held_out_users_are_the_users_that_follow(tail):
    options = {"seed": 2, "samples_per_user": 4, "samples_tail": tail}
    federation = SyntheticFederation(Gaussian(dimension=3, heterogeneity=1.0), 10, **options)
    held_out = federation.held_out(6)
    further = held_out.held_out(4)
    whole = SyntheticFederation(federation.population, 20, **options)
    np.testing.assert_array_equal(whole.sizes[:10], federation.sizes)
    np.testing.assert_array_equal(whole.block(np.arange(10)).features, everything(federation).features)
    np.testing.assert_array_equal(held_out.population_mean, federation.population_mean)
    np.testing.assert_array_equal(everything(held_out).features, whole.block(np.arange(10, 16)).features)
    np.testing.assert_array_equal(everything(further).features, whole.block(np.arange(16, 20)).features)
    assert not np.intersect1d(everything(held_out).features, everything(federation).features).size


def test_seeds_give_different_truths_and_samples():
    one, two = (SyntheticFederation(Gaussian(dimension=3), 4, seed=seed) for seed in (1, 2))
    assert not np.allclose(one.population_mean, two.population_mean)
    centred = [everything(federation).features - federation.population_mean for federation in (one, two)]
    assert not np.allclose(*centred)


def test_neighbouring_users_are_uncorrelated():
    federation = SyntheticFederation(Gaussian(dimension=1, mean=0.0), 4000, samples_per_user=5)
    rows = everything(federation).features.reshape(4000, 5)
    # Under independence each correlation is N(0, 1 / 3999); 25 of them within 4.5 deviations.
    assert np.abs(np.corrcoef(rows[:-1].T, rows[1:].T)[:5, 5:]).max() < 4.5 / np.sqrt(3999)


SHAPES = {"gaussian": {}, "student_t": {"shape": 9.0}, "pareto": {"shape": 9.0}, "log_normal": {"shape": 0.5}}
LOCATIONS = [
    POPULATIONS[name](dimension=2, deviation=2.0, heterogeneity=0.5, **shape) for name, shape in SHAPES.items()
]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("law", LOCATIONS, ids=lambda law: law.name)
def test_location_families_have_the_declared_moments(law):
    users, m = 20_000, 5
    federation = SyntheticFederation(law, users, seed=11, samples_per_user=m)
    rows = everything(federation).features.astype(float).reshape(users, m, 2)
    means = rows.mean(axis=1)
    # Within 4.5 standard errors: two-sided 99.999 % a coordinate.
    error = np.sqrt(0.5**2 + 2.0**2 / m) / np.sqrt(users)
    assert np.abs(means.mean(axis=0) - federation.population_mean).max() < 4.5 * error
    within = rows.var(axis=1, ddof=1).mean(axis=0)
    np.testing.assert_allclose(within, 4.0, rtol=0.04)
    np.testing.assert_allclose(means.var(axis=0) - within / m, 0.25, atol=0.06)
    assert abs(np.corrcoef(rows[:, 0].T)[0, 1]) < 4.5 / np.sqrt(users)


def test_the_hard_instance_has_averages_of_deviation_one_whatever_m():
    for options in ({"samples_per_user": 16}, {"samples_per_user": 2, "samples_tail": 1.0}):
        federation = SyntheticFederation(HardInstance(dimension=2), 8000, seed=1, **options)
        block = everything(federation)
        averages = np.add.reduceat(block.features.astype(float), block.offsets[:-1]) / block.sizes[:, None]
        np.testing.assert_allclose((averages - federation.population_mean).std(axis=0), 1.0, rtol=0.04)


def test_most_users_of_the_mixture_hold_zeros_and_its_mean_is_the_share_of_the_others():
    law, users = HardInstance(dimension=2, mean=[0.5, -1.0], share=0.02), 20_000
    federation = SyntheticFederation(law, users, seed=5, samples_per_user=4)
    block = everything(federation)
    rows = block.features.astype(float).reshape(users, 4, 2)
    full = (rows != 0).any(axis=(1, 2))
    np.testing.assert_array_equal(full, (rows != 0).all(axis=(1, 2)))
    # Binomial(20,000, .02): 4.5 deviations are 0.0045.
    assert abs(full.mean() - 0.02) < 0.0045
    np.testing.assert_array_equal(federation.population_mean, [0.01, -0.02])
    # Averages of a full user have deviation 1: 4.5 standard errors of their mean.
    error = np.abs(rows[full].mean(axis=(0, 1)) - [0.5, -1.0])
    assert error.max() < 4.5 / np.sqrt(full.sum())


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_that_is_no_probability_is_refused(share):
    with pytest.raises(BadInput, match="share"):
        HardInstance(dimension=2, share=share)


def test_the_mean_may_be_given_or_is_drawn_within_the_spread():
    given_ = SyntheticFederation(Gaussian(dimension=3, mean=[1.0, 2.0, 3.0]), 1)
    np.testing.assert_array_equal(given_.population_mean, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(SyntheticFederation(Gaussian(dimension=2, mean=4), 1).population_mean, [4.0, 4.0])
    drawn = SyntheticFederation(Gaussian(dimension=500, spread=3.0), 1).population_mean
    assert 2.9 < np.abs(drawn).max() <= 3.0


def test_outliers_are_shifted_whole_and_the_population_mean_stays_clean():
    law = Gaussian(dimension=2, mean=0.0, deviation=0.1, outliers=0.2, outlier_shift=50.0)
    federation = SyntheticFederation(law, 5000, seed=9, samples_per_user=3)
    shifted = everything(federation).features.reshape(5000, 6) > 25
    np.testing.assert_array_equal(shifted.all(axis=1), shifted.any(axis=1))
    # Binomial(5000, 0.2): 4.5 deviations are 0.0255.
    assert abs(shifted.all(axis=1).mean() - 0.2) < 0.0255
    np.testing.assert_array_equal(federation.population_mean, [0.0, 0.0])


def test_bernoulli_rates_are_exact_and_users_differ_as_declared():
    law = BernoulliRates(dimension=3, mean=[0.5, 0.3, 0.0], heterogeneity=0.1)
    rows = everything(SyntheticFederation(law, 20_000, seed=2, samples_per_user=10)).features
    assert set(np.unique(rows)) == {0.0, 1.0}
    rates = rows.reshape(20_000, 10, 3).mean(axis=1, dtype=float)
    np.testing.assert_allclose(rates.mean(axis=0), [0.5, 0.3, 0.0], atol=0.006)
    # Var of an average of 10: E[p (1 - p)] / 10 + Var(p), with E[p (1 - p)] = mu (1 - mu) - Var(p).
    own = (rates.var(axis=0) - np.array([0.25, 0.21, 0.0]) / 10) / 0.9
    np.testing.assert_allclose(own, [0.01, 0.01, 0.0], atol=0.0015)


def test_bernoulli_rates_are_drawn_within_the_spread_and_outliers_stay_rates():
    drawn = SyntheticFederation(BernoulliRates(dimension=300, spread=0.5), 1).population_mean
    assert 0.25 <= drawn.min() < 0.27
    assert 0.73 < drawn.max() <= 0.75
    law = BernoulliRates(dimension=1, mean=0.5, outliers=0.5, outlier_shift=2.0)
    rows = everything(SyntheticFederation(law, 200, samples_per_user=20)).features.reshape(200, 20)
    assert 60 < np.count_nonzero(rows.all(axis=1)) < 140


@settings(max_examples=40)
@given(st.floats(0.3, 4.0), st.integers(1, 20), st.integers(0, 300), st.integers(0, 5))
def test_heavy_tailed_sizes_stay_within_their_bounds(tail, fewest, room, seed):
    federation = SyntheticFederation(
        Gaussian(dimension=1), 200, seed, samples_per_user=fewest, samples_tail=tail, samples_max=fewest + room
    )
    assert federation.sizes.min() >= fewest
    assert federation.sizes.max() <= fewest + room


def test_heavy_tailed_sizes_follow_a_cut_pareto_law():
    federation = SyntheticFederation(Gaussian(dimension=1), 50_000, samples_per_user=10, samples_tail=1.0)
    # P(m >= k) = (10 / k - 10 / 1001) / (1 - 10 / 1001).
    for k in (20, 100, 500):
        expected = (10 / k - 10 / 1001) / (1 - 10 / 1001)
        assert abs((federation.sizes >= k).mean() - expected) < 4.5 * np.sqrt(expected / 50_000)


REGRESSIONS = [LogisticRegression, LinearRegression, PoissonRegression]


@pytest.mark.parametrize("shape", [None, 2.0])
@pytest.mark.parametrize("kind", REGRESSIONS)
def test_features_lie_in_their_ball_and_the_parameter_has_its_norm(kind, shape):
    law = kind(dimension=10, feature_norm=2.0, parameter_norm=3.0, feature_shape=shape)
    federation = SyntheticFederation(law, 300, samples_per_user=10)
    norms = np.abs(everything(federation).features.astype(float)).sum(axis=1)
    assert norms.max() <= 2.0
    if shape is None:
        assert 0.001 < (norms > 1.99).mean() < 0.05
    np.testing.assert_allclose(np.linalg.norm(federation.truth), 3.0)


def _least_squares(block):
    features = block.features.astype(float)
    return np.linalg.lstsq(features, block.targets.astype(float), rcond=None)[0]


def test_linear_targets_have_the_true_parameter_and_noise():
    law = LinearRegression(dimension=4, parameter_norm=2.0, noise_deviation=0.1, heterogeneity=0.05)
    federation = SyntheticFederation(law, 2000, seed=1, samples_per_user=10)
    block = everything(federation)
    fitted = _least_squares(block)
    # The smallest singular value of the features gives the standard error; a user's own shift adds little.
    np.testing.assert_allclose(fitted, federation.truth, atol=0.03)
    exact = SyntheticFederation(LinearRegression(dimension=4, noise_deviation=0.0), 50, seed=1)
    np.testing.assert_allclose(_least_squares(everything(exact)), exact.truth, atol=1e-5)


def test_outliers_of_a_regression_have_another_parameter():
    law = LinearRegression(dimension=2, noise_deviation=0.0, outliers=0.25, outlier_shift=5.0)
    federation = SyntheticFederation(law, 400, seed=3)
    block = everything(federation)
    residuals = block.targets - block.features @ federation.truth
    wrong = np.abs(residuals).reshape(400, 10).max(axis=1) > 1e-3
    assert 60 < wrong.sum() < 140


@pytest.mark.parametrize("kind", [LogisticRegression, PoissonRegression])
def test_targets_have_the_rate_of_their_predictor(kind):
    federation = SyntheticFederation(kind(dimension=3, parameter=[6.0, -4.0, 2.0]), 5000, seed=6)
    block = everything(federation)
    predictors = block.features.astype(float) @ federation.truth
    rates = expit(predictors) if kind is LogisticRegression else np.exp(predictors)
    variances = rates * (1 - rates) if kind is LogisticRegression else rates
    for part in np.array_split(np.argsort(predictors), 10):
        error = np.sqrt(variances[part].mean() / len(part))
        assert abs(block.targets[part].mean() - rates[part].mean()) < 4.5 * error


@pytest.mark.parametrize("predictor", [-30.0, -1.0, 0.5, 3.0, 9.0])
def test_poisson_inversion_equals_scipys_quantiles(predictor):
    normals = np.linspace(-5, 6, 2001).astype(np.float32)
    counts = PoissonRegression(dimension=1).targets(np.full(2001, predictor), normals)
    expected = stats.poisson.ppf(stats.norm.cdf(normals.astype(float)), np.exp(min(predictor, 5.0)))
    assert np.abs(counts - expected).max() <= 1
    # Rounding of the distribution function may move a count by one where the uniform meets a step.
    assert np.mean(counts != expected) < 0.002


def test_categories_have_their_frequencies_and_rates():
    law = Categorical(levels=4, parameter=[-1.0, 0.0, 1.0, 2.0], skew=1.0)
    block = everything(SyntheticFederation(law, 5000, seed=8))
    codes = block.features[:, 0]
    shares = np.bincount(codes, minlength=4) / len(codes)
    np.testing.assert_allclose(shares, np.array([12, 6, 4, 3]) / 25, atol=0.011)
    for level in range(4):
        here = block.targets[codes == level]
        assert abs(here.mean() - expit(level - 1.0)) < 4.5 * 0.5 / np.sqrt(len(here))


def test_categories_draw_log_odds_within_the_spread_and_users_shift_them():
    federation = SyntheticFederation(Categorical(levels=200, spread=1.5), 1)
    assert 1.4 < np.abs(federation.truth).max() <= 1.5
    law = Categorical(levels=2, parameter=0.0, heterogeneity=5.0)
    rates = everything(SyntheticFederation(law, 500, samples_per_user=40)).targets.reshape(500, 40).mean(axis=1)
    assert np.mean((rates < 0.1) | (rates > 0.9)) > 0.5


def test_a_list_of_first_entries_does_for_every_dimension():
    for dimension in (2, 5):
        federation = SyntheticFederation(LinearRegression(dimension=dimension, parameter=[0.5, -0.25]), 1)
        np.testing.assert_array_equal(federation.truth, [0.5, -0.25, *np.zeros(dimension - 2)])


def test_the_scale_of_features_may_be_declared():
    law = LinearRegression(dimension=2, feature_norm=100.0, feature_deviation=0.5)
    features = everything(SyntheticFederation(law, 1000, seed=1)).features
    np.testing.assert_allclose(features.std(axis=0), 0.5, rtol=0.03)


def test_every_population_says_what_it_is():
    for name, kind in POPULATIONS.items():
        assert kind.name == name
        assert kind.summary


@pytest.mark.slow
def test_memory_is_bounded_by_a_block_whatever_the_population():
    federation = SyntheticFederation(Gaussian(dimension=20), 60_000, samples_per_user=10)
    tracemalloc.start()
    total = sum(block.samples for _, block in federation.blocks(np.arange(federation.users), max_bytes=1 << 21))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == federation.samples
    assert federation.nbytes > 45e6
    assert peak < 12e6


# What is refused ---------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


def federation(law=None, users=1, **options):
    return SyntheticFederation(Gaussian(dimension=1) if law is None else law, users, **options)


REFUSED = [
    # (make, the arguments that are wrong, words of the message)
    (partial(Gaussian, dimension=0), {}, "dimension"),
    (partial(Gaussian, dimension=1), {"deviation": 0.0}, "deviation = 0.0: must be greater than 0"),
    (partial(Gaussian, dimension=1), {"outliers": 1.0}, "outliers = 1.0: must be less than 1"),
    *[
        (partial(Gaussian, dimension=1), {name: value}, name)
        for name, value in (("deviation", NAN), ("spread", -1.0), ("heterogeneity", INF), ("outlier_shift", NAN))
    ],
    (partial(BernoulliRates, dimension=1), {"spread": 2.0}, "at most 1"),
    *[
        (partial(LinearRegression, dimension=1), {name: wrong}, name)
        for name, wrong in {
            **dict.fromkeys(("parameter_norm", "feature_norm", "feature_deviation", "feature_shape"), 0.0),
            "noise_deviation": -1.0,
        }.items()
    ],
    (partial(Categorical, levels=0), {}, "levels"),
    (partial(Categorical, levels=2), {"skew": -1.0}, "skew"),
    (federation, {"law": BernoulliRates(dimension=1, mean=1.5)}, r"rates in \[0, 1\]"),
    (federation, {"law": Gaussian(dimension=2, mean=[1.0])}, "list of 2"),
    (partial(Gaussian, dimension=2), {"mean": NAN}, "mean = nan"),
    (federation, {"law": LinearRegression(dimension=2, parameter=[1.0, 2.0, 3.0])}, "list of 2"),
    (federation, {"users": 0}, "users must be a finite number of at least 1, got 0"),
    *[
        (federation, {name: wrong}, name)
        for name, wrong in (("seed", -1), ("samples_per_user", 0), ("samples_tail", 0.0))
    ],
    (federation, {"samples_tail": 1.0, "samples_max": 9}, "samples_max"),
]


@pytest.mark.parametrize(("make", "wrong", "words"), REFUSED)
def test_what_no_population_can_be_is_refused_by_name_and_value(make, wrong, words):
    with pytest.raises(BadInput, match=words):
        make(**wrong)


def test_the_numbers_of_each_law_begin_at_their_users_counter(monkeypatch):
    """So does the law's own method draw them, one source after the other, from a new generator for each user."""
    laws = {"normal": "standard_normal", "uniform": "random", "exponential": "standard_exponential"}
    sources = [Source("user", "gamma", 2, 1.5), *(Source("sample", law, 3) for law in laws)]
    monkeypatch.setattr(Gaussian, "sources", property(lambda self: sources))
    users, offsets = np.array([0, 7, 300]), np.array([0, 2, 3, 6])
    found = SyntheticFederation(Gaussian(dimension=3), 301, seed=9)._noise(users, offsets)
    for place, user in enumerate(users):
        numbers = np.random.Generator(np.random.Philox(seed_sequence(9, "data", 0)))
        state = numbers.bit_generator.state
        state["state"]["counter"][1] = user
        numbers.bit_generator.state = state
        np.testing.assert_array_equal(found[0][place], numbers.standard_gamma(1.5, 2, dtype=np.float32))
        own = slice(offsets[place], offsets[place + 1])
        for array, method in zip(found[1:], laws.values(), strict=True):
            expected = getattr(numbers, method)((own.stop - own.start, 3), dtype=np.float32)
            np.testing.assert_array_equal(array[own], expected)
