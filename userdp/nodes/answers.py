"""Answers of held-out users about a released model, one bounded row each.

*Formal guarantees.* Every row follows from its user's samples, the model and public numbers alone, and its l2 norm is
at most the one that is named: 1 for a histogram (shares of one whole), half the root of the number of means for centred
ones, `longest` for `answers`. The node clips to the same norm, so `Computation.sensitivity` bounds their sums, for any
data. Shares are not negative, so two histograms never point apart (`RowFunction.acute`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block, Features
from userdp.errors import BadInput
from userdp.nodes.moments import by_period, triangle
from userdp.problems.base import Problem
from userdp.problems.linear_scores import QUIET

LOSSES = ("squared_error", "deviance", "log_loss", "test_loss")
"""The metrics that measure a model's loss, the first that a problem has; the others lack a ridge term."""
LEAST_PROBABILITY = 1e-12
_MEANS = (1, 1, 3)  # Means that each of `Measures.asked` adds to the two losses


@dataclass(frozen=True)
class Measures:
    """The metrics that a problem's models have, known before any data are read."""

    loss: str  # the first of `LOSSES` that the problem measures
    accuracy: bool  # targets are classes
    difference: float | None  # the largest difference between prediction and observation; None for no prediction
    ranking: bool  # predictions are probabilities of one of two classes
    classes: int  # K, of a problem that predicts probabilities of K classes; else 0

    @property
    def asked(self) -> Vector:
        """(3,) `answers`' argument of that name."""
        return np.array([self.accuracy, self.difference is not None, self.ranking], dtype=np.float64)

    @property
    def means(self) -> int:
        """The number K of means of `answers`."""
        return int(2 + self.asked @ _MEANS)


def length(dimension: int, arrays: Mapping[str, Array]) -> int:
    """Return the entries of a row of `answers`."""
    means = int(2 + arrays["asked"] @ _MEANS)
    return means + means * (means + 1) // 2


def measures(problem: Problem) -> Measures:
    """Return the metrics of a problem, from one made-up sample of zeros; their names depend on no data."""
    block, x = _example(problem), problem.initial()
    measured = problem.metrics(x, block)
    try:
        predicted = problem.predict(x, block) if problem.observed(block) is not None else {}
    except BadInput:  # such as a mean of the samples
        predicted = {}
    two = "probability" in predicted
    classes = 2 if two else sum(name.startswith("probability.") for name in predicted)
    difference = 1.0 if two else None
    if "prediction" in predicted and not classes and problem.mean_range is not None:
        difference = problem.mean_range[1] - problem.mean_range[0]
    loss = next(name for name in LOSSES if name in measured)
    return Measures(loss, "accuracy" in measured, difference, two, classes)


def _example(problem: Problem) -> Block:
    """Return one user with one usable sample of zeros, in the form of features that the problem takes."""
    targets = np.zeros(1, dtype=np.float32) if problem.has_targets else None
    dense = np.zeros((1, problem.columns), np.float32)
    forms: tuple[Features, ...] = (dense, dense.astype(np.int32), csr_array(dense))
    for features in forms:
        try:
            sample = Block(features, np.array([0, 1]), targets, terms=np.zeros(1, np.float32))
            return replace(problem.bound(sample)[0], usable=None)
        except BadInput:
            continue
    raise BadInput(f"problem.kind = {problem.name!r} measures no sample of zeros, so held-out users cannot be asked")


@QUIET
def loss_sizes(problem: Problem, x: Vector, block: Block, edges: Vector) -> Rows:
    """Compute (U, k + 1): 1 in the interval between k rising edges that holds the user's average loss, else 0."""
    return np.eye(len(edges) + 1)[np.searchsorted(edges, _losses(problem.metrics(x, block), math.inf), side="right")]


@QUIET
def loss_answer(problem: Problem, x: Vector, block: Block, limit: float) -> Rows:
    """Compute (U, 1): the user's average loss, from -1/2 at zero and below to 1/2 at ``limit`` and above."""
    return (_losses(problem.metrics(x, block), limit) / limit - 0.5)[:, None]


@QUIET
def score_shares(problem: Problem, x: Vector, block: Block, edges: Vector) -> Rows:
    """Compute (U, 2 (k + 1)): the shares of a user's samples by class and by interval between k edges of the score.

    The score is the log odds of class 1; samples of class 0 come first.
    """
    scores, positive, owners, share = _ranked(problem, problem.predict(x, block), block)
    places = np.searchsorted(edges, scores, side="right") + positive * (len(edges) + 1)
    width = 2 * (len(edges) + 1)
    cells = np.bincount(owners * width + places, share, minlength=block.users * width)
    return np.asarray(cells.reshape(block.users, width))


