"""Peeling: which entries it finds, what its noise is, and that the noise is enough."""

import math
import re

import numpy as np
import pytest
from helpers import Silent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from strategies.baselines.peeling import Peeling
from userdp.accounting import Cost, epsilon_of, largest_rho, zcdp_to_epsilon
from userdp.errors import BadInput, RunFailed
from userdp.noise import Scores, SecureNoise, SeededNoise


class Recorded(SeededNoise):
    """Laplace noise that is written down."""

    def __init__(self, rng):
        super().__init__(rng)
        object.__setattr__(self, "drawn", [])

    def laplace(self, value, scale):
        self.drawn.append(self.generator.laplace(scale=scale, size=np.shape(value)))
        return value + self.drawn[-1]


def peeling(sparsity=3, sensitivity=0.1, epsilon=1.0, delta=1e-5, accounting="tight"):
    return Peeling(sparsity, sensitivity, epsilon, delta, accounting)


both = pytest.mark.parametrize("accounting", ["tight", "paper"])


# --- What it returns -------------------------------------------------------------------------------------------------


@both
def test_without_noise_the_largest_entries_are_returned_with_their_signs_t09(accounting):
    values = np.array([0.5, -4.0, 1.0, 0.0, 3.0, -2.0])
    mechanism = peeling(accounting=accounting)
    np.testing.assert_array_equal(mechanism.select(values, Silent()), [1, 4, 5])
    np.testing.assert_array_equal(mechanism.release(Scores(values, 0.1), Silent()), [0, -4, 0, 0, 3, -2])


@both
@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(0, 20), st.integers(0, 99))
def test_outputs_are_sparse_and_entries_are_chosen_once_t09(accounting, sparsity, more, seed):
    rng = np.random.default_rng(seed)
    values, mechanism = rng.normal(size=sparsity + more), peeling(sparsity, accounting=accounting)
    assert len(set(mechanism.select(values, SeededNoise(rng)).tolist())) == sparsity
    assert np.count_nonzero(mechanism.release(Scores(values, 0.1), SeededNoise(rng))) == sparsity


def test_a_step_that_moves_further_than_is_charged_is_not_peeled():
    with pytest.raises(RunFailed, match=r"one user moves scores by up to 0\.11 where 0\.1 is charged"):
        peeling().release(Scores(np.zeros(6), 0.11), Silent())


# --- How much noise --------------------------------------------------------------------------------------------------


def test_the_papers_scale_is_that_of_the_noise_of_selections_and_of_the_release_t09():
    mechanism = peeling(2, accounting="paper")
    assert mechanism.scale == pytest.approx(2 * 0.1 * math.sqrt(3 * 2 * math.log(1e5)))
    source = Recorded(np.random.default_rng(1))
    mechanism.release(Scores(np.zeros(1500), 0.1), source)
    assert [len(drawn) for drawn in source.drawn] == [1500, 1499, 2]
    for drawn in source.drawn[:2]:
        assert stats.kstest(drawn, stats.laplace(scale=mechanism.scale).cdf).pvalue > 1e-3


def test_released_entries_have_laplace_noise_of_the_scale_t09():
    mechanism, rng = peeling(1), np.random.default_rng(4)
    found = [mechanism.release(Scores(np.array([7.0, -900.0]), 0.1), SeededNoise(rng))[1] + 900 for _ in range(4000)]
    assert stats.kstest(found, stats.laplace(scale=mechanism.scale).cdf).pvalue > 1e-3


@pytest.mark.slow
def test_selection_by_gumbel_noise_has_the_probabilities_of_the_exponential_mechanism_t09():
    mechanism, rng = peeling(1, 0.5, 2.0), np.random.default_rng(5)
    values = np.array([0.0, 1.0, -2.0, 0.5])
    weights = np.exp(np.abs(values) / mechanism.scale)
    for source, draws in ((SeededNoise(rng), 5000), (SecureNoise(), 2000)):
        counts = np.bincount([mechanism.select(values, source)[0] for _ in range(draws)], minlength=4)
        assert stats.chisquare(counts, draws * weights / weights.sum()).pvalue > 1e-4


