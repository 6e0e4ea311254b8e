"""The privacy filter: the best analyst within its limits gains no more than delta, and prices cover guarantees."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import norm

from userdp.accounting import Cost, Guarantee, Ledger, Price, Privacy, Total, delta_of, epsilon_of
from userdp.accounting.filter import ROUNDING, prices
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.errors import BadInput


def promise(epsilon, delta, *, gaussian=True, **other):
    accountant = ONE_GAUSSIAN if gaussian else "something else"
    fields = {"unit": "user", "relation": "replace_one", "holds": True, "assumptions": ()} | other
    return Guarantee(epsilon=epsilon, delta=delta, accountant=accountant, adversary="anybody", **fields)


# The best analyst, by brute force -----------------------------------------------------------------------------------

EDGES = np.concatenate([[-np.inf], np.linspace(-4.5, 4.5, 61), [np.inf]])


def gaussian(mu):
    """(chances, losses) of a Gaussian's answer in one of many bins, which is post-processing."""
    there, else_ = np.diff(norm.cdf(EDGES - mu)), np.diff(norm.cdf(EDGES))
    return there, np.log(there / else_)


def response(epsilon):
    chance = 1 / (1 + math.exp(-epsilon))
    return np.array([chance, 1 - chance]), np.array([epsilon, -epsilon])


STEP, PURE, REVEALED = 0.35, 0.4, 2e-3
EPSILON = 2.0


def spent(gaussians, responses=0, revealed=0.0):
    return Price(STEP * gaussians, PURE * responses, revealed)


def promised(limits):
    """The delta that limits promise at EPSILON, if they are fixed beforehand."""
    cost = Cost(limits.mu_squared**-0.5, failure_delta=limits.delta)
    return delta_of(cost, 1, EPSILON - limits.epsilon)


def advantage(loss, done, reveal, allowed):
    """The most that an analyst adds to P(S) - e^EPSILON Q(S) after answers of this loss, choosing each move by them.

    Moves are a Gaussian's answer, a randomised response, and to reveal everything with probability ``reveal``; ``done``
    counts those so far, and ``allowed`` says which counts may be.
    """
    best = np.maximum(0.0, -np.expm1(np.minimum(EPSILON - loss, 0.0)))
    for move, answer in enumerate((gaussian(math.sqrt(STEP)), response(PURE), None)):
        after = tuple(count + (kind == move) for kind, count in enumerate(done))
        if not allowed(after):
            continue
        if answer is None:
            found = reveal + (1 - reveal) * advantage(loss, after, reveal, allowed)
        else:
            chances, losses = answer
            found = advantage(np.add.outer(loss, losses), after, reveal, allowed) @ chances
        best = np.maximum(best, found)
    return best


@pytest.mark.parametrize("most", [(2, 1, 1), (2, 0, 2), (1, 2, 1)], ids=str)
def test_no_analyst_gains_more_than_delta_whatever_follows_from_what(most):
    def price(counts):
        return spent(counts[0], counts[1], REVEALED * counts[2])

    limits = price(most)
    found = advantage(np.zeros(()), (0, 0, 0), REVEALED, lambda counts: price(counts).within(limits))
    assert found <= promised(limits)
    assert found > 0.4 * promised(limits)  # the brute force finds what there is


def test_limits_that_follow_what_was_spent_are_exceeded():
    """After a Gaussian, its analyst may add another, or reveal with the delta that this one would have used."""
    budget = promised(spent(2))
    reveal = budget - promised(spent(1))
    fixed = [(1, 0, 0), (2, 0, 0), (1, 0, 1)]
    assert all(promised(spent(*counts[:2], reveal * counts[2])) <= budget for counts in fixed)
    assert advantage(np.zeros(()), (0, 0, 0), reveal, fixed.__contains__) > 1.2 * budget


# Limits and charges -------------------------------------------------------------------------------------------------


@given(st.floats(0.05, 20), st.floats(1e-9, 0.1), st.floats(0, 0.95))
def test_limits_together_promise_the_total(epsilon, delta, others):
    limits = Total(epsilon, delta, others=others).limits
    cost = Cost(limits.mu_squared**-0.5, failure_delta=limits.delta)
    assert delta_of(cost, 1, epsilon - limits.epsilon) <= delta * (1 + 1e-12)


@given(st.floats(0.05, 20), st.floats(1e-9, 1e-2), st.booleans())
def test_one_run_may_take_everything_and_nothing_follows_it(epsilon, delta, is_gaussian):
    total = Total(epsilon, delta, others=0.0 if is_gaussian else 1.0)
    one = promise(epsilon, delta, gaussian=is_gaussian)
    price = total.charged(Price(), [one])
    with pytest.raises(BadInput, match="exceeds what is left"):
        total.charged(price, [promise(epsilon / 100, delta / 100, gaussian=is_gaussian)])


