"""Private Frank-Wolfe for least squares over an l1 ball, on truncated data: Hu, Ni, Xiao, Wang 2022 (Algorithm 2)."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.composition import advanced_composition
from userdp.accounting import largest_rho, zcdp_to_epsilon
from userdp.errors import BadInput

Accounting = Literal["zcdp", "paper"]


def gradient_bound(radius: float, threshold: float) -> float:
    """Largest entry of a record's truncated gradient: ``2 (r + 1) K^2``."""
    return 2 * (radius + 1) * threshold**2


def choice_sensitivity(radius: float, threshold: float, records: float) -> float:
    """Return the sensitivity of vertices' mean scores: ``4 r (r + 1) K^2 / n``, attained at a vertex of the ball.

    The paper's ``8 ||W||_1 K^2 / n``, with ||W||_1 = 2 r, is twice that for r = 1 and too small, not private, for
    r > 3.
    """
    return 2 * radius * gradient_bound(radius, threshold) / records


def default_threshold(
    records: int, dimension: int, rounds: int, epsilon: float, fourth_moment: float, failure: float
) -> float:
    """K that minimises the explicit bound on a round's error: ``(M n / (ln(2(d^2+d)/zeta)/3 + ln(2dT/zeta)/e))^(1/4)``.

    Up to logarithms it is the paper's ``(n epsilon)^(1/4) / T^(1/8)``, but it follows the units of the data.
    ``epsilon`` e is of a round; M bounds the mean of ``(a_j a_k)^2`` and of ``y^4``.
    """
    tails = math.log(2 * (dimension**2 + dimension) / failure) / 3
    choice = math.log(2 * dimension * rounds / failure) / epsilon
    return float((fourth_moment * records / (tails + choice)) ** 0.25)


@dataclass(frozen=True)
class Selections:
    """Exponential mechanisms of one epsilon on all users' data, round after round, and what they cost together.

    *Formal guarantees.* Relation: replace-one. "zcdp": a choice of epsilon e is ``e^2 / 8``-zCDP
    (`ExponentialMechanism`), so it costs what a Gaussian of noise multiplier ``2 / e`` does; rho adds up over rounds.
    "paper": advanced composition of pure steps, the formula of Dwork, Roth 2014, with all of delta as slack. A
    `userdp.accounting.Scheme`.
    """

    users: int  # n
    rounds: int  # T
    accounting: Accounting

    def cohort(self, index: int) -> NDArray[np.int64]:
        """All users, every round."""
        return np.arange(self.users)

    def multiplier(self, index: int, noise_multiplier: float) -> float:
        """The same in all rounds."""
        return noise_multiplier

    def epsilon(self, noise_multiplier: float, delta: float, rounds: int | None = None) -> float:
        """Return epsilon of ``rounds`` rounds (all if not given), each of epsilon ``2 / noise_multiplier``."""
        played = self.rounds if rounds is None else rounds
        if played == 0:
            return 0.0
        if self.accounting == "zcdp":
            return zcdp_to_epsilon(played / (2 * noise_multiplier**2), delta)
        return advanced_composition(2 / noise_multiplier, 0.0, played, delta)[0]

    def calibrate(self, epsilon: float, delta: float) -> float:
        """Epsilon of each round: ``sqrt(8 rho / T)``, or the paper's ``epsilon / (2 sqrt(2 T ln(1/delta)))``.

        The paper's spends about half of the budget, whatever the accountant. Raises `BadInput`: "paper" where its steps
        compose to more than the budget, as they may for epsilon above 1.
        """
        if self.accounting == "zcdp":
            return math.sqrt(8 * largest_rho(epsilon, delta) / self.rounds)
        each = epsilon / (2 * math.sqrt(2 * self.rounds * math.log(1 / delta)))
        spent = self.epsilon(2 / each, delta)
        if not spent <= epsilon:
            raise BadInput(
                f"accounting = 'paper': {self.rounds} rounds of the paper's epsilon {each:.4g} compose to {spent:.4g}, "
                f"more than epsilon = {epsilon:g} at delta = {delta:g}; use accounting = 'zcdp'"
            )
        return each
