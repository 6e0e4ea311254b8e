"""No setting: columns are scaled, coordinates turned, clips found and steps taken from what is released on the way."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field
from scipy.special import gammaincc

from strategies.auto.adaptive import LOUD, AdaptiveStep, ClipScale, Pace, adaptive_stages, uncertified
from strategies.auto.filled import Filled, doubts
from strategies.auto.level import Balance, ClassShares, Counts, Level, balance
from strategies.auto.measuring import linear_model, longest_gradient, measuring_stages, new_progress
from strategies.auto.progress import Progress
from strategies.auto.releases import Movement, Release, SharedScheme
from strategies.auto.stages import (
    LONGEST_COUNT_STEP,
    MEASURED,
    Choice,
    Columns,
    Gradient,
    Lengths,
    Moments,
    Recentred,
    Sizes,
    Stage,
    StepLength,
    clip_width,
)
from strategies.clipping.clip_facts import CLIP_FACTS, clip_facts, with_lengths
from strategies.clipping.recentred_clipping import epoch_shares
from strategies.core.base import UserLevelStrategy
from strategies.core.declarations import Fact
from strategies.core.options import StrategyOptions
from strategies.core.plan import Number, Plan, sampler_numbers
from strategies.core.scheme import Step
from strategies.core.ways import Course, Remaining
from strategies.wire.replies import Gathered, Request
from userdp.accounting import calibrate_noise
from userdp.arrays.types import Vector
from userdp.problems import Poisson
from userdp.problems.linear_scores import LinearScores
from userdp.sampling import MixedBatches, WeightedBatches, WeightedSlots

_SHARES: Mapping[type[Stage], float] = {
    Filled: 0.01,
    Counts: 0.01,
    Level: 0.05,
    ClassShares: 0.05,
    Columns: 0.05,
    Sizes: 0.01,
    Moments: 0.15,
    Lengths: 0.02,
    Balance: 0.05,
    Choice: 0.02,
    StepLength: 0.015,
    ClipScale: 0.02,
}
"""Of the budget; gradient rounds have the rest."""

_MOVING = (Gradient, Recentred, AdaptiveStep)
"""Stages that move the model."""

_ROUNDS, _RECENTRED_ROUNDS, _MEASURED_ROUNDS = 9, 5, 6
"""Rounds that move the model, in learnt coordinates, in plain ones, and in plain ones where steps are measured."""

_COMPARED = Movement.of_box(1.0)
"""What one user adds to the last comparison."""


def _shares(stages: Sequence[Stage]) -> tuple[float, ...]:
    """Each stage's share of the budget."""
    moving = [stage for stage in stages if isinstance(stage, _MOVING)]
    rest = 1 - sum(_SHARES.get(type(stage), 0.0) for stage in stages)
    # Where gradients are filtered from the first round on, equal rounds lose nothing.
    plain = isinstance(moving[0], Recentred) and not moving[0].measured
    parts = iter(epoch_shares(len(moving)) if plain else [1 / len(moving)] * len(moving))
    return tuple(_SHARES[type(stage)] if type(stage) in _SHARES else rest * next(parts) for stage in stages)


class AutoOptions(StrategyOptions):
    """Settings of `Auto`: it needs none."""

    relation: Literal["replace_one", "add_or_remove"] | None = Field(
        None,
        description="Neighbouring relation; default replace_one, and add_or_remove for torch modules. Add-or-remove "
        "promises less and takes half the noise at the same epsilon. Modules have many steps with secret cohorts under "
        "add-or-remove, and few with all users under replace_one.",
    )


@dataclass(frozen=True, kw_only=True)
class AutoScheme(SharedScheme):
    """A `SharedScheme` of stages.

    Attributes:
        stages: one a round.
    """

    stages: tuple[Stage, ...]


