"""Variance between people and within them: how much of what samples differ by is a matter of whose they are.

A user with k samples x, two or more, of mean m and variance v (divisor k - 1), has over its pairs of samples x, y the
means ``r = (x y, (1 - x)(1 - y), (x - y)^2, x (1 - x) + y (1 - y))``, which are not negative and add up to 1. They hold
``v = r_3 / 2``, the mean square ``s = r_1 + r_3 / 2`` and ``m = s + r_4 / 2``. Given the user, x y has the mean of the
square of the user's true mean, whatever k is. So with means over users, the variance within people is ``E v``, that of
one sample of one user is ``E s - (E m)^2``, and what they differ by, ``Var m - E v / k``, is that between people.

*Formal guarantees.* *Claim.* A row of `VarianceComponents` has no negative entry, and its entries add up to 1; so its
l2 norm is at most 1, and no two rows are further apart than sqrt(2). It follows from its own user's samples alone, to
the last bit. *Why.* It is ``r r^T``, whose entries add up to ``(r_1 + ... + r_4)^2 = 1``, an entry for each pair; with
``per = "sample"`` times the share of samples. One more entry is what is left to 1: users without two samples are there.
"""

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.queries import votes
from userdp.queries.answers import NARROW, REMEDY, TOLD_APART, UNKNOWN, Answer, Estimated, Sums
from userdp.queries.facts import Facts
from userdp.queries.statistics import OfNumbers

_FIRST, _SECOND = np.triu_indices(4)
_OWN, _SQUARE = np.array([0.0, 0.0, 0.5, 0.0]), np.array([1.0, 0.0, 0.5, 0.0])
_MEAN, _ONES = np.array([1.0, 0.0, 0.5, 0.5]), np.ones(4)


def pair_means(block: Block, values: Vector) -> tuple[Rows, Vector]:
    """Return r (U, 4) of each user's samples, values (N,) in [0, 1] or NaN, and how many samples it has (U,).

    Users without two such samples have zeros.
    """
    usable = ~np.isnan(values)
    owners, x = np.repeat(np.arange(block.users), block.sizes)[usable], np.clip(values[usable], 0.0, 1.0)
    sizes = np.bincount(owners, minlength=block.users).astype(np.float64)

    def mean(of: Vector) -> Vector:
        return np.asarray(np.bincount(owners, of, minlength=block.users) / np.maximum(sizes, 1.0))

    own = mean((x - mean(x)[owners]) ** 2) * sizes / np.maximum(sizes - 1.0, 1.0)
    parts = [np.maximum(mean(one**2) - own, 0.0) for one in (x, 1.0 - x)] + [2.0 * own, 2.0 * mean(x * (1.0 - x))]
    whole = np.where(sizes > 1, parts[0] + parts[1] + parts[2] + parts[3], np.inf)
    return np.stack([part / whole for part in parts], axis=1), sizes


def on_products(c: Vector) -> Vector:
    """Return the coefficients (11,) of ``c.r`` on a row."""
    return np.append(0.5 * (c[_FIRST] + c[_SECOND]), 0.0)


class VarianceComponents(OfNumbers):
    """The variance of people's own true means, that of samples about them, and the share of the first in the sum (ICC).

    Only users with two numbers or more have a vote: of others nothing tells the two apart.
    """

    whole: ClassVar[bool] = True

    def width(self, facts: Facts) -> int:
        self.column(facts)
        if facts.most == 1:
            raise BadInput(f"data.max_samples = 1: {self.name} needs two samples of a user or more; raise it")
        return len(_FIRST) + 1

    def rows(self, block: Block, facts: Facts) -> Rows:
        means, sizes = pair_means(block, votes.units(block, self.column(facts)))
        most = self.most(facts)
        part = (sizes > 1) * (1.0 if most is None else sizes / np.maximum(block.sizes, most))
        twice = np.where(_FIRST == _SECOND, 1.0, 2.0)
        products = part[:, None] * (twice * means[:, _FIRST] * means[:, _SECOND])
        return np.column_stack([products, 1.0 - part])

    def doubts(self, deviation: float, users: int, facts: Facts) -> Iterator[str]:
        """See `Statistic`."""
        # Near an end of the range, where noise moves a variance most.
        least = math.sqrt(TOLD_APART * deviation / users * float(np.linalg.norm(on_products(_SQUARE))))
        if least > NARROW:
            yield (
                f"{self.name} of {self.of}: noise hides how people agree unless all samples have a standard deviation "
                f"of about {100 * least:.2g} % of the column's range, if they lie near an end of it: {REMEDY}"
            )

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        column = self.column(facts)
        assert column.range is not None
        width, unit = column.range[1] - column.range[0], f"({column.unit or f'units of {column.name}'})^2"
        between, within, share = components(sums)
        pairs = (("between users", between, 0.25), ("within users", within, 0.5))
        found = [
            self.told(level, one.scaled(width**2).interval(0.0, most * width**2), one.error * width**2, unit)
            for level, one, most in pairs
        ]
        return [*found, self.told("share between users (ICC)", share.interval(0.0, 1.0), share.error, "share")]


def components(sums: Sums) -> tuple[Estimated, Estimated, Estimated]:
    """Return the variance between users and within them, of numbers in [0, 1], and the share of the first (ICC).

    To first order each moves by some c.r of a user, whose mean is zero: of the products in a row, ``(c.r)^2`` and c.r
    itself are sums.
    """
    bottom = on_products(_ONES)
    if not sums.known(bottom):
        return UNKNOWN, UNKNOWN, UNKNOWN
    users = float(bottom @ sums.values)

    def mean(c: Vector) -> float:
        return float(on_products(c) @ sums.values) / users

    def error(c: Vector) -> float:
        return sums.error(on_products(c), np.append(c[_FIRST] * c[_SECOND], 0.0), bottom)

    own, centre, square = mean(_OWN), mean(_MEAN), mean(_SQUARE)
    within_moves = _OWN - own * _ONES
    total_moves = _SQUARE - square * _ONES - 2 * centre * (_MEAN - centre * _ONES)
    # The square of a noisy mean is too large by its variance.
    total = square - centre**2 + error(_MEAN - centre * _ONES) ** 2
    between, within = Estimated(total - own, error(total_moves - within_moves)), Estimated(own, error(within_moves))
    if total <= max(TOLD_APART * math.sqrt(sums.noise(on_products(total_moves))) / users, 1e-12):
        return between, within, UNKNOWN
    share_moves = (own / total * total_moves - within_moves) / total
    return between, within, Estimated(1.0 - own / total, error(share_moves))
