"""The text of a promise is the promise, and its total leaves nothing out."""

import math
import re
from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest

from userdp.accounting import Cost, Guarantee, Ledger, Price, Privacy, Total
from userdp.accounting.composition import rho_of
from userdp.accounting.costs import calibrate_noise, delta_of, epsilon_of, together
from userdp.accounting.guarantee import ONE_GAUSSIAN, ZERO_CONCENTRATED, for_everybody, rounded_up
from userdp.accounting.ledger import check_drawn
from userdp.errors import BadInput, RunFailed

PROMISE = Guarantee("user", "replace_one", 1.0, 1e-6, "exact", "whoever sees the model", ("one", "two", "three"), True)
EACH = {"noise_multiplier": 3.0, "pure_epsilon": 0.2, "failure_delta": 1e-7, "shared_epsilon": 0.3}


SIZES = [1e-12, 0.123449, 0.1234501, 1.00001, 3.999999995897852, 12.34501, 99.999, 123451.0, 7e8 + 1]


@pytest.mark.parametrize("delta", [1.0001e-6, 9.999e-7, 1.2349e-300, 0.50001])
@pytest.mark.parametrize("epsilon", SIZES)
def test_no_printed_number_is_smaller_than_what_it_stands_for(epsilon, delta):
    assert float(rounded_up(epsilon, 1)) >= epsilon
    told = re.match(r"\(([^,]*), ([^)]*)\)-differential", replace(PROMISE, epsilon=epsilon, delta=delta).sentence())
    assert float(told[1]) >= epsilon
    assert float(told[2]) >= delta
    told = re.match(r"pure (\S*)-differential", replace(PROMISE, epsilon=epsilon, delta=0.0).sentence())
    assert float(told[1]) >= epsilon


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize(("unit", "relation"), [*product(("user", "sample"), ("replace_one", "add_or_remove"))])
def test_a_promise_says_whom_it_protects_and_comes_back_as_it_was_written(unit, relation, holds):
    made = replace(PROMISE, unit=unit, relation=relation, holds=holds)
    assert Guarantee.from_dict(made.as_dict()) == made
    endless = replace(made, epsilon=math.inf, delta=1.0)
    assert Guarantee.from_dict(endless.as_dict()) == endless
    assert made.users_come_and_go == (unit == "user" and relation == "add_or_remove")
    said = made.sentence()
    assert ("differential privacy" in said) == holds
    if holds:
        assert ("one whole user" in said, "NOT a whole user" in said) == (unit == "user", unit == "sample")
        assert ("for replacing " in said, "adding or removing" in said) == (
            relation == "replace_one",
            relation == "add_or_remove",
        )


def test_every_assumption_is_kept_in_its_order_and_shown():
    more = PROMISE.assuming("four").assuming("five", "six")
    assert more.assumptions == ("one", "two", "three", "four", "five", "six")
    assert replace(more, assumptions=PROMISE.assumptions) == PROMISE
    assert str(more).splitlines() == [more.sentence(), *(f"  assuming: {one}" for one in more.assumptions)]


def test_no_promise_claims_nothing():
    nothing = Guarantee.none("noise is off")
    assert nothing.sentence() == "no privacy guarantee: noise is off"
    assert nothing.as_dict()["epsilon"] is None
    assert (nothing.epsilon, nothing.delta, nothing.holds) == (math.inf, 1.0, False)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_several_mechanisms_cost_the_sum_of_each_of_their_parts(number):
    parts = np.random.default_rng(number).uniform(0.1, 1, (number, 4)) * [9.0, 1.0, 1e-3, 1.0]
    costs = [Cost(), *(Cost(*one) for one in parts.tolist()), Cost(pure_epsilon=0.1)]
    whole = together(*costs)
    assert whole.noise_multiplier**-2 == pytest.approx((parts[:, 0] ** -2.0).sum())
    assert whole.pure_epsilon == pytest.approx(parts[:, 1].sum() + 0.1)
    assert whole.failure_delta == pytest.approx(parts[:, 2].sum())
    assert whole.shared_epsilon == pytest.approx(parts[:, 3].sum())


