"""Effects of experiments: votes by brute force, answers without noise, what drowns, and what is refused."""

import math
import tracemalloc
from itertools import product

import numpy as np
import pytest
from effect_cases import EFFECT, FACTS, QUANTILES, STRATIFIED, answers, block, drawn, exact, made
from hypothesis import given
from hypothesis import strategies as st

from userdp.errors import BadInput
from userdp.queries.answers import Sums
from userdp.queries.effects import Arms, first_at, last_at

NUMBERS, LEVELS = (-1.0, 0.4, 1.0, math.nan), (-1, 0, 1)


@pytest.fixture(scope="module")
def corners():
    """All users of one sample or of two at the ends of ranges, in each arm and stratum or in none."""
    samples = [*product(NUMBERS, LEVELS, LEVELS)]
    return block([[one] for one in samples] + [[one, other] for one, other in product(samples, samples)])


@pytest.mark.parametrize("per", ["user", "sample"])
@pytest.mark.parametrize("asked", [EFFECT, STRATIFIED, QUANTILES], ids=["mean", "stratum", "bins"])
def test_votes_of_all_corners_keep_their_claim(asked, per, corners):
    one = made(asked | {"per": per})
    rows = one.rows(corners, FACTS)
    assert rows.shape == (corners.users, one.width(FACTS))
    assert rows.min() >= 0
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, rtol=1e-15)
    products = rows @ rows.T
    squares = np.diagonal(products)
    assert squares.max() <= 1 + 1e-15
    farthest = (squares + squares[:, None] - 2 * products).max()
    assert farthest <= 2 + 1e-12
    assert farthest == pytest.approx(2.0 if per == "user" else (2 / 3) ** 2 * 2)  # two samples of three at most
    for user in range(0, corners.users, 7):
        np.testing.assert_array_equal(one.rows(corners.part(user, user + 1), FACTS)[0], rows[user])


USERS = [
    [(0.0, 0, 0), (0.5, 1, 0)],  # the arm is that of the first sample
    [(math.nan, 0, 0), (0.2, 1, 1), (0.4, 1, 1)],  # which has a number
    [(1.0, -1, 0), (-0.6, 1, 0)],  # and an arm
    [(-1.0, 0, 1)],
    [(0.8, 0, 0), (0.6, 0, -1)],
    [(0.1, 1, 1)],
    [(math.nan, 1, 1)],
]


def test_without_noise_effects_are_those_of_peoples_own_means():
    usual, new = np.array([62.5, 0.0, 85.0]), np.array([65.0, 20.0, 55.0])
    found = exact(EFFECT, block(USERS))
    assert found == pytest.approx({"new - usual": new.mean() - usual.mean(), "new / usual": new.mean() / usual.mean()})
    # Strata: f with three people (the second sample of one of them has none), m with three, and x with two.
    people = block([*USERS, [(0.0, 0, 2)], [(-0.2, 1, 2)]])
    sizes = np.array([3, 3, 2]) / 8
    usual_by_sex, new_by_sex = [(62.5 + 90) / 2, 0.0, 50.0] @ sizes, [20.0, (65 + 55) / 2, 40.0] @ sizes
    expected = {"new - usual": new_by_sex - usual_by_sex, "new / usual": new_by_sex / usual_by_sex}
    assert exact(STRATIFIED, people) == pytest.approx(expected)
    of_weight = exact(EFFECT | {"of": "weight"}, block(USERS))
    assert of_weight["new / usual"] == pytest.approx((50 + new.mean() / 2) / (50 + usual.mean() / 2))


