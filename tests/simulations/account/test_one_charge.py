"""The entry of a run covers the cost to each person, training or held out, in every kind of account.

What people meet is computed anew, from ledgers and from the noise that held-out users' answers get. A price is what the
filter makes of it: Gaussians at a distance, beside everything else at its (epsilon, delta).
"""

import math
from dataclasses import replace
from itertools import product

import any_strategy
import numpy as np
import pytest
from any_strategy import FACTS, USERS
from helpers import make
from query_cases import QUANTILES, SUMS, query
from scipy.stats import norm

from simulations.account.accounts import Account
from simulations.account.entering import promises_of, wanted
from strategies import STRATEGIES, DropInFedAvg
from strategies.auto.preparation import LearnCoordinates
from userdp.accounting import Cost, Ledger, RoundLedger, Total
from userdp.accounting.composition import group_privacy, rho_of
from userdp.accounting.costs import calibrate_noise, delta_of, together
from userdp.accounting.filter import Price
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.errors import BadInput
from userdp.problems import Squared

HELD_OUT, EPSILON, DELTA = 40, 4.0, 1e-4
SQUARES = Squared(2, np.inf, 5.0, low=-2.0, high=2.0, intercept=True, feature_bound=1.0)
KINDS = {
    "prepared": ("dp_fed_sgd", {"rounds": 3, "preparation": LearnCoordinates}),
    "compared": ("dp_fed_sgd", {"rounds": 3, "compare_with_initial": True}),
    "both": ("recentred_clipping", {"rounds": 3, "preparation": LearnCoordinates, "compare_with_initial": True}),
    "places": ("recentred_clipping", {"rounds": 3, "relation": "add_or_remove"}),
    "sampled": ("dp_fed_sgd", {"rounds": 3, "sampling": "poisson", "cohort": 100}),
    "group": ("sample_clipped_sgd", {"rounds": 3, "unit": "user"}),
    "group, compared": ("sample_clipped_sgd", {"rounds": 3, "unit": "user", "compare_with_initial": True}),
    "masked": ("dp_fed_sgd", {"rounds": 3, "trust": "sum"}),
    "counts": ("statistics", {}),
    "quantiles": ("statistics", {}),
}
ASKED = {"counts": SUMS, "quantiles": QUANTILES}
FAST = {"dp_fed_sgd", "local_dp", "private_hard_thresholding", "robust_frank_wolfe", "sparse_optimisation"}
FAST |= {"projected_sgd", "winsorized_rotation", *KINDS} - {"sampled"}
NOBODY_HELD_OUT = {"local_dp", "masked", *ASKED}
RUNS = [one for one in [*STRATEGIES, *KINDS] if one != "non_private"]
EVERY = [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in RUNS]
TOTALS = {  # wide enough for every run, so that what is refused is refused for its kind
    "pure": Total(900.0, 0.0, others=1.0),
    "Gaussian": Total(900.0, 0.5),
    "mixed": Total(900.0, 0.5, others=0.5),
    "others": Total(900.0, 0.5, others=1.0),
    "places": Total(900.0, 0.5, "add_or_remove", 0.5),
}


def method_of(name, **more):
    if name in ASKED:
        facts = FACTS | {"max_samples": 3}
        return make(STRATEGIES["statistics"], query(ASKED[name]), USERS, EPSILON, DELTA, facts=facts, **more)
    name, options = KINDS.get(name, (name, {}))
    problem = SQUARES if options.get("preparation") else None
    return any_strategy.method_of(name, problem, EPSILON, DELTA, **options | more)


def entered(method, total):
    """The price of a run in a new account."""
    return Account("registry", total, ()).price(wanted(method, "a run"))


# --- What is charged, and what is met ------------------------------------------------------------------------------


def charged(price, epsilon):
    """The delta that a price leaves at an epsilon: that of its Gaussians at what the others leave of it, and theirs."""
    left, mu = epsilon - price.epsilon, math.sqrt(price.mu_squared)
    if not mu:
        return max(0.0, -math.expm1(min(left, 0.0))) + price.delta
    return norm.cdf(mu / 2 - left / mu) - math.exp(left) * norm.cdf(-mu / 2 - left / mu) + price.delta


