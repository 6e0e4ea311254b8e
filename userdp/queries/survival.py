"""Survival: how many people are still without an event at each edge, from one vote for each person.

*Formal guarantees.* *Claim.* A row of `Survival.rows` has one entry 1 and zeros elsewhere, for any data: its l2 norm is
1, and two rows differ by sqrt(2) at most. It follows from its own user's samples alone, to the last bit. *Why.* A user
is in one cell: that of its group (of its first sample with a group) and of the period and kind of its end; or in the
last cell, if it lacks one of them. Periods and positions are whole numbers, of which each user's least and largest are
taken: no order of samples or users rounds anything.

With cells x, projected to their public total, each answer f has, to first order, the variance ``g^T (n (diag p - p p^T)
+ s^2 (I - 1 1^T / M)) g``: g the gradient of f, p the law of cells, s the deviation of the noise on M cells. Shares of
people stay the same if all cells grow alike, so ``g.p = 0``, and ``g^2.x`` estimates the part of people.
"""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import chdtrc

from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.data.shape import Column
from userdp.data.tables.declaration import Cell
from userdp.errors import BadInput
from userdp.queries import votes
from userdp.queries.answers import NORMAL_95, Answer, Estimated, Sums
from userdp.queries.facts import Facts, level_number
from userdp.queries.statistics import Statistic

_AT_RISK = 4.0  # People at risk are known if they exceed so many standard deviations of their noise
_NO_INTERVAL = (-math.inf, math.inf)


