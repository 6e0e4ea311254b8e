"""Private hard thresholding on plain arrays (Algorithms 3 and 5)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.high_dimensional.hard_thresholding import (
    log_rounds,
    truncated_gradient_bound,
    truncation_level,
    truncation_scale,
    unit_ball,
)
from strategies.baselines.peeling import Peeling, PeelingAccounting
from strategies.baselines.smoothed_truncation import LARGEST, smoothed_truncation_mean
from userdp.accounting import check_positive
from userdp.arrays import Rows, Vector
from userdp.errors import BadInput
from userdp.noise import NoiseSource, Scores


@dataclass(frozen=True)
class SparseFit:
    """The result of a run of private hard thresholding; all of it is private."""

    iterates: NDArray[np.float64]  # (T + 1, d), the start and the model after each round
    peeling: Peeling  # the mechanism of every round

    @property
    def model(self) -> Vector:
        """(d,) the last iterate."""
        return np.asarray(self.iterates[-1])


@dataclass(frozen=True)
class SparseBudget:
    """Settings of both algorithms. Raises `BadInput` for a learning rate that is no positive number."""

    sparsity: int  # s, most entries of the model that are not zero
    epsilon: float  # > 0
    delta: float  # in [0, 1); 0 for pure privacy
    learning_rate: float  # eta; the paper's is 2 / (3 gamma), with gamma the smoothness of the expected loss
    rounds: int | None = None  # T; floor(ln n), at least 1, if not given
    accounting: PeelingAccounting = "tight"  # of `Peeling`

    def __post_init__(self) -> None:
        check_positive(learning_rate=self.learning_rate)

    def rounds_of(self, records: int) -> int:
        """T for n records. Raises `BadInput`: no round, or more rounds than records."""
        rounds = log_rounds(records) if self.rounds is None else self.rounds
        if not 1 <= rounds <= records:
            raise BadInput(f"rounds = {rounds}: must lie between 1 and the {records} records, each round takes some")
        return rounds

    def peeling(self, sensitivity: float) -> Peeling:
        """The mechanism of one round, for steps of that sup-norm sensitivity."""
        return Peeling(self.sparsity, sensitivity, self.epsilon, self.delta, self.accounting)


def folds(records: int, rounds: int) -> list[slice]:
    """T consecutive blocks of floor(n / T) records each; the remainder is left out."""
    size = records // rounds
    return [slice(index * size, (index + 1) * size) for index in range(rounds)]


def private_hard_thresholding(
    features: Rows,  # (n, d)
    targets: Vector,  # (n,)
    budget: SparseBudget,  # sparsity, privacy, step and rounds
    noise: NoiseSource,
    *,
    level: float | None = None,  # K; `truncation_level` if not given
    fourth_moment: float = 1.0,  # M of `truncation_level`
    # (d,) first model, s-sparse and in the unit l2 ball, not from private data; zero if not given
    start: Vector | None = None,
) -> SparseFit:
    """Sparse least squares on data cut at K (Hu, Ni, Xiao, Wang 2022, Algorithm 3).

    Each round: ``w <- w - (eta / m) sum a (<a, w> - y)`` over a fold, peeled, then scaled into the unit l2 ball.

    *Formal guarantees.* (epsilon, delta)-DP for a record (a, y), replace-one, n public. A record lies in one fold.
    There each coordinate of its gradient is at most ``K^2 (sqrt(s) + 1)``, as w is s-sparse and in the ball, so
    replacing it moves the step by at most ``2 K^2 (sqrt(s) + 1) eta / m`` in every coordinate, which `Peeling` hides;
    later rounds are post-processing on other records. NaNs count as zero.

    Raises `BadInput`: shapes that do not fit, a level that is no positive number, or a start that is not as it must be.
    """
    records, dimension = _shape(features)
    if targets.shape != (records,):
        raise BadInput(f"targets must be ({records},), one a record, got {targets.shape}")
    rounds = budget.rounds_of(records)
    if level is None:
        level = truncation_level(records, budget.epsilon, budget.sparsity, rounds, fourth_moment)
    check_positive(level=level)
    bound = truncated_gradient_bound(level, budget.sparsity)
    peeling = budget.peeling(2 * bound * budget.learning_rate / (records // rounds))

    def gradient(model: Vector, fold: slice) -> Vector:
        cut, goal = (_cut(part[fold], level) for part in (features, targets))
        return np.asarray(cut.T @ (cut @ model - goal) / len(goal))

    first = checked_start(start, dimension, budget.sparsity, length=1.0)
    return _descend(first, gradient, folds(records, rounds), budget, peeling, noise, unit_ball)


def private_sparse_optimisation(
    # from (d,) model and a slice of records to (m, d), one row a record; rows that are not finite count as zero
    gradients: Callable[[Vector, slice], Rows],
    records: int,  # n
    dimension: int,  # d
    budget: SparseBudget,  # sparsity, privacy, step and rounds
    noise: NoiseSource,
    *,
    scale: float | None = None,  # k of the truncation; `truncation_scale` if not given
    second_moment: float = 1.0,  # tau of `truncation_scale`
    inverse_variance: float = 1.0,  # beta of the smoothing noise
    failure: float = 0.1,  # zeta of `truncation_scale`
    start: Vector | None = None,  # (d,) first model, s-sparse, not from private data; zero if not given
) -> SparseFit:
    """Sparse minimiser of any loss, along smoothly truncated gradients (Hu, Ni, Xiao, Wang 2022, Algorithm 5).

    Each round: one step of size eta along the coordinate-wise `smoothed_truncation_mean` of a fold's gradients at the
    current model, then peeled. Nothing is projected.

    *Formal guarantees.* (epsilon, delta)-DP for a record, replace-one, n public, if row i of ``gradients`` depends on
    record i and the model alone. A record lies in one fold, and there moves every coordinate of the step by at most
    ``4 sqrt(2) k eta / (3 m)``, which `Peeling` hides; later rounds are post-processing on other records.

    Raises `BadInput`: gradients of another shape, a number out of range, or a start that is not sparse.
    """
    rounds = budget.rounds_of(records)
    size = records // rounds
    if scale is None:
        scale = truncation_scale(size, dimension, rounds, budget.peeling(1.0), second_moment, inverse_variance, failure)
    peeling = budget.peeling(2 * LARGEST * scale * budget.learning_rate / size)

    def gradient(model: Vector, fold: slice) -> Vector:
        rows = gradients(model, fold)
        if rows.shape != (size, dimension):
            raise BadInput(f"gradients must be ({size}, {dimension}), one row a record, got {rows.shape}")
        return smoothed_truncation_mean(rows, scale, inverse_variance)

    first = checked_start(start, dimension, budget.sparsity)
    return _descend(first, gradient, folds(records, rounds), budget, peeling, noise, lambda model: model)


def checked_start(start: Vector | None, dimension: int, sparsity: int, length: float = math.inf) -> Vector:
    """(d,) a first model from which the sensitivity of the first step is what it should be; zero if none is given.

    Raises `BadInput`: no finite (d,) vector, more than ``sparsity`` entries that are not zero, or longer than
    ``length``.
    """
    if start is None:
        return np.zeros(dimension)
    if start.shape != (dimension,) or not np.isfinite(start).all():
        raise BadInput(f"start must be {dimension} finite numbers, got shape {start.shape}")
    if np.count_nonzero(start) > sparsity:
        raise BadInput(f"start has {np.count_nonzero(start)} entries that are not zero: at most {sparsity} may be")
    if (norm := float(np.linalg.norm(start))) > length:
        raise BadInput(f"start has l2 norm {norm:g}: must lie in the ball of radius {length:g}")
    return np.asarray(start, dtype=np.float64)


def _cut(values: NDArray[np.floating], level: float) -> NDArray[np.float64]:
    """Values held to ``+-level``, in float64, in which the level is not rounded; NaNs are zero."""
    return np.clip(np.nan_to_num(values.astype(np.float64), nan=0.0), -level, level)


def _shape(features: Rows) -> tuple[int, int]:
    if features.ndim != 2 or not features.size:
        raise BadInput(f"features must be (records, dimension), got shape {features.shape}")
    return features.shape[0], features.shape[1]


def _descend(
    start: Vector,
    gradient: Callable[[Vector, slice], Vector],
    blocks: list[slice],
    budget: SparseBudget,
    peeling: Peeling,
    noise: NoiseSource,
    settle: Callable[[Vector], Vector],
) -> SparseFit:
    """One step, one peeling a fold; ``settle`` post-processes."""
    iterates = [start]
    for block in blocks:
        stepped = iterates[-1] - budget.learning_rate * gradient(iterates[-1], block)
        iterates.append(settle(peeling.release(Scores(stepped, peeling.sensitivity), noise)))
    return SparseFit(np.array(iterates), peeling)
