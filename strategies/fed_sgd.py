"""Gradient descent on the mean of users' gradients: with clipping and noise every round, or without any privacy."""

import math
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies.base import StrategyOptions, UserLevelStrategy
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee, Ledger, calibrate_noise, epsilon_of
from userdp.computations import Computation
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Vector
from userdp.sampling import DisjointBatches


class DPFedSGDOptions(StrategyOptions):
    """Settings of `DPFedSGD`."""

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's average gradient is clipped to.")
    rounds: int = Field(20, ge=1, description="Rounds in all.")
    cohort: int | None = Field(
        None, ge=1, description="Users a round, disjoint within an epoch; all of them if not given."
    )
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")


class DPFedSGD(UserLevelStrategy):
    """Clipped mean of user gradients plus Gaussian noise, every round.

    *Formal guarantees.* Unit: one whole user; relation: replace-one; n public. Each user's average gradient is clipped
    to l2 norm C and all users weigh the same, so replacing one moves the sum by at most 2C; the divisor is the planned
    cohort whatever the number that answered, and the noise is calibrated to 2C. Rounds in which a user takes part
    compose as one Gaussian mechanism (exact), disjoint cohorts in parallel. Every iterate is released: nodes are
    protected from each other; the server is trusted. Nodes clip and sum; an answer larger than clipped users can add
    up to is refused.
    """

    name: ClassVar[str] = "dp_fed_sgd"
    summary_line: ClassVar[str] = "mean of clipped user gradients with noise, every round"
    family: ClassVar[str] = "clipping"
    paper: ClassVar[str] = "McMahan, Ramage, Talwar, Zhang 2018"
    Options: ClassVar[type[StrategyOptions]] = DPFedSGDOptions
    options: DPFedSGDOptions

    def _make_plan(self) -> Plan:
        options, n, p = self.options, self.public.users, self.problem.dimension
        cohort = options.cohort or n
        per_epoch = DisjointBatches(n, cohort).rounds_per_epoch
        self._participations = math.ceil(options.rounds / per_epoch)
        self._sampler = DisjointBatches(n, cohort, self._participations, self.seed)
        multiplier = calibrate_noise(self.privacy.epsilon, self.privacy.delta, self._participations)
        self._cost = Cost(noise_multiplier=multiplier)
        self._mechanism = GaussianMechanism(2 * options.clip_norm / cohort, multiplier)
        self._rate = options.learning_rate or 1 / (self.problem.certificate.smoothness or 2.0)
        noise = self._mechanism.standard_deviation * math.sqrt(p)
        warnings = []
        if noise >= options.clip_norm:
            warnings.append(
                f"the noise of one round ({noise:.3g}) exceeds the clip ({options.clip_norm:g}), which bounds the mean "
                "gradient: use fewer strategy.rounds, a larger strategy.cohort, more users or a larger epsilon"
            )
        return Plan(
            strategy=self.name,
            rounds=options.rounds,
            cohort=cohort,
            users=n,
            users_needed=cohort,
            guarantee=Guarantee(
                unit="user",
                relation="replace_one",
                epsilon=epsilon_of(self._cost, self._participations, self.privacy.delta),
                delta=self.privacy.delta,
                accountant="analytic Gaussian mechanism, composed over participations",
                adversary="against other nodes and whoever sees every iterate; the server is trusted",
                assumptions=(
                    "n and who takes part are public",
                    "nodes clip each user as told, and the server is trusted",
                ),
                holds=True,
            ),
            noise=noise,
            signal=options.clip_norm,
            numbers={
                "clip_norm": options.clip_norm,
                "cohort": cohort,
                "participations": self._participations,
                "learning_rate": self._rate,
                "noise_multiplier": multiplier,
                "l2_sensitivity": self._mechanism.l2_sensitivity,
                "noise_deviation": self._mechanism.standard_deviation,
            },
            warnings=tuple(warnings),
        )

    def _make_ledger(self) -> Ledger:
        return Ledger(self.public.users, self._cost, self._participations, self.privacy)

    def _ask(self, index: int) -> Request:
        computation = Computation("user_gradient", reduce="sum", clip_norm=self.options.clip_norm)
        return Request(self._sampler.cohort(index), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        gradient = self._mechanism.release(gathered.values / self.plan.cohort, self._noise(index))
        self.facts = {"noise_deviation": self._mechanism.standard_deviation}
        x = self.problem.domain.project(x - self._rate * gradient)
        return x, x


class NonPrivateOptions(StrategyOptions):
    """Settings of `NonPrivate`."""

    rounds: int = Field(200, ge=1, description="Most rounds; it stops as soon as the gradient is small.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default from the loss, or 0.5.")
    tolerance: float = Field(1e-7, gt=0, description="Stop when a step moves no coordinate by more than this.")


class NonPrivate(UserLevelStrategy):
    """Accelerated gradient descent on the exact mean of user gradients: what privacy costs is measured from here.

    *Formal guarantees.* None. Nothing is clipped and no noise is added.
    """

    name: ClassVar[str] = "non_private"
    summary_line: ClassVar[str] = "no privacy at all: the reference that private runs are compared with"
    family: ClassVar[str] = "reference"
    paper: ClassVar[str] = "Nesterov 1983, with the restart of O'Donoghue and Candes 2015"
    units: ClassVar[tuple[str, ...]] = ("user", "sample")
    Options: ClassVar[type[StrategyOptions]] = NonPrivateOptions
    options: NonPrivateOptions

    def _make_plan(self) -> Plan:
        n, certificate = self.public.users, self.problem.certificate
        self._rate = self.options.learning_rate or 1 / (certificate.smoothness or 2.0)
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

    def _make_ledger(self) -> None:
        return None

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
