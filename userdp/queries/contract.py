"""The contract of statistics: a user's row is bounded and made of its own samples, and intervals cover the noise."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.guarantee import Relation
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Rows
from userdp.data.block import Block
from userdp.data.shape import Column, Shape
from userdp.errors import insist
from userdp.queries.answers import Answer, Sums
from userdp.queries.facts import Facts
from userdp.queries.statistics import Statistic
from userdp.queries.table import TableQuery, held_to_bounds
from userdp.settings import choices

USERS, MOST, DRAWS = 300, 3, 300
DEVIATION = 20.0  # of the noise on each sum: more than the choice of users moves it
COVERED = 0.9  # An interval of 95 % holds the answer without noise in fewer of the draws once in 20 000 checks.
_ROUNDING = 1e-9
SHAPE = Shape(
    5,
    has_target=False,
    bound=1.0,
    named=(
        Column("number", (0,), (0.0, 100.0)),
        Column("other", (1,), (0.0, 10.0), complete=True),
        Column("level", (2, 3, 4), levels=("a", "b", "c")),
    ),
)
"""The columns of the check: two of numbers, and one of levels."""


def check_statistic(kind: type[Statistic], /, **settings: Any) -> None:
    """Check a statistic, with its settings for the columns ``number``, ``other`` and ``level``.

    Raises:
        ContractBroken: the first check that fails, in a sentence that names the class and the remedy.
        BadInput: the settings do not suit the class or the columns.
    """
    relations: tuple[Relation, ...] = ("replace_one", "add_or_remove")
    for per, relation in product(choices(kind.model_fields["per"]), relations):
        one = kind.model_validate({"statistic": kind.__name__, "per": per, **settings})
        if one.width(Facts(SHAPE, MOST, users_known=relation == "replace_one")) == 0:
            continue  # its answer is public
        query = TableQuery([one], relation, SHAPE, MOST)
        block = query.bound(people(np.random.default_rng(0)))[0]
        rows = _rows(one, query, block)
        check_rows(one, query, block, rows)
        if not one.chooses and query.sums:
            check_answers(one, query, rows)


def check_rows(one: Statistic, query: TableQuery, block: Block, rows: Rows) -> None:
    """Check that each row is bounded, as far from any other as allowed, and the same without other users."""
    _insist(one, bool(np.isfinite(rows).all()), "has rows that are not finite: leave out cells that are no number")
    longest = float(np.linalg.norm(rows, axis=1).max())
    _insist(one, longest <= 1 + _ROUNDING, f"has a row of l2 norm {longest:.6g}: it may be 1 at most")
    if query.relation == "replace_one":
        apart = max(float(np.linalg.norm(row - rows, axis=1).max()) for row in rows)
        _insist(
            one,
            apart <= math.sqrt(2) + _ROUNDING,
            f"has two rows {apart:.6g} apart, and sqrt(2) is the most: let no entry be negative",
        )
    kept = np.allclose(rows, dense(held_to_bounds(one, rows)), rtol=0, atol=_ROUNDING)
    _insist(one, kept, "has negative entries, or votes of more than 1 together, which a query mends: shift or divide")
    for user in range(block.users):
        alone = _rows(one, query, block.part(user, user + 1))
        _insist(
            one,
            np.array_equal(alone[0], rows[user]),
            "has a row that changes with the other users of a block: compute each from its user's samples alone",
        )
    totals = rows.sum(axis=1)
    _insist(
        one,
        not one.whole or np.allclose(totals, 1.0),
        f"declares whole = True, and a row adds up to {totals[np.abs(totals - 1).argmax()]:.6g}: add `with_rest`",
    )


def check_answers(one: Statistic, query: TableQuery, rows: Rows) -> None:
    """Check that answers follow from the sums, lie in their intervals, and that these cover the noise."""
    known = float(len(rows)) if query.relation == "replace_one" and one.whole else None

    def answers(sums: NDArray[np.float64], deviation: float) -> list[Answer]:
        return one.answers(Sums.of(sums, deviation, known), len(rows), query.facts_of(one))

    exact = rows.sum(axis=0)
    truth = answers(exact, 0.0)
    _insist(one, len(truth) > 0, "gives no answer: return at least one `Answer`")
    rng = np.random.default_rng(1)
    held = np.zeros(len(truth))
    for _ in range(DRAWS):
        noisy = answers(exact + rng.normal(0.0, DEVIATION, exact.shape), DEVIATION)
        _insist(one, len(noisy) == len(truth), "gives more or fewer answers under noise: let their number be public")
        for place, (answer, true) in enumerate(zip(noisy, truth, strict=True)):
            inside = math.isnan(answer.estimate) or answer.low <= answer.estimate <= answer.high
            _insist(one, inside, f"estimates {answer.estimate:.6g} outside of [{answer.low:.6g}, {answer.high:.6g}]")
            held[place] += math.isnan(true.estimate) or answer.low <= true.estimate <= answer.high
    for answer, times in zip(truth, held, strict=True):
        _insist(
            one,
            bool(times >= COVERED * DRAWS),
            f"has intervals of {answer.level or 'its answer'} that hold the answer without noise in {times:.0f} of "
            f"{DRAWS} draws: compute `standard_error` from `Sums.noise`, as `Sums.ratio` and `Sums.total` do",
        )


def _rows(one: Statistic, query: TableQuery, block: Block) -> Rows:
    rows = dense(query.rows(one, block))
    shape = (block.users, one.width(query.facts_of(one)))
    _insist(one, rows.shape == shape, f"has rows of shape {rows.shape}, and {shape} is announced: let `width` agree")
    return rows


def people(rng: np.random.Generator) -> Block:
    """Return users with usual samples, with one extreme cell, with none that is a number, and with far too many."""
    cells = list(_samples(rng))
    sizes = [len(each) for each in cells]
    return Block(np.concatenate(cells), np.concatenate([[0], np.cumsum(sizes)]))


def _samples(rng: np.random.Generator) -> Iterator[NDArray[np.float32]]:
    odd = (-1.0, 1.0, 0.0, math.nan, math.inf, -math.inf, 7.0)
    for user in range(USERS):
        size = 30 if user % 60 == 0 else int(rng.integers(1, MOST + 1))
        cells = np.zeros((size, 5), dtype=np.float32)
        cells[:, :2] = rng.uniform(-1, 1, (size, 2))
        if user % 3 == 0:
            cells[:, 0] = odd[user // 3 % len(odd)]
        levels = rng.integers(-1, 3, size)
        cells[levels >= 0, 2 + levels[levels >= 0]] = 1.0
        yield cells


def _insist(one: Statistic, held: bool, fault: str) -> None:
    insist(one, held, f"(per = {one.per!r}) {fault}")
