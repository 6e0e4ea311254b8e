"""The fewest users of a step who pass a concentration test if they agree."""

import math
from collections.abc import Callable

from userdp.errors import BadInput
from userdp.estimators.concentration import Kernel
from userdp.estimators.robust import MINIMUM_BATCH
from userdp.mechanisms.concentration_tests import AboveThreshold, MinimumScore


def minimum_batch(
    test_type: type[AboveThreshold] | type[MinimumScore],
    kernel: Kernel,
    *,
    epsilon: float,
    delta: float,
    steps: int,
    failure: float,
    movement: Callable[[int], float] | float = 0.0,
    at_least: int = MINIMUM_BATCH,
    at_most: int = 10**9,
) -> int:
    """Return the smallest B at which a phase of fully concentrated users (each score B) passes often enough.

    By bisection: the result always passes, and is the smallest where passing grows with B. It does for a constant
    movement; a movement that falls with B in jumps may leave a B a few users smaller that passes too.

    Args:
        test_type: `AboveThreshold` or `MinimumScore`.
        kernel: of the score.
        epsilon: of the test.
        delta: of the test.
        steps: T, steps of a phase.
        failure: largest probability of failing, in (0, 1).
        movement: see `ConcentrationTest`; a function of B where the estimator's sensitivity depends on B.
        at_least: smallest B to consider.
        at_most: largest B to consider.

    Raises `BadInput`: a setting out of range, or no B up to ``at_most`` passes.
    """
    if not 0 < failure < 1:
        raise BadInput(f"failure = {failure}: must lie strictly between 0 and 1, such as 0.01")

    def passes(batch: int) -> bool:
        moved = movement(batch) if callable(movement) else movement
        test = test_type(batch=batch, kernel=kernel, epsilon=epsilon, delta=delta, movement=moved)
        return test.pass_probability(batch, steps) >= 1 - failure

    smallest = smallest_passing(passes, at_least, at_most)
    if smallest > at_most:
        raise BadInput(
            f"no batch of up to {at_most} users passes the concentration test: raise its epsilon or delta, or "
            "lower the step size so that scores move less"
        )
    return smallest


def smallest_passing(passes: Callable[[int], bool], least: int, most: float = math.inf) -> int:
    """Return the smallest number from ``least`` on that passes, by bisection; one above ``most`` if none up to it does.

    The result always passes, if it is at most ``most``; it is the smallest where passing grows with the number.
    """
    low = high = least
    while not passes(high):
        low, high = high, 2 * high
        if high > most:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high
