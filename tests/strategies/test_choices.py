"""Choices and tests know how far one user moves their scores: nothing is chosen that is priced for less.

For whoever makes scores, neighbours by brute force: scores move by no more than is stated, and that is charged.
"""

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers import charged_twice, make, run
from query_cases import people, query

from strategies import DPFedSGD, RobustRounds
from strategies.baselines.rotation.rotation import CellGrid
from strategies.core.public_facts import PublicFacts
from strategies.queries import statistics
from strategies.queries.statistics import Statistics
from strategies.wire.replies import Gathered
from userdp.accounting import Privacy
from userdp.data import ColumnarFederation
from userdp.errors import RunFailed
from userdp.mechanisms import ExponentialMechanism
from userdp.mechanisms.user_quantile import rank_sensitivity
from userdp.nodes.node import Node
from userdp.noise import SeededNoise, in_units
from userdp.problems import Logistic, Quadratic
from userdp.queries.table import TableQuery

ROOT = Path(__file__).resolve().parents[2]
RELATIONS = ("replace_one", "add_or_remove")


class Listening(SeededNoise):
    """Keeps what it was to choose by, in units of what is charged; always gives the first."""

    def __init__(self):
        super().__init__(np.random.default_rng(0))
        object.__setattr__(self, "heard", [])

    def choose(self, scores, epsilon, *, flips=False):
        self.heard.append(in_units(scores))
        return np.zeros(len(self.heard[-1]), dtype=np.int64)


class Same(SeededNoise):
    """Releases the same numbers whatever they are to hide: whatever else differs shows something of users."""

    def gaussian(self, value, deviation):
        return np.full(np.shape(value), 7.25) + np.arange(np.size(value))


# --- Who makes scores -------------------------------------------------------------------------------------------

MAKERS = {
    "userdp/mechanisms/concentration_tests.py",  # scores of tests, by their kernel
    "userdp/mechanisms/user_quantile.py",  # quantiles of votes: queries, and searches for facts
    "userdp/noise.py",
    "strategies/baselines/high_dimensional/frank_wolfe.py",
    "strategies/baselines/high_dimensional/peeled_rounds.py",
    "strategies/baselines/high_dimensional/reference/hard_thresholding.py",
    "strategies/baselines/peeling.py",
    "strategies/baselines/rotation/rotation.py",
    "strategies/baselines/sparse_gradients/exponential_choice.py",
    "strategies/baselines/sparse_gradients/sparse_exponential.py",
    "strategies/baselines/sparse_gradients/stopped_scheme.py",
}
CHOOSERS = {
    "userdp/mechanisms/exponential.py",
    "strategies/baselines/peeling.py",
    "strategies/baselines/rotation/rotation.py",
}


