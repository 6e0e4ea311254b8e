"""Averaged clipping: the mean gradient of a batch of samples is clipped ONCE, and released with noise."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Step
from strategies.samples.sample_rounds import (
    DrawnScheme,
    TheoryOptions,
    balanced_batch,
    cost_numbers,
    drawn_scheme,
    noise_numbers,
    sample_sums,
    theory_constants,
)
from strategies.samples.sample_strategy import Rounds, SampleStrategy
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.papers.averaged_clipping.clip import average_clip
from userdp.papers.averaged_clipping.descent import clamped_batch
from userdp.papers.averaged_clipping.parameters import (
    ClipRule,
    Parameters,
    TheoryConstants,
    constrained,
    constrained_rounds,
    hoelder_step,
    non_smooth,
    paper_noise,
    plain_rounds,
    practical_step,
    unconstrained,
    unconstrained_clip,
    unconstrained_rounds,
)
from userdp.sampling import DisjointBatches, PoissonBatches, PoissonSamples, Sampler, check_batch

Case = Literal["constrained", "unconstrained", "non_smooth"]
Sampling = Literal["poisson_samples", "poisson_users", "disjoint", "full"]


class AveragedClippingOptions(TheoryOptions):
    """Settings of `AveragedClipping`."""

    case: Case = Field(
        "constrained",
        description='Whose theorem sets the clip where it is not given, and with calibration = "paper" rounds, batch '
        "and step too. Certified noise is another: it takes one pass in batches of sqrt(N), steps that suit the noise, "
        'and the theorem\'s rounds for batches = "full" alone.',
    )
    batches: Sampling = Field(
        "poisson_samples",
        description="poisson_samples: a coin for each sample; poisson_users: a coin for each user with all samples; "
        "disjoint: every user in one round only; full: everybody in every round.",
    )
    clip_rule: ClipRule = Field("paper", description="Clip of the unconstrained case: as printed, or the exact root.")
    exponent: float | None = Field(
        None,
        ge=0,
        le=1,
        description="nu, Hoelder exponent of the gradient, for non_smooth, where smoothness is its constant; the "
        "problem's certified ones if not given.",
    )
    alpha: float | None = Field(None, gt=0, description="Accuracy aimed at, for non_smooth; balanced if not given.")


class AveragedClipping(SampleStrategy):
    """Projected gradient descent along the clipped mean gradient of a batch of samples.

    *Formal guarantees.* *Claim.* (epsilon, delta) for one sample or one whole user, round release, any loss; the
    relation depends on the batches. *Why.* Unit: one sample or one whole user. Users send the SUM of the gradients
    of their drawn samples, unclipped, which the trusted server sees (summed over each node); it divides by the
    public batch m, clips the mean ONCE to l2 norm R and adds Gaussian noise. Two clipped means lie in one ball, so
    they are at most 2R apart whatever differs between the batches, be it one sample or all samples of a user, and
    2R is attained; noise does not fall with m. So a user costs what a sample costs wherever a user is drawn as one:
    full (replace-one: N Gaussians), disjoint (replace-one: one Gaussian) and poisson_users (add-or-remove,
    amplified at rate m/N). poisson_samples amplifies at rate q = m/N for a sample, and at ``1 - (1 -
    q)^max_samples`` for a user (the chance that any of the user's samples is drawn), add-or-remove; group privacy
    of the 2R sensitivity is not needed. calibration = "paper" promises nothing: Every iterate is released; other
    nodes may send anything. The paper's sensitivity is corrected, and its closed form is no valid calibration: such
    a run reports no guarantee, and what an accountant finds. A user's samples beyond max_samples are never drawn.
    More in `docs/papers/averaged-clipping.md`.

    *Assumptions.* The server is trusted. Poisson: the number of samples is public (for users, `max_samples` too),
    and which samples or users take part stays secret; a node gets the coins of its own users only. Disjoint: who
    takes part is public. Other nodes may answer with anything.
    """

    name: ClassVar[str] = "averaged_clipping"
    summary_line: ClassVar[str] = "mean gradient of a batch of samples, clipped once, with noise"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d)"
    paper: ClassVar[str] = "Jin, Zhou, Han, Cheng, Zeng: averaged clipping for heavy tails"
    without_secure_noise: ClassVar[str | None] = "nodes send sums without a clip, so rounding has no bound"
    promise: ClassVar[str] = "sample or user level at nearly the same price, which is high; against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "sample_batch": "samples a round, expected; the public divisor",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "clipped_private": Fact("private", "whether the batch's mean was longer than the clip"),
    }
    Options: ClassVar[type[StrategyOptions]] = AveragedClippingOptions
    options: AveragedClippingOptions
    scheme: DrawnScheme

    # The scheme ----------------------------------------------------------------------------------------------------

    def _make_scheme(self) -> DrawnScheme:
        options, constants = self.options, self._constants()
        theory = self._theory(constants)
        batch = self._batch_of(theory)
        sampler = self._sampler_of(batch, theory.rounds)
        if options.calibration == "paper":
            clip = options.clip_norm or theory.clip
            multiplier = paper_noise(constants, clip, batch, theory.rounds) / (2 * clip)
            rate = options.learning_rate or theory.step
        else:
            multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
            clip = options.clip_norm or self._certified_clip(constants, theory, multiplier)
            rate = options.learning_rate or self._certified_step(constants, theory.rounds, clip, 2 * clip * multiplier)
        disjoint = options.batches == "disjoint"
        return drawn_scheme(
            self,
            options,
            sampler,
            GaussianMechanism(2 * clip, multiplier),
            self._assumptions(),
            chosen=self._rounds(constants),
            clip=clip,
            divisor=sampler.expected_batch * self.samples / self.public.users if disjoint else float(batch),
            rate=rate,
        )

    def _theory(self, constants: TheoryConstants) -> Parameters:
        options = self.options
        rounds = self._rounds(constants).count
        if options.case == "constrained":
            return constrained(constants, rounds)
        if options.case == "unconstrained":
            return unconstrained(constants, rounds, options.clip_rule)
        return non_smooth(constants, self._hoelder[0], rounds, options.alpha)

    def _constants(self) -> TheoryConstants:
        options = self.options
        if options.case != "non_smooth" and self.problem.certificate.hoelder and not options.smoothness:
            raise BadInput(
                f"strategy.case = {options.case!r}: its theorem is of smooth losses, and this one is not; set "
                "strategy.case = 'non_smooth', or declare strategy.smoothness of the expected loss"
            )
        constant = self._hoelder[1] if options.case == "non_smooth" else self.smoothness("its clip")
        # A constrained run may move anywhere in the set: its distance to a minimiser is bounded by the diameter.
        return theory_constants(self, options, constant, spread=2.0 if options.case == "constrained" else 1.0)

    @property
    def _hoelder(self) -> tuple[float, float]:
        """(nu, M) as declared, else as certified; what is certified for one exponent says nothing of another."""
        certificate, options = self.problem.certificate, self.options
        exponent, constant = certificate.hoelder or (1.0, certificate.smoothness)
        if options.exponent is None and constant is None:
            raise BadInput(
                "strategy.exponent must be declared, and its constant as strategy.smoothness: the problem certifies "
                "no Hoelder exponent of its gradient"
            )
        if options.exponent not in (None, exponent):
            exponent, constant = options.exponent, None
        constant = options.smoothness or constant
        if not constant:
            raise BadInput(
                f"strategy.smoothness must be declared: {self.name} sets its clip by it, and the problem certifies no "
                f"positive Hoelder constant of exponent {exponent:g}"
            )
        return exponent, constant

    def _rounds(self, constants: TheoryConstants) -> Rounds:
        options = self.options
        return Rounds.chosen(options.rounds, lambda: self._default_rounds(constants), options.max_rounds)

    def _default_rounds(self, constants: TheoryConstants) -> int:
        options, samples = self.options, self.samples
        if options.calibration == "accountant" and options.batches != "full":
            rounds = max(2, samples // (options.batch or balanced_batch(samples)))  # one pass over the samples
            return min(rounds, self.public.users) if options.batches == "disjoint" else rounds
        if options.case == "constrained":
            return constrained_rounds(constants)
        return unconstrained_rounds(constants) if options.case == "unconstrained" else plain_rounds(constants)

    def _batch_of(self, theory: Parameters) -> int:
        options, samples = self.options, self.samples
        if options.batches == "full":
            return samples
        if options.batches == "disjoint":
            return max(1, samples // theory.rounds)
        default = theory.batch if options.calibration == "paper" else balanced_batch(samples)
        return clamped_batch(options.batch or default, samples)

    def _sampler_of(self, batch: int, rounds: int) -> Sampler:
        users, rate = self.public.users, batch / self.samples
        if self.options.batches == "poisson_samples":
            return PoissonSamples(users, rate, rounds, self.seed, self.most)
        if self.options.batches == "poisson_users":
            return PoissonBatches(users, rate, rounds, self.seed)
        if self.options.batches == "disjoint":
            check_batch(rounds, users)
            return DisjointBatches(users, users // rounds, 1, self.seed)
        return DisjointBatches(users, users, rounds, self.seed)

    def _certified_clip(self, constants: TheoryConstants, theory: Parameters, multiplier: float) -> float:
        """The theorem's clip for certified noise; where the theorem has none, that of its limit of little noise."""
        if self.options.case != "unconstrained":
            return theory.clip  # whatever the noise
        reach = constants.smoothness * constants.radius
        return unconstrained_clip(constants, theory.rounds, 2 * multiplier) or 4 * reach

    def _certified_step(self, constants: TheoryConstants, rounds: int, clip: float, noise: float) -> float:
        if self.options.case != "non_smooth":
            return practical_step(constants, clip, rounds, noise)
        longest = hoelder_step(constants, self._hoelder[0], rounds, self.options.alpha)
        return practical_step(constants, clip, rounds, noise, longest)

    def _assumptions(self) -> tuple[str, ...]:
        own = ("the server is trusted",)
        # Coins for samples say so themselves; with everybody in every round the divisor is in no proof.
        return own if self.options.batches in ("full", "poisson_samples") else ("the number of samples is public", *own)

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        scheme = self.scheme
        return self._planned(
            self._course(scheme.rounds, scheme.rate, scheme.mechanism.standard_deviation, scheme.clip),
            rounds=scheme.rounds,
            cohort=self._cohort(),
            users_needed=1,
            noise=self.noise_norm(scheme.mechanism),
            signal=scheme.clip,
            numbers={
                "clip_norm": scheme.clip,
                "sample_batch": scheme.divisor,
                "sampling": self.options.batches,
                "learning_rate": scheme.rate,
                **noise_numbers(self, scheme.mechanism, scheme.group),
                **cost_numbers(self, scheme),
            },
            warnings=self._warnings(),
        )

    def _cohort(self) -> int:
        if self.options.batches == "poisson_users":
            return max(1, round(self.public.users * self.scheme.divisor / self.samples))
        return round(self.scheme.sampler.expected_batch)

    def _warnings(self) -> tuple[str, ...]:
        scheme = self.scheme
        warnings = scheme.chosen.warnings()
        if scheme.group == 1:
            return warnings
        return (
            *warnings,
            f"a user is drawn {scheme.group} times as often as a sample; strategy.batches = "
            "'poisson_users' or 'full' costs a user no more than a sample",
        )

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        return sample_sums(self.scheme.sampler, index)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme = self.scheme
        mean = gathered.values / scheme.divisor
        clipped = average_clip(mean, scheme.clip)
        gradient = scheme.mechanism.release(clipped, self._noise(index))
        facts = {
            "noise_deviation": scheme.mechanism.standard_deviation,
            "clipped_private": float(not np.array_equal(clipped, mean)),
        }
        return self._descend(x, gradient, scheme.rate, facts)
