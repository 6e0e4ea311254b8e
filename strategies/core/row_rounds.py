"""Rounds that release a noisy robust mean of a cohort's rows, and follow it; a test may decline to release one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.core.mean_rounds import as_is
from strategies.core.scheme import Law, Scheme
from strategies.core.step import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Rows, Vector
from userdp.audit.discrete import halting_probabilities
from userdp.errors import RunFailed
from userdp.estimators import Estimator, NeighbourMean
from userdp.mechanisms import AboveThreshold, GaussianMechanism, MinimumScore, Session
from userdp.nodes.computations import Computation
from userdp.problems import Box
from userdp.sampling import DisjointBatches
from userdp.state import State, Stateful

AnyTest = AboveThreshold | MinimumScore
"""`MinimumScore` tests each round by itself, one `AboveThreshold` all rounds."""


@dataclass
class TestUnderWay(Stateful):
    """The memory of a server that tests rounds.

    Attributes:
        new_session: starts the test.
        session: of one test of all rounds, from the first round on; None where each round has its own.
    """

    parts: ClassVar[tuple[str, ...]] = ("session",)
    given: ClassVar[tuple[str, ...]] = ("new_session",)
    new_session: Callable[[], Session]
    session: Session | None = None

    def new_part(self, attribute: str, state: State) -> Session:
        """The session, before its state is put back."""
        return self.new_session()


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How the users of a cohort are tested for agreement, and what may be released of them if they agree.

    Attributes:
        test: of a cohort's score; an `AboveThreshold` is one test of all rounds.
        score: how well (B, p) rows agree, by the kernel of the test.
        estimator: from (B, p) rows to their robust mean.
        l2_sensitivity: of the estimator, where users agree.
        rounding: how much that can grow, relatively, by the estimate's being computed in float64.
    """

    test: AnyTest
    score: Callable[[Rows], float]
    estimator: Estimator | NeighbourMean
    l2_sensitivity: float
    rounding: float

    def __post_init__(self) -> None:
        if self.test.kernel.radius > self.estimator.radius:
            raise RunFailed(
                f"users agree within {self.test.kernel.radius:g}, and the estimate is for {self.estimator.radius:g}: "
                "take one radius for both"
            )

    def law(self, values: Sequence[Rows]) -> Vector:
        """Probabilities that the test fails and that it passes, from each round's (B, p) rows.

        One of all rounds: (T + 1,) that it fails in the first round, the second, ..., and that it passes all.
        """
        judged = values if isinstance(self.test, AboveThreshold) else values[-1:]
        return halting_probabilities(self.test, [self.score(rows) for rows in judged])

    def judged(self, rows: Rows, memory: TestUnderWay, noise: Noise) -> dict[str, float]:
        """The facts of a round's test: its own, or the one of all rounds, whose threshold is drawn before the first."""
        session = memory.session
        if session is None:
            session = self.test.session(noise(1))
        if isinstance(self.test, AboveThreshold):
            memory.session = session
        score = self.score(rows)
        session.observe(score)
        return {"score_private": score, "threshold": self.test.threshold, "passed": float(session.passed())}


@dataclass(frozen=True, kw_only=True)
class RowRounds(Scheme):
    """A `Scheme` of robust means of a cohort's rows, each followed by a plain step if the round's users agree.

    ``new_memory`` makes a `TestUnderWay` where users are tested, and nothing where they are not.

    Attributes:
        domain: of models.
        sampler: who takes part in each round.
        query: what users are asked.
        estimator: from (B, p) rows to their robust mean; opens noise of purpose 1 for private choices.
        mechanism: of the robust mean.
        rate: step size.
        gradient: what is followed, from the released mean; costs no privacy.
        agreement: the test, with noise of purpose 1; None where every round releases its mean.
    """

    domain: Box
    sampler: DisjointBatches
    query: Computation
    estimator: Callable[[Rows, Noise], Vector]
    mechanism: GaussianMechanism
    rate: float
    gradient: Callable[[Vector], Vector] = as_is
    agreement: Agreement | None = None

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
            facts = self.agreement.judged(rows, memory, noise)
        if not facts.get("passed", True):
            return Step(x, x, facts)
        released = self.mechanism.release(self.estimator(rows, noise), noise(2))
        following = self.domain.project(x - self.rate * self.gradient(released))
        return Step(following, following, facts)
