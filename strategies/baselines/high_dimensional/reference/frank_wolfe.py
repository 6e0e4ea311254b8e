"""Private Frank-Wolfe on plain arrays (Algorithm 1), over hulls of any vertices."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.high_dimensional.frank_wolfe import FrankWolfeTheory, step_size
from strategies.baselines.smoothed_truncation import coordinate_sensitivity, smoothed_truncation_mean
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.mechanisms import ExponentialMechanism
from userdp.noise import SeededNoise
from userdp.randomness import stream


def excess_bound(rounds: int, curvature: float, start_gap: float, error: float) -> float:
    """``2 h / ((T+1) (T+2)) + 2 C / (T+2) + e``: excess of T rounds of `step_size` on a convex loss.

    Proof. A vertex whose inner product with the gradient is within e of the least gives ``h_t <= (1 - a) h_(t-1) + a e
    + a^2 C / 2`` with a = 2 / (t + 2). The part of the start is the product of ``t / (t + 2)``; that of e is a weighted
    mean of e; and ``2 C / (t + 1) -> 2 C / (t + 2)`` by induction, as ``t / (t + 1) + 1 / (t + 2) <= 1``. C is the l2
    smoothness times the squared l2 diameter, h the excess of the start, e the error of every round at most.
    """
    return 2 * start_gap / ((rounds + 1) * (rounds + 2)) + 2 * curvature / (rounds + 2) + error


def robust_frank_wolfe(
    # (t from 0, model) -> (m, d) gradients of the samples of fold t, anything that floats can be
    gradients: Callable[[int, Vector], NDArray[np.float64]],
    start: Vector,  # (d,) in the polytope
    theory: FrankWolfeTheory,  # polytope, budget and truncation
    rounds: int,  # T
    scale: float,  # s
    *,
    seed: int,  # of the noise
    step: Callable[[int], float] = step_size,  # t from 0 -> step size in (0, 1]
) -> NDArray[np.float64]:
    """(rounds + 1, d): the start and every iterate; all of them may be released.

    *Formal guarantees.* Unit: one of the n samples; relation: replace-one, n public; (epsilon, 0)-DP for all iterates
    together. Round t uses the samples of fold t alone, ``m = floor(n / T)`` of them, and folds are disjoint whatever
    the data, so that rounds compose in parallel. Replacing a sample moves each coordinate of the fold's truncated mean
    by at most `coordinate_sensitivity`, scores by `Polytope.score_sensitivity`, and the exponential mechanism spends
    epsilon. Noise is simulated from the seed.

    Raises `BadInput`: fewer samples than rounds, or a fold of another size.
    """
    fold = theory.samples // rounds
    if fold < 1:
        raise BadInput(f"rounds = {rounds}: there are {theory.samples} samples, and every round takes fresh ones")
    mechanism = ExponentialMechanism(theory.choice_sensitivity(scale, fold), theory.epsilon)
    points = np.empty((rounds + 1, theory.dimension))
    points[0] = start
    for index in range(rounds):
        rows = gradients(index, points[index])
        if rows.shape != (fold, theory.dimension):
            raise BadInput(f"gradients of shape {rows.shape}: a fold has shape {(fold, theory.dimension)}")
        gradient = smoothed_truncation_mean(rows, scale, theory.inverse_variance)
        moved = coordinate_sensitivity(scale, fold, theory.inverse_variance)
        scores = theory.polytope.scored(gradient, moved)
        vertex = mechanism.choose(scores, SeededNoise(stream(seed, "noise", index, 0)))
        points[index + 1] = theory.polytope.towards(points[index], vertex, step(index))
    return points
