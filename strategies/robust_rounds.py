"""Robust rounds: a tested, noisy robust mean of user gradients every round; any loss, and nodes are protected too."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from strategies.options import StrategyOptions
from strategies.passing import KERNELS, AgreementOptions, make_estimator, needed_ratio, needed_score
from strategies.plan import Plan
from strategies.row_rounds import SHARES, RowOptions, Rows, TestedRounds
from userdp.accounting import calibrate_noise
from userdp.estimators import MINIMUM_BATCH, Estimator, ExpKernel, RampKernel, concentration_score
from userdp.mechanisms import MinimumScore, minimum_batch


class RobustRoundsOptions(AgreementOptions, RowOptions):
    """Settings of `RobustRounds`."""

    rounds: int = Field(10, ge=1, description="Rounds in all; the cohort is n * epochs / rounds.")


class RobustRounds(TestedRounds):
    """A robust private gradient every round.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole
    user; relation: replace-one; n public. Any loss, convex or not. In each round one Laplace test of the cohort's
    concentration score (sensitivity below 2): if the users do not agree within rho it passes with probability at
    most delta_test, so what follows it adds at most delta_test; if they do, the estimate has l2 sensitivity sqrt(d)
    times its sup sensitivity and gets Gaussian noise. A user is in one round an epoch: parallel within an epoch,
    composed over epochs. Every iterate is a released value: nodes and outsiders are protected from each other even
    if the other nodes answer arbitrarily; the server is trusted. Later rounds start from what was released, so
    nothing that a user moved is carried on.

    *Assumptions.* n and who takes part are public. The server is trusted. Other nodes may answer with anything.
    """

    name: ClassVar[str] = "robust_rounds"
    summary_line: ClassVar[str] = "tested robust mean of user gradients with noise, every round"
    family: ClassVar[str] = "robust"
    cost: ClassVar[str] = "one gradient a user, a row of d numbers each; server O(U^2 d) at worst, to compare users"
    paper: ClassVar[str] = "ours, after Ghazi, Kumar, Liu, Manurangsi 2025"
    without_secure_noise: ClassVar[str | None] = "its noise does not account for how a robust mean is rounded"
    example: ClassVar[Mapping[str, Any]] = {"radius": 1.0, "rounds": 2}
    Options: ClassVar[type[StrategyOptions]] = RobustRoundsOptions
    options: RobustRoundsOptions
    undeclared: ClassVar[str] = (
        "strategy.radius: this loss has no bound on its gradient, so no radius follows from theory; "
        "give strategy.radius (how far apart users' average gradients are, sup norm) or strategy.deviation"
    )
    _estimator: Estimator

    def _make_plan(self) -> Plan:
        self.options.check_estimate()
        plan = super()._make_plan()
        if self.options.radius is not None:
            return plan
        return replace(plan, pass_probability=self._test.pass_probability(float(plan.cohort), plan.rounds))

    def _best(self, batch: int) -> tuple[float, float] | None:
        """(share of epsilon for the test, radius) with the least noise; None if no test can be passed.

        With the user's own radius: the smallest share whose test is passed when nine pairs of users in ten agree.
        """
        options = self.options
        best: tuple[float, float, float] | None = None
        for share in SHARES if batch >= MINIMUM_BATCH else ():
            test = self._test_for(batch, share)
            failure = options.failure / 2 / options.rounds
            score = needed_score("min_score", options.kernel, batch, 0.0, test.epsilon, test.delta, 1, failure)
            if score is None:
                continue
            radius = options.radius
            if radius is None:
                p = self.problem.dimension
                ratio = needed_ratio(options.kernel, batch, p, options.rounds, options.failure / 2, score)
                if ratio is None:
                    continue
                radius = ratio * self._user_deviation
            elif score > 0.9 * batch:
                continue
            spread = radius * calibrate_noise(
                (1 - share) * self.privacy.epsilon, self.privacy.delta / 2, options.epochs
            )
            if best is None or spread < best[0]:
                best = (spread, share, radius)
        return None if best is None else best[1:]

    def _least(self) -> int:
        """Users who all agree need at least this many; those who only nearly agree need more."""
        test = self._test_for(MINIMUM_BATCH, SHARES[-1])
        failure = self.options.failure / 2 / self.options.rounds
        return minimum_batch(
            MinimumScore, test.kernel, epsilon=test.epsilon, delta=test.delta, steps=1, failure=failure
        )

    def _kernel_of(self, radius: float) -> ExpKernel | RampKernel:
        return KERNELS[self.options.kernel](radius)

    def _estimator_of(self, radius: float) -> Estimator:
        return make_estimator(self.options.estimate, self.options.statistic, radius)

    def _l2_sensitivity(self, batch: int) -> float:
        return math.sqrt(self.problem.dimension) * self._estimator.sup_sensitivity(batch)

    def _score(self, rows: Rows) -> float:
        return concentration_score(rows, self._kernel)
