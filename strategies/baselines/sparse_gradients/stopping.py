"""Gradient steps along bias-reduced estimates until a privacy filter ends them.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 4). How many records a step looks at is random, and with it
what the step costs. A filter adds up the costs, and the run ends before the first step that would exceed the budget. No
step is ever made cheaper to fit: that would bias it.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.sparse_gradients.bias_reduction import TruncatedGeometric
from strategies.baselines.sparse_gradients.projection_mechanism import classical_multiplier
from userdp.accounting import calibrate_noise, check_positive
from userdp.errors import BadInput, RunFailed
from userdp.randomness import stream

Accounting = Literal["tight", "paper"]
Output = Literal["average", "random"]
Numbers = NDArray[np.float64]

_REPEATS = 2000
"""Simulated runs that the typical length is taken from."""

_BLOCK = 1 << 20
"""Simulated steps in memory at once."""

_HELD = 700.0
"""An exponent whose exponential floats hold."""


class PrivacyFilter:
    """Charges steps as long as all of them together stay within a budget (Whitehouse, Ramdas, Rogers, Wu 2023).

    *Formal guarantees.* Unit and relation: those of the steps. Let step t be (e_t, d_t)-DP given all earlier outputs,
    with e_t and d_t fixed before it runs, from earlier outputs and coins that do not depend on data. If every step is
    run only if `can_run`, and is charged, then all outputs together are (epsilon, spread_delta + sum_delta)-DP, however
    many there are and whatever decides it: advanced composition holds with stopping times at no extra cost.

    ``spread_delta`` in (0, 1) is delta' of Theorem 1, what the deviation of the privacy loss may cost; ``sum_delta`` in
    [0, 1) is delta'', what the steps' own deltas may add up to. Raises `BadInput` for an argument out of range.
    """

    def __init__(self, epsilon: float, spread_delta: float, sum_delta: float) -> None:
        check_positive(epsilon=epsilon)
        if not 0 < spread_delta < 1:
            raise BadInput(f"spread_delta = {spread_delta}: must lie strictly between 0 and 1, such as 1e-6")
        if not 0 <= sum_delta < 1:
            raise BadInput(f"sum_delta = {sum_delta}: must lie in [0, 1), such as 1e-6")
        self.limit, self.spread_delta, self.sum_delta = epsilon, spread_delta, sum_delta
        self._squares = self._deltas = 0.0

    @property
    def largest_sum_of_squares(self) -> float:
        """The largest sum of the squares of the steps' epsilons: there ``epsilon_of`` reaches the limit."""
        log = math.log(1 / self.spread_delta)
        return (2 * self.limit / (math.sqrt(2 * log) + math.sqrt(2 * log + 2 * self.limit))) ** 2

    @property
    def epsilon(self) -> float:
        """The epsilon of the steps so far."""
        return spread(self._squares, self.spread_delta)

    @property
    def delta(self) -> float:
        """The delta of the steps so far: ``spread_delta`` and the sum of their deltas; 0 before the first step."""
        return self.spread_delta + self._deltas if self._squares or self._deltas else 0.0

    def can_run(self, epsilon: float, delta: float) -> bool:
        """Return whether a step of that cost still fits. Raises `BadInput`: a cost that is negative or not a number."""
        if not (0 <= epsilon < math.inf and 0 <= delta <= 1):
            raise BadInput(f"a step of epsilon = {epsilon}, delta = {delta}: both must be finite and not negative")
        squares, deltas = self._squares + epsilon**2, self._deltas + delta
        return spread(squares, self.spread_delta) <= self.limit and deltas <= self.sum_delta

    def charge(self, epsilon: float, delta: float) -> None:
        """Count a step before it runs; `RunFailed`, and nothing is counted, if it does not fit."""
        if not self.can_run(epsilon, delta):
            raise RunFailed(
                f"a step of epsilon = {epsilon:.4g}, delta = {delta:.3g} would exceed epsilon = {self.limit:g} in all: "
                "stopped before spending more than the budget"
            )
        self._squares += epsilon**2
        self._deltas += delta


