"""The best of a random number of private runs, at three times the price of one.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 5, Theorem 6.1), by Liu, Talwar 2019 (Theorem 3.4). A run that
is good half of the time becomes good almost always.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.sparse_gradients.bias_reduction import ProjectedMean, second_moment_bound
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.reference.descent import Gradients, StoppedRun, stopped_sgd
from strategies.baselines.sparse_gradients.stopping import (
    Output,
    StepBudget,
    convex_rate,
    stationary_rate,
    typical_length,
)
from userdp.accounting import check_positive
from userdp.arrays import Rows, Vector, clip_rows, finite_rows
from userdp.errors import BadInput
from userdp.mechanisms import LaplaceMechanism
from userdp.noise import NoiseSource

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class SelectionBudget:
    """The division of a budget over runs, the best of which is released.

    *Formal guarantees.* Unit and relation: those of runs and scores. Let a run be (`run_epsilon`, `run_delta`)-DP and
    its score `score_epsilon`-DP given the run: together (e, d)-DP with ``e = epsilon / 6`` and ``d = (delta / 4K)^2``.
    What `private_select` gives is ``(3e + 3 sqrt(2d), sqrt(2d) K + delta / 2)``-DP, for a K of at least
    ``max(ln(4 / delta) / gamma, 1 + exp(-1) / gamma)``. That is at most ``(epsilon / 2 + 1.07 delta / K, 0.86 delta)``,
    within the budget for ``delta <= epsilon / 10``. It covers the candidate that is given and its
    score, NOT the number of runs nor the others: whoever sees all runs gets plain composition.

    *Accuracy.* If a run is good with probability at least 1/2 and scores are exact, none of the runs is good with
    probability ``gamma / (1 + gamma)`` at most (but for the cut at K, of probability ``delta / 4``), so a gamma of
    half of ``failure`` leaves the other half to the noise of the scores.

    Raises `BadInput` for an attribute out of range.
    """

    epsilon: float  # > 0
    delta: float  # in (0, epsilon / 10]
    failure: float  # beta, in (0, 1): the chance that the result is not good

    def __post_init__(self) -> None:
        check_positive(epsilon=self.epsilon)
        if not 0 < self.delta <= min(self.epsilon / 10, 0.5):
            raise BadInput(
                f"delta = {self.delta}: must be positive and at most min(epsilon / 10, 1/2) = "
                f"{min(self.epsilon / 10, 0.5):g}, for which the selection is proven"
            )
        if not 0 < self.failure < 1:
            raise BadInput(f"failure = {self.failure}: must lie strictly between 0 and 1, such as 0.1")

    @property
    def stop_chance(self) -> float:
        """gamma: after each run it may end."""
        return self.failure / 2

    @property
    def most_runs(self) -> int:
        """K."""
        return math.ceil(max(math.log(4 / self.delta), self.stop_chance + 1 / math.e) / self.stop_chance)

    @property
    def run_epsilon(self) -> float:
        """The epsilon of one run."""
        return self.epsilon / 12

    @property
    def run_delta(self) -> float:
        """The delta of one run."""
        return (self.delta / (4 * self.most_runs)) ** 2

    @property
    def score_epsilon(self) -> float:
        """The epsilon of one score."""
        return self.epsilon / 12

    def score_mechanism(self, sensitivity: float) -> LaplaceMechanism:
        """Return the mechanism that adds noise to a score.

        Replacing a record changes the score of a fixed candidate by ``sensitivity`` at most: B / n for the mean of n
        losses within an interval of length B (a bound on how much a loss varies over the DOMAIN is not enough); 2L / n
        for the l2 norm of the mean of gradients of norm at most L.
        """
        return LaplaceMechanism(sensitivity, self.score_epsilon)


def private_select(
    sample: Callable[[int], Candidate],  # a private run, from its index (0, 1, ...) to its candidate
    score: Callable[[Candidate], float],  # a private score of a candidate, the lower the better
    stop_chance: float,  # gamma, in (0, 1]
    most_runs: int,  # K, at least 1
    coins: np.random.Generator,  # secret
) -> Candidate:
    """Run, score, toss a coin whether to stop; give the candidate of the LOWEST score.

    *Formal guarantees.* See `SelectionBudget`. The coins do not depend on data. The number of runs is not returned, for
    the promise does not cover it.

    Raises `BadInput` for an argument out of range, or a score that is not finite.
    """
    if not 0 < stop_chance <= 1 or most_runs < 1:
        raise BadInput(f"stop_chance = {stop_chance}, most_runs = {most_runs}: need (0, 1], and at least 1")
    best, lowest = None, math.inf
    for run in range(min(most_runs, int(coins.geometric(stop_chance)))):
        candidate = sample(run)
        value = score(candidate)
        if not math.isfinite(value):
            raise BadInput(f"score = {value} of run {run + 1}: scores must be finite numbers")
        if best is None or value < lowest:
            best, lowest = candidate, value
    assert best is not None  # there is at least one run
    return best


@dataclass(frozen=True)
class LowRisk:
    """The aim for convex losses: runs give their average, and the lowest empirical risk is best.

    Raises `BadInput`: a range that is not one of two finite numbers, the lower one first.
    """

    losses: Callable[[Vector], NDArray[np.float64]]  # (n,) of all records at a model; each depends on its record alone
    low: float  # losses are held to low and high
    high: float
    distance: float  # D, bound on the l2 distance from start to minimiser, for the step size
    output: ClassVar[Output] = "average"

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise BadInput(f"low = {self.low}, high = {self.high}: must be finite numbers, the lower one first")

    def rate(self, second_moment: float, length: int) -> float:
        """The step size of Theorem 5.7."""
        return convex_rate(self.distance, second_moment, length)

    def sensitivity(self, norm: float) -> float:
        """B, of the sum of n scores."""
        return self.high - self.low

    def score(self, model: Vector, gradients: Callable[[Vector], Rows], records: int) -> float:
        """The risk; a loss that is NaN counts as the highest. Raises `BadInput`: another number of losses than n."""
        values = self.losses(model)
        if values.shape != (records,):
            raise BadInput(f"losses have shape {values.shape}, one for each of {records} records is needed")
        return float(np.clip(np.nan_to_num(values, nan=self.high), self.low, self.high).mean())


@dataclass(frozen=True)
class SmallGradient:
    """The aim for losses that are not convex: runs give a random iterate, and the shortest mean gradient is best.

    Raises `BadInput`: a number that is not positive.
    """

    gap: float  # Gamma, how far the risk at the start lies above its minimum
    smoothness: float  # H
    output: ClassVar[Output] = "random"

    def __post_init__(self) -> None:
        check_positive(gap=self.gap, smoothness=self.smoothness)

    def rate(self, second_moment: float, length: int) -> float:
        """The step size of Theorem 5.8."""
        return stationary_rate(self.gap, self.smoothness, second_moment, length)

    def sensitivity(self, norm: float) -> float:
        """2 L: the mean of n gradients moves by 2 L / n, and so its length."""
        return 2 * norm

    def score(self, model: Vector, gradients: Callable[[Vector], Rows], records: int) -> float:
        """The length of the mean gradient."""
        return float(np.linalg.norm(gradients(model).mean(axis=0)))


def boosted_sgd(
    gradients: Gradients,  # of records at a model; what becomes of a record depends on that record alone
    start: Vector,  # (d,)
    records: int,  # n, at least 2
    members: SparseVectors,  # s and L
    aim: LowRisk | SmallGradient,  # by what runs are compared
    budget: SelectionBudget,  # of everything
    rng: np.random.Generator,  # tosses coins, draws levels and batches; secret
    noise: NoiseSource,  # of gradients and scores
    *,
    project: Callable[[Vector], Vector] = lambda x: x,  # the nearest point of the domain
) -> StoppedRun:
    """The run of `stopped_sgd`, of a random number of them, whose noisy score is the lowest.

    *Formal guarantees.* Unit: a record; relation: replace-one, n public. What is returned is (epsilon, delta)-DP, by
    `SelectionBudget` over runs by `StepBudget`, as long as ``rng`` and the number of runs (and what shows it, such as
    the time taken) stay secret. It rests on no promise: gradients are clipped to l2 norm L, losses into their range;
    a gradient that is not finite counts as zero, a loss that is NaN as the highest.

    Raises `BadInput` for a number out of range, or another number of losses than n.
    """
    steps = StepBudget(records, budget.run_epsilon, budget.run_delta)
    oracle = ProjectedMean(len(start), members, steps.noise_multiplier)
    rate = aim.rate(second_moment_bound(steps.levels, oracle), typical_length(steps))
    mechanism = budget.score_mechanism(aim.sensitivity(members.norm) / records)

    def clipped(x: Vector, who: NDArray[np.int64]) -> Rows:
        return clip_rows(finite_rows(gradients(x, who))[0], members.norm)

    def score(run: StoppedRun) -> float:
        exact = aim.score(run.model, lambda x: clipped(x, np.arange(records)), records)
        return float(mechanism.release(np.asarray(exact), noise))

    return private_select(
        lambda _: stopped_sgd(clipped, start, steps, oracle, rate, rng, noise, project=project, output=aim.output),
        score,
        budget.stop_chance,
        budget.most_runs,
        rng,
    )