def cost_of(ledger):
    """The cost of everything that a ledger may still charge: counted, or that of its rounds at the budget's delta."""
    if type(ledger) is Ledger:
        return ledger.planned
    delta = ledger.privacy.delta
    if not isinstance(ledger, RoundLedger):  # one release
        return Cost(pure_epsilon=ledger.privacy.epsilon, failure_delta=delta)
    epsilon = ledger._scheme.epsilon(ledger._noise_multiplier, delta)
    if getattr(ledger._scheme, "accountant", "").startswith(ONE_GAUSSIAN):
        return Cost(calibrate_noise(epsilon, delta, 1) * (1 - 1e-8))
    return Cost(pure_epsilon=epsilon, failure_delta=delta)


def met(method, relation):
    """The costs of those who train, and of those who are held out."""
    costs = [together(*(cost_of(one.ledger) for one in (method.program.own, *method.program.extra)))]
    if method.testers is not None:
        costs.append(Cost(method.testers._multiplier))
    same = method.scheme.price.guarantee.relation == relation
    return costs if same else [replaced(one) for one in costs]


def replaced(cost):
    """The cost of removing one user and adding another: twice the distance, or a group of two."""
    if math.isinf(cost.noise_multiplier):
        epsilon, delta = group_privacy(cost.pure_epsilon, cost.failure_delta, 2)
        return Cost(pure_epsilon=epsilon, failure_delta=delta)
    assert cost.pure_epsilon == cost.failure_delta == 0
    return Cost(cost.noise_multiplier / 2)


def is_pure(cost):
    return math.isinf(cost.noise_multiplier) and cost.failure_delta == 0


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_what_is_entered_covers_what_everybody_meets(name, evaluate):
    if evaluate and name in NOBODY_HELD_OUT:
        with pytest.raises(BadInput):
            method_of(name, held_out=HELD_OUT)
        return
    method = method_of(name, held_out=HELD_OUT if evaluate else 0)
    if method.scheme.price.guarantee.unit == "sample":
        with pytest.raises(BadInput, match="protects whole users"):
            entered(method, TOTALS["others"])
        return
    accepted = set()
    for kind, total in TOTALS.items():
        try:
            price = entered(method, total)
        except BadInput:
            continue
        accepted.add(kind)
        for cost, epsilon in product(met(method, total.relation), np.linspace(0.0, 12.0, 25)):
            assert charged(price, epsilon) >= delta_of(cost, 1, epsilon) * (1 - 1e-6) - 1e-12, (kind, epsilon)
        if total.delta == 0:
            assert (price.mu_squared, price.delta) == (0.0, 0.0)
            assert all(is_pure(cost) for cost in met(method, total.relation))
    assert {"mixed", "others"} <= accepted
    assert ("places" in accepted) == (method.scheme.price.guarantee.relation == "add_or_remove")


# --- What a promise claims beyond its (epsilon, delta) -------------------------------------------------------------


@pytest.mark.parametrize("name", ["group, compared", "compared", "both"])
@pytest.mark.parametrize("evaluate", [False, True])
def test_a_run_with_a_comparison_claims_no_rho_and_is_no_gaussian(name, evaluate):
    method = method_of(name, held_out=HELD_OUT if evaluate else 0)
    whole = method.plan.guarantee
    assert not whole.is_one_gaussian
    assert rho_of(whole) is None
    with pytest.raises(BadInput, match="no single Gaussian"):
        TOTALS["Gaussian"].charged(Price(), [whole])
    if evaluate:
        with pytest.raises(BadInput, match="no single Gaussian"):
            entered(method, TOTALS["Gaussian"])


def test_clients_who_report_metrics_are_priced_too():
    drop_in = DropInFedAvg(users=100, epsilon=3.0, delta=1e-3, held_out=20, metrics={"accuracy": (0, 1)}, rounds=2)
    scheme = drop_in.inner.scheme
    less = replace(scheme.price.guarantee, epsilon=1.0)
    patched = replace(scheme, price=replace(scheme.price, guarantee=less))  # a strategy that keeps to less
    drop_in.inner.program.own.scheme = patched
    price = entered(drop_in.inner, TOTALS["Gaussian"])
    assert price.mu_squared >= drop_in.inner.testers._multiplier**-2 * (1 - 1e-6)
    assert len(promises_of(drop_in.inner)) == 1
