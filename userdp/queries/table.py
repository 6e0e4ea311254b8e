"""A query of a table as a problem that trains nothing: each user answers all statistics with one bounded row.

*Formal guarantees.* *Claim.* `TableQuery.user_shares` gives rows of l2 norm at most 1 for any data, and if users are
replaced, any two differ by sqrt(2) at most. So one Gaussian mechanism of sensitivity sqrt(2) (a user is replaced) or 1
(added or removed) covers all sums of a query together. *Why.* Each statistic's part has both properties
(`userdp.queries.votes`, and `held_to_bounds` for others). Part j is multiplied by sqrt(s_j), the s_j adding up to 1:
squares average. A factor
``1 - 2^-40`` covers the rounding of a row, so that the clip of a node never acts. A filter changes no sensitivity: the
rows are the statistic's own for another table, whose samples of a user are a function of that user's samples alone:
those that fit, or if none does, one without a cell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PlainValidator, SerializeAsAny, ValidationError
from scipy.sparse import csr_array, hstack

from userdp.accounting.checks import check_relation
from userdp.accounting.guarantee import Relation
from userdp.arrays.sparse_rows import AnyRows, Sparse, dense, placed_rows, sparse_rows
from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.data.shape import Column, Shape
from userdp.errors import BadInput
from userdp.problems import bounds
from userdp.problems.base import Problem
from userdp.problems.settings import ProblemSettings
from userdp.problems.shares import SharesProblem
from userdp.queries.answers import Answer, Sums
from userdp.queries.facts import Facts, fitting, told
from userdp.queries.registry import STATISTICS
from userdp.queries.statistics import Quantiles, Statistic

_INSIDE = 1.0 - 2.0**-40


def held_to_bounds(one: Statistic, rows: AnyRows) -> AnyRows:
    """Return the rows of a statistic within the bounds that the proof above needs.

    For the statistics of this package `userdp.queries.votes` proves them. For others they are made to hold: entries
    that are negative or not finite become zero, and rows longer than 1 are shortened; no two such rows are further
    apart than sqrt(2). A row of a choice is one vote, and adds up to 1 at most.
    """
    if one.statistic in STATISTICS.places:
        return rows
    kept = np.maximum(np.nan_to_num(dense(rows), nan=0.0, posinf=0.0, neginf=0.0), 0.0)
    return np.asarray(kept / np.maximum(np.linalg.norm(kept, 1 if one.chooses else 2, axis=1, keepdims=True), 1.0))


class TableQuery(SharesProblem):
    """Statistics of users' samples.

    The released vector holds the noisy sums of all statistics but quantiles, one after the other, each in units of its
    rows; then three chosen intervals for each quantile.

    Attributes:
        asked: the statistics, sums first.
        relation: the neighbouring relation of the answers.
    """

    name = "table"
    fixed_order = True
    summary = "statistics of a table; it trains nothing"

    def __init__(self, asked: list[Any], relation: Relation, shape: Shape, most: int | None) -> None:
        self.relation: Relation = relation
        self.facts = Facts(shape, most, users_known=relation == "replace_one")
        # Of a user's samples with a number none may fit a filter.
        lacking = replace(shape, named=tuple(replace(column, complete=False) for column in shape.named))
        self._filtered = Facts(lacking, most, users_known=relation == "replace_one")
        cells = np.zeros((1, shape.columns), dtype=np.float32)
        numbers = [column for column in shape.named if column.range is not None]
        cells[:, [column.places[0] for column in numbers]] = np.nan
        self._blank = Block(cells, np.array([0, 1]))
        self.asked: list[Statistic] = sorted(asked, key=lambda one: one.chooses)
        for one in self.asked:
            fitting(self._blank, one.where, self.facts)  # raises for what is not declared, as the next line
            one.most(self.facts)
        self.widths = [one.width(self.facts_of(one)) for one in self.asked]
        self.sums = sum(width for one, width in zip(self.asked, self.widths, strict=True) if not one.chooses)
        if not any(self.widths):
            raise BadInput("the query asks for nothing but the number of users, which is public: ask something else")
        super().__init__(self.sums + 3 * sum(len(one.at) for one in self.quantiles), shape.columns)
        self._least = np.full(shape.columns, -1.0, dtype=np.float32)
        self._least[[column.places[0] for column in numbers]] = [column.least for column in numbers]

    @property
    def quantiles(self) -> list[Quantiles]:
        """The statistics that are choices."""
        return [one for one in self.asked if isinstance(one, Quantiles)]

    def share(self, chooses: bool) -> float:
        """Return the share of the budget that goes to choices, or to sums; an answer that is public takes none."""
        return sum(one for one, asked in zip(self.shares, self.asked, strict=True) if asked.chooses == chooses)

    @cached_property
    def shares(self) -> list[float]:
        """The share of the budget of each statistic."""
        own = [one.weight * (width > 0) for one, width in zip(self.asked, self.widths, strict=True)]
        return [weight / sum(own) for weight in own]

    @cached_property
    def factors(self) -> Vector:
        """(sums,) The factor of each entry of a row."""
        parts = zip(self.asked, self.shares, self.widths, strict=True)
        own = [np.full(width, np.sqrt(share / self.share(False))) for one, share, width in parts if not one.chooses]
        return np.concatenate([*own, np.zeros(0)])

    def bound(self, block: Block) -> tuple[Block, int]:
        """See `Problem.bound`: clip cells into their ranges. A cell that is no number stays NaN, and adds nothing."""
        bounds.check_columns(block, self.columns)
        cells = block.dense_features
        inside = np.clip(np.where(np.isinf(cells), np.nan, cells), self._least, np.float32(1.0))
        changed = np.any((inside != cells) & ~np.isnan(cells), axis=1)
        return Block(inside, block.offsets, None, block.usable), int(np.count_nonzero(changed))

    def facts_of(self, one: Statistic) -> Facts:
        """Return the public facts of a statistic: under a filter no column is sure to have a number of each user."""
        return self._filtered if one.where else self.facts

    def rows(self, one: Statistic, block: Block) -> AnyRows:
        """Return (U, width) the rows of a statistic, from the samples that fit its filter."""
        facts = self.facts_of(one)
        if not one.where:
            return one.rows(block, facts)
        users, kept = block.thinned(fitting(block, one.where, facts))
        absent = one.absent(self._blank, facts)
        if one.chooses:
            own = absent if kept is None else one.rows(kept, facts)
            return placed_rows(own, users, block.users)
        rows = np.repeat(dense(absent), block.users, axis=0)
        if kept is not None:
            rows[users] = dense(one.rows(kept, facts))
        return rows

    def user_shares(self, block: Block) -> Rows:
        """See `SharesProblem`; the entries of choices are zero."""
        rows, place = np.zeros((block.users, self.dimension)), 0
        for one, width in zip(self.asked, self.widths, strict=True):
            if not one.chooses:
                where = slice(place, place := place + width)
                own = dense(held_to_bounds(one, self.rows(one, block)))
                np.multiply(own, self.factors[where] * _INSIDE, out=rows[:, where])
        return rows

    def user_ranks(self, block: Block) -> Sparse:
        """See `SharesProblem`."""
        parts: list[Any] = [csr_array(held_to_bounds(one, self.rows(one, block))) for one in self.quantiles]
        found = hstack(parts, format="csr")
        return sparse_rows(_INSIDE * found.data, found.indices, found.indptr, found.shape[1])

    def doubts(self, deviation: float, users: int) -> tuple[str, ...]:
        """Warn of answers that noise of that standard deviation on each released sum will hide."""
        places = np.cumsum(self.widths) - self.widths
        told = zip(self.asked, places, self.widths, strict=True)
        noises = ((one, deviation / self.factors[place]) for one, place, width in told if width and not one.chooses)
        return tuple(doubt for one, noise in noises for doubt in one.doubts(noise, users, self.facts_of(one)))

    def answers(self, released: Vector, deviation: float, users: int) -> list[Answer]:
        """Return all answers.

        Args:
            released: (p,) what was released.
            deviation: standard deviation of the noise on each released sum.
            users: n, the public number of users, or of places.
        """
        found, place = [], 0
        for one, width in zip(self.asked, self.widths, strict=True):
            if isinstance(one, Quantiles):
                chosen = released[place : (place := place + 3 * len(one.at))]
                sums = Sums(chosen, 0.0, None)
            else:
                factor = self.factors[place] * _INSIDE if width else 1.0
                known = float(users) if self.relation == "replace_one" and one.whole else None
                noisy = released[place : (place := place + width)] / factor
                sums = Sums.of(noisy, deviation / factor, known)
            own = one.answers(sums, users, self.facts_of(one))
            found += [replace(answer, where=told(one.where, self.facts)) for answer in own]
        return found


def _asked(one: Any) -> Statistic:
    """Make a statistic of its keys; the model of a query's file has checked them."""
    if isinstance(one, Statistic):
        return one
    return STATISTICS[one["statistic"]].model_validate(one)


