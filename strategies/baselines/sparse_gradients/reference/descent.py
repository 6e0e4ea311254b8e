"""Stopped SGD on plain arrays, and the oracle without noise that it is compared with."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.sparse_gradients.bias_reduction import Draw, MeanOracle, bias_reduced_gradient
from strategies.baselines.sparse_gradients.stopping import Output, StepBudget
from userdp.accounting import check_positive
from userdp.arrays import Rows, Vector
from userdp.noise import NoiseSource

Gradients = Callable[[Vector, NDArray[np.int64]], Rows]
"""A function from a model (d,) and k records to their gradients (k, d), in order, each of l2 norm at most L."""


@dataclass(frozen=True)
class ExactMean:
    """The mean itself: no privacy, to see what bias reduction does without noise.

    *Formal guarantees.* None.
    """

    largest_norm: float  # l2 bound on the records, hence on their means

    def __call__(self, mean: Vector, size: int, noise: NoiseSource) -> Vector:
        return mean

    def squared_error(self, size: int) -> float:
        """Zero."""
        return 0.0


@dataclass(frozen=True)
class StoppedRun:
    """The result of a run."""

    model: Vector  # (d,) the average of x^0..x^T, or one of them, drawn uniformly
    steps: int  # T
    epsilon: float  # what the filter was charged


def stopped_sgd(
    gradients: Gradients,  # of records at a model
    start: Vector,  # (d,) x^0
    budget: StepBudget,  # of all steps
    oracle: MeanOracle,  # estimates means
    learning_rate: float,  # eta, the same in all steps
    rng: np.random.Generator,  # draws levels, batches, and the iterate of ``output = "random"``; secret
    noise: NoiseSource,  # for the oracle
    *,
    project: Callable[[Vector], Vector] = lambda x: x,  # the nearest point of the domain
    output: Output = "average",  # "average" (convex losses) or "random" (any loss)
) -> StoppedRun:
    """Projected steps ``x - eta G`` until the filter ends them.

    *Formal guarantees.* Those of `StepBudget`, for an oracle each of whose calls is (`oracle_epsilon`,
    `oracle_delta`)-DP (such as `ProjectedMean` with the budget's noise multiplier) on gradients of l2 norm at most
    its clip, as long as who is drawn stays secret. Every iterate is private.

    Raises `BadInput` for a learning rate that is not positive, or gradients that are not finite.
    """
    check_positive(learning_rate=learning_rate)
    levels = budget.draw_levels(rng)
    kept_at = int(rng.integers(len(levels) + 1))
    x = kept = total = start
    for step, level in enumerate(levels.tolist(), 1):
        draw = Draw.of(budget.records, level, rng)
        batch, single = gradients(x, draw.batch), gradients(x, draw.single)
        estimate = bias_reduced_gradient(batch, single, float(budget.levels.chances[level]), oracle, noise)
        x = project(x - learning_rate * estimate)
        kept, total = x if step == kept_at else kept, total + x
    model = kept if output == "random" else total / (len(levels) + 1)
    return StoppedRun(model, len(levels), budget.spent(levels))
