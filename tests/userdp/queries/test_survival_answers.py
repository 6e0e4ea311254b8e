"""Answers of survival: without noise they are those of a life table by hand, and with it intervals hold the truth."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from userdp.accounting.costs import calibrate_noise
from userdp.data.shape import Column, Shape
from userdp.queries.answers import Sums
from userdp.queries.statistics import Facts
from userdp.queries.survival import Survival, band, curve, median

SHAPE = Shape(
    4,
    has_target=False,
    bound=1.0,
    named=(
        Column("week", (0,), (0.0, 100.0), unit="weeks"),
        Column("relapse", (1,), (0.0, 1.0)),
        Column("arm", (2, 3), levels=("a", "b")),
    ),
)
FACTS = Facts(SHAPE, None, users_known=True)
# Weeks in remission of 42 children with leukaemia, by drug and placebo; a minus marks those still in remission
# (Freireich and others 1963, as printed by Gehan 1965).
DRUG = [6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35]
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]


def asked(edges, **keys):
    settings = {"statistic": "survival", "time": "week", "event": "relapse", "at": list(map(float, edges))}
    return Survival.model_validate(settings | keys)


def cells(groups, edges):
    """The exact sums: events, people who left, and those at the last edge, of each group of signed times."""
    found = []
    for times in groups:
        events, left = (np.histogram([abs(t) for t in times if (t > 0) == sign], [*edges, 1e9])[0] for sign in (1, 0))
        found += [*events[:-1], *left[:-1], events[-1] + left[-1]]
    return np.array([*found, 0.0])


def answered(one, exact, deviation=0.0, *, known=True):
    users = round(exact.sum())
    whole = float(users) if known else None
    return {each.level: each for each in one.answers(Sums.of(exact, deviation, whole), users, FACTS)}


def by_hand(table, half):
    """The shares at all edges but the first: from (events, left) of each period, and the people of the last edge."""
    periods, last = table
    share, found = 1.0, []
    for k, (events, left) in enumerate(periods):
        people = sum(map(sum, periods[k:])) + last - half * left
        share *= 1 - events / people
        found.append(share)
    return found


@pytest.mark.parametrize(("censoring", "half"), [("actuarial", 0.5), ("period_end", 0.0)])
@pytest.mark.parametrize("known", [True, False])
def test_without_noise_shares_are_those_of_a_life_table_by_hand(censoring, half, known):
    edges, exact = [0, 5, 10, 20, 30], cells([DRUG], [0, 5, 10, 20, 30])
    found = answered(asked(edges, censoring=censoring), exact, known=known)
    expected = by_hand((list(zip(exact[:4], exact[4:8], strict=True)), exact[8]), half)
    np.testing.assert_allclose([found[f"at {edge}"].estimate for edge in edges], [1.0, *expected])
    mean = np.trapezoid([1.0, *expected], edges)
    assert found["mean from 0 to 30"].estimate == pytest.approx(mean)
    assert found["mean from 0 to 30"].unit == "weeks"


def test_with_a_period_for_each_week_they_are_those_of_lifelines():
    """Facts by lifelines 0.30.3: KaplanMeierFitter, logrank_test; a share at week t is seen at edge t + 1."""
    edges = range(37)
    found = answered(asked(edges, by="arm", censoring="period_end"), cells([DRUG, PLACEBO], edges))
    theirs = {
        "a": {6: 0.857143, 7: 0.806723, 10: 0.752941, 13: 0.690196, 16: 0.627451, 22: 0.537815, 23: 0.448179},
        "b": {5: 0.571429, 10: 0.380952, 13: 0.190476, 15: 0.142857, 22: 0.047619, 23: 0.0},
    }
    for arm, shares in theirs.items():
        for week, share in shares.items():
            assert found[f"{arm}, at {week + 1}"].estimate == pytest.approx(share, abs=1e-6)
    # Their curves are steps, ours are straight between edges: medians 23 and 8, means 23.735574 and 8.666667.
    assert 23 <= found["a, median up to 36"].estimate <= 24
    assert 8 <= found["b, median up to 36"].estimate <= 9
    steps = {arm: np.array([found[f"{arm}, at {edge}"].estimate for edge in edges]) for arm in "ab"}
    assert np.nansum(steps["a"][1:]) == pytest.approx(23.735574, abs=1e-5)
    assert np.nansum(steps["b"][1:]) == pytest.approx(8.666667, abs=1e-5)
    assert found["log-rank chi-square, df 1"].estimate == pytest.approx(16.792941, abs=1e-6)
    assert found["log-rank p-value"].estimate == pytest.approx(4.168809e-05, abs=1e-9)
    assert math.isinf(found["log-rank p-value"].high)
    # Greenwood's error of the product, as lifelines has it.
    greenwood = np.sqrt(sum(d / (r * (r - d)) for d, r in [(3, 21), (1, 17), (1, 15)]))
    assert found["a, at 11"].standard_error == pytest.approx(greenwood * found["a, at 11"].estimate)


def log_rank_by_hand(groups, edges):
    """Mantel's chi-square by plain loops over periods, for times that are whole numbers of periods."""
    count = len(groups)
    more, covariance = np.zeros(count), np.zeros((count, count))
    for start, end in pairwise(edges):
        events = np.array([sum(start <= t < end for t in times) for times in groups])
        people = np.array([sum(abs(t) >= start for t in times) for times in groups])
        d, n = events.sum(), people.sum()
        if n < 2:
            continue
        more += events - d * people / n
        covariance += d * (n - d) / (n - 1) * (np.diag(people / n) - np.outer(people, people) / n**2)
    return more[:-1] @ np.linalg.solve(covariance[:-1, :-1], more[:-1])


