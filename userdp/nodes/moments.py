"""Computations that estimate coordinates for scores linear in features, and evaluate a model in them.

Columns are divided by public scales s. A user's matrix of second moments is ``H = mean b b^T`` of its scaled samples
``b = a / s``. A user whose H has a Frobenius norm beyond a public ``size`` weighs ``w = size / ||H||``, in H and in
gradients alike: that weight is the clip of H, so the curvature of the weighted loss is not underestimated.

A loss of K scores has K blocks of d parameters. All of them are about the same d columns, so columns, scales, H and
coordinates are of size d, and coordinates turn each block of a gradient.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.fixed_order import grams, product
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Problem
from userdp.problems.bounds import targets_of
from userdp.problems.by_period import Weigh
from userdp.problems.generalised_linear import GeneralisedLinear
from userdp.problems.in_coordinates import turned
from userdp.problems.linear_scores import QUIET, LinearScores
from userdp.problems.segments import CHUNK_BYTES, float64_parts, mean_block, user_averages, weighted_sums

Positions = NDArray[np.intp]
EVENTS_AND_TIME = np.sqrt([0.75, 0.25])  # Parts of a row's norm that `events_and_time` gives to each

PieceRows = Callable[[Array, Block], Array]
"""Makes one row (n, k) a sample from a piece's features (n, d), the intercept's 1 included, and the piece."""


def triangle(matrices: Array) -> Rows:
    """Return the upper triangles (U, p (p + 1) / 2) of symmetric matrices (U, p, p); l2 norms are Frobenius norms."""
    rows, columns, factors = upper_triangle(matrices.shape[-1])
    return np.asarray(matrices[:, rows, columns] * factors)


def symmetric(entries: Vector) -> Array:
    """Return the (p, p) symmetric matrix from the entries that `triangle` returns."""
    return mirrored(entries / upper_triangle(math.isqrt(2 * len(entries)))[2])


def mirrored(entries: Vector) -> Array:
    """Return the (p, p) symmetric matrix whose upper triangle has these entries, row by row."""
    p = math.isqrt(2 * len(entries))
    rows, columns, _ = upper_triangle(p)
    matrix = np.empty((p, p))
    matrix[rows, columns] = matrix[columns, rows] = entries
    return matrix


@lru_cache(maxsize=8)
def upper_triangle(p: int) -> tuple[Positions, Positions, Vector]:
    """Return rows, columns and factors of the entries of an upper triangle: off the diagonal each stands for two."""
    rows, columns = np.triu_indices(p)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2.0))


def column_scales(
    problem: Problem, x: Vector, block: Block, low: float, high: float, width: float, scales: Vector | float = 1.0
) -> Rows:
    """Compute for each user whether each feature, over its scale, exceeds ``low``, and its typical size if so.

    Returns (U, 2 d): d times 1/2 or -1/2, whether the root mean square over the user's samples exceeds ``low``; then
    its logarithm, scaled so that ``low`` (or less) is ``-width / 2`` and ``high`` (or more) ``width / 2``. A feature
    that does not exceed ``low`` counts as ``width / 2`` there: its part is known from the first half.
    """
    model = _dense_model(problem)
    squares = np.zeros((block.users, model.width))
    for users, part, features in _with_intercept(model, block):
        squares[users] += weighted_sums(features * features, part.offsets, np.ones(part.samples))
    lengths = np.sqrt(squares / block.sizes[:, None]) / scales
    present = lengths > low
    return np.hstack([np.where(present, 0.5, -0.5), width * np.where(present, held_log(lengths, low, high), 0.5)])


def moment_size(problem: Problem, x: Vector, block: Block, low: float, high: float, scales: Vector) -> Rows:
    """Compute (U, 1): the logarithm of each user's ``||H||``, from -1/2 up to ``low`` to 1/2 from ``high`` on.

    By period, of the geometric mean of its samples' `followed_sizes`.
    """
    model = by_period(problem)
    if model is None:
        return held_log(_sizes(problem, block, scales), low, high)[:, None]
    sums, counts = np.zeros((2, block.users))
    for users, part, features in float64_parts(block):
        at_risk = features[:, -1] > 0
        logs = np.where(at_risk, np.log(model.followed_sizes(features, np.diag(1 / scales))), 0.0)
        sums[users] += np.add.reduceat(logs, part.offsets[:-1])
        counts[users] += np.add.reduceat(at_risk, part.offsets[:-1], dtype=np.float64)
    return held_log(np.exp(sums / np.maximum(counts, 1)), low, high)[:, None]


def second_moments(problem: Problem, x: Vector, block: Block, scales: Vector, size: float = math.inf) -> Rows:
    """Compute (U, d (d + 1) / 2): `triangle` of each user's positive semidefinite H. Clipped to ``size`` it is w H.

    By period each sample weighs as much as `followed` says.
    """
    model = by_period(problem)
    weigh = None if model is None or size == math.inf else followed(model, size, np.diag(1 / scales))

    def rows(features: Array, part: Block) -> Array:
        scaled = features / scales
        return scaled if weigh is None else np.sqrt(weigh(features, part))[:, None] * scaled

    return np.asarray(summed_products(problem, block, rows, len(scales)) / block.sizes[:, None])


def by_period(problem: Problem) -> GeneralisedLinear | None:
    """Return the problem if it is one of hazards by period, else None."""
    return problem if isinstance(problem, GeneralisedLinear) and problem.periods is not None else None


def followed(model: GeneralisedLinear, size: float, turn: Array) -> Weigh:
    """Return weights of samples: size over their `GeneralisedLinear.followed_sizes`, at most 1.

    Weights of a user's own ``||H||`` would depend on how long it is at risk, and so on the outcome.
    """

    def weigh(features: Array, part: Block) -> Array:
        return np.asarray(size / np.maximum(model.followed_sizes(features, turn), size))

    return weigh


def summed_products(problem: Problem, block: Block, rows: PieceRows, width: int) -> Rows:
    """Compute (U, k (k + 1) / 2): the `triangle` of each user's sum of ``b b^T`` over rows b (N, k = ``width``)."""
    sums = np.zeros((block.users, width * (width + 1) // 2))
    for users, part, features in _with_intercept(_dense_model(problem), block):
        made, own = rows(features, part), sums[users]
        for members, samples in _of_equal_size(part):
            own[members] += triangle(grams(made[samples].transpose(0, 2, 1)))
    return sums


@QUIET
def weighted_gradient(
    problem: Problem, x: Vector, block: Block, size: float, scales: Vector, coordinates: Array
) -> Rows:
    """Compute (U, p): ``w T^T`` times each user's mean gradient by blocks, its weighted loss's derivative by z."""
    model, hazards = _dense_model(problem), by_period(problem)
    if hazards is not None:
        weigh = followed(hazards, size, np.diag(1 / scales))
        return turned(hazards.weighted_gradients(x, block, weigh), coordinates)
    weights = size / np.maximum(_sizes(problem, block, scales), size)
    return turned(weights[:, None] * dense(model.user_gradients(x, block)), coordinates)


def mean_target(problem: Problem, x: Vector, block: Block, low: float, high: float) -> Rows:
    """Compute (U, 2): each user's mean target, from -1/2 at ``low`` to 1/2 at ``high``, and its spread.

    The spread of a mean target that is a part t of the range is ``2 t (1 - t)``.
    """
    targets = np.clip(targets_of(block).astype(np.float64), low, high)
    share = (user_averages(targets, block) - low) / (high - low)
    return np.stack([share - 0.5, 2 * share * (1 - share)], axis=1)


def events_and_time(problem: Problem, x: Vector, block: Block) -> Rows:
    """Compute (U, 2) by period: whether a user has the event, and the share of periods at risk, each less 1/2.

    They are times sqrt(3) / 2 and 1/2, so that no row is longer than 1/2: events are rarer than periods at risk.
    """
    shares = cast(Array, problem.target_means(block))
    events = np.clip(shares[:, 0] * block.sizes, 0.0, 1.0)
    return (np.stack([events, np.clip(shares[:, 1], 0.0, 1.0)], axis=1) - 0.5) * EVENTS_AND_TIME


def filled(problem: Problem, x: Vector, block: Block) -> Rows:
    """Compute (U, 2), of norm 1/2 at most: halves of the shares of a user's samples that can be used and that cannot.

    A user without a usable sample has (-1/2, 0). The sum of both numbers is 1/2 for all others.
    """
    usable = np.ones(block.samples) if block.usable is None else block.usable.astype(np.float64)
    share = user_averages(usable, block)[:, None]
    return np.where(share > 0, np.hstack([share, 1 - share]), [-1.0, 0.0]) / 2


def class_shares(problem: Problem, x: Vector, block: Block, classes: Array) -> Rows:
    """Compute (U, K): the share of each of these classes (K,) among each user's samples; at most 1 in all."""
    targets = targets_of(block)
    return np.stack([user_averages((targets == one).astype(np.float64), block) for one in classes], axis=1)


def curvature_along(problem: Problem, x: Vector, block: Block, most: float, direction: Vector) -> Rows:
    """Compute (U, 1): the root of each user's curvature along a unit vector, from -1/2 at zero to 1/2 at ``most``."""
    distance = 1e-4 * (1.0 + float(np.linalg.norm(x)))
    near, far = (product(problem.user_gradients(at, block), direction) for at in (x, x + distance * direction))
    return np.asarray(np.sqrt(np.clip((far - near) / distance / most, 0.0, 1.0)) - 0.5)[:, None]


@QUIET
def improved(problem: Problem, x: Vector, block: Block, initial: Vector, most: float = 0.0) -> Rows:
    """Compute (U, 1): how much lower the model's average loss is for a user than that of the initial one.

    From -1/2, for ``most`` higher and beyond, to 1/2 for ``most`` lower; with a ``most`` of 0 which of both is lower.
    Where means suffice for gradients they suffice for this integral of gradients, which is then that of means.
    """
    block = mean_block(block) if problem.mean_sufficient else block
    now, before = _average_losses(problem, x, block), _average_losses(problem, initial, block)
    gained = np.where(now == before, 0.0, before - now)
    gained[np.isnan(gained)] = -np.inf  # what is not a number is worse than anything
    width = min(2 * most, np.finfo(np.float64).max)  # by which an infinite loss stays infinite
    return np.clip(gained / width if most > 0 else np.sign(gained), -0.5, 0.5)[:, None]


def _average_losses(problem: Problem, x: Vector, block: Block) -> Array:
    return user_averages(problem.sample_losses(x, block), block)


def _dense_model(problem: Problem) -> LinearScores:
    if not isinstance(problem, LinearScores):
        raise BadInput(f"problem.kind = {problem.name!r} is no generalised linear model on dense features")
    return problem


def _with_intercept(model: LinearScores, block: Block) -> Iterator[tuple[slice, Block, Array]]:
    """Yield (users, piece, its features (N, d) in float64, the intercept's 1 included)."""
    for users, part, features in float64_parts(block):
        yield users, part, np.column_stack([features, np.ones(part.samples)]) if model.intercept else features


def held_log(values: Array, low: float, high: float) -> Array:
    """Return the logarithm, from -1/2 at ``low`` and below to 1/2 at ``high`` and above."""
    return np.asarray(np.log(np.clip(values, low, high) / low) / math.log(high / low) - 0.5)


def norms_of_products(problem: Problem, block: Block, rows: PieceRows, width: int) -> Array:
    """Compute the norms (U,) of users' mean ``b b^T``: from products of samples if they are fewer than columns."""
    squares, model = np.zeros(block.users), _dense_model(problem)
    # Of users who may come in several pieces only sums over samples can be put together.
    fewest = min(width, CHUNK_BYTES // (block.dense_features.itemsize * model.columns))
    many = np.flatnonzero(block.sizes >= fewest)
    sums = np.zeros((len(many), width * (width + 1) // 2))
    for users, part, features in _with_intercept(model, block):
        made, numbers = rows(features, part), np.arange(block.users)[users]
        for members, samples in _of_equal_size(part):
            own = made[samples]
            few = block.sizes[numbers[members]] < fewest
            squares[numbers[members[few]]] = np.square(grams(own[few])).sum(axis=(1, 2))
            rest = np.searchsorted(many, numbers[members[~few]])
            sums[rest] += triangle(grams(own[~few].transpose(0, 2, 1)))
    squares[many] = np.square(sums).sum(axis=1)
    return np.asarray(np.sqrt(squares) / block.sizes)


def _sizes(problem: Problem, block: Block, scales: Vector) -> Array:
    """Compute each user's ``||H||`` (U,)."""
    return norms_of_products(problem, block, lambda features, _: features / scales, len(scales))


def _of_equal_size(part: Block) -> Iterator[tuple[Positions, Positions]]:
    """Yield (positions of users (g,), their samples' positions (g, m)): each pair takes one matrix product."""
    for size in np.unique(part.sizes):
        members = np.flatnonzero(part.sizes == size)
        yield members, part.offsets[members, None] + np.arange(size)