def spread(squares: float, delta: float) -> float:
    """Epsilon of steps whose squared epsilons add up to ``squares``: ``sqrt(2 ln(1/delta) squares) + squares / 2``."""
    return math.sqrt(2 * math.log(1 / delta) * squares) + squares / 2


@dataclass(frozen=True)
class StepBudget:
    """The division of a budget over an unknown number of steps of random cost.

    *Formal guarantees.* Unit: a record; relation: replace-one, n public. Let each call of the oracle be (e, d)-DP in
    its batch, with e = `oracle_epsilon` and d = `oracle_delta`. A step of level N draws 2^(N+1) of n records in secret.

    tight: a record of the batch enters the batch's mean and that of ONE half, so the three are (2e, 2d)-DP given the
    batch, and with q = 2^(N+1) / n sampling makes them (ln(1 + q (exp(2e) - 1)), 2 q d)-DP (Balle, Barthe, Gaboardi
    2018, Theorem 9); the single record, drawn independently, adds (ln(1 + (exp(e) - 1) / n), d / n). The filter has
    all of epsilon, and delta / 2 for each of its parts.
    paper: as printed, with three calls for two, ``ln(1 + q (exp(t) - 1)) <= 2 q t`` for t <= 1, e = epsilon / 32,
    d = delta / 16, and a filter of (epsilon / 2, delta / 2): a step costs ``(3 2^(N+1) + 1) / (16 n)`` of both.

    Levels are drawn without the data, so the costs are predictable, and what the filter accepts is (epsilon, delta)-DP
    in all, every iterate and the number of steps included. Given the levels, costs are even fixed numbers. Raises
    `BadInput`: an argument out of range.
    """

    records: int  # n, at least 2
    epsilon: float  # > 0; at most 1 for paper
    delta: float  # in (0, 1); below 1 / n^2 for paper, where the length of the run is analysed
    accounting: Accounting = "tight"  # "tight" or "paper"
    oracle_share: float = 0.25  # e / epsilon for tight, in (0, 1]; more of it makes fewer steps with less noise each
    # how many runs share the budget, at least 1: each ends where its share of the squares of the steps' epsilons, or of
    # their deltas, does. All runs together then pass the filter of one
    runs: int = 1

    def __post_init__(self) -> None:
        if self.records < 2:
            raise BadInput(f"records = {self.records}: a batch of two halves needs at least 2")
        if not 0 < self.epsilon < math.inf or not 0 < self.delta < 1:
            raise BadInput(f"epsilon = {self.epsilon}, delta = {self.delta}: a positive number and one in (0, 1)")
        if not 0 < self.oracle_share <= 1:
            raise BadInput(f"oracle_share = {self.oracle_share}: must lie in (0, 1]")
        if self.runs < 1:
            raise BadInput(f"runs = {self.runs}: there must be at least one")
        if self.accounting == "paper" and not (self.epsilon <= 1 and self.delta * self.records**2 < 1):
            raise BadInput(
                f"epsilon = {self.epsilon:g}, delta = {self.delta:g}: accounting = 'paper' is analysed for "
                f"epsilon <= 1 and delta < 1/n^2 = {self.records**-2:.3g}; lower them, or use accounting = 'tight'"
            )

    @property
    def oracle_epsilon(self) -> float:
        """e, of one call of the oracle."""
        return self.epsilon * (1 / 32 if self.accounting == "paper" else self.oracle_share)

    @property
    def oracle_delta(self) -> float:
        """d, of one call of the oracle."""
        return self.delta / 16

    @cached_property
    def noise_multiplier(self) -> float:
        """Return a Gaussian oracle's noise multiplier: the classical formula (paper; e <= 1) or the exact one."""
        if self.accounting == "paper":
            return classical_multiplier(self.oracle_epsilon, self.oracle_delta)
        return calibrate_noise(self.oracle_epsilon, self.oracle_delta, 1)

    @cached_property
    def levels(self) -> TruncatedGeometric:
        """The law of N."""
        return TruncatedGeometric.for_records(self.records)

    @cached_property
    def step_epsilons(self) -> Numbers:
        """(M + 1,): what a step of each level costs."""
        n, e = self.records, self.oracle_epsilon
        if self.accounting == "paper":
            return np.asarray((3 * self.levels.batches + 1) / (16 * n) * self.epsilon)
        return amplified(2 * e, self.levels.batches / n) + amplified(e, np.array(1 / n))

    @cached_property
    def step_deltas(self) -> Numbers:
        """(M + 1,): the deltas that go with them."""
        uses = 3 if self.accounting == "paper" else 2
        return np.asarray((uses * self.levels.batches + 1) * (self.oracle_delta / self.records))

    def filter(self) -> PrivacyFilter:
        """A fresh filter with a run's share of the budget."""
        if self.accounting == "paper":
            whole = PrivacyFilter(self.epsilon / 2, self.delta / 4, self.delta / 4)
        else:
            whole = PrivacyFilter(self.epsilon, self.delta / 2, self.delta / 2)
        if self.runs == 1:
            return whole
        share = spread(whole.largest_sum_of_squares / self.runs, whole.spread_delta)
        return PrivacyFilter(share, whole.spread_delta, whole.sum_delta / self.runs)

    def draw_levels(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """(T,): the levels of one run; the level that is drawn next does not fit, and ends it."""
        limit = self.filter()
        levels: list[int] = []
        while True:
            level = int(self.levels.sample(rng, 1)[0])
            epsilon, delta = self.step_epsilons[level], self.step_deltas[level]
            if not limit.can_run(epsilon, delta):
                return np.array(levels, dtype=np.int64)
            limit.charge(epsilon, delta)
            levels.append(level)

    def spent(self, levels: NDArray[np.int64]) -> float:
        """Epsilon of steps of these levels, by the filter's own composition."""
        return spread(float((self.step_epsilons[levels] ** 2).sum()), self.filter().spread_delta)

    def simulated_lengths(self, repeats: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(repeats,): T of so many simulated runs. No data are looked at: the law of T does not depend on them."""
        limit, steps = self.filter(), max(1, _BLOCK // repeats)
        lengths, alive = np.zeros(repeats, dtype=np.int64), np.arange(repeats)
        squares, deltas = np.zeros((repeats, 1)), np.zeros((repeats, 1))
        while len(alive):
            levels = self.levels.sample(rng, (len(alive), steps))
            squares = squares[:, -1:] + np.cumsum(self.step_epsilons[levels] ** 2, axis=1)
            deltas = deltas[:, -1:] + np.cumsum(self.step_deltas[levels], axis=1)
            runs = (squares <= limit.largest_sum_of_squares) & (deltas <= limit.sum_delta)
            lengths[alive] += runs.sum(axis=1)
            alive, squares, deltas = alive[runs[:, -1]], squares[runs[:, -1]], deltas[runs[:, -1]]
        return lengths


def amplified(epsilon: float, rate: Numbers) -> Numbers:
    """Epsilon of an epsilon-private mechanism on a secret share ``rate`` of the records, drawn without replacement.

    Beyond what floats hold, a bound on it: ``1 + q (exp(e + x) - 1) <= exp(x) (1 + q (exp(e) - 1))``.
    """
    held = min(epsilon, _HELD)
    return np.asarray(np.log1p(rate * math.expm1(held)) + (epsilon - held))


@lru_cache(maxsize=64)
def typical_length(budget: StepBudget) -> int:
    """tau: three runs in four have more steps than this (by simulation); at least 1."""
    lengths = budget.simulated_lengths(_REPEATS, stream(0, "sampling"))
    return max(1, int(np.quantile(lengths, 0.25, method="lower")))


def convex_rate(distance: float, second_moment: float, length: int) -> float:
    """``D / (nu sqrt(tau))``, the step size of Theorem 5.7, with D the distance from the start to the minimiser."""
    return distance / math.sqrt(second_moment * length)


def stationary_rate(gap: float, smoothness: float, second_moment: float, length: int) -> float:
    """``sqrt(Gamma / (H tau nu^2))``, at most ``1 / (2H)``: the step size of Theorem 5.8, for losses not convex.

    Gamma, ``gap``, is how far the loss at the start lies above its minimum.
    """
    return min(math.sqrt(gap / (smoothness * length * second_moment)), 1 / (2 * smoothness))
