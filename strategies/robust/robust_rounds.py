"""Robust rounds: a tested, noisy robust mean of user gradients every round; any loss, and nodes are protected too."""

import math
from dataclasses import replace
from functools import partial
from itertools import product
from typing import ClassVar, Literal, Self

from pydantic import Field

from strategies.core.about import About
from strategies.core.options import CLIP_WIDTH, Found, PreparedOptions
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.robust.passing import KERNELS, TESTS, AgreementOptions, needed_ratio, needed_score
from strategies.robust.row_rounds import Agreement, AnyTest, RowRounds
from strategies.robust.tested_rounds import SHARES, TEST_MEANINGS, TESTED_ABOUT, UNDECLARED, TestedOptions
from userdp.accounting import calibrate_noise
from userdp.errors import BadInput
from userdp.estimators import ExpKernel, RampKernel, concentration_score
from userdp.mechanisms import AboveThreshold, MinimumScore, minimum_batch
from userdp.problems.forecast import Forecast
from userdp.problems.noise_paths import NoisySteps

TRIED_ROUNDS = (10, 5, 3, 2, 1)  # An epoch, where they are not given
TRIED_STEPS = tuple(2.0**-halvings for halvings in range(7))  # In default steps, where neither is given

START = 1 / 3
"""The squared distance from the start that is expected of a best model, over the largest: any point of the domain."""


