"""Recovery from random measurements as an estimate of means of batches of all sizes.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 2 in Algorithm 3, as printed).
"""

from dataclasses import dataclass
from functools import lru_cache

from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.recovery import Matrix, SparseRecovery
from userdp.arrays import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.noise import NoiseSource
from userdp.randomness import stream

_MATRIX = 3
"""Label of the streams that matrices come from."""


@dataclass(frozen=True)
class RecoveredMean:
    """A `MeanOracle` that measures a mean of b records with one matrix for each b.

    *Formal guarantees.* Unit: a record; relation: replace-one within the batch, whose size is public. Assumption:
    records have l1 norm at most L sqrt(s) and l2 norm at most L, which clips see to; sparsity is not assumed. One call
    is (epsilon, delta)-DP, by `SparseRecovery` with the stretch that is bounded of the matrix itself ("gershgorin"), at
    every size: where there are too few records for measurements it is the projection mechanism, or looks at nothing.
    The matrices follow from public numbers and the seed; they may be known, and one may serve many calls, since the
    noise is drawn anew.

    *Accuracy.* No constant of the recovery's error is proven, so `squared_error` has only what holds of any two points
    of the ball of radius L where measurements are used, ``4 L^2``; the bound of the projection mechanism, or ``L^2``
    for zero, elsewhere.

    Raises `BadInput` for an attribute out of range.
    """

    dimension: int  # d, above s
    members: SparseVectors  # s and L
    epsilon: float  # of one call, > 0
    delta: float  # of one call, in (0, 1)
    seed: int  # of the matrices

    def __post_init__(self) -> None:
        self.recovery(1)  # refuses what is out of range

    @property
    def largest_norm(self) -> float:
        """L."""
        return self.members.norm

    def recovery(self, size: int) -> SparseRecovery:
        """Return the recovery for a mean of ``size`` records."""
        return SparseRecovery(size, self.dimension, self.members, self.epsilon, self.delta)

    def __call__(self, mean: Vector, size: int, noise: NoiseSource) -> Vector:
        """See `MeanOracle`."""
        recovery = self.recovery(size)
        if recovery.low_dimensional:
            return recovery.without_measurements(mean, noise)
        return recovery.from_measurements(mean, *_measurements(recovery, self.seed), noise)

    def squared_error(self, size: int) -> float:
        """See *Accuracy*."""
        recovery, norm = self.recovery(size), self.members.norm
        if not recovery.low_dimensional:
            return 4 * norm**2
        return min(norm, recovery.projection_error) ** 2


@lru_cache(maxsize=32)
def _measurements(recovery: SparseRecovery, seed: int) -> tuple[Matrix, GaussianMechanism]:
    """The matrix of that many records, and the noise that its stretch takes."""
    matrix = recovery.matrix(stream(seed, "sampling", _MATRIX, recovery.records))
    return matrix, recovery.mechanism(matrix)
