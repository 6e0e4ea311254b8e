"""Outlier removal: a noisy mean of the users that have enough neighbours, tested for agreement every round."""

import math
from typing import ClassVar

from pydantic import Field

from strategies.base import StrategyOptions, UserLevelStrategy
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Cost, Guarantee, Ledger, calibrate_noise, epsilon_of
from userdp.computations import Computation
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators.outlier_removal import SMALLEST_BATCH, IndicatorKernel, OutlierRemoval
from userdp.mechanisms import GaussianMechanism, MinimumScore
from userdp.problems.base import Vector
from userdp.sampling import DisjointBatches

_SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
_PASS = 0.8
"""Of the batch: the score to reach, as in the papers."""


class OutlierRemovalOptions(StrategyOptions):
    """Settings of `OutlierRemovalSGD`."""

    radius: float | None = Field(
        None, gt=0, description="rho, l2 distance within which users' gradients agree; from the deviation if not given."
    )
    deviation: float | None = Field(
        None, gt=0, description="Per-sample standard deviation of a gradient coordinate (utility only); default G."
    )
    heterogeneity: float = Field(
        0.0, ge=0, description="Deviation between users of their mean gradient (utility only)."
    )
    rounds: int = Field(5, ge=1, description="Rounds in all; the cohort is n * epochs / rounds.")
    epochs: int = Field(1, ge=1, description="How often each user takes part.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")


