"""The budget of Algorithm 5: the best of a random number of private runs, at three times the price of one.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 5, Theorem 6.1), by Liu, Talwar 2019 (Theorem 3.4). A run that
is good half of the time becomes good almost always. The page compares it with runs that share one filter.
"""

import math
from dataclasses import dataclass

from userdp.errors import BadInput
from userdp.mechanisms import require_positive


@dataclass(frozen=True)
class SelectionBudget:
    """The division of a budget over runs, the best of which is released.

    *Formal guarantees.* Unit and relation: those of runs and scores. Let a run be (`run_epsilon`, `run_delta`)-DP and
    its score `score_epsilon`-DP given the run: together (e, d)-DP with ``e = epsilon / 6`` and ``d = (delta / 4K)^2``.
    The candidate of the lowest score, of runs of which each is the last with chance gamma and the K-th is for sure, is
    ``(3e + 3 sqrt(2d), sqrt(2d) K + delta / 2)``-DP, for a K of at least
    ``max(ln(4 / delta) / gamma, 1 + exp(-1) / gamma)``. That is at most ``(epsilon / 2 + 1.07 delta / K, 0.86 delta)``,
    within the budget for ``delta <= epsilon / 10``. It covers the candidate that is given and its score, NOT the number
    of runs nor the others: whoever sees all runs gets plain composition.

    *Accuracy.* If a run is good with probability at least 1/2 and scores are exact, none of the runs is good with
    probability ``gamma / (1 + gamma)`` at most (but for the cut at K, of probability ``delta / 4``), so a gamma of
    half of ``failure`` leaves the other half to the noise of the scores.

    Raises `BadInput` for an attribute out of range.
    """

    epsilon: float  # > 0
    delta: float  # in (0, epsilon / 10]
    failure: float  # beta, in (0, 1): the chance that the result is not good

    def __post_init__(self) -> None:
        require_positive(epsilon=self.epsilon)
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
