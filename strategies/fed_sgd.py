"""Gradient descent on the mean of users' gradients: with clipping and noise every round, or without any privacy."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.clipped_rounds import ClippedOptions, ClippedRounds
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import Guarantee
from userdp.computations import Computation
from userdp.problems.base import Vector


class DPFedSGDOptions(ClippedOptions):
    """Settings of `DPFedSGD`."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's average gradient is clipped to.")
    learning_rate: float | None = Field(
        None, gt=0, description="Step size; default 1 / smoothness, or 0.5; 0.1 for adam."
    )


class DPFedSGD(ClippedRounds):
    """Clipped mean of user gradients plus Gaussian noise, every round.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss; replace-one, or
    add-or-remove for Poisson cohorts. *Why.* Unit: one whole user; relation: replace-one with n public
    (add-or-remove for poisson). Each user's average gradient is clipped to l2 norm C and all users weigh the same,
    so replacing one moves the sum by at most 2C (adding or removing one by C); the divisor is the planned cohort
    whatever the number that was drawn or answered, and the noise is calibrated to that sensitivity, also in a round
    that drew nobody. disjoint and cyclic: rounds in which a user takes part compose as one Gaussian mechanism
    (exact), disjoint cohorts in parallel. poisson and fixed_size: every round costs, amplified by sampling, while
    cohorts stay secret. Every iterate is released: nodes are protected from each other; the server is trusted.
    Nodes clip and sum; an answer larger than clipped users can add up to is refused. The sampler that draws the
    cohorts is the one that accounts them.

    *Assumptions.* The server is trusted. Nodes clip each of their users and return the sum; a sum larger than
    clipped users can add up to is refused. Disjoint and cyclic: n and who takes part are public. Poisson and fixed
    size: cohorts stay secret.
    """

    name: ClassVar[str] = "dp_fed_sgd"
    summary_line: ClassVar[str] = "mean of clipped user gradients with noise, every round"
    family: ClassVar[str] = "clipping"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "McMahan, Ramage, Talwar, Zhang 2018"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    Options: ClassVar[type[StrategyOptions]] = DPFedSGDOptions
    options: DPFedSGDOptions

    def _computation(self) -> Computation:
        return Computation("user_gradient", reduce="sum", clip_norm=self._clip)

    def _default_rate(self) -> float:
        return self._default_step


class NonPrivateOptions(StrategyOptions):
    """Settings of `NonPrivate`."""

    rounds: int = Field(200, ge=1, description="Most rounds; it stops as soon as the gradient is small.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default from the loss, or 0.5.")
    tolerance: float = Field(1e-7, gt=0, description="Stop when a step moves no coordinate by more than this.")


class NonPrivate(UserLevelStrategy):
    """Accelerated gradient descent on the exact mean of user gradients: what privacy costs is measured from here.

    *Formal guarantees.* *Claim.* None. Nothing is clipped and no noise is added: what privacy costs is measured
    from here.
    """

    name: ClassVar[str] = "non_private"
    summary_line: ClassVar[str] = "no privacy at all: the reference that private runs are compared with"
    family: ClassVar[str] = "reference"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "Nesterov 1983, with the restart of O'Donoghue and Candes 2015"
    units: ClassVar[tuple[str, ...]] = ("user", "sample")
    pure: ClassVar[bool] = True  # any budget goes with no promise
    without_secure_noise: ClassVar[str | None] = "it adds no noise at all"
    promise: ClassVar[str] = "none"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "tolerance": "stop when a step moves no coordinate by more",
    }
    Options: ClassVar[type[StrategyOptions]] = NonPrivateOptions
    options: NonPrivateOptions

    def _make_plan(self) -> Plan:
        n, certificate = self.public.users, self.problem.certificate
        self._rate = self.options.learning_rate or self._default_step
        if certificate.smoothness == 0:
            # A linear loss is minimised at a corner: one step that crosses the box from any gradient worth following.
            self._rate = self.options.learning_rate or 1e9
        self._previous: Vector | None = None
        self._momentum = 1.0
        self._moved = math.inf
        return Plan(
            strategy=self.name,
            rounds=self.options.rounds,
            cohort=n,
            users=n,
            users_needed=1,
            guarantee=Guarantee.none("this strategy adds no noise"),
            numbers={"learning_rate": self._rate, "tolerance": self.options.tolerance},
        )

    def _done(self, index: int) -> bool:
        return self._moved <= self.options.tolerance

    def _ask(self, index: int) -> Request:
        return Request(np.arange(self.public.users), Computation("user_gradient", reduce="sum"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        """One accelerated step; ``x`` is the extrapolated point at which nodes took their gradients."""
        gradient = gathered.values / (self.public.users - gathered.missing)
        new = self.problem.domain.project(x - self._rate * gradient)
        previous = x if self._previous is None else self._previous
        self._moved = float(np.abs(new - x).max())
        self._previous = new
        if gradient @ (new - previous) > 0:
            self._momentum = 1.0
        following = (1 + math.sqrt(1 + 4 * self._momentum**2)) / 2
        pushed = new + (self._momentum - 1) / following * (new - previous)
        self._momentum = following
        return self.problem.domain.project(pushed), new
