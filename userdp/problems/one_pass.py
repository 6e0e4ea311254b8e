"""Users' average gradients of a generalised linear model in one compiled pass over their samples.

The loop computes a sample's score and its part of the user's gradient while the sample is in the processor's nearest
cache; two matrix products would read it twice.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.compiling import compiled
from userdp.arrays.types import Rows, Vector

KINDS = ("logistic", "squared", "huber", "lp", "poisson")
LOGISTIC, _, HUBER, LP, POISSON = range(len(KINDS))

Singles = NDArray[np.float32]
Single = Any
"""A number of float32, or the result of arithmetic on it."""


@compiled()
def slope(kind: int, score: Single, target: Single, parameter: Single) -> Single:
    """Compute `Family.slopes` of one sample, for the family of the ``kind`` at this place of `KINDS`."""
    one = np.float32(1)
    if kind == LOGISTIC:
        return one / (one + math.exp(-score)) - target
    if kind == POISSON:
        return math.exp(score) - target
    residual = score - target
    if kind == HUBER:
        return min(max(residual, -parameter), parameter)
    if kind == LP:
        return math.copysign(abs(residual) ** (parameter - one), residual)
    return residual


@compiled("reassoc", "contract", "nsz")
def average_gradients(
    features: Singles,
    targets: Singles,
    offsets: NDArray[np.int64],
    model: Singles,
    pull: Vector,
    kind: int,
    parameter: Single,
    rows: Rows,
    finite: NDArray[np.bool_],
) -> None:
    """Write each user's average gradient, with sums in float32, plus ``pull`` (p,) into ``rows`` (U, p).

    Features are (N, k), targets (N,); user u has the samples from ``offsets[u]``; if the model has k + 1 numbers, the
    last is an intercept. The parameter is that of `Family`, and ``kind`` the place of its kind in `KINDS`. ``finite``
    (U,) becomes whether the square of a user's sum is finite in float32.
    """
    columns = features.shape[1]
    total = np.empty(columns, dtype=np.float32)
    for user in range(len(offsets) - 1):
        total[:] = 0
        of_intercept: Single = 0.0
        for sample in range(offsets[user], offsets[user + 1]):
            score: Single = np.float32(0)
            for column in range(columns):
                score += features[sample, column] * model[column]
            if len(model) > columns:
                score += model[columns]
            weight = np.float32(slope(kind, score, targets[sample], parameter))
            for column in range(columns):
                total[column] += weight * features[sample, column]
            of_intercept += weight
        square: Single = np.float32(of_intercept) * np.float32(of_intercept)
        for column in range(columns):
            square += total[column] * total[column]
        finite[user] = np.isfinite(square)
        share = 1.0 / (offsets[user + 1] - offsets[user])
        for column in range(columns):
            rows[user, column] = share * total[column] + pull[column]
        if len(model) > columns:
            rows[user, columns] = share * of_intercept + pull[columns]
