"""The functions that make users' rows from their samples at a model, by name, with the known properties of their rows.

Pure functions (problem, x, block, **parameters) -> (U, length) rows, dense or sparse. `Computation` names one of them.
A package that brings a strategy may bring its functions, as entry points of the group ``userdp.row_functions``. A
message only names a function: a node computes what is here or was installed beside it, and nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import AnyRows, entries, scaled_rows, sparse_rows
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.kinds import Kinds
from userdp.nodes import answers, columns, embeddings, influence, moments, weighing
from userdp.nodes.local_training import local_update
from userdp.nodes.statistics import OCTAVES, octaves
from userdp.problems.base import Problem
from userdp.problems.shares import SharesProblem

Length = Callable[[int, Mapping[str, Array]], int]
"""The entries of a row, from a model's d parameters and a question's public arrays."""


@dataclass(frozen=True)
class RowFunction:
    """A function that makes one row per user.

    Attributes:
        rows: the function itself.
        length: entries of a row; None for one entry a parameter of the model, like gradients.
        sums_samples: whether a row is a sum over samples, so that a user without a usable one is zero like any other.
        groups_samples: whether such sums may also be taken over groups of samples.
        counts_usable: whether the rows count usable samples: the function sees the marks, and no value of a marked
            sample.
        keeps_zeros: whether rows are sparse if the problem's gradients are.
        fixed_order: whether a user's row has the same bits in every block within `userdp.arrays.fixed_order`, for
            problems of which that is true; `Computation.separate` then takes blocks, in that order.
        of_gradients: whether a row reads nothing of samples but the user's gradients, at one model or between two.
        from_wide: whether rows, however short, are made from one number for each parameter of the model.
        acute: whether any two users' rows differ by sqrt(2) times the clip at most: rows without negative inner
            products do, as ``||q - r||^2 <= ||q||^2 + ||r||^2``, and answers to queries of replaced users.
    """

    rows: Callable[..., AnyRows]
    length: Length | None = None
    sums_samples: bool = False
    groups_samples: bool = False
    counts_usable: bool = False
    keeps_zeros: bool = False
    fixed_order: bool = False
    of_gradients: bool = False
    from_wide: bool = False
    acute: bool = False


def row_function(name: str) -> RowFunction:
    """Return the function of that name; raise `BadInput` if there is none."""
    if name in ROW_FUNCTIONS:
        return ROW_FUNCTIONS[name]
    if name not in INSTALLED:
        raise BadInput(f"computation {name!r} is unknown; there are {', '.join(sorted([*ROW_FUNCTIONS, *INSTALLED]))}")
    return INSTALLED[name]


def _sample_sum(problem: Problem, x: Vector, block: Block) -> AnyRows:
    """Compute a user's sum of unclipped sample gradients, without the gradient of any single sample."""
    return scaled_rows(problem.user_gradients(x, block), block.sizes.astype(np.float64))


def _gradient_votes(problem: Problem, x: Vector, block: Block) -> AnyRows:
    """Compute half the sign of each entry of a user's gradient; infinite entries become NaN, so that they void it."""
    rows = problem.user_gradients(x, block)
    with np.errstate(invalid="ignore"):
        votes = np.sign(entries(rows)) / 2 + 0.0 * entries(rows)
    if isinstance(rows, csr_array):
        return sparse_rows(votes, rows.indices, rows.indptr, rows.shape[1])
    return votes.reshape(rows.shape)


def _query(problem: Problem) -> SharesProblem:
    if not isinstance(problem, SharesProblem):
        raise BadInput(f"problem.kind = {problem.name!r} is no query of a table: use userdp query")
    return problem


def _one_number(dimension: int, arrays: Mapping[str, Array]) -> int:
    return 1


def _two_numbers(dimension: int, arrays: Mapping[str, Array]) -> int:
    return 2


def _of_scaled_columns(entries: Callable[[int], int]) -> Length:
    return lambda dimension, arrays: entries(len(arrays["scales"]) if "scales" in arrays else dimension)


def _of_directions(entries: Callable[[int], int]) -> Length:
    return lambda dimension, arrays: entries(arrays["directions"].shape[1])


def _intervals(arrays: Mapping[str, Array]) -> int:
    return len(arrays["edges"]) + 1


