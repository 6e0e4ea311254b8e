"""The contract of statistics: those of the house keep to it, and faults of others are noticed, and do no harm."""

import math

import numpy as np
import pytest

from userdp.errors import ContractBroken
from userdp.queries.contract import SHAPE, people
from userdp.queries.registry import STATISTICS
from userdp.queries.statistics import Histogram, Mean
from userdp.queries.table import TableQuery
from userdp.testing import check_statistic

SETTINGS = {
    "count": {},
    "mean": {"of": "number"},
    "variance": {"of": "other"},
    "histogram": {"of": "number", "bins": [0, 50, 100]},
    "counts": {"of": "level"},
    "group_means": {"of": "number", "by": "level"},
    "correlation": {"of": ["number", "other"]},
    "quantiles": {"of": "number", "bins": [0, 20, 30, 100]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATISTICS.places)
def test_a_statistic_of_the_house_keeps_to_the_contract(name):
    check_statistic(STATISTICS[name], statistic=name, **SETTINGS[name])


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
    ],
)
def test_a_statistic_that_breaks_the_contract_is_noticed(kind, told):
    settings = {"of": "number", "bins": [0, 50, 100]} if issubclass(kind, Histogram) else {"of": "number"}
    with pytest.raises(ContractBroken, match=f"{kind.__name__} .*{told}"):
        check_statistic(kind, **settings)


@pytest.mark.parametrize("kind", [TooLong, FarApart, NotFinite])
def test_rows_from_outside_are_held_to_the_bounds_that_noise_is_for(kind):
    settings = {"of": "number", "bins": [0, 50, 100]} if issubclass(kind, Histogram) else {"of": "number"}
    query = TableQuery([kind(statistic="mine.py:Mine", **settings)], "replace_one", SHAPE, 3)
    rows = query.user_shares(query.bound(people(np.random.default_rng(2)))[0])
    assert np.linalg.norm(rows, axis=1).max() <= 1
    assert max(np.linalg.norm(row - rows, axis=1).max() for row in rows) <= math.sqrt(2)
