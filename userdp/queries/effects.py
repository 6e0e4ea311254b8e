"""The effect of an experiment: how people's means, or quantiles, differ between the arms that they are in.

*Formal guarantees.* *Claim.* A row of `Effect` has no negative entry, and its entries add up to 1; so its l2 norm is at
most 1, and no two rows are further apart than sqrt(2). It follows from its own user's samples alone, to the last bit.
*Why.* It is a vote of `userdp.queries.votes`, of the user's usable numbers, in the entries of the one cell that the
user is in, and zero in those of other cells; the last entry is what is left to 1. The cell is that of the user's first
usable sample.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.data.shape import Column
from userdp.errors import BadInput
from userdp.queries import votes
from userdp.queries.answers import NORMAL_95, TOLD_APART, UNKNOWN, Answer, Estimated, Sums, squared_polynomial
from userdp.queries.facts import Facts, wanted_levels
from userdp.queries.statistics import OfNumbers
from userdp.settings import shown

_NUMBERS = np.array([0.0, 0.5, 1.0])  # of the polynomials in a cell: their sum with these is that of numbers


class Effect(OfNumbers):
    """The difference of people's means between other arms and the first declared one, and for ranges from 0 the ratio.

    With ``bins`` it is the difference of quantiles of people's means instead, as if numbers were even within a bin. A
    user's number is the mean over its usable samples, which have a number, an arm and a stratum; its arm and its
    stratum are those of the first of them.
    """

    whole: ClassVar[bool] = True
    by: str = Field(description="Column of declared levels: the arms. The others are compared with the first.")
    stratum: str | None = None
    """Column of declared levels, within each of which arms are compared, weighted by their numbers of people. A level
    with hardly anybody in an arm drowns the answer: leave it out of data.categorical."""
    bins: list[float] | None = Field(None, min_length=2)
    """Edges that rise, to compare quantiles; numbers beyond them do not count."""
    at: list[Annotated[float, Field(gt=0, lt=1)]] = Field([0.5], min_length=1, description="Quantiles, with bins.")

    def _splits(self, facts: Facts) -> list[Column]:
        names = {"ask.by": self.by} | ({} if self.stratum is None else {"ask.stratum": self.stratum})
        found = [facts.column(key, name, numbers=False) for key, name in names.items()]
        if len(found[0].levels) < 2 or self.by == self.stratum:
            raise BadInput(
                f"ask.by = {self.by!r}: an effect compares two levels or more, within each level of another column: "
                "declare the levels in data.categorical, and name another column as ask.stratum, or none"
            )
        for one in found:
            kept = {*wanted_levels(self.where.get(one.name, [*one.levels]), one)}
            if len(kept) < len(one.levels) and (one.name == self.stratum or not kept > {0}):
                raise BadInput(
                    f"ask.where.{one.name} = {shown(self.where[one.name])}: an effect compares other arms with the "
                    "first one, within each level of ask.stratum; let these fit, or declare no others"
                )
        return found

    def _edges(self, facts: Facts) -> Vector | None:
        if self.bins is None and "at" in self.model_fields_set:
            raise BadInput(f"ask.at = {self.at}: quantiles are read off bins; give ask.bins, or leave ask.at out")
        return None if self.bins is None else votes.checked_edges("ask.bins", self.bins, self.column(facts))

    def _form(self, facts: Facts) -> tuple[int, int, int]:
        """Return the number of arms, of strata, and of entries in each cell."""
        edges, sizes = self._edges(facts), [len(one.levels) for one in self._splits(facts)]
        return sizes[0], math.prod(sizes[1:]), 3 if edges is None else len(edges) - 1

    def width(self, facts: Facts) -> int:
        self.column(facts)
        return math.prod(self._form(facts)) + 1

    def rows(self, block: Block, facts: Facts) -> Rows:
        column, most, edges = self.column(facts), self.most(facts), self._edges(facts)
        codes = np.zeros(block.samples, dtype=np.int64)
        numbers = block.dense_features[:, [column.places[0]]]
        usable = ~np.isnan(numbers[:, 0])
        for split in self._splits(facts):
            own = votes.level_codes(block, split)
            codes, usable = codes * len(split.levels) + own, usable & (own >= 0)
        numbers[~usable] = np.nan
        owners = np.repeat(np.arange(block.users), block.sizes)[usable]
        there, first, counts = np.unique(owners, return_index=True, return_counts=True)
        cells = np.zeros(block.users, dtype=np.int64)
        cells[there] = codes[usable][first]
        alone, column = Block(numbers, block.offsets), replace(column, places=(0,))
        if edges is None:
            own_votes = votes.moments(alone, column, 2, most)
        else:
            if most is None:  # a user's one vote is for its mean
                means = np.full((block.users, 1), np.nan, dtype=np.float32)
                means[there, 0] = np.bincount(owners, numbers[usable, 0])[there] / counts
                alone = Block(means, np.arange(block.users + 1))
            own_votes = dense(votes.by_bin(alone, column, edges, most))
        arms, strata, entries = self._form(facts)
        rows = np.zeros((block.users, arms * strata, entries))
        rows[np.arange(block.users), cells] = own_votes
        return self.with_rest(rows.reshape(block.users, -1))

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        arms, column, names = Arms(sums, self._form(facts)), self.column(facts), self._splits(facts)[0].levels
        assert column.range is not None
        (low, high), unit, found = column.range, column.unit or f"units of {column.name}", []
        bands = None if (edges := self._edges(facts)) is None else arms.bands(edges)
        for other in range(1, len(names)):
            words = f"{names[other]} - {names[0]}"
            if edges is not None and bands is not None:
                for quantile in self.at:
                    ends, error = quantile_effect(np.clip(edges, low, high), bands[:, [0, other]], quantile)
                    found.append(self.told(f"{words} at {quantile:g}", ends, error, unit))
                continue
            one = arms.difference(other).scaled(high - low)
            found.append(self.told(words, one.interval(low - high, high - low), one.error, unit))
            if low >= 0:
                ends, error = arms.ratio(other, low, high)
                found.append(self.told(f"{names[other]} / {names[0]}", ends, error, "ratio"))
        return found


class Arms:
    """Means of people's numbers in each arm, weighted over strata by the strata's sizes, and their errors.

    With sums S of cells of an arm a and a stratum s, of W users each, the mean of f is ``M_a = sum_s w_s m_as``, with
    ``m_as = f.S_as / W_as`` and weights ``w_s = W_s / W``. To first order it moves with the sums of its own arm by
    ``w_s (f - m_as) / W_as``, and with those of all arms by ``(m_as - M_a) / W``. Noise is the same on each entry. A
    user is in one cell, so its part of the choice of users is the square of that cell's, as in
    `userdp.queries.answers`.

    Args:
        sums: of the rows of an `Effect`.
        form: the number of arms A, of strata S, and of entries F in each cell.
    """

    def __init__(self, sums: Sums, form: tuple[int, int, int]) -> None:
        self.sums, self.cells = sums, sums.values[:-1].reshape(form)
        sizes = self.cells.sum(axis=2)
        # Noise is the same in all cells, so that one number tells of each whether it drowns.
        known = sizes > sums.least(np.repeat([1.0, 0.0], [form[2], len(sums.values) - form[2]]))
        self.sizes = np.where(known.all(axis=1, keepdims=True), sizes, np.nan)
        self.users = max(float(sizes.sum()), 1e-9)
        self.weights = sizes.sum(axis=0) / self.users

    def mean(self, arm: int, f: Vector) -> tuple[float, Array]:
        """Return an arm's mean of f (F,), NaN if the arm drowns, and what it moves by (A, S, F)."""
        own = self.cells[arm] @ f / self.sizes[arm]
        mean = float(own @ self.weights)
        slope = np.zeros(self.cells.shape) + ((own - mean) / self.users)[:, None]
        slope[arm] += (self.weights / self.sizes[arm])[:, None] * (f - own[:, None])
        return mean, slope

    def error(self, slope: Array, squared: Callable[[Array], Array]) -> float:
        """Return the standard error of what moves by ``slope`` (A, S, F); ``squared`` gives the squares of cells."""
        spread = float(np.sum(squared(slope) * self.cells))
        return math.sqrt(self._noise(slope) + max(spread, 0.0))

    def difference(self, other: int) -> Estimated:
        """Return by how much an arm's mean of numbers in [0, 1] exceeds that of the first arm."""
        (base, below), (mean, slope) = (self.mean(arm, _NUMBERS) for arm in (0, other))
        if not math.isfinite(mean - base):
            return UNKNOWN
        return Estimated(mean - base, self.error(slope - below, _squared_lines))

    def ratio(self, other: int, low: float, high: float) -> tuple[tuple[float, float, float], float]:
        """Return an arm's mean of numbers in [low, high] over the first arm's, its interval, and its standard error."""
        bounds, moves, means = (low / high, high / low if low > 0 else math.inf), [], []
        for arm in (0, other):
            mean, slope = self.mean(arm, _NUMBERS)
            mean, slope = low + (high - low) * mean, (high - low) * slope
            if not mean > TOLD_APART * math.sqrt(self._noise(slope)):
                return (math.nan, *bounds), math.inf
            means.append(mean)
            moves.append(slope / mean)
        value, error = means[1] / means[0], self.error(moves[1] - moves[0], _squared_lines)
        ends = value * np.exp(np.array([0.0, -NORMAL_95, NORMAL_95]) * error)
        estimate, least, most = np.clip(ends, *bounds).tolist()
        return (estimate, least, most), float(value * error)

    def bands(self, edges: Vector) -> Array:
        """Return each arm's distribution function at the edges (E,) of bins, and its standard errors: (2, A, E)."""
        found = np.zeros((2, len(self.sizes), len(edges)))
        for place in range(1, len(edges)):
            below = np.repeat([1.0, 0.0], [place, len(edges) - 1 - place])
            for arm in range(len(self.sizes)):
                share, slope = self.mean(arm, below)
                found[:, arm, place] = share, self.error(slope, np.square)
        return found

    def _noise(self, slope: Array) -> float:
        return self.sums.noise(np.append(slope, 0.0))


