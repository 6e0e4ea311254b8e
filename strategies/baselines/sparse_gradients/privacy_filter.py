"""A privacy filter: a budget for steps whose number and costs are chosen on the way.

Whitehouse, Ramdas, Rogers, Wu 2023 (Theorem 1).
"""

import math

from userdp.errors import BadInput, RunFailed
from userdp.mechanisms import require_positive


class PrivacyFilter:
    """Charges steps as long as all of them together stay within a budget.

    *Formal guarantees.* Unit and relation: those of the steps. Let step t be (e_t, d_t)-DP given all earlier outputs,
    with e_t and d_t fixed before it runs, from earlier outputs and coins that do not depend on data. If every step is
    run only if `can_run`, and is charged, then all outputs together are (epsilon, spread_delta + sum_delta)-DP, however
    many there are and whatever decides it: advanced composition holds with stopping times at no extra cost.

    ``spread_delta`` in (0, 1) is delta' of Theorem 1, what the deviation of the privacy loss may cost; ``sum_delta`` in
    [0, 1) is delta'', what the steps' own deltas may add up to. Raises `BadInput` for an argument out of range.
    """

    def __init__(self, epsilon: float, spread_delta: float, sum_delta: float) -> None:
        require_positive(epsilon=epsilon)
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
        """Count a step, before it runs.

        Raises `RunFailed`: it does not fit; nothing is counted then; `BadInput`: a cost that is negative or not a
        number.
        """
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
