"""Phases whose iterates stay private: conditions of their guarantee, and rounds that release each phase's average."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from strategies.core.about import Fact
from strategies.core.public_facts import Given
from strategies.core.results import Noise, Step
from strategies.core.scheme import Number, Outline, Scheme
from strategies.robust.row_rounds import TestUnderWay
from strategies.wire.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Cost, Guarantee
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput, RunFailed
from userdp.estimators import Estimator, concentration_score
from userdp.mechanisms import ConcentrationTest, GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.problems import Box
from userdp.problems.base import Problem
from userdp.problems.noise_paths import NoisyPhase, Phases
from userdp.sampling import DisjointBatches
from userdp.state import Stateful

ASSUMPTIONS = (
    "every user's answer is the certified function of the model: nodes are honest",
    "data lie in the declared bounds (they are clipped into them)",
    "n and who takes part are public",
)

PHASE_ABOUT: Mapping[str, Any] = {
    "adversary": "against whoever sees the released models; nodes of a phase and the server see its iterates and are "
    "trusted",
    "needs": "convex loss, certified gradient bound and diagonally dominant bounded Hessian; honest nodes",
    "promise": "user level, against whoever sees the released models",
    "release": "phase",
    "with_secure_noise": "noise is larger by what rounding can do to the steps of a phase (`phase_rounding`); losses "
    "without a bound on how their gradients are rounded are refused, and so are domains without an end",
}

PHASE_MEANINGS: Mapping[str, str] = {
    "batch": "users per step, fresh ones each time",
    "phases": "releases; each phase starts at the model released before",
    "steps": "steps of each phase",
}

_ROUNDED = 1 + 1e-9
PHASE_FACT = Fact("public", "number of the phase")


def check_contractive(
    given: Given, learning_rate: float | None, *, opted_out: bool, needs: Mapping[str, float | None]
) -> None:
    """Refuse losses and step sizes for which steps are not proven to be contractive.

    If ``opted_out``, a loss without certificate may run, without any promise of privacy; it needs the options
    ``needs``, beside the learning rate of the first phase. Raises `MissingAssumption` for a loss without
    certificate that has not opted out, and `BadInput` for a missing option or a step that is too long.
    """
    certificate = given.problem.certificate
    if not opted_out:
        certificate.require_contractive(given.strategy)
    elif certificate.missing() and None in (*needs.values(), learning_rate):
        names = " and ".join(f"strategy.{name}" for name in (*needs, "learning_rate"))
        raise BadInput(f"{names} must be given for a loss without certificate")
    if learning_rate and certificate.smoothness and learning_rate > 2 / certificate.smoothness:
        raise BadInput(
            f"strategy.learning_rate = {learning_rate:g}: must be at most 2 / smoothness = "
            f"{2 / certificate.smoothness:.6g}, beyond which steps of this loss are not proven to be contractive"
        )


def gradient_rounding(problem: Problem) -> float:
    """Return how far computed gradients are from contractive ones; `BadInput` if they or models have no bound."""
    if problem.gradient_rounding is None or math.isinf(problem.domain.radius):
        raise BadInput(
            f"privacy.noise = 'secure': problem.kind = {problem.name!r} has no bound on how gradients or models inside "
            "a phase are rounded; choose a strategy that releases every round (robust_rounds), a finite "
            "problem.radius, or noise = 'seeded' for a simulation"
        )
    return problem.gradient_rounding


def phase_rounding(
    problem: Problem, *, steps: int, rate: float, sensitivity: float, error: float, longest: float
) -> float:
    """Return how much the sensitivity of a phase's average iterate can grow, relatively, by float64 steps.

    *Formal guarantees.* Let T = ``steps`` steps of size eta = ``rate`` be ``x <- P(x - eta g(x))``, where the true g
    moves by at most s = ``sensitivity`` (sup norm) if a user of its batch is replaced, and x - eta g(x) is 1-Lipschitz
    in x; P is the projection, or the identity. The computed g is within ``error`` of g for the computed rows, each
    within `gradient_rounding` of a true one; g is 1-Lipschitz in them. So a step's g errs by ``error +
    gradient_rounding``. It is at most ``longest`` in each coordinate, so iterates are at most ``X = X_0 + T eta
    longest``, with X_0 for the domain. With u = 2^-53, the product errs by ``u eta longest``, the difference by u X, P
    not at all. So two neighbours' iterates, equal up to the user's step, are at most ``eta (s + 2 T E)`` apart, with
    ``E = error + gradient_rounding + u longest + u X / eta``. Their average, in any order, errs by another T u X each.
    All that up to a factor of 1 + 2^-18. Raises `BadInput`, see `gradient_rounding`.
    """
    unit = 2.0**-53
    farthest = float(np.abs(problem.domain.centre).max()) + problem.domain.radius
    iterates = farthest / rate + steps * longest  # X / eta
    step = error + gradient_rounding(problem) + unit * (longest + iterates)
    return (1 + 2.0**-18) * 2 * steps * (step + unit * iterates) / sensitivity


class PhaseAverage(Stateful):
    """The average iterate of the current phase, NOT private before noise is added; models are (``dimension``,)."""

    remembered: ClassVar[tuple[str, ...]] = ("_sum", "_count")

    def __init__(self, dimension: int) -> None:
        self._sum, self._count = np.zeros(dimension), 0

    def restart(self) -> None:
        """Begin a new phase."""
        self._sum, self._count = np.zeros_like(self._sum), 0

    def add(self, x: Vector) -> None:
        """Add one more (p,) iterate."""
        self._sum += x
        self._count += 1

    @property
    def value(self) -> Vector:
        """The (p,) average of the iterates since the phase began."""
        return self._sum / self._count


@dataclass
class PhaseUnderWay(TestUnderWay):
    """The memory of a server that tests phases, of which each has a session; none of it is private before noise."""

    remembered: ClassVar[tuple[str, ...]] = ("halted",)
    parts: ClassVar[tuple[str, ...]] = ("average", *TestUnderWay.parts)
    average: PhaseAverage = field(kw_only=True)  # of its iterates
    halted: bool = False  # the test has failed already


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase: steps of fresh users each, then one release, if there is no test or the users passed it."""

    steps: int  # T
    learning_rate: float  # eta
    gradient: Callable[[Rows], Vector]  # from (B, p) rows of a step's users to the step's direction
    mechanism: GaussianMechanism  # of the average iterate
    test: ConcentrationTest | None = None  # of the users of all steps; None where gradients need none
    width: float = math.inf  # half-width of the clip of each coordinate of a user's gradient; infinite for no clip


