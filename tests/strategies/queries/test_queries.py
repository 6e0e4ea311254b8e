"""The recipe of queries: its budget, its noise, its rounds and its refusals."""

import numpy as np
import pytest
from query_cases import QUANTILES, SUMS, people, query

from simulations.engines.grids import LocalGrid
from strategies.core.public_facts import PublicFacts
from strategies.queries.statistics import Statistics
from userdp.accounting import Privacy, epsilon_of
from userdp.accounting.costs import together
from userdp.data import ColumnarFederation
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import Node
from userdp.problems import Quadratic
from userdp.queries.answers import Answer
from userdp.testing import check_strategy

USERS, PRIVACY = 200, Privacy(1.0, 1e-5)
CORRELATION = {"statistic": "correlation", "of": ["age", "visits"]}
MEAN = [{"statistic": "mean", "of": "age"}]


def made(asked, relation="replace_one", privacy=PRIVACY, seed=0, users=USERS, **settings):
    return Statistics(**settings).strategy(
        query(asked, relation), PublicFacts(users, max_samples=3), privacy, seed=seed
    )


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return people([[(rng.uniform(-1, 1), 0.0, int(rng.integers(3)))] for _ in range(USERS)])


def answers_of(strategy):
    report = strategy.scheme.report(strategy.state.released, strategy.memory)
    return [Answer(**one) for one in report["answers"]]


def run(strategy, block, nodes=2):
    problem = strategy.original
    parts = np.array_split(np.arange(strategy.public.users), nodes)
    with LocalGrid([Node(problem, ColumnarFederation(block), users) for users in parts]) as grid:
        strategy.start(grid)
    return answers_of(strategy)


@pytest.mark.parametrize(
    ("users", "trust", "hidden"),
    [(4_000, "server", "7.6"), (4_000, "sum", "9.1"), (154_000, "server", "1.2"), (400_000, "server", "")],
)
def test_a_plan_warns_of_a_correlation_that_noise_hides_unless_ranges_are_filled(users, trust, hidden):
    """Costs of about 100 in [0, 5000] drown at 4,000 people, and those of about 50 at 154,000: public facts tell."""
    told = made([CORRELATION], privacy=Privacy(1.0, 1e-6, trust=trust), users=users).plan.warnings
    (one,) = [line for line in told if line.startswith("correlation of age and visits: noise hides it")] or [""]
    assert f"about {hidden} % of its range" in one if hidden else not one
    assert not hidden or "declare narrower data.ranges (userdp find proposes them)" in one


@pytest.mark.slow
def test_it_keeps_the_contract_of_strategies():
    check_strategy(Statistics)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
@pytest.mark.parametrize("asked", [MEAN, SUMS, QUANTILES, [*SUMS, *QUANTILES]], ids=["one", "sums", "ranks", "all"])
def test_a_query_spends_its_budget_and_no_more(asked, relation):
    strategy = made(asked, relation)
    costs = []
    check = strategy.program.own.ledger.check_drawn

    def noted(cost):
        costs.append(cost)
        check(cost)

    strategy.program.own.ledger.check_drawn = noted
    run(strategy, drawn())
    assert strategy.plan.guarantee.relation == relation
    assert strategy.plan.guarantee.epsilon <= PRIVACY.epsilon
    assert strategy.spent_epsilon == pytest.approx(PRIVACY.epsilon, rel=1e-4)
    assert epsilon_of(together(*costs), 1, PRIVACY.delta) <= PRIVACY.epsilon * (1 + 1e-9)
    assert epsilon_of(together(*costs), 1, PRIVACY.delta) == pytest.approx(PRIVACY.epsilon, rel=1e-4)


def test_the_noise_of_an_answer_is_the_stated_one():
    block, asked = drawn(), [*MEAN, {"statistic": "counts", "of": "city", "weight": 3.0}]
    found = [run(made(asked, seed=seed), block) for seed in range(400)]
    # The last level, of any other cell, is empty, and no estimate is below zero.
    counts = np.array([[one.estimate for one in answers if one.statistic == "counts"][:3] for answers in found])
    stated = next(one.standard_error for one in found[0] if one.statistic == "counts")
    assert counts.std(axis=0).mean() == pytest.approx(stated, rel=0.06)


@pytest.mark.parametrize(
    "asked", [MEAN, [QUANTILES[0] | {"at": [0.5]}], [*SUMS, *QUANTILES]], ids=["sum", "rank", "all"]
)
def test_where_users_may_come_and_go_nobody_is_assumed_to_know_who_takes_part(asked):
    for relation in ("replace_one", "add_or_remove"):
        told = made(asked, relation).plan.guarantee.assumptions
        assert ("n and who takes part are public" in told) == (relation == "replace_one")
        assert any(one.startswith("the number of places") for one in told) == (relation == "add_or_remove")


def test_a_query_of_one_quantile_has_all_of_epsilon():
    alone = made([QUANTILES[0] | {"at": [0.5]}]).scheme
    middle, *ends = (choice.mechanism for choice in alone.choices)
    assert not middle.as_gaussian
    assert middle.epsilon == pytest.approx(0.95, rel=1e-6)
    assert middle.epsilon + sum(one.epsilon for one in ends) <= 1.0
    both = made([QUANTILES[0] | {"at": [0.5, 0.9]}]).scheme
    assert sum(one.mechanism.epsilon for one in both.choices) == pytest.approx(1.0, rel=1e-6)
    many = made([QUANTILES[0] | {"at": np.linspace(0.01, 0.99, 60).tolist()}]).scheme
    assert all(choice.mechanism.as_gaussian for choice in many.choices)
    assert many.price.guarantee.is_one_gaussian


