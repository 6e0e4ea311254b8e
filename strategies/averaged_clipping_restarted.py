"""Averaged clipping with restarts, for strongly convex losses: each run starts closer, with a smaller clip."""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.declarations import Fact
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from strategies.sample_rounds import Numbers, TheoryOptions, TheoryRounds
from userdp.accounting import Guarantee
from userdp.accounting.sampled_gaussian import SampledRounds, group_rate, sampled_gaussian_epsilon
from userdp.averaged_clipping import (
    Run,
    Setting,
    average_clip,
    clamped_batch,
    default_runs,
    practical_step,
    radii,
    restarted,
    rounds_per_run,
)
from userdp.computations import Computation
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Vector
from userdp.sampling import DisjointBatches, PoissonSamples, Sampler


class RestartedOptions(TheoryOptions):
    """Settings of `RestartedAveragedClipping`."""

    rounds: int | None = Field(None, ge=1, description="Rounds of all runs together; by theory, capped, if not given.")
    runs: int | None = Field(None, ge=1, description="tau; log2 N, capped at one a 20 rounds, if not given.")
    batches: Literal["poisson_samples", "full"] = Field(
        "poisson_samples", description="poisson_samples: a coin for each sample; full: everybody in every round."
    )
    strong_convexity: float | None = Field(
        None, gt=0, description="mu, of the expected loss; the problem's certified bound if not given."
    )
    first_gap: float | None = Field(
        None, gt=0, description="Bound on the excess risk at the start; smoothness radius^2 / 2 if not given."
    )
    clip_norm: float | None = Field(None, gt=0, description="Clip of the first run; later ones shrink in proportion.")


