"""Settings, noise and plans of strategies that release a noisy robust gradient every round, tested or not."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import Field

from strategies.core.about import Fact
from strategies.core.public_facts import Given, Price
from strategies.core.results import Noise
from strategies.core.scheme import Number, Outline
from strategies.robust.passing import TESTS, DeviationOptions
from strategies.robust.row_rounds import Agreement, AnyTest, RowRounds, TestUnderWay
from userdp.accounting import ACCOUNTANT, Cost, calibrate_noise
from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import Kernel
from userdp.mechanisms import AboveThreshold, GaussianMechanism, MinimumScore
from userdp.mechanisms.passing_batches import smallest_passing
from userdp.nodes.computations import Computation
from userdp.problems.noise_paths import NoisySteps
from userdp.sampling import DisjointBatches

SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)  # The shares of epsilon that are tried for the tests

ROW_ADVERSARY = "against other nodes and whoever sees every iterate; the server is trusted with the users' gradients"
"""The adversary of strategies whose server sees each user's row."""

UNDECLARED = (
    "strategy.radius: this loss has no bound on its gradient, so no radius follows from theory; "
    "give strategy.radius (how far apart users' average gradients are, {norm}) or strategy.deviation"
)
"""The complaint where nothing bounds how far gradients deviate."""

ROW_MEANINGS: Mapping[str, str] = {
    "epochs": "passes over the users",
    "user_deviation": "assumed standard deviation of a coordinate of a user's gradient",
}
"""Meanings of numbers in plans of `RowRounds`, for `About.meanings`."""

TEST_MEANINGS: Mapping[str, str] = {
    **ROW_MEANINGS,
    "radius": "users' gradients count as agreeing within this radius (sup norm)",
    "test": "min_score: one of each round; above_threshold: one of all rounds, which stops at the first failure",
    "threshold": "concentration score that a batch must reach (at most the batch size)",
    "test_epsilon": "share of epsilon spent on the test",
    "test_delta": "share of delta spent on the test",
}

TEST_NOTES: Mapping[str, Fact] = {
    "score_private": Fact("private", "how well the users of the round agree, before the test's noise"),
    "threshold": Fact("public", "score that a batch must reach"),
    "passed": Fact("noised", "whether the round or phase passed its test, which has noise of its own"),
}


TESTED_ABOUT: Mapping[str, Any] = {
    "family": "robust",
    "adversary": ROW_ADVERSARY,
    "cost": "one gradient per user, a row of d numbers each; server O(U^2 d) at worst, to compare users",
    "compares_users": True,
    "with_secure_noise": "scores are exact sums, the test's Laplace noise lies on a grid, and noise is larger by what "
    "rounding can do to a robust mean, which limits the users of a round (`Estimator.rounding`, "
    "`NeighbourMean.rounding`)",
    "notes": TEST_NOTES,
}


