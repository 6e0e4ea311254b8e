"""No setting: columns are scaled, coordinates turned, clips found and steps taken from what is released on the way."""

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from strategies.auto.adaptive import AdaptiveStep, Pace, adaptive_stages, uncertified
from strategies.auto.filled import Filled
from strategies.auto.level import balance
from strategies.auto.measuring import linear_model, longest_gradient, measuring_stages, new_progress
from strategies.auto.outlook import outline
from strategies.auto.releases import Movement, Shares
from strategies.auto.staged import AutoScheme, shares_of
from strategies.auto.stages import (
    LONGEST_COUNT_STEP,
    MEASURED,
    Choice,
    Gradient,
    Lengths,
    Recentred,
    Stage,
    StepLength,
    clip_width,
)
from strategies.core.about import About, Fact
from strategies.core.clip_facts import CLIP_FACTS
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from userdp.accounting import calibrate_noise
from userdp.problems import Poisson
from userdp.sampling import MixedBatches, WeightedBatches, WeightedSlots

_ROUNDS, _RECENTRED_ROUNDS, _MEASURED_ROUNDS = 9, 5, 6
"""Rounds that move the model, in learnt coordinates, in plain ones, and in plain ones where steps are measured."""


class Auto(Recipe):
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

    about: ClassVar[About] = About(
        name="auto",
        summary_line="no setting: scales, coordinates, clips and steps are found privately on the way",
        family="auto",
        cost="node O(N d^2) once and O(N d) a round, one sum of d^2 / 2 numbers up once; server O(d^3)",
        paper="ours",
        with_secure_noise="the random cohorts of losses without a certificate, which must stay secret, come from the "
        "operating system",
        without_comparison="auto ends with such a comparison of its own",
        meanings={
            "gradient_rounds": "rounds that move the model",
            "measuring_share": "share of the budget for what is measured before the first step",
            "constant_noise": "standard deviation of the noise on the best constant, which training starts at: on the "
            "mean target, as a part of its range, or on each class's share",
            "gradient_users": "users in each of them, on average where they are drawn in secret",
            "choice_share": "share of the budget for comparing the model with the best constant, or else the initial "
            "model",
            "no_better_chance": "chance that noise leaves the model no better than the start, as far as can be "
            "predicted",
            "choice_noise": "standard deviation of the noise on the share of users who are better off",
        },
        notes={
            "radius": Fact("noised", "radius of the clip, from released values"),
            "unclipped_share": Fact("noised", "share of unclipped users, with noise"),
            "curvature": Fact("noised", "curvature that the step is one over"),
            "distance": Fact("noised", "released estimate of how far users are from the centre"),
            "gain": Fact("noised", "share of the released innovation that is believed"),
            **CLIP_FACTS,
        },
    )

    relation: Literal["replace_one", "add_or_remove"] | None = Field(
        None,
        description="Neighbouring relation; default replace_one, and add_or_remove for torch modules. Add-or-remove "
        "promises less and takes half the noise at the same epsilon. Modules have many steps with secret cohorts under "
        "add-or-remove, and few with all users under replace_one.",
    )

    def scheme(self, given: Given) -> AutoScheme:
        """See `Recipe`."""
        stages = self._stages(given)
        sampler = self._sampler(given, stages)
        multiplier = sampler.calibrate(given.privacy.epsilon, given.privacy.delta)
        shares = Shares(sampler=sampler, noise_multiplier=multiplier)
        stages = tuple(_clipped(stage, index, shares, given.dimension) for index, stage in enumerate(stages))
        accounted = given.accounted(sampler, multiplier)
        return AutoScheme(
            **accounted,
            outline=outline(given, shares, stages, accounted["guarantee"]),
            new_memory=partial(new_progress, given.problem, given.default_step),
            sampler=sampler,
            noise_multiplier=multiplier,
            stages=stages,
            domain=given.problem.domain,
        )

    def _sampler(self, given: Given, stages: tuple[Stage, ...]) -> WeightedBatches | WeightedSlots | MixedBatches:
        """Who takes part in each of them; all users, but for the steps of modules under add-or-remove."""
        n, shares, chance = given.users, shares_of(stages), self._pace(given).chance
        if chance < 1:
            rates = tuple(chance if isinstance(stage, AdaptiveStep) else 1.0 for stage in stages)
            return MixedBatches(n, rates, shares, given.secret_seed)
        kind = WeightedBatches if self._relation(given) == "replace_one" else WeightedSlots
        return kind(n, n, len(stages), given.seed, shares=shares)

    def _relation(self, given: Given) -> str:
        return self.relation or ("add_or_remove" if uncertified(given.problem) else "replace_one")

    def _pace(self, given: Given) -> Pace:
        """Of adaptive steps; of others, all users take part in each."""
        if not uncertified(given.problem):
            return Pace(0, 1.0)
        drawn = self._relation(given) == "add_or_remove"
        whole = calibrate_noise(given.privacy.epsilon, given.privacy.delta, 1) * (1 if drawn else 2)
        return Pace.of(given.users, given.dimension, whole, drawn=drawn)

    def _stages(self, given: Given) -> tuple[Stage, ...]:
        """What is done round by round, from public facts."""
        model = linear_model(given.problem)
        if model is None:
            return (Filled(), *self._plain_stages(given), Choice())
        longest_step = LONGEST_COUNT_STEP if isinstance(model, Poisson) else None
        steps = [Gradient(left, model.domain, longest_step) for left in reversed(range(_ROUNDS))]
        return (Filled(), *measuring_stages(model, steps[0]), *steps, *balance(model), Choice())

    def _plain_stages(self, given: Given) -> tuple[Stage, ...]:
        """Those of coordinates that stay as they are."""
        domain, certificate = given.problem.domain, given.problem.certificate
        if uncertified(given.problem):
            return tuple(adaptive_stages(self._pace(given).steps, domain))
        # Where curvature is known, or nothing bounds it, there is nothing to measure.
        curved = certificate.smoothness or 0.0
        measured = certificate.convex and curved > certificate.strong_convexity
        step = Recentred(domain, measured)
        moves: list[Stage] = [step] * _RECENTRED_ROUNDS
        if measured:
            moves = [step, StepLength(domain, curved)] * _MEASURED_ROUNDS
        return (Lengths(step, longest_gradient(given.problem)), *moves)


def _clipped(stage: Stage, index: int, shares: Shares, dimension: int) -> Stage:
    """The same, its clip as wide as the noise of its round permits."""
    if not isinstance(stage, Gradient):
        return stage
    noise = shares.mechanism(index, Movement.of_ball(1.0), 1 - MEASURED).standard_deviation
    return replace(stage, width=clip_width(noise, dimension, stage.left + 1))
