"""Descent on the mean of users' gradients without any privacy: the reference."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Fact
from strategies.core.options import StrategyOptions
from strategies.core.plan import Number, Plan
from strategies.core.scheme import Scheme, Step, no_ledger
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Guarantee
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.papers.quasi_newton import BoxDescent
from userdp.sampling import FixedSizeBatches
from userdp.state import State, Stateful

log = logging.getLogger("userdp")

ADAM_RATE = 0.02
"""Default step size of Adam, before it falls."""
SHARE, LEAST, MOST = 0.1, 100, 1000
"""Default cohort of Adam: a share of the users, within bounds."""


class NonPrivateOptions(StrategyOptions):
    """Settings of `NonPrivate`."""

    optimiser: Literal["descent", "adam"] | None = Field(
        None,
        description="descent: exact gradients of all users; adam: Adam over random cohorts, with a step that falls to "
        "zero over the second half of the rounds. If not given, adam where the loss certifies neither convexity nor "
        "smoothness, as that of a module does not.",
    )
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
    tolerance: float = Field(
        1e-7,
        gt=0,
        description="Descent stops when this share of the first gradient is left; with a step size, when a step moves "
        "no coordinate by more than this.",
    )


@dataclass(frozen=True, kw_only=True)
class ReferenceScheme(Scheme):
    """A `Scheme` without any privacy.

    Attributes:
        rate: step size; None where steps are found from gradients.
        cohorts: of Adam; None where everybody takes part in every round.
    """

    rate: float | None
    cohorts: FixedSizeBatches | None = None


@dataclass
class Momentum(Stateful):
    """The memory of accelerated descent: the last step's end and length, and how far the next one is pushed on."""

    remembered: ClassVar[tuple[str, ...]] = ("previous", "weight", "moved")
    previous: Vector | None = None
    weight: float = 1.0
    moved: float = math.inf

    def done(self, tolerance: float) -> bool:
        """Whether the last step was short."""
        return self.moved <= tolerance


@dataclass
class Search(Stateful):
    """The memory of a descent that needs no step size.

    Attributes:
        begin: makes the descent from a start.
        descent: None before the first gradient.
        lost: users without a finite gradient at the last accepted point.
    """

    remembered: ClassVar[tuple[str, ...]] = ("lost",)
    parts: ClassVar[tuple[str, ...]] = ("descent",)
    given: ClassVar[tuple[str, ...]] = ("begin",)
    begin: Callable[[Vector], BoxDescent]
    descent: BoxDescent | None = None
    lost: int = 0

    def done(self, tolerance: float) -> bool:
        """Whether it has converged."""
        return self.descent is not None and self.descent.converged

    def new_part(self, attribute: str, state: State) -> BoxDescent:
        """The descent, from anywhere."""
        return self.begin(state["best"])


@dataclass
class Following(Stateful):
    """The memory of Adam over cohorts."""

    parts: ClassVar[tuple[str, ...]] = ("optimiser",)
    optimiser: ServerOptimiser

    def done(self, tolerance: float) -> bool:
        """Never: gradients of cohorts do not vanish."""
        return False


