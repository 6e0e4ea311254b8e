"""A strategy without settings: scales, coordinates, clips and steps follow from private releases during the run."""

import math
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies.auto.choice import Choice
from strategies.auto.coefficients import Curvatures, Influences, Slopes, SlopeSizes
from strategies.auto.columns import column_coordinates, column_stages
from strategies.auto.level import balance
from strategies.auto.preparation import (
    MOST_COLUMNS,
    Filled,
    linear_model,
    longest_gradient,
    measuring_stages,
    new_progress,
)
from strategies.auto.releases import AnySampler, Movement, Shares
from strategies.auto.staged import (
    RATE,
    AdaptiveStep,
    AutoScheme,
    ClipScale,
    Pace,
    outline,
    reported,
    shares_of,
    uncertified,
)
from strategies.auto.stages import (
    LONGEST_COUNT_STEP,
    MEASURED,
    Gradient,
    Lengths,
    Recentred,
    Stage,
    StepLength,
)
from strategies.clipping.clip_facts import CLIP_FACTS
from strategies.core.about import About, Fact
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from userdp.accounting import Relation, calibrate_noise
from userdp.data.coefficients import CoefficientMap
from userdp.errors import BadInput
from userdp.nodes.moments import by_period
from userdp.problems import GeneralisedLinear, OneHot, OneHotPoisson, Poisson, SparseLinear
from userdp.sampling import MixedBatches, WeightedBatches, WeightedSlots

_RECENTRED_ROUNDS, _MEASURED_ROUNDS = 5, 6  # Rounds that move the model, the latter with measured steps

_LEAST_ROUNDS, _MOST_ROUNDS, _PATIENCE = 9, 40, 1.8
"""Rounds that move a model of linear scores: the third over the root of the noise of all rounds, in users' gradients.
Where the loss is flatter than its curvature bound, as logistic losses are, more steps come nearer to the best model.
Counts take the first: the last clips of many rounds are narrow, and cut more of the few large ones."""
_MORE_NOISE = 1.05  # Noise of cohorts that allow more steps, over that of all users, up to which they are preferred


