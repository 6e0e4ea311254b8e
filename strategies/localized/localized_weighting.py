"""Localised weighting: steps of losses that are weighed once per phase, at its public start; noise once per phase."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies.core.about import About, Fact
from strategies.core.options import CLIP_WIDTH, Found, PreparedOptions
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.core.results import Noise, Step
from strategies.core.scheme import Outline, Scheme
from strategies.localized.phases import PHASE_ABOUT, PHASE_FACT, PHASE_MEANINGS, PhaseAverage, place_of
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Cost, calibrate_noise
from userdp.accounting.guarantee import ONE_GAUSSIAN
from userdp.arrays.types import Vector
from userdp.errors import MissingAssumption, PopulationTooSmall
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.covered import check_covered
from userdp.problems import Box
from userdp.problems.base import Problem
from userdp.sampling import DisjointBatches
from userdp.state import Stateful

_WIDTH = 1.5  # Longest weighted gradient over the users' typical steepness: most users keep weight 1
_LOW, _HIGH = 1 / 20, 5.0  # Least and largest steepness that is told from others, over the longest gradient before
_HELD_BACK = 0.8  # Of the reach: a phase that went further was stopped by it
_CLOSER = 0.5  # The next reach, over the way of a phase of several steps that was not stopped
_NOISY = 2.0  # Least reach, in lengths of the noise on the phase's start

ASSUMPTIONS = (
    "every user's answer is the weighted gradient of a convex loss: nodes are honest",
    "n and who takes part are public",
)


class Surroundings(Stateful):
    """The server's memory of a phase; all of it follows from releases but ``average``.

    Attributes:
        start: (p,) the model at which users are weighed.
        reach: l2 distance from the start that iterates keep.
        longest: l2 norm of a user's weighted gradient, at most.
        average: of the phase's later iterates.
    """

    remembered: ClassVar[tuple[str, ...]] = ("start", "reach", "longest")
    parts: ClassVar[tuple[str, ...]] = ("average",)

    def __init__(self, dimension: int, longest: float) -> None:
        self.start: Vector = np.zeros(dimension)
        self.reach, self.longest, self.average = 0.0, longest, PhaseAverage(dimension)

    def begin(self, start: Vector) -> None:
        """Begin a phase at a released model (p,)."""
        self.start = start.copy()
        self.average.restart()

    def within(self, x: Vector) -> Vector:
        """Return the nearest model (p,) within reach of the start."""
        distance = float(np.linalg.norm(x - self.start))
        return x if distance <= self.reach else self.start + (x - self.start) * (self.reach / distance)

    def end(self, released: Vector, noise: float, following: int) -> None:
        """Choose the reach of the next phase, of so many steps: none if users answer at its start alone.

        It follows from the released end (p,) of this one and the expected length of its noise.
        """
        moved = float(np.linalg.norm(released - self.start))
        share = _CLOSER if moved < _HELD_BACK * self.reach else 1.0
        self.reach = max(share * moved, _NOISY * noise) if following > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class WeightedPhases(Scheme):
    """A `Scheme` of phases; ``new_memory`` makes `Surroundings`.

    The first round of a phase measures how steep users' losses are about its start, and its later ones step.
    """

    domain: Box  # of released models
    sampler: DisjointBatches  # draws each round's cohort
    steps: tuple[int, ...]  # of each phase
    rate: float  # step size
    noise_multiplier: float  # of every release

    def place(self, index: int) -> tuple[int, int]:
        """Return (number of the phase, step within it, 0 for its measuring round) of a round."""
        return place_of([steps + 1 for steps in self.steps], index)

    def measured(self, memory: Surroundings) -> tuple[Computation, GaussianMechanism]:
        """Return the question of how steep losses are about the start, and the mechanism of its mean."""
        scales = {"reach": memory.reach, "low": _LOW * memory.longest, "high": _HIGH * memory.longest}
        asked = Computation("steepness", "sum", clip_norm=0.5, parameters=scales)
        return asked, GaussianMechanism(1 / self.sampler.batch, self.noise_multiplier)

    def stepped(self, memory: Surroundings) -> tuple[Computation, GaussianMechanism]:
        """Return the question of a step, and the mechanism of the phase's average iterate."""
        limits = {"longest": memory.longest, "reach": memory.reach, "curvature": 2 / self.rate}
        start = {"start": memory.start}
        asked = Computation("weighed_gradient", "sum", clip_norm=memory.longest, parameters=limits, arrays=start)
        moved = 2 * memory.longest * self.rate / self.sampler.batch
        return asked, GaussianMechanism(moved, self.noise_multiplier)

    def ask(self, index: int, memory: Surroundings) -> Request:
        """See `Scheme`. Raises `RunFailed`: a user could move a release by more than its noise is made for."""
        _, step = self.place(index)
        asked, mechanism = self.stepped(memory) if step else self.measured(memory)
        divisor = self.sampler.batch / (self.rate if step else 1.0)
        check_covered(asked, mechanism, divisor, self.price.guarantee.relation)
        return Request(self.sampler.cohort(index), asked)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Surroundings, noise: Noise) -> Step:
        """See `Scheme`; models inside a phase are not released."""
        number, step = self.place(index)
        if step == 0:
            memory.begin(x)
            _, mechanism = self.measured(memory)
            place = float(mechanism.release(gathered.values / self.sampler.batch, noise(0))[0]) + 0.5
            typical = _LOW * (_HIGH / _LOW) ** min(max(place, 0.0), 1.0)
            memory.longest *= _WIDTH * typical
            return Step(x, None, self._facts(number, memory))
        x = x - self.rate / self.sampler.batch * gathered.values
        if step < self.steps[number]:
            x = memory.within(x)  # where users answer next
        if 2 * step >= self.steps[number]:
            memory.average.add(x)
        if step < self.steps[number]:
            return Step(x, None, self._facts(number, memory))
        _, mechanism = self.stepped(memory)
        released = self.domain.project(mechanism.release(memory.average.value, noise(0)))
        facts = self._facts(number, memory) | {"noise_deviation": mechanism.standard_deviation}
        following = self.steps[number + 1] if number + 1 < len(self.steps) else 0
        memory.end(released, mechanism.standard_deviation * math.sqrt(len(x)), following)
        return Step(released, released, facts)

    def _facts(self, number: int, memory: Surroundings) -> dict[str, float]:
        return {"phase": number + 1, "reach": memory.reach, "longest": memory.longest}