class Survival(Statistic):
    """The share of users still without an event at each edge, by life table; each user has one end of follow-up."""

    whole: ClassVar[bool] = True

    per: Literal["user"] = "user"
    """Each user has one vote: its end of follow-up."""
    time: str = Field(description="Column of numbers: the time of a sample since its user's follow-up began.")
    event: str
    """Column that says whether the event happened at that time: of the numbers 0 and 1, with the range [0, 1]; or of
    declared levels, one of which is `event_level`. A user's end is its earliest event, or else its latest time."""
    event_level: Cell = Field(None, description="The level of an event, if `event` is a column of levels.")
    at: list[float] = Field(min_length=2)
    """Edges of the periods, which rise; the first one is where follow-up begins. A period holds its lower edge. Events
    from the last edge on do not count; samples before the first one are left out."""
    by: str | None = Field(None, description="Column of declared levels: groups to compare, by a user's first level.")
    censoring: Literal["actuarial", "period_end"] = "actuarial"
    """When people without an event leave: anywhere in a period, so that they are at risk in half of it (actuarial); or
    at its end (period_end), as in the Kaplan-Meier estimate."""

    def _edges(self, time: Column) -> Vector:
        edges = votes.checked_edges("ask.at", self.at, time)
        assert time.range is not None
        if edges[0] < time.range[0] or edges[-1] > time.range[1]:
            raise BadInput(
                f"ask.at = {self.at}: an edge lies outside of data.ranges.{time.name} = {list(time.range)}, into which "
                "times are clipped; leave it out, or declare a wider range"
            )
        return edges

    def _event(self, facts: Facts) -> tuple[Column, int]:
        """Return the column of events, and the number of the level of an event."""
        if self.event_level is None:
            column = facts.columns.get(self.event)
            if column is not None and column.range is None:
                raise BadInput(
                    f"ask.event = {self.event!r}: the column holds levels; name that of an event: event_level"
                )
            column = facts.column("ask.event", self.event, numbers=True)
            if column.range != (0.0, 1.0):
                raise BadInput(
                    f"ask.event = {self.event!r}: an event is 1 and none is 0, so declare data.ranges.{self.event} = "
                    "[0, 1]; or declare levels under data.categorical, and name that of an event: event_level"
                )
            return column, 1
        column = facts.column("ask.event", self.event, numbers=False)
        return column, level_number("ask.event_level", self.event_level, column)

    def _groups(self, facts: Facts) -> tuple[str, ...]:
        return ("",) if self.by is None else facts.column("ask.by", self.by, numbers=False).levels

    def width(self, facts: Facts) -> int:
        self._edges(facts.column("ask.time", self.time, numbers=True))
        self._event(facts)
        return len(self._groups(facts)) * (2 * len(self.at) - 1) + 1

    def rows(self, block: Block, facts: Facts) -> Rows:
        time, (event, level) = facts.column("ask.time", self.time, numbers=True), self._event(facts)
        assert time.range is not None
        last = len(self.at) - 1  # the number of periods, and of one more that never ends
        periods = votes.bin_codes(block, time, np.append(self._edges(time), time.range[1]))
        if event.range is None:
            states = votes.level_codes(block, event)
        else:
            cells = votes.units(block, event)
            states = np.where(np.isnan(cells), -1, cells > 0.5)
        usable, starts = (periods >= 0) & (states >= 0), block.offsets[:-1]
        hit = np.minimum.reduceat(np.where(usable & (states == level), periods, last), starts)
        left = np.maximum.reduceat(np.where(usable, periods, -1), starts)
        cells = np.where(hit < last, hit, last + left)  # K of events, K of people who left, one of the last edge
        groups, there = self._group_of_users(block, facts)
        rows = np.zeros((block.users, self.width(facts)))
        rows[np.arange(block.users), np.where(there & (left >= 0), groups * (2 * last + 1) + cells, -1)] = 1.0
        return rows

    def _group_of_users(self, block: Block, facts: Facts) -> tuple[votes.Codes, NDArray[np.bool_]]:
        """Return the group (U,) of each user, by its first sample that has one, and whether it has any."""
        if self.by is None:
            return np.zeros(block.users, dtype=np.int64), np.ones(block.users, dtype=bool)
        column = facts.column("ask.by", self.by, numbers=False)
        codes, count = votes.level_codes(block, column), len(column.levels)
        none = block.samples * count
        places = np.where(codes >= 0, np.arange(block.samples) * count + codes, none)
        first = np.minimum.reduceat(places, block.offsets[:-1])
        return first % count, first < none

    def _totals(self, group: int, cells: int) -> tuple[Rows, Rows]:
        """Return (K, M) twice: rows that add up cells to the events, and to the people at risk, of each period."""
        k = len(self.at) - 1
        events, at_risk = np.zeros((2, k, cells))
        own, later = slice(group * (2 * k + 1), (group + 1) * (2 * k + 1)), np.triu(np.ones((k, k)))
        events[:, own] = np.eye(k, 2 * k + 1)
        part = 0.5 * np.eye(k) if self.censoring == "actuarial" else 0.0
        at_risk[:, own] = np.hstack([later, later - part, np.ones((k, 1))])
        return events, at_risk

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        groups, found = self._groups(facts), []
        totals = [self._totals(group, len(sums.values)) for group in range(len(groups))]
        for group, (events, at_risk) in zip(groups, totals, strict=True):
            found += self._of_group(f"{group}, " if self.by else "", sums, events, at_risk, facts)
        if (degrees := len(groups) - 1) > 0:
            chi = log_rank(sums, *map(np.array, zip(*totals, strict=True)))
            tests = {f"log-rank chi-square, df {degrees}": chi, "log-rank p-value": float(chdtrc(degrees, chi))}
            found += [self._said(name, (value, *_NO_INTERVAL), math.nan, "test") for name, value in tests.items()]
        return found

    def _of_group(self, name: str, sums: Sums, events: Rows, at_risk: Rows, facts: Facts) -> list[Answer]:
        """Return the answers about one group: shares at the edges, median and restricted mean."""
        time = facts.column("ask.time", self.time, numbers=True)
        edges, unit = self._edges(time), time.unit or f"units of {time.name}"
        shares, slopes = curve(sums, events, at_risk)
        parts, people = [_variances(sums, slope) for slope in slopes], np.append(math.inf, at_risk @ sums.values)
        bands: list[tuple[float, float, float]] = []
        for share, both, m in zip(shares, parts, people, strict=True):  # no share exceeds an earlier one
            bands.append(band(share, *both, m) if math.isfinite(share) else (math.nan, 0.0, bands[-1][2]))
        found = [
            self._said(f"{name}at {edge:.10g}", one, math.sqrt(sum(both)), "share of users")
            for edge, one, both in zip(edges, bands, parts, strict=True)
        ]
        middle, (start, end) = median(edges, *np.transpose(bands)), edges[[0, -1]]
        error = (middle[2] - middle[1]) / (2 * NORMAL_95)
        found.append(self._said(f"{name}median up to {end:.10g}", middle, error, unit))
        weights = np.convolve(np.diff(edges), [0.5, 0.5])  # of the trapezoid rule
        mean = Estimated(float(weights @ shares), math.sqrt(sum(_variances(sums, weights @ slopes))))
        level, found_mean = f"{name}mean from {start:.10g} to {end:.10g}", mean.interval(0.0, float(end - start))
        return [*found, self._said(level, found_mean, mean.error, unit)]

    def _said(self, level: str, found: tuple[float, float, float], error: float, unit: str) -> Answer:
        event = self.event if self.event_level is None else f"{self.event} = {self.event_level}"
        return Answer(self.name, event, level, found[0], error, *found[1:], unit)

    def doubts(self, deviation: float, users: int, facts: Facts) -> Iterator[str]:
        """See `Statistic`."""
        cells, groups = self.width(facts), len(self._groups(facts))
        sums = Sums(np.zeros(cells), deviation, float(users) if facts.users_known else None)
        least = _AT_RISK * max(math.sqrt(sums.noise(row)) for row in self._totals(0, cells)[1])
        if 4 * least * groups > users:
            of = " of a group" if self.by else ""
            yield (
                f"survival of {self.event}: noise hides it from the first period on in which fewer than {least:.0f} "
                f"people{of} are followed: ask for fewer periods{' or groups' if self.by else ''}, for less beside it, "
                "or raise privacy.epsilon"
            )