class Auto(Recipe):
    """Zero tuning: scales, second moments, clips and steps are found privately, then descended in good coordinates.

    A generalised linear model, or softmax, on dense features takes these rounds, each with all users:

    1. *Filled.* Users answer which share of their samples can be used. If fewer than a tenth can, and noise does not
       hide that, the run stops: a model would be trained on noise. Later releases are means over the users heard.
    2. *Level*, for classes or targets in a range, and with an intercept: the shares of the classes, or the mean target;
       for counts first their rough size, so that a bound far above them costs little; for hazards by period the events
       and the time at risk. Training starts at the best
       constant, the model that predicts the result for everybody. Clips are no shorter than gradients of the rarer of
       two classes, whose length follows from how far users' rates lie apart.
    3. *Columns.* Users send whether each column is there and the logarithm of its size, which takes no more noise for
       small columns than for large ones. Columns are divided by their released sizes.
    4. *Sizes* of users' second moments in the scaled columns: users of more than 1.25 times the typical size weigh less
       from now on, in inverse proportion.
    5. *Second moments.* Eigenvalues are raised to the level of their noise; in coordinates where they are one the
       weighted loss is about equally curved everywhere, so that whole steps over its curvature fit.
    6. *Lengths* of the users' gradients at the start: the first clip.
    7. *Gradients* in the coordinates, clipped, 9 to 40 times, more where noise is small. The gradient is predicted from
       all earlier releases and the curvature, and corrected by each release as far as its noise allows, so that no
       round's noise is lost on the others. Clips are multiples of the lengths released before, as wide as noise
       permits: narrow ones bias the model towards the majority of users. Where noise hid the moments and gradients turn
       out to be more curved than noise explains, steps are shortened. The best constant becomes the precision-weighted
       mean of the mean target and the gradients' estimate of it; classes' shares stay as released. For one score the
       way from there is shrunk as far as chance, of noise or of who takes part, hides it, and forgotten where chance
       makes one as long in one run of twenty.
    8. *Balance*, for counts: clips cut the few large ones, and a model predicts too little. Users send their slopes by
       the intercept, which a clip leaves nearly whole, and the intercept moves by their mean.
    9. *Coefficients*, if a share of the budget is set aside for them: the curvature at the trained model, the number of
       users with slopes of each size, the mean slope, and users' squared influences (`strategies.auto.coefficients`).
       One Newton step gives estimates, and the influences their standard errors; the model stays as it is.
    10. *Choice.* Users answer how much lower their average loss is with the model than with the best constant (or else
       the initial model), clipped to a few times the typical change. If the mean is below zero by more than doubt
       allows, the constant is released. The doubt is small where noise is small beside the gain that training expects,
       and two standard deviations at most.

    A loss without a certificate, as that of a torch module, has four parts: round 1; users' lengths at the start, of
    any size; up to 100 steps of Adam, whose second moments are corrected for the noise, of 0.02 for each parameter at
    first and none in the end, with clips that leave seven users in ten unchanged; and the choice. Each step asks a
    random cohort, so large that its noise is near that of all users, but with at most 100,000 gradients in all.

    Generalised linear models on sparse or one-hot features, whose columns are many and rare, have rounds 1, 6, 7 and
    10, and in place of 2 to 5 these (`strategies.auto.columns`): users' slope by the sum of all columns, and the size
    of that sum, for one level of all samples (for one-hot features round 2); the norm of users' mean squares of
    columns; and these mean squares, clipped to it. Columns that noise hides are shrunk, and effects of columns are
    estimated by empirical Bayes.

    Other losses have rounds 1, 6, 7 and 10 alone, in which gradients are clipped about their prediction, as in
    `RecentredClipping`. Where a convex loss may be less curved than certified, as on rare columns, a round after each
    gradient asks for the root of users' curvature along it, and the step is one over that; elsewhere steps are
    1 / smoothness, or 1/2 where none is certified.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss; replace-one, or add-or-remove
    if so set and, unless replace-one is asked for, for a loss without a certificate. *Why.* Unit: one whole user;
    relation: replace-one, n public (or add-or-remove, as the claim says). Every round releases the mean, over the
    public n (or the public expected size of a random cohort), of one vector per user, with Gaussian noise; the query
    and its bounds are functions of earlier releases and public facts. Replacing (adding or
    removing) a user moves the sum by

    - vectors of norm at most 1/2: 1 (1/2). Such are a mean target and its spread (`strategies.auto.level.Level`),
      events and time at risk (`strategies.auto.level.Hazard`), and the answer of round 1;
    - numbers in intervals about zero (rounds 3, 4 and 10, roots of curvature, whether a clip binds), whose squared
      widths add up to k: ``sqrt(k)`` (``sqrt(k) / 2``); k = 1, 2 for the sum of columns and its slope, and 5 for each
      column, the intercept included;
    - vectors of norm at most F that have no negative inner products: ``sqrt(2) F`` (F). Such are numbers that are not
      negative (the classes' shares among a user's samples, and the interval of its slope, which add up to F = 1;
      squared influences; mean squares of columns), and positive semidefinite matrices (second moments, curvatures);
    - the logarithm of a length, held to an interval of length w that contains zero: w (its larger end);
    - gradients and slopes, or their part along the intercept, clipped to r: 2 r (r).

    A missing or non-finite user counts as a vector of zeros. Rounds get fixed shares of the budget, and a gradient
    round divides its own between gradient and length: noise multipliers are ``z / sqrt(share)``, and the whole run
    costs what one Gaussian of multiplier z costs, exactly (adaptive composition). With random cohorts all rounds are
    accounted together by their privacy losses (`userdp.sampling.MixedBatches`), for replace-one as for add-or-remove:
    vectors of such rounds are no longer than half of what their noise is made for. Cohorts are secret. Any loss,
    whatever other nodes answer; the server is trusted. Coordinates, clips, curvatures and steps are post-processing:
    were they wrong, accuracy would suffer and privacy would not.

    *Assumptions.* n and participation are public; random cohorts are secret. The server is trusted. Nodes clip as
    asked; sums that are too large are refused.
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
            "measuring_share": "share of the budget for the rounds before the first step",
            "constant_noise": "standard deviation of the noise on the best constant, where training starts: on the "
            "mean target, as a part of its range, or on each class's share",
            "gradient_users": "users in each of them, on average where cohorts are secret",
            "choice_share": "share of the budget for comparing the model with the best constant, or else the initial "
            "model",
            "no_better_chance": "predicted probability that noise leaves the model no better than the start",
            "choice_noise": "standard deviation of the noise on users' mean gain, over the interval of a user's gain",
        },
        notes={
            "mean_target": Fact("noised", "mean target"),
            "rarest_class": Fact("noised", "share of the rarest class, at least its noise"),
            "hidden_columns": Fact("noised", "columns whose mean square is below its noise"),
            "curvature": Fact("noised", "curvature that the step is one over"),
            "gained": Fact("noised", "loss that the model saves users, beside the best constant, with noise"),
            "largest_gain": Fact("noised", "largest loss that a user can gain or lose in that mean"),
            **CLIP_FACTS,
        },
    )

    relation: Relation | None = None
    """Neighbouring relation; default replace_one, and add_or_remove for torch modules. Add-or-remove promises less and
    takes about half the noise at the same epsilon. Modules have many steps with secret cohorts; under replace_one few
    with all users, if cohorts would need more noise."""
    coefficients: float = Field(0.0, ge=0, lt=1)
    """Share of the budget for estimates of a linear model's coefficients with standard errors; training has the rest.
    0 for none; 0.5 is a good choice where coefficients matter as much as predictions."""

    def scheme(self, given: Given) -> AutoScheme:
        stages, sampler, multiplier = self._calibrated(given)
        shares = Shares(sampler=sampler, noise_multiplier=multiplier)
        stages = tuple(_clipped(stage, index, shares) for index, stage in enumerate(stages))
        price = given.price(sampler, multiplier)
        return AutoScheme(
            price=price,
            outline=outline(given, shares, stages, price.guarantee),
            report=partial(reported, stages),
            new_memory=partial(new_progress, given.problem, given.default_step, column_coordinates(given.problem)),
            sampler=sampler,
            noise_multiplier=multiplier,
            stages=stages,
            domain=given.problem.domain,
        )

    def _calibrated(self, given: Given) -> tuple[tuple[Stage, ...], AnySampler, float]:
        """Choose stages, sampler and noise multiplier: random cohorts for the steps of modules, and else all users.

        Replacing a user has two paces for modules: many steps with cohorts, or few with all users if cohorts would need
        more noise, by more than a twentieth where they allow more steps.
        """
        if not uncertified(given.problem):
            return self._paced(given, Pace(0, 1.0))
        noise = self._noise(given)
        many, few = (Pace.of(given.users, given.dimension, noise, drawn=drawn) for drawn in (True, False))
        drawn = self._paced(given, many)
        if self._relation(given) == "add_or_remove":
            return drawn
        everybody = self._paced(given, few)
        return drawn if drawn[-1] <= everybody[-1] * (_MORE_NOISE if many.steps > few.steps else 1) else everybody

    def _paced(self, given: Given, pace: Pace) -> tuple[tuple[Stage, ...], AnySampler, float]:
        stages, n, relation = self._stages(given, pace), given.users, self._relation(given)
        shares = shares_of(stages, self.coefficients)
        if pace.chance < 1:
            rates = tuple(pace.chance if isinstance(stage, AdaptiveStep) else 1.0 for stage in stages)
            sampler: AnySampler = MixedBatches(n, rates, shares, given.secret_seed, relation=relation)
        else:
            kind = WeightedBatches if relation == "replace_one" else WeightedSlots
            sampler = kind(n, n, len(stages), given.seed, shares=shares)
        return stages, sampler, sampler.calibrate(given.privacy.epsilon, given.privacy.delta)

    def _relation(self, given: Given) -> Relation:
        return self.relation or ("add_or_remove" if uncertified(given.problem) else "replace_one")

    def _noise(self, given: Given) -> float:
        """Return the noise of all rounds together, over a clip, on a sum of vectors."""
        multiplier = calibrate_noise(given.privacy.epsilon, given.privacy.delta, 1)
        return multiplier * (2 if self._relation(given) == "replace_one" else 1)

    def _stages(self, given: Given, pace: Pace) -> tuple[Stage, ...]:
        problem, inference = given.problem, self._inference(given)
        model = linear_model(problem)
        columns = problem if isinstance(problem, SparseLinear | OneHot) else None  # each of which gets a scale
        if model is None and columns is None:
            return (Filled(), *self._plain_stages(given, pace), Choice())
        counts = isinstance(problem, Poisson | OneHotPoisson)
        longest_step = LONGEST_COUNT_STEP if counts or by_period(problem) is not None else None
        noise = self._noise(given) * math.sqrt(given.dimension) / given.users
        patient = min(max(round(_PATIENCE / math.sqrt(noise)), _LEAST_ROUNDS), _MOST_ROUNDS)
        rounds = _LEAST_ROUNDS if counts else patient
        steps = [Gradient(left, problem.domain, longest_step) for left in reversed(range(rounds))]
        if columns is not None:
            return (Filled(), *column_stages(columns, steps[0]), *steps, Choice())
        assert model is not None
        return (Filled(), *measuring_stages(model, steps[0]), *steps, *balance(model), *inference, Choice())

    def _inference(self, given: Given) -> tuple[Stage, ...]:
        """Return the rounds for coefficients; none without a share. Raises `BadInput`: the loss gives none."""
        if not self.coefficients:
            return ()
        problem, asked = given.problem, f"strategy.coefficients = {self.coefficients:g}"
        if not isinstance(problem, GeneralisedLinear) or problem.family.curvatures(np.zeros(1)) is None:
            raise BadInput(
                f"{asked}: problem.kind = {problem.name!r} has no coefficients with standard errors; use squared, "
                "logistic or poisson, or set it to 0"
            )
        if linear_model(problem) is None:
            raise BadInput(
                f"{asked}: {problem.width} parameters are too many; name at most {MOST_COLUMNS - 1} features"
            )
        if problem.ridge:
            raise BadInput(f"{asked}: problem.ridge = {problem.ridge:g} shrinks coefficients; set problem.ridge = 0")
        reading = given.public.reading or CoefficientMap.plain(given.dimension, problem.intercept)
        kinds = (Curvatures, SlopeSizes, Slopes, Influences)
        return tuple(kind(reading, problem.hazards) for kind in kinds)

    def _plain_stages(self, given: Given, pace: Pace) -> tuple[Stage, ...]:
        domain, certificate = given.problem.domain, given.problem.certificate
        if uncertified(given.problem):
            lengths = (RATE * (1 - number / pace.steps) for number in range(pace.steps))
            return (ClipScale(), *(AdaptiveStep(length, domain) for length in lengths))
        # A known curvature, or one without a bound, is not measured.
        curved = certificate.smoothness or 0.0
        measured = certificate.convex and curved > certificate.strong_convexity
        step = Recentred(domain, measured)
        moves: list[Stage] = [step] * _RECENTRED_ROUNDS
        if measured:
            moves = [step, StepLength(domain, curved)] * _MEASURED_ROUNDS
        return (Lengths(step, longest_gradient(given.problem)), *moves)


def _clipped(stage: Stage, index: int, shares: Shares) -> Stage:
    """Tell a stage the noise of its round, by which it chooses the width of its clip."""
    if isinstance(stage, Curvatures | Influences):
        return replace(stage, noise=shares.mechanism(index, Movement.of_acute()).standard_deviation)
    if not isinstance(stage, Gradient):
        return stage
    return replace(stage, noise=shares.mechanism(index, Movement.of_ball(1.0), 1 - MEASURED).standard_deviation)
