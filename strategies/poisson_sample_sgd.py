"""DP-SGD on samples: each drawn sample's gradient is clipped, the noisy sum is divided by the expected batch."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from strategies.sample_rounds import BatchOptions, SampleRounds
from userdp.averaged_clipping import clamped_batch
from userdp.computations import Computation
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Vector
from userdp.sampling import PoissonSamples


class PoissonSampleOptions(BatchOptions):
    """Settings of `PoissonSampleSGD`."""


class PoissonSampleSGD(SampleRounds):
    """Stochastic gradient descent with a clip of every drawn sample.

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *sample*, add-or-remove, round release, any loss. *Why.*
    Unit: one sample; relation: add-or-remove; N, the number of samples, is public. Each sample is drawn by its own
    secret coin at rate q = m/N, and its gradient is clipped to l2 norm R, so one sample moves the sum by at most R;
    the divisor is the public m. Rounds are Poisson-sampled Gaussians. Under ``unit = "user"`` the first max_samples
    samples of a user come or go together and move the sum by R for each one drawn: group privacy by mixtures of
    Gaussians (Ganesh 2024). Nodes draw none of those beyond. calibration = "paper" promises nothing. Every iterate
    is released; the server is trusted, nodes clip and draw as told.

    *Assumptions.* N, and for user level `max_samples`, are public. Which samples take part stays secret. The server
    is trusted. Nodes clip and draw as told.
    """

    name: ClassVar[str] = "poisson_sample_sgd"
    summary_line: ClassVar[str] = "sum of clipped gradients of randomly drawn samples with noise (DP-SGD)"
    cost: ClassVar[str] = "node O(N d) over the samples drawn, one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "Abadi and others 2016; Das, Kale, Xu, Zhang, Sanghavi 2023"
    without_secure_noise: ClassVar[str | None] = "which samples take part comes from the seed"
    promise: ClassVar[str] = "sample level, or user level by group privacy at a price; against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "sample_batch": "samples a round, expected; the public divisor",
    }
    Options: ClassVar[type[StrategyOptions]] = PoissonSampleOptions
    options: PoissonSampleOptions
    _sampler: PoissonSamples

    def _make_plan(self) -> Plan:
        options, samples = self.options, self._samples
        self._batch = clamped_batch(options.batch or max(1, round(math.sqrt(samples))), samples)
        rounds = options.rounds or min(options.max_rounds, max(2, samples // self._batch))
        self._clip = options.clip_norm or 1.0
        self._sampler = self._sampler_for(rounds, self._most)
        if options.calibration == "paper":
            root = math.sqrt(rounds * math.log(1 / self.privacy.delta))
            noise = options.noise_constant * self._clip * root / (samples * self.privacy.epsilon)
            self._multiplier = noise * self._batch / self._clip
            guarantee, more = self._uncertified(self._multiplier)
        else:
            self._multiplier = self._sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
            guarantee, more = self._promise(self._multiplier), {}
        self._mechanism = GaussianMechanism(self._clip / self._batch, self._multiplier)
        power = self._clip**2 + self.problem.dimension * self._mechanism.standard_deviation**2
        self._rate = options.learning_rate or min(self._half_step, self._reach() / math.sqrt(rounds * power))
        mend = ": use fewer strategy.rounds, a larger strategy.batch, more samples or a larger epsilon"
        user = None if self.public.max_samples is None else self._sampler_for(rounds, self.public.max_samples)
        return self._planned(
            rounds,
            guarantee,
            self._mechanism,
            signal=self._clip,
            numbers={
                "clip_norm": self._clip,
                "sample_batch": float(self._batch),
                "learning_rate": self._rate,
            },
            costs=self._both_units(self._multiplier, self._sampler_for(rounds, None), user) | more,
            warnings=self._noise_warnings(self._noise_norm(self._mechanism), self._clip, mend),
        )

    def _sampler_for(self, rounds: int, most: int | None) -> PoissonSamples:
        rate = self._batch / self._samples
        return PoissonSamples(self.public.users, rate, rounds, self.seed, most, joint=False)

    def _reach(self) -> float:
        """The distance to a minimiser, for the step; one where nothing bounds it."""
        reach = self.options.radius or self._corner()
        return reach if math.isfinite(reach) else 1.0

    def _assumptions(self) -> tuple[str, ...]:
        return ("nodes clip each sample as told, and the server is trusted",)

    def _ask(self, index: int) -> Request:
        computation = Computation(
            "clipped_sample_sum",
            reduce="sum",
            clip_norm=self._clip * (self.public.max_samples or math.inf),
            parameters={"sample_clip_norm": self._clip},
            coins=self._sampler.coins(index),
        )
        return Request(self._sampler.cohort(index), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        gradient = self._mechanism.release(gathered.values / self._batch, self._noise(index))
        self.facts = {"noise_deviation": self._mechanism.standard_deviation}
        following = self.problem.domain.project(x - self._rate * gradient)
        return following, self._output(index, x, following)