def place_of(steps: Sequence[int], index: int) -> tuple[int, int]:
    """Return (number of the phase, step within it) of a round, for phases of so many rounds."""
    starts = [0, *accumulate(steps[:-1])]
    number = bisect_right(starts, index) - 1
    return number, index - starts[number]


@dataclass(frozen=True, kw_only=True)
class PhaseRounds(Scheme):
    """A `Scheme` of phases; ``new_memory`` makes a `PhaseUnderWay` where they are tested, else a `PhaseAverage`."""

    domain: Box  # of models
    sampler: DisjointBatches  # draws each round's cohort
    phases: tuple[Phase, ...]  # in order
    projects: bool  # iterates inside a phase stay in the domain; a linear loss needs it only at the release

    def place(self, index: int) -> tuple[int, int, Phase]:
        """Return (number of the phase, step within it, phase) of a round."""
        number, step = place_of([phase.steps for phase in self.phases], index)
        return number, step, self.phases[number]

    def ask(self, index: int, memory: PhaseAverage | PhaseUnderWay) -> Request | None:
        """See `Scheme.ask`; None for the rest of a phase that has failed its test."""
        _, step, _ = self.place(index)
        if step and isinstance(memory, PhaseUnderWay) and memory.halted:
            return None
        return Request(self.sampler.cohort(index), Computation("user_gradient"))

    def take(
        self, index: int, x: Vector, gathered: Gathered, memory: PhaseAverage | PhaseUnderWay, noise: Noise
    ) -> Step:
        """See `Scheme.take`; after a failed test, or a skipped end, the next phase starts where this one did."""
        number, step, phase = self.place(index)
        if gathered.skipped and (phase.test is not None or step + 1 == phase.steps):
            # A killed process may have ended the phase, whose other rounds' data a second end would release again.
            if isinstance(memory, PhaseUnderWay):
                memory.halted = True
            return Step(x, None, {"phase": number + 1, "lost": 1.0}, goes_back=True)
        average = memory if isinstance(memory, PhaseAverage) else memory.average
        if step == 0:
            average.restart()
        facts: dict[str, float] = {"phase": number + 1}
        if math.isfinite(phase.width):
            facts["width"] = phase.width
        if phase.test is not None:
            assert isinstance(memory, PhaseUnderWay)
            facts |= self._judged(phase, step, gathered.values, memory, noise)
        x = x - phase.learning_rate * phase.gradient(gathered.values)
        if self.projects:
            x = self.domain.project(x)
        average.add(x)
        if not facts.get("passed", True):
            return Step(x, None, facts, goes_back=True)
        if step + 1 < phase.steps:
            return Step(x, None, facts)
        opened = noise(0 if phase.test is None else 2)
        released = self.domain.project(phase.mechanism.release(average.value, opened))
        return Step(released, released, facts)

    def _judged(self, phase: Phase, step: int, rows: Rows, memory: PhaseUnderWay, noise: Noise) -> dict[str, float]:
        test = phase.test
        assert test is not None
        if step == 0:
            memory.session, memory.halted = test.session(noise(1)), False
        session, score = memory.session, concentration_score(rows, test.kernel)
        assert session is not None
        memory.halted = not session.observe(test.scored(score, len(rows)))
        facts = {"score_private": score, "threshold": test.threshold}
        if memory.halted or step + 1 == phase.steps:
            facts["passed"] = float(session.passed())
        return facts


