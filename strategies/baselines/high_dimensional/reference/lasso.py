"""Private LASSO on plain arrays (Algorithm 2)."""

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.high_dimensional.frank_wolfe import L1Ball, step_size
from strategies.baselines.high_dimensional.lasso import choice_sensitivity, gradient_bound
from strategies.baselines.truncated_rows import truncated_gradients
from userdp.arrays import Vector
from userdp.data import Block
from userdp.mechanisms import ExponentialMechanism
from userdp.noise import SeededNoise
from userdp.randomness import stream


def private_lasso(
    block: Block,  # users with features and targets; any values
    start: Vector,  # (d,), with ``||x||_1 <= radius``
    *,
    radius: float,  # r
    threshold: float,  # K
    epsilon: float,  # of each round
    rounds: int,  # T
    seed: int,  # of the noise
) -> NDArray[np.float64]:
    """(rounds + 1, d): the start and every iterate; all of them may be released.

    *Formal guarantees.* Unit: one user of the block, with all its samples, whose mean gradient is one record; relation:
    replace-one. Every round is one exponential mechanism of that epsilon with `choice_sensitivity`, which holds as
    iterates are convex combinations of the start and vertices, so ``||x||_1 <= r``. `Selections` composes rounds.
    Noise is simulated from the seed.

    Raises `BadInput`: a start outside the ball.
    """
    ball = L1Ball(radius, len(start))
    ball.check_start(start)
    mechanism = ExponentialMechanism(choice_sensitivity(radius, threshold, block.users), epsilon)
    points = np.empty((rounds + 1, len(start)))
    points[0] = start
    for index in range(rounds):
        gradient = truncated_gradients(points[index], block, threshold).sum(axis=0) / block.users
        scores = ball.scored(gradient, 2 * gradient_bound(radius, threshold) / block.users)
        vertex = mechanism.choose(scores, SeededNoise(stream(seed, "noise", index, 0)))
        points[index + 1] = ball.towards(points[index], vertex, step_size(index))
    return points