class RobustRounds(Recipe, AgreementOptions, TestedOptions, PreparedOptions, restates={"rounds"}):
    """A robust private gradient every round.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole user;
    relation: replace-one; n public. In each round a test of the cohort's concentration score (sensitivity below 2): if
    the users do not agree within rho it passes with probability at most delta_test, which is added to delta; if they
    do, the estimate has l2 sensitivity sqrt(d) times its sup sensitivity and gets Gaussian noise. A user is in one
    round an epoch: parallel within an epoch, composed over epochs. ``test = "min_score"``: a Laplace test of its own in
    each round, whose epsilon is paid for each time a user takes part. ``test = "above_threshold"``: one AboveThreshold
    over all rounds, whose epsilon is paid once (*Rounds* in `userdp.mechanisms.concentration_tests`, with the proof);
    at the first failure the run ends with the last released model. If not given, it is the one with less noise at the
    same promise: a function of public numbers. Every iterate is a released value: nodes and outsiders are protected
    from each other even if the other nodes answer arbitrarily. Later rounds start from released models, so they carry
    no unreleased effect of a user.

    With secure noise the same holds for what is computed in float64. A score is an exact sum of rounded kernels, and
    its sensitivity and the bound on unaligned batches are those of the computed score (`concentration_score`). The
    robust mean's sensitivity grows by `Estimator.rounding`, and both noises are larger by that; cohorts for which it
    would exceed a tenth (some forty thousand users, for winsorised means) are refused. Rows are functions of one user's
    data, to the last bit, as users are computed one by one.

    *Assumptions.* n and who takes part are public. The server is trusted. Other nodes may answer with anything.
    """

    about: ClassVar[About] = About(
        name="robust_rounds",
        summary_line="tested robust mean of user gradients with noise, every round",
        paper="ours, after Ghazi, Kumar, Liu, Manurangsi 2025",
        example={"radius": 1.0, "rounds": 2},
        meanings=TEST_MEANINGS,
        **TESTED_ABOUT,
    )

    rounds: int | None = Field(None, ge=1)
    """Rounds in all; the cohort is n * epochs / rounds. If not given, the plan chooses them, and the step if that is
    not given either, for the least risk that it predicts."""
    test: Literal["above_threshold", "min_score"] | None = None
    """min_score: a test per round, each paid for; above_threshold: one for all rounds, paid once, which stops at the
    first failure; the one that leaves less noise if not given."""
    found_by_preparation = ("radius", "deviation", "learning_rate")

    def found(self, found: Found) -> dict[str, float]:
        """Return the deviation of samples, with a margin: gradients are about equally long in all coordinates."""
        if not found.learnt:
            return {}
        deviation = CLIP_WIDTH * found.length * math.sqrt(found.samples / found.dimension)
        return {"deviation": deviation, **found.steps(self.count)}

    def settled(self, given: Given) -> Self:
        """See `Recipe.settled`: the rounds, and the step."""
        self.check_estimate()
        return self if self.rounds else self._chosen(given)

    def scheme(self, given: Given) -> RowRounds:
        return self.settled(given)._scheme(given)

    def _chosen(self, given: Given) -> Self:
        """Return these settings with the rounds, and the step, of least predicted risk; most rounds if unknown."""
        passing = [each for count in TRIED_ROUNDS if (each := self._of(given, count * self.epochs)) is not None]
        steps = (self.learning_rate,) if self.learning_rate else [given.default_step * each for each in TRIED_STEPS]

        def risk(one: tuple[tuple[Self, NoisySteps], float]) -> float:
            (_, path), rate = one
            forecast = Forecast.of(given.problem, replace(path, rate=rate))
            return 0.0 if forecast.excess is None else forecast.excess - (1 - START) * forecast.undone

        if not passing:
            return self.model_copy(update={"rounds": self.epochs})
        (best, _), rate = min(product(passing, steps), key=risk)
        return best.model_copy(update={"learning_rate": rate})

    def _of(self, given: Given, rounds: int) -> tuple[Self, NoisySteps] | None:
        """Return these settings with so many rounds, and their path; None if their cohorts have no scheme."""
        chosen = self.model_copy(update={"rounds": rounds})
        try:
            scheme = chosen._scheme(given)
            if given.secure:
                scheme.price.rounding_slack(given.users)
        except BadInput:  # which the fewest rounds raise again, if it is everybody's
            return None
        path = scheme.outline.path
        assert isinstance(path, NoisySteps)
        return chosen, path

    def _scheme(self, given: Given) -> RowRounds:
        search = partial(self._search, given)
        return self.agreeing_rounds(given, search, self._least(given), by_theory=self.radius is None)

    @property
    def _kinds(self) -> tuple[type[AnyTest], ...]:
        """The tests to choose from: with one epoch any epsilon is paid once, and one noise demands less."""
        if self.test is not None:
            return (TESTS[self.test],)
        return (MinimumScore,) if self.epochs == 1 else (MinimumScore, AboveThreshold)

    def _search(self, given: Given, batch: int) -> Agreement | None:
        """Return the agreement whose test leaves the least noise; None if no test can be passed."""
        if batch < self.minimum_batch:
            return None
        passable = [best for kind in self._kinds if (best := self._best(given, batch, kind)) is not None]
        return min(
            passable, key=lambda best: best.l2_sensitivity * self.cost(given, best.test).noise_multiplier, default=None
        )

    def _best(self, given: Given, batch: int, kind: type[AnyTest]) -> Agreement | None:
        """Return the agreement with the test's share of epsilon that leaves the least noise; None if none passes."""
        found = {share: self._radius(given, batch, share, kind) for share in SHARES}
        radii = {share: radius for share, radius in found.items() if radius is not None}
        if not radii:
            return None
        epsilon, delta = given.privacy.epsilon, given.privacy.delta / 2

        def spread(share: float) -> float:
            return radii[share] * calibrate_noise((1 - share) * epsilon, delta, self.epochs)

        share = min(radii, key=spread)
        return self._agreement(given, batch, share, radii[share], kind)

    def _radius(self, given: Given, batch: int, share: float, kind: type[AnyTest]) -> float | None:
        """Return the radius within which users agree well enough for the test of that share; None if they never do.

        A declared radius is returned only if the test is passed when nine pairs of users in ten agree.
        """
        test, (steps, failure) = self.round_test(given, batch, share, self._unit_kernel, kind), self._each_test(kind)
        name = next(name for name, known in TESTS.items() if known is kind)
        score = needed_score(name, self.kernel, batch, 0.0, test.epsilon, test.delta, steps, failure)
        if score is None:
            return None
        if self.radius is not None:
            return self.radius if score <= 0.9 * batch else None
        ratio = needed_ratio(self.kernel, batch, given.dimension, self.count, self.failure / 2, score)
        return None if ratio is None else ratio * self.declared_deviation(given, UNDECLARED.format(norm="sup norm"))

    def _each_test(self, kind: type[AnyTest]) -> tuple[int, float]:
        """Return the rounds that one test sees, and the probability with which honest users may fail it."""
        failure, rounds = self.failure / 2, self.count
        return (rounds, failure) if kind is AboveThreshold else (1, failure / rounds)

    def _least(self, given: Given) -> int:
        """Return the fewest users that can pass if all agree; users who only nearly agree need more."""
        fewest, enough = self.minimum_batch, []
        for kind in self._kinds:
            test = self.round_test(given, fewest, SHARES[-1], self._unit_kernel, kind)
            steps, failure = self._each_test(kind)
            passes = partial(minimum_batch, kind, test.kernel, epsilon=test.epsilon, delta=test.delta)
            enough.append(passes(steps=steps, failure=failure, at_least=fewest))
        return min(enough)

    @property
    def _unit_kernel(self) -> ExpKernel | RampKernel:
        """The kernel at radius one: the score that a test demands is the same at any radius."""
        return KERNELS[self.kernel](1.0)

    def _agreement(self, given: Given, batch: int, share: float, radius: float, kind: type[AnyTest]) -> Agreement:
        kernel, estimator = KERNELS[self.kernel](radius), self.estimator(batch, radius)
        return Agreement(
            test=self.round_test(given, batch, share, kernel, kind),
            score=partial(concentration_score, kernel=kernel),
            estimator=estimator,
            radius=estimator.radius,
            l2_sensitivity=math.sqrt(given.dimension) * estimator.sup_sensitivity(batch),
            rounding=estimator.rounding(batch),
        )