ROW_FUNCTIONS: dict[str, RowFunction] = {
    "user_gradient": RowFunction(
        lambda problem, x, block: problem.user_gradients(x, block),
        keeps_zeros=True,
        fixed_order=True,
        of_gradients=True,
    ),
    "rough_user_gradient": RowFunction(
        lambda problem, x, block: problem.rough_user_gradients(x, block),
        keeps_zeros=True,
        fixed_order=True,
        of_gradients=True,
    ),
    "kept_gradient": RowFunction(
        embeddings.kept_gradient,
        embeddings.kept_of,
        keeps_zeros=True,
        fixed_order=True,
        of_gradients=True,
        from_wide=True,
    ),
    "row_weights": RowFunction(
        embeddings.row_weights,
        embeddings.rows_of,
        keeps_zeros=True,
        fixed_order=True,
        of_gradients=True,
        from_wide=True,
        acute=True,
    ),
    "gradient_and_weights": RowFunction(
        embeddings.gradient_and_weights, embeddings.both_of, keeps_zeros=True, fixed_order=True, of_gradients=True
    ),
    "gradient_votes": RowFunction(_gradient_votes, keeps_zeros=True, fixed_order=True, of_gradients=True),
    "sample_sum": RowFunction(_sample_sum, sums_samples=True, keeps_zeros=True, fixed_order=True),
    "clipped_sample_sum": RowFunction(
        lambda problem, x, block, sample_clip_norm: problem.sample_clipped_sums(x, block, sample_clip_norm),
        sums_samples=True,
        groups_samples=True,
        keeps_zeros=True,
        fixed_order=True,
    ),
    "local_update": RowFunction(local_update, fixed_order=True),
    "update_octaves": RowFunction(
        lambda problem, x, block, **training: octaves(local_update(problem, x, block, **training)),
        lambda dimension, arrays: OCTAVES,
        from_wide=True,
        acute=True,
        fixed_order=True,
    ),
    "column_scales": RowFunction(moments.column_scales, _of_scaled_columns(lambda d: 2 * d), fixed_order=True),
    "moment_size": RowFunction(moments.moment_size, _one_number, fixed_order=True),
    "second_moments": RowFunction(
        moments.second_moments, _of_scaled_columns(lambda d: d * (d + 1) // 2), acute=True, fixed_order=True
    ),
    "weighted_gradient": RowFunction(moments.weighted_gradient, fixed_order=True),
    "mean_target": RowFunction(moments.mean_target, _two_numbers, fixed_order=True),
    "events_and_time": RowFunction(moments.events_and_time, _two_numbers, fixed_order=True),
    "class_shares": RowFunction(
        moments.class_shares, lambda dimension, arrays: len(arrays["classes"]), acute=True, fixed_order=True
    ),
    "column_moments": RowFunction(columns.column_moments, keeps_zeros=True, acute=True, fixed_order=True),
    "scaled_gradient": RowFunction(
        columns.scaled_gradient, _of_scaled_columns(lambda d: d), keeps_zeros=True, fixed_order=True
    ),
    "sum_of_columns": RowFunction(columns.sum_of_columns, _two_numbers, fixed_order=True),
    "user_curvature": RowFunction(
        influence.user_curvature, _of_directions(lambda k: k * (k + 1) // 2), acute=True, fixed_order=True
    ),
    "weighted_slope": RowFunction(influence.weighted_slope, _of_directions(lambda k: k), fixed_order=True),
    "slope_sizes": RowFunction(
        influence.slope_sizes, lambda dimension, arrays: _intervals(arrays), acute=True, fixed_order=True
    ),
    "squared_influence": RowFunction(
        influence.squared_influence, lambda dimension, arrays: len(arrays["influence"]), acute=True, fixed_order=True
    ),
    "filled": RowFunction(moments.filled, _two_numbers, counts_usable=True, fixed_order=True),
    "improved": RowFunction(moments.improved, _one_number, fixed_order=True, of_gradients=True),
    "curvature_along": RowFunction(moments.curvature_along, _one_number, fixed_order=True, from_wide=True),
    "weighed_gradient": RowFunction(weighing.weighed_gradient, fixed_order=True),
    "steepness": RowFunction(weighing.steepness, _one_number, fixed_order=True),
    "loss_sizes": RowFunction(
        answers.loss_sizes, lambda dimension, arrays: _intervals(arrays), acute=True, fixed_order=True
    ),
    "loss_answer": RowFunction(answers.loss_answer, _one_number, fixed_order=True),
    "score_shares": RowFunction(
        answers.score_shares, lambda dimension, arrays: 2 * _intervals(arrays), acute=True, fixed_order=True
    ),
    "answers": RowFunction(answers.answers, answers.length, fixed_order=True),
    "user_shares": RowFunction(
        lambda problem, x, block: _query(problem).user_shares(block), counts_usable=True, fixed_order=True, acute=True
    ),
    "user_ranks": RowFunction(
        lambda problem, x, block, bins: _query(problem).user_ranks(block),
        lambda dimension, arrays: int(arrays["bins"].sum()),
        counts_usable=True,
        fixed_order=True,
        keeps_zeros=True,
        acute=True,
    ),
}


def _check(told: str, found: Any) -> None:
    if not isinstance(found, RowFunction):
        raise BadInput(f"{told} names a {type(found).__name__}, which is no RowFunction of userdp.nodes")


INSTALLED: Kinds[RowFunction] = Kinds({}, "userdp.row_functions", check=_check)
"""The functions of other packages, by name."""
