"""The preparation from the stages of `Auto`: coordinates and a clip, found privately before a strategy begins."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strategies.auto.level import ClassShares, Counts, Level
from strategies.auto.measuring import Filled, doubts, linear_model, longest_gradient, measuring_stages, new_progress
from strategies.auto.progress import Progress
from strategies.auto.releases import Release, Shares
from strategies.auto.stages import Columns, Gradient, Lengths, Moments, Recentred, Sizes, Stage
from strategies.core.around import Preparation
from strategies.core.options import Found
from strategies.core.public_facts import PublicFacts
from strategies.core.step import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting import AnyLedger, Privacy
from userdp.arrays.types import Vector
from userdp.problems import Problem
from userdp.problems.in_coordinates import Coordinates
from userdp.sampling import WeightedBatches
from userdp.state import Stateful

_WEIGHTS: Mapping[type[Stage], float] = {
    Filled: 2.0,
    Counts: 0.6,
    Level: 3.0,
    ClassShares: 3.0,
    Columns: 5.0,
    Sizes: 1.0,
    Moments: 15.0,
    Lengths: 2.0,
}
"""Weights of the stages in the budget."""

_COORDINATES, _LENGTHS_ALONE = 0.3, 0.05
"""Shares of epsilon and delta for the preparation."""


@dataclass
class Measured(Stateful):
    """The memory of a preparation: the stages' progress, and the number of rounds left."""

    remembered: ClassVar[tuple[str, ...]] = ("left",)
    parts: ClassVar[tuple[str, ...]] = ("progress",)
    progress: Progress
    left: int


class LearnCoordinates(Preparation):
    """The stages of `Auto` before its first step; where coordinates cannot be learnt, `Filled` and `Lengths` alone.

    *Formal guarantees.* Those of `Preparation`: every round releases a mean over the public n of what `Auto` asks, with
    the noise of its share, so that all of them cost what one Gaussian of the multiplier costs, calibrated for replacing
    one user. Adding or removing one moves no sum by more (`strategies.auto.releases.Movement`).
    """

    memory: Measured

    @classmethod
    def share(cls, problem: Problem) -> float:
        """See `Preparation`; second moments take most of it."""
        return _LENGTHS_ALONE if linear_model(problem) is None else _COORDINATES

    def __init__(self, problem: Problem, public: PublicFacts, privacy: Privacy, seed: int) -> None:
        model, n = linear_model(problem), public.users
        self._model = model
        if model is None:
            found: tuple[Stage, ...] = (Lengths(Recentred(problem.domain), longest_gradient(problem)),)
        else:
            found = measuring_stages(model, Gradient(0, model.domain))
        self._stages: tuple[Stage, ...] = (Filled(), *found)
        weights = np.array([_WEIGHTS[type(stage)] for stage in self._stages])
        self.rounds = len(self._stages)
        sampler = WeightedBatches(n, n, self.rounds, seed, shares=tuple((weights / weights.sum()).tolist()))
        multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
        self.shares = Shares(sampler=sampler, noise_multiplier=multiplier)
        self._step = 1 / (problem.certificate.smoothness or 2.0)
        super().__init__(problem, public, privacy, seed)

    def new_memory(self) -> "Measured":
        """See `Preparation`."""
        return Measured(new_progress(self.problem, self._step), self.rounds)

    def _make_ledger(self) -> AnyLedger:
        return self.shares.sampler.ledger(self.shares.noise_multiplier, self.privacy)

    def numbers(self) -> dict[str, Any]:
        """See `ExtraRounds`."""
        return super().numbers() | {"filled_noise": self._doubt}

    def warnings(self) -> tuple[str, ...]:
        """See `ExtraRounds`."""
        return doubts(self._doubt)

    @property
    def _doubt(self) -> float:
        """The standard deviation of the noise on the share of people whose data can be used."""
        return self.shares.mechanism(0, Filled.movement).standard_deviation

    def request(self, index: int, initial: Vector) -> Request:
        """See `ExtraRounds`; a stage asks all users."""
        if index == 0:
            self.memory.progress.begin(initial)
        return Request(self.shares.sampler.cohort(index), self._stages[index].computation(self.memory.progress))

    def step(self, index: int, x: Vector, initial: Vector, gathered: Gathered, noise: Noise) -> Step:
        """See `ExtraRounds`."""
        progress, stage = self.memory.progress, self._stages[index]
        release = Release(self.shares, index, noise, stage.computation(progress))
        facts = stage.take(progress, gathered.values, release)
        self.memory.left -= 1
        return Step(progress.model, None, facts, constant=progress.released_constant)

    def found(self) -> tuple[Coordinates | None, Found]:
        """See `Preparation`; before the last round for a loss of the largest curvature that its bounds allow."""
        progress, left, p = self.memory.progress, self.memory.left, self.problem.dimension
        length = progress.length if not left else self._expected_length()
        if self._model is None:
            certificate = self.problem.certificate
            whole = certificate.smoothness is not None and certificate.strong_convexity == certificate.smoothness
            step = self._step
            return None, Found(length, p, step, step, self.public.min_samples, learnt=False, whole=whole)
        rate, d = 1 / progress.curvature, self._model.width
        seen = Coordinates(progress.start, progress.coordinates if not left else self._expected() * np.eye(d))
        # A sample between two classes has curvature 1/2, whatever the curvature of all samples together.
        own = (rate if self._model.outputs == 1 else 2.0) / d
        return seen, Found(length, p, rate, own, self.public.min_samples, learnt=True)

    def _expected(self) -> float:
        """Return the scale that makes second moments one, if they are equal and as large as bounds allow."""
        lies, p = self.problem.landscape, self.problem.dimension
        if lies is None or not 0 < lies.trace < math.inf:
            return 1.0
        return math.sqrt(p * self.memory.progress.curvature / lies.trace)

    def _expected_length(self) -> float:
        """Return the length of one sample's gradient in learnt coordinates; in plain ones, of the shared gradient."""
        longest, lies = longest_gradient(self.problem), self.problem.landscape
        if self._model is not None:
            return longest / math.sqrt(2.0)
        shared = math.inf if lies is None else math.sqrt(2 * lies.start * lies.trace / self.problem.dimension)
        return shared if 0 < shared < longest else longest
