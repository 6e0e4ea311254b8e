"""Statistics that add up: users' bounded sums, and shares of levels."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from userdp.arrays.types import Rows
from userdp.data.block import Block
from userdp.queries import votes
from userdp.queries.answers import Answer, Sums
from userdp.queries.facts import Facts
from userdp.queries.statistics import Counts, OfNumbers


class Sum(OfNumbers):
    """The sum over users of each user's own sum, or over samples of each number, clipped into [-bound, bound].

    *Formal guarantees.* *Claim.* A row has no negative entry, and its entries add up to 1. *Why.* They are the positive
    and the negative part of one number in [-1, 1], one of which is 0, or means of such, and the rest; a range on one
    side of zero leaves a part out that is always 0.
    """

    whole: ClassVar[bool] = True
    bound: float = Field(gt=0, allow_inf_nan=False)
    """Largest sum of a user, or number of a sample, that counts, in the table's units; larger ones are clipped."""

    def _parts(self, facts: Facts) -> list[int]:
        low, high = self.column(facts).range or (0.0, 0.0)
        return [part for part, there in enumerate([high > 0, low < 0]) if there]

    def width(self, facts: Facts) -> int:
        return len(self._parts(facts)) + 1

    def rows(self, block: Block, facts: Facts) -> Rows:
        rows = votes.totals(block, self.column(facts), self.bound, self.most(facts))
        return self.with_rest(rows[:, self._parts(facts)])

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        column, parts = self.column(facts), self._parts(facts)
        signs = np.array([*(1.0 - 2.0 * part for part in parts), 0.0])
        largest = self.bound * (self.most(facts) or 1)
        one = sums.total(largest * signs)
        ends = one.interval(-largest * users * (1 in parts), largest * users * (0 in parts))
        return [self.told(None, ends, one.error, column.unit or f"units of {column.name}")]


class Shares(Counts):
    """The share of users at each of the declared levels, of all at one of them; a user's samples share one vote."""

    def answers(self, sums: Sums, users: int, facts: Facts) -> list[Answer]:
        return self.shares(sums, self.column(facts).levels)
