"""Averaged clipping with restarts, for strongly convex losses: each run starts closer, with a smaller clip."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import ClassVar, Literal

from pydantic import Field

from strategies import About, Fact, Gathered, Given, MeanRounds, Noise, Number, Recipe, Request, Scheme, Step
from strategies.baselines.averaged_clipping.options import TheoryOptions
from strategies.baselines.averaged_clipping.parameters import TheoryConstants, clipped_average, practical_step
from strategies.baselines.averaged_clipping.renyi import sampled_gaussian_epsilon
from strategies.baselines.averaged_clipping.restarts import Run, default_runs, radii, restarted, rounds_per_run
from strategies.baselines.samples.batch_rounds import (
    BATCH_MEANING,
    balanced_batch,
    clamped_batch,
    drawn_apart,
    sample_rate,
    sample_sum,
)
from strategies.baselines.samples.poisson_samples import PoissonSamples, group_rate
from strategies.baselines.samples.sample_options import MEANINGS, OutputAverage, most_of, samples_of
from userdp.accounting import SampledRounds
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.sampling import DisjointBatches, Sampler
from userdp.state import Stateful

Drawn = tuple[Run, Sampler, GaussianMechanism]
"""A run with clip, batch and step, who takes part in it, and the mechanism of its clipped means."""


@dataclass(frozen=True, kw_only=True)
class Runs(Scheme):
    """Several schemes one after the other, with one memory and one count of rounds, of equally many rounds each."""

    runs: tuple[Scheme, ...]  # the first one first
    rounds_of_each: int  # public

    def run(self, index: int) -> Scheme:
        """Return the scheme of round ``index``."""
        return self.runs[index // self.rounds_of_each]

    def ask(self, index: int, memory: Stateful | None) -> Request | None:
        return self.run(index).ask(index, memory)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Stateful | None, noise: Noise) -> Step:
        return self.run(index).take(index, x, gathered, memory, noise)


class AveragedClippingRestarted(Recipe, TheoryOptions, restates={"clip_norm", "rounds"}):
    """Runs of averaged clipping, each from the model of the one before, with clip, noise and step in proportion.

    *Formal guarantees.* *Claim.* That of `averaged_clipping`. *Why.* Those of `AveragedClipping`, round by round:
    unit one sample or one whole user; sensitivity twice the clip IN FORCE, which follows from the configuration
    alone, and noise in proportion to it. So all rounds of all runs have one noise multiplier and are accounted
    together: Poisson-sampled Gaussians at rate q for a sample and ``1 - (1 - q)^max_samples`` for a user
    (add-or-remove), or plain Gaussians for everybody in every round (replace-one). calibration = "paper" takes
    clips and batches of the theory and promises nothing. Every iterate is released; other nodes may send anything.

    *Assumptions.* Those of `averaged_clipping`, for `full` and `poisson_samples`.
    """

    about: ClassVar[About] = About(
        name="averaged_clipping_restarted",
        summary_line="averaged clipping in runs that halve the distance, for strongly convex losses",
        family="sample-level",
        cost="node O(N d), one sum of d numbers up; server O(K d)",
        paper="Jin, Zhou, Han, Cheng, Zeng: averaged clipping for heavy tails, Algorithm 2",
        needs="a strongly convex loss; public number of samples",
        units=("sample", "user"),
        without_secure_noise="nodes send sums without a clip, so rounding has no bound",
        promise="sample or user level at nearly the same price, which is high; against other nodes too",
        example={"rounds": 3, "runs": 1},
        meanings={
            **MEANINGS,
            **BATCH_MEANING,
            "runs": "runs, each from the model of the one before",
            "steps": "steps of each phase",
            "clip_low": "smallest clip",
            "clip_high": "largest clip",
        },
        notes={"clip_norm": Fact("noised", "clip of the round: planned, or moved by released values")},
    )

    rounds: int | None = Field(None, ge=1, description="Rounds of all runs together; by theory, capped, if not given.")
    runs: int | None = Field(None, ge=1, description="tau; log2 N, capped at one a 20 rounds, if not given.")
    batches: Literal["poisson_samples", "full"] = Field(
        "poisson_samples", description="poisson_samples: a coin for each sample; full: everybody in every round."
    )
    strong_convexity: float | None = Field(None, gt=0, description="mu, of the expected loss; certified if not given.")
    first_gap: float | None = Field(
        None, gt=0, description="Bound on the excess risk at the start; smoothness radius^2 / 2 if not given."
    )
    clip_norm: float | None = Field(None, gt=0, description="Clip of the first run; later ones shrink in proportion.")

    def scheme(self, given: Given) -> Runs:
        constants = self.constants(given, self.known_smoothness(given, "its clip"))
        convexity = self._strong_convexity(given)
        runs, steps, warnings = self._lengths(given, constants, convexity)
        gap = self.first_gap or constants.smoothness * constants.radius**2 / 2
        made = self._paper_runs if self.calibration == "paper" else self._certified_runs
        drawn = made(given, constants, convexity, gap, runs, steps)
        spent = _spent(drawn, steps, given.privacy.delta) if self.calibration == "paper" else None
        # Where noise is certified all runs have one sampler and one multiplier.
        (first, sampler, mechanism), (last, _, of_last) = drawn[0], drawn[-1]
        distance = sum(run.step * run.clip for run, _, _ in drawn)
        numbers: Mapping[str, Number] = {
            "runs": runs,
            "steps": steps,
            "clip_high": first.clip,
            "clip_low": last.clip,
            "sample_batch": float(first.batch),
            "sampling": self.batches,
            "learning_rate": first.step,
        }
        price, numbers = self.promised(given, sampler, mechanism, ("the server is trusted",), numbers, spent)
        outlined = self.outlined(
            given, mechanism, first.step, rounds=runs * steps, signal=first.clip, numbers=numbers, warnings=warnings
        )
        # Runs begin where the one before ended: the last says what noise is left, all of them how far it may be.
        path = self.course(steps, last.step, of_last.standard_deviation, distance / last.step)
        # Gradients come to it at the length of their run's steps.
        memory = partial(OutputAverage, 1.0, self.output, given.dimension, steps)
        outline = replace(outlined, path=path)
        alike = partial(MeanRounds, price=price, outline=outline, new_memory=memory, domain=given.problem.domain)
        return Runs(
            price=price,
            outline=outline,
            new_memory=memory,
            runs=tuple(_rounds(given, alike, *run) for run in drawn),
            rounds_of_each=steps,
        )

    def _certified_runs(
        self, given: Given, constants: TheoryConstants, convexity: float, gap: float, runs: int, steps: int
    ) -> list[Drawn]:
        """Clips follow the distance, noise follows the clip, steps follow both."""
        batch = clamped_batch(self.batch or balanced_batch(constants.samples), constants.samples)
        sampler = self._sampler(given, batch, runs * steps)
        multiplier = sampler.calibrate(given.privacy.epsilon, given.privacy.delta)
        distances = list(islice(radii(gap, convexity), runs))
        first = self.clip_norm or 4 * constants.smoothness * distances[0]
        made = []
        for distance in distances:
            clip = first * distance / distances[0]
            mechanism = GaussianMechanism(2 * clip, multiplier)
            noise = mechanism.standard_deviation
            rate = self.learning_rate or practical_step(replace(constants, radius=distance), clip, steps, noise)
            made.append((Run(distance, clip, batch, rate, noise), sampler, mechanism))
        return made

    def _paper_runs(
        self, given: Given, constants: TheoryConstants, convexity: float, gap: float, runs: int, steps: int
    ) -> list[Drawn]:
        """Return the runs of Algorithm 2, each with its own batch and noise multiplier."""
        made = []
        for run in restarted(constants, convexity, gap, runs, steps):
            sampler = self._sampler(given, clamped_batch(run.batch, constants.samples), runs * steps)
            mechanism = GaussianMechanism(2 * run.clip, run.noise_deviation / (2 * run.clip))
            made.append((replace(run, step=self.learning_rate or run.step), sampler, mechanism))
        return made

    def _strong_convexity(self, given: Given) -> float:
        convexity = self.strong_convexity or given.problem.certificate.strong_convexity
        if not convexity:
            raise BadInput(
                "strategy.strong_convexity must be declared: the problem certifies none; add a ridge, or use "
                "averaged_clipping"
            )
        return convexity

    def _lengths(self, given: Given, constants: TheoryConstants, convexity: float) -> tuple[int, int, tuple[str, ...]]:
        """(runs, rounds of each, warnings)."""
        wanted = self.runs or default_runs(constants.samples)
        total, warnings = self.wanted_rounds(lambda: wanted * rounds_per_run(constants, convexity))
        runs = self.runs or min(wanted, max(1, total // 20))
        if total < runs:
            raise BadInput(f"strategy.runs = {runs}: {total} rounds give none to some run; plan fewer runs")
        return runs, total // runs, warnings

    def _sampler(self, given: Given, batch: int, rounds: int) -> Sampler:
        if self.batches == "full":
            return DisjointBatches(given.users, given.users, rounds, given.seed)
        return PoissonSamples(given.users, batch / samples_of(given), rounds, given.seed, most_of(given))


def _rounds(
    given: Given, alike: Callable[..., MeanRounds], run: Run, sampler: Sampler, mechanism: GaussianMechanism
) -> MeanRounds:
    """Return the rounds of one run; ``alike`` makes them from what differs from run to run."""
    divisor = samples_of(given) * sample_rate(sampler)
    return alike(
        sampler=sampler,
        query=partial(sample_sum, sampler),
        divisor=divisor,
        mechanism=mechanism,
        mean=clipped_average(divisor, run.clip),
        gradient=lambda _, released: run.step * released,
        noted=lambda _, mean, deviation: {"noise_deviation": deviation, "clip_norm": run.clip},
    )


def _spent(drawn: list[Drawn], steps: int, delta: float) -> float:
    """Epsilon of rounds whose rates and multipliers differ from run to run."""
    rounds = [
        SampledRounds(mechanism.noise_multiplier, group_rate(sample_rate(sampler), drawn_apart(sampler)), steps)
        for _, sampler, mechanism in drawn
    ]
    return sampled_gaussian_epsilon(rounds, delta)
