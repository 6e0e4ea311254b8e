"""Robust rounds: a tested, noisy robust mean of user gradients every round; any loss, and nodes are protected too."""

import math
from typing import ClassVar, Literal

from pydantic import Field

from strategies.base import StrategyOptions, UserLevelStrategy
from strategies.passing import KERNELS, make_estimator, needed_ratio, needed_score
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Cost, Guarantee, Ledger, calibrate_noise, epsilon_of
from userdp.computations import Computation
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import MINIMUM_BATCH, Estimator, concentration_score
from userdp.mechanisms import GaussianMechanism, MinimumScore, minimum_batch
from userdp.problems.base import Vector
from userdp.sampling import DisjointBatches

_SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
ROUND_ASSUMPTIONS = ("n and who takes part are public", "the server is trusted")


class RobustRoundsOptions(StrategyOptions):
    """Settings of `RobustRounds`."""

    statistic: Literal["median", "trimmed_mean"] = Field("trimmed_mean", description="Robust centre of a cohort.")
    estimate: Literal["debiased", "winsorized"] = Field("winsorized", description="As in localized_robust_sgd.")
    kernel: Literal["exp", "ramp"] = Field("ramp", description="How agreement of two users falls with their distance.")
    radius: float | None = Field(
        None, gt=0, description="rho, sup-norm radius within which users' gradients agree; from theory if not given."
    )
    deviation: float | None = Field(
        None, gt=0, description="Per-sample standard deviation of a gradient coordinate (utility only); default G."
    )
    heterogeneity: float = Field(
        0.0, ge=0, description="Deviation between users of their mean gradient (utility only)."
    )
    rounds: int = Field(10, ge=1, description="Rounds in all; the cohort is n * epochs / rounds.")
    epochs: int = Field(1, ge=1, description="How often each user takes part.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")
    failure: float = Field(0.01, gt=0, lt=1, description="Probability with which honest users may fail a test.")


