"""The functions that make users' rows from their samples at a model, by name, with the known properties of their rows.

Pure functions (problem, x, block, **parameters) -> (U, length) rows, dense or sparse. `Computation` names one of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from userdp.arrays.sparse_rows import AnyRows, scaled_rows
from userdp.arrays.types import Array, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.nodes import answers, moments, truncated
from userdp.nodes.local_training import local_update
from userdp.problems.base import Problem

Length = Callable[[int, Mapping[str, Array]], int]
"""The entries of a row, from a model's d parameters and a question's public arrays."""


@dataclass(frozen=True)
class RowFunction:
    """A function that makes one row a user.

    Attributes:
        rows: the function itself.
        length: entries of a row; None for one entry a parameter of the model, like gradients.
        sums_samples: whether a row is a sum over samples: an unusable one adds nothing, and the others remain.
        groups_samples: whether such sums may also be taken over groups of samples.
        counts_usable: whether the rows count usable samples: the function sees the marks, and no value of a marked
            sample.
        keeps_zeros: whether rows are sparse if the problem's gradients are.
        acute: whether no two users' rows have a negative inner product, so that ``||q - r||^2 <= ||q||^2 + ||r||^2``.
    """

    rows: Callable[..., AnyRows]
    length: Length | None = None
    sums_samples: bool = False
    groups_samples: bool = False
    counts_usable: bool = False
    keeps_zeros: bool = False
    acute: bool = False


def row_function(name: str) -> RowFunction:
    """Return the function of that name; raise `BadInput` if there is none."""
    if name not in ROW_FUNCTIONS:
        raise BadInput(f"computation {name!r} is unknown; there are {', '.join(sorted(ROW_FUNCTIONS))}")
    return ROW_FUNCTIONS[name]


def _sample_sum(problem: Problem, x: Vector, block: Block) -> AnyRows:
    """Compute a user's sum of unclipped sample gradients, without the gradient of any single sample."""
    return scaled_rows(problem.user_gradients(x, block), block.sizes.astype(np.float64))


def _one_number(dimension: int, arrays: Mapping[str, Array]) -> int:
    return 1


def _of_scaled_columns(entries: Callable[[int], int]) -> Length:
    return lambda dimension, arrays: entries(len(arrays["scales"]) if "scales" in arrays else dimension)


def _of_each(array: str, more: int = 0, times: int = 1) -> Length:
    return lambda dimension, arrays: times * (len(arrays[array]) + more)


ROW_FUNCTIONS: dict[str, RowFunction] = {
    "user_gradient": RowFunction(lambda problem, x, block: problem.user_gradients(x, block), keeps_zeros=True),
    "rough_user_gradient": RowFunction(
        lambda problem, x, block: problem.rough_user_gradients(x, block), keeps_zeros=True
    ),
    "sample_sum": RowFunction(_sample_sum, sums_samples=True, keeps_zeros=True),
    "clipped_sample_sum": RowFunction(
        lambda problem, x, block, sample_clip_norm: problem.sample_clipped_sums(x, block, sample_clip_norm),
        sums_samples=True,
        groups_samples=True,
        keeps_zeros=True,
    ),
    "truncated_sample_sum": RowFunction(truncated.truncated_sample_sum, sums_samples=True),
    "truncated_user_gradient": RowFunction(truncated.truncated_user_gradient),
    "truncated_regression_gradient": RowFunction(
        lambda problem, x, block, threshold: truncated.truncated_gradients(x, block, threshold)
    ),
    "truncated_regression_sum": RowFunction(
        lambda problem, x, block, threshold: truncated.truncated_gradients(x, block, threshold) * block.sizes[:, None],
        sums_samples=True,
    ),
    "truncated_data_gradient": RowFunction(truncated.truncated_data_gradient),
    "truncated_data_sum": RowFunction(truncated.truncated_data_sum, sums_samples=True),
    "local_update": RowFunction(local_update),
    "column_scales": RowFunction(moments.column_scales, _of_scaled_columns(lambda d: 2 * d)),
    "moment_size": RowFunction(moments.moment_size, _one_number),
    "second_moments": RowFunction(moments.second_moments, _of_scaled_columns(lambda d: d * (d + 1) // 2), acute=True),
    "weighted_gradient": RowFunction(moments.weighted_gradient),
    "mean_target": RowFunction(moments.mean_target, _one_number),
    "class_shares": RowFunction(moments.class_shares, _of_each("classes"), acute=True),
    "filled": RowFunction(moments.filled, _one_number, counts_usable=True),
    "improved": RowFunction(moments.improved, _one_number),
    "curvature_along": RowFunction(moments.curvature_along, _one_number),
    "loss_changes": RowFunction(moments.loss_changes, _of_each("models")),
    "loss_sizes": RowFunction(answers.loss_sizes, _of_each("edges", more=1), acute=True),
    "loss_answer": RowFunction(answers.loss_answer, _one_number),
    "score_shares": RowFunction(answers.score_shares, _of_each("edges", more=1, times=2), acute=True),
    "answers": RowFunction(answers.answers, answers.length),
}
