"""Intervals of sums, of shares, of means under a filter and of means of pairs hold the truth as often as they say."""

import numpy as np
import pytest
from query_cases import PAIR, query

from userdp.accounting.costs import calibrate_noise
from userdp.data import Block

SUM = {"statistic": "sum", "of": "visits", "bound": 15.0}
MEAN = {"statistic": "mean", "of": "visits", "where": {"age": [50, 100], "city": ["Rome", "Oslo"], "often": "no"}}
MEANS = {"statistic": "group_means", "of": "visits", "by": PAIR}
SHARES = {"statistic": "shares", "of": PAIR}
EACH = pytest.mark.parametrize("asked", [SUM, MEAN, MEANS, SHARES], ids=lambda one: one["statistic"])
TRUTHS = {"mean": [6.5], "group_means": [5.75, 4.75] * 3, "shares": [0.3, 0.2, 0.18, 0.12, 0.12, 0.08]}
"""Means and shares of all people like those of `drawn`."""


def drawn(rng, asked, users):
    """People of one sample, or for sums of up to four: age in [20, 90], visits 3 + age / 20 - often + noise."""
    sizes = rng.integers(1, 5, users) if asked is SUM else np.ones(users, dtype=int)
    count = int(sizes.sum())
    age, city = rng.uniform(20, 90, count), rng.choice(3, count, p=[0.5, 0.3, 0.2])
    often = (rng.random(count) < 0.4).astype(int)
    visits = 3 + age / 20 - often + rng.uniform(-1, 1, count)
    cells = np.zeros((count, 7), dtype=np.float32)
    cells[:, 0], cells[:, 1] = age / 50 - 1, visits / 5 - 1
    cells[np.arange(count), 2 + city] = cells[np.arange(count), 5 + often] = 1.0
    return Block(cells, np.concatenate([[0], np.cumsum(sizes)]))


def share_held(asked, users, epsilon, repetitions):
    """The share of intervals that hold the truth: of the population, or for sums of the table, clipped as declared."""
    problem, held = query([asked]), []
    deviation = np.sqrt(2) * calibrate_noise(epsilon, 1e-6, 1)
    for repetition in range(repetitions):
        rng = np.random.default_rng([users, int(epsilon), repetition])
        block = drawn(rng, asked, users)
        if (truth := TRUTHS.get(asked["statistic"])) is None:
            cells = 5 * (block.features[:, 1].astype(float) + 1)
            truth = [np.minimum(np.add.reduceat(cells, block.offsets[:-1]), asked["bound"]).sum()]
        sums = problem.user_shares(block).sum(axis=0)
        found = problem.answers(sums + deviation * rng.normal(size=len(sums)), deviation, users)
        held += [one.low <= value <= one.high for one, value in zip(found, truth, strict=True)]
        if asked is SUM:  # the noise of one number in [0, bound], of which replacing a user moves the sum by the bound
            assert found[0].standard_error == pytest.approx(deviation * asked["bound"] / np.sqrt(2))
        if asked is SHARES:  # no larger than those of noisy counts over the public number of people
            plain = np.sqrt(np.array(truth) * (1 - np.array(truth)) / users + (deviation / users) ** 2)
            assert (np.array([one.standard_error for one in found]) <= 1.1 * plain).mean() > 0.8
    return np.mean(held)


@EACH
def test_intervals_of_a_thousand_people_hold_the_truth(asked):
    assert 0.93 <= share_held(asked, 1000, 4.0, 400) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("users", "epsilon"), [(1000, 1.0), (20_000, 1.0), (20_000, 4.0)])
@EACH
def test_intervals_hold_the_truth_at_other_sizes_and_budgets(asked, users, epsilon):
    assert 0.93 <= share_held(asked, users, epsilon, 400) <= 0.98


def test_a_mean_under_a_filter_has_no_larger_error_than_plain_sums_at_the_same_budget():
    """A plain sum of (1, y) in [-1, 1] moves by 2 at most if a user is replaced."""
    problem, users, unit, found = query([MEAN]), 1000, calibrate_noise(1.0, 1e-6, 1), []
    for repetition in range(400):
        rng = np.random.default_rng([52, repetition])
        block = drawn(rng, MEAN, users)
        sums = problem.user_shares(block).sum(axis=0)
        (ours,) = problem.answers(sums + np.sqrt(2) * unit * rng.normal(size=len(sums)), np.sqrt(2) * unit, users)
        cells = block.features.astype(float)
        fits = (cells[:, 0] >= 0) & (cells[:, 2:4].sum(axis=1) > 0) & (cells[:, 5] > 0)
        people, total = np.array([fits.sum(), cells[fits, 1].sum()]) + 2 * unit * rng.normal(size=2)
        found.append([ours.estimate, 5 * (total / people + 1)])
    off = np.sqrt(np.mean((np.array(found) - TRUTHS["mean"]) ** 2, axis=0))
    assert off[0] <= 1.1 * off[1], off
