"""Gradient descent with a smoothly truncated mean of all samples' gradients, coordinate by coordinate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Number, Scheme, Step
from strategies.samples.sample_rounds import SampleRoundsOptions, noise_numbers, promised, promised_numbers
from strategies.samples.sample_strategy import OutputAverage, SampleStrategy
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Cost, Guarantee, epsilon_of, rho_for
from userdp.arrays.types import Vector
from userdp.estimators.smoothed_truncation import LARGEST, truncation_sensitivity
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.sampling import DisjointBatches


class SmoothedTruncationOptions(SampleRoundsOptions):
    """Settings of `SmoothedTruncationGD`."""

    rounds: int = Field(20, ge=1, description="T, rounds with all samples.")
    scale: float | None = Field(
        None, gt=0, description="s: gradients well below it count in full; by second_moment if not given."
    )
    second_moment: float = Field(1.0, gt=0, description="v: bound on E of a squared gradient coordinate.")
    inverse_variance: float = Field(2.3, gt=0, description="kappa of the smoothing noise; ln(1/failure) in theory.")
    accounting: Literal["calibrated", "paper"] = Field(
        "calibrated",
        description="calibrated: exact Gaussian composition; paper: zCDP, which is looser. Both are valid.",
    )


@dataclass(frozen=True, kw_only=True)
class TruncatedScheme(Scheme):
    """A `Scheme` of truncated means over all samples.

    Attributes:
        sampler: everybody, in every round.
        scale: s, that gradients are truncated by.
        mechanism: of the mean over N samples.
        rate: step size.
        computation: what users send: their samples' sum, in units of the scale.
    """

    sampler: DisjointBatches
    scale: float
    mechanism: GaussianMechanism
    rate: float
    computation: Computation


class SmoothedTruncationGD(SampleStrategy):
    """Projected gradient descent with a smoothly truncated, noisy mean of per-sample gradients, every round.

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *sample*, replace-one, round release, any loss. *Why.*
    Unit: one sample; relation: replace-one; N, the number of samples, is public and divides. Each coordinate of a
    sample's gradient is truncated to ``s 2 sqrt(2)/3``, so replacing a sample moves the mean by at most ``sqrt(d) 4
    sqrt(2) s / (3 N)`` in l2. Under ``unit = "user"`` a user holds at most max_samples samples, each user's sum is
    held to that many, and the sensitivity is max_samples times larger: group privacy, exact for Gaussian noise. T
    rounds compose as one Gaussian mechanism. Every iterate is released; the server is trusted, nodes truncate as
    told.

    *Assumptions.* N, and for user level `max_samples`, are public. The server is trusted. Nodes truncate each
    sample as told.
    """

    name: ClassVar[str] = "smoothed_truncation_gd"
    summary_line: ClassVar[str] = "smoothly truncated mean of all samples' gradients with noise; user level by groups"
    cost: ClassVar[str] = (
        "node O(N d), every coordinate of every sample truncated (far slower than a plain gradient), one "
        "sum of d numbers up"
    )
    paper: ClassVar[str] = "Wang, Xiao, Devadas, Xu 2020, with the truncation of Catoni, Giulini 2017 and Holland 2019"
    without_secure_noise: ClassVar[str | None] = "how a smoothly truncated gradient is rounded has not been bounded"
    promise: ClassVar[str] = "sample level, or user level by group privacy at a price; against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "scale": "gradient coordinates well below it count in full",
        "inverse_variance": "of the noise that the truncation is smoothed by",
    }
    Options: ClassVar[type[StrategyOptions]] = SmoothedTruncationOptions
    options: SmoothedTruncationOptions
    scheme: TruncatedScheme

    def _make_scheme(self) -> TruncatedScheme:
        options, privacy, d, samples = self.options, self.privacy, self.problem.dimension, self.samples
        rounds, group = options.rounds, self.group
        sampler = DisjointBatches(self.public.users, self.public.users, rounds, self.seed)
        if options.accounting == "paper":
            multiplier = math.sqrt(rounds / (2 * rho_for(privacy.epsilon, privacy.delta)))
        else:
            multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
        root = math.sqrt(d * rounds * math.log(1 / privacy.delta))
        scale = options.scale or math.sqrt(options.second_moment * samples * privacy.epsilon / root)
        return TruncatedScheme(
            guarantee=self._promised(sampler, multiplier),
            ledger=partial(sampler.ledger, multiplier),
            new_memory=partial(OutputAverage, options.output, d),
            sampler=sampler,
            scale=scale,
            mechanism=GaussianMechanism(truncation_sensitivity(scale, samples, d, group), multiplier),
            rate=options.learning_rate or self.half_step,
            computation=self._truncated_sum(scale),
        )

    def _promised(self, sampler: DisjointBatches, multiplier: float) -> Guarantee:
        assumptions = (
            "the number of samples is public",
            "nodes truncate each sample as told, and the server is trusted",
        )
        made = promised(self, sampler, multiplier, assumptions)
        if self.group == 1:
            return made
        return replace(made, accountant=f"{made.accountant}; group privacy for {self.group} samples")

    def _truncated_sum(self, scale: float) -> Computation:
        """Of a user's samples, in units of the scale."""
        most = self.public.max_samples or math.inf
        return Computation(
            "truncated_sample_sum",
            reduce="sum",
            clip_norm=LARGEST * math.sqrt(self.problem.dimension) * most,
            parameters={"scale": scale, "inverse_variance": self.options.inverse_variance},
        )

    def _make_plan(self) -> Plan:
        scheme, noise = self.scheme, self.noise_norm(self.scheme.mechanism)
        signal = scheme.scale * LARGEST * math.sqrt(self.problem.dimension)
        return self._planned(
            self._course(self.options.rounds, scheme.rate, scheme.mechanism.standard_deviation, signal),
            rounds=self.options.rounds,
            cohort=self.public.users,
            users_needed=1,
            noise=noise,
            signal=signal,
            numbers={
                "scale": scheme.scale,
                "inverse_variance": self.options.inverse_variance,
                "learning_rate": scheme.rate,
                **noise_numbers(self, scheme.mechanism, self.group),
                **self._epsilons(scheme.mechanism.noise_multiplier),
                **promised_numbers(scheme.sampler, scheme.guarantee),
            },
        )

    def _epsilons(self, multiplier: float) -> dict[str, Number]:
        """For one sample, and for a whole user where it is known how many samples that may hold."""
        delta, rounds, alone = self.privacy.delta, self.options.rounds, multiplier * self.group
        numbers: dict[str, Number] = {"sample_level_epsilon": epsilon_of(Cost(alone), rounds, delta)}
        if self.public.max_samples is not None:
            numbers["user_level_epsilon"] = epsilon_of(Cost(alone / self.public.max_samples), rounds, delta)
        return numbers

    def _ask(self, index: int) -> Request:
        return Request(self.scheme.sampler.cohort(index), self.scheme.computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        gradient = scheme.mechanism.release(gathered.values * (scheme.scale / self.samples), self._noise(index))
        return self._descend(x, gradient, scheme.rate, {"noise_deviation": scheme.mechanism.standard_deviation})
