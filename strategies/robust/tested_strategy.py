"""Strategies that release a noisy robust gradient every round: they need each user's row, not a sum."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Number, Scheme, Step
from strategies.core.ways import Course
from strategies.robust.passing import TESTS, DeviationOptions
from strategies.wire.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Cost, Ledger, calibrate_noise, epsilon_of
from userdp.arrays.types import Rows, Vector
from userdp.audit.discrete import halting_probabilities
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import Kernel
from userdp.mechanisms import AboveThreshold, GaussianMechanism, MinimumScore, Session
from userdp.nodes.computations import Computation
from userdp.problems.base import Certificate
from userdp.sampling import DisjointBatches
from userdp.state import State, Stateful

AnyTest = AboveThreshold | MinimumScore
"""`MinimumScore` tests each round by itself, one `AboveThreshold` all rounds."""

SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
"""Shares of epsilon that are tried for the tests."""

ADVERSARY = "against other nodes and whoever sees every iterate; the server is trusted with the users' gradients"
"""What is said of a strategy whose server sees rows."""

TRUST = "the server is trusted"
"""What every guarantee here rests on."""

SECURE_TEST = (
    "scores are exact sums, the test's Laplace noise lies on a grid, and noise is larger by what rounding can do to a "
    "robust mean, which limits the users of a round (`Estimator.rounding`, `NeighbourMean.rounding`)"
)
"""What becomes of tests and robust means where noise is secure."""

ROW_MEANINGS = {
    "epochs": "passes over the users",
    "user_deviation": "assumed standard deviation of a coordinate of a user's gradient",
}
"""Of numbers that plans of strategies with `RowOptions` have."""


class RowOptions(DeviationOptions):
    """Settings of every strategy here."""

    rounds: int = Field(5, ge=1, description="Rounds in all; the cohort is n * epochs / rounds.")
    epochs: int = Field(1, ge=1, description="How often each user takes part.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5.")

    def cohort(self, users: int) -> int:
        """Users a round; none where rounds outnumber participations."""
        return min(users, users * self.epochs // self.rounds)


def declared_deviation(options: DeviationOptions, certificate: Certificate, samples: int, undeclared: str) -> float:
    """Standard deviation of one coordinate of the average gradient of a user with so many samples.

    Raises:
        BadInput: with the text ``undeclared``, where nothing bounds how far gradients deviate.
    """
    per_sample = options.deviation or certificate.lipschitz
    if per_sample is None:
        raise BadInput(undeclared)
    return options.user_deviation(per_sample, samples)


@dataclass(frozen=True, kw_only=True)
class RowScheme(Scheme):
    """A `Scheme` of robust means of a cohort's rows; a user is in one cohort an epoch.

    Attributes:
        sampler: who takes part in each round.
        rounds: of them, in all.
        noise_multiplier: noise over sensitivity of a round.
        mechanism: of a round's robust mean.
        rate: step size.
    """

    sampler: DisjointBatches
    rounds: int
    noise_multiplier: float
    mechanism: GaussianMechanism
    rate: float

    def course(self, longest: float | None) -> Course:
        """How the model moves by means of that l2 norm at most; None for no bound."""
        return Course(
            steps=self.rounds,
            rate=self.rate,
            deviation=self.mechanism.standard_deviation,
            longest=math.inf if longest is None else longest,
        )

    def numbers(self, own: Mapping[str, Number]) -> dict[str, Number]:
        """Of the plan: a strategy's own numbers, amid those of all strategies here."""
        return {
            "cohort": self.sampler.batch,
            "epochs": self.sampler.epochs,
            "learning_rate": self.rate,
            **own,
            "l2_sensitivity": self.mechanism.l2_sensitivity,
            "noise_deviation": self.mechanism.standard_deviation,
        }


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How the users of a cohort are tested for agreement, and what is released of them if they agree.

    Attributes:
        radius: within which users agree.
        test: of a cohort's score; an `AboveThreshold` is one test of all rounds.
        score: how well (B, p) rows agree, by the kernel of the test.
        estimator: from (B, p) rows to their robust mean.
        l2_sensitivity: of the estimator, where users agree.
        rounding: how much that can grow, relatively, by the estimate's being computed in float64.
    """

    radius: float
    test: AnyTest
    score: Callable[[Rows], float]
    estimator: Callable[[Rows], Vector]
    l2_sensitivity: float
    rounding: float


Search = Callable[[int], Agreement | None]
"""The best agreement for cohorts of a size; None if cohorts that small cannot pass a test."""


def smallest_cohort(search: Search, least: int) -> int:
    """Users of the smallest cohort that can pass, by bisection; none below ``least`` can."""
    low = high = least
    while search(high) is None:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if search(middle) is None else (low, middle)
    return high


@dataclass(frozen=True, kw_only=True)
class TestedScheme(RowScheme):
    """A `RowScheme` whose rounds release only what users agree on.

    Attributes:
        agreement: the test of each round, and the robust mean.
        smallest_cohort: users of the smallest cohort that could pass.
        pass_probability: as in `Plan`.
    """

    agreement: Agreement
    smallest_cohort: int
    pass_probability: float | None = None

    def law(self, values: Sequence[Rows]) -> Vector:
        """Probabilities that the test fails and that it passes, from each round's (B, p) rows.

        One of all rounds: (T + 1,) that it fails in the first round, the second, ..., and that it passes all.
        """
        judged = values if isinstance(self.agreement.test, AboveThreshold) else values[-1:]
        return halting_probabilities(self.agreement.test, [self.agreement.score(rows) for rows in judged])


@dataclass
class TestUnderWay(Stateful):
    """What the server remembers of one test of all rounds.

    Attributes:
        new_session: starts the test.
        session: from the first round on; None where each round has its own.
    """

    parts: ClassVar[tuple[str, ...]] = ("session",)
    given: ClassVar[tuple[str, ...]] = ("new_session",)
    new_session: Callable[[], Session]
    session: Session | None = None

    def new_part(self, attribute: str, state: State) -> Session:
        """The session, before its state is put back."""
        return self.new_session()


class TestedStrategy(UserLevelStrategy):
    """Rounds test privately whether their users agree; the model moves only if they do.

    A strategy here defines `_make_scheme` alone.
    """

    adversary: ClassVar[str] = ADVERSARY
    meanings: ClassVar[Mapping[str, str]] = {
        **ROW_MEANINGS,
        "radius": "users' gradients count as agreeing within this radius (sup norm)",
        "test": "min_score: one of each round; above_threshold: one of all rounds, which stops at the first failure",
        "threshold": "concentration score that a batch must reach (at most the batch size)",
        "test_epsilon": "share of epsilon spent on the test",
        "test_delta": "share of delta spent on the test",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "score_private": Fact("private", "how well the users of the round agree, before the test's noise"),
        "threshold": Fact("public", "score that a batch must reach"),
        "passed": Fact("noised", "whether the round or phase passed its test, which has noise of its own"),
    }
    options: RowOptions
    scheme: TestedScheme
    memory: TestUnderWay

    # What a strategy is built with ---------------------------------------------------------------------------------

    def _test(self, batch: int, share: float, kernel: Kernel, kind: type[AnyTest] = MinimumScore) -> AnyTest:
        """The test of cohorts of that size that gets that share of epsilon, and half of delta.

        One of all rounds pays its epsilon once; others share it among the rounds of a user.
        """
        epochs = self.options.epochs
        return kind(
            batch=batch,
            kernel=kernel,
            epsilon=share * self.privacy.epsilon / (1 if kind is AboveThreshold else epochs),
            delta=self.privacy.delta / 2 / epochs,
        )

    def _cost(self, test: AnyTest) -> Cost:
        """Of one participation in rounds tested so, with the least noise that keeps the budget."""
        epsilon, delta, epochs = self.privacy.epsilon, self.privacy.delta, self.options.epochs
        paid = {"shared_epsilon" if isinstance(test, AboveThreshold) else "pure_epsilon": test.epsilon}
        paid["failure_delta"] = test.delta
        return Cost(noise_multiplier=calibrate_noise(epsilon, delta, epochs, **paid), **paid)

    def _tested_scheme(self, search: Search, least: Callable[[], int]) -> TestedScheme:
        """The scheme of the best agreement for all users; ``least`` gives a cohort below which none can pass.

        Raises:
            PopulationTooSmall: their cohorts cannot pass a test; it names how many users can.
        """
        options, privacy, n = self.options, self.privacy, self.public.users
        batch = options.cohort(n)
        agreement = search(batch)
        smallest = smallest_cohort(search, least())
        if agreement is None:
            raise PopulationTooSmall(
                f"data.users = {n} in {options.rounds} rounds give cohorts of {batch} users; a cohort "
                f"that passes its test takes {smallest}: use fewer strategy.rounds, more users, or a larger "
                "privacy.epsilon"
            )
        cost = self._cost(agreement.test)
        sampler = DisjointBatches(n, batch, options.epochs, self.seed)
        return TestedScheme(
            guarantee=self._promise(
                epsilon_of(cost, options.epochs, privacy.delta),
                f"{ACCOUNTANT}, parallel within an epoch",
                (sampler.assumption, TRUST),
            ),
            ledger=partial(Ledger, n, cost, options.epochs),
            new_memory=partial(TestUnderWay, lambda: agreement.test.session(self._noise(0, 1))),
            # A score is an exact sum over the cohort, rounded once.
            summands=batch,
            rounding=agreement.rounding,
            sampler=sampler,
            rounds=min(options.rounds, sampler.rounds),
            noise_multiplier=cost.noise_multiplier,
            mechanism=GaussianMechanism(agreement.l2_sensitivity, cost.noise_multiplier),
            rate=options.learning_rate or self._default_step,
            agreement=agreement,
            smallest_cohort=smallest,
        )

    # The plan and a round ------------------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        options, scheme, test = self.options, self.scheme, self.scheme.agreement.test
        noise = scheme.mechanism.standard_deviation * math.sqrt(self.problem.dimension)
        bound = self.problem.certificate.gradient_norm
        own: dict[str, Number] = {
            "radius": scheme.agreement.radius,
            "test": next(name for name, kind in TESTS.items() if isinstance(test, kind)),
            "threshold": test.threshold,
            "test_epsilon": test.epsilon,
            "test_delta": test.delta,
            "noise_multiplier": scheme.noise_multiplier,
        }
        return self._planned(
            scheme.course(bound),
            rounds=scheme.rounds,
            cohort=scheme.sampler.batch,
            users_needed=math.ceil(scheme.smallest_cohort * options.rounds / options.epochs),
            noise=noise,
            signal=bound if bound is not None else math.inf,
            pass_probability=scheme.pass_probability,
            numbers=scheme.numbers(own),
        )

    def _ask(self, index: int) -> Request | None:
        session = self.memory.session
        if session is not None and not session.passed():
            return None
        return Request(self.scheme.sampler.cohort(index), Computation("user_gradient"))

    def _session(self, index: int) -> Session:
        """The test of a round: its own, or the one of all rounds, whose threshold gets its noise before the first."""
        test = self.scheme.agreement.test
        if isinstance(test, MinimumScore):
            return test.session(self._noise(index, 1))
        if self.memory.session is None:
            self.memory.session = test.session(self._noise(index, 1))
        return self.memory.session

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme, agreement = self.scheme, self.scheme.agreement
        score = agreement.score(gathered.values)
        session = self._session(index)
        session.observe(score)
        passed = session.passed()
        facts = {"score_private": score, "threshold": agreement.test.threshold, "passed": float(passed)}
        if not passed:
            return Step(x, x, facts)
        gradient = scheme.mechanism.release(agreement.estimator(gathered.values), self._noise(index, 2))
        following = self.problem.domain.project(x - scheme.rate * gradient)
        return Step(following, following, facts)