def test_three_groups_are_compared_as_by_hand():
    rng, edges = np.random.default_rng(0), range(11)
    groups = [list(rng.integers(1, 10, 60) * rng.choice([-1, 1], 60)) for _ in range(3)]
    shape = Shape(5, has_target=False, named=(*SHAPE.named[:2], Column("arm", (2, 3, 4), levels=("a", "b", "c"))))
    one, exact = asked(edges, by="arm", censoring="period_end"), cells(groups, edges)
    found = {
        each.level: each for each in one.answers(Sums.of(exact, 0.0, 180.0), 180, Facts(shape, None, users_known=True))
    }
    chi = log_rank_by_hand(groups, list(edges))
    assert found["log-rank chi-square, df 2"].estimate == pytest.approx(chi)
    assert found["log-rank p-value"].estimate == pytest.approx(stats.chi2.sf(chi, 2))


@pytest.mark.parametrize(
    ("times", "shares"),
    [
        ([-3] * 10, [1, 1, math.nan]),  # everybody leaves in the first period: nobody is at risk in the second
        ([0.1] * 10, [1, 0, math.nan]),  # everybody has the event at the start
        ([12] * 10, [1, 1, 1]),  # and beyond the last edge
        ([-10] * 10, [1, 1, 1]),
        ([3] * 4 + [7] * 3 + [-7] * 3, [1, 0.6, 0.6 * (1 - 3 / 4.5)]),  # ties
    ],
)
def test_ends_that_are_alike(times, shares):
    found = answered(asked([0, 5, 10]), cells([times], [0, 5, 10]))
    np.testing.assert_allclose([found[f"at {edge}"].estimate for edge in (0, 5, 10)], shares)
    for one in found.values():
        assert math.isnan(one.estimate) or one.low <= one.estimate <= one.high
    if math.isnan(shares[-1]):
        assert (found["at 10"].low, found["at 10"].high) == (0.0, found["at 5"].high)
        mean = found["mean from 0 to 10"]
        assert (math.isnan(mean.estimate), mean.low, mean.high) == (True, 0.0, 10.0)


def test_one_period():
    found = answered(asked([0, 10]), cells([[4, -4, 6, 12]], [0, 10]))
    assert found["at 10"].estimate == pytest.approx(1 - 2 / 3.5)


def test_people_at_risk_drown_below_four_deviations_of_their_noise():
    one, places = asked([0, 5, 10]), 6  # two kinds of two periods, the last edge, the rest
    for people, drowned in ((1.02, False), (0.98, True)):
        at_risk = Sums.of(np.zeros(places), 2.0, 1000.0)
        least = 4 * math.sqrt(at_risk.noise(np.array([0, 1, 0, 0.5, 1, 0])))
        exact = np.array([100.0, 0, 900 - people * least, 0, people * least, 0])
        found = answered(one, exact, 2.0)
        assert math.isnan(found["at 10"].estimate) == drowned
        assert math.isfinite(found["at 5"].estimate)
    assert (found["at 10"].low, found["at 10"].high) == (0.0, found["at 5"].high)
    assert found["at 5"].high < 1.0
    assert math.isnan(found["mean from 0 to 10"].estimate)


