"""The contract of statistics: those of the house keep to it, and faults of others are noticed, and do no harm."""

import math
from dataclasses import replace

import numpy as np
import pytest

from userdp.errors import ContractBroken
from userdp.queries.contract import SHAPE, people
from userdp.queries.registry import STATISTICS
from userdp.queries.statistics import Histogram, Mean, Quantiles
from userdp.queries.table import TableQuery
from userdp.testing import check_statistic

SETTINGS = {
    "count": {},
    "mean": {"of": "number"},
    "variance": {"of": "other"},
    "histogram": {"of": "number", "bins": [0, 50, 100]},
    "counts": {"of": "level"},
    "shares": {"of": "level"},
    "sum": {"of": "number", "bound": 150.0},
    "group_means": {"of": "number", "by": "level"},
    "effect": {"of": "number", "by": "level"},
    "variance_components": {"of": "number"},
    "correlation": {"of": ["number", "other"]},
    "quantiles": {"of": "number", "bins": [0, 20, 30, 100]},
    "survival": {"time": "number", "event": "level", "event_level": "a", "by": "level", "at": [0, 20, 60, 100]},
}


WHERE = {"level": ["a", "b"], "number": [20, 80]}


@pytest.mark.slow
@pytest.mark.parametrize("where", [{}, WHERE])
@pytest.mark.parametrize("name", STATISTICS.places)
def test_a_statistic_of_the_house_keeps_to_the_contract(name, where):
    check_statistic(STATISTICS[name], statistic=name, where=where, **SETTINGS[name])


@pytest.mark.parametrize("where", [{}, WHERE])
@pytest.mark.parametrize("name", STATISTICS.places)
def test_rows_of_a_statistic_of_the_house_keep_to_the_contract(name, where, monkeypatch):
    """One draw of noise does not tell how often intervals hold their answers."""
    monkeypatch.setattr("userdp.queries.contract.DRAWS", 1)
    monkeypatch.setattr("userdp.queries.contract.COVERED", 0.0)
    check_statistic(STATISTICS[name], statistic=name, where=where, **SETTINGS[name])


class TooLong(Histogram):
    def rows(self, block, facts):
        return 2 * super().rows(block, facts)


class FarApart(Mean):
    def rows(self, block, facts):
        rows = super().rows(block, facts)
        return np.where(rows[:, :1] > 0.5, -rows, rows)


class OfOthers(Histogram):
    def rows(self, block, facts):
        return super().rows(block, facts) * min(1.0, 10 / block.users)


class NotFinite(Histogram):
    def rows(self, block, facts):
        return np.where(super().rows(block, facts) == 1.0, math.nan, 0.5)


class NotWhole(Histogram):
    def rows(self, block, facts):
        return super().rows(block, facts) / 2


class TooSure(Histogram):
    def answers(self, sums, users, facts):
        sums = type(sums)(sums.values, sums.deviation / 3, sums.whole)
        return super().answers(sums, users, facts)


class OtherWidth(Histogram):
    def width(self, facts):
        return super().width(facts) + 1


class Negative(Histogram):
    def rows(self, block, facts):
        return 0.5 - super().rows(block, facts)


class NoAnswer(Histogram):
    def answers(self, sums, users, facts):
        return []


class AsManyAsNoise(Histogram):
    def answers(self, sums, users, facts):
        return super().answers(sums, users, facts)[: 1 if sums.deviation else None]


class Outside(Histogram):
    def answers(self, sums, users, facts):
        return [replace(one, estimate=one.high + 1) for one in super().answers(sums, users, facts)]


class NeverKnown(Histogram):
    def answers(self, sums, users, facts):
        return [replace(one, estimate=math.nan) for one in super().answers(sums, users, facts)]


class OftenUnknown(Histogram):
    def answers(self, sums, users, facts):
        found = super().answers(sums, users, facts)
        return [
            replace(one, estimate=math.nan, low=math.nan, high=math.nan) if sums.deviation else one for one in found
        ]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (TooLong, "l2 norm 2: it may be 1 at most"),
        (FarApart, "apart, and sqrt"),
        (OfOthers, "changes with the other users"),
        (NotFinite, "not finite"),
        (NotWhole, "a row adds up to 0.5"),
        (TooSure, "hold the answer without noise in"),
        (OtherWidth, "is announced"),
        (Negative, "has negative entries|changes with|apart"),
        (NoAnswer, "gives no answer"),
        (AsManyAsNoise, "more or fewer answers under noise"),
        (Outside, "estimates .* outside of"),
        (OftenUnknown, "that hold the answer without noise in 0 of"),
    ],
)
def test_a_statistic_that_breaks_the_contract_is_noticed(kind, told):
    settings = {"of": "number", "bins": [0, 50, 100]} if issubclass(kind, Histogram) else {"of": "number"}
    with pytest.raises(ContractBroken, match=f"{kind.__name__} .*({told})"):
        check_statistic(kind, **settings)


def test_a_statistic_that_never_knows_its_answer_breaks_nothing():
    check_statistic(NeverKnown, of="number", bins=[0, 50, 100])


class ManyVotes(Quantiles):
    def rows(self, block, facts):
        return 3.0 * super().rows(block, facts)


class VotesAgainst(Quantiles):
    def rows(self, block, facts):
        return -super().rows(block, facts).toarray()


@pytest.mark.parametrize(("kind", "told"), [(ManyVotes, "l2 norm 3"), (VotesAgainst, "has negative entries|apart")])
def test_choices_from_outside_are_noticed_and_have_one_vote(kind, told):
    settings = {"of": "number", "bins": [0, 20, 30, 100]}
    with pytest.raises(ContractBroken, match=f"{kind.__name__} .*({told})"):
        check_statistic(kind, **settings)
    asked = [kind(statistic="mine.py:Mine", **settings), Quantiles(statistic="quantiles", **settings)]
    query = TableQuery(asked, "replace_one", SHAPE, 3)
    rows = query.user_ranks(query.bound(people(np.random.default_rng(2)))[0]).toarray()
    assert rows.min() >= 0
    assert np.all(rows.reshape(len(rows), 2, 3).sum(axis=2) <= 1)


@pytest.mark.parametrize("kind", [TooLong, FarApart, NotFinite])
def test_rows_from_outside_are_held_to_the_bounds_that_noise_is_for(kind):
    settings = {"of": "number", "bins": [0, 50, 100]} if issubclass(kind, Histogram) else {"of": "number"}
    query = TableQuery([kind(statistic="mine.py:Mine", **settings)], "replace_one", SHAPE, 3)
    rows = query.user_shares(query.bound(people(np.random.default_rng(2)))[0])
    assert np.linalg.norm(rows, axis=1).max() <= 1
    assert max(np.linalg.norm(row - rows, axis=1).max() for row in rows) <= math.sqrt(2)