class RestartedAveragedClipping(TheoryRounds):
    """Runs of averaged clipping, each from the model of the one before, with clip, noise and step in proportion.

    *Formal guarantees.* *Claim.* That of `averaged_clipping`. *Why.* Those of `AveragedClipping`, round by round:
    unit one sample or one whole user; sensitivity twice the clip IN FORCE, which follows from the configuration
    alone, and noise in proportion to it. So all rounds of all runs have one noise multiplier and are accounted
    together: Poisson-sampled Gaussians at rate q for a sample and ``1 - (1 - q)^max_samples`` for a user
    (add-or-remove), or plain Gaussians for everybody in every round (replace-one). calibration = "paper" takes
    clips and batches of the theory and promises nothing. Every iterate is released; other nodes may send anything.

    *Assumptions.* Those of `averaged_clipping`, for `full` and `poisson_samples`.
    """

    name: ClassVar[str] = "averaged_clipping_restarted"
    summary_line: ClassVar[str] = "averaged clipping in runs that halve the distance, for strongly convex losses"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "Jin, Zhou, Han, Cheng, Zeng: averaged clipping for heavy tails, Algorithm 2"
    without_secure_noise: ClassVar[str | None] = "nodes send sums without a clip, so rounding has no bound"
    needs: ClassVar[str] = "a strongly convex loss; public number of samples"
    promise: ClassVar[str] = "sample or user level at nearly the same price, which is high; against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3, "runs": 1}
    meanings: ClassVar[Mapping[str, str]] = {
        "sample_batch": "samples a round, expected; the public divisor",
        "runs": "runs, each from the model of the one before",
        "steps": "steps of each phase",
        "clip_low": "smallest clip",
        "clip_high": "largest clip",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "clip_norm": Fact("noised", "clip of the round: planned, or moved by released values"),
    }
    Options: ClassVar[type[StrategyOptions]] = RestartedOptions
    options: RestartedOptions

    def _make_plan(self) -> Plan:
        setting, convexity = self._setting(), self._strong_convexity()
        runs, self._phase = self._lengths(setting, convexity)
        gap = self.options.first_gap or setting.smoothness * setting.radius**2 / 2
        rounds = runs * self._phase
        if self.options.calibration == "paper":
            self._runs = restarted(setting, convexity, gap, runs, self._phase)
            batches = [clamped_batch(run.batch, self._samples) for run in self._runs]
            self._samplers = [self._sampler_for(batch, rounds, self._most_drawn) for batch in batches]
            self._sampler = self._samplers[0]
            multipliers = [run.noise_deviation / (2 * run.clip) for run in self._runs]
            guarantee, more = self._cost_of_the_paper(multipliers)
        else:
            batch = clamped_batch(self.options.batch or max(1, round(math.sqrt(self._samples))), self._samples)
            self._sampler = self._sampler_for(batch, rounds, self._most_drawn)
            self._samplers = [self._sampler] * runs
            self._multiplier = self._sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
            multipliers = [self._multiplier] * runs
            self._runs = self._schedule(setting, convexity, gap, runs, batch)
            guarantee, more = self._promise(self._multiplier), self._epsilons(batch, rounds)
        self._mechanisms = [GaussianMechanism(2 * run.clip, z) for run, z in zip(self._runs, multipliers, strict=True)]
        first, last = self._runs[0], self._runs[-1]
        mend = ", and no batch makes it smaller: use fewer strategy.rounds or a larger epsilon"
        return self._planned(
            rounds,
            guarantee,
            self._mechanisms[0],
            signal=first.clip,
            numbers={
                "runs": runs,
                "steps": self._phase,
                "clip_high": first.clip,
                "clip_low": last.clip,
                "sample_batch": float(first.batch),
                "sampling": self.options.batches,
                "learning_rate": first.step,
            },
            costs=more,
            warnings=self._noise_warnings(self._noise_norm(self._mechanisms[0]), first.clip, mend),
            group=self._group_drawn,
        )

    def _strong_convexity(self) -> float:
        convexity = self.options.strong_convexity or self.problem.certificate.strong_convexity
        if not convexity:
            raise BadInput(
                "strategy.strong_convexity must be declared: the problem certifies none; add a ridge, or use "
                "averaged_clipping"
            )
        return convexity

    def _lengths(self, setting: Setting, convexity: float) -> tuple[int, int]:
        """(runs, rounds of each)."""
        options = self.options
        theory = rounds_per_run(setting, convexity)
        runs = options.runs or min(default_runs(self._samples), max(1, (options.rounds or options.max_rounds) // 20))
        total = options.rounds or min(options.max_rounds, runs * theory)
        if total < runs:
            raise BadInput(f"strategy.runs = {runs}: {total} rounds give none to some run; plan fewer runs")
        return runs, total // runs

    def _schedule(self, setting: Setting, convexity: float, gap: float, runs: int, batch: int) -> list[Run]:
        """Clips follow the distance, noise follows the clip, steps follow both."""
        distances = list(islice(radii(gap, convexity), runs))
        first = self.options.clip_norm or 4 * setting.smoothness * distances[0]
        made = []
        for distance in distances:
            clip = first * distance / distances[0]
            noise = 2 * clip * self._multiplier
            own = Setting(
                setting.samples, setting.dimension, setting.epsilon, setting.delta, distance, setting.smoothness
            )
            step = self.options.learning_rate or practical_step(own, clip, self._phase, noise)
            made.append(Run(distance, clip, batch, step, noise))
        return made

    @property
    def _most_drawn(self) -> int | None:
        return self._most if self.options.batches == "poisson_samples" else None

    @property
    def _group_drawn(self) -> int:
        return self._most_drawn or 1

    def _sampler_for(self, batch: int, rounds: int, most: int | None) -> Sampler:
        if self.options.batches == "full":
            return DisjointBatches(self.public.users, self.public.users, rounds, self.seed)
        return PoissonSamples(self.public.users, batch / self._samples, rounds, self.seed, most)

    def _cost_of_the_paper(self, multipliers: list[float]) -> tuple[Guarantee, Numbers]:
        """No promise, and what the paper's noise really costs, with a rate and a multiplier of its own in each run."""
        steps = [
            SampledRounds(z, group_rate(self._rate_of(run), self._group_drawn), self._phase)
            for z, run in zip(multipliers, self._runs, strict=True)
        ]
        spent = sampled_gaussian_epsilon(steps, self.privacy.delta)
        return self._not_certified(spent)

    def _rate_of(self, run: Run) -> float:
        return 1.0 if self.options.batches == "full" else min(1.0, run.batch / self._samples)

    def _epsilons(self, batch: int, rounds: int) -> Numbers:
        apart = self.options.batches == "poisson_samples"
        user = None
        if not apart or self.public.max_samples is not None:
            user = self._sampler_for(batch, rounds, self.public.max_samples)
        return self._both_units(self._multiplier, self._sampler_for(batch, rounds, None), user)

    def _assumptions(self) -> tuple[str, ...]:
        return ("the server is trusted",)

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        sampler = self._samplers[index // self._phase]
        coins = sampler.coins(index) if isinstance(sampler, PoissonSamples) else None
        return Request(sampler.cohort(index), Computation("sample_sum", reduce="sum", coins=coins))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        number, within = divmod(index, self._phase)
        run, mechanism = self._runs[number], self._mechanisms[number]
        divisor = self._samples * self._rate_of(run)
        gradient = mechanism.release(average_clip(gathered.values / divisor, run.clip), self._noise(index))
        self.facts = {"noise_deviation": mechanism.standard_deviation, "clip_norm": run.clip}
        step = self.options.learning_rate or run.step
        following = self.problem.domain.project(x - step * gradient)
        model = self._output(within, x, following)
        return (model if within == self._phase - 1 else following), model