class NonPrivate(UserLevelStrategy):
    """The minimiser of the mean over users of each user's average loss: what privacy costs is measured from here.

    Convex losses are minimised by a quasi-Newton method that finds its steps from gradients, whatever smoothness is
    certified. Where convexity is not certified, or with a step size, it is accelerated gradient descent. Losses that
    certify nothing, those of modules, are trained as is usual for them, by Adam over random cohorts: a good model, but
    no minimum, so a private one may come out ahead.

    *Formal guarantees.* *Claim.* None. Nothing is clipped and no noise is added: what privacy costs is measured
    from here.
    """

    name: ClassVar[str] = "non_private"
    summary_line: ClassVar[str] = "no privacy at all: the reference that private runs are compared with"
    family: ClassVar[str] = "reference"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = (
        "Nocedal 1980 within bounds; Nesterov 1983 where convexity is not certified; Kingma, Ba 2015 for modules"
    )
    units: ClassVar[tuple[str, ...]] = ("user", "sample")
    hears_silence: ClassVar[bool] = True
    pure: ClassVar[bool] = True  # any budget goes with no promise
    masked: ClassVar[bool] = True  # and so does any trust
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
    scheme: ReferenceScheme
    memory: Momentum | Search | Following

    def _make_scheme(self) -> ReferenceScheme:
        options, certificate = self.options, self.problem.certificate
        uncertified = not certificate.convex and certificate.smoothness is None
        if (options.optimiser or ("adam" if uncertified else "descent")) == "adam":
            return self._adam()
        if options.cohort is not None:
            raise BadInput(
                f"strategy.cohort = {options.cohort} without optimiser = 'adam': descent takes everybody in every "
                "round; leave strategy.cohort out, or set strategy.optimiser = 'adam'"
            )
        rate = options.learning_rate or (None if certificate.convex else self._default_step)
        return self._scheme(partial(Search, self._descent) if rate is None else Momentum, rate)

    def _adam(self) -> ReferenceScheme:
        """Adam over cohorts, with the default settings of this project's private strategies but for its floor."""
        options, users = self.options, self.public.users
        usual = min(users, max(LEAST, min(MOST, round(SHARE * users))))
        cohorts = FixedSizeBatches(users, options.cohort or usual, options.rounds, self.seed)
        rate = options.learning_rate or ADAM_RATE
        # Nothing hides small gradients, so their coordinates may move as far as those of large ones.
        settings = ServerOptions.model_validate({"server_optimiser": "adam", "adaptivity": 1e-6})

        def memory() -> Following:
            return Following(ServerOptimiser(settings, rate, self.problem.dimension))

        return self._scheme(memory, rate, cohorts)

    def _scheme(
        self, memory: Callable[[], Stateful], rate: float | None, cohorts: FixedSizeBatches | None = None
    ) -> ReferenceScheme:
        none = Guarantee.none("this strategy adds no noise")
        return ReferenceScheme(guarantee=none, ledger=no_ledger, new_memory=memory, rate=rate, cohorts=cohorts)

    def _make_plan(self) -> Plan:
        rate, cohorts = self.scheme.rate, self.scheme.cohorts
        numbers: dict[str, Number] = {} if rate is None else {"learning_rate": rate}
        ending: dict[str, Number] = {"tolerance": self.options.tolerance} if cohorts is None else {}
        return self._planned(
            rounds=self.options.rounds,
            cohort=self._size,
            users_needed=1 if cohorts is None else self._size,
            noise=0.0,
            signal=math.inf,
            numbers=numbers | ending,
        )

    @property
    def _size(self) -> int:
        """Users a round."""
        return self.public.users if self.scheme.cohorts is None else self.scheme.cohorts.batch

    def _ask(self, index: int) -> Request | None:
        if self.memory.done(self.options.tolerance):
            return None
        cohorts = self.scheme.cohorts
        users = np.arange(self.public.users) if cohorts is None else cohorts.cohort(index)
        return Request(users, Computation("user_gradient", reduce="sum"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        """One step; ``x`` is where nodes took their gradients."""
        gradient = gathered.values / (self._size - gathered.missing)
        if isinstance(self.memory, Following):
            return self._followed(index, x, gradient)
        move = self._accelerated if isinstance(self.memory, Momentum) else partial(self._searched, gathered)
        step = move(x, gradient)
        if index + 1 == self.options.rounds and not self.memory.done(self.options.tolerance):
            log.warning(
                "training without privacy did not converge in %d rounds, so it is no measure of what privacy costs: "
                "raise strategy.rounds of non_private",
                self.options.rounds,
            )
        return step

    def _followed(self, index: int, x: Vector, gradient: Vector) -> Step:
        """A step of Adam, over the second half of the rounds an ever smaller part of it."""
        assert isinstance(self.memory, Following)
        part = min(1.0, 2 * (1 - index / self.options.rounds))
        moved = x + part * (self.memory.optimiser.step(x, gradient) - x)
        x = self.problem.domain.project(moved)
        return Step(x, x)

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
            memory.descent, memory.lost = memory.begin(x), lost
        memory.descent.tell(gradient, usable=lost <= memory.lost)
        return Step(memory.descent.point, memory.descent.best, {"gradient_share_private": memory.descent.share})

    def _descent(self, start: Vector) -> BoxDescent:
        domain = self.problem.domain
        smoothness = self.problem.certificate.smoothness
        step = 1 / smoothness if smoothness else 0.0
        return BoxDescent(
            start, domain.centre - domain.radius, domain.centre + domain.radius, self.options.tolerance, step
        )
