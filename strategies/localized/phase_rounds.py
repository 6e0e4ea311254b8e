"""Rounds in phases: steps whose iterates stay private, then one noisy release of their average, if a test passes."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from strategies.core.public_facts import Given
from strategies.core.scheme import Number, Outline, Scheme
from strategies.core.step import Noise, Step
from strategies.core.ways import NoisyPhase, Phases
from strategies.localized.phases import ASSUMPTIONS
from strategies.wire.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Cost, Guarantee, Ledger, epsilon_of
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.arrays.types import Rows, Vector
from userdp.estimators import concentration_score
from userdp.mechanisms import ConcentrationTest, GaussianMechanism, Session
from userdp.nodes.computations import Computation
from userdp.noise import NoiseSource
from userdp.problems import Box
from userdp.sampling import DisjointBatches
from userdp.state import State, Stateful


class PhaseAverage(Stateful):
    """The average iterate of the phase under way, NOT private before noise is added.

    Args:
        dimension: p.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_sum", "_count")

    def __init__(self, dimension: int) -> None:
        self._sum, self._count = np.zeros(dimension), 0

    def restart(self) -> None:
        """For a new phase."""
        self._sum, self._count = np.zeros_like(self._sum), 0

    def add(self, x: Vector) -> None:
        """One more iterate, (p,)."""
        self._sum += x
        self._count += 1

    @property
    def value(self) -> Vector:
        """(p,) of the iterates since the phase began."""
        return self._sum / self._count


@dataclass
class PhaseUnderWay(Stateful):
    """What the server remembers of a tested phase under way; none of it is private before noise is added.

    Attributes:
        average: of its iterates.
        new_session: starts a test of any phase.
        session: of its test; there from the phase's first round on.
        halted: whether the test has failed already.
    """

    remembered: ClassVar[tuple[str, ...]] = ("halted",)
    parts: ClassVar[tuple[str, ...]] = ("average", "session")
    given: ClassVar[tuple[str, ...]] = ("new_session",)
    average: PhaseAverage
    new_session: Callable[[], Session]
    session: Session = field(init=False)
    halted: bool = False

    def begin(self, session: Session) -> None:
        """Forget the test of the phase before."""
        self.session, self.halted = session, False

    def new_part(self, attribute: str, state: State) -> Session:
        """The session; its state holds all that differs between phases."""
        return self.new_session()


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase: steps of fresh users each, then one release, if there is no test or the users passed it.

    Attributes:
        steps: T.
        learning_rate: eta.
        gradient: from (B, p) rows of a step's users to what is stepped along.
        mechanism: of the average iterate.
        test: of the users of all steps, calibrated for them; None where gradients need none.
        width: that each coordinate of a user's gradient is clipped to, on either side of zero; None for no clip.
    """

    steps: int
    learning_rate: float
    gradient: Callable[[Rows], Vector]
    mechanism: GaussianMechanism
    test: ConcentrationTest | None = None
    width: float | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseRounds(Scheme):
    """A `Scheme` of phases; ``new_memory`` makes a `PhaseUnderWay` where they are tested, else a `PhaseAverage`.

    Attributes:
        domain: of models.
        sampler: who takes part in each round.
        phases: in order.
        projects: whether iterates inside a phase stay in the domain; a linear loss needs it only at the release.
        noise: opens the noise of (number of a phase, purpose).
    """

    domain: Box
    sampler: DisjointBatches
    phases: tuple[Phase, ...]
    projects: bool
    noise: Callable[[int, int], NoiseSource]

    def place(self, index: int) -> tuple[int, int, Phase]:
        """(number of the phase, step within it, phase) of a round."""
        starts = [0, *accumulate(phase.steps for phase in self.phases[:-1])]
        number = bisect_right(starts, index) - 1
        return number, index - starts[number], self.phases[number]

    def ask(self, index: int, memory: PhaseAverage | PhaseUnderWay) -> Request | None:
        """See `Scheme`; None for the rest of a phase that has failed its test."""
        _, step, _ = self.place(index)
        if step and isinstance(memory, PhaseUnderWay) and memory.halted:
            return None
        return Request(self.sampler.cohort(index), Computation("user_gradient"))

    def take(
        self, index: int, x: Vector, gathered: Gathered, memory: PhaseAverage | PhaseUnderWay, noise: Noise
    ) -> Step:
        """See `Scheme`; after a failed test, the next phase starts where this one did."""
        number, step, phase = self.place(index)
        average = memory if isinstance(memory, PhaseAverage) else memory.average
        if step == 0:
            average.restart()
        facts: dict[str, float] = {"phase": number + 1}
        if phase.width is not None:
            facts["width"] = phase.width
        if phase.test is not None:
            assert isinstance(memory, PhaseUnderWay)
            facts |= self._judged(phase.test, number, step, gathered.values, memory)
        x = x - phase.learning_rate * phase.gradient(gathered.values)
        if self.projects:
            x = self.domain.project(x)
        average.add(x)
        if not facts.get("passed", True):
            return Step(x, None, facts, goes_back=True)
        if step + 1 < phase.steps:
            return Step(x, None, facts)
        opened = self.noise(number, 0 if phase.test is None else 2)
        released = self.domain.project(phase.mechanism.release(average.value, opened))
        return Step(released, released, facts)

    def _judged(
        self, test: ConcentrationTest, number: int, step: int, rows: Rows, memory: PhaseUnderWay
    ) -> dict[str, float]:
        """The facts of a step's score, and of the whole test once it has failed or its phase ends."""
        if step == 0:
            memory.begin(test.session(self.noise(number, 1)))
        score = concentration_score(rows, test.kernel)
        memory.halted = not memory.session.observe(score)
        facts = {"score_private": score, "threshold": test.threshold}
        if memory.halted or step + 1 == self.phases[number].steps:
            facts["passed"] = float(memory.session.passed())
        return facts