@pytest.mark.parametrize("name", EACH)
def test_nothing_that_is_drawn_is_left_out_of_what_was_charged(name):
    """Each part of a cost by itself, and a number that is none."""
    paid = Cost(**EACH)
    check_drawn(paid, paid)
    more = EACH[name] * (1 + (-1e-6 if name == "noise_multiplier" else 1e-6))
    with pytest.raises(RunFailed, match="have a cost of"):
        check_drawn(replace(paid, **{name: more}), paid)
    for other in EACH.keys() - {"noise_multiplier"} if name == "noise_multiplier" else ("noise_multiplier",):
        with pytest.raises(RunFailed, match="have a cost of"):
            check_drawn(Cost(**{name: EACH[name]}), Cost(**{other: EACH[other]}))
    none = replace(paid)
    object.__setattr__(none, name, math.nan)
    with pytest.raises(RunFailed, match="have a cost of"):
        check_drawn(none, paid)


@pytest.mark.parametrize("name", EACH)
def test_each_part_of_a_cost_costs_something_however_little_is_left(name):
    one = Cost(**{name: EACH[name]})
    assert {field.name for field in fields(Cost)} == set(EACH)
    assert epsilon_of(one, 2, 1e-9) > 0
    assert delta_of(one, 2, 0.0) > 0
    # What tests leave of delta, however small, is for noise alone.
    almost = Cost(2.0, 0.1, 5e-7 * (1 - 1e-5))
    spent = epsilon_of(almost, 2, 1e-6)
    assert delta_of(almost, 2, spent) <= 1e-6
    assert spent > 0.2


@pytest.mark.parametrize("count", [1, 3])
def test_a_whole_plan_costs_what_its_participations_cost(count):
    cost = Cost(9.0, 0.01, 1e-9, 0.1)
    ledger = Ledger(4, cost, count, Privacy(9.0, 1e-6))
    for epsilon in (0.0, 0.3, 1.0, 30.0):  # beyond the last failures alone are left
        assert delta_of(ledger.planned, 1, epsilon) >= delta_of(cost, count, epsilon) * (1 - 1e-9)
    assert epsilon_of(ledger.planned, 1, 1e-6) <= 1.2 * epsilon_of(cost, count, 1e-6)


@pytest.mark.parametrize("who", [[2, 2], [0, 2, 2], [2, 0, 2], [2, 2, 2]])
def test_who_is_asked_twice_in_a_round_is_charged_twice(who):
    ledger = Ledger(3, Cost(9.0), 3, Privacy(9.0, 1e-6))
    ledger.charge(np.array(who))
    assert ledger.most_participations == who.count(2)


def promise(accountant, epsilon, delta):
    return replace(PROMISE, accountant=accountant, epsilon=epsilon, delta=delta)


PARTS = [
    (promise(ONE_GAUSSIAN, 4.0, 1e-4),),
    (promise(ONE_GAUSSIAN, 2.8, 7e-5), promise(ONE_GAUSSIAN, 1.2, 3e-5)),
    (promise(ONE_GAUSSIAN, 3.8, 1e-4), promise("Laplace mechanism", 0.2, 0.0)),
    (promise("Laplace mechanism", 3.8, 0.0), promise(ONE_GAUSSIAN, 0.2, 1e-4)),
    (promise("pure composition of peeling", 4.0, 0.0),),
    (promise(ZERO_CONCENTRATED, 4.0, 1e-4),),
    (promise("something else", 3.0, 1e-6),),
    (promise(ONE_GAUSSIAN, 3.0, 2e-4), promise(ONE_GAUSSIAN, 3.0, 1e-4)),
]


@pytest.mark.parametrize("parts", PARTS)
def test_a_promise_for_everybody_is_that_of_held_out_users_too(parts):
    budget = Privacy(4.0, 1e-4)
    whole = for_everybody(parts, budget)
    assert whole.epsilon >= max(4.0, sum(one.epsilon for one in parts))
    assert whole.delta >= max(1e-4, sum(one.delta for one in parts))
    assert whole.is_one_gaussian == all(one.is_one_gaussian for one in parts)
    rho, multiplier = rho_of(whole), calibrate_noise(4.0, 1e-4, 1)
    assert rho is None or rho >= 1 / (2 * multiplier**2)
    with pytest.raises(BadInput, match="exceeds what is left"):  # held-out users meet Gaussian noise
        Total(900.0, 0.0, others=1.0).charged(Price(), [whole])
