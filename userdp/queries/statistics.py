"""The statistics that a query may ask for: settings, users' rows, and answers, one class each.

A new statistic is a class below `Statistic` that `userdp.queries.registry`, an entry point or a query's file names.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from userdp.arrays.sparse_rows import AnyRows, Sparse, dense
from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.data.shape import Column
from userdp.errors import BadInput
from userdp.nodes.moments import mirrored
from userdp.queries import votes
from userdp.queries.answers import (
    NORMAL_95,
    UNKNOWN,
    Answer,
    Estimated,
    Sums,
    correlations,
    hidden_correlations,
    mean_and_variance,
    mean_of,
)
from userdp.queries.facts import Facts, OneOrTwo, Where
from userdp.settings import Section


class Statistic(Section):
    """A statistic."""

    statistic: str = Field(description="Name of the statistic, or FILE.py:CLASS.")
    weight: float = Field(1.0, gt=0, description="Share of the budget, relative to the other statistics' weights.")
    per: Literal["user", "sample"] = "user"
    """The votes that count the same: each user's, whose samples share one (user); or each sample's, of at most
    data.max_samples of a user (sample)."""
    where: Where = Field(
        {}, description="Samples that count: levels of columns, and [low, high] of numbers; all others add nothing."
    )

    whole: ClassVar[bool] = False  # whether a user's entries add up to 1, whatever its samples, and so all users' to n
    chooses: ClassVar[bool] = False  # whether it is a choice among users' ranks rather than a noisy sum

    @property
    def name(self) -> str:
        """The name in answers: that of the class if the file of a query names it by its place."""
        return self.statistic.rpartition(":")[2]

    @abstractmethod
    def width(self, facts: Facts) -> int:
        """Return the entries of a row; raise `BadInput` for a column that does not suit."""

    @abstractmethod
    def rows(self, block: Block, facts: Facts) -> AnyRows:
        """Return (U, width) rows of norm at most 1; if users are replaced, any two differ by sqrt(2) at most.

        See `userdp.queries.votes`.

        Those of choices are sparse.
        """

    def absent(self, blank: Block, facts: Facts) -> AnyRows:
        """Return the row (1, width) of a user without a sample that fits ``where``; ``blank`` is one without a cell."""
        return self.rows(blank, facts)

    @abstractmethod
    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        """Return the answers that follow from noisy sums of the rows of ``users`` users."""

    def doubts(self, deviation: float, users: int, facts: Facts) -> Iterator[str]:
        """Warn, before data are read, of answers that noise of that deviation on each sum will hide."""
        return iter(())

    def most(self, facts: Facts) -> int | None:
        """Return the samples that make one whole vote; None if every user has one vote."""
        if self.per == "user":
            return None
        if facts.most is None:
            raise BadInput(
                f"ask.per = 'sample' of statistic = {self.name!r}: data.max_samples is missing, the most samples "
                "of a user that count; declare it, or leave per out, so that each user has one vote"
            )
        return facts.most

    def with_rest(self, rows: Rows) -> Rows:
        """Return the rows with one more entry, which makes each add up to 1: of samples in no other entry."""
        return np.column_stack([rows, np.maximum(1.0 - rows.sum(axis=1), 0.0)])

    def told(self, level: str | None, found: tuple[float, float, float], error: float, unit: str) -> Answer:
        """Return one answer."""
        estimate, low, high = found
        of = getattr(self, "of", None)
        column = of if of is None or isinstance(of, str) else ", ".join(of)
        return Answer(self.name, column, level, estimate, error, low, high, unit)

    def shares(self, sums: Sums, levels: Sequence[str]) -> list[Answer]:
        """Return the share of each level among all of them, from sums of levels and of the rest."""
        cells, found = np.append(np.ones(len(levels)), 0.0), []
        for k, level in enumerate(levels):
            share = sums.ratio(np.eye(len(cells))[k], cells, lambda c: c**2)
            found.append(self.told(level, share.interval(0.0, 1.0), share.error, f"share of {self.per}s"))
        return found

    def measured(self, column: Column, level: str | None, unit_estimate: Estimated) -> Answer:
        """Return an answer in a column's own units, from its estimate in [0, 1]."""
        assert column.range is not None
        low, high = column.range
        one = unit_estimate.scaled(high - low, low)
        return self.told(level, one.interval(low, high), one.error, column.unit or f"units of {column.name}")