class RobustRounds(UserLevelStrategy):
    """A robust private gradient every round.

    *Formal guarantees.* Unit: one whole user; relation: replace-one; n public. Any loss, convex or not. In each
    round one Laplace test of the cohort's concentration score (sensitivity below 2): if the users do not agree
    within rho it passes with probability at most delta_test, so what follows it adds at most delta_test; if they
    do, the estimate has l2 sensitivity sqrt(d) times its sup sensitivity and gets Gaussian noise. A user is in one
    round an epoch: parallel within an epoch, composed over epochs. Every iterate is a released value: nodes and
    outsiders are protected from each other even if the other nodes answer arbitrarily; the server is trusted.
    """

    name: ClassVar[str] = "robust_rounds"
    summary_line: ClassVar[str] = "tested robust mean of user gradients with noise, every round"
    family: ClassVar[str] = "robust"
    paper: ClassVar[str] = "ours, after Ghazi, Kumar, Liu, Manurangsi 2025"
    without_secure_noise: ClassVar[str | None] = "users' vectors are not clipped, and so their rounding has no bound"
    Options: ClassVar[type[StrategyOptions]] = RobustRoundsOptions
    options: RobustRoundsOptions

    def _make_plan(self) -> Plan:
        options, n, p = self.options, self.public.users, self.problem.dimension
        if options.estimate == "winsorized" and options.statistic == "median":
            raise BadInput(
                "strategy.statistic = 'median': the winsorised estimate is proven for the trimmed mean; "
                "use statistic = 'trimmed_mean', or estimate = 'debiased'"
            )
        batch = n * options.epochs // options.rounds
        batch = min(batch, n)
        test, radius = self._choose(batch)
        self._estimator: Estimator = make_estimator(options.estimate, options.statistic, radius)
        self._test, self._kernel = test, KERNELS[options.kernel](radius)
        multiplier = calibrate_noise(
            self.privacy.epsilon, self.privacy.delta, options.epochs, test_epsilon=test.epsilon, test_delta=test.delta
        )
        self._cost = Cost(noise_multiplier=multiplier, test_epsilon=test.epsilon, test_delta=test.delta)
        self._sampler = DisjointBatches(n, batch, options.epochs, self.seed)
        sensitivity = math.sqrt(p) * self._estimator.sup_sensitivity(batch)
        self._mechanism = GaussianMechanism(sensitivity, multiplier)
        self._rate = options.learning_rate or 1 / (self.problem.certificate.smoothness or 2.0)
        bound = self.problem.certificate.gradient_norm
        rounds = min(options.rounds, self._sampler.rounds)
        noise = self._mechanism.standard_deviation * math.sqrt(p)
        warnings = []
        if bound is not None and noise >= bound:
            warnings.append(
                f"the noise of one round ({noise:.3g}) exceeds the largest gradient ({bound:.3g}): use fewer rounds "
                "(larger cohorts), bring more users or raise privacy.epsilon"
            )
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=batch,
            users=n,
            users_needed=math.ceil(self._fewest() * options.rounds / options.epochs),
            guarantee=self._promise(),
            noise=noise,
            signal=bound if bound is not None else math.inf,
            pass_probability=test.pass_probability(float(batch), rounds) if options.radius is None else None,
            numbers={
                "cohort": batch,
                "epochs": options.epochs,
                "learning_rate": self._rate,
                "radius": radius,
                "threshold": test.threshold,
                "test_epsilon": test.epsilon,
                "test_delta": test.delta,
                "noise_multiplier": multiplier,
                "l2_sensitivity": sensitivity,
                "noise_deviation": self._mechanism.standard_deviation,
            },
            warnings=tuple(warnings),
        )

    def _test_for(self, batch: int, share: float, radius: float) -> MinimumScore:
        epochs = self.options.epochs
        return MinimumScore(
            batch=batch,
            kernel=KERNELS[self.options.kernel](radius),
            movement=0.0,
            epsilon=share * self.privacy.epsilon / epochs,
            delta=self.privacy.delta / 2 / epochs,
        )

    def _choose(self, batch: int) -> tuple[MinimumScore, float]:
        """The split of the budget and the radius with the least noise."""
        best = self._best(batch)
        if best is None:
            raise PopulationTooSmall(
                f"data.users = {self.public.users} in {self.options.rounds} rounds give cohorts of {batch} users; a "
                f"cohort that passes its test takes {self._fewest()}: use fewer strategy.rounds, more users, or a "
                "larger privacy.epsilon"
            )
        share, radius = best
        return self._test_for(batch, share, radius), radius

    def _best(self, batch: int) -> tuple[float, float] | None:
        """(share of epsilon for the test, radius) with the least noise; None if no test can be passed.

        With the user's own radius: the smallest share whose test is passed when nine pairs of users in ten agree.
        """
        options = self.options
        best: tuple[float, float, float] | None = None
        for share in _SHARES if batch >= MINIMUM_BATCH else ():
            test = self._test_for(batch, share, 1.0)
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

    def _fewest(self) -> int:
        """Smallest cohort for which `_best` finds something, by bisection."""
        test = self._test_for(MINIMUM_BATCH, _SHARES[-1], 1.0)
        failure = self.options.failure / 2 / self.options.rounds
        # Users who all agree need at least this many; those who only nearly agree need more.
        low = minimum_batch(MinimumScore, test.kernel, epsilon=test.epsilon, delta=test.delta, steps=1, failure=failure)
        high = low
        while self._best(high) is None:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._best(middle) is None else (low, middle)
        return high

    @property
    def _user_deviation(self) -> float:
        per_sample = self.options.deviation or self.problem.certificate.lipschitz
        if per_sample is None:
            raise BadInput(
                "strategy.radius: this loss has no bound on its gradient, so no radius follows from theory; "
                "give strategy.radius (how far apart users' average gradients are, sup norm) or strategy.deviation"
            )
        return math.hypot(self.options.heterogeneity, per_sample / math.sqrt(self.public.min_samples))

    def _promise(self) -> Guarantee:
        return Guarantee(
            unit="user",
            relation="replace_one",
            epsilon=epsilon_of(self._cost, self.options.epochs, self.privacy.delta),
            delta=self.privacy.delta,
            accountant=f"{ACCOUNTANT}, parallel within an epoch",
            adversary="against other nodes and whoever sees every iterate; "
            "the server is trusted with the users' gradients",
            assumptions=ROUND_ASSUMPTIONS,
            holds=True,
        )

    def _make_ledger(self) -> Ledger:
        return Ledger(self.public.users, self._cost, self.options.epochs, self.privacy)

    def _ask(self, index: int) -> Request:
        return Request(self._sampler.cohort(index), Computation("user_gradient"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        score = concentration_score(gathered.values, self._kernel)
        session = self._test.session(self._noise(index, 1))
        session.observe(score)
        passed = session.passed()
        self.facts = {"score_private": score, "threshold": self._test.threshold, "passed": float(passed)}
        if not passed:
            return x, x
        gradient = self._mechanism.release(self._estimator(gathered.values), self._noise(index, 2))
        x = self.problem.domain.project(x - self._rate * gradient)
        return x, x
