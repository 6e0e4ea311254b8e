"""DP-SGD on samples: each drawn sample's gradient is clipped, the noisy sum is divided by the expected batch."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Step
from strategies.samples.sample_rounds import (
    BatchOptions,
    DrawnScheme,
    balanced_batch,
    coins_of,
    cost_numbers,
    drawn_scheme,
    noise_numbers,
)
from strategies.samples.sample_strategy import Rounds, SampleStrategy
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.papers.averaged_clipping.descent import clamped_batch
from userdp.sampling import PoissonSamples


class PoissonSampleOptions(BatchOptions):
    """Settings of `PoissonSampleSGD`."""


class PoissonSampleSGD(SampleStrategy):
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
    scheme: DrawnScheme

    def _make_scheme(self) -> DrawnScheme:
        options, samples = self.options, self.samples
        batch = clamped_batch(options.batch or balanced_batch(samples), samples)
        chosen = Rounds.chosen(options.rounds, lambda: max(2, samples // batch), options.max_rounds)
        rounds = chosen.count
        clip = options.clip_norm or 1.0
        sampler = PoissonSamples(self.public.users, batch / samples, rounds, self.seed, self.most, joint=False)
        if options.calibration == "paper":
            root = math.sqrt(rounds * math.log(1 / self.privacy.delta))
            noise = options.noise_constant * clip * root / (samples * self.privacy.epsilon)
            multiplier = noise * batch / clip
        else:
            multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        mechanism = GaussianMechanism(clip / batch, multiplier)
        return drawn_scheme(
            self,
            options,
            sampler,
            mechanism,
            ("nodes clip each sample as told, and the server is trusted",),
            chosen=chosen,
            clip=clip,
            divisor=float(batch),
            rate=options.learning_rate or self._theory_rate(rounds, clip, mechanism),
        )

    def _theory_rate(self, rounds: int, clip: float, mechanism: GaussianMechanism) -> float:
        """By the distance to a minimiser; one where nothing bounds it."""
        reach = self.options.radius or self.corner
        reach = reach if math.isfinite(reach) else 1.0
        power = clip**2 + self.problem.dimension * mechanism.standard_deviation**2
        return min(self.half_step, reach / math.sqrt(rounds * power))

    def _make_plan(self) -> Plan:
        scheme, noise = self.scheme, self.noise_norm(self.scheme.mechanism)
        return self._planned(
            self._course(scheme.rounds, scheme.rate, scheme.mechanism.standard_deviation, scheme.clip),
            rounds=scheme.rounds,
            cohort=self.public.users,
            users_needed=1,
            noise=noise,
            signal=scheme.clip,
            numbers={
                "clip_norm": scheme.clip,
                "sample_batch": scheme.divisor,
                "learning_rate": scheme.rate,
                **noise_numbers(self, scheme.mechanism, scheme.group),
                **cost_numbers(self, scheme),
            },
            warnings=scheme.chosen.warnings(),
        )

    def _ask(self, index: int) -> Request:
        clip, sampler = self.scheme.clip, self.scheme.sampler
        computation = Computation(
            "clipped_sample_sum",
            reduce="sum",
            clip_norm=clip * (self.public.max_samples or math.inf),
            parameters={"sample_clip_norm": clip},
            coins=coins_of(sampler, index),
        )
        return Request(sampler.cohort(index), computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        gradient = scheme.mechanism.release(gathered.values / scheme.divisor, self._noise(index))
        return self._descend(x, gradient, scheme.rate, {"noise_deviation": scheme.mechanism.standard_deviation})
