"""The private part of runs that a privacy filter ends: one round's estimate, and the choice among several runs."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.core.scheme import Scheme
from strategies.sparse.stopped_rounds import StoppedRounds
from userdp.arrays.sparse_rows import clip_rows
from userdp.arrays.types import Vector
from userdp.mechanisms import ExponentialMechanism
from userdp.noise import NoiseSource
from userdp.papers.sparse_gradients.bias_reduction import Draw, MeanOracle, bias_reduced_gradient
from userdp.papers.sparse_gradients.projection_mechanism import SparseVectors
from userdp.papers.sparse_gradients.stopped_sgd import Output


@dataclass(frozen=True, kw_only=True)
class StoppedScheme(Scheme):
    """A `Scheme` of bias-reduced gradients.

    Attributes:
        sampler: who takes part in each round, and how many rounds there are.
        oracle: of one noisy mean of clipped gradients.
        members: s and L, which gradients are clipped to.
        l1_norm: l1 norm that they are clipped to as well, where the oracle needs it.
        choice_epsilon: of the choice among several runs.
        second_moment: bound on that of an estimate.
        length: rounds that three runs in four have.
        rate: step size.
    """

    sampler: StoppedRounds
    oracle: MeanOracle
    members: SparseVectors
    l1_norm: float | None
    choice_epsilon: float
    second_moment: float
    length: int
    rate: float

    @property
    def noise(self) -> float:
        """The bound on a run's error, per unit of the distance from its start to the minimiser."""
        return math.sqrt(self.second_moment / self.length)

    def estimate(self, draw: Draw, rows: NDArray[np.float64], noise: NoiseSource) -> Vector:
        """The private gradient estimate of a draw, from the rows of its users."""
        # Clipped again: the sensitivity must not rest on what other nodes say that they have clipped.
        rows = clip_rows(rows, self.members.norm)
        if self.l1_norm is not None:
            rows = clip_rows(rows, self.l1_norm, order=1)
        users = draw.records
        batch, single = rows[np.searchsorted(users, draw.batch)], rows[np.searchsorted(users, draw.single)]
        chance = float(self.sampler.budget.levels.chances[draw.level])
        return bias_reduced_gradient(batch, single, chance, self.oracle, noise)

    def reach(self, models: Vector, start: Vector) -> Vector:
        """(k,): how far a user's loss at each of (k, p) models may be told to lie from that at the start."""
        return np.asarray(self.members.norm * np.linalg.norm(models - start, axis=1))

    def choose(self, changes: NDArray[np.float64], reach: Vector, noise: NoiseSource) -> int:
        """Which of k models is taken, from (n, k) changes of users' losses, which are held to their reach again."""
        longest = float(reach.max())
        if longest == 0:
            return 0  # all are the start
        scores = -np.clip(changes, -reach, reach).sum(axis=0)
        return ExponentialMechanism(2 * longest, self.choice_epsilon).choose(scores, noise)


def run_warnings(scheme: StoppedScheme, output: Output, *, bounded: bool) -> tuple[str, ...]:
    """What is worth saying of a run that gives this output, in a bounded domain or not."""
    norm, noise, runs, warnings = scheme.members.norm, scheme.noise, scheme.sampler.budget.runs, []
    rounds = scheme.sampler.steps // runs
    if noise >= norm:
        warnings.append(
            f"the error bound of this run, {noise / norm:.3g} L D, is no better than the L D that an untrained "
            f"model can be off by (L = {norm:.3g}, D the distance from the start to the minimiser): it takes many "
            "more users, or another strategy, such as dp_fed_sgd"
        )
    if rounds < scheme.length:
        warnings.append(
            f"large cohorts end {'this run' if runs == 1 else 'runs'} after {rounds} rounds, where three in four have "
            f"more than {scheme.length}"
        )
    if output == "random" and bounded:
        warnings.append("the bound on the gradient of a random iterate is proven for unbounded domains only")
    return tuple(warnings)
