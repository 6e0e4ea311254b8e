"""Rounds that release a noisy robust mean of a cohort's rows, if a test passes, and follow it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.core.mean_rounds import as_is
from strategies.core.results import Noise, Step
from strategies.core.scheme import HoldsNoise, Law, Scheme
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Rows, Vector
from userdp.audit.discrete import halting_probabilities
from userdp.errors import RunFailed
from userdp.mechanisms import AboveThreshold, ConcentrationTest, GaussianMechanism, MinimumScore, Session
from userdp.nodes.computations import Computation
from userdp.problems import Box
from userdp.sampling import DisjointBatches
from userdp.state import State

AnyTest = AboveThreshold | MinimumScore  # `MinimumScore` tests each round by itself, one `AboveThreshold` all rounds


@dataclass
class TestUnderWay(HoldsNoise):
    """The memory of a server that tests rounds."""

    parts: ClassVar[tuple[str, ...]] = ("session",)
    given: ClassVar[tuple[str, ...]] = ("test", *HoldsNoise.given)
    test: ConcentrationTest
    session: Session | None = None  # of one test of all rounds, once begun; None where each round has its own

    def new_part(self, attribute: str, state: State) -> Session:
        """Start a session, whose state is then restored."""
        return self.test.session(self.noise(1))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A test whether the users of a cohort agree, and the estimator of their mean if they do."""

    test: AnyTest  # of a cohort's score; an `AboveThreshold` is one test of all rounds
    score: Callable[[Rows], float]  # how well (B, p) rows agree, by the kernel of the test
    estimator: Callable[[Rows], Vector]  # from (B, p) rows to their robust mean
    radius: float  # within which users agree for whom the estimator's sensitivity is proven
    l2_sensitivity: float  # of the estimator, where users agree
    rounding: float  # relative growth of that by computing in float64

    def __post_init__(self) -> None:
        if self.test.kernel.radius > self.radius:
            raise RunFailed(
                f"users agree within {self.test.kernel.radius:g}, and the estimate is for {self.radius:g}: "
                "take one radius for both"
            )

    def law(self, values: Sequence[Rows]) -> Vector:
        """Return the probabilities that the test fails and passes, from each round's (B, p) rows.

        For one test of all rounds: (T + 1,) that it fails in the first round, the second, ..., and that it passes all.
        """
        judged = values if isinstance(self.test, AboveThreshold) else values[-1:]
        return halting_probabilities(self.test, [self.score(rows) for rows in judged])

    def judged(self, rows: Rows, memory: TestUnderWay, noise: Noise, *, skipped: bool) -> dict[str, float]:
        """Test a round and return its facts; one test of all rounds draws its threshold before the first.

        Such a test fails in a ``skipped`` round: in a killed process it may have failed, which it may do once.
        """
        session = memory.session
        if session is None:
            session = self.test.session(noise(1))
        if isinstance(self.test, AboveThreshold):
            memory.session = session
        score = self.score(rows)
        judged = -math.inf if skipped and isinstance(self.test, AboveThreshold) else score
        session.observe(self.test.scored(judged, len(rows)))
        return {"score_private": score, "threshold": self.test.threshold, "passed": float(session.passed())}


@dataclass(frozen=True, kw_only=True)
class RowRounds(Scheme):
    """A `Scheme` of robust means of a cohort's rows, each followed by a plain step if the round's users agree.

    `RowOptions.row_rounds` makes one from a recipe's settings. The recipe must show that no user moves the mean of its
    ``estimator`` by more than the ``mechanism`` has noise for. Without a test `Given.price` makes its price.
    ``new_memory`` makes a `TestUnderWay` where users are tested, and nothing where they are not.
    """

    domain: Box
    sampler: DisjointBatches
    query: Computation
    # from (B, p) rows to their robust mean; opens noise of purpose 1 for private choices
    estimator: Callable[[Rows, Noise], Vector]
    mechanism: GaussianMechanism
    rate: float
    # from a round's index and the released mean to the vector that is followed; costs nothing
    gradient: Callable[[int, Vector], Vector] = as_is
    agreement: Agreement | None = None  # the test, with noise of purpose 1; None where every round releases its mean

    @property
    def law(self) -> Law | None:
        """The law of the test, for audits (`strategies.core.scheme.Law`); None without one."""
        return None if self.agreement is None else self.agreement.law

    def ask(self, index: int, memory: TestUnderWay | None) -> Request | None:
        """See `Scheme`; None after a failed test of all rounds."""
        session = None if memory is None else memory.session
        if session is not None and not session.passed():
            return None
        return Request(self.sampler.cohort(index), self.query)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: TestUnderWay | None, noise: Noise) -> Step:
        """See `Scheme`; the model stays where it is if the test fails."""
        rows, facts = gathered.values, {"noise_deviation": self.mechanism.standard_deviation}
        if self.agreement is not None:
            assert memory is not None
            facts = self.agreement.judged(rows, memory, noise, skipped=gathered.skipped)
        if not facts.get("passed", True):
            return Step(x, x, facts)
        released = self.mechanism.release(self.estimator(rows, noise), noise(2))
        following = self.domain.project(x - self.rate * self.gradient(index, released))
        return Step(following, following, facts)