def test_a_plan_warns_where_noise_hides_small_groups():
    facts = Facts(SHAPE, None, users_known=True)
    assert not list(asked([0, 5, 10]).doubts(2.0, 1000, facts))
    [line] = asked(range(11), by="arm").doubts(6.0, 400, facts)
    assert line.startswith("survival of relapse: noise hides it from the first period on in which fewer than 78 people")


@pytest.mark.parametrize(
    ("share", "noise", "spread"), [(0.9, 1e-4, 2e-4), (0.5, 0.0, 1e-3), (0.99, 1e-4, 1e-5), (0.03, 1e-3, 1e-3)]
)
def test_both_ends_of_a_band_solve_their_equation(share, noise, spread):
    estimate, low, high = band(share, noise, spread, 100.0)
    people = share * (1 - share) / spread
    for end in (low, high):
        if 0 < end < 1:
            assert (end - share) ** 2 == pytest.approx(stats.norm.ppf(0.975) ** 2 * (noise + end * (1 - end) / people))
    assert low < estimate == share < high
    assert band(1.0, 0.0, 0.0, 100.0)[1] == pytest.approx(1 / (1 + stats.norm.ppf(0.975) ** 2 / 100))
    assert band(1.2, 1e-4, 0.0, 100.0)[0] == 1.0


def test_the_median_is_where_the_curve_and_both_ends_of_its_band_cross_one_half():
    edges = np.array([0.0, 10.0, 20.0, 30.0])
    shares, lows, highs = np.array([[1, 0.7, 0.3, 0.1], [1, 0.6, 0.2, 0.0], [1, 0.8, 0.5, 0.3]])
    assert median(edges, shares, lows, highs) == pytest.approx((15.0, 12.5, 20.0))
    assert median(edges, highs + 0.3, lows, highs + 0.3) == pytest.approx((30.0, 12.5, 30.0))
    assert math.isnan(median(edges, np.array([1, 0.7, np.nan, np.nan]), lows, highs)[0])


def test_derivatives_of_shares_are_those_of_small_steps():
    one, x = asked([0, 5, 10, 20]), np.array([30.0, 20, 10, 8, 9, 7, 40, 3])
    totals = one._totals(0, len(x))
    slopes, step = curve(Sums.of(x, 0.0, None), *totals)[1], 1e-5
    for place in range(len(x)):
        moved = [curve(Sums.of(x + h * np.eye(len(x))[place], 0.0, None), *totals)[0] for h in (step, -step)]
        np.testing.assert_allclose(slopes[:, place], (moved[0] - moved[1]) / (2 * step), atol=1e-9)


# With noise ----------------------------------------------------------------------------------------------------------


def law(edges, leaving, hazard=0.1):
    """The chances of the cells of people whose events and leaving have constant rates a unit of time."""
    there = np.exp(-(hazard + leaving) * np.asarray(edges, dtype=float))
    gone = there[:-1] - there[1:]
    events = gone * hazard / (hazard + leaving)
    return np.array([*events, *(gone - events), there[-1]])


def drawn(case, repetitions, seed=0):
    """Answers of repetitions with other people and other noise, in two groups of one law, and the truth.

    The truth is that of the law, and for people who leave at the ends of periods, of those.
    """
    users, epsilon, leaving, censoring = case
    edges = np.linspace(0.0, 5.0, 11)
    chances, k = law(edges, leaving), 10
    one = asked(edges, by="arm", censoring=censoring)
    deviation = math.sqrt(2) * calibrate_noise(epsilon, 1e-6, 1)
    rng = np.random.default_rng([seed, users, epsilon])
    people = rng.multinomial(users, np.append(np.outer([0.6, 0.4], chances), 0.0), repetitions)
    noisy = people + rng.normal(0.0, deviation, people.shape)
    answers = [one.answers(Sums.of(each, deviation, float(users)), users, FACTS) for each in noisy]
    shares = np.exp(-0.1 * edges)
    if censoring == "period_end":
        at_risk = np.cumsum((chances[:k] + chances[k : 2 * k])[::-1])[::-1] + chances[-1]
        shares = np.append(1.0, np.cumprod(1 - chances[:k] / at_risk))
    truth = np.array([*shares[1:], np.trapezoid(shares, edges)])
    return answers, truth, noisy