@given(
    st.floats(0.1, 8),
    st.floats(0, 1),
    st.lists(st.tuples(st.floats(0.01, 3), st.sampled_from([0.0, 1e-8, 1e-6]), st.booleans()), max_size=30),
)
@example(1.0, 1.0, [(1.0, 0.0, False)])
def test_charges_never_exceed_the_total_and_cover_what_was_claimed(epsilon, others, runs):
    total, entries, claimed = Total(epsilon, 1e-6, others=others), Price(), []
    for each, delta, is_gaussian in runs:
        one = promise(each, delta, gaussian=is_gaussian and delta > 0)
        try:
            price = total.charged(entries, [one])
        except BadInput:
            continue
        assert price in prices(one, "replace_one")
        entries = Price.sum((entries, price))
        claimed.append((each, delta))
    assert entries.within(total.limits)
    assert total.spent_epsilon(entries) <= epsilon * (1 + 1e-6)
    # Randomised response at epsilon is, at the total's delta, worth exactly this.
    pure = [math.log(math.exp(each) - 1e-6 * (1 + math.exp(each))) for each, delta in claimed if delta == 0]
    assert total.spent_epsilon(entries) >= max([0.0, *pure]) * others * (1 - 1e-9)


def test_gaussian_runs_compose_as_one_gaussian_and_others_add_up():
    total, entries = Total(4.0, 1e-6), Price()
    for _ in range(12):
        entries = Price.sum((entries, total.charged(entries, [promise(1.0, 1e-6)])))
    left = total.left(entries, 1e-6) * 0.999
    with pytest.raises(BadInput, match=f"set privacy.epsilon to at most {left:.4g} at that delta"):
        total.charged(entries, [promise(1.0, 1e-6)])
    total.charged(entries, [promise(float(f"{left:.4g}"), 1e-6)])
    assert epsilon_of(Cost(entries.mu_squared**-0.5), 1, 1e-6) == pytest.approx(total.spent_epsilon(entries))
    halves = Total(4.0, 1e-6, others=0.5)
    assert halves.charged(Price(), [promise(1.0, 5e-7, gaussian=False)]) == Price(epsilon=1.0, delta=5e-7)
    # Several runs at once cost as much as one after another; a part that does not fit refuses the whole.
    assert halves.charged(Price(), [promise(0.5, 1e-7, gaussian=False)], times=4).epsilon == 2.0
    with pytest.raises(BadInput, match=r"epsilon = 2, delta = 5e-07 for what is no Gaussian"):
        halves.charged(Price(), [promise(0.5, 1e-7, gaussian=False)], times=5)


def test_the_price_of_a_gaussian_is_its_distance_and_replacing_is_two_steps():
    mu = 0.3
    one = promise(epsilon_of(Cost(1 / mu), 1, 1e-6), 1e-6)
    (price, plain) = prices(one, "replace_one")
    assert price.mu_squared == pytest.approx(mu**2, rel=ROUNDING)
    assert (plain.epsilon, plain.delta) == (one.epsilon, one.delta)
    removing = replace(one, relation="add_or_remove")
    (twice, added) = prices(removing, "replace_one")
    assert twice.mu_squared == 4 * price.mu_squared
    assert added.epsilon == 2 * one.epsilon
    assert added.delta == pytest.approx((1 + math.exp(one.epsilon)) * one.delta)
    assert prices(removing, "add_or_remove") == (price, plain)


@given(st.floats(1e-3, 30), st.floats(1e-12, 1 - 1e-12))
def test_a_pure_epsilon_is_no_worse_than_the_gaussian_that_it_is_priced_as(epsilon, false_positives):
    (plain, price, _) = prices(promise(epsilon, 0.0, gaussian=False), "replace_one")
    assert plain == Price(epsilon=epsilon)
    pure = max(0.0, 1 - math.exp(epsilon) * false_positives, math.exp(-epsilon) * (1 - false_positives))
    missed = norm.cdf(norm.isf(false_positives) - math.sqrt(price.mu_squared))
    assert missed <= pure * (1 + 1e-9)
    corner = 1 / (1 + math.exp(epsilon))
    assert norm.cdf(norm.isf(corner) - math.sqrt(price.mu_squared)) == pytest.approx(corner, rel=1e-6)


