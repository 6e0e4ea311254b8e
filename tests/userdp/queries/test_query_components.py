"""Variance between people and within them: votes by brute force, identities, answers without noise, and drowning."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from effect_cases import COMPONENTS, FACTS, answers, block, drawn, exact, made

from userdp.queries.components import pair_means

CELLS = (-1.0, -0.3, 1.0, math.nan)
LEVELS = "between users", "within users", "share between users (ICC)"


@pytest.fixture(scope="module")
def corners():
    """All users of one to four samples, at the ends of the range, inside of it or missing, in each order."""
    return block([[(x, 0, 0) for x in user] for k in (1, 2, 3, 4) for user in product(CELLS, repeat=k)])


def numbers(people):
    """Each user's numbers in [0, 1], as they are stored."""
    cells = (people.features[:, 0].astype(float) + 1) / 2
    return [part[~np.isnan(part)] for part in np.split(cells, people.offsets[1:-1])]


def test_means_over_pairs_are_those_of_all_pairs_and_hold_mean_square_and_variance(corners):
    means, sizes = pair_means(corners, (corners.features[:, 0].astype(float) + 1) / 2)
    for x, found, size in zip(numbers(corners), means, sizes, strict=True):
        assert size == len(x)
        if len(x) < 2:
            assert not found.any()
            continue
        pairs = [(a * b, (1 - a) * (1 - b), (a - b) ** 2, a * (1 - a) + b * (1 - b)) for a, b in combinations(x, 2)]
        np.testing.assert_allclose(found, np.mean(pairs, axis=0), atol=1e-12)
        held = found[2] / 2, found[0] + found[2] / 2, found[0] + (found[2] + found[3]) / 2
        assert held == pytest.approx((x.var(ddof=1), np.mean(x**2), x.mean()))
        assert held[0] <= 0.5 + 1e-12


@pytest.mark.parametrize("per", ["user", "sample"])
def test_votes_of_all_corners_keep_their_claim(per, corners):
    one = made(COMPONENTS | {"per": per})
    rows = one.rows(corners, FACTS)
    assert rows.shape == (corners.users, one.width(FACTS))
    assert rows.min() >= 0
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-14)
    squares = np.square(rows).sum(axis=1)
    assert squares.max() <= 1 + 1e-14
    farthest = (squares + squares[:, None] - 2 * rows @ rows.T).max()
    assert farthest == pytest.approx(2.0)
    for user in range(0, corners.users, 3):
        np.testing.assert_array_equal(one.rows(corners.part(user, user + 1), FACTS)[0], rows[user])


def test_without_noise_components_are_those_of_the_definition():
    people = drawn(np.random.default_rng(2), 400)
    several = [x for x in numbers(people) if len(x) > 1]
    sizes, means, own = (np.array([f(x) for x in several]) for f in (len, np.mean, lambda x: x.var(ddof=1)))
    users = len(several)
    within = own.mean()
    between = means.var() * (1 + 1 / users) - np.mean(own / sizes)  # about the population, as for samples of it
    expected = 1e4 * between, 1e4 * within, between / (between + within)
    assert exact(COMPONENTS, people) == pytest.approx(dict(zip(LEVELS, expected, strict=True)), rel=1e-5)


def test_people_who_all_agree_and_people_who_never_change():
    same = block([[(-0.5, 0, 0), (0.5, 0, 0)]] * 5000)
    apart = block([[(x, 0, 0)] * 3 for x in (-0.5, 0.5)] * 2500)
    assert exact(COMPONENTS, same)[LEVELS[2]] == 0.0
    assert exact(COMPONENTS, apart)[LEVELS[2]] == pytest.approx(1.0)


def test_a_user_of_one_sample_changes_nothing():
    people = drawn(np.random.default_rng(3), 300)
    more = people.followed_by(block([[(x, 0, 0)] for x in (-1.0, 1.0, 1.0)]))
    assert exact(COMPONENTS, more) == exact(COMPONENTS, people)


def test_a_share_whose_variances_drown_in_noise_says_so_and_a_plan_warns_of_it():
    narrow = block([[(x, 0, 0), (x + 0.02, 0, 0)] for x in (-0.9, -0.95)] * 1000)
    sums, one = made(COMPONENTS).rows(narrow, FACTS).sum(axis=0), made(COMPONENTS)
    between, within, share = answers(COMPONENTS, sums, 2000, 6.0)
    assert between.low == 0.0 < between.high < 200.0
    assert within.low == 0.0 < within.high < 200.0
    assert math.isnan(share.estimate)
    assert (share.low, share.high) == (0.0, 1.0)
    (told,) = one.doubts(6.0, 2000, FACTS)
    assert "about 12 % of the column's range" in told
    assert not list(one.doubts(6.0, 400_000, FACTS))
    for unknown in answers(COMPONENTS, np.append(np.zeros(10), 100.0), 100, 6.0):
        assert math.isnan(unknown.estimate)
        assert unknown.low == 0.0
