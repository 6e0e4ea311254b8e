"""Exact descent on the mean of users' gradients: the reference without any privacy."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Fact
from strategies.core.options import StrategyOptions
from strategies.core.plan import Number, Plan
from strategies.core.scheme import Scheme, Step, no_ledger
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation
from userdp.papers.quasi_newton import BoxDescent

log = logging.getLogger("userdp")


class NonPrivateOptions(StrategyOptions):
    """Settings of `NonPrivate`."""

    rounds: int = Field(200, ge=1, description="Most rounds; it stops as soon as it has converged.")
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Step size of accelerated descent; if not given, convex losses need none, and others take 0.5.",
    )
    tolerance: float = Field(
        1e-7,
        gt=0,
        description="Stop when this share of the first gradient is left; with a step size, when a step moves no "
        "coordinate by more than this.",
    )


@dataclass(frozen=True, kw_only=True)
class ExactScheme(Scheme):
    """A `Scheme` without any privacy.

    Attributes:
        rate: step size of accelerated descent; None where steps are found from gradients.
    """

    rate: float | None


@dataclass
class Momentum:
    """The memory of accelerated descent: the last step's end and length, and how far the next one is pushed on."""

    previous: Vector | None = None
    weight: float = 1.0
    moved: float = math.inf

    def done(self, tolerance: float) -> bool:
        """Whether the last step was short."""
        return self.moved <= tolerance


@dataclass
class Search:
    """The memory of a descent that needs no step size.

    Attributes:
        descent: None before the first gradient.
        lost: users without a finite gradient at the last accepted point.
    """

    descent: BoxDescent | None = None
    lost: int = 0

    def done(self, tolerance: float) -> bool:
        """Whether it has converged."""
        return self.descent is not None and self.descent.converged


class NonPrivate(UserLevelStrategy):
    """The minimiser of the mean over users of each user's average loss: what privacy costs is measured from here.

    Convex losses are minimised by a quasi-Newton method that finds its steps from gradients, whatever smoothness is
    certified. Where convexity is not certified, or with a step size, it is accelerated gradient descent.

    *Formal guarantees.* *Claim.* None. Nothing is clipped and no noise is added: what privacy costs is measured
    from here.
    """

    name: ClassVar[str] = "non_private"
    summary_line: ClassVar[str] = "no privacy at all: the reference that private runs are compared with"
    family: ClassVar[str] = "reference"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "Nocedal 1980 within bounds; Nesterov 1983 where convexity is not certified"
    units: ClassVar[tuple[str, ...]] = ("user", "sample")
    pure: ClassVar[bool] = True  # any budget goes with no promise
    without_comparison: ClassVar[str | None] = "training without privacy has no budget to compare with"
    without_secure_noise: ClassVar[str | None] = "it adds no noise at all"
    promise: ClassVar[str] = "none"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "tolerance": "share of the first gradient at which it stops; with a step size, length of the last step",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "gradient_share_private": Fact("private", "what is left of the first gradient, without privacy"),
    }
    Options: ClassVar[type[StrategyOptions]] = NonPrivateOptions
    options: NonPrivateOptions
    scheme: ExactScheme
    memory: Momentum | Search

    def _make_scheme(self) -> ExactScheme:
        rate = self.options.learning_rate or (None if self.problem.certificate.convex else self._default_step)
        return ExactScheme(
            guarantee=Guarantee.none("this strategy adds no noise"),
            ledger=no_ledger,
            new_memory=Search if rate is None else Momentum,
            rate=rate,
        )

    def _make_plan(self) -> Plan:
        rate = self.scheme.rate
        numbers: dict[str, Number] = {} if rate is None else {"learning_rate": rate}
        return self._planned(
            rounds=self.options.rounds,
            cohort=self.public.users,
            users_needed=1,
            numbers={**numbers, "tolerance": self.options.tolerance},
        )

    def _ask(self, index: int) -> Request | None:
        if self.memory.done(self.options.tolerance):
            return None
        return Request(np.arange(self.public.users), Computation("user_gradient", reduce="sum"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        """One step; ``x`` is where nodes took their gradients."""
        gradient = gathered.values / (self.public.users - gathered.missing)
        move = self._accelerated if isinstance(self.memory, Momentum) else partial(self._searched, gathered)
        step = move(x, gradient)
        if index + 1 == self.options.rounds and not self.memory.done(self.options.tolerance):
            log.warning(
                "training without privacy did not converge in %d rounds, so it is no measure of what privacy costs: "
                "raise strategy.rounds of non_private",
                self.options.rounds,
            )
        return step

    def _accelerated(self, x: Vector, gradient: Vector) -> Step:
        """A step of accelerated descent from the extrapolated point ``x``."""
        memory = self.memory
        assert isinstance(memory, Momentum)
        assert self.scheme.rate is not None
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

    def _searched(self, gathered: Gathered, x: Vector, gradient: Vector) -> Step:
        """A step of `BoxDescent`, which releases the best point so far.

        A user whose gradient overflows at ``x`` counts as zero, which looks like a minimum: it is none.
        """
        memory = self.memory
        assert isinstance(memory, Search)
        lost = gathered.non_finite + gathered.broken_sums
        if memory.descent is None:
            memory.descent, memory.lost = self._descent(x), lost
        memory.descent.tell(gradient, usable=lost <= memory.lost)
        return Step(memory.descent.point, memory.descent.best, {"gradient_share_private": memory.descent.share})

    def _descent(self, start: Vector) -> BoxDescent:
        domain = self.problem.domain
        smoothness = self.problem.certificate.smoothness
        step = 1 / smoothness if smoothness else 0.0
        return BoxDescent(
            start, domain.centre - domain.radius, domain.centre + domain.radius, self.options.tolerance, step
        )
