"""Sample-level baseline: every sample's gradient is clipped, the noisy mean of all samples is followed."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.heavy_tailed import HeavyTailedDescent, HeavyTailedOptions
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee, Ledger, calibrate_noise, epsilon_of, rho_for
from userdp.computations import Computation
from userdp.estimators.heavy_tailed import simple_radius
from userdp.mechanisms import GaussianMechanism
from userdp.noise import rounding_slack
from userdp.problems.base import Vector


class SampleClippedOptions(HeavyTailedOptions):
    """Settings of `SampleClippedSGD`."""

    radius: Literal["paper", "directional"] = Field(
        "paper",
        description="How clip_norm is chosen if not given; directional uses the smaller bias that a moment bound in "
        "every direction gives.",
    )
    accounting: Literal["paper", "calibrated"] = Field(
        "calibrated",
        description="paper: zCDP by the paper's formula (epsilon <= 1); calibrated: exact Gaussian composition.",
    )


class SampleClippedSGD(HeavyTailedDescent):
    """Projected gradient descent with a clipped, noisy mean of per-sample gradients (all samples, every round).

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *sample*, round release, any loss. *Why.* Unit: one
    sample; relation: replace-one; N, the number of samples of all users, is public and divides. Each sample's
    gradient is clipped to l2 norm R, so replacing one sample moves the mean by at most 2R/N. Under ``unit =
    "user"`` a user holds at most max_samples samples, each user's sum is held to norm R max_samples, and the
    sensitivity is max_samples times larger: group privacy, exact for Gaussian noise. A gradient that is not finite
    counts as zero, and is not counted among ``non_finite_users``. T rounds compose as one Gaussian mechanism. Every
    iterate is released; the server is trusted, nodes clip and sum as told.

    *Assumptions.* N, and for user level `max_samples`, are public. The server is trusted. Nodes clip each sample as
    told.
    """

    name: ClassVar[str] = "sample_clipped_sgd"
    summary_line: ClassVar[str] = "mean of clipped per-sample gradients with noise; user level only by group privacy"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "Zhao, Wu, Liu, Wang, Fan, Li: private optimisation with heavy-tailed data (simple clipping)"
    needs: ClassVar[str] = "any loss; public number of samples"
    promise: ClassVar[str] = "sample level, or user level by group privacy at a price; against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    Options: ClassVar[type[StrategyOptions]] = SampleClippedOptions
    options: SampleClippedOptions

    def _make_plan(self) -> Plan:
        options, privacy, d = self.options, self.privacy, self.problem.dimension
        n, samples = self.public.users, self._public("samples")
        group = self._group
        # What the budget is worth for one sample: zCDP of a group grows with its square.
        rho = rho_for(privacy.epsilon, privacy.delta, "paper" if options.accounting == "paper" else "tight") / group**2
        clip = options.clip_norm or simple_radius(samples, d, options.moment_order, rho, options.moment, options.radius)
        rounds = options.rounds or self._paper_rounds(rho, clip, samples)
        self._rate = options.learning_rate or 1 / (self._smoothness() * math.sqrt(2 * rounds))
        if options.accounting == "paper":
            # Each round may spend rho / T: variance 2 R^2 T / (rho N^2), in units of the sensitivity 2 R / N.
            multiplier = math.sqrt(rounds / (2 * rho * group**2))
        else:
            multiplier = calibrate_noise(privacy.epsilon, privacy.delta, rounds)
        self._clip, self._samples = clip, samples
        self._cost = Cost(noise_multiplier=multiplier)
        self._mechanism = GaussianMechanism(2 * clip * group / samples, multiplier)
        self._rounds = rounds
        noise = self._mechanism.standard_deviation * math.sqrt(d)
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
            warnings=self._warnings(noise, clip),
        )

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
        gradient = self._mechanism.release(gathered.values / self._samples, self._noise(index))
        self.facts = {"noise_deviation": self._mechanism.standard_deviation}
        return self._descend(index, x, gradient)