class Count(Statistic):
    """The number of users, or of samples. Under replace_one the number of users is public, and costs nothing."""

    whole: ClassVar[bool] = True

    def width(self, facts: Facts) -> int:
        if self.most(facts) is None and not self.where:
            return int(not facts.users_known)
        return 2

    def rows(self, block: Block, facts: Facts) -> Rows:
        return self.with_rest(votes.sizes(block, self.most(facts)))[:, : self.width(facts)]

    def absent(self, blank: Block, facts: Facts) -> Rows:
        return np.array([[0.0, 1.0]])

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        factor = self.most(facts) or 1
        public = Estimated(float(users), 0.0)
        one = sums.total(np.eye(len(sums.values))[0]).scaled(factor) if len(sums.values) else public
        return [self.told(None, one.interval(0.0, float(users * factor)), one.error, f"{self.per}s")]


class OfNumbers(Statistic):
    """A statistic of one column of numbers."""

    of: str = Field(description="Column of numbers, with a declared range.")

    def column(self, facts: Facts) -> Column:
        """Return the column."""
        return facts.column("ask.of", self.of, numbers=True)


class Moments(OfNumbers):
    """A statistic of users' numbers that follows from the sums of Bernstein polynomials of them."""

    whole: ClassVar[bool] = True
    degree: ClassVar[int]

    def _rest(self, facts: Facts) -> bool:
        return self.most(facts) is not None or not self.column(facts).complete

    def width(self, facts: Facts) -> int:
        return self.degree + 1 + self._rest(facts)

    def rows(self, block: Block, facts: Facts) -> Rows:
        rows = votes.moments(block, self.column(facts), self.degree, self.most(facts))
        return self.with_rest(rows) if self._rest(facts) else rows


class Mean(Moments):
    """The mean of users' numbers, each of which is the mean over the user's samples."""

    degree: ClassVar[int] = 2

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        return [self.measured(self.column(facts), None, mean_of(sums, slice(0, 3)))]


class Variance(Moments):
    """The variance of users' numbers, and its root; each number is the mean over the user's samples."""

    degree: ClassVar[int] = 4

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        column = self.column(facts)
        assert column.range is not None
        width, unit = column.range[1] - column.range[0], column.unit or f"units of {column.name}"
        one = mean_and_variance(sums, self.degree)[1].scaled(width**2)
        found = one.interval(0.0, width**2 / 4)
        roots = (float(np.sqrt(found[0])), float(np.sqrt(found[1])), float(np.sqrt(found[2])))
        error = one.error / (2 * roots[0]) if roots[0] > 0 else np.inf
        return [
            self.told("variance", found, one.error, f"({unit})^2"),
            self.told("standard deviation", roots, error, unit),
        ]


class Histogram(OfNumbers):
    """The share of users in each of the declared bins; a user's samples share one vote."""

    whole: ClassVar[bool] = True
    bins: list[float] = Field(min_length=2)
    """Edges that rise. A bin holds its lower edge, the last one both; numbers beyond the edges are in no bin."""

    def _edges(self, facts: Facts) -> Vector:
        return votes.checked_edges("ask.bins", self.bins, self.column(facts))

    def width(self, facts: Facts) -> int:
        return len(self._edges(facts))  # one less bin, and one for samples in none

    def rows(self, block: Block, facts: Facts) -> Rows:
        return self.with_rest(dense(votes.by_bin(block, self.column(facts), self._edges(facts), self.most(facts))))

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        ends = [")"] * (len(self.bins) - 2) + ["]"]
        cut = zip(self.bins[:-1], self.bins[1:], ends, strict=True)
        return self.shares(sums, [f"[{low:.12g}, {high:.12g}{end}" for low, high, end in cut])


class Counts(Statistic):
    """The number of users at each of the declared levels; a user's samples share one vote."""

    whole: ClassVar[bool] = True
    of: OneOrTwo = Field(description="Column of declared levels; or two, whose pairs of levels are counted.")

    def column(self, facts: Facts) -> Column:
        """Return the column."""
        return facts.column("ask.of", self.of, numbers=False)

    def width(self, facts: Facts) -> int:
        return len(self.column(facts).levels) + 1

    def rows(self, block: Block, facts: Facts) -> Rows:
        return self.with_rest(dense(votes.by_level(block, self.column(facts), self.most(facts))))

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        factor, found, most = self.most(facts) or 1, [], self.most(facts)
        levels = [*self.column(facts).levels, *([] if most or self.where else ["any other cell"])]
        for k, level in enumerate(levels):
            one = sums.total(np.eye(len(sums.values))[k]).scaled(factor)
            found.append(self.told(level, one.interval(0.0, float(users * factor)), one.error, f"{self.per}s"))
        return found


