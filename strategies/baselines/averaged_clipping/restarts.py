"""Restarts for strongly convex problems: each run starts at the average of the run before, with a smaller clip.

Algorithm 2 and Theorems 5 and 6 of the paper. Its own composition, `step_budget` for each run, is loose: one Renyi
ledger over all rounds of all runs (`userdp.accounting.sampled_gaussian`) certifies the same noise at a smaller epsilon.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from strategies.baselines.averaged_clipping.parameters import TheoryConstants, paper_noise, unconstrained_excess
from strategies.baselines.composition import step_budget
from userdp.errors import BadInput


@dataclass(frozen=True)
class Run:
    """One run of the restarted algorithm."""

    radius: float  # R^t, distance to the minimiser that the run counts on
    clip: float  # lambda_t
    batch: int  # m_t
    step: float  # gamma
    noise_deviation: float  # of each coordinate, by the paper's formula


def rounds_per_run(constants: TheoryConstants, strong_convexity: float) -> int:
    """Least N0 with ``N0 / ln(4 N0 / beta) >= 768 L / mu``: each run then halves the gap, noise aside.

    Raises `BadInput`: the strong convexity is not positive, or exceeds the smoothness.
    """
    wanted = 768 * _condition(constants, strong_convexity)

    def enough(rounds: int) -> bool:
        return rounds / math.log(4 * rounds / constants.failure) >= wanted

    low = high = 3  # from here on the left side rises
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def default_runs(samples: int) -> int:
    """``log2 n`` runs: by then the first gap is n times smaller."""
    return max(1, math.ceil(math.log2(samples)))


def radii(first_gap: float, strong_convexity: float) -> Iterator[float]:
    """R^0, R^1, ...: ``sqrt(2 gap / mu)`` with a gap that halves from run to run."""
    gap = first_gap
    while True:
        yield math.sqrt(2 * gap / strong_convexity)
        gap /= 2


def restarted_run(constants: TheoryConstants, rounds: int, radius: float) -> Run:
    """A run's parameters at ``radius``; ``constants`` holds the budget OF THE RUN."""
    step, excess = unconstrained_excess(constants, rounds)
    log = math.log(4 * rounds / constants.failure)
    clip = 4 * constants.smoothness * radius + 2 * math.sqrt(excess)
    batch = max(1, math.ceil(162 * (rounds * constants.deviation / (clip * log)) ** 2))
    return Run(radius, clip, batch, step, paper_noise(constants, clip, batch, rounds))


def restarted(
    constants: TheoryConstants, strong_convexity: float, first_gap: float, runs: int, rounds: int
) -> list[Run]:
    """The runs of Algorithm 2 with the paper's noise, which is not certified; ``constants`` holds the WHOLE budget.

    Raises `BadInput` for a constant out of range, or an epsilon above 1, where the paper's composition is not proven.
    """
    _condition(constants, strong_convexity)
    epsilon, delta = step_budget(constants.epsilon, constants.delta, runs)
    own = replace(constants, epsilon=epsilon, delta=delta)
    distances = radii(first_gap, strong_convexity)
    return [restarted_run(own, rounds, radius) for _, radius in zip(range(runs), distances, strict=False)]


def _condition(constants: TheoryConstants, strong_convexity: float) -> float:
    if not 0 < strong_convexity <= constants.smoothness:
        raise BadInput(
            f"strong_convexity = {strong_convexity}: must be positive and at most the smoothness {constants.smoothness}"
        )
    return constants.smoothness / strong_convexity