@pytest.mark.parametrize(("users", "widest"), [(100, 100.0), (20_000, 30.0)])
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_intervals_of_quantiles_hold_whatever_the_data(users, widest, relation):
    """Most people in one corner of the range, with few intervals there; of few people nothing is known."""
    held, widths, truth = 0, [], -np.log(0.25)
    for seed in range(40):
        rng = np.random.default_rng([seed, users])
        cells = np.minimum(rng.exponential(size=users), 100.0) / 50 - 1
        block = people([[(cell, 0.0, 0)] for cell in cells])
        asked = [{"statistic": "quantiles", "of": "age", "at": [0.75]}]
        [one] = run(made(asked, relation, seed=seed, users=users), block)
        held += one.low <= truth <= one.high
        widths.append(one.high - one.low)
    assert held >= 34  # so many are held 99.9 times in 100 if each is with probability 0.95
    assert np.median(widths) <= widest


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_masked_sums_answer_alike(relation):
    exact, masked = (
        run(made(SUMS, relation, Privacy(8.0, 1e-5, trust=trust)), drawn(), nodes=3) for trust in ("server", "sum")
    )
    for first, second in zip(exact, masked, strict=True):
        if np.isfinite([first.estimate, second.estimate]).all():
            apart = np.hypot(first.standard_error, second.standard_error)
            assert abs(second.estimate - first.estimate) <= 5 * apart
    # Of three nodes one may keep its share of the noise off: the others have all that is accounted.
    counts = [next(one for one in found if one.statistic == "counts") for found in (exact, masked)]
    assert counts[1].standard_error == pytest.approx(counts[0].standard_error * np.sqrt(1.5), rel=0.01)


def test_masked_quantiles_are_refused():
    with pytest.raises(BadInput, match="statistic = 'quantiles' of 'age' chooses among sums without noise"):
        made([*SUMS, *QUANTILES], privacy=Privacy(1.0, 1e-5, trust="sum"))


def ends(strategy, parts, why, silent=None):
    """Require that the query fails for the reason ``why``, with a node for each part of the users."""
    nodes = [Node(strategy.original, ColumnarFederation(drawn()), users) for users in parts]
    if silent is not None:
        nodes[silent].compute = lambda *_: 1 / 0
    with LocalGrid(nodes) as grid, pytest.raises(RunFailed, match=why):
        strategy.start(grid)


def test_a_silent_node_ends_the_query():
    strategy = made(MEAN)
    ends(strategy, np.array_split(np.arange(USERS), 2), "too many users of a cohort did not answer", silent=1)


@pytest.mark.parametrize("trust", ["server", "sum"])
def test_a_silo_that_nobody_heard_of_ends_the_query_before_it_spends(trust):
    """Its people would be counted as zeros."""
    strategy = made(MEAN, privacy=Privacy(1.0, 1e-5, trust=trust))
    ends(strategy, np.array_split(np.arange(USERS), 3)[:2], "too few users have a node")
    assert strategy.spent_epsilon == 0
    assert not strategy.result.rounds


def test_a_masked_sum_that_cannot_be_read_is_no_answer():
    strategy = made(MEAN, privacy=Privacy(1.0, 1e-5, trust="sum"), max_missing=0.2)
    # The silent node has fewer users than may be missing.
    ends(strategy, np.array_split(np.arange(USERS), 20), "the sum cannot be read; ask again", silent=1)
    assert not strategy.result.rounds


def test_it_answers_nothing_but_queries():
    with pytest.raises(BadInput, match="ask by userdp query"):
        Statistics().strategy(Quadratic(2, 1.0, 1.0), PublicFacts(USERS), PRIVACY, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove"])
def test_intervals_hold_the_truth_about_as_often_as_they_say(relation):
    users, runs, cells = 600, 200, np.linspace(0, 100, 401).tolist()
    asked = [
        *MEAN,
        {"statistic": "mean", "of": "visits"},
        {"statistic": "variance", "of": "age"},
        {"statistic": "histogram", "of": "visits", "bins": [0, 2.5, 7.5, 10]},
        {"statistic": "group_means", "of": "age", "by": "city"},
        {"statistic": "quantiles", "of": "age", "at": [0.5], "bins": cells, "weight": 3},
    ]
    # One in ten has no age; the others are uniform on [20, 80]; visits are 0, 5 or 10.
    truth = np.array([50, 5.5, 300, 300**0.5, 0.2, 0.5, 0.3, 50, 50, 50, 50])
    held = np.zeros(len(truth))
    for seed in range(runs):
        rng = np.random.default_rng([9, seed])
        age = np.where(rng.random(users) < 0.1, np.nan, rng.uniform(-0.6, 0.6, users))
        visits = rng.choice([-1.0, 0.0, 1.0], users, p=[0.2, 0.5, 0.3])
        block = people([[one] for one in zip(age, visits, rng.integers(0, 3, users), strict=True)])
        facts, privacy = PublicFacts(users, max_samples=3), Privacy(8.0, 1e-4)
        strategy = Statistics().strategy(query(asked, relation), facts, privacy, seed=seed)
        with LocalGrid([Node(strategy.original, ColumnarFederation(block), np.arange(users))]) as grid:
            strategy.start(grid)
        found = answers_of(strategy)
        held += [one.low <= value <= one.high for one, value in zip(found, truth, strict=True)]
    shares = held / runs
    # Four standard errors of a share of 0.95 below; those of quantiles among intervals may be wider.
    assert shares.min() > 0.95 - 4 * np.sqrt(0.95 * 0.05 / runs), shares
    assert 0.93 < shares[:-1].mean() < 0.97, shares
