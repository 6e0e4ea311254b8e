"""The truncated geometric law, the privacy filter, and gradients of small batches with the bias of large ones."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from strategies.baselines.sparse_gradients.bias_reduction import (
    Draw,
    ProjectedMean,
    TruncatedGeometric,
    bias_reduced_gradient,
)
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.reference.descent import ExactMean
from strategies.baselines.sparse_gradients.stopping import PrivacyFilter, spread
from userdp.errors import BadInput, RunFailed
from userdp.noise import SeededNoise

FALSE_ALARM = 1e-9
SILENCE = SeededNoise(np.random.default_rng(0))


@pytest.fixture
def rng():
    return np.random.default_rng(23)


# --- The law of levels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", range(12))
def test_chances_sum_to_one_and_moments_are_exact_c04(largest):
    law = TruncatedGeometric(largest)
    normaliser = law.chances[0]
    assert law.chances.sum() == pytest.approx(1, abs=1e-15)
    assert 0.5 <= normaliser <= 1
    np.testing.assert_allclose(law.chances[1:], law.chances[:-1] / 2)
    assert law.chances @ law.batches == pytest.approx(law.mean_batch, rel=1e-14)
    assert law.chances @ law.batches.astype(float) ** 2 == pytest.approx(2 ** (largest + 2), rel=1e-14)


@pytest.mark.parametrize("largest", [0, 1, 4, 9])
def test_samples_follow_the_law_c04(largest):
    law = TruncatedGeometric(largest)
    counts = np.bincount(law.sample(np.random.default_rng(largest), 200_000), minlength=largest + 1)
    assert len(counts) == largest + 1
    if largest:
        assert stats.chisquare(counts, law.chances * 200_000).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("records", "largest"), [(2, 0), (3, 0), (4, 1), (7, 1), (8, 2), (1000, 8), (1024, 9)])
def test_the_largest_batch_is_the_largest_power_of_two(records, largest):
    law = TruncatedGeometric.for_records(records)
    assert law.largest == largest
    assert law.batches[-1] <= records < 2 * law.batches[-1]


# --- The filter ------------------------------------------------------------------------------------------------------


@given(st.floats(1e-3, 50), st.floats(1e-12, 0.5))
def test_the_largest_sum_of_squares_is_where_the_limit_is_reached_c07(epsilon, delta):
    limit = PrivacyFilter(epsilon, delta, 0.1)
    assert spread(limit.largest_sum_of_squares, delta) == pytest.approx(epsilon, rel=1e-9)
    step = math.sqrt(limit.largest_sum_of_squares)
    assert limit.can_run(step * (1 - 1e-6), 0.0)
    assert not limit.can_run(step * (1 + 1e-6), 0.0)


def test_the_papers_threshold_c07():
    # In units of epsilon = 1, with half of it and delta / 4 for the spread.
    assert PrivacyFilter(0.5, 1e-6 / 4, 1e-6 / 4).largest_sum_of_squares == pytest.approx(0.0080902, abs=5e-8)


def test_a_step_that_does_not_fit_is_refused_and_not_counted():
    limit = PrivacyFilter(1.0, 1e-6, 1e-6)
    limit.charge(0.1, 5e-7)
    for cost in ((1.0, 0.0), (0.0, 6e-7)):
        with pytest.raises(RunFailed, match="stopped before spending more"):
            limit.charge(*cost)
    assert limit.epsilon == spread(0.1**2, 1e-6)
    assert PrivacyFilter(1.0, 1e-6, 1e-6).delta == 0


def test_adaptive_steps_of_randomised_response_stay_within_the_filters_promise():
    """The exact privacy loss of steps whose costs depend on earlier answers, over all answers."""
    limit = (1.5, 1e-2)

    def histories(squares, first, second, loss):
        limit_now = PrivacyFilter(*limit, 0.0)
        limit_now.charge(math.sqrt(squares), 0.0)
        epsilon = 0.3 if loss <= 0 else 0.15  # predictable, and chosen to do harm: bet more after a loss
        if not limit_now.can_run(epsilon, 0.0):
            return [(first, second)]
        truth = 1 / (1 + math.exp(-epsilon))
        after = squares + epsilon**2
        return histories(after, first * truth, second * (1 - truth), loss + epsilon) + histories(
            after, first * (1 - truth), second * truth, loss - epsilon
        )

    first, second = np.array(histories(0.0, 1.0, 1.0, 0.0)).T
    assert first.sum() == pytest.approx(1)
    assert np.maximum(first - math.exp(limit[0]) * second, 0).sum() <= limit[1]


# --- Bias reduction --------------------------------------------------------------------------------------------------


class Bent:
    """A mean with a bias that depends on the size, not linear in the mean, and without noise."""

    largest_norm = math.inf

    def __call__(self, mean, size, noise):
        return np.sin(3 * mean) / size + np.tanh(mean * size) + mean**2

    def squared_error(self, size):
        return math.inf


def expected_estimate(rows, oracle):
    """The expectation over level, batch, halves and single record, by enumeration."""
    n = len(rows)
    law, total = TruncatedGeometric.for_records(n), np.zeros(rows.shape[1])
    for level, chance in enumerate(law.chances):
        batches = list(itertools.combinations(range(n), 2 << level))
        for batch in batches:
            halves = list(itertools.combinations(batch, 1 << level))
            for half in halves:
                order = [*half, *(set(batch) - set(half))]
                for single in range(n):
                    estimate = bias_reduced_gradient(rows[order], rows[[single]], chance, oracle, SILENCE)
                    total += chance * estimate / (len(batches) * len(halves) * n)
    return total


@pytest.mark.parametrize("records", [4, 6, 8])
def test_the_expectation_is_that_of_the_largest_batch_c05(records):
    rows = np.random.default_rng(records).normal(size=(records, 2))
    size = int(TruncatedGeometric.for_records(records).batches[-1])
    largest = [
        Bent()(rows[list(batch)].mean(axis=0), size, SILENCE) for batch in itertools.combinations(range(records), size)
    ]
    np.testing.assert_allclose(expected_estimate(rows, Bent()), np.mean(largest, axis=0), atol=1e-12)


@pytest.mark.parametrize("level", range(6))
def test_with_an_exact_oracle_the_estimate_is_the_single_record_c06(level, rng):
    rows = rng.normal(size=(64, 5))
    draw = Draw.of(64, level, rng)
    estimate = bias_reduced_gradient(rows[draw.batch], rows[draw.single], 0.1, ExactMean(9.0), SILENCE)
    np.testing.assert_array_equal(estimate, rows[draw.single[0]])


@pytest.mark.slow
def test_a_draw_is_uniform_and_its_halves_are_disjoint():
    rng, counts, firsts, singles = np.random.default_rng(8), np.zeros(9), np.zeros(9), np.zeros(9)
    for _ in range(20_000):
        draw = Draw.of(9, 1, rng)
        assert len(set(draw.batch)) == 4
        counts[draw.batch] += 1
        firsts[draw.batch[:2]] += 1
        singles[draw.single] += 1
        assert set(draw.records) == set(draw.batch) | set(draw.single)
    for seen in (counts, firsts, singles):
        assert stats.chisquare(seen).pvalue > FALSE_ALARM


# --- With the projection mechanism -----------------------------------------------------------------------------------


def test_an_oracle_is_noisy_in_proportion_to_what_a_record_can_move():
    oracle = ProjectedMean(3, SparseVectors(1, 0.5), 4.0)
    for size in (1, 2, 16):
        assert oracle.mechanism(size).l2_sensitivity == 2 * 0.5 / size
        assert oracle.mechanism(size).noise_multiplier == 4.0


REFUSED = [
    (TruncatedGeometric.for_records, (1,), "records = 1"),
    (TruncatedGeometric, (61,), "largest level = 61"),
    *[
        (PrivacyFilter(1.0, 1e-6, 1e-6).can_run, cost, "must be finite and not negative")
        for cost in ((math.nan, 0.0), (-0.1, 0.0), (math.inf, 0.0), (0.1, math.nan), (0.1, -1e-9))
    ],
    *[
        (PrivacyFilter, budget, "=")
        for budget in ((0.0, 0.1, 0.1), (math.nan, 0.1, 0.1), (1.0, 0.0, 0.1), (1.0, 0.1, 1.0))
    ],
    *[(Draw.of, (9, level, np.random.default_rng(0)), f"level = {level}") for level in (-1, 3)],
    *[
        (
            bias_reduced_gradient,
            (np.ones((b, 2)), np.ones((s, 2)), 0.5, ExactMean(1.0), SILENCE),
            "a batch of two halves",
        )
        for b, s in ((3, 1), (0, 1), (2, 2))
    ],
]


@pytest.mark.parametrize(("make", "arguments", "words"), REFUSED)
def test_numbers_and_rows_that_do_not_fit_are_refused(make, arguments, words):
    with pytest.raises(BadInput, match=words):
        make(*arguments)
