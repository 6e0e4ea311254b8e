"""What the page of concepts says in numbers, computed anew from the formula of the Gaussian mechanism alone."""

import importlib
import math
import re
from pathlib import Path

import pytest
from scipy.stats import norm

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def concepts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("making.concepts")


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Of the Gaussian mechanism that one user moves by mu deviations (Balle, Wang 2018, Theorem 8)."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_who_holds_many_samples_is_promised_as_much_less(concepts):
    one, *others = rows(concepts.groups())
    assert [float(cell) for cell in one] == [1, concepts.EPSILON, concepts.DELTA]
    for held, epsilon, delta in others:
        chained = sum(math.exp(step * concepts.EPSILON) for step in range(int(held))) * concepts.DELTA
        assert float(epsilon) == int(held) * concepts.EPSILON
        assert float(delta) == pytest.approx(min(1, chained), rel=0.01)


def test_epsilons_bound_likelihoods_and_guesses(concepts):
    for epsilon, times, right in rows(concepts.epsilons()):
        likely = math.exp(float(epsilon))
        assert float(times.replace(",", "")) == pytest.approx(likely, abs=0.005)
        assert float(right.rstrip("%")) / 100 == pytest.approx(likely / (1 + likely), abs=1e-4)


def test_replacing_moves_a_sum_twice_as_far_as_adding(concepts):
    text = concepts.relations()
    noise = float(re.search(r"Noise (\S+) times", text)[1])
    for (*_, epsilon), moved in zip(rows(text), (1, 2), strict=True):
        assert gaussian_delta(moved / noise, float(epsilon)) == pytest.approx(concepts.DELTA, rel=0.15)


def test_rounds_cost_less_than_the_sum_of_what_each_costs(concepts):
    for rounds, added, _, exact in rows(concepts.composition()):
        mu = math.sqrt(int(rounds)) / concepts.NOISE
        assert gaussian_delta(mu, float(exact)) == pytest.approx(concepts.DELTA, rel=0.15)
        assert float(exact) <= float(added)


def test_noise_of_cohorts_is_that_of_their_rounds_and_users(concepts):
    told = {name: float(noise) / 1e3 for name, _, _, noise in rows(concepts.cohorts())}
    everybody, dealt, in_turn, coins = told.values()
    mu = math.sqrt(concepts.DRAWN) * 2 / (everybody * concepts.USERS)
    assert gaussian_delta(mu, concepts.EPSILON) == pytest.approx(concepts.DELTA, rel=0.15)
    epochs = concepts.DRAWN * concepts.COHORT / concepts.USERS
    assert (
        dealt
        == in_turn
        == pytest.approx(everybody * concepts.USERS / concepts.COHORT * math.sqrt(epochs / concepts.DRAWN), rel=0.01)
    )
    assert coins < everybody
