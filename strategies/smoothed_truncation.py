"""Gradient descent with a smoothly truncated mean of all samples' gradients, coordinate by coordinate."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from strategies.sample_rounds import Numbers, SampleRounds, SampleRoundsOptions
from userdp.accounting import Cost, Guarantee, epsilon_of, rho_for
from userdp.computations import Computation
from userdp.estimators.smoothed_truncation import LARGEST, truncation_sensitivity
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Vector
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


class SmoothedTruncationGD(SampleRounds):
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
        "node O(N d), every coordinate of every sample truncated (some 20 times a plain gradient), one "
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

    def _make_plan(self) -> Plan:
        options, privacy, d, samples = self.options, self.privacy, self.problem.dimension, self._samples
        rounds, group = options.rounds, self._group
        self._sampler = DisjointBatches(self.public.users, self.public.users, rounds, self.seed)
        if options.accounting == "paper":
            self._multiplier = math.sqrt(rounds / (2 * rho_for(privacy.epsilon, privacy.delta)))
        else:
            self._multiplier = self._sampler.calibrate(privacy.epsilon, privacy.delta)
        root = math.sqrt(d * rounds * math.log(1 / privacy.delta))
        self._scale = options.scale or math.sqrt(options.second_moment * samples * privacy.epsilon / root)
        self._mechanism = GaussianMechanism(truncation_sensitivity(self._scale, samples, d, group), self._multiplier)
        self._rate = options.learning_rate or self._half_step
        noise, signal = self._noise_norm(self._mechanism), self._scale * LARGEST * math.sqrt(d)
        mend = ": use fewer strategy.rounds, more samples, a smaller data.max_samples or a larger epsilon"
        costs: Numbers = {"sample_level_epsilon": epsilon_of(Cost(self._multiplier * group), rounds, privacy.delta)}
        return self._planned(
            rounds,
            self._whole_promise(),
            self._mechanism,
            signal=signal,
            numbers={
                "scale": self._scale,
                "inverse_variance": options.inverse_variance,
                "learning_rate": self._rate,
            },
            costs=costs | self._user_number(group, rounds),
            warnings=self._noise_warnings(noise, signal, mend, "largest truncated gradient"),
        )

    def _whole_promise(self) -> Guarantee:
        made = self._promise(self._multiplier)
        if self._group == 1:
            return made
        return replace(made, accountant=f"{made.accountant}; group privacy for {self._group} samples")

    def _user_number(self, group: int, rounds: int) -> Numbers:
        most = self.public.max_samples
        if most is None:
            return {}
        return {"user_level_epsilon": epsilon_of(Cost(self._multiplier * group / most), rounds, self.privacy.delta)}

    def _assumptions(self) -> tuple[str, ...]:
        return ("the number of samples is public", "nodes truncate each sample as told, and the server is trusted")

    def _ask(self, index: int) -> Request:
        most = self.public.max_samples or math.inf
        computation = Computation(
            "truncated_sample_sum",
            reduce="sum",
            clip_norm=LARGEST * math.sqrt(self.problem.dimension) * most,
            parameters={"scale": self._scale, "inverse_variance": self.options.inverse_variance},
        )
        return Request(self._sampler.cohort(index), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        mean = gathered.values * (self._scale / self._samples)
        gradient = self._mechanism.release(mean, self._noise(index))
        self.facts = {"noise_deviation": self._mechanism.standard_deviation}
        following = self.problem.domain.project(x - self._rate * gradient)
        return following, self._output(index, x, following)