def _squared_lines(slope: Array) -> Array:
    return np.apply_along_axis(squared_polynomial, -1, slope)


def quantile_effect(edges: Vector, bands: Array, quantile: float) -> tuple[tuple[float, float, float], float]:
    """Return by how much the second arm's quantile exceeds the first's, its interval, and its standard error.

    ``bands`` (2, 2, E) are distribution functions of two arms at edges (E,), and their standard errors. The interval of
    one arm's quantile holds all numbers at which its function may be ``quantile``. Two of them make that of the
    difference: its reach to each side is the root of the sum of squares of the two that lead there (Zou, Donner 2008).
    """
    width, found = float(edges[-1] - edges[0]), []
    if not np.isfinite(bands).all():
        return (math.nan, -width, width), math.inf
    for share, error in zip(bands[0], NORMAL_95 * bands[1], strict=True):
        middle = 0.5 * (first_at(edges, share, quantile) + last_at(edges, share, quantile))
        found.append((middle, first_at(edges, share + error, quantile), last_at(edges, share - error, quantile)))
    (base, base_low, base_high), (value, low, high) = found
    below, above = math.hypot(value - low, base_high - base), math.hypot(high - value, base - base_low)
    ends = value - base, max(value - base - below, -width), min(value - base + above, width)
    return ends, (below + above) / (2 * NORMAL_95)


def first_at(edges: Vector, shares: Vector, quantile: float) -> float:
    """Return the first number at which a distribution function (E,), a line between edges (E,), is a quantile."""
    place = max(int(np.argmax(shares >= quantile)), 1)
    return float(np.interp(quantile, shares[place - 1 : place + 1], edges[place - 1 : place + 1]))


def last_at(edges: Vector, shares: Vector, quantile: float) -> float:
    """Return the last such number."""
    return -first_at(-edges[::-1], 1.0 - shares[::-1], 1.0 - quantile)