def test_scores_are_made_and_noise_chooses_where_a_test_has_neighbours():
    """Whoever makes scores elsewhere adds its neighbours to a test, and then its file here."""
    found = {"Scores": set(), "choose": set()}
    for package in ("userdp", "strategies", "simulations"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "userdp.noise" in text or path.name == "noise.py":
                found["Scores"] |= {path.relative_to(ROOT).as_posix()} if re.search(r"\bScores\(", text) else set()
                found["choose"] |= {path.relative_to(ROOT).as_posix()} if "noise.choose(" in text else set()
    assert found == {"Scores": MAKERS, "choose": CHOOSERS}


# --- Quantiles of queries --------------------------------------------------------------------------------------------

EDGES = [0, 20, 40, 60, 80, 100]
OWN = [
    [],
    [(-0.9, 0.0, 0)],
    [(0.9, 0.0, 0)],
    [(math.nan, 0.0, 0)],
    [(-0.9, 0.0, 0)] * 25,
    [(0.9, 0.0, 0)] * 25,
    [(-0.9, 0.0, 0), (0.1, 1.0, 1), (0.9, 0.0, 0)],
    [(cell, 0.0, 0) for cell in (-0.9, -0.5, 0.0, 0.5, 0.9)] * 6,
]
"""The samples that one user may hold: none, some, and far more than the three that `query_cases` declares."""
OTHERS = [[(float(cell), 0.0, 0)] for cell in np.linspace(-0.8, 0.8, 9)]


def asked(per, at=(0.5, 0.9), **more):
    return {"statistic": "quantiles", "of": "age", "bins": EDGES, "at": list(at), "per": per, **more}


def query_of(asked_for, relation):
    facts = PublicFacts(len(OTHERS) + 1, max_samples=3)
    return Statistics().strategy(query(asked_for, relation), facts, Privacy(1.0, 1e-5), seed=0)


def neighbours(asked_for, relation):
    """Yield a query's scores for each data set that differs in one user, computed by node, clips and scheme."""
    method = query_of(asked_for, relation)
    scheme, last, x = method.scheme, len(method.scheme.computations) - 1, np.zeros(method.original.dimension)
    for own in OWN[relation == "replace_one" :]:
        block = people([*OTHERS, own] if own else OTHERS)
        everybody, noise = np.arange(block.users), Listening()
        answer = Node(method.original, ColumnarFederation(block), everybody).compute(
            x, everybody, scheme.computations[last]
        )
        scheme.take(last, x, Gathered(answer.values[0], 0, 0), scheme.new_memory(), lambda purpose, noise=noise: noise)
        yield noise.heard


QUERIES = {
    "alone, users": [asked("user")],
    "alone, samples": [asked("sample")],
    "several": [asked("sample"), asked("user", at=[0.1])],
    "with sums": [{"statistic": "mean", "of": "age"}, asked("sample"), asked("user")],
    "many": [asked("sample", at=np.linspace(0.02, 0.98, 40).round(3).tolist())],
}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", QUERIES)
def test_no_user_moves_the_scores_of_a_query_further_than_is_charged(name, relation):
    """Every pair of neighbours, quantile and end is tried, and users with more samples than are declared."""
    heard, moved = list(neighbours(QUERIES[name], relation)), 0.0
    assert len(heard[0]) == len(query_of(QUERIES[name], relation).scheme.choices)
    for (number, one), (other_number, other) in product(enumerate(heard), enumerate(heard)):
        if relation == "add_or_remove" and 0 not in (number, other_number):
            continue  # two users that are there are two steps apart
        moved = max(moved, *(float(np.abs(a - b)[np.isfinite(a - b)].max()) for a, b in zip(one, other, strict=True)))
    assert moved <= 1 + 1e-9
    assert moved >= 0.9


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", QUERIES)
def test_choices_of_a_query_are_priced_for_its_relation(name, relation):
    scheme = query_of(QUERIES[name], relation).scheme
    intervals = sum(one.width(scheme.query.facts) for one in scheme.query.quantiles)
    assert scheme.price.summands == scheme.users + intervals  # a rank adds up the intervals below it
    for one in scheme.choices:
        assert scheme.price.spread * one.mechanism.sensitivity >= 1  # users' votes add up to one
        moved = 1.0 if relation == "replace_one" else max(one.quantile, 1 - one.quantile)
        assert one.mechanism.sensitivity == rank_sensitivity(one.quantile, relation) == moved


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_that_is_priced_for_another_relation_stops(name, monkeypatch):
    monkeypatch.setattr(
        statistics, "rank_sensitivity", lambda share, relation: rank_sensitivity(share, "add_or_remove")
    )
    with pytest.raises(RunFailed, match=r"one user moves scores by up to 1 where 0\.\d+ is charged"):
        next(neighbours(QUERIES[name], "replace_one"))


@pytest.mark.parametrize("name", ["alone, users", "with sums"])
def test_a_choice_with_less_noise_than_is_charged_ends_the_query(name, monkeypatch):
    charged_twice(monkeypatch, ExponentialMechanism, "choose")
    with pytest.raises(RunFailed, match="is charged"):
        run(query_of(QUERIES[name], "replace_one"), ColumnarFederation(people([*OTHERS, OWN[1]])))


def test_nodes_hold_a_users_votes_to_one_whatever_a_query_computes(monkeypatch):
    method, block = query_of([asked("user")], "replace_one"), people([own for own in OWN if own])
    votes = TableQuery.user_ranks
    monkeypatch.setattr(TableQuery, "user_ranks", lambda one, block: votes(one, block) * 8.2)
    node = Node(method.original, ColumnarFederation(block), np.arange(block.users))
    rows = [
        node.compute(np.zeros(6), np.array([user]), method.scheme.computations[-1]).values
        for user in range(block.users)
    ]
    assert max(row.sum() for row in rows) <= 1 + 1e-12


# --- Tests of agreement ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", ["above_threshold", "min_score"])
def test_no_user_moves_the_score_of_a_cohort_further_than_its_test_is_priced_for(test):
    method = make(RobustRounds, Quadratic(2, 1.0, 1.0), 400, 8.0, 1e-3, rounds=2, radius=1.0, test=test)
    agreement, rng, moved = method.scheme.agreement, np.random.default_rng(0), 0.0
    rows = rng.uniform(-0.1, 0.1, (agreement.test.batch, 2))
    for own in [*rng.uniform(-3, 3, (40, 2)), np.full(2, 1e300), np.zeros(2)]:
        other = rows.copy()
        other[7] = own
        one, two = (agreement.test.scored(agreement.score(each), len(each)) for each in (rows, other))
        moved = max(moved, float(np.abs(one.values - two.values).max()))
        assert moved <= one.moved * (1 + 1e-9) == two.moved * (1 + 1e-9)
        assert one.moved <= agreement.test.sensitivity
    assert moved >= 0.9 * one.moved


# --- Cells of rotated gradients --------------------------------------------------------------------------------------


def test_cells_are_charged_for_as_the_gaussian_that_they_compose_like():
    noise, rows = Listening(), np.zeros((5, 8))
    CellGrid(4.0, 0.5).select(rows, 0.3, noise)
    assert noise.spent.noise_multiplier == pytest.approx(2 / (0.3 * math.sqrt(8)))  # 8 times 0.3^2 / 8 of rho
    scores = CellGrid(4.0, 0.5).scores(rows)
    moved = [CellGrid(4.0, 0.5).scores(np.vstack([rows[1:], np.full((1, 8), far)])) for far in (-9.0, 9.0, 1e300)]
    assert {float(np.abs(one.values - scores.values).max()) for one in moved} == {1.0} == {scores.moved}


# --- Held-out users --------------------------------------------------------------------------------------------------


def told(testers):
    """Everything that held-out users' answers may have changed."""
    ranking = None if testers._ranking is None else testers._ranking.below.tolist()
    best = None if testers._best is None else testers._best.tolist()
    return [testers.limit, testers.losses, testers.found, testers.charged, ranking, best, testers.worse]


@pytest.mark.parametrize("problem", [Logistic(2, 2.0, 5.0), Quadratic(2, 1.0, 1.0)], ids=["ranked", "scaled"])
def test_limit_ranking_best_model_and_metrics_follow_from_noisy_answers_alone(problem):
    """Exact sums as far apart as any users can make them change nothing if the noisy sums are the same."""
    outcomes, questions = [], []
    for exact in (0.0, 1.0, -3.0, 40.0):
        method = make(DPFedSGD, problem, 60, 4.0, 1e-3, held_out=40, rounds=6, choose_best=True)
        testers, rng = method.testers, np.random.default_rng(0)
        questions.append([])
        for server_round in range(8):
            x = rng.normal(size=problem.dimension) / 10
            while (name := testers.question(server_round, x)) is not None:
                testers.charge(server_round, name)
                asking = testers.request(name, np.zeros(problem.dimension), constant=False).computation
                width = asking.width(problem.dimension)
                sums = Gathered(exact * np.arange(1, width + 1) % 41.0, 0, 0)
                shown = testers.release(server_round, name, x, asking, sums, Same(np.random.default_rng(0)))
                questions[-1].append(
                    (name, shown, asking.parameters, {k: v.tolist() for k, v in asking.arrays.items()})
                )
        outcomes.append(told(testers))
    assert {name for name, *_ in questions[0]} == {"answers", "course", "ranking" if problem.has_targets else "scale"}
    assert all(one == questions[0] for one in questions)
    assert all(one == outcomes[0] for one in outcomes)