def _known(sums: Sums, at_risk: Vector) -> bool:
    """Return whether the number of people at risk stands out of its noise."""
    return float(at_risk @ sums.values) > max(_AT_RISK * math.sqrt(sums.noise(at_risk)), 1e-9)


def _variances(sums: Sums, slope: Vector) -> tuple[float, float]:
    """Return the variances of a number with these derivatives (M,) in the cells: of its noise, and of people."""
    if not np.isfinite(slope).all():
        return math.inf, 0.0
    return sums.noise(slope), max(float(slope**2 @ sums.values), 0.0)


def curve(sums: Sums, events: Rows, at_risk: Rows) -> tuple[Vector, Rows]:
    """Return the shares (K + 1,) without an event at each edge, and their derivatives (K + 1, M) in the cells.

    They are NaN from the first period on whose people at risk drown in noise. ``events`` and ``at_risk`` (K, M) add up
    the cells of each period.
    """
    shares, slopes = np.full(len(events) + 1, np.nan), np.full((len(events) + 1, len(sums.values)), np.nan)
    shares[0], slopes[0] = 1.0, 0.0
    for k, (event, risk) in enumerate(zip(events, at_risk, strict=True)):
        if not _known(sums, risk):
            break
        people = float(risk @ sums.values)
        hazard = float(event @ sums.values) / people
        shares[k + 1] = shares[k] * (1.0 - hazard)
        slopes[k + 1] = (1.0 - hazard) * slopes[k] - shares[k] * (event - hazard * risk) / people
    return shares, slopes


def band(share: float, noise: float, spread: float, people: float) -> tuple[float, float, float]:
    """Return a share S of people with its interval: each T with ``(S - T)^2 <= z^2 (noise + T (1 - T) / m)``.

    The variance of S is that of the noise and the ``spread`` of people, as great as among m of them without censoring
    (Rothman 1978): ``m = S (1 - S) / spread``, or if that is none, the number of ``people`` at risk. Noise can leave S
    near 1 or beyond, where an interval on the scale of log(-log S) misses more often than it says.
    """
    m = share * (1.0 - share) / spread if spread > 0.0 and 0.0 < share < 1.0 else people
    wide = NORMAL_95**2 / m
    middle = (share + wide / 2) / (1.0 + wide)
    reach = math.sqrt(max(middle**2 - (share**2 - NORMAL_95**2 * noise) / (1.0 + wide), 0.0))
    estimate, low, high = (min(max(one, 0.0), 1.0) for one in (share, middle - reach, middle + reach))
    return estimate, min(low, estimate), max(high, estimate)


def median(edges: Vector, shares: Vector, lows: Vector, highs: Vector) -> tuple[float, float, float]:
    """Return the time at which half of the people have had the event, and where both ends of the band cross one half.

    Between edges (K + 1,) all curves are straight. Whatever lies beyond the last edge is that edge.
    """

    def crossed(values: Vector, after: int) -> float:
        if after == len(values):
            return float(edges[-1])
        part = (values[after - 1] - 0.5) / (values[after - 1] - values[after])
        return float(edges[after - 1] + part * (edges[after] - edges[after - 1]))

    def first(values: Vector) -> float:
        return crossed(values, int(np.append(values < 0.5, True).argmax()))

    seen = int(np.isfinite(shares).sum())
    estimate = first(shares) if seen == len(shares) or (shares[:seen] < 0.5).any() else math.nan
    return estimate, first(lows), crossed(highs, int(np.flatnonzero(highs >= 0.5)[-1]) + 1)


def log_rank(sums: Sums, events: Array, at_risk: Array) -> float:
    """Return the log-rank chi-square of G groups, whose totals are (G, K, M); NaN if too few people are at risk.

    The squares of observed less expected events are measured by their hypergeometric covariance (Mantel 1966) and that
    of their noise. It ends before the first period whose people at risk in all groups drown in noise.
    """
    known = np.array([_known(sums, risk) for risk in at_risk.sum(axis=0)])
    k = len(known) if known.all() else int(known.argmin())
    if k == 0:
        return math.nan
    events, at_risk = events[:, :k], at_risk[:, :k]
    all_events, all_risk = events.sum(axis=0), at_risk.sum(axis=0)
    total, people = all_events @ sums.values, all_risk @ sums.values
    share = at_risk @ sums.values / people
    more = (events @ sums.values - share * total).sum(axis=1)
    slopes = events.sum(axis=1) - share @ all_events + (share * total / people) @ all_risk
    slopes -= np.einsum("k,gkm->gm", total / people, at_risk)
    if sums.whole is not None:
        slopes -= slopes.mean(axis=1, keepdims=True)
    spread = total * np.maximum(people - total, 0.0) / np.maximum(people - 1.0, 1.0)
    covariance = np.diag(share @ spread) - (share * spread) @ share.T + sums.deviation**2 * slopes @ slopes.T
    more, covariance = more[:-1], covariance[:-1, :-1]  # all groups' add up to zero
    if np.linalg.eigvalsh(covariance)[0] <= 1e-9:
        return math.nan
    return float(more @ np.linalg.solve(covariance, more))
