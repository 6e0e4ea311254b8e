"""Robust rounds: a tested, noisy robust mean of user gradients every round; any loss, and nodes are protected too."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from strategies.core.options import CLIP_WIDTH, Found, PreparedOptions, StrategyOptions
from strategies.robust.passing import KERNELS, AgreementOptions, make_estimator, needed_ratio, needed_score
from strategies.robust.tested_strategy import (
    SECURE_TEST,
    SHARES,
    Agreement,
    RowOptions,
    TestedScheme,
    TestedStrategy,
    declared_deviation,
)
from userdp.accounting import calibrate_noise
from userdp.estimators import MINIMUM_BATCH, ExpKernel, RampKernel, concentration_score
from userdp.mechanisms import MinimumScore, minimum_batch


class RobustRoundsOptions(AgreementOptions, RowOptions, PreparedOptions, restates={"rounds"}):
    """Settings of `RobustRounds`."""

    rounds: int = Field(10, ge=1, description="Rounds in all; the cohort is n * epochs / rounds.")
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
    user; relation: replace-one; n public. Any loss, convex or not. In each round one Laplace test of the cohort's
    concentration score (sensitivity below 2): if the users do not agree within rho it passes with probability at
    most delta_test, so what follows it adds at most delta_test; if they do, the estimate has l2 sensitivity sqrt(d)
    times its sup sensitivity and gets Gaussian noise. A user is in one round an epoch: parallel within an epoch,
    composed over epochs. Every iterate is a released value: nodes and outsiders are protected from each other even
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
        passed = scheme.agreement.test.pass_probability(float(scheme.sampler.batch), scheme.rounds)
        return replace(scheme, pass_probability=passed)

    def _search(self, batch: int) -> Agreement | None:
        """With the share of epsilon for the test that leaves the least noise; None if no test can be passed."""
        passable = []
        for share in SHARES if batch >= MINIMUM_BATCH else ():
            radius = self._radius(batch, share)
            if radius is not None:
                rest = (1 - share) * self.privacy.epsilon
                spread = radius * calibrate_noise(rest, self.privacy.delta / 2, self.options.epochs)
                passable.append((spread, share, radius))
        if not passable:
            return None
        _, share, radius = min(passable)
        return self._agreement(batch, share, radius)

    def _radius(self, batch: int, share: float) -> float | None:
        """The radius within which users agree well enough for the test of that share; None if they never do.

        With the user's own radius: only if the test is passed when nine pairs of users in ten agree.
        """
        options, test = self.options, self._test(batch, share, self._unit_kernel)
        failure = options.failure / 2 / options.rounds
        score = needed_score("min_score", options.kernel, batch, 0.0, test.epsilon, test.delta, 1, failure)
        if score is None:
            return None
        if options.radius is not None:
            return options.radius if score <= 0.9 * batch else None
        p, facts = self.problem.dimension, self.public
        ratio = needed_ratio(options.kernel, batch, p, options.rounds, options.failure / 2, score)
        if ratio is None:
            return None
        return ratio * declared_deviation(options, self.problem.certificate, facts.min_samples, self.undeclared)

    def _least(self) -> int:
        """Users who all agree need at least this many; those who only nearly agree need more."""
        test = self._test(MINIMUM_BATCH, SHARES[-1], self._unit_kernel)
        failure = self.options.failure / 2 / self.options.rounds
        return minimum_batch(
            MinimumScore, test.kernel, epsilon=test.epsilon, delta=test.delta, steps=1, failure=failure
        )

    @property
    def _unit_kernel(self) -> ExpKernel | RampKernel:
        """At radius one: what a test asks for is the same at any radius."""
        return KERNELS[self.options.kernel](1.0)

    def _agreement(self, batch: int, share: float, radius: float) -> Agreement:
        """Users agree within ``radius`` in the sup norm."""
        kernel = KERNELS[self.options.kernel](radius)
        estimator = make_estimator(self.options.estimate, self.options.statistic, radius)
        return Agreement(
            radius=radius,
            test=self._test(batch, share, kernel),
            score=partial(concentration_score, kernel=kernel),
            estimator=estimator,
            l2_sensitivity=math.sqrt(self.problem.dimension) * estimator.sup_sensitivity(batch),
            rounding=estimator.rounding(batch),
        )
