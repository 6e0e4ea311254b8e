"""Nothing leaves a run but through its noise: of other data, with the same noisy outputs, all that is shown is the same.

Everybody may be somebody else: what is shown has to follow from releases and public facts, whoever they are. If one
person is, no value moves by more than its noise was charged for.
"""

import zlib
from functools import cache

import numpy as np
import pytest
from any_strategy import options_of, problem_of
from helpers import federation_of, make
from helpers_coupling import NODES, insist_on_the_price, insist_on_the_same, trained
from test_releases import DELTA, FACTS, MORE, SLOW, USERS, squares

from strategies import STRATEGIES, AdaptiveClipping, Auto, DPFedSGD, PoissonSampleSGD
from strategies.clipping.dp_ftrl import DPFTRL
from userdp.errors import BadInput
from userdp.problems import Huber, Logistic, Poisson, Softmax

EPSILON = 8.0
WHO = 7
"""The user whose data change, of the first node."""
HELD_OUT = 60
OTHERS = {"everybody": 0, "one": 1, "not a number": 1, "infinite": 1, "many samples": 1, "absent": 1}
"""Who is there instead, and how many users' data change; 0 for all of them."""
FEW = ("everybody", "one")
PLACES = {"rounds": 3, "relation": "add_or_remove", "sampling": "poisson", "cohort": 100}
CASES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in [*STRATEGIES, *MORE]]
EVALUATED = {
    "held out, classes": (DPFedSGD, lambda: Logistic(2, 2.0, 5.0), {"rounds": 4, "choose_best": True}),
    "held out, no classes": (DPFedSGD, squares, {"rounds": 4, "choose_best": True}),
    "held out, several classes": (AdaptiveClipping, lambda: Softmax(3, 2, np.inf, 5.0), {"rounds": 3}),
    "held out, counts": (DPFedSGD, lambda: Poisson(2, 4.0, 1.0, count_bound=9.0), PLACES),
    "held out, auto": (Auto, lambda: Huber(2, 5.0, 3.0, 1.0), {"choose_best": True}),
    "held out, samples": (PoissonSampleSGD, lambda: Logistic(2, 2.0, 5.0), {"rounds": 3, "batch": 100, "unit": "sample"}),
}
"""Runs with held-out users."""


def people(problem, kind="as they are", users=USERS, who=WHO, *, agreed=False):
    """Users of one sample, or instead of them some others; ``agreed`` among each other, so that tests pass."""
    rng = np.random.default_rng(zlib.crc32(kind.encode()) if kind == "everybody" else 3)
    middle, width = (rng.uniform(-0.5, 0.5), 0.02) if agreed else (0.0, 1.0)
    features = middle + width * rng.uniform(-1, 1, (users, problem.columns))
    targets = middle + 0 * features[:, 0] if agreed else rng.integers(0, 2, users).astype(float)
    own = {"one": -1.0, "not a number": np.nan, "infinite": np.inf}.get(kind)
    if own is not None:
        features[who], targets[who] = own, 1 - targets[who] if kind == "one" else own
    times = np.ones(users, dtype=int)
    times[who] = 50 if kind == "many samples" else 1
    features, targets = np.repeat(features, times, axis=0), np.repeat(targets, times)
    return federation_of(features, times.tolist(), targets if problem.has_targets else None)


def method_of(name, **more):
    if name in EVALUATED:
        kind, problem, options = EVALUATED[name]
        return make(kind, problem(), USERS, EPSILON, DELTA, facts=FACTS, held_out=HELD_OUT, **options, **more)
    if name in MORE:
        kind, problem, options = MORE[name]
        return make(kind, problem, USERS, EPSILON, DELTA, facts=FACTS, **options, **more)
    kind = STRATEGIES[name]
    given = {"unit": kind.about.units[0], "facts": FACTS, **options_of(name), **more}
    # Simulated noise of this strategy is not added to a value; that of a deployment is.
    noise = {"noise": "secure"} if kind is DPFTRL else {}
    return make(kind, problem_of(name), USERS, EPSILON, DELTA, **noise, **given)


@cache
def first(name, **more):
    """The run of people as they are."""
    users = USERS + (HELD_OUT if name in EVALUATED or "held_out" in more else 0)
    return trained(lambda: method_of(name, **more), people(method_of(name).original, users=users, agreed=name in STRATEGIES))


def compared(name, kind, users=USERS, who=WHO, **more):
    """Compare the run with that of others, and what it draws with what is charged."""
    method = method_of(name, **more)
    data = people(method.original, kind, users, who, agreed=name in STRATEGIES)
    one, absent = first(name, **more), who if kind == "absent" else None
    other = trained(lambda: method_of(name, **more), data, one.tape, absent=absent)
    # A node knows who its own users are, and the server who has no node.
    node = next(number for number, part in enumerate(np.array_split(np.arange(users), NODES), 1) if who in part)
    insist_on_the_same(one, other, kind, ("log", f"node {node}") if kind == "absent" else ())
    by_sample = kind == "many samples" and method.plan.guarantee.unit == "sample"
    if OTHERS[kind] and not by_sample:
        twice = method.plan.guarantee.relation == "add_or_remove" and kind in ("one", "many samples")
        insist_on_the_price(one.tape, other.tape, 2 if twice else 1, kind)
    return one, other


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("name", CASES)
def test_of_other_people_nothing_is_shown_that_was_not_released(name, kind):
    if name != "non_private":
        one, other = compared(name, kind)
        assert any(not np.array_equal(a.value, b.value) for a, b in zip(one.tape.draws, other.tape.draws, strict=True))


@pytest.mark.sweep(20)
@pytest.mark.parametrize("kind", [kind for kind in OTHERS if kind not in FEW])
@pytest.mark.parametrize("name", CASES)
def test_of_strangers_of_every_kind_nothing_is_shown_that_was_not_released(name, kind):
    if name != "non_private":
        compared(name, kind)


@pytest.mark.parametrize("kind", ["everybody", "one", "infinite", "absent"])
@pytest.mark.parametrize("who", [WHO, USERS + WHO], ids=["trains", "held out"])
@pytest.mark.parametrize("name", EVALUATED)
def test_of_people_who_are_held_out_nothing_is_shown_that_was_not_released(name, kind, who):
    compared(name, kind, USERS + HELD_OUT, who)
