"""Descent on the mean of users' gradients without any privacy: the reference."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from strategies.core.about import About, Fact
from strategies.core.public_facts import Given, Price
from strategies.core.recipe import Recipe
from strategies.core.results import Noise, Step
from strategies.core.scheme import Number, Outline, Scheme
from strategies.quasi_newton import BoxDescent
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.problems import Box, Problem
from userdp.sampling import FixedSizeBatches
from userdp.state import State, Stateful

log = logging.getLogger("userdp")

ADAM_RATE = 0.02  # Default step size of Adam, before it falls
SHARE, LEAST, MOST = 0.1, 100, 1000  # Default cohort of Adam: a share of the users, within bounds


@dataclass
class Momentum(Stateful):
    """The memory of accelerated descent: the last model, the weight of the extrapolation, the last step's length."""

    remembered: ClassVar[tuple[str, ...]] = ("previous", "weight", "moved")
    previous: Vector | None = None
    weight: float = 1.0
    moved: float = math.inf


@dataclass
class Search(Stateful):
    """The memory of a descent that needs no step size."""

    remembered: ClassVar[tuple[str, ...]] = ("lost",)
    parts: ClassVar[tuple[str, ...]] = ("descent",)
    given: ClassVar[tuple[str, ...]] = ("begin",)
    begin: Callable[[Vector], BoxDescent]  # makes the descent from a start
    descent: BoxDescent | None = None  # None before the first gradient
    lost: int = 0  # users without a finite gradient at the last accepted point

    def new_part(self, attribute: str, state: State) -> BoxDescent:
        """Make the descent, from any start."""
        return self.begin(state["best"])


@dataclass
class Following(Stateful):
    """The memory of Adam over cohorts."""

    parts: ClassVar[tuple[str, ...]] = ("optimiser",)
    optimiser: ServerOptimiser


@dataclass(frozen=True, kw_only=True)
class ReferenceScheme(Scheme):
    """A `Scheme` without any privacy."""

    domain: Box
    rounds: int  # the largest number of rounds
    tolerance: float
    users: int
    rate: float | None  # step size; None where gradients determine the steps
    cohorts: FixedSizeBatches | None = None  # of Adam; None where everybody takes part in every round

    def ask(self, index: int, memory: Momentum | Search | Following) -> Request | None:
        """See `Scheme`; asks for gradients until the descent has converged."""
        if self._done(memory):
            return None
        users = np.arange(self.users) if self.cohorts is None else self.cohorts.cohort(index)
        return Request(users, Computation("user_gradient", reduce="sum"))

    def take(
        self, index: int, x: Vector, gathered: Gathered, memory: Momentum | Search | Following, noise: Noise
    ) -> Step:
        asked = self.users if self.cohorts is None else self.cohorts.batch
        gradient = gathered.values / (asked - gathered.missing)
        if isinstance(memory, Following):
            # Adam's steps shrink to none over the second half of the rounds.
            part = min(1.0, 2 * (1 - index / self.rounds))
            x = self.domain.project(x + part * (memory.optimiser.step(x, gradient) - x))
            return Step(x, x)
        if isinstance(memory, Momentum):
            step = self._accelerated(x, gradient, memory)
        else:
            step = self._searched(gathered, x, gradient, memory)
        if index + 1 == self.rounds and not self._done(memory):
            log.warning(
                "training without privacy did not converge in %d rounds, so it is no measure of what privacy costs: "
                "raise strategy.rounds of non_private",
                self.rounds,
            )
        return step

    def _done(self, memory: Momentum | Search | Following) -> bool:
        """Return whether the last step was short, or the descent has converged; gradients of cohorts do not vanish."""
        if isinstance(memory, Momentum):
            return memory.moved <= self.tolerance
        return isinstance(memory, Search) and memory.descent is not None and memory.descent.converged

    def _accelerated(self, x: Vector, gradient: Vector, memory: Momentum) -> Step:
        assert self.rate is not None
        new = self.domain.project(x - self.rate * gradient)
        previous = x if memory.previous is None else memory.previous
        memory.moved = float(np.abs(new - x).max())
        memory.previous = new
        if gradient @ (new - previous) > 0:
            memory.weight = 1.0
        following = (1 + math.sqrt(1 + 4 * memory.weight**2)) / 2
        pushed = new + (memory.weight - 1) / following * (new - previous)
        memory.weight = following
        return Step(self.domain.project(pushed), new)

    def _searched(self, gathered: Gathered, x: Vector, gradient: Vector, memory: Search) -> Step:
        """Step by `BoxDescent` and release its best point; a zero for an overflow is no sign of a minimum."""
        lost = gathered.non_finite + gathered.broken_sums
        if memory.descent is None:
            memory.descent, memory.lost = memory.begin(x), lost
        memory.descent.tell(gradient, usable=lost <= memory.lost)
        return Step(memory.descent.point, memory.descent.best, {"gradient_share_private": memory.descent.share})


