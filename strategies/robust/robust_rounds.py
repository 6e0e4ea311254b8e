"""Robust rounds: a tested, noisy robust mean of user gradients every round; any loss, and nodes are protected too."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.core.options import CLIP_WIDTH, Found, PreparedOptions, StrategyOptions
from strategies.robust.passing import KERNELS, TESTS, AgreementOptions, needed_ratio, needed_score
from strategies.robust.tested_strategy import (
    SECURE_TEST,
    SHARES,
    Agreement,
    AnyTest,
    RowOptions,
    TestedScheme,
    TestedStrategy,
    declared_deviation,
)
from userdp.accounting import calibrate_noise
from userdp.estimators import ExpKernel, RampKernel, concentration_score
from userdp.mechanisms import AboveThreshold, MinimumScore, minimum_batch


class RobustRoundsOptions(AgreementOptions, RowOptions, PreparedOptions, restates={"rounds"}):
    """Settings of `RobustRounds`."""

    rounds: int = Field(10, ge=1, description="Rounds in all; the cohort is n * epochs / rounds.")
    test: Literal["above_threshold", "min_score"] | None = Field(
        None,
        description="min_score: a test a round, each paid for; above_threshold: one for all rounds, paid once, which "
        "stops at the first failure; the one that leaves less noise if not given.",
    )
    found_by_preparation: ClassVar[tuple[str, ...]] = ("radius", "deviation", "learning_rate")

    def found(self, found: Found) -> dict[str, float]:
        """How far samples deviate, as gradients are about equally long in all coordinates, with a margin."""
        if not found.learnt:
            return {}
        deviation = CLIP_WIDTH * found.length * math.sqrt(found.samples / found.dimension)
        return {"deviation": deviation, **found.steps(self.rounds)}


class RobustRounds(TestedStrategy):
    """A robust private gradient every round.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole
    user; relation: replace-one; n public. Any loss, convex or not. In each round a test of the cohort's concentration
    score (sensitivity below 2): if the users do not agree within rho it passes with probability at most delta_test,
    so what follows it adds at most delta_test; if they do, the estimate has l2 sensitivity sqrt(d) times its sup
    sensitivity and gets Gaussian noise. A user is in one round an epoch: parallel within an epoch, composed over
    epochs. ``test = "min_score"``: a Laplace test of its own in each round, whose epsilon is paid for each time a user
    takes part. ``test = "above_threshold"``: one AboveThreshold over all rounds, whose epsilon is paid once (*Rounds*
    in `userdp.mechanisms.concentration_tests`, with the proof); at the first failure the run ends with the model that
    was released last. If not given, it is the one with less noise at the same promise: a matter of public numbers.
    Every iterate is a released value: nodes and outsiders are protected from each other even
    if the other nodes answer arbitrarily; the server is trusted. Later rounds start from what was released, so
    nothing that a user moved is carried on.

    With secure noise the same holds of what is computed in float64. A score is an exact sum of rounded kernels, and
    its sensitivity and the bound on unaligned batches are those of the computed score (`concentration_score`). The
    robust mean's sensitivity grows by `Estimator.rounding`, and both noises are larger by that; cohorts for which it
    would exceed a tenth (some forty thousand users, for winsorised means) are refused. Rows are functions of one
    user's data, to the last bit, as users are computed one by one.

    *Assumptions.* n and who takes part are public. The server is trusted. Other nodes may answer with anything.
    """

    name: ClassVar[str] = "robust_rounds"
    summary_line: ClassVar[str] = "tested robust mean of user gradients with noise, every round"
    family: ClassVar[str] = "robust"
    cost: ClassVar[str] = "one gradient a user, a row of d numbers each; server O(U^2 d) at worst, to compare users"
    compares_users: ClassVar[bool] = True
    paper: ClassVar[str] = "ours, after Ghazi, Kumar, Liu, Manurangsi 2025"
    with_secure_noise: ClassVar[str] = SECURE_TEST
    example: ClassVar[Mapping[str, Any]] = {"radius": 1.0, "rounds": 2}
    Options: ClassVar[type[StrategyOptions]] = RobustRoundsOptions
    options: RobustRoundsOptions
    undeclared: ClassVar[str] = (
        "strategy.radius: this loss has no bound on its gradient, so no radius follows from theory; "
        "give strategy.radius (how far apart users' average gradients are, sup norm) or strategy.deviation"
    )

    def _make_scheme(self) -> TestedScheme:
        self.options.check_estimate()
        scheme = self._tested_scheme(self._search, self._least)
        if self.options.radius is not None:
            return scheme
        test, batch, rounds = scheme.agreement.test, float(scheme.sampler.batch), scheme.rounds
        if isinstance(test, AboveThreshold):
            return replace(scheme, pass_probability=test.pass_probability(batch, rounds))
        return replace(scheme, pass_probability=test.pass_probability(batch) ** rounds)

    @property
    def _kinds(self) -> tuple[type[AnyTest], ...]:
        """The tests to choose from.

        Who is in a single round pays epsilon once whatever the test, and then one Laplace noise asks for less than two.
        """
        if self.options.test is not None:
            return (TESTS[self.options.test],)
        return (MinimumScore,) if self.options.epochs == 1 else (MinimumScore, AboveThreshold)

    def _search(self, batch: int) -> Agreement | None:
        """With the test that leaves the least noise; None if none can be passed."""
        if batch < self.options.shape.minimum_batch:
            return None
        passable = [found for kind in self._kinds if (found := self._best(batch, kind)) is not None]
        return min(
            passable, key=lambda found: found.l2_sensitivity * self._cost(found.test).noise_multiplier, default=None
        )

    def _best(self, batch: int, kind: type[AnyTest]) -> Agreement | None:
        """With the share of epsilon for the test that leaves the least noise; None if it can be passed with none."""
        passable = []
        for share in SHARES:
            radius = self._radius(batch, share, kind)
            if radius is not None:
                rest = (1 - share) * self.privacy.epsilon
                spread = radius * calibrate_noise(rest, self.privacy.delta / 2, self.options.epochs)
                passable.append((spread, share, radius))
        if not passable:
            return None
        _, share, radius = min(passable)
        return self._agreement(batch, share, radius, kind)

    def _radius(self, batch: int, share: float, kind: type[AnyTest]) -> float | None:
        """The radius within which users agree well enough for the test of that share; None if they never do.

        With the user's own radius: only if the test is passed when nine pairs of users in ten agree.
        """
        options, test = self.options, self._test(batch, share, self._unit_kernel, kind)
        steps, failure = self._each_test(kind)
        name = next(name for name, known in TESTS.items() if known is kind)
        score = needed_score(name, options.kernel, batch, 0.0, test.epsilon, test.delta, steps, failure)
        if score is None:
            return None
        if options.radius is not None:
            return options.radius if score <= 0.9 * batch else None
        p, facts = self.problem.dimension, self.public
        ratio = needed_ratio(options.kernel, batch, p, options.rounds, options.failure / 2, score)
        if ratio is None:
            return None
        return ratio * declared_deviation(options, self.problem.certificate, facts.min_samples, self.undeclared)

    def _each_test(self, kind: type[AnyTest]) -> tuple[int, float]:
        """Rounds that one test sees, and the probability with which honest users may fail it."""
        failure, rounds = self.options.failure / 2, self.options.rounds
        return (rounds, failure) if kind is AboveThreshold else (1, failure / rounds)

    def _least(self) -> int:
        """Users who all agree need at least this many; those who only nearly agree need more."""
        fewest, found = self.options.shape.minimum_batch, []
        for kind in self._kinds:
            test = self._test(fewest, SHARES[-1], self._unit_kernel, kind)
            steps, failure = self._each_test(kind)
            enough = partial(minimum_batch, kind, test.kernel, epsilon=test.epsilon, delta=test.delta, steps=steps)
            found.append(enough(failure=failure, at_least=fewest))
        return min(found)

    @property
    def _unit_kernel(self) -> ExpKernel | RampKernel:
        """At radius one: what a test asks for is the same at any radius."""
        return KERNELS[self.options.kernel](1.0)

    def _agreement(self, batch: int, share: float, radius: float, kind: type[AnyTest]) -> Agreement:
        """Users agree within ``radius`` in the sup norm."""
        kernel = KERNELS[self.options.kernel](radius)
        estimator = self.options.shape.estimator(batch, radius)
        return Agreement(
            radius=radius,
            test=self._test(batch, share, kernel, kind),
            score=partial(concentration_score, kernel=kernel),
            estimator=estimator,
            l2_sensitivity=math.sqrt(self.problem.dimension) * estimator.sup_sensitivity(batch),
            rounding=estimator.rounding(batch),
        )
