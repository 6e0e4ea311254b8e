"""Data leave a run through its noise alone: if noisy outputs are the same, so is all that is shown of other data.

Everybody may be somebody else: what is shown has to follow from releases and public facts, whoever they are. If one
person is, no value moves by more than its noise was charged for.
"""

import zlib
from functools import cache

import numpy as np
import pandas as pd
import pytest
from any_strategy import as_read, options_of, problem_of
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from helpers import make
from helpers_coupling import (
    NODES,
    View,
    insist_on_the_price,
    insist_on_the_same,
    listening,
    taped,
    trained,
    viewed,
)
from helpers_flower import ClientGrid
from query_cases import QUANTILES, SUMS, query
from query_cases import people as rows_of_people
from test_releases import DELTA, FACTS, MORE, SLOW, USERS, squares

from simulations import find
from simulations.testing.tape import Tape
from strategies import (
    STRATEGIES,
    AdaptiveClipping,
    Auto,
    DPFedSGD,
    DropInAdaptiveClipping,
    DropInAuto,
    DropInFedAvg,
    DropInRecentredClipping,
    PoissonSampleSGD,
    PublicFacts,
    private_updates,
)
from strategies.clipping.dp_ftrl import DPFTRL
from strategies.queries.statistics import Statistics
from userdp.accounting import Privacy
from userdp.data import ColumnarFederation
from userdp.problems import Huber, Logistic, Poisson, Softmax

EPSILON = 8.0
WHO = 7
"""The user whose data change, of the first node."""
HELD_OUT = 60
OTHERS = {"everybody": 0, "one": 1, "not a number": 1, "infinite": 1, "many samples": 1, "absent": 1}
"""Each kind of other users, and how many users' data change; 0 for all of them."""
FEW = ("everybody", "one")
ASKED_FEW = {"stopped_sgd": {"seed": 24, "max_missing": 0.5}}
"""Options of a run that asks few users: with this seed ``WHO`` is one of them, and may be missing."""
SAMPLES = {"rounds": 3, "batch": 100, "unit": "sample"}
PLACES = {"rounds": 3, "relation": "add_or_remove", "sampling": "poisson", "cohort": 100}
CASES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in [*STRATEGIES, *MORE]]
EVALUATED = {
    "held out, classes": (DPFedSGD, lambda: Logistic(2, 2.0, 5.0), {"rounds": 4, "choose_best": True}),
    "held out, no classes": (DPFedSGD, squares, {"rounds": 4, "choose_best": True}),
    "held out, several classes": (AdaptiveClipping, lambda: Softmax(3, 2, np.inf, 5.0), {"rounds": 3}),
    "held out, counts": (DPFedSGD, lambda: Poisson(2, 4.0, 1.0, count_bound=9.0), PLACES),
    "held out, auto": (Auto, lambda: Huber(2, 5.0, 3.0, 1.0), {"choose_best": True}),
    "held out, samples": (PoissonSampleSGD, lambda: Logistic(2, 2.0, 5.0), SAMPLES),
}
"""Runs with held-out users."""


def people(problem, kind="as they are", users=USERS, who=WHO, *, agreed=False):
    """Users of one sample, or instead of them some others; ``agreed`` among each other, so that tests pass."""
    rng = np.random.default_rng(zlib.crc32(kind.encode()) if kind == "everybody" else 3)
    middle, width = (rng.uniform(-0.5, 0.5), 0.02) if agreed else (0.0, 1.0)
    features = middle + width * rng.uniform(-1, 1, (users, problem.columns))
    targets = middle + 0 * features[:, 0] if agreed else rng.integers(0, 2, users).astype(float)
    if kind == "everybody" and not agreed:  # of another law, too
        features, targets = 0.2 * features, targets * (rng.random(users) < 0.05)
    if not agreed and kind != "everybody":
        far = [WHO, USERS + WHO][: 1 + (users > USERS)]  # as far from who replaces them as can be
        features[far], targets[far] = 1.0, 1.0
    own = {"one": -1.0, "not a number": np.nan, "infinite": np.inf}.get(kind)
    if own is not None:
        features[who], targets[who] = own, 1 - targets[who] if kind == "one" else own
    times = np.ones(users, dtype=int)
    times[who] = 50 if kind == "many samples" else 1
    features, targets = np.repeat(features, times, axis=0), np.repeat(targets, times)
    return as_read(problem, features, times.tolist(), targets)


def method_of(name, **more):
    if name in EVALUATED:
        kind, problem, options = EVALUATED[name]
        return make(kind, problem(), USERS, EPSILON, DELTA, facts=FACTS, held_out=HELD_OUT, **options, **more)
    if name in MORE:
        kind, problem, options = MORE[name]
        return make(kind, problem, USERS, EPSILON, DELTA, facts=FACTS, **options, **more)
    kind = STRATEGIES[name]
    given = {"unit": kind.about.units[0], "facts": FACTS, **options_of(name), **ASKED_FEW.get(name, {}), **more}
    # Simulated noise of this strategy is not added to a value; that of a deployment is.
    noise = {"noise": "secure"} if kind is DPFTRL else {}
    return make(kind, problem_of(name), USERS, EPSILON, DELTA, **noise, **given)


