"""What an audit found: a claim, how it was attacked, and what the guesses show."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.guarantee import Guarantee
from userdp.audit.trade_off import Approximate, Gaussian, TradeOff

Floats = NDArray[np.float64]

BASE_RATES = (0.01, 0.1, 0.5)
"""Of guesses about a user, for which an epsilon is translated into success."""

_ROUNDING = 1e-6
"""Relative excess over the claim that counts as rounding."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found.

    Attributes:
        strategy: its name.
        guarantee: what is claimed.
        attack: who the canaries were.
        bound: how guesses bound the claim: as one of a Gaussian, as one of noisy rounds that a sampler accounts, by all
            coins of many runs, or of one.
        canaries: in each run.
        users: of a run, canaries among them.
        rounds: of a run.
        runs: all of them, with the quarter that taught how to guess where there are several.
        guesses: how many coins were guessed in the runs of the test.
        correct: how many of them rightly.
        confidence: of the bound.
        mu: lower bound on mu where the claim is Gaussian; None where it is not.
        exact: least epsilon, at the claim's delta, of a round that begins with one of finitely many outcomes, whose
            probabilities are known; None where it does not.
        measured: lower bound on epsilon at the claim's delta; that of the guesses, or `exact` where it is larger.
        false_positives: (P,) measured in the runs of the test, for the chart; none of one run.
        false_negatives: (P,) likewise.
    """

    strategy: str
    guarantee: Guarantee
    attack: str
    bound: Literal["Gaussian", "rounds", "coins", "one run"]
    canaries: int
    users: int
    rounds: int
    runs: int
    guesses: int
    correct: int
    confidence: float
    mu: float | None
    exact: float | None
    measured: float
    false_positives: Floats
    false_negatives: Floats

    @property
    def refuted(self) -> bool:
        """Whether more was measured than is claimed."""
        return self.measured > self.guarantee.epsilon * (1 + _ROUNDING)

    @property
    def claim(self) -> TradeOff:
        """The promised trade-off between an attacker's two errors."""
        return claim_of(self.guarantee)

    @property
    def unrefuted(self) -> TradeOff:
        """The strongest claim of the same kind that the guesses leave standing."""
        return Approximate(self.measured, self.guarantee.delta) if self.mu is None else Gaussian(self.mu)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        claim = self.claim
        return {
            "strategy": self.strategy,
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
            "bound": self.bound,
            "confidence": self.confidence,
            "refuted": self.refuted,
            "attack": self.attack,
            "users": self.users,
            "rounds": self.rounds,
            "canaries": self.canaries,
            "runs": self.runs,
            "guesses": self.guesses,
            "correct": self.correct,
            "most_membership_accuracy": claim.membership_accuracy,
            "most_guess_success": _guesses(claim),
            "unrefuted_membership_accuracy": self.unrefuted.membership_accuracy,
            "unrefuted_guess_success": _guesses(self.unrefuted),
        }


def claim_of(guarantee: Guarantee) -> TradeOff:
    """The promised trade-off between an attacker's two errors."""
    if guarantee.is_one_gaussian:
        return Gaussian.of(guarantee.epsilon, guarantee.delta)
    return Approximate(guarantee.epsilon, guarantee.delta)


def _guesses(claim: TradeOff) -> dict[str, float]:
    """Base rate -> most success of a guess about a user."""
    return {str(rate): claim.guess_success(rate) for rate in BASE_RATES}