def check_phase(phase: Phase, batch: int, dimension: int, smoothness: float) -> None:
    """Compare how far a user of one step can move a phase, on batches of this size, with its noise and its test.

    A move of the model changes distances between later users' gradients by twice the ``smoothness`` times the move.

    Raises:
        RunFailed: a user could move the average iterate, or later scores, by more.
    """
    test, gradient, clipped = phase.test, phase.gradient, math.isfinite(phase.width)
    assert clipped or isinstance(gradient, Estimator)
    of_gradient = gradient.sup_sensitivity(batch) if isinstance(gradient, Estimator) else 2 * phase.width / batch
    step, covered = phase.learning_rate * of_gradient, phase.mechanism.l2_sensitivity / math.sqrt(dimension)
    later = 2 * smoothness * step if phase.steps > 1 else 0.0
    if step > covered * _ROUNDED or (test is not None and later > test.movement * _ROUNDED):
        raise RunFailed(
            f"a user can move the models of a phase by {step:.6g} and distances of later gradients by {later:.6g}; the "
            f"noise is made for {covered:.6g}, the test for {0.0 if test is None else test.movement:.6g}: make both "
            "for the step size and the batch of the phase"
        )
    if test is not None and isinstance(gradient, Estimator) and test.kernel.radius > gradient.radius:
        raise RunFailed(
            f"users agree within {test.kernel.radius:g}, and the estimate is for {gradient.radius:g}: take one radius"
        )


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
    """Return the scheme of these phases, all tested or none, on batches of that size; ``plan`` has further fields.

    ``signal`` is the l2 distance that the last phase can go, and ``reach`` that of all; `PhaseRounds` has the rest.
    """
    p, test, missing = given.dimension, phases[0].test, given.problem.certificate.missing()
    for phase in phases:
        check_phase(phase, batch, p, given.problem.certificate.smoothness or 0.0)
    accountant = f"{ONE_GAUSSIAN if test is None else ACCOUNTANT}, parallel over disjoint users"
    # Scores, too, are exact sums over the batch, rounded once.
    price = replace(given.price_of(cost, accountant, ASSUMPTIONS), summands=batch, rounding=rounding)
    if missing:
        price = replace(price, guarantee=Guarantee.none(f"the loss lacks {', '.join(missing)}"))
    path = [
        NoisyPhase(
            steps=phase.steps,
            rate=phase.learning_rate,
            deviation=phase.mechanism.standard_deviation,
            longest=phase.width,
        )
        for phase in phases
    ]

    def memory() -> PhaseAverage | PhaseUnderWay:
        average = PhaseAverage(p)
        return average if test is None else PhaseUnderWay(test, average=average)

    steps = [phase.steps for phase in phases]
    return PhaseRounds(
        price=price,
        new_memory=memory,
        outline=Outline(
            rounds=sum(steps),
            cohort=batch,
            users_needed=users_needed,
            path=Phases(tuple(path), reach),
            noise=phases[-1].mechanism.standard_deviation * math.sqrt(p),
            signal=signal,
            numbers=numbers,
            **plan,
        ),
        domain=given.problem.domain,
        sampler=DisjointBatches(given.users, batch, 1, given.seed),
        phases=phases,
        projects=projects,
        stream=lambda index: place_of(steps, index)[0],  # the rounds of a phase share a number
    )
