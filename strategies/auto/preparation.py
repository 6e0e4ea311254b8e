"""The stages of `Auto` before its first step, and the preparation made of them: coordinates and a clip."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strategies.auto.column_coordinates import PAIRED, ColumnCoordinates
from strategies.auto.level import level
from strategies.auto.progress import CERTAIN, Progress
from strategies.auto.releases import Movement, Release, Shares
from strategies.auto.several_scores import split
from strategies.auto.stages import LEAST_WIDTH, Columns, Gradient, Lengths, Moments, Recentred, Sizes, Stage
from strategies.clipping.recentred_clipping import Centre, Geometry
from strategies.core.options import Found
from strategies.core.program import Preparation
from strategies.core.public_facts import PublicFacts
from strategies.core.results import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Privacy, RoundLedger
from userdp.arrays.types import Vector
from userdp.errors import RunFailed
from userdp.nodes.computations import Computation
from userdp.nodes.moments import by_period
from userdp.problems import Problem
from userdp.problems.in_coordinates import Coordinates
from userdp.problems.linear_scores import LinearScores
from userdp.sampling import WeightedBatches

FEWEST, MOST_NOISE = 0.1, 0.16
"""Usable share below which a run stops, and noise on that share above which it does not: with louder noise, a table of
which half can be used would stop too many runs."""

MOST_COLUMNS = 1000  # Most columns whose second moments are asked; problems of more use plain coordinates
_LARGEST_CELL, _LONGEST = 10.0, 10.0  # Bounds on cells and first gradients where nothing is declared


@dataclass(frozen=True)
class Filled(Stage, share=0.01, weight=2.0):
    """The usable share: the mean of the share of users who are heard and of their samples' usable share.

    Later rounds average over a user's usable samples, and a user without any is silent in all of them: it adds zero. A
    column of dates that is declared as one of numbers silences everybody, and the model would be trained on noise:
    where hardly anybody is heard, the run stops. Where some are, all later releases are made means over these: else
    columns would seem smaller, and gradients shorter, than they are.

    *Formal guarantees.* *Claim.* Whether the run stops, its message, what a report says of the share, and the share of
    users by which later releases are divided cost nothing beyond this round's share of the budget. *Why.* A user sends
    halves of the shares s and 1 - s of its samples that can be used and that cannot, or (-1/2, 0) without any of the
    former, by its own data alone. Squared norms are ``(1 - 2 s (1 - s)) / 4``, at most 1/4: replacing one moves the sum
    by 1 at most, adding or removing one by 1/2. The mean over the public n is released with noise for that. All else
    follows from the released numbers and their planned noise: 1/2 more than the first is the usable share, 1/2 more
    than both the share of users who are heard. Later rounds divide what they have released, with its noise:
    post-processing. A round that was charged before it stops is in the ledger, and no later one is released.

    A missing user adds zero: as if half of it were usable, and half of it heard. That stops no run; a user without a
    usable sample answers -1/2. A round that a killed process may have released tells nothing of who is heard.
    """

    movement: ClassVar[Movement] = Movement.of_ball(0.5)

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user answers which share of its samples can be used, and which not, or that none can."""
        return Computation("filled", "sum", 0.5)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`. Raises `RunFailed`: the share is below one in ten, and noise does not hide that."""
        released, deviation = release.mean(sums, self.movement)
        share = min(max(float(released[0]) + 0.5, 0.0), 1.0)
        if share < FEWEST and deviation <= MOST_NOISE:
            raise RunFailed(
                f"there is next to nothing to learn from: {100 * share:.2g} % can be used, the mean of the share of "
                f"people who are heard and of the share of their rows (released, with noise of {100 * deviation:.2g} "
                "%). Whoever is heard has a row in which every declared column and the target hold a cell that the "
                "model can use. No model was trained. Whoever holds the data sees in the private figures (data.json) "
                "which column's cells cannot be used: check ranges, dates, positive and levels against the table, and "
                "declare with impute what missing cells of features count as"
            )
        heard, error = float(released.sum()) + 0.5, math.sqrt(2.0) * deviation
        if heard + CERTAIN * error < 1 and not release.skipped:
            progress.heard = min(max(heard, CERTAIN * error), 1.0)
            progress.vague = error / progress.heard
        return {"filled_share": share, "noise_deviation": deviation}


def doubts(deviation: float) -> tuple[str, ...]:
    """Warn where the noise of `Filled`, of that standard deviation, is too loud to stop a run."""
    if deviation <= MOST_NOISE:
        return ()
    return (
        f"the noise on the share of people and rows that can be used ({deviation:.2g}) hides whether any can: the "
        "run does not stop where a column cannot be used, and would train on noise. Look at the table's private "
        "figures before",
    )


def linear_model(problem: Problem) -> LinearScores | None:
    """Return the problem if its coordinates can be learnt, else None."""
    if not isinstance(problem, LinearScores) or problem.width > MOST_COLUMNS:
        return None
    # Where phi'' has no bound, as for powers below 2, there is no whole step.
    return problem if np.isfinite(problem.first_hessian).all() else None


def measuring_stages(model: LinearScores, gradient: Gradient) -> tuple[Stage, ...]:
    """Return the stages that learn coordinates, and the length of users' gradients, queried like ``gradient``."""
    bound = min(model.feature_bound, model.feature_norm)
    largest_cell = max(1.0, bound) if math.isfinite(bound) else _LARGEST_CELL  # the intercept's 1 included
    return (
        *level(model),
        Columns(largest_cell),
        Sizes(),
        Moments(model.ridge, by_period(model) is not None),
        Lengths(gradient, longest_gradient(model)),
    )


def longest_gradient(problem: Problem) -> float:
    """Return an upper guess of the length of users' gradients at the start, in the coordinates."""
    model, bound = linear_model(problem), problem.certificate.gradient_norm
    if model is None:
        return _LONGEST if bound is None else bound
    slope = model.first_slope
    return math.sqrt(2 * model.width) * (slope if math.isfinite(slope) else _LONGEST)


def new_progress(problem: Problem, step: float, columns: ColumnCoordinates | None = None) -> Progress:
    """Return the memory before the first round; ``step`` is the step size in plain coordinates."""
    model, longest = linear_model(problem), longest_gradient(problem)
    curvature, across = split(np.eye(1) if model is None else model.first_hessian)
    geometry = Geometry.of(problem, step, None, LEAST_WIDTH, trains=False, least_radius=1e-9 * longest, resampling=None)
    centre = Centre(geometry, problem.dimension, longest)
    progress = Progress(problem.initial(), curvature, centre, columns, learns=model is not None, across=across)
    if columns is not None:
        progress.damping = PAIRED
    return progress


_COORDINATES, _LENGTHS_ALONE = 0.3, 0.05  # Shares of epsilon and delta for the preparation


class LearnCoordinates(Preparation):
    """The stages of `Auto` before its first step; where coordinates cannot be learnt, `Filled` and `Lengths` alone.

    *Formal guarantees.* Those of `Preparation`: every round releases a mean over the public n of what `Auto` asks, with
    the noise of its share, so that all of them cost what one Gaussian of the multiplier costs, calibrated for replacing
    one user. Adding or removing one moves no sum by more (`strategies.auto.releases.Movement`).
    """

    accountant: ClassVar[str] = WeightedBatches.accountant
    memory: Progress
    ledger: RoundLedger

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
        weights = np.array([stage.weight for stage in self._stages])
        self.rounds = len(self._stages)
        sampler = WeightedBatches(n, n, self.rounds, seed, shares=tuple((weights / weights.sum()).tolist()))
        multiplier = sampler.calibrate(privacy.epsilon, privacy.delta)
        self.shares = Shares(sampler=sampler, noise_multiplier=multiplier)
        self._step = 1 / (problem.certificate.smoothness or 2.0)
        self.ledger = RoundLedger(sampler, multiplier, privacy)
        self.memory = new_progress(problem, self._step)
        super().__init__(problem, public, privacy, seed)

    def numbers(self) -> dict[str, Any]:
        return super().numbers() | {"filled_noise": self._doubt}

    def warnings(self) -> tuple[str, ...]:
        return doubts(self._doubt)

    @property
    def _doubt(self) -> float:
        """The standard deviation of the noise on the share of people and rows that can be used."""
        return self.shares.mechanism(0, Filled.movement).standard_deviation

    def ask(self, index: int, constant: Vector) -> Request:
        """See `Rounds`; a stage asks all users."""
        if index == 0:
            self.memory.begin(constant)
        return Request(self.shares.sampler.cohort(index), self._stages[index].computation(self.memory))

    def take(self, index: int, x: Vector, constant: Vector, gathered: Gathered, noise: Noise) -> Step:
        progress, stage = self.memory, self._stages[index]
        release = Release(self.shares, index, noise, stage.computation(progress), progress.heard, gathered.skipped)
        facts = stage.take(progress, gathered.values, release)
        return Step(progress.model, None, facts, constant=progress.released_constant)

    def found(self) -> tuple[Coordinates | None, Found]:
        """See `Preparation`; before the last round for a loss of the largest curvature that its bounds allow."""
        progress, p, done = self.memory, self.problem.dimension, self.ledger.rounds == self.rounds
        length = progress.length if done else self._expected_length()
        if self._model is None:
            certificate = self.problem.certificate
            whole = certificate.smoothness is not None and certificate.strong_convexity == certificate.smoothness
            step = self._step
            return None, Found(length, p, step, step, self.public.min_samples, learnt=False, whole=whole)
        rate, d = 1 / progress.curvature, self._model.width
        seen = Coordinates(progress.start, progress.coordinates if done else self._expected() * np.eye(d))
        # A sample between two classes has curvature 1/2, whatever the curvature of all samples together.
        own = (rate if self._model.outputs == 1 else 2.0) / d
        # Whoever is silent adds zero to the mean gradient, so that it is shorter than that of those who are heard.
        return seen, Found(length, p, rate / progress.heard, own, self.public.min_samples, learnt=True)

    def _expected(self) -> float:
        """Return the scale that makes second moments one, if they are equal and as large as bounds allow."""
        lies, p = self.problem.landscape, self.problem.dimension
        if lies is None or not 0 < lies.trace < math.inf:
            return 1.0
        return math.sqrt(p * self.memory.curvature / lies.trace)

    def _expected_length(self) -> float:
        """Return the length of one sample's gradient in learnt coordinates; in plain ones, of the shared gradient."""
        longest, lies = longest_gradient(self.problem), self.problem.landscape
        if self._model is not None:
            return longest / math.sqrt(2.0)
        shared = math.inf if lies is None else math.sqrt(2 * lies.start * lies.trace / self.problem.dimension)
        return shared if 0 < shared < longest else longest
