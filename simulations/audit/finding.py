"""The result of an audit: a claim, the attack on it, and the bound that the guesses prove."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from userdp.accounting.guarantee import Guarantee
from userdp.arrays.types import Array
from userdp.audit.trade_off import Approximate, Gaussian, TradeOff

BASE_RATES = (0.01, 0.1, 0.5)  # base rates of guesses about a user, for which an epsilon is translated into success

_ROUNDING = 1e-6  # relative excess over the claim that counts as rounding


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The bound that guesses prove.

    Attributes:
        bound: how guesses bound the claim: as one of a Gaussian, as one of noisy rounds that a sampler accounts, by all
            coins of many runs, or by all coins of one run.
        guesses: number of guessed coins in the test runs; ``correct`` counts the right ones.
        mu: lower bound on mu of a Gaussian claim; None for another claim.
        measured: lower bound on epsilon at the claim's delta; of an `Audit` its ``exact`` if that is larger.
        false_positives, false_negatives: (P,) measured rates in the test runs, for the chart; none of one run.
    """

    bound: Literal["Gaussian", "rounds", "coins", "one run"]
    guesses: int
    correct: int
    mu: float | None = None
    measured: float
    false_positives: Array = field(default_factory=lambda: np.empty(0))
    false_negatives: Array = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, kw_only=True)
class Audit(Bound):
    """The result of an audit: a claim, the attack on it, and the bound that the guesses prove.

    Attributes:
        attack: description of the canaries; ``canaries``, ``users`` and ``rounds`` count those of each run.
        runs: total number, including the quarter that the attacker learns from if there are several.
        exact: smallest epsilon, at the claim's delta, of a round's discrete outcome with known probabilities, if any.
    """

    strategy: str
    guarantee: Guarantee
    attack: str
    canaries: int
    users: int
    rounds: int
    runs: int
    confidence: float
    exact: float | None = None

    @property
    def refuted(self) -> bool:
        """True if the measured epsilon exceeds the claimed one."""
        return self.measured > self.guarantee.epsilon * (1 + _ROUNDING)

    @property
    def claim(self) -> TradeOff:
        """The claimed trade-off between an attacker's two errors."""
        return claim_of(self.guarantee)

    @property
    def unrefuted(self) -> TradeOff:
        """The strongest claim of the same kind that the guesses do not refute."""
        return Approximate(self.measured, self.guarantee.delta) if self.mu is None else Gaussian(self.mu)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        claim, left = self.claim, self.unrefuted
        return {
            "claimed_epsilon": self.guarantee.epsilon,
            "delta": self.guarantee.delta,
            "unit": self.guarantee.unit,
            "relation": self.guarantee.relation,
            "guarantee": self.guarantee.sentence(),
            "assumptions": list(self.guarantee.assumptions),
            "claimed_mu": claim.mu if isinstance(claim, Gaussian) else None,
            "measured_epsilon": self.measured,
            "measured_mu": self.mu,
            "exact_epsilon": self.exact,
            **{name: getattr(self, name) for name in ("strategy", "bound", "confidence", "refuted", "attack")},
            **{name: getattr(self, name) for name in ("users", "rounds", "canaries", "runs", "guesses", "correct")},
            "most_membership_accuracy": claim.membership_accuracy,
            "most_guess_success": {str(rate): claim.guess_success(rate) for rate in BASE_RATES},
            "unrefuted_membership_accuracy": left.membership_accuracy,
            "unrefuted_guess_success": {str(rate): left.guess_success(rate) for rate in BASE_RATES},
        }


def claim_of(guarantee: Guarantee) -> TradeOff:
    """Return the claimed trade-off between an attacker's two errors."""
    if guarantee.is_one_gaussian:
        return Gaussian.of(guarantee.epsilon, guarantee.delta)
    return Approximate(guarantee.epsilon, guarantee.delta)