def coverage(case, repetitions):
    """Shares of intervals of a group that hold the truth, over edges and of the mean; of tests that see no effect."""
    answers, truth, _ = drawn(case, repetitions)
    places = [*range(1, 11), 12]
    low, high, known = (
        np.array([[getattr(each[place], key) for place in places] for each in answers])
        for key in ("low", "high", "estimate")
    )
    known, inside = np.isfinite(known), (low <= truth) & (truth <= high)
    held = (inside & known).sum(axis=0) / known.sum(axis=0)
    assert known.mean() > 0.8
    assert inside[~known].sum() >= 0.95 * (~known).sum() - 2
    return held[:-1].mean(), held[-1], 1 - np.mean([each[-1].estimate < 0.05 for each in answers])


LIGHT, HEAVY = 0.02, 0.2  # of 100 people 15 and 52 leave without an event
GRID = [
    (users, epsilon, leaving, censoring)
    for users in (1000, 20_000)
    for epsilon in (1, 4)
    for leaving in (LIGHT, HEAVY)
    for censoring in ("actuarial", "period_end")
]


@pytest.mark.parametrize("case", [GRID[0], GRID[10]], ids=str)
def test_intervals_hold_the_truth_as_often_as_they_say(case):
    for share in coverage(case, 200):
        assert 0.92 <= share <= 0.98  # 0.95, and two standard errors of 200 repetitions


@pytest.mark.slow
@pytest.mark.parametrize("case", GRID, ids=str)
def test_intervals_hold_the_truth_as_often_as_they_say_everywhere(case):
    for share in coverage(case, 1000):
        assert 0.93 <= share <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("case", [(1000, 1, HEAVY, "period_end"), (20_000, 4, LIGHT, "period_end")], ids=str)
def test_intervals_of_medians_hold_the_truth(case):
    """The median of people who leave at the ends of periods, which lies at 6.8 of ten."""
    users, epsilon, leaving, censoring = case
    edges = np.linspace(0.0, 10.0, 11)
    chances, one = law(edges, leaving / 2), asked(edges, censoring=censoring)
    at_risk = np.cumsum((chances[:10] + chances[10:20])[::-1])[::-1] + chances[-1]
    truth = np.interp(-0.5, -np.append(1.0, np.cumprod(1 - chances[:10] / at_risk)), edges)
    deviation = math.sqrt(2) * calibrate_noise(epsilon, 1e-6, 1)
    rng, held = np.random.default_rng(3), []
    for people in rng.multinomial(users, np.append(chances, 0.0), 400):
        noisy = people + rng.normal(0.0, deviation, len(people))
        found = one.answers(Sums.of(noisy, deviation, float(users)), users, FACTS)[11]
        held.append(found.low <= truth <= found.high)
    assert 0.93 <= np.mean(held) <= 0.98


@pytest.mark.parametrize("case", [(1000, 1, HEAVY, "actuarial"), (20_000, 4, LIGHT, "period_end")], ids=str)
def test_errors_are_those_of_a_plain_simulation_and_those_that_are_stated(case):
    answers, truth, noisy = drawn(case, 300)
    half = 0.5 if case[-1] == "actuarial" else 0.0
    plain = [by_hand((list(zip(each[:10], each[10:20], strict=True)), each[20]), half)[:8] for each in noisy]
    ours = np.array([[one.estimate for one in each[1:9]] for each in answers])
    off, theirs = (np.sqrt(np.nanmean((found - truth[:8]) ** 2, axis=0)) for found in (ours, np.array(plain)))
    assert (off <= 1.1 * theirs).all()
    stated = np.nanmean([[one.standard_error for one in each[1:9]] for each in answers], axis=0)
    np.testing.assert_allclose(off, stated, rtol=0.2)
    assert np.mean(off / stated) == pytest.approx(1.0, abs=0.08)


@pytest.mark.slow
def test_noise_costs_the_comparison_of_groups_little():
    """Hazards of 0.1 and 0.13, 1,000 people, epsilon 4: exact numbers tell them apart in 7 of 10 tables."""
    edges = np.linspace(0.0, 5.0, 11)
    one, chances = asked(edges, by="arm"), np.concatenate([0.5 * law(edges, LIGHT), 0.5 * law(edges, LIGHT, 0.13), [0]])
    deviation, rng, seen = math.sqrt(2) * calibrate_noise(4, 1e-6, 1), np.random.default_rng(1), np.zeros(2)
    for people in rng.multinomial(1000, chances, 200):
        sums = [Sums.of(people + s * rng.normal(size=len(people)), s, 1000.0) for s in (0.0, deviation)]
        seen += [one.answers(each, 1000, FACTS)[-1].estimate < 0.05 for each in sums]
    assert 130 <= seen[0] <= 160
    assert seen[1] > 0.85 * seen[0]
