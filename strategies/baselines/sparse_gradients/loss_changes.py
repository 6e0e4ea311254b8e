"""The computations by which models are chosen among: a user's change of loss, or its gradient, at each of them."""

import numpy as np

from userdp.arrays import Rows, Vector, clip_rows, dense
from userdp.data import Block
from userdp.nodes import RowFunction
from userdp.problems import Problem, user_averages


def loss_changes(problem: Problem, x: Vector, block: Block, models: Rows, reach: Vector) -> Rows:
    """Compute (U, k): each user's average loss at each of k models minus that at x, clipped to ``+- reach`` (k,).

    A change that is not a number counts as the worst. A user whose loss at x is not finite gets a row of NaN.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        before = user_averages(problem.sample_losses(x, block), block)
        rows = np.stack(
            [user_averages(problem.sample_losses(model, block), block) - before for model in models], axis=1
        )
    held = np.clip(np.where(np.isnan(rows), np.inf, rows), -reach, reach)
    return np.where(np.isfinite(before)[:, None], held, np.nan)


LOSS_CHANGES = RowFunction(loss_changes, length=lambda dimension, arrays: len(arrays["models"]))


def model_gradients(problem: Problem, x: Vector, block: Block, models: Rows, norm: float) -> Rows:
    """Compute (U, k p): each user's mean gradient at each of k models, clipped to ``norm``, one after the other."""
    return np.hstack([clip_rows(dense(problem.user_gradients(model, block)), norm) for model in models])


MODEL_GRADIENTS = RowFunction(model_gradients, length=lambda dimension, arrays: arrays["models"].size)
