"""Intervals of effects and of variance components hold the truth as often as they say, and errors are no plain ones.

People are drawn from a population whose own answers are the truth, and noise is added to the sums of their rows.
"""

import math
from functools import cache

import numpy as np
import pytest
from effect_cases import COMPONENTS, EFFECT, FACTS, QUANTILES, STRATIFIED, answers, drawn, exact, made

from userdp.accounting.costs import calibrate_noise

REPETITIONS, MANY = 400, 1000  # Of fewer, coverage by chance exceeds the limits too often
ASKED = {
    "mean": EFFECT,
    "ratio of a range from 50": EFFECT | {"of": "weight"},
    "stratum": STRATIFIED,
    "quantiles": QUANTILES,
    "components": COMPONENTS,
}
GRID = [(users, epsilon) for users in (1000, 20_000) for epsilon in (1.0, 4.0)]


@cache
def population():
    return drawn(np.random.default_rng(20), 20_000)


@cache
def noise(epsilon):
    return calibrate_noise(epsilon, 1e-6, 1)


def repeated(name, users, epsilon, repetitions):
    """The answers of each repetition, (repetitions, answers)."""
    asked, rng = ASKED[name], np.random.default_rng([21, users, int(epsilon)])
    rows, deviation, found = made(asked).rows(population(), FACTS), math.sqrt(2) * noise(epsilon), []
    for _ in range(repetitions):
        times = np.bincount(rng.integers(len(rows), size=users), minlength=len(rows))
        sums = times @ rows
        found.append(answers(asked, sums + rng.normal(0.0, deviation, len(sums)), users, deviation))
    return found


def check(name, users, epsilon, repetitions):
    truth = exact(ASKED[name], population())
    for several in zip(*repeated(name, users, epsilon, repetitions), strict=True):
        true = truth[several[0].level]
        held = np.mean([one.low <= true <= one.high for one in several])
        assert 0.93 <= held <= 0.98, (several[0].level, held)
        off = np.sqrt(np.mean([(one.estimate - true) ** 2 for one in several]))
        assert 0.88 <= np.median([one.standard_error for one in several]) / off <= 1.12, several[0].level


def plain_answers(name, people):
    """Return what comes to mind first: rows (U, K) of sums, how far one user moves them, and what is made of them."""
    usable = ~np.isnan(people.features[:, 0])
    owners, x = np.repeat(np.arange(people.users), people.sizes)[usable], people.features[usable, 0].astype(float)
    sizes = np.bincount(owners, minlength=people.users)
    there, new = sizes > 0, people.features[people.offsets[:-1], 2] > 0.5
    mean = np.bincount(owners, x, minlength=people.users) / np.maximum(sizes, 1)
    if name == "mean":
        rows = [arm * one for arm in (there & ~new, there & new) for one in (np.ones(len(mean)), mean)]
        return np.stack(rows, 1), 2.0, lambda s: [50 * (s[3] / s[2] - s[1] / s[0])]
    if name == "quantiles":
        edges = np.array(QUANTILES["bins"], dtype=float)
        codes = np.minimum(np.searchsorted(edges, 50 * (mean + 1), side="right") - 1, 9)
        rows = there[:, None] * np.eye(20)[codes + 10 * new]

        def quantiles(s):
            shares = [np.append(0, np.maximum.accumulate(np.cumsum(one))) for one in np.split(s, 2)]
            usual, new = (np.interp(QUANTILES["at"], share / share[-1], edges) for share in shares)
            return new - usual

        return rows, math.sqrt(2), quantiles
    several, cells = sizes > 1, (x + 1) / 2
    square = np.bincount(owners, cells**2, minlength=people.users) / np.maximum(sizes, 1)
    own = (square - ((mean + 1) / 2) ** 2) * sizes / np.maximum(sizes - 1, 1)
    rows = several[:, None] * np.stack([np.ones(len(mean)), (mean + 1) / 2, square, 2 * own], 1)

    def components(s):
        total, within = s[2] / s[0] - (s[1] / s[0]) ** 2, s[3] / s[0] / 2
        return [1e4 * (total - within), 1e4 * within, 1 - within / total]

    return rows, 2.0, components


@pytest.mark.parametrize("name", ["mean", pytest.param("quantiles", marks=pytest.mark.slow), "components"])
def test_errors_are_no_larger_than_those_of_plain_sums_at_the_same_budget(name):
    users, epsilon = 1000, 1.0
    rows, moved, made_of = plain_answers(name, population())
    rng, theirs = np.random.default_rng(22), []
    for _ in range(REPETITIONS):
        sums = np.bincount(rng.integers(len(rows), size=users), minlength=len(rows)) @ rows
        theirs.append(made_of(sums + rng.normal(0.0, moved * noise(epsilon), len(sums))))
    truth = exact(ASKED[name], population())
    ours = repeated(name, users, epsilon, REPETITIONS)
    for place, plain in enumerate(np.transpose(theirs)):
        true = truth[ours[0][place].level]
        off = np.mean([(one[place].estimate - true) ** 2 for one in ours])
        assert math.sqrt(off / np.mean((plain - true) ** 2)) <= 1.1, ours[0][place].level


@pytest.mark.parametrize("name", ["mean", "components"])
def test_intervals_hold_the_truth_as_often_as_they_say(name):
    check(name, *GRID[0], REPETITIONS)


@pytest.mark.slow
@pytest.mark.parametrize(("users", "epsilon"), GRID)
@pytest.mark.parametrize("name", ASKED)
def test_intervals_hold_the_truth_at_all_sizes_and_budgets(name, users, epsilon):
    check(name, users, epsilon, MANY)