def longest(means: int, weight: float) -> float:
    """Return the largest l2 norm of a row of `answers`: means in [-1/2, 1/2], and ``weight`` times their products."""
    return math.hypot(math.sqrt(means) / 2, weight * means / 4)


@QUIET
def answers(
    problem: Problem,
    x: Vector,
    block: Block,
    limit: float,
    width: float,
    weight: float,
    asked: Vector,
    reference: Vector,
    edges: Vector | None = None,
    below: Array | None = None,
) -> Rows:
    """Compute (U, K + K (K + 1) / 2): K means of each user in [-1/2, 1/2], then ``weight`` times their products.

    Args:
        problem: the loss.
        x: (p,) the model.
        block: users' samples.
        limit: largest average loss of a user that counts.
        width: largest difference between prediction and observation that counts.
        weight: of the products, which tell how users differ.
        asked: (3,) whether accuracy, predicted minus observed, and ranking are asked for.
        reference: (p,) the model to compare with, whose loss is the second mean.
        edges: (k,) rising log odds, for the ranking.
        below: (2, k + 2) shares of all samples of class 0 and of class 1 below each edge, from 0 to 1.
    """
    accuracy, difference, ranking = asked > 0.5
    measured = problem.metrics(x, block)
    predicted = problem.predict(x, block) if difference or ranking else {}
    means = [_losses(one, limit) / limit for one in (measured, problem.metrics(reference, block))]
    if accuracy:
        means.append(measured["accuracy"])
    if difference:
        means.append(0.5 + _differences(problem, predicted, block, width) / (2 * width))
    if ranking:
        if edges is None or below is None:
            raise BadInput("a ranking needs edges and the shares below them")
        means += _ranking(problem, predicted, block, edges, below)
    rows = np.clip(np.stack(means, axis=1), 0.0, 1.0) - 0.5
    return np.hstack([rows, weight * triangle(rows[:, :, None] * rows[:, None, :])])


def _ranking(
    problem: Problem, predicted: Mapping[str, Array], block: Block, edges: Vector, below: Array
) -> list[Array]:
    """Return three (U,) means: class 1 times the share of class 0 below it, the converse, and the share of class 1."""
    scores, positive, owners, share = _ranked(problem, predicted, block)
    zeros, ones = (np.interp(scores, _ends(edges), shares) for shares in below)
    parts = (positive * zeros, ~positive * (1.0 - ones), positive)
    return [np.asarray(np.bincount(owners, share * part, minlength=block.users), dtype=float) for part in parts]


def _ends(edges: Vector) -> Vector:
    """Return the edges with one more at either end, beyond which nothing is told apart."""
    step = edges[1] - edges[0]
    return np.concatenate([[edges[0] - 2 * step], edges, [edges[-1] + 2 * step]])


def _ranked(
    problem: Problem, predicted: Mapping[str, Array], block: Block
) -> tuple[Array, NDArray[np.bool_], NDArray[np.int64], Array]:
    """Return each sample's log odds of class 1, whether it is of class 1, its user, and its share of that user."""
    probability = np.clip(predicted["probability"], LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY)
    owners, share = _owners(problem, block)
    return np.log(probability / (1.0 - probability)), _observed(problem, block) > 0.5, owners, share


def _owners(problem: Problem, block: Block) -> tuple[NDArray[np.int64], Array]:
    sizes = problem.observed_sizes(block)
    return np.repeat(np.arange(block.users), sizes), np.repeat(1.0 / np.maximum(sizes, 1), sizes)


def _observed(problem: Problem, block: Block) -> Array:
    observed = problem.observed(block)
    if observed is None:
        raise BadInput(f"problem.kind = {problem.name!r} has no targets to compare predictions with")
    return observed


def _differences(problem: Problem, predicted: Mapping[str, Array], block: Block, width: float) -> Array:
    gaps = predicted.get("probability", predicted["prediction"]) - _observed(problem, block)
    owners, share = _owners(problem, block)
    if by_period(problem) is not None:  # a person's own average depends on the outcome, and is not zero at the truth
        share = 1.0 / block.sizes[owners]
    return np.asarray(np.bincount(owners, share * np.clip(gaps, -width, width), minlength=block.users), dtype=float)


def _losses(measured: Mapping[str, Array], limit: float) -> Array:
    """Return (U,) average losses between 0 and ``limit``; one that is not a number is the largest."""
    losses = next(measured[name] for name in LOSSES if name in measured)
    return np.clip(np.where(np.isnan(losses), np.inf, losses), 0.0, limit)
