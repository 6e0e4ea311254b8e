"""What strategies share that release a noisy robust gradient every round: they need each user's row, not a sum."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.declarations import Fact
from strategies.passing import DeviationOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Cost, Guarantee, Ledger, calibrate_noise, epsilon_of
from userdp.computations import Computation
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import Kernel
from userdp.mechanisms import GaussianMechanism, MinimumScore
from userdp.problems.base import Vector
from userdp.sampling import DisjointBatches

Rows = NDArray[np.float64]

SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
"""Shares of epsilon that are tried for the tests."""


class RowOptions(DeviationOptions):
    """Settings of every strategy here."""

    rounds: int = Field(5, ge=1, description="Rounds in all; the cohort is n * epochs / rounds.")
    epochs: int = Field(1, ge=1, description="How often each user takes part.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")


class RowRounds(UserLevelStrategy):
    """Gradient descent along a robust mean of a cohort's gradients; a user is in one cohort an epoch."""

    meanings: ClassVar[Mapping[str, str]] = {
        "epochs": "passes over the users",
        "user_deviation": "assumed standard deviation of a coordinate of a user's gradient",
    }
    options: RowOptions
    adversary = "against other nodes and whoever sees every iterate; the server is trusted with the users' gradients"
    trust = "the server is trusted"
    undeclared: ClassVar[str]
    """What is said where nothing bounds how far users' gradients deviate."""
    _sampler: DisjointBatches
    _mechanism: GaussianMechanism

    @property
    def _batch(self) -> int:
        """Users a round; none where rounds outnumber participations."""
        return min(self.public.users, self.public.users * self.options.epochs // self.options.rounds)

    @property
    def _rate(self) -> float:
        return self.options.learning_rate or self._default_step

    @property
    def _user_deviation(self) -> float:
        """Standard deviation of one coordinate of one user's average gradient."""
        per_sample = self.options.deviation or self.problem.certificate.lipschitz
        if per_sample is None:
            raise BadInput(self.undeclared)
        return self.options.user_deviation(per_sample, self.public.min_samples)

    def _row_plan(
        self,
        users_needed: int,
        guarantee: Guarantee,
        noise: float,
        signal: float,
        numbers: dict[str, float | int | str],
        warnings: list[str],
    ) -> Plan:
        """The plan, with what all strategies here print around a strategy's own numbers."""
        return Plan(
            strategy=self.name,
            rounds=min(self.options.rounds, self._sampler.rounds),
            cohort=self._batch,
            users=self.public.users,
            users_needed=users_needed,
            guarantee=guarantee,
            noise=noise,
            signal=signal,
            numbers={
                "cohort": self._batch,
                "epochs": self.options.epochs,
                "learning_rate": self._rate,
                **numbers,
                "l2_sensitivity": self._mechanism.l2_sensitivity,
                "noise_deviation": self._mechanism.standard_deviation,
            },
            warnings=tuple(warnings),
        )

    def _ask(self, index: int) -> Request:
        return Request(self._sampler.cohort(index), Computation("user_gradient"))

    def _descend(self, x: Vector, gradient: Vector) -> tuple[Vector, Vector]:
        """The next iterate, which is released."""
        x = self.problem.domain.project(x - self._rate * gradient)
        return x, x


class TestedRounds(RowRounds):
    """Each round tests privately whether its users agree; the model moves only if they do."""

    meanings: ClassVar[Mapping[str, str]] = {
        "radius": "users' gradients count as agreeing within this radius (sup norm)",
        "threshold": "concentration score that a batch must reach (at most the batch size)",
        "test_epsilon": "share of epsilon spent on the test",
        "test_delta": "share of delta spent on the test",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "score_private": Fact("private", "how well the users of the round agree, before the test's noise"),
        "threshold": Fact("public", "score that a batch must reach"),
        "passed": Fact("noised", "whether the round or phase passed its test, which has noise of its own"),
    }
    _kernel: Kernel
    _estimator: Callable[[Rows], Vector]

    # What a strategy defines ---------------------------------------------------------------------------------------

    @abstractmethod
    def _best(self, batch: int) -> tuple[float, float] | None:
        """(share of epsilon for the test, radius within which users agree); None if cohorts that small cannot pass."""

    @abstractmethod
    def _least(self) -> int:
        """A cohort below which none can pass."""

    @abstractmethod
    def _kernel_of(self, radius: float) -> Kernel:
        """How agreement of two users falls with their distance."""

    @abstractmethod
    def _estimator_of(self, radius: float) -> Callable[[Rows], Vector]:
        """The robust mean of users that agree."""

    @abstractmethod
    def _l2_sensitivity(self, batch: int) -> float:
        """Of ``self._estimator``, where users agree."""

    @abstractmethod
    def _score(self, rows: Rows) -> float:
        """How well users agree, by ``self._kernel``."""

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        options, privacy, batch = self.options, self.privacy, self._batch
        best = self._best(batch)
        if best is None:
            raise PopulationTooSmall(
                f"data.users = {self.public.users} in {options.rounds} rounds give cohorts of {batch} users; a cohort "
                f"that passes its test takes {self._fewest()}: use fewer strategy.rounds, more users, or a larger "
                "privacy.epsilon"
            )
        share, radius = best
        self._kernel, self._estimator = self._kernel_of(radius), self._estimator_of(radius)
        self._test = test = self._test_for(batch, share, radius)
        multiplier = calibrate_noise(
            privacy.epsilon, privacy.delta, options.epochs, test_epsilon=test.epsilon, test_delta=test.delta
        )
        self._cost = Cost(noise_multiplier=multiplier, test_epsilon=test.epsilon, test_delta=test.delta)
        self._sampler = DisjointBatches(self.public.users, batch, options.epochs, self.seed)
        self._mechanism = GaussianMechanism(self._l2_sensitivity(batch), multiplier)
        noise = self._mechanism.standard_deviation * math.sqrt(self.problem.dimension)
        bound = self.problem.certificate.gradient_norm
        warnings = []
        if bound is not None and noise >= bound:
            warnings.append(
                f"the noise of one round ({noise:.3g}) exceeds the largest gradient ({bound:.3g}): use fewer rounds "
                "(larger cohorts), bring more users or raise privacy.epsilon"
            )
        return self._row_plan(
            users_needed=math.ceil(self._fewest() * options.rounds / options.epochs),
            guarantee=self._promise(),
            noise=noise,
            signal=bound if bound is not None else math.inf,
            numbers={
                "radius": radius,
                "threshold": test.threshold,
                "test_epsilon": test.epsilon,
                "test_delta": test.delta,
                "noise_multiplier": multiplier,
            },
            warnings=warnings,
        )

    def _test_for(self, batch: int, share: float, radius: float = 1.0) -> MinimumScore:
        """The test that gets that share of epsilon, and half of delta; what it asks for is the same at any radius."""
        epochs = self.options.epochs
        return MinimumScore(
            batch=batch,
            kernel=self._kernel_of(radius),
            epsilon=share * self.privacy.epsilon / epochs,
            delta=self.privacy.delta / 2 / epochs,
        )

    def _fewest(self) -> int:
        """Smallest cohort that can pass, by bisection."""
        low = high = self._least()
        while self._best(high) is None:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._best(middle) is None else (low, middle)
        return high

    def _promise(self) -> Guarantee:
        return Guarantee(
            unit="user",
            relation="replace_one",
            epsilon=epsilon_of(self._cost, self.options.epochs, self.privacy.delta),
            delta=self.privacy.delta,
            accountant=f"{ACCOUNTANT}, parallel within an epoch",
            adversary=self.adversary,
            assumptions=(self._sampler.assumption, self.trust),
            holds=True,
        )

    def _make_ledger(self) -> Ledger:
        return Ledger(self.public.users, self._cost, self.options.epochs, self.privacy)

    # A round -------------------------------------------------------------------------------------------------------

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        score = self._score(gathered.values)
        session = self._test.session(self._noise(index, 1))
        session.observe(score)
        passed = session.passed()
        self.facts = {"score_private": score, "threshold": self._test.threshold, "passed": float(passed)}
        if not passed:
            return x, x
        return self._descend(x, self._mechanism.release(self._estimator(gathered.values), self._noise(index, 2)))