@settings(max_examples=100)
@given(st.integers(1, 60), st.floats(0.01, 20), st.floats(-25, -2).map(math.exp), st.floats(1e-3, 1e3))
def test_the_noise_keeps_the_budget_t10(sparsity, epsilon, delta, sensitivity):
    tight = peeling(sparsity, sensitivity, epsilon, delta)
    ratio = sensitivity / tight.scale
    if tight.pure:
        assert 3 * sparsity * ratio == pytest.approx(epsilon)
    else:
        # A selection is an exponential mechanism at 2 ratio: (2 ratio)^2 / 8; a released entry ratio^2 / 2.
        rho = sparsity * ((2 * ratio) ** 2 / 8 + ratio**2 / 2)
        assert epsilon * (1 - 1e-6) <= zcdp_to_epsilon(rho, delta) <= epsilon
    spent = epsilon_of(tight.cost, 1, delta)
    assert spent <= epsilon
    assert tight.pure or spent == epsilon
    # Whichever of the two takes less noise.
    least = min(3 * sparsity / epsilon, math.sqrt(sparsity / largest_rho(epsilon, delta)))
    assert 1 / ratio == pytest.approx(least)
    assert peeling(sparsity, sensitivity, epsilon, 0.0).scale == pytest.approx(sensitivity * 3 * sparsity / epsilon)


@settings(max_examples=100)
@example(1, 0.96, 0.1)
@example(1, 1.0, 0.1)
@given(st.integers(1, 60), st.floats(0.01, 20), st.floats(-25, -0.1).map(math.exp))
def test_the_papers_noise_is_refused_where_its_proof_fails_t10(sparsity, epsilon, delta):
    log = math.log(1 / delta)
    rho = 5 / 24 * epsilon**2 / log
    if rho + 2 * math.sqrt(rho * log) > epsilon:
        assert epsilon > 0.418 * log
        with pytest.raises(BadInput, match=r"proven private up to 0.418 ln\(1/delta\)") as caught:
            peeling(sparsity, 0.1, epsilon, delta, "paper")
        most = float(re.search(r"= (\S+) at delta", str(caught.value)).group(1))
        assert most == pytest.approx(0.41822 * log, rel=1e-3)
        return
    assert epsilon < 0.4183 * log
    paper, tight = peeling(sparsity, 0.1, epsilon, delta, "paper"), peeling(sparsity, 0.1, epsilon, delta)
    ratio = 0.1 / paper.scale  # Laplace selections cost (2 ratio)^2 / 2 each
    assert sparsity * ((2 * ratio) ** 2 / 2 + ratio**2 / 2) == pytest.approx(rho)
    assert tight.scale < 0.64 * paper.scale
    assert paper.cost == Cost(pure_epsilon=epsilon, failure_delta=delta)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("accounting", ["tight", "paper"])
@pytest.mark.parametrize("sparsity", [1, 2])
def test_neighbours_are_hard_to_tell_apart_l10(accounting, sparsity):
    """The entries chosen are counted for two worst neighbours: no event is likelier than the budget allows."""
    mechanism, draws = peeling(sparsity, 1.0, 1.0, 1e-3, accounting), 4000
    rng = np.random.default_rng(6)
    counts = []
    for values in (np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 1.0])):
        noise = SeededNoise(rng)
        chosen = [mechanism.select(values, noise) @ 3 ** np.arange(sparsity) for _ in range(draws)]
        counts.append(np.bincount(chosen, minlength=9) / draws)
    margin = 5 * np.sqrt(counts[0].max() / draws)
    assert (counts[0] <= math.e * counts[1] + 1e-3 + margin).all()
    assert (counts[1] <= math.e * counts[0] + 1e-3 + margin).all()