class GroupMeans(OfNumbers):
    """The mean of a column of numbers within each level of another; a user's vote is split by samples."""

    whole: ClassVar[bool] = True
    by: OneOrTwo = Field(description="Column of declared levels; or two, whose pairs of levels are the groups.")

    def _groups(self, facts: Facts) -> Column:
        return facts.column("ask.by", self.by, numbers=False)

    def width(self, facts: Facts) -> int:
        self.column(facts)
        return 3 * len(self._groups(facts).levels) + 1

    def rows(self, block: Block, facts: Facts) -> Rows:
        return self.with_rest(votes.moments(block, self.column(facts), 2, self.most(facts), self._groups(facts)))

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        return [
            self.measured(self.column(facts), level, mean_of(sums, slice(3 * k, 3 * k + 3)))
            for k, level in enumerate(self._groups(facts).levels)
        ]


class Correlation(Statistic):
    """The correlations of columns of numbers over users, each of whose numbers is a mean over its samples."""

    of: list[str] = Field(min_length=2, description="Columns of numbers; users who lack one of them do not count.")

    def _columns(self, facts: Facts) -> list[Column]:
        if len(set(self.of)) < len(self.of):
            raise BadInput(f"ask.of = {self.of}: a column is listed twice; leave one out")
        return [facts.column("ask.of", name, numbers=True) for name in self.of]

    def width(self, facts: Facts) -> int:
        k = len(self._columns(facts)) + 1
        return k * (k + 1) // 2

    def rows(self, block: Block, facts: Facts) -> Rows:
        return votes.products(block, self._columns(facts), self.most(facts), replaced=facts.users_known)

    def doubts(self, deviation: float, users: int, facts: Facts) -> Iterator[str]:
        """See `Statistic`."""
        scale, _ = votes.product_scale(len(self.of), replaced=facts.users_known)
        return hidden_correlations(self.of, deviation / scale / users)

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        scale, centre = votes.product_scale(len(self.of), replaced=facts.users_known)
        products = mirrored(sums.values / scale + users * centre)
        values, errors = correlations(products, sums.deviation / scale)
        found = []
        for i, j in zip(*np.triu_indices(len(self.of), 1), strict=True):
            one = Estimated(values[i, j], errors[i, j]) if np.isfinite(values[i, j]) else UNKNOWN
            pair = (self.name, self.of[i], self.of[j])
            estimate, low, high = one.interval(-1.0, 1.0)
            found.append(Answer(*pair, estimate, one.error, low, high, "correlation"))
        return found


class Quantiles(OfNumbers):
    """Quantiles of a column of numbers, where a user's samples share one vote; chosen among intervals of the range."""

    at: list[float] = Field([0.25, 0.5, 0.75], min_length=1, description="Quantiles, between 0 and 1.")
    bins: list[float] | None = Field(None, min_length=2)
    """Edges of the intervals to choose from, which rise; 4096 intervals of the declared range by default."""

    chooses: ClassVar[bool] = True

    def edges(self, facts: Facts) -> Vector:
        """Return the edges of the intervals."""
        column = self.column(facts)
        assert column.range is not None
        if bad := [one for one in self.at if not 0 < one < 1]:
            raise BadInput(f"ask.at = {bad[0]}: a quantile lies between 0 and 1, such as 0.5 for the median")
        if self.bins is None:
            return np.linspace(*column.range, 4097)
        return votes.checked_edges("ask.bins", self.bins, column)

    def width(self, facts: Facts) -> int:
        return len(self.edges(facts)) - 1

    def rows(self, block: Block, facts: Facts) -> Sparse:
        return votes.by_bin(block, self.column(facts), self.edges(facts), self.most(facts))

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        """Return the answers from the chosen intervals: three of each quantile, the middle one and both ends."""
        column = self.column(facts)
        assert column.range is not None
        edges = np.clip(self.edges(facts), *column.range)
        found, last = [], len(edges) - 1
        for quantile, (middle, below, above) in zip(self.at, sums.values.reshape(-1, 3).astype(int), strict=True):
            value = 0.5 * (edges[middle] + edges[middle + 1])
            low, high = edges[np.clip([below, above + 1], 0, last)]
            ends = float(value), float(min(value, low)), float(max(value, high))
            error = (ends[2] - ends[1]) / (2 * NORMAL_95)
            found.append(self.told(f"{quantile:g}", ends, error, column.unit or f"units of {column.name}"))
        return found