def phase_rounds(
    given: Given,
    batch: int,
    phases: tuple[Phase, ...],
    cost: Cost,
    numbers: Mapping[str, Number],
    *,
    projects: bool,
    rounding: float,
    signal: float,
    reach: float,
    users_needed: int,
    **plan: Any,
) -> PhaseRounds:
    """The scheme of these phases.

    Args:
        given: what the scheme is made from.
        batch: users a step.
        phases: in order; all tested, or none.
        cost: of a user's one participation.
        numbers: of the plan.
        projects: whether iterates inside a phase stay in the domain.
        rounding: how much sensitivities can grow, relatively, by float64 steps.
        signal: l2 norm of the longest way there is to go in the last phase.
        reach: the same in all phases.
        users_needed: the fewest users with which there is a plan.
        plan: further fields of the `Outline`.
    """
    p, test, missing = given.dimension, phases[0].test, given.problem.certificate.missing()
    accountant = f"{ONE_GAUSSIAN if test is None else ACCOUNTANT}, parallel over disjoint users"
    promised = given.promise(epsilon_of(cost, 1, given.privacy.delta), accountant, ASSUMPTIONS)
    path = [
        NoisyPhase(
            steps=phase.steps,
            rate=phase.learning_rate,
            deviation=phase.mechanism.standard_deviation,
            longest=math.inf if phase.width is None else phase.width,
        )
        for phase in phases
    ]

    def memory() -> PhaseAverage | PhaseUnderWay:
        average = PhaseAverage(p)
        return average if test is None else PhaseUnderWay(average, lambda: test.session(given.noise(0, 1)))

    return PhaseRounds(
        guarantee=Guarantee.none(f"the loss lacks {', '.join(missing)}") if missing else promised,
        ledger=partial(Ledger, given.users, cost, 1),
        new_memory=memory,
        outline=Outline(
            rounds=sum(phase.steps for phase in phases),
            cohort=batch,
            users_needed=users_needed,
            path=Phases(tuple(path), reach),
            noise=phases[-1].mechanism.standard_deviation * math.sqrt(p),
            signal=signal,
            numbers=numbers,
            **plan,
        ),
        summands=batch,  # scores, too, are exact sums over the batch, rounded once
        rounding=rounding,
        domain=given.problem.domain,
        sampler=DisjointBatches(given.users, batch, 1, given.seed),
        phases=phases,
        projects=projects,
        noise=given.noise,
    )
