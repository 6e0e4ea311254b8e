"""Averaged clipping: the mean gradient of a batch of samples is clipped ONCE, and released with noise."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.declarations import Fact
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from strategies.sample_rounds import Numbers, TheoryOptions, TheoryRounds
from userdp.averaged_clipping import (
    Parameters,
    Setting,
    average_clip,
    clamped_batch,
    constrained,
    constrained_rounds,
    non_smooth,
    paper_noise,
    plain_rounds,
    practical_step,
    unconstrained,
    unconstrained_clip,
    unconstrained_rounds,
)
from userdp.averaged_clipping.parameters import REACH, ClipRule
from userdp.computations import Computation
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Vector
from userdp.sampling import DisjointBatches, PoissonBatches, PoissonSamples, Sampler, check_batch

Case = Literal["constrained", "unconstrained", "non_smooth"]
Sampling = Literal["poisson_samples", "poisson_users", "disjoint", "full"]


class AveragedClippingOptions(TheoryOptions):
    """Settings of `AveragedClipping`."""

    case: Case = Field(
        "constrained", description="Whose theorem sets clip, batch, step and rounds where they are not given."
    )
    batches: Sampling = Field(
        "poisson_samples",
        description="poisson_samples: a coin for each sample; poisson_users: a coin for each user with all samples; "
        "disjoint: every user in one round only; full: everybody in every round.",
    )
    clip_rule: ClipRule = Field("paper", description="Clip of the unconstrained case: as printed, or the exact root.")
    exponent: float = Field(0.0, ge=0, le=1, description="nu, Hoelder exponent of the gradient, for non_smooth.")
    alpha: float | None = Field(None, gt=0, description="Accuracy aimed at, for non_smooth; balanced if not given.")


class AveragedClipping(TheoryRounds):
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

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        options = self.options
        # A constrained run may move anywhere in the set: its distance to a minimiser is bounded by the diameter.
        setting = self._setting(spread=2.0 if options.case == "constrained" else 1.0)
        theory = self._theory(setting)
        rounds = theory.rounds
        batch = self._batch_of(theory)
        self._sampler, self._divisor = self._sampler_for(batch, rounds, self._most_drawn), float(batch)
        if options.batches == "disjoint":
            self._divisor = self._sampler.expected_batch * self._samples / self.public.users
        if options.calibration == "paper":
            self._clip = options.clip_norm or theory.clip
            noise = paper_noise(setting, self._clip, batch, rounds)
            self._multiplier = noise / (2 * self._clip)
            guarantee, more = self._uncertified(self._multiplier)
            step = options.learning_rate or theory.step
        else:
            self._multiplier = self._sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
            guarantee, more = self._promise(self._multiplier), {}
            self._clip = options.clip_norm or self._certified_clip(setting, rounds)
            noise = 2 * self._clip * self._multiplier
            step = options.learning_rate or practical_step(setting, self._clip, rounds, noise)
        self._rate = step
        self._mechanism = GaussianMechanism(2 * self._clip, self._multiplier)
        return self._planned(
            rounds,
            guarantee,
            self._mechanism,
            signal=self._clip,
            numbers={
                "clip_norm": self._clip,
                "sample_batch": self._divisor,
                "sampling": options.batches,
                "learning_rate": step,
            },
            costs=self._epsilons(batch, rounds) | more,
            warnings=self._warnings(),
            group=self._group_drawn,
            cohort=self._cohort(batch),
        )

    def _theory(self, setting: Setting) -> Parameters:
        options = self.options
        rounds = options.rounds or min(options.max_rounds, self._default_rounds(setting))
        if options.case == "constrained":
            return constrained(setting, rounds)
        if options.case == "unconstrained":
            return unconstrained(setting, rounds, options.clip_rule)
        return non_smooth(setting, options.exponent, rounds, options.alpha)

    def _default_rounds(self, setting: Setting) -> int:
        if self.options.calibration == "accountant" and self.options.batches != "full":
            rounds = max(2, setting.samples // (self.options.batch or self._root))  # one pass over the samples
            return min(rounds, self.public.users) if self.options.batches == "disjoint" else rounds
        if self.options.case == "constrained":
            return constrained_rounds(setting)
        return unconstrained_rounds(setting) if self.options.case == "unconstrained" else plain_rounds(setting)

    @property
    def _root(self) -> int:
        """The batch that balances one pass, ``sqrt(N)``."""
        return max(1, round(math.sqrt(self._samples)))

    def _batch_of(self, theory: Parameters) -> int:
        options, samples = self.options, self._samples
        if options.batches == "full":
            return samples
        if options.batches == "disjoint":
            return max(1, samples // theory.rounds)
        return clamped_batch(options.batch or (theory.batch if options.calibration == "paper" else self._root), samples)

    def _certified_clip(self, setting: Setting, rounds: int) -> float:
        """The theorem's clip for certified noise; where the theorem has none, that of its limit of little noise."""
        reach = setting.smoothness * setting.radius
        if self.options.case == "constrained":
            return 2 * reach
        if self.options.case == "unconstrained":
            return unconstrained_clip(setting, rounds, 2 * self._multiplier) or 4 * reach
        return 2 * setting.smoothness * math.pow(REACH * setting.radius, self.options.exponent)

    @property
    def _most_drawn(self) -> int | None:
        """Samples of a user that may be drawn; None where samples are protected, or users are drawn whole."""
        return self._most if self.options.batches == "poisson_samples" else None

    @property
    def _group_drawn(self) -> int:
        """Samples of a user that are drawn apart from each other."""
        return self._most_drawn or 1

    def _sampler_for(self, batch: int, rounds: int, most: int | None) -> Sampler:
        """Who takes part: ``most`` samples of a user, or each sample for itself, where samples are drawn."""
        users, rate = self.public.users, batch / self._samples
        if self.options.batches == "poisson_samples":
            return PoissonSamples(users, rate, rounds, self.seed, most)
        if self.options.batches == "poisson_users":
            return PoissonBatches(users, rate, rounds, self.seed)
        if self.options.batches == "disjoint":
            check_batch(rounds, users)
            return DisjointBatches(users, users // rounds, 1, self.seed)
        return DisjointBatches(users, users, rounds, self.seed)

    def _cohort(self, batch: int) -> int:
        if self.options.batches == "poisson_users":
            return max(1, round(self.public.users * batch / self._samples))
        return round(self._sampler.expected_batch)

    def _epsilons(self, batch: int, rounds: int) -> Numbers:
        apart = self.options.batches == "poisson_samples"
        user = None
        if not apart or self.public.max_samples is not None:
            user = self._sampler_for(batch, rounds, self.public.max_samples)
        return self._both_units(self._multiplier, self._sampler_for(batch, rounds, None), user)

    def _warnings(self) -> list[str]:
        mend = (
            ", and no batch makes it smaller: clip after averaging needs noise of twice the clip; use fewer "
            "strategy.rounds, a larger epsilon, or sample_clipped_sgd"
        )
        warnings = self._noise_warnings(self._noise_norm(self._mechanism), self._clip, mend)
        if self._group_drawn > 1:
            warnings.append(
                f"a user is drawn {self._group_drawn} times as often as a sample; strategy.batches = "
                "'poisson_users' or 'full' costs a user no more than a sample"
            )
        return warnings

    def _assumptions(self) -> tuple[str, ...]:
        own = ("the server is trusted",)
        # Coins for samples say so themselves; with everybody in every round the divisor is in no proof.
        return own if self.options.batches in ("full", "poisson_samples") else ("the number of samples is public", *own)

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        sampler = self._sampler
        coins = sampler.coins(index) if isinstance(sampler, PoissonSamples) else None
        return Request(sampler.cohort(index), Computation("sample_sum", reduce="sum", coins=coins))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        mean = gathered.values / self._divisor
        clipped = average_clip(mean, self._clip)
        gradient = self._mechanism.release(clipped, self._noise(index))
        self.facts = {
            "noise_deviation": self._mechanism.standard_deviation,
            "clipped_private": float(not np.array_equal(clipped, mean)),
        }
        following = self.problem.domain.project(x - self._rate * gradient)
        return following, self._output(index, x, following)
