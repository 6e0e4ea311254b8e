"""Gradient descent on the exact mean of users' gradients: the reference without any privacy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Scheme, Step, no_ledger
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation


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