def hides_silence(about):
    """True if a run is the same whoever answers; it is not if users release their rows, or if all must answer."""
    return about.server_trusted and not about.hears_silence


@cache
def first(name, **more):
    """The run of people as they are."""
    data = people(method_of(name).original, users=USERS + HELD_OUT * (name in EVALUATED), agreed=name in STRATEGIES)
    return trained(lambda: method_of(name, **more), data)


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
        twice = method.plan.guarantee.relation == "add_or_remove" and kind != "absent"  # one leaves, another comes
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
    if name != "non_private" and (kind != "absent" or hides_silence(method_of(name).about)):
        compared(name, kind)


@pytest.mark.parametrize("kind", ["everybody", "one", "infinite", "absent"])
@pytest.mark.parametrize("who", [WHO, USERS + WHO], ids=["trains", "held out"])
@pytest.mark.parametrize("name", EVALUATED)
def test_of_people_who_are_held_out_nothing_is_shown_that_was_not_released(name, kind, who):
    compared(name, kind, USERS + HELD_OUT, who)


# --- Silent nodes ----------------------------------------------------------------------------------------------------


def may_miss(kind):
    return "max_missing" in kind.model_fields and hides_silence(kind.about)


@pytest.mark.sweep(12)
@pytest.mark.parametrize("name", [name for name, kind in STRATEGIES.items() if may_miss(kind)])
def test_where_a_node_is_silent_nothing_is_shown_but_that(name):
    """The server learns who is silent, and whoever sees what it sends or releases does not."""
    one = first(name, max_missing=0.9)  # of a small cohort, most may be one node's
    data = people(method_of(name).original, agreed=True)
    other = trained(lambda: method_of(name, max_missing=0.9), data, one.tape, silent=True)
    insist_on_the_same(one, other, "silent", ("log",))


# --- Queries ---------------------------------------------------------------------------------------------------------

ASKED = {
    **{str(number): [one] for number, one in enumerate(SUMS)},
    "sums": SUMS,
    "ranks": QUANTILES,
    "ranks of samples": [QUANTILES[0] | {"per": "sample", "bins": list(range(0, 105, 5))}],
    "all": [*SUMS, *QUANTILES],
}


def table(kind="as they are", users=200):
    """Users of a table with up to three rows, or others."""
    rng = np.random.default_rng(zlib.crc32(kind.encode()) if kind == "everybody" else 3)
    law = 0.3 if kind == "everybody" else 1.0
    rows = [
        [(law * rng.uniform(-1, 1), law * rng.uniform(-1, 1), int(rng.integers(3))) for _ in range(rng.integers(1, 4))]
        for _ in range(users)
    ]
    if kind != "everybody":
        rows[WHO] = [(-1.0, 1.0, 0)] * 3  # as far from its replacement as can be
    own = {"one": (1.0, -1.0, 2), "not a number": (np.nan, np.nan, -1), "infinite": (np.inf, -np.inf, 1)}
    if kind in own:
        rows[WHO] = [own[kind]] * (1 if kind == "not a number" else 3)
    if kind == "many samples":
        rows[WHO] = [(move, -move, 0) for move in np.linspace(-1, 1, 40)]
    return ColumnarFederation(rows_of_people(rows))


def asking(asked, relation, trust):
    given = query(ASKED[asked], relation), PublicFacts(200, max_samples=3), Privacy(2.0, 1e-4, trust=trust)
    return Statistics(max_missing=0.5).strategy(*given, seed=0)


@pytest.mark.sweep(24)
@pytest.mark.parametrize("trust", ["server", "sum"])
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
@pytest.mark.parametrize("asked", ASKED)
def test_of_other_rows_a_query_shows_nothing_that_was_not_released(asked, relation, trust):
    if trust == "sum" and asked in ("ranks", "ranks of samples", "all"):
        return  # choices are made among sums without noise
    if relation == "replace_one" and asked == "0":
        return  # the number of users is public
    make = lambda: asking(asked, relation, trust)  # noqa: E731
    one = trained(make, table())
    for kind, changed in OTHERS.items():
        absent = WHO if kind == "absent" else None
        other = trained(make, table(kind), one.tape, absent=absent)
        insist_on_the_same(one, other, kind, ("log", "node 1") if kind == "absent" else ())
        if changed:
            twice = relation == "add_or_remove" and kind != "absent"
            insist_on_the_price(one.tape, other.tape, 2 if twice else 1, kind)


# --- Facts that are found --------------------------------------------------------------------------------------------