@given(st.floats(0.5, 20), st.floats(0, 1), st.integers(1, 40), st.floats(0, 1e-8), st.floats(0, 1))
def test_a_known_cost_is_priced_in_both_parts_at_no_less_than_it_is_worth(noise, pure, count, failure, shared):
    delta = 1e-5
    cost = Cost(noise, pure, failure, shared)
    ledger = Ledger(100, cost, count, Privacy(1e6, delta))
    one = promise(epsilon_of(cost, count, delta), delta, gaussian=False)
    mixed, *gaussian, plain = prices(one, "replace_one", ledger.planned)
    assert plain == Price(0.0, one.epsilon, delta)
    assert mixed.mu_squared == pytest.approx(count / noise**2)
    assert epsilon_of(Cost(mixed.mu_squared**-0.5, mixed.epsilon, mixed.delta), 1, delta) >= one.epsilon * (1 - 1e-9)
    for price in gaussian:  # only what cannot fail
        assert ledger.planned.failure_delta == price.delta == price.epsilon == 0
        assert epsilon_of(Cost(price.mu_squared**-0.5), 1, delta) >= one.epsilon * (1 - 1e-9)
    # Twice the distance or the group's price would have to be shown for each kind of step.
    assert prices(replace(one, relation="add_or_remove"), "replace_one", ledger.planned)[0].mu_squared == 0


@pytest.mark.parametrize(
    ("one", "relation", "reason"),
    [
        (Guarantee.none("no noise"), "replace_one", "without a privacy guarantee has no price"),
        (promise(1.0, 1e-6, holds=False), "replace_one", "without a privacy guarantee has no price"),
        (promise(math.inf, 1e-6), "replace_one", "without a privacy guarantee has no price"),
        (promise(1.0, 1e-6, unit="sample"), "replace_one", "protects whole users"),
        (promise(1.0, 1e-6), "add_or_remove", "an account with relation = 'replace_one'"),
        (promise(1.0, 1e-6, gaussian=False), "replace_one", "sets nothing aside for others"),
        (promise(math.nan, 1e-6), "replace_one", "has no price"),
    ],
)
def test_what_cannot_be_priced_is_refused(one, relation, reason):
    with pytest.raises(BadInput, match=reason):
        Total(4.0, 1e-6, relation).charged(Price(), [one])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((0.0, 1e-6), "epsilon = 0.0"),
        ((1e9, 1e-6), "at most 1000"),
        ((1.0, 1.0), "delta = 1.0"),
        ((1.0, 0.0), "set others = 1"),
        ((1.0, 1e-6, "both"), "relation = 'both'"),
        ((1.0, 1e-6, "replace_one", 1.5), "others = 1.5"),
    ],
)
def test_a_total_out_of_range_is_refused(arguments, reason):
    with pytest.raises(BadInput, match=reason):
        Total(*arguments)


def test_a_price_that_is_not_a_number_fits_into_nothing():
    assert not Price(math.nan).within(Price(1.0, 1.0, 1.0))


def test_parts_of_a_run_fit_together_or_not_at_all():
    total, half = Total(4.0, 1e-6), promise(2.5, 1e-6)
    assert total.charged(Price(), [half, promise(0.5, 1e-6)]).mu_squared > total.charged(Price(), [half]).mu_squared
    with pytest.raises(BadInput, match="exceeds what is left"):
        total.charged(Price(), [half, half, half])


def test_the_cost_of_the_first_part_prices_that_part_alone():
    """The second part is no Gaussian: an account of pure privacy must not accept the run by the cost of the first."""
    first, second = promise(1.0, 1e-5, gaussian=False), promise(0.5, 1e-5, gaussian=False)
    cost = Cost(pure_epsilon=1.0)
    assert Total(8.0, 0.0, others=1.0).charged(Price(), [first], cost=cost) == Price(0.0, 1.0, 0.0)
    with pytest.raises(BadInput, match="exceeds what is left"):
        Total(8.0, 0.0, others=1.0).charged(Price(), [first, second], cost=cost)
    assert Total(8.0, 1e-4, others=1.0).charged(Price(), [first, second], cost=cost) == Price(0.0, 1.5, 1e-5)


@pytest.mark.parametrize("part", ["mu_squared", "epsilon", "delta"])
def test_each_part_of_what_was_spent_is_in_the_epsilon_that_is_told(part):
    spent, total = Price(0.04, 0.2, 4e-7), Total(4.0, 1e-6, others=0.5)
    told = total.spent_epsilon(spent)
    assert told > total.spent_epsilon(replace(spent, **{part: 0.0})) * (1 + 1e-6)
    assert told == epsilon_of(Cost(5.0, 0.2, 4e-7), 1, 1e-6)
    assert total.spent_epsilon(Price(delta=2e-6)) == math.inf


@pytest.mark.parametrize("failure", [0.0, 1e-8])
def test_a_test_that_participations_share_is_in_every_price_of_a_cost(failure):
    cost = Cost(3.0, 0.1, failure, 0.4)
    one = promise(epsilon_of(cost, 1, 1e-6), 1e-6, gaussian=False)
    for price in prices(one, "replace_one", cost):
        whole = Cost(price.mu_squared**-0.5 if price.mu_squared else math.inf, price.epsilon, price.delta)
        assert epsilon_of(whole, 1, 1e-6) >= one.epsilon * (1 - 1e-9)
    first = prices(one, "replace_one", cost)[0]
    assert (first.epsilon, first.delta) == (0.5, failure)
