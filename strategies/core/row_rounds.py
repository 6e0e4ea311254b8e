"""Rounds that release a noisy robust mean of a cohort's rows, and follow it; a test may decline to release one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from strategies.core.mean_rounds import as_is
from strategies.core.scheme import Scheme
from strategies.core.step import Noise, Step
from strategies.core.ways import Course
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Rows, Vector
from userdp.audit.discrete import halting_probabilities
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


def unchanged(rows: Rows, noise: Noise) -> Rows:
    """The rows as nodes sent them."""
    return rows


@dataclass(frozen=True, kw_only=True)
class RowRounds(Scheme):
    """A `Scheme` of robust means of a cohort's rows, each followed by a plain step, if the round's users agree.

    ``new_memory`` makes a `TestUnderWay` where there is a test, and nothing where there is none.

    Attributes:
        domain: of models.
        sampler: who takes part in each round.
        query: what users are asked.
        estimator: from (B, p') rows to their robust mean.
        mechanism: of the robust mean.
        rate: step size.
        prepared: from the rows that nodes send to those of the estimator; what it chooses privately has noise of purpose
            1 and is accounted for.
        gradient: what is followed, from the released mean; costs no privacy.
        test: of the cohort's score, with noise of purpose 1; None where every round releases its mean.
        score: how well (B, p) rows agree, by the kernel of the test.
        law: see `strategies.core.scheme.DiscreteScheme`; None without a test.
    """

    domain: Box
    sampler: DisjointBatches
    query: Computation
    estimator: Callable[[Rows], Vector]
    mechanism: GaussianMechanism
    rate: float
    prepared: Callable[[Rows, Noise], Rows] = unchanged
    gradient: Callable[[Vector], Vector] = as_is
    test: AnyTest | None = None
    score: Callable[[Rows], float] | None = None
    law: Callable[[Sequence[Rows]], Vector] | None = None

    def ask(self, index: int, memory: TestUnderWay | None) -> Request | None:
        """See `Scheme`; None after a failed test of all rounds."""
        session = None if memory is None else memory.session
        if session is not None and not session.passed():
            return None
        return Request(self.sampler.cohort(index), self.query)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: TestUnderWay | None, noise: Noise) -> Step:
        """See `Scheme`; the model stays where it is if the test fails."""
        if self.test is None or self.score is None or memory is None:
            facts = {"noise_deviation": self.mechanism.standard_deviation}
        else:
            score, session = self.score(gathered.values), self._session(self.test, memory, noise)
            session.observe(score)
            passed = session.passed()
            facts = {"score_private": score, "threshold": self.test.threshold, "passed": float(passed)}
            if not passed:
                return Step(x, x, facts)
        mean = self.estimator(self.prepared(gathered.values, noise))
        released = self.mechanism.release(mean, noise(2))
        following = self.domain.project(x - self.rate * self.gradient(released))
        return Step(following, following, facts)

    def _session(self, test: AnyTest, memory: TestUnderWay, noise: Noise) -> Session:
        """The test of a round: its own, or the one of all rounds, whose threshold gets its noise before the first."""
        if isinstance(test, MinimumScore):
            return test.session(noise(1))
        if memory.session is None:
            memory.session = test.session(noise(1))
        return memory.session


def law_of(test: AnyTest, score: Callable[[Rows], float], values: Sequence[Rows]) -> Vector:
    """Probabilities that the test fails and that it passes, from each round's (B, p) rows.

    One of all rounds: (T + 1,) that it fails in the first round, the second, ..., and that it passes all.
    """
    judged = values if isinstance(test, AboveThreshold) else values[-1:]
    return halting_probabilities(test, [score(rows) for rows in judged])


def course_of(sampler: DisjointBatches, rounds: int, mechanism: GaussianMechanism, rate: float, longest: float | None) -> Course:
    return Course(
        steps=min(rounds, sampler.rounds),
        rate=rate,
        deviation=mechanism.standard_deviation,
        longest=math.inf if longest is None else longest,
    )
