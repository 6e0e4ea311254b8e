"""Sample-level baseline: every sample's gradient is clipped, the noisy mean of all samples is followed."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Step
from strategies.samples.heavy_tailed import HeavyTailedOptions, chosen_rate, chosen_rounds, group_warnings
from strategies.samples.sample_strategy import OutputAverage, SampleScheme, SampleStrategy
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee, Ledger, calibrate_noise, epsilon_of, rho_for
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.papers.heavy_tailed.estimators import simple_radius


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


class SampleClippedSGD(SampleStrategy):
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
    scheme: SampleScheme

    def _make_scheme(self) -> SampleScheme:
        options, privacy, d = self.options, self.privacy, self.problem.dimension
        samples, group = self.samples, self.group
        # What the budget is worth for one sample: zCDP of a group grows with its square.
        rho = rho_for(privacy.epsilon, privacy.delta, "paper" if options.accounting == "paper" else "tight") / group**2
        clip = options.clip_norm or simple_radius(samples, d, options.moment_order, rho, options.moment, options.radius)
        chosen = chosen_rounds(self, options, rho, clip)
        rounds = chosen.count
        rate = chosen_rate(self, options, rounds)
        if options.accounting == "paper":
            # Each round may spend rho / T: variance 2 R^2 T / (rho N^2), in units of the sensitivity 2 R / N.
            multiplier = math.sqrt(rounds / (2 * rho * group**2))
        else:
            multiplier = calibrate_noise(privacy.epsilon, privacy.delta, rounds)
        cost = Cost(noise_multiplier=multiplier)
        return SampleScheme(
            guarantee=self._promised(cost, rounds),
            ledger=partial(Ledger, self.public.users, cost, rounds),
            new_memory=partial(OutputAverage, options.output, d),
            summands=self.public.users if privacy.unit == "user" else samples,
            chosen=chosen,
            clip=clip,
            divisor=samples,
            mechanism=GaussianMechanism(2 * clip * group / samples, multiplier),
            rate=rate,
        )

    def _promised(self, cost: Cost, rounds: int) -> Guarantee:
        accountant = f"{ONE_GAUSSIAN}, composed over rounds"
        if self.privacy.unit == "user":
            accountant += f"; group privacy for {self.group} samples"
        return self._promise(
            epsilon_of(cost, rounds, self.privacy.delta),
            accountant,
            ("the number of samples is public", "nodes clip each sample as told, and the server is trusted"),
        )

    def _make_plan(self) -> Plan:
        scheme, group = self.scheme, self.group
        multiplier, noise = scheme.mechanism.noise_multiplier, self.noise_norm(scheme.mechanism)
        sample_cost = Cost(noise_multiplier=multiplier * group)
        return self._planned(
            self._course(scheme.rounds, scheme.rate, scheme.mechanism.standard_deviation, scheme.clip),
            rounds=scheme.rounds,
            cohort=self.public.users,
            users_needed=1,
            noise=noise,
            signal=scheme.clip,
            numbers={
                "clip_norm": scheme.clip,
                "learning_rate": scheme.rate,
                "group": group,
                "samples": self.samples,
                "noise_multiplier": multiplier,
                "noise_deviation": scheme.mechanism.standard_deviation,
                "sample_level_epsilon": epsilon_of(sample_cost, scheme.rounds, self.privacy.delta),
            },
            warnings=(*scheme.chosen.warnings(), *group_warnings(group, float(group))),
        )

    def _ask(self, index: int) -> Request:
        clip = self.scheme.clip
        computation = Computation(
            "clipped_sample_sum",
            reduce="sum",
            clip_norm=clip * (self.public.max_samples or math.inf),
            parameters={"sample_clip_norm": clip},
        )
        return Request(np.arange(self.public.users), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        gradient = scheme.mechanism.release(gathered.values / scheme.divisor, self._noise(index))
        return self._descend(x, gradient, scheme.rate, {"noise_deviation": scheme.mechanism.standard_deviation})