def persons(kind="as they are"):
    """Six rows of each of 300 people, or of others; the levels that there are, all of them have."""
    who = np.repeat(np.arange(300), 6)
    rng = np.random.default_rng(zlib.crc32(kind.encode()) if kind == "everybody" else 3)
    law = 0.3 if kind == "everybody" else 1.0
    pay = 20 + 60 * law * rng.random(len(who))
    team = rng.choice(["red", "green", "blue"], len(who), p=[0.1, 0.1, 0.8] if kind == "everybody" else None)
    day = pd.Timestamp("1950-06-01") + pd.to_timedelta(rng.integers(0, int(law * 14000), len(who)), unit="D")
    own = who == WHO
    if kind != "everybody":
        pay[own] = -1e9
    if kind != "everybody" and kind in OTHERS:
        pay[own] = {"one": 1e9, "infinite": -np.inf}.get(kind, np.nan)
        team[own] = "red"
        day = day.where(~own, pd.Timestamp("2019-12-31"))
    frame = pd.DataFrame({"who": who, "pay": pay, "team": team, "born": day})
    if kind == "many samples":
        frame = pd.concat([frame, frame[own].loc[lambda one: one.index.repeat(50)]])
    return frame[frame["who"] != WHO] if kind == "absent" else frame


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_of_other_people_nothing_is_found_that_was_not_released(relation):
    asked = {"user": "who", "all_users": 300, "numbers": ["pay"], "words": ["team"], "dates": ["born"]}
    asked |= {"epsilon": 8.0, "delta": 1e-4, "relation": relation, "max_samples": True}

    def found(kind, played=None):
        view = View(Tape(None if played is None else played.draws))
        with taped(view.tape), listening() as lines:
            view.show("found", find(persons(kind), **asked))
        view.show("log", lines)
        return view

    one = found("as they are")
    for kind, changed in OTHERS.items():
        if kind == "absent" and relation == "replace_one":
            continue
        other = found(kind, one.tape)
        insist_on_the_same(one, other, kind)
        if changed:
            twice = relation == "add_or_remove" and kind != "absent"
            insist_on_the_price(one.tape, other.tape, 2 if twice else 1, kind)


# --- Ordinary clients ------------------------------------------------------------------------------------------------

CLIENTS, REPORTING = 5, 4


def clients(kind):
    """Clients that add numbers to the model and report metrics, or others."""
    rng = np.random.default_rng(zlib.crc32(kind.encode()) if kind == "everybody" else 3)
    moves, reports = rng.normal(size=(CLIENTS, 2)), rng.uniform(0, 1, (REPORTING, 2))
    if kind != "everybody":
        reports[0] = 1.0, 4.0  # the upper ends of their ranges
    own = {"one": -1e6, "not a number": np.nan, "infinite": np.inf}.get(kind)
    if own is not None:
        moves[0], reports[0] = own, own
    app = ClientApp()

    def train(message, context):
        x = message.content["arrays"]["x"].numpy() + moves[context.node_config["partition-id"]]
        metrics = MetricRecord({"loss": float(moves.max()), "num-examples": int(moves[0, 0] > 0)})
        content = RecordDict({"arrays": ArrayRecord({"x": Array(x)}), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        accuracy, loss = reports[context.node_config["partition-id"] - CLIENTS].tolist()
        metrics = MetricRecord({"accuracy": accuracy, "loss": loss, "other": loss})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app, train


@pytest.mark.parametrize("trust", ["server", "sum"])
@pytest.mark.parametrize("strategy", [DropInFedAvg, DropInAdaptiveClipping, DropInAuto, DropInRecentredClipping])
def test_of_other_clients_nothing_is_shown_that_was_not_released(strategy, trust):
    given = {"users": CLIENTS, "epsilon": 4.0, "delta": 1e-3, "rounds": 3, "seed": 3, "trust": trust, "noise": "seeded"}
    given |= {"clip_norm": 1.0} if strategy is DropInFedAvg else {}
    if trust == "server":
        given |= {"held_out": REPORTING, "metrics": {"accuracy": (0, 1), "loss": (0, 4)}}
    elif strategy is DropInRecentredClipping:
        return  # its centre needs a server that sees rows

    def run_of(kind, played=None):
        app, train = clients(kind)
        app.train(mods=[private_updates()] if trust == "sum" else [])(train)
        nodes = CLIENTS + (REPORTING if trust == "server" else 0)
        initial = ArrayRecord({"x": Array(np.zeros(2))})
        return viewed(lambda: strategy(**given), lambda _: ClientGrid(app, nodes), played, initial)

    one = run_of("as they are")
    assert not one.ended
    for kind in ("everybody", "one", "not a number", "infinite"):
        other = run_of(kind, one.tape)
        insist_on_the_same(one, other, kind)
        if kind != "everybody":
            insist_on_the_price(one.tape, other.tape, 1, kind)