class NonPrivate(Recipe):
    """The minimiser of the mean over users of each user's average loss: the reference for the cost of privacy.

    Convex losses are minimised by a quasi-Newton method, whose steps follow from gradients. Without certified
    convexity, or with a step size, it is accelerated gradient descent. Losses without a certificate, as of modules, are
    trained by Adam over random cohorts: a good model, but no minimum, so a private one may be better.

    *Formal guarantees.* *Claim.* None. Nothing is clipped and no noise is added: what privacy costs is measured
    from here.
    """

    about: ClassVar[About] = About(
        name="non_private",
        summary_line="no privacy at all: the reference that private runs are compared with",
        family="reference",
        cost="node O(N d), one sum of d numbers up; server O(K d)",
        paper="Nocedal 1980 within bounds; Nesterov 1983 where convexity is not certified; Kingma, Ba 2015 for modules",
        units=("user", "sample"),
        hears_silence=True,
        pure=True,  # any budget goes with no promise
        masked=True,  # and so does any trust
        without_comparison="training without privacy has no budget to compare with",
        without_secure_noise="it adds no noise at all",
        promise="none",
        example={"rounds": 3},
        meanings={
            "tolerance": "share of the first gradient at which it stops; with a step size, length of the last step"
        },
        notes={"gradient_share_private": Fact("private", "what is left of the first gradient, without privacy")},
    )

    optimiser: Literal["descent", "adam"] | None = None
    """descent: exact gradients of all users; adam: Adam over random cohorts, with a step that falls to zero over the
    second half of the rounds. If not given, adam where the loss certifies neither convexity nor smoothness, as that of
    a module does not."""
    rounds: int = Field(200, ge=1, description="Rounds of adam; most rounds of descent, which stops once converged.")
    cohort: int | None = Field(
        None,
        ge=1,
        description=f"Users a round of adam; {SHARE:.0%} of all if not given, at least {LEAST} and at most {MOST}.",
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Step size of accelerated descent; if not given, convex losses need none, and others take 0.5; "
        f"{ADAM_RATE} for adam.",
    )
    tolerance: float = Field(1e-7, gt=0)
    """Descent stops when this share of the first gradient is left; with a step size, when a step moves no coordinate by
    more than this."""

    def scheme(self, given: Given) -> ReferenceScheme:
        certificate = given.problem.certificate
        uncertified = not certificate.convex and certificate.smoothness is None
        if (self.optimiser or ("adam" if uncertified else "descent")) == "adam":
            return self._adam(given)
        if self.cohort is not None:
            raise BadInput(
                f"strategy.cohort = {self.cohort} without optimiser = 'adam': descent takes everybody in every "
                "round; leave strategy.cohort out, or set strategy.optimiser = 'adam'"
            )
        rate = self.learning_rate or (None if certificate.convex else given.default_step)
        return self._scheme(given, Momentum if rate else partial(Search, partial(self._descent, given.problem)), rate)

    def _adam(self, given: Given) -> ReferenceScheme:
        """Return Adam over cohorts, with the defaults of the private strategies, its adaptivity excepted."""
        usual = min(given.users, max(LEAST, min(MOST, round(SHARE * given.users))))
        cohorts = FixedSizeBatches(given.users, self.cohort or usual, self.rounds, given.seed)
        rate = self.learning_rate or ADAM_RATE
        # No noise hides small gradients, so their coordinates may move as far as those of large ones.
        settings = ServerOptions.model_validate({"server_optimiser": "adam", "adaptivity": 1e-6})
        return self._scheme(given, lambda: Following(ServerOptimiser(settings, rate, given.dimension)), rate, cohorts)

    def _scheme(
        self, given: Given, memory: Callable[[], Stateful], rate: float | None, cohorts: FixedSizeBatches | None = None
    ) -> ReferenceScheme:
        numbers: dict[str, Number] = {} if rate is None else {"learning_rate": rate}
        if cohorts is None:
            numbers["tolerance"] = self.tolerance
        return ReferenceScheme(
            price=Price.none("this strategy adds no noise"),
            outline=Outline(
                rounds=self.rounds,
                cohort=given.users if cohorts is None else cohorts.batch,
                users_needed=1 if cohorts is None else cohorts.batch,
                noise=0.0,
                signal=math.inf,
                numbers=numbers,
            ),
            new_memory=memory,
            domain=given.problem.domain,
            rounds=self.rounds,
            tolerance=self.tolerance,
            users=given.users,
            rate=rate,
            cohorts=cohorts,
        )

    def _descent(self, problem: Problem, start: Vector) -> BoxDescent:
        domain, smoothness = problem.domain, problem.certificate.smoothness
        step = 1 / smoothness if smoothness else 0.0
        return BoxDescent(start, domain.centre - domain.radius, domain.centre + domain.radius, self.tolerance, step)
