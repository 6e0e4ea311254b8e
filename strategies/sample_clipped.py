"""Sample-level baseline: every sample's gradient is clipped, the noisy mean of all samples is followed."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.base import StrategyOptions, UserLevelStrategy
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee, Ledger, calibrate_noise, epsilon_of, rho_for
from userdp.computations import Computation
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.noise import rounding_slack
from userdp.problems.base import Vector


class SampleClippedOptions(StrategyOptions):
    """Settings of `SampleClippedSGD`."""

    moment_order: float = Field(2.0, ge=2, description="p: the order of the bounded gradient moment.")
    moment: float = Field(1.0, gt=0, description="M: E |<u, gradient>|^p <= M^p for every direction u.")
    clip_norm: float | None = Field(
        None, gt=0, description="R, l2 clip of each sample; the paper's choice if not given."
    )
    rounds: int | None = Field(None, ge=1, description="T; the paper's choice (at most max_rounds) if not given.")
    max_rounds: int = Field(200, ge=1, description="Cap on the paper's number of rounds.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; 1 / (smoothness sqrt(2 T)) if not given.")
    accounting: Literal["paper", "calibrated"] = Field(
        "calibrated",
        description="paper: zCDP by the paper's formula (epsilon <= 1); calibrated: exact Gaussian composition.",
    )


class SampleClippedSGD(UserLevelStrategy):
    """Projected gradient descent with a clipped, noisy mean of per-sample gradients (all samples, every round).

    *Formal guarantees.* Unit: one sample; relation: replace-one; N, the number of samples of all users, is public and
    divides. Each sample's gradient is clipped to l2 norm R, so replacing one sample moves the mean by at most 2R/N.
    Under ``unit = "user"`` a user holds at most max_samples samples, each user's sum is held to norm R max_samples, and
    the sensitivity is max_samples times larger: group privacy, exact for Gaussian noise. T rounds compose as one
    Gaussian mechanism. Every iterate is released; the server is trusted, nodes clip and sum as told.
    """

    name: ClassVar[str] = "sample_clipped_sgd"
    summary_line: ClassVar[str] = "mean of clipped per-sample gradients with noise; user level only by group privacy"
    family: ClassVar[str] = "sample-level"
    paper: ClassVar[str] = "Zhao, Wu, Liu, Wang, Fan, Li: private optimisation with heavy-tailed data (simple clipping)"
    needs: ClassVar[str] = "any loss; public number of samples"
    units: ClassVar[tuple[str, ...]] = ("sample", "user")
    Options: ClassVar[type[StrategyOptions]] = SampleClippedOptions
    options: SampleClippedOptions

    def _make_plan(self) -> Plan:
        options, privacy, d = self.options, self.privacy, self.problem.dimension
        n, samples = self.public.users, self._public("samples")
        group = self._public("max_samples") if privacy.unit == "user" else 1
        # What the budget is worth for one sample: zCDP of a group grows with its square.
        rho = rho_for(privacy.epsilon, privacy.delta, "paper" if options.accounting == "paper" else "tight") / group**2
        clip = options.clip_norm or options.moment * math.sqrt(d) * min(
            (samples * math.sqrt(rho / d)) ** (1 / options.moment_order), (samples / d) ** (1 / options.moment_order)
        )
        smoothness = self.problem.certificate.smoothness or 1.0
        rounds = options.rounds or self._paper_rounds(rho, clip, smoothness, samples)
        self._rate = options.learning_rate or 1 / (smoothness * math.sqrt(2 * rounds))
        if options.accounting == "paper":
            # Each round may spend rho / T: variance 2 R^2 T / (rho N^2), in units of the sensitivity 2 R / N.
            multiplier = math.sqrt(rounds / (2 * rho * group**2))
        else:
            multiplier = calibrate_noise(privacy.epsilon, privacy.delta, rounds)
        self._clip, self._group, self._samples = clip, group, samples
        self._cost = Cost(noise_multiplier=multiplier)
        self._mechanism = GaussianMechanism(2 * clip * group / samples, multiplier)
        self._rounds = rounds
        self._sum = np.zeros(d)
        noise = self._mechanism.standard_deviation * math.sqrt(d)
        warnings = []
        if noise >= clip:
            warnings.append(
                f"the noise of one round ({noise:.3g}) exceeds the clip ({clip:.3g}), which bounds the mean gradient: "
                "use fewer strategy.rounds, more samples, a smaller data.max_samples or a larger epsilon"
            )
        if group > 1:
            warnings.append(
                f"user level by group privacy: the noise is {group} times that of sample level "
                f"(data.max_samples = {group})"
            )
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=n,
            users=n,
            users_needed=1,
            guarantee=self._promise(rounds),
            noise=noise,
            signal=clip,
            numbers={
                "clip_norm": clip,
                "learning_rate": self._rate,
                "group": group,
                "samples": samples,
                "noise_multiplier": multiplier,
                "noise_deviation": self._mechanism.standard_deviation,
                "sample_level_epsilon": epsilon_of(Cost(noise_multiplier=multiplier * group), rounds, privacy.delta),
            },
            warnings=tuple(warnings),
        )

    def _public(self, fact: str) -> int:
        value = getattr(self.public, fact)
        if value is None:
            raise BadInput(f"data.{fact} must be declared: {self.name} needs this public number in its sensitivity")
        return int(value)

    def _paper_rounds(self, rho: float, clip: float, smoothness: float, samples: int) -> int:
        """Theorem 4's number of rounds, in consistent units: noise power 2 (smoothness * diameter)^2 a round."""
        d, radius = self.problem.dimension, self.problem.domain.radius
        diameter = 2 * radius * math.sqrt(d) if math.isfinite(radius) else 1.0
        return min(self.options.max_rounds, max(1, math.ceil(rho * (samples * smoothness * diameter / clip) ** 2 / d)))

    def _promise(self, rounds: int) -> Guarantee:
        return Guarantee(
            unit=self.privacy.unit,
            relation="replace_one",
            epsilon=epsilon_of(self._cost, rounds, self.privacy.delta),
            delta=self.privacy.delta,
            accountant="analytic Gaussian mechanism, composed over rounds"
            + (f"; group privacy for {self._group} samples" if self.privacy.unit == "user" else ""),
            adversary="against other nodes and whoever sees every iterate; the server is trusted",
            assumptions=(
                "the number of samples is public",
                "nodes clip each sample as told, and the server is trusted",
            ),
            holds=True,
        )

    def _make_ledger(self) -> Ledger:
        return Ledger(self.public.users, self._cost, self._rounds, self.privacy)

    def _rounding_slack(self) -> float:
        return rounding_slack(self.public.users if self.privacy.unit == "user" else self._samples)

    def _ask(self, index: int) -> Request:
        computation = Computation(
            "clipped_sample_sum",
            reduce="sum",
            clip_norm=self._clip * (self.public.max_samples or math.inf),
            parameters={"sample_clip_norm": self._clip},
        )
        return Request(np.arange(self.public.users), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        self._sum += x
        gradient = self._mechanism.release(gathered.values / self._samples, self._noise(index))
        self.facts = {"noise_deviation": self._mechanism.standard_deviation}
        # The paper returns the average of the points at which gradients were taken.
        return self.problem.domain.project(x - self._rate * gradient), self._sum / (index + 1)
