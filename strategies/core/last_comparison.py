"""Never worse than doing nothing: in one last round users say which model serves them better, the new or the first."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from strategies.core.snapshots import Snapshot
from strategies.core.step import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee, Privacy
from userdp.accounting.ledger import check_drawn
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import LaplaceMechanism
from userdp.nodes.computations import Computation

SHARE = 0.05
"""Of epsilon."""

_DOUBT = 0.05
"""Probability of a wrong choice that the plan names a margin for."""


def check_comparison(strategy: str, objection: str | None) -> None:
    """Refuse the comparison where it makes no sense.

    Raises:
        BadInput: there is an objection.
    """
    if objection is not None:
        raise BadInput(f"output.compare_with_initial = true: {objection}; leave it out for {strategy}")


def _sum(spent: Callable[[], float], more: float) -> float:
    return spent() + more


@dataclass
class LastComparison:
    """A noisy count of the users who are better off, after the strategy's own rounds.

    *Formal guarantees.* *Claim.* With a strategy that keeps to (1 - share) epsilon and delta, the whole run keeps to
    epsilon and delta, under the strategy's relation and unit. *Why.* Each user's answer is 1/2 or -1/2, and 0 if it is
    missing or not finite. Replacing a user or one of its samples, or adding or removing them, changes one answer, and
    so the sum by at most 1. Laplace noise of scale 1 / (share epsilon) makes it purely (share epsilon)-differentially
    private. What it is asked about was released before, so it composes with the strategy by addition, whatever the
    strategy's mechanisms are. Which model is released follows from what was. All users are asked, also where cohorts
    were drawn in secret: that everybody answers tells nobody who was drawn.

    *Assumptions.* Those of the strategy. The server is trusted.

    Args:
        epsilon: of the count.
        users: n, public.
        rounds: how many there are.
        delta: that goes with epsilon: none.
        charged: whether the count was asked for.
    """

    epsilon: float
    users: int
    rounds: int = 1
    delta: float = 0.0
    charged: bool = False

    @classmethod
    def within(cls, privacy: Privacy, users: int) -> "tuple[Privacy, LastComparison]":
        """(what is left for the strategy, the comparison), of a budget."""
        own = SHARE * privacy.epsilon
        return replace(privacy, epsilon=privacy.epsilon - own), cls(own, users)

    @property
    def mechanism(self) -> LaplaceMechanism:
        """Of the sum of all answers."""
        return LaplaceMechanism(1.0, self.epsilon)

    def guarantee(self, own: Guarantee) -> Guarantee:
        """What the strategy promises, and this on top."""
        if not own.holds:
            return own
        accountant = f"{own.accountant}; a last comparison of epsilon = {self.epsilon:.3g} is added"
        return replace(own, epsilon=own.epsilon + self.epsilon, accountant=accountant).assuming(
            "the server is trusted with the count of users whom the model serves better"
        )

    def numbers(self) -> dict[str, float]:
        """Of the plan."""
        # A sum of n times the margin is turned round by the noise with that probability.
        margin = math.log(1 / (2 * _DOUBT)) / (self.epsilon * self.users)
        return {"comparison_epsilon": self.epsilon, "comparison_margin": margin}

    def spent(self, own: Callable[[], float]) -> Callable[[], float]:
        """What the strategy's ledger says NOW, and this if it is charged."""
        return partial(_sum, own, self.epsilon if self.charged else 0.0)

    def charge(self, request: Request) -> None:
        """Charge the count."""
        self.charged = True

    def check_drawn(self, drawn: Cost) -> None:
        """Refuse a count with less noise than it was charged for."""
        check_drawn(drawn, self.mechanism.cost)

    def request(self, index: int, initial: Vector) -> Request:
        """Of all users, whether the model that is sent serves them better than the initial one."""
        return Request(np.arange(self.users), Computation("improved", "sum", 0.5, arrays={"initial": initial}))

    def step(self, index: int, x: Vector, initial: Vector, gathered: Gathered, noise: Noise) -> Step:
        """Keep the model, or go back."""
        total = float(self.mechanism.release(gathered.values, noise(0))[0])
        chosen = x if total >= 0 else initial
        return Step(chosen, chosen, {"improved_share": 0.5 + total / self.users, "went_back": float(total < 0)})

    def warnings(self) -> tuple[str, ...]:
        """Nothing speaks against it."""
        return ()

    def keep(self, taken: Snapshot) -> None:
        """Write down whether it was charged."""
        taken.add("compared", self.charged)

    def recall(self, kept: Snapshot) -> None:
        """Go on from what was written down."""
        self.charged = bool(kept.get("compared"))