class LocalizedWeighting(Recipe, PreparedOptions):
    """Phases of steps on fresh users; each user's loss is weighed once, at the phase's public start.

    A phase starts at a released model. The users of its first round answer how steep their losses are about it: the
    length of their gradient there, plus their largest curvature times the phase's reach. From the released typical
    steepness follows how long a weighted gradient may be. Users of later rounds send theirs at the current iterate, of
    ``w_i f_i`` with a weight ``w_i <= 1`` that holds it to that length everywhere within reach (`weighed_gradient`,
    with the proof). Iterates at which users answer keep within reach, and the average of the later half is released
    with noise. The first phase is one step, the others have once, twice, four times ``steps``. A single step needs no
    reach; others reach as far as the phase before went, or half as far if it had several steps and its own reach did
    not stop it. So noise falls with the spread of users' gradients about the optimum.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, phase release, for convex losses whose curvature a user
    can bound; no ridge, no bound on gradients and no smoothness need be declared. *Why.* Unit: one whole user;
    relation: replace-one; n public. A user is in one batch of B users of one round. Given earlier releases, the start,
    the reach, the longest gradient L and the step size eta are constants.

    1. *The user's round.* If it measures, one number in [-1/2, 1/2] moves their mean by at most 1/B, which the noise is
       calibrated to. If it is a step, neighbouring runs are at the same iterate, within reach of the start; a weighted
       gradient there is no longer than L, so the next iterate moves by at most ``2 eta L / B``.
    2. *Later steps* have the same users, and are 1-Lipschitz in l2, however users differ: weighted losses are convex
       with a curvature of at most ``2 / eta``, as their weights do not depend on the iterate; and the projection on the
       ball about the start enlarges no distance.
    3. *The release.* So each iterate of the phase, and their average, moves by at most ``2 eta L / B`` in l2, which the
       Gaussian noise is calibrated to. Earlier releases do not depend on the user, later ones only through this one.
       Each of the disjoint batches meets one Gaussian of the same multiplier: parallel composition.

    No test is needed, and no agreement of users: those who are steep or curved lose weight, and the model leans to the
    others. Iterates inside a phase are NOT private: the guarantee is against observers of the released models, not
    against the participating nodes nor the server, and every node must answer honestly.

    *Assumptions.* The loss is convex, and its class bounds users' curvatures (`Problem.user_curvatures`); others are
    refused. Nodes are honest. n and who takes part are public.
    """

    about: ClassVar[About] = About(
        **{
            **PHASE_ABOUT,
            "needs": "convex loss whose curvature a user can bound, with or without a ridge; honest nodes",
            "with_secure_noise": "",
        },
        name="localized_weighting",
        summary_line="steps on fresh users, weighed once per phase so that they are neither steep nor curved; noise "
        "once per phase",
        family="phases",
        protocol=2,
        cost="node O(N d^2): two gradients and a curvature a user; one sum of d numbers up; server O(K d)",
        paper="ours, in the localisation of Ghazi, Kumar, Liu, Manurangsi 2025",
        without_secure_noise="how float64 rounds a user's weighted gradient, and so how far later steps move two "
        "models, has no proven bound",
        example={"phases": 2, "steps": 2},
        meanings={
            **PHASE_MEANINGS,
            "steps": "steps of each phase, after a round that measures",
            "clip_norm": "expected length of users' gradients at the initial model",
            "noise_deviation": "standard deviation of the first release's noise, if that length is right",
        },
        notes={
            "phase": PHASE_FACT,
            "reach": Fact("noised", "l2 distance from the phase's start that iterates keep, from released models"),
            "longest": Fact("noised", "l2 norm of a user's weighted gradient, at most, from the released steepness"),
        },
    )

    clip_norm: float = Field(1.0, gt=0)
    """A typical l2 norm of users' gradients at the initial model, from which the first phase measures how steep losses
    are; right to a factor of five (utility only)."""
    phases: int = Field(4, ge=1, le=32, description="Releases.")
    steps: int = Field(
        1, ge=1, description="Steps of the second phase; the first has one, each later one twice as many."
    )
    learning_rate: float | None = Field(None, gt=0)
    """Step size; default 1 / smoothness, or 0.5. Losses more curved than 2 / learning_rate lose weight, so it may suit
    typical users rather than the worst."""

    def found(self, found: Found) -> dict[str, float]:
        rate = {"learning_rate": found.rate} if found.learnt else {}
        return {"clip_norm": CLIP_WIDTH * found.length, **rate}

    def scheme(self, given: Given) -> WeightedPhases:
        _check(given.problem, given.strategy)
        steps = (1, *(self.steps << phase for phase in range(self.phases - 1)))
        rounds, n, p = sum(steps) + self.phases, given.users, given.dimension
        if n < rounds:
            raise PopulationTooSmall(
                f"data.users = {n}: {self.phases} phases take {rounds} rounds, each of one fresh user at least; use "
                "fewer strategy.phases or strategy.steps, or bring more users"
            )
        cost = Cost(noise_multiplier=calibrate_noise(given.privacy.epsilon, given.privacy.delta, 1))
        rate, batch = self.learning_rate or given.default_step, n // rounds
        first = GaussianMechanism(2 * self.clip_norm * rate / batch, cost.noise_multiplier)
        price = given.price_of(cost, f"{ONE_GAUSSIAN}, parallel over disjoint users", ASSUMPTIONS)
        return WeightedPhases(
            price=replace(price, summands=batch),
            new_memory=partial(Surroundings, p, self.clip_norm),
            outline=Outline(
                rounds=rounds,
                cohort=batch,
                users_needed=rounds,
                noise=first.standard_deviation * math.sqrt(p),
                signal=self.clip_norm * rate,
                numbers={
                    "batch": batch,
                    "phases": self.phases,
                    "steps": ", ".join(map(str, steps)),
                    "learning_rate": rate,
                    "clip_norm": self.clip_norm,
                    "noise_multiplier": cost.noise_multiplier,
                    "noise_deviation": first.standard_deviation,
                },
            ),
            domain=given.problem.domain,
            sampler=DisjointBatches(n, batch, 1, given.seed),
            steps=steps,
            rate=rate,
            noise_multiplier=cost.noise_multiplier,
        )


def _check(problem: Problem, strategy: str) -> None:
    """Raise `MissingAssumption` unless the loss is convex and bounds users' curvatures."""
    needed = {"convexity": problem.certificate.convex, "a bound on users' curvatures": problem.bends_boundedly}
    if lacking := " and ".join(name for name, holds in needed.items() if not holds):
        raise MissingAssumption(
            f"{strategy} needs a convex loss with a bound on each user's curvature; problem.kind = {problem.name!r} "
            f"lacks {lacking}. Choose a logistic, softmax or least squares regression on dense features, or a strategy "
            "that needs no certificate (recentred_clipping, dp_fed_sgd)"
        )