class OutlierRemovalSGD(UserLevelStrategy):
    """Mean of the users with enough neighbours, plus Gaussian noise, if the users agree.

    *Formal guarantees.* Unit: one whole user; relation: replace-one; n public. Any loss. In each round one Laplace
    test of the cohort's score (mean number of users within rho, l2; sensitivity below 2): if the cohort or its
    neighbour is not aligned, the test passes with probability at most delta_test, which what follows adds to delta.
    If both are, the mean has l2 sensitivity about 24 rho / B (`OutlierRemoval`, with its proof) and gets Gaussian
    noise for that. A user is in one round an epoch: parallel within an epoch, composed over epochs. Every iterate is
    released; the server is trusted, other nodes may answer anything.
    """

    name: ClassVar[str] = "outlier_removal"
    summary_line: ClassVar[str] = "mean of users with enough neighbours, tested and noisy every round"
    family: ClassVar[str] = "robust"
    paper: ClassVar[str] = "Asi, Liu 2024; Lowy, Liu, Asi 2024; deterministic weights and test: ours"
    without_secure_noise: ClassVar[str | None] = "users' vectors are not clipped, and so their rounding has no bound"
    Options: ClassVar[type[StrategyOptions]] = OutlierRemovalOptions
    options: OutlierRemovalOptions

    def _make_plan(self) -> Plan:
        options, n, p = self.options, self.public.users, self.problem.dimension
        batch = min(n, n * options.epochs // options.rounds)
        radius = options.radius or self._typical_distance()
        share = self._share(batch)
        if share is None:
            needed = self._fewest()
            raise PopulationTooSmall(
                f"data.users = {n} in {options.rounds} rounds give cohorts of {batch} users; a cohort that passes its "
                f"test takes {needed}: use fewer strategy.rounds, more users, or a larger privacy.epsilon"
            )
        self._test = test = self._test_for(batch, share, radius)
        self._kernel, self._estimator = IndicatorKernel(radius), OutlierRemoval(radius)
        multiplier = calibrate_noise(
            self.privacy.epsilon, self.privacy.delta, options.epochs, test_epsilon=test.epsilon, test_delta=test.delta
        )
        self._cost = Cost(noise_multiplier=multiplier, test_epsilon=test.epsilon, test_delta=test.delta)
        self._sampler = DisjointBatches(n, batch, options.epochs, self.seed)
        self._mechanism = GaussianMechanism(self._estimator.l2_sensitivity(batch), multiplier)
        self._rate = options.learning_rate or 1 / (self.problem.certificate.smoothness or 2.0)
        bound = self.problem.certificate.gradient_norm
        noise = self._mechanism.standard_deviation * math.sqrt(p)
        warnings = []
        if bound is not None and noise >= bound:
            warnings.append(
                f"the noise of one round ({noise:.3g}) exceeds the largest gradient ({bound:.3g}): use fewer rounds "
                "(larger cohorts), bring more users or raise privacy.epsilon"
            )
        rounds = min(options.rounds, self._sampler.rounds)
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=batch,
            users=n,
            users_needed=math.ceil(self._fewest() * options.rounds / options.epochs),
            guarantee=self._promise(),
            noise=noise,
            signal=bound if bound is not None else math.inf,
            numbers={
                "cohort": batch,
                "epochs": options.epochs,
                "learning_rate": self._rate,
                "radius": radius,
                "threshold": test.threshold,
                "test_epsilon": test.epsilon,
                "test_delta": test.delta,
                "noise_multiplier": multiplier,
                "l2_sensitivity": self._mechanism.l2_sensitivity,
                "noise_deviation": self._mechanism.standard_deviation,
            },
            warnings=tuple(warnings),
        )

    def _typical_distance(self) -> float:
        """What the distance of two honest users exceeds in about 2% of pairs, for normal gradients."""
        per_sample = self.options.deviation or self.problem.certificate.lipschitz
        if per_sample is None:
            raise BadInput(
                "strategy.radius: this loss has no bound on its gradient, so no radius follows from theory; give "
                "strategy.radius (how far apart users' average gradients are, l2) or strategy.deviation"
            )
        deviation = math.hypot(self.options.heterogeneity, per_sample / math.sqrt(self.public.min_samples))
        return math.sqrt(2) * deviation * (math.sqrt(self.problem.dimension) + 2)

    def _test_for(self, batch: int, share: float, radius: float) -> MinimumScore:
        epochs = self.options.epochs
        return MinimumScore(
            batch=batch,
            kernel=IndicatorKernel(radius),
            epsilon=share * self.privacy.epsilon / epochs,
            delta=self.privacy.delta / 2 / epochs,
        )

    def _share(self, batch: int) -> float | None:
        """Smallest share of epsilon whose test asks for a score of at most four fifths of the batch; None if none."""
        if batch < SMALLEST_BATCH:
            return None
        fitting = (share for share in _SHARES if self._test_for(batch, share, 1.0).threshold <= _PASS * batch)
        return next(fitting, None)

    def _fewest(self) -> int:
        """Smallest cohort with a share; the threshold grows by two thirds of a user with each user."""
        low, high = SMALLEST_BATCH - 1, SMALLEST_BATCH
        while self._share(high) is None:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._share(middle) is None else (low, middle)
        return high

    def _promise(self) -> Guarantee:
        return Guarantee(
            unit="user",
            relation="replace_one",
            epsilon=epsilon_of(self._cost, self.options.epochs, self.privacy.delta),
            delta=self.privacy.delta,
            accountant=f"{ACCOUNTANT}, parallel within an epoch",
            adversary="against other nodes and whoever sees every iterate; "
            "the server is trusted with the users' gradients",
            assumptions=("n and who takes part are public", "the server is trusted"),
            holds=True,
        )

    def _make_ledger(self) -> Ledger:
        return Ledger(self.public.users, self._cost, self.options.epochs, self.privacy)

    def _ask(self, index: int) -> Request:
        return Request(self._sampler.cohort(index), Computation("user_gradient"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        score = self._kernel.score(gathered.values)
        session = self._test.session(self._noise(index, 1))
        session.observe(score)
        passed = session.passed()
        self.facts = {"score_private": score, "threshold": self._test.threshold, "passed": float(passed)}
        if not passed:
            return x, x
        gradient = self._mechanism.release(self._estimator(gathered.values), self._noise(index, 2))
        x = self.problem.domain.project(x - self._rate * gradient)
        return x, x
