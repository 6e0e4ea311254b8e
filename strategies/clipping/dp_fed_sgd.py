"""Gradient descent on the mean of users' gradients: with clipping and noise every round, or without any privacy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.clipping.clipped_rounds import ClippedOptions, ClippedRounds, ClippedScheme
from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Scheme, Step, no_ledger
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation


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

    def _make_scheme(self) -> ClippedScheme:
        computation = Computation("user_gradient", reduce="sum", clip_norm=self.options.clip_norm)
        return self._gaussian_scheme(computation, self._default_step)


class NonPrivateOptions(StrategyOptions):
    """Settings of `NonPrivate`."""

    rounds: int = Field(200, ge=1, description="Most rounds; it stops as soon as the gradient is small.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default from the loss, or 0.5.")
    tolerance: float = Field(1e-7, gt=0, description="Stop when a step moves no coordinate by more than this.")


@dataclass(frozen=True, kw_only=True)
class ExactScheme(Scheme):
    """A `Scheme` without any privacy.

    Attributes:
        rate: step size.
    """

    rate: float


@dataclass
class Momentum:
    """The memory of accelerated descent: the last step's end and length, and how far the next one is pushed on."""

    previous: Vector | None = None
    weight: float = 1.0
    moved: float = math.inf


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
    scheme: ExactScheme
    memory: Momentum

    def _make_scheme(self) -> ExactScheme:
        # A linear loss is minimised at a corner: one step that crosses the box from any gradient worth following.
        default = 1e9 if self.problem.certificate.smoothness == 0 else self._default_step
        return ExactScheme(
            guarantee=Guarantee.none("this strategy adds no noise"),
            ledger=no_ledger,
            new_memory=Momentum,
            rate=self.options.learning_rate or default,
        )

    def _make_plan(self) -> Plan:
        return self._planned(
            rounds=self.options.rounds,
            cohort=self.public.users,
            users_needed=1,
            numbers={"learning_rate": self.scheme.rate, "tolerance": self.options.tolerance},
        )

    def _ask(self, index: int) -> Request | None:
        if self.memory.moved <= self.options.tolerance:
            return None
        return Request(np.arange(self.public.users), Computation("user_gradient", reduce="sum"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        """One accelerated step; ``x`` is the extrapolated point at which nodes took their gradients."""
        memory = self.memory
        gradient = gathered.values / (self.public.users - gathered.missing)
        new = self.problem.domain.project(x - self.scheme.rate * gradient)
        previous = x if memory.previous is None else memory.previous
        memory.moved = float(np.abs(new - x).max())
        memory.previous = new
        if gradient @ (new - previous) > 0:
            memory.weight = 1.0
        following = (1 + math.sqrt(1 + 4 * memory.weight**2)) / 2
        pushed = new + (memory.weight - 1) / following * (new - previous)
        memory.weight = following
        return Step(self.problem.domain.project(pushed), new)