def test_without_noise_quantile_effects_are_those_of_the_distribution_functions():
    people = drawn(np.random.default_rng(1), 3000)
    usable = ~np.isnan(people.features[:, 0])
    owners = np.repeat(np.arange(people.users), people.sizes)[usable]
    counts = np.bincount(owners, minlength=people.users)
    means = np.bincount(owners, 50 * (people.features[usable, 0] + 1), minlength=people.users) / np.maximum(counts, 1)
    arms, edges, expected = people.features[people.offsets[:-1], 2], np.array(QUANTILES["bins"], float), {}
    for quantile in QUANTILES["at"]:
        ends = []
        for arm in (0, 1):
            shares = np.histogram(means[(arms == arm) & (counts > 0)], edges)[0]
            ends.append(np.interp(quantile, np.append(0, np.cumsum(shares)) / shares.sum(), edges))
        expected[f"new - usual at {quantile:g}"] = ends[1] - ends[0]
    assert exact(QUANTILES, people) == pytest.approx(expected, abs=0.01)


def test_bins_beyond_the_range_end_with_it():
    people, asked = drawn(np.random.default_rng(4), 3000), EFFECT | {"at": [0.75]}
    assert exact(asked | {"bins": [-50, 50, 300]}, people) == exact(asked | {"bins": [0, 50, 100]}, people)


@given(
    shares=st.lists(st.floats(-0.3, 1.3), min_size=1, max_size=6),
    quantile=st.floats(0.01, 0.99),
    error=st.floats(0, 0.2),
)
def test_a_wider_band_is_crossed_earlier_and_left_later(shares, quantile, error):
    shares = np.array([0.0, *shares, 1.0])
    edges, errors = np.arange(len(shares), dtype=float), np.r_[0.0, np.full(len(shares) - 2, error), 0.0]
    first, last = first_at(edges, shares, quantile), last_at(edges, shares, quantile)
    assert 0 <= first <= last + 1e-9 <= edges[-1] + 1e-9
    assert np.interp([first, last], edges, shares) == pytest.approx(quantile)
    assert first_at(edges, shares + errors, quantile) <= first + 1e-9
    assert last_at(edges, shares - errors, quantile) >= last - 1e-9


@pytest.mark.parametrize("asked", [EFFECT, STRATIFIED, QUANTILES])
def test_an_arm_that_drowns_in_noise_says_so(asked):
    sums = made(asked).rows(block(USERS), FACTS).sum(axis=0)
    for deviation, values in ((5.0, sums), (0.0, np.append(np.zeros(len(sums) - 1), 7.0))):
        for one in answers(asked, values, 7, deviation):
            assert math.isnan(one.estimate)
            assert (one.low, one.high) == ((0.0, math.inf) if one.unit == "ratio" else (-100.0, 100.0))
    (_, ratio) = answers(EFFECT | {"of": "weight"}, np.zeros(7), 7, 5.0)
    assert (ratio.low, ratio.high) == (0.5, 2.0)


def test_each_arm_drowns_by_itself_and_memory_grows_as_cells_do():
    form, rng = (50, 60, 3), np.random.default_rng(0)
    values = np.append(rng.uniform(5, 10, math.prod(form)), 0.0)
    values[7 * 180 : 7 * 180 + 3] = 0.0
    sums = Sums(values, 1.0, float(values.sum()))
    tracemalloc.start()
    arms = Arms(sums, form)
    known = [math.isfinite(arms.difference(other).value) for other in range(1, 50)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert known == [other != 7 for other in range(1, 50)]
    assert most < 30 * values.nbytes  # a square of cells has a hundred times as much


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"at": [0.5]}, r"ask.at = \[0.5\]: quantiles are read off bins"),
        ({"stratum": "arm"}, "ask.by = 'arm': an effect compares two levels or more"),
        ({"stratum": "cost"}, "ask.stratum = 'cost': the column holds numbers"),
        ({"by": "sexx"}, "ask.by = 'sexx': there is no such column; did you mean 'sex'?"),
        ({"bins": [3, 2]}, r"ask.bins = \[3.0, 2.0\]: must be two or more edges"),
    ],
)
def test_what_no_effect_can_be_asked_of_is_refused(change, sentence):
    with pytest.raises(BadInput, match=sentence):
        made(EFFECT | change).width(FACTS)