class Auto(UserLevelStrategy):
    """Zero tuning: scales, second moments, clips and steps are found privately, then descended in good coordinates.

    A generalised linear model, or softmax, on dense features goes through these rounds, each with all users:

    1. *Filled.* Users tell whether all of their samples can be used. Where fewer than one in ten say so, and noise lets
       that be told, the run stops: a model would be trained on noise.
    2. *Level*, of classes or of targets in a range, and with an intercept: the shares of the classes, or the mean
       target; of counts first about how large that is, so that a bound far above them costs little. Training starts at
       the model that predicts them of everybody, the best constant.
    3. *Columns.* Users tell whether each column is there and the logarithm of its size, which takes no more noise for
       small columns than for large ones. Columns are divided by what is released.
    4. *Sizes* of users' second moments in the scaled columns: users whose are 1.25 times the typical size or more
       weigh less from now on, in inverse proportion.
    5. *Second moments.* The eigenvalues are raised to what their noise allows to tell; in coordinates where they are
       one the weighted loss is about equally curved everywhere, so that whole steps over its curvature fit.
    6. *Lengths* of the users' gradients at the start: the first clip.
    7. *Gradients* in the coordinates, clipped, nine times. The gradient is predicted from all releases before and
       the curvature, and corrected by each release as far as its noise allows, so that no round's noise is lost on
       the others. Clips are multiples of the lengths released before, as wide as noise permits: narrow ones move the
       model towards what most users want. Where the moments were hidden in noise and gradients turn out to be more
       curved than noise explains, steps are shortened. What all gradients say of the best constant is put together
       with the mean target, by their precision; classes' shares stay what was released.
    8. *Balance*, of counts: clips cut the few large ones, and a model predicts too little. Users tell their slopes by
       the intercept, of which a clip can leave nearly all, and the intercept moves by what is released.
    9. *Choice.* Users tell whether the model serves them better than the best constant (the initial model, where none
       is known). If more of them say no than noise explains (two standard deviations), the constant is released.

    A loss of which nothing is certified, as that of a torch module, has four parts: round 1; users' lengths at the
    start, of any size; up to 100 steps of Adam, whose second moments are corrected for the noise, of 0.02 for each
    parameter at first and none in the end, with clips that leave seven users in ten as they are; and the choice. Each
    step asks a random cohort, as many users as keep its noise near that of all, but no more than about 100,000
    gradients in all steps.

    Other losses have rounds 1, 6, 7 and 9 alone, in which gradients are clipped about what they are predicted to be, as
    in `RecentredClipping`. Where a convex loss may be less curved than certified, as on rare columns, a round after
    each gradient asks for the root of users' curvature along it, and the step is one over that; elsewhere steps are
    1 / smoothness, or 1/2 where none is certified.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss; replace-one, or add-or-remove
    if so set and, unless replace-one is asked for, where nothing is certified of the loss. *Why.* Unit: one whole user;
    relation: replace-one, n public (or add-or-remove, as the claim says). Every round releases the mean, over the
    public n (or the public size that a random cohort is expected to have), of one vector a user, with Gaussian noise;
    what is asked and how it is bounded are functions of earlier releases and public facts. Replacing (adding or
    removing) a user moves the sum by

    - numbers in intervals about zero (rounds 1 to 4 and 9, roots of curvature, whether a clip binds), whose squared
      widths add up to k: ``sqrt(k)`` (``sqrt(k) / 2``); k = 1, and 5 for each column, the intercept included;
    - the classes' shares among a user's samples, which are not negative and add up to one at most: ``sqrt(2)`` (1),
      for such vectors have no negative inner product;
    - second moments, positive semidefinite of norm at most F: ``sqrt(2) F`` (F), for such matrices have no negative
      inner product;
    - the logarithm of a length, held to an interval of length w that contains zero: w (its larger end);
    - gradients, or their part along the intercept, clipped to r: 2 r (r).

    A missing or non-finite user counts as a vector of zeros. Rounds get fixed shares of the budget, and a gradient
    round divides its own between gradient and length: noise multipliers are ``z / sqrt(share)``, and the whole run
    costs what one Gaussian of multiplier z costs, exactly (adaptive composition). With random cohorts, which are
    add-or-remove alone, all rounds are accounted together by their privacy losses (`userdp.sampling.MixedBatches`), and
    cohorts are secret. Any loss, whatever other nodes answer; the server is trusted. Coordinates, clips, curvatures and
    steps are post-processing: were they wrong, accuracy would suffer and privacy would not.

    *Assumptions.* n is public, and who takes part; random cohorts are secret. The server is trusted. Nodes clip as
    told; sums that are too large are refused.
    """

    name: ClassVar[str] = "auto"
    summary_line: ClassVar[str] = "no setting: scales, coordinates, clips and steps are found privately on the way"
    family: ClassVar[str] = "auto"
    cost: ClassVar[str] = "node O(N d^2) once and O(N d) a round, one sum of d^2 / 2 numbers up once; server O(d^3)"
    paper: ClassVar[str] = "ours"
    with_secure_noise: ClassVar[str] = (
        "the random cohorts of losses without a certificate, which must stay secret, come from the operating system"
    )
    without_comparison: ClassVar[str | None] = "auto ends with such a comparison of its own"
    example: ClassVar[Mapping[str, Any]] = {}
    meanings: ClassVar[Mapping[str, str]] = {
        "gradient_rounds": "rounds that move the model",
        "measuring_share": "share of the budget for what is measured before the first step",
        "constant_noise": "standard deviation of the noise on the best constant, which training starts at: on the mean "
        "target, as a part of its range, or on each class's share",
        "gradient_users": "users in each of them, on average where they are drawn in secret",
        "choice_share": "share of the budget for comparing the model with the best constant, or else the initial model",
        "no_better_chance": "chance that noise leaves the model no better than the start, as far as can be predicted",
        "choice_noise": "standard deviation of the noise on the share of users who are better off",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "radius": Fact("noised", "radius of the clip, from released values"),
        "unclipped_share": Fact("noised", "share of unclipped users, with noise"),
        "curvature": Fact("noised", "curvature that the step is one over"),
        "distance": Fact("noised", "released estimate of how far users are from the centre"),
        "gain": Fact("noised", "share of the released innovation that is believed"),
        **CLIP_FACTS,
    }
    Options: ClassVar[type[StrategyOptions]] = AutoOptions
    options: AutoOptions
    scheme: AutoScheme
    memory: Progress

    def _make_scheme(self) -> AutoScheme:
        stages = self._stages()
        sampler = self._sampler(stages)
        multiplier = sampler.calibrate(self.privacy.epsilon, self.privacy.delta)
        scheme = AutoScheme(
            guarantee=sampler.guarantee(multiplier, self.privacy.delta, self.adversary, self.wire.clipping),
            ledger=partial(sampler.ledger, multiplier),
            new_memory=partial(new_progress, self.problem, self._default_step),
            sampler=sampler,
            noise_multiplier=multiplier,
            stages=stages,
        )
        return replace(scheme, stages=tuple(self._clipped(stage, index, scheme) for index, stage in enumerate(stages)))

    def _clipped(self, stage: Stage, index: int, scheme: AutoScheme) -> Stage:
        """The same, its clip as wide as the noise of its round permits."""
        if not isinstance(stage, Gradient):
            return stage
        noise = scheme.mechanism(index, Movement.of_ball(1.0), 1 - MEASURED).standard_deviation
        return replace(stage, width=clip_width(noise, self.problem.dimension, stage.left + 1))

    def _sampler(self, stages: Sequence[Stage]) -> WeightedBatches | WeightedSlots | MixedBatches:
        """Who takes part in each of them; all users, but for the steps of modules under add-or-remove."""
        n, shares, chance = self.public.users, _shares(stages), self._pace.chance
        if chance < 1:
            rates = tuple(chance if isinstance(stage, AdaptiveStep) else 1.0 for stage in stages)
            return MixedBatches(n, rates, shares, None if self.privacy.noise == "secure" else self.seed)
        kind = WeightedBatches if self._relation == "replace_one" else WeightedSlots
        return kind(n, n, len(stages), self.seed, shares=shares)

    @property
    def _relation(self) -> str:
        return self.options.relation or ("add_or_remove" if uncertified(self.problem) else "replace_one")

    @property
    def _pace(self) -> Pace:
        """Of adaptive steps; of others, all users take part in each."""
        if not uncertified(self.problem):
            return Pace(0, 1.0)
        drawn = self._relation == "add_or_remove"
        whole = calibrate_noise(self.privacy.epsilon, self.privacy.delta, 1) * (1 if drawn else 2)
        return Pace.of(self.public.users, self.problem.dimension, whole, drawn=drawn)

    @property
    def _linear_model(self) -> LinearScores | None:
        return linear_model(self.problem)

    def _stages(self) -> tuple[Stage, ...]:
        """What is done round by round, from public facts."""
        return (Filled(), *self._moving_stages(), Choice())

    def _moving_stages(self) -> tuple[Stage, ...]:
        """Those between the first question and the last."""
        model = self._linear_model
        if model is None:
            return self._plain_stages()
        longest_step = LONGEST_COUNT_STEP if isinstance(model, Poisson) else None
        steps = [Gradient(left, model.domain, longest_step) for left in reversed(range(_ROUNDS))]
        return (*measuring_stages(model, steps[0]), *steps, *balance(model))

    def _plain_stages(self) -> tuple[Stage, ...]:
        """Those of coordinates that stay as they are."""
        if uncertified(self.problem):
            return tuple(adaptive_stages(self._pace.steps, self.problem.domain))
        domain, certificate = self.problem.domain, self.problem.certificate
        # Where curvature is known, or nothing bounds it, there is nothing to measure.
        curved = certificate.smoothness or 0.0
        measured = certificate.convex and curved > certificate.strong_convexity
        step = Recentred(domain, measured)
        moves: list[Stage] = [step] * _RECENTRED_ROUNDS
        if measured:
            moves = [step, StepLength(domain, curved)] * _MEASURED_ROUNDS
        return (Lengths(step, longest_gradient(self.problem)), *moves)

    def _make_plan(self) -> Plan:
        scheme, shares = self.scheme, self.scheme.sampler.shares
        stages = scheme.stages
        gradient = [number for number, stage in enumerate(stages) if isinstance(stage, _MOVING)]
        heard, chosen = scheme.mechanism(0, Filled.movement), scheme.mechanism(len(stages) - 1, _COMPARED)
        last = scheme.sampler.multiplier(gradient[-1], scheme.noise_multiplier)
        numbers: dict[str, Number] = {
            "filled_noise": heard.standard_deviation,
            "gradient_rounds": len(gradient),
            "measuring_share": sum(shares[: gradient[0]]),
            "choice_share": shares[-1],
            "choice_noise": chosen.standard_deviation,
            "noise_multiplier": scheme.noise_multiplier,
        }
        for number, stage in enumerate(stages):
            if isinstance(stage, Level | ClassShares):
                numbers["constant_noise"] = scheme.mechanism(number, stage.movement).standard_deviation
        n, p = self.public.users, self.problem.dimension
        if uncertified(self.problem):
            numbers["gradient_users"] = round(scheme.sampler.expected(gradient[-1]))
        # In units of the clip, to which a typical user is as long.
        noise = scheme.sampler.sensitivity_factor * last * math.sqrt(p) / scheme.sampler.expected(gradient[-1])
        share = noise**2 / len(gradient)
        if self._linear_model is not None:
            # Equally curved in all d coordinates of a score, in which users' first gradients are as long as d of its
            # slopes.
            share *= self._linear_model.width
        else:
            # A gradient that all users share is shorter than each one's where theirs lie in other columns. The choice
            # keeps what that costs below what the initial model does.
            share = max(share, min(1.0, share * self._apart()))
        # Of a chi-square with p degrees of freedom to exceed p / share.
        numbers["no_better_chance"] = float(gammaincc(p / 2, p / share / 2))
        return self._planned(
            Remaining(share=share, course=self._course(len(gradient))),
            rounds=len(stages),
            cohort=n,
            users_needed=1,
            noise=noise,
            signal=1.0,
            numbers=numbers | sampler_numbers(scheme.sampler, scheme.guarantee),
            warnings=(
                *doubts(heard.standard_deviation),
                *self._warnings(noise / math.sqrt(len(gradient)), chosen.standard_deviation),
            ),
        )

    def _apart(self) -> float:
        """What users' squared lengths are over that of the gradient they share: 1 where all users have all columns.

        Of p columns a user's samples touch k. Were all columns equally frequent, it would be p / k; were all users to
        touch the same ones, 1. This is the (geometric) middle of the two.
        """
        p, sparsity = self.problem.dimension, self.problem.certificate.sparsity
        if sparsity is None:
            return 1.0
        return math.sqrt(p / min(p, sparsity * self._samples_of_a_user()))

    def _samples_of_a_user(self) -> int:
        public = self.public
        if public.samples is not None:
            return max(1, public.samples // public.users)
        return public.max_samples or public.min_samples

    def _course(self, steps: int) -> Course | None:
        """The steps of plain coordinates that are not measured, which may be too short."""
        if not any(isinstance(stage, Recentred) and not stage.measured for stage in self.scheme.stages):
            return None
        return Course(steps=steps, rate=self._default_step, deviation=0.0)

    def _warnings(self, noise: float, doubt: float) -> tuple[str, ...]:
        """What speaks against training at all, from the noise of all gradients together and of the last comparison."""
        found, more = [], "bring more users or raise privacy.epsilon; the initial model may well be the better one"
        if (
            noise >= (LOUD if uncertified(self.problem) else 1) and self.problem.landscape is None
        ):  # of others the forecast tells
            found.append(
                f"the noise of all gradients together is {noise:.3g} times as long as a typical user's gradient: {more}"
            )
        if Choice.doubts * doubt >= 0.5:
            found.append(
                f"the noise on the share of users who are better off ({doubt:.3g}) hides whether any is, so "
                f"that no model would be taken back: {more}"
            )
        return tuple(found)

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request:
        if index == 0:
            self.memory.begin(self._x)
        stage = self.scheme.stages[index]
        asked = stage.computation(self.memory)
        # Only there the clip is of gradients.
        asked = with_lengths(self, asked) if isinstance(stage, _MOVING) else asked
        return Request(self.scheme.sampler.cohort(index), asked)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        progress, release = self.memory, Release(self.scheme, index, partial(self._noise, index))
        facts = dict(self.scheme.stages[index].take(progress, gathered.values, release))
        if gathered.lengths is not None:
            mean = gathered.values[:-1] / release.users
            noise = facts["noise_deviation"] * math.sqrt(self.problem.dimension)
            facts |= clip_facts(gathered, facts["radius"], mean, noise)
        following = self.problem.domain.project(progress.model)
        return Step(following, following, facts, constant=progress.released_constant)
