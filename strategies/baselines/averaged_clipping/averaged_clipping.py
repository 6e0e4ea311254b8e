"""Averaged clipping: the mean gradient of a batch of samples is clipped ONCE, and released with noise."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies import About, Fact, Given, MeanRounds, Recipe
from strategies.baselines.averaged_clipping.options import TheoryOptions
from strategies.baselines.averaged_clipping.parameters import (
    ClipRule,
    Parameters,
    TheoryConstants,
    average_clip,
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
from strategies.baselines.samples.batch_rounds import (
    BATCH_MEANING,
    balanced_batch,
    clamped_batch,
    drawn_apart,
    sample_sum,
)
from strategies.baselines.samples.poisson_samples import PoissonSamples
from strategies.baselines.samples.sample_options import MEANINGS, most_of, samples_of
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.sampling import DisjointBatches, PoissonBatches, Sampler, check_batch


class AveragedClipping(Recipe, TheoryOptions):
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
    More in `strategies/baselines/averaged_clipping/README.md`.

    *Assumptions.* The server is trusted. Poisson: the number of samples is public (for users, `max_samples` too),
    and which samples or users take part stays secret; a node gets the coins of its own users only. Disjoint: who
    takes part is public. Other nodes may answer with anything.
    """

    about: ClassVar[About] = About(
        name="averaged_clipping",
        summary_line="mean gradient of a batch of samples, clipped once, with noise",
        family="sample-level",
        cost="node O(N d), one sum of d numbers up; server O(K d)",
        paper="Jin, Zhou, Han, Cheng, Zeng: averaged clipping for heavy tails",
        needs="any loss; public number of samples",
        units=("sample", "user"),
        without_secure_noise="nodes send sums without a clip, so rounding has no bound",
        promise="sample or user level at nearly the same price, which is high; against other nodes too",
        example={"rounds": 3},
        meanings={**MEANINGS, **BATCH_MEANING},
        notes={"clipped_private": Fact("private", "whether the batch's mean was longer than the clip")},
    )

    case: Literal["constrained", "unconstrained", "non_smooth"] = Field(
        "constrained",
        description='Whose theorem sets the clip where it is not given, and with calibration = "paper" rounds, batch '
        "and step too. Certified noise is another: it takes one pass in batches of sqrt(N), steps that suit the noise, "
        'and the theorem\'s rounds for batches = "full" alone.',
    )
    batches: Literal["poisson_samples", "poisson_users", "disjoint", "full"] = Field(
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

    def scheme(self, given: Given) -> MeanRounds:
        constants = self._constants(given)
        rounds, warnings = self.wanted_rounds(lambda: self._default_rounds(given, constants))
        theory = self._theory(given, constants, rounds)
        batch = self._batch(samples_of(given), theory)
        sampler = self._sampler(given, batch, rounds)
        if self.calibration == "paper":
            clip = self.clip_norm or theory.clip
            multiplier = paper_noise(constants, clip, batch, rounds) / (2 * clip)
            rate = self.learning_rate or theory.step
        else:
            multiplier = sampler.calibrate(given.privacy.epsilon, given.privacy.delta)
            clip = self.clip_norm or self._certified_clip(constants, theory, multiplier)
            rough = self.case == "non_smooth"
            longest = hoelder_step(constants, self._hoelder(given)[0], rounds, self.alpha) if rough else None
            rate = self.learning_rate or practical_step(constants, clip, rounds, 2 * clip * multiplier, longest)
        disjoint = self.batches == "disjoint"
        divisor = sampler.expected_batch * constants.samples / given.users if disjoint else float(batch)
        whole_users = max(1, round(given.users * divisor / constants.samples))
        # Coins for samples say so themselves; with everybody in every round the divisor is in no proof.
        public = () if self.batches in ("full", "poisson_samples") else ("the number of samples is public",)
        rounds_of_means = self.drawn(
            given,
            sampler,
            GaussianMechanism(2 * clip, multiplier),
            rate,
            (*public, "the server is trusted"),
            query=partial(sample_sum, sampler),
            divisor=divisor,
            rounds=rounds,
            cohort=whole_users if self.batches == "poisson_users" else round(sampler.expected_batch),
            signal=clip,
            numbers={"clip_norm": clip, "sample_batch": divisor, "sampling": self.batches, "learning_rate": rate},
            warnings=(*warnings, *_group_warnings(drawn_apart(sampler))),
        )
        return replace(rounds_of_means, bound=partial(average_clip, clip=clip), noted=_clipped)

    def _theory(self, given: Given, constants: TheoryConstants, rounds: int) -> Parameters:
        if self.case == "constrained":
            return constrained(constants, rounds)
        if self.case == "unconstrained":
            return unconstrained(constants, rounds, self.clip_rule)
        return non_smooth(constants, self._hoelder(given)[0], rounds, self.alpha)

    def _constants(self, given: Given) -> TheoryConstants:
        if self.case != "non_smooth" and given.problem.certificate.hoelder and not self.smoothness:
            raise BadInput(
                f"strategy.case = {self.case!r}: its theorem is of smooth losses, and this one is not; set "
                "strategy.case = 'non_smooth', or declare strategy.smoothness of the expected loss"
            )
        rough = self.case == "non_smooth"
        constant = self._hoelder(given)[1] if rough else self.known_smoothness(given, "its clip")
        # A constrained run may move anywhere in the set: its distance to a minimiser is bounded by the diameter.
        return self.constants(given, constant, spread=2.0 if self.case == "constrained" else 1.0)

    def _hoelder(self, given: Given) -> tuple[float, float]:
        """(nu, M) as declared, else as certified; what is certified for one exponent says nothing of another."""
        certificate = given.problem.certificate
        exponent, constant = certificate.hoelder or (1.0, certificate.smoothness)
        if self.exponent is None and constant is None:
            raise BadInput(
                "strategy.exponent must be declared, and its constant as strategy.smoothness: the problem certifies "
                "no Hoelder exponent of its gradient"
            )
        if self.exponent not in (None, exponent):
            exponent, constant = self.exponent, None
        constant = self.smoothness or constant
        if not constant:
            raise BadInput(
                f"strategy.smoothness must be declared: {given.strategy} sets its clip by it, and the problem "
                f"certifies no positive Hoelder constant of exponent {exponent:g}"
            )
        return exponent, constant

    def _default_rounds(self, given: Given, constants: TheoryConstants) -> int:
        if self.calibration == "accountant" and self.batches != "full":
            samples = constants.samples
            rounds = max(2, samples // (self.batch or balanced_batch(samples)))  # one pass over the samples
            return min(rounds, given.users) if self.batches == "disjoint" else rounds
        if self.case == "constrained":
            return constrained_rounds(constants)
        return unconstrained_rounds(constants) if self.case == "unconstrained" else plain_rounds(constants)

    def _batch(self, samples: int, theory: Parameters) -> int:
        if self.batches == "full":
            return samples
        if self.batches == "disjoint":
            return max(1, samples // theory.rounds)
        default = theory.batch if self.calibration == "paper" else balanced_batch(samples)
        return clamped_batch(self.batch or default, samples)

    def _sampler(self, given: Given, batch: int, rounds: int) -> Sampler:
        users, seed, rate = given.users, given.seed, batch / samples_of(given)
        if self.batches == "poisson_samples":
            return PoissonSamples(users, rate, rounds, seed, most_of(given))
        if self.batches == "poisson_users":
            return PoissonBatches(users, rate, rounds, seed)
        if self.batches == "disjoint":
            check_batch(rounds, users)
            return DisjointBatches(users, users // rounds, 1, seed)
        return DisjointBatches(users, users, rounds, seed)

    def _certified_clip(self, constants: TheoryConstants, theory: Parameters, multiplier: float) -> float:
        """The theorem's clip for certified noise; where the theorem has none, that of its limit of little noise."""
        if self.case != "unconstrained":
            return theory.clip  # whatever the noise
        reach = constants.smoothness * constants.radius
        return unconstrained_clip(constants, theory.rounds, 2 * multiplier) or 4 * reach


def _group_warnings(group: int) -> tuple[str, ...]:
    if group == 1:
        return ()
    return (
        f"a user is drawn {group} times as often as a sample; strategy.batches = "
        "'poisson_users' or 'full' costs a user no more than a sample",
    )


def _clipped(mean: Vector, clipped: Vector) -> Mapping[str, float]:
    return {"clipped_private": float(not np.array_equal(clipped, mean))}