def table_query(
    ask: Sequence[Mapping[str, Any]],
    *,
    relation: Relation = "replace_one",
    max_samples: int | None = None,
    **declared: Any,
) -> TableQuery:
    """Return a query of tables that are at nodes, for a Flower app; all parties make it from the same declarations.

    Args:
        ask: the statistics, each with "statistic" and its keys, as in a query's file.
        relation: neighbours differ by a replaced user, or by one who is added or removed.
        max_samples: most samples of a user.
        declared: column arguments of `userdp.data.read_table`.

    Raises `BadInput`: a statistic or a key is unknown, or a value or a column does not suit.
    """
    from userdp.data.tables.columns import Columns  # noqa: PLC0415 -- loads PyArrow, which tables alone need

    check_relation(relation)
    found, most = [], None if max_samples is None else bounds.count("max_samples", max_samples)
    for number, one in enumerate(ask, start=1):
        if (name := one.get("statistic")) not in STATISTICS:
            raise BadInput(f"ask {number}: statistic = {name!r} is unknown; there are {', '.join(STATISTICS)}")
        try:
            found.append(_asked(one))
        except ValidationError as error:
            first = error.errors()[0]
            raise BadInput(f"ask {number}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return TableQuery(found, relation, Columns(**declared).shape, most)


Asked = Annotated[SerializeAsAny[Statistic], PlainValidator(_asked)]
"""A statistic of any kind."""


class TableSettings(ProblemSettings):
    """A query of a table, as `userdp query` writes it."""

    family: ClassVar[str] = "query"
    certificate: ClassVar[str] = "none: it has no loss"
    summary: ClassVar[str] = TableQuery.summary
    most_classes: ClassVar[int | None] = None

    kind: Literal["table"]
    ask: list[Asked] = Field(min_length=1, description="The statistics.")
    relation: Relation = "replace_one"
    """Neighbours differ by a replaced user, and the number of users is public; or by one who is added or removed, and
    only the number of places for users is public."""
    max_samples: int | None = Field(None, ge=1, description="Most samples of a user; that of [data].")

    def _make(self, shape: Shape, seed: int) -> Problem:
        if not shape.named and shape.bound == 1.0 and shape.codes_from is None and shape.sparsity is None:
            # Samples that are no table's, such as those of a population: columns are called by their numbers.
            named = tuple(Column(str(place), (place,), (-1.0, 1.0)) for place in range(shape.columns))
            shape = replace(shape, named=named)
        if not shape.named:
            raise BadInput("a query needs columns of numbers or levels: declare data.features or data.categorical")
        return TableQuery(list(self.ask), self.relation, shape, self.max_samples)