class RowOptions(DeviationOptions):
    """Settings of a strategy of `RowRounds`, a base of its recipe beside `Recipe`."""

    rounds: int | None = Field(5, ge=1, description="Rounds in all; the cohort is n * epochs / rounds.")
    epochs: int = Field(1, ge=1, description="How often each user takes part.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")

    @property
    def count(self) -> int:
        """The rounds in all; the fewest, an epoch each, while they are to be chosen."""
        return self.rounds or self.epochs

    def cohort(self, users: int) -> int:
        """Return the users of a round; zero where rounds outnumber participations."""
        return min(users, users * self.epochs // self.count)

    def declared_deviation(self, given: Given, undeclared: str) -> float:
        """Return the standard deviation of one coordinate of the average gradient of a user with the fewest samples.

        Raises `BadInput` with the text ``undeclared`` if nothing bounds how far gradients deviate.
        """
        per_sample = self.deviation or given.problem.certificate.lipschitz
        if per_sample is None:
            raise BadInput(undeclared)
        return self.user_deviation(per_sample, given.public.min_samples)

    def row_rounds(
        self,
        given: Given,
        sampler: DisjointBatches,
        mechanism: GaussianMechanism,
        numbers: Mapping[str, Number],
        *,
        price: Price,
        estimator: Callable[[Rows, Noise], Vector],
        signal: float,
        smallest: int = 1,
        clip_norm: float | None = None,
        pass_probability: float | None = None,
        warnings: tuple[str, ...] = (),
    ) -> RowRounds:
        """Return the scheme of these parts, without a test.

        Plans show ``numbers``. Robust means are no longer than ``signal``, nodes clip rows to ``clip_norm`` (if given),
        and cohorts of fewer than ``smallest`` users have no scheme.
        """
        rounds, rate = min(self.count, sampler.rounds), self.learning_rate or given.default_step
        deviation = mechanism.standard_deviation
        outline = Outline(
            rounds=rounds,
            cohort=sampler.batch,
            users_needed=math.ceil(smallest * self.count / self.epochs),
            path=NoisySteps(steps=rounds, rate=rate, deviation=deviation, longest=signal),
            noise=deviation * math.sqrt(given.dimension),
            signal=signal,
            numbers={
                "cohort": sampler.batch,
                "epochs": sampler.epochs,
                "learning_rate": rate,
                **numbers,
                "l2_sensitivity": mechanism.l2_sensitivity,
                "noise_deviation": deviation,
            },
            pass_probability=pass_probability,
            warnings=warnings,
        )
        return RowRounds(
            price=replace(price, summands=sampler.batch),  # scores, too, are exact sums over the cohort, rounded once
            outline=outline,
            domain=given.problem.domain,
            sampler=sampler,
            query=Computation("user_gradient", clip_norm=clip_norm),
            mechanism=mechanism,
            rate=rate,
            estimator=estimator,
        )


class TestedOptions(RowOptions):
    """Settings of strategies whose rounds release only values that their users agree on."""

    def round_test(
        self, given: Given, batch: int, share: float, kernel: Kernel, kind: type[AnyTest] = MinimumScore
    ) -> AnyTest:
        """Return the test of cohorts of that size that gets that share of epsilon, and half of delta.

        One test of all rounds pays its epsilon once; others share it among the rounds of a user.
        """
        return kind(
            batch=batch,
            kernel=kernel,
            epsilon=share * given.privacy.epsilon / (1 if kind is AboveThreshold else self.epochs),
            delta=given.privacy.delta / 2 / self.epochs,
        )

    def cost(self, given: Given, test: AnyTest) -> Cost:
        """Return the cost of one participation in rounds tested so, with the least noise that keeps the budget."""
        epsilon, delta, epochs = given.privacy.epsilon, given.privacy.delta, self.epochs
        paid = {"shared_epsilon" if isinstance(test, AboveThreshold) else "pure_epsilon": test.epsilon}
        paid["failure_delta"] = test.delta
        return Cost(noise_multiplier=calibrate_noise(epsilon, delta, epochs, **paid), **paid)

    def agreeing_rounds(
        self, given: Given, search: Callable[[int], Agreement | None], least: int, *, by_theory: bool = False
    ) -> RowRounds:
        """Return the scheme of the best agreement for all users, which ``search`` finds for cohorts of a size.

        It finds none for cohorts that cannot pass a test, such as those below ``least``. ``by_theory`` says that honest
        users are known to reach the score that their test demands. Raises `PopulationTooSmall` if the cohorts cannot
        pass a test, and says how many users can.
        """
        n, batch = given.users, self.cohort(given.users)
        best, smallest = search(batch), smallest_passing(lambda size: search(size) is not None, least)
        if best is None:
            whole = "fewer strategy.epochs, " if self.epochs > 1 else ""
            fewer = "fewer strategy.rounds, " if batch < n else whole
            raise PopulationTooSmall(
                f"data.users = {n} in {self.count} rounds give cohorts of {batch} users; a cohort "
                f"that passes its test takes {smallest}: use {fewer}more users, or a larger privacy.epsilon"
            )
        test, bound = best.test, given.problem.certificate.gradient_norm
        cost, sampler = self.cost(given, test), DisjointBatches(n, batch, self.epochs, given.seed)
        assumptions = (sampler.assumption, "the server is trusted")
        price = given.price_of(cost, f"{ACCOUNTANT}, parallel within an epoch", assumptions, self.epochs)
        rounds = self.row_rounds(
            given,
            sampler,
            GaussianMechanism(best.l2_sensitivity, cost.noise_multiplier),
            {
                "radius": test.kernel.radius,
                "test": next(name for name, kind in TESTS.items() if isinstance(test, kind)),
                "threshold": test.threshold,
                "test_epsilon": test.epsilon,
                "test_delta": test.delta,
                "noise_multiplier": cost.noise_multiplier,
            },
            signal=math.inf if bound is None else bound,
            smallest=smallest,
            pass_probability=_pass_probability(test, min(self.count, sampler.rounds)) if by_theory else None,
            price=replace(price, rounding=best.rounding),
            estimator=lambda rows, noise: best.estimator(rows),
        )
        return replace(rounds, new_memory=partial(TestUnderWay, test), agreement=best)


def _pass_probability(test: AnyTest, rounds: int) -> float:
    if isinstance(test, AboveThreshold):
        return test.pass_probability(float(test.batch), rounds)
    return test.pass_probability(float(test.batch)) ** rounds
