"""Averaged clipping with restarts, for strongly convex losses: each run starts closer, with a smaller clip."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Number, Scheme, Step, no_ledger
from strategies.samples.sample_rounds import (
    TheoryOptions,
    balanced_batch,
    drawn_apart,
    epsilons,
    noise_numbers,
    promised,
    promised_numbers,
    sample_sums,
    theory_constants,
)
from strategies.samples.sample_strategy import OutputAverage, Rounds, SampleStrategy
from strategies.wire.replies import Gathered, Request
from userdp.accounting.sampled_gaussian import SampledRounds, group_rate, sampled_gaussian_epsilon
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.papers.averaged_clipping.clip import average_clip
from userdp.papers.averaged_clipping.descent import clamped_batch
from userdp.papers.averaged_clipping.parameters import TheoryConstants, practical_step
from userdp.papers.averaged_clipping.restarts import Run, default_runs, radii, restarted, rounds_per_run
from userdp.sampling import DisjointBatches, PoissonSamples, Sampler


class RestartedOptions(TheoryOptions, restates={"clip_norm", "rounds"}):
    """Settings of `AveragedClippingRestarted`."""

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


@dataclass(frozen=True, kw_only=True)
class RunScheme:
    """One run.

    Attributes:
        theory: clip, batch and step as the theory sets them.
        sampler: who takes part in each round, counted over all runs.
        divisor: public number of samples that sums are divided by.
        mechanism: of a round's clipped mean.
        rate: step size.
    """

    theory: Run
    sampler: Sampler
    divisor: float
    mechanism: GaussianMechanism
    rate: float

    @property
    def group(self) -> int:
        """Samples of a user that are drawn apart from each other."""
        return drawn_apart(self.sampler)


@dataclass(frozen=True, kw_only=True)
class RestartedScheme(Scheme):
    """A `Scheme` of runs, one after the other.

    Attributes:
        chosen: how many rounds all runs together have.
        steps: rounds of each run.
        runs: what each is made with.
        accounted: epsilon that noise by the paper's formula really costs; None where noise is certified.
    """

    chosen: Rounds
    steps: int
    runs: tuple[RunScheme, ...]
    accounted: float | None = None

    def run(self, index: int) -> RunScheme:
        """The one that round ``index`` belongs to."""
        return self.runs[index // self.steps]


class AveragedClippingRestarted(SampleStrategy):
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
    scheme: RestartedScheme

    # The scheme ----------------------------------------------------------------------------------------------------

    def _make_scheme(self) -> RestartedScheme:
        constants = theory_constants(self, self.options, self.smoothness("its clip"))
        convexity = self._strong_convexity()
        runs, steps = self._lengths(constants, convexity)
        gap = self.options.first_gap or constants.smoothness * constants.radius**2 / 2
        by_paper = self.options.calibration == "paper"
        made = self._paper_runs if by_paper else self._certified_runs
        planned = made(constants, convexity, gap, runs, steps)
        spent = self._accounted(planned, steps) if by_paper else None
        # Where noise is certified all runs have one sampler and one multiplier.
        sampler, multiplier = planned[0].sampler, planned[0].mechanism.noise_multiplier
        promise = promised(self, sampler, multiplier, ("the server is trusted",), spent)
        return RestartedScheme(
            guarantee=promise,
            ledger=partial(sampler.ledger, multiplier) if promise.holds else no_ledger,
            new_memory=partial(OutputAverage, self.options.output, self.problem.dimension, steps),
            chosen=self._rounds(constants, convexity),
            steps=steps,
            runs=planned,
            accounted=spent,
        )

    def _certified_runs(
        self, constants: TheoryConstants, convexity: float, gap: float, runs: int, steps: int
    ) -> tuple[RunScheme, ...]:
        """Clips follow the distance, noise follows the clip, steps follow both."""
        options = self.options
        batch = clamped_batch(options.batch or balanced_batch(self.samples), self.samples)
        sampler = self._sampler_of(batch, runs * steps)
        multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        distances = list(islice(radii(gap, convexity), runs))
        first = options.clip_norm or 4 * constants.smoothness * distances[0]
        made = []
        for distance in distances:
            clip = first * distance / distances[0]
            noise = 2 * clip * multiplier
            rate = options.learning_rate or practical_step(replace(constants, radius=distance), clip, steps, noise)
            made.append(self._run_of(Run(distance, clip, batch, rate, noise), sampler, multiplier))
        return tuple(made)

    def _paper_runs(
        self, constants: TheoryConstants, convexity: float, gap: float, runs: int, steps: int
    ) -> tuple[RunScheme, ...]:
        """Those of Algorithm 2, each with a batch and a multiplier of its own."""
        made = []
        for run in restarted(constants, convexity, gap, runs, steps):
            sampler = self._sampler_of(clamped_batch(run.batch, self.samples), runs * steps)
            made.append(self._run_of(run, sampler, run.noise_deviation / (2 * run.clip)))
        return tuple(made)

    def _accounted(self, runs: tuple[RunScheme, ...], steps: int) -> float:
        """Epsilon of rounds whose rates and multipliers differ from run to run."""
        rounds = [
            SampledRounds(run.mechanism.noise_multiplier, group_rate(self._rate_of(run.theory), run.group), steps)
            for run in runs
        ]
        return sampled_gaussian_epsilon(rounds, self.privacy.delta)

    def _run_of(self, run: Run, sampler: Sampler, multiplier: float) -> RunScheme:
        return RunScheme(
            theory=run,
            sampler=sampler,
            divisor=self.samples * self._rate_of(run),
            mechanism=GaussianMechanism(2 * run.clip, multiplier),
            rate=self.options.learning_rate or run.step,
        )

    def _strong_convexity(self) -> float:
        convexity = self.options.strong_convexity or self.problem.certificate.strong_convexity
        if not convexity:
            raise BadInput(
                "strategy.strong_convexity must be declared: the problem certifies none; add a ridge, or use "
                "averaged_clipping"
            )
        return convexity

    @property
    def _wanted_runs(self) -> int:
        return self.options.runs or default_runs(self.samples)

    def _rounds(self, constants: TheoryConstants, convexity: float) -> Rounds:
        """Of all runs together."""
        options = self.options
        return Rounds.chosen(
            options.rounds, lambda: self._wanted_runs * rounds_per_run(constants, convexity), options.max_rounds
        )

    def _lengths(self, constants: TheoryConstants, convexity: float) -> tuple[int, int]:
        """(runs, rounds of each)."""
        total = self._rounds(constants, convexity).count
        runs = self.options.runs or min(self._wanted_runs, max(1, total // 20))
        if total < runs:
            raise BadInput(f"strategy.runs = {runs}: {total} rounds give none to some run; plan fewer runs")
        return runs, total // runs

    def _sampler_of(self, batch: int, rounds: int) -> Sampler:
        if self.options.batches == "full":
            return DisjointBatches(self.public.users, self.public.users, rounds, self.seed)
        return PoissonSamples(self.public.users, batch / self.samples, rounds, self.seed, self.most)

    def _rate_of(self, run: Run) -> float:
        """The chance of a sample to be drawn."""
        return 1.0 if self.options.batches == "full" else min(1.0, run.batch / self.samples)

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        scheme, first, last = self.scheme, self.scheme.runs[0], self.scheme.runs[-1]
        noise, signal = self.noise_norm(first.mechanism), first.theory.clip
        way = sum(run.rate * run.theory.clip for run in scheme.runs)
        return self._planned(
            # Runs begin where the one before ended: the last says what noise is left, all of them how far it may be.
            self._course(scheme.steps, last.rate, last.mechanism.standard_deviation, way / last.rate),
            rounds=len(scheme.runs) * scheme.steps,
            cohort=self.public.users,
            users_needed=1,
            noise=noise,
            signal=signal,
            numbers={
                "runs": len(scheme.runs),
                "steps": scheme.steps,
                "clip_high": signal,
                "clip_low": scheme.runs[-1].theory.clip,
                "sample_batch": float(first.theory.batch),
                "sampling": self.options.batches,
                "learning_rate": first.theory.step,
                **noise_numbers(self, first.mechanism, first.group),
                **self._cost_numbers(),
            },
            warnings=scheme.chosen.warnings(),
        )

    def _cost_numbers(self) -> dict[str, Number]:
        if self.scheme.accounted is not None:
            return {"accounted_epsilon": self.scheme.accounted}
        first = self.scheme.runs[0]
        numbers = epsilons(self, first.sampler, first.mechanism.noise_multiplier)
        return numbers | promised_numbers(first.sampler, self.scheme.guarantee)

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        return sample_sums(self.scheme.run(index).sampler, index)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        run = self.scheme.run(index)
        clip, mechanism = run.theory.clip, run.mechanism
        gradient = mechanism.release(average_clip(gathered.values / run.divisor, clip), self._noise(index))
        facts = {"noise_deviation": mechanism.standard_deviation, "clip_norm": clip}
        return self._descend(x, gradient, run.rate, facts)
