"""Private means of sparse vectors by compressed sensing: noise on a few random measurements, then the least l1 norm.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 2, Theorem 3.4). How far a record moves the measurements is
bounded here by what is proven of the matrix, not by an unnamed constant.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve

from strategies.baselines.sparse_gradients.projection_mechanism import (
    ProjectionMechanism,
    SparseVectors,
    classical_multiplier,
    expected_error,
)
from userdp.accounting import check_positive
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.noise import NoiseSource
from userdp.randomness import stream

Matrix = NDArray[np.float64]
Isometry = Literal["paper", "kappa", "gershgorin"]

TOLERANCE = 1e-7
"""At which basis pursuit stops, relative to the largest entry."""

_PAPER_STRETCH = 1.5
"""The paper's upper isometry constant."""


@dataclass(frozen=True)
class SparseRecovery:
    """Noisy random measurements of the mean of n records, from which the mean is recovered by basis pursuit.

    *Formal guarantees.* (epsilon, delta)-DP, delta > 0. Unit: one record; relation: replace-one, n public. Assumption:
    records have l1 norm at most ``L sqrt(s)`` and l2 norm at most L; with "kappa" and "paper" they are means of
    s-sparse vectors of norm at most L. The matrix A has independent N(0, 1/m) entries and does not depend on data; it
    may be public. If ``||A v|| <= kappa ||v||`` for all s-sparse v, then ``||A z|| <= kappa L`` for every mean z of
    such vectors, so replacing a record moves ``A mean`` by at most ``2 kappa L / n``. Recovery is post-processing.

    - "gershgorin" takes ``kappa^2 = c^2 + (s - 1) mu`` from the matrix that was drawn, c the longest column and mu the
      largest inner product of two: ``||A z||^2 <= (c^2 - mu) ||z||_2^2 + mu ||z||_1^2``, and ``mu <= c^2``. It never
      fails, and all of delta goes to the noise. Takes O(m d^2).
    - "kappa" takes `stretch_bound`, which fails with probability at most ``delta / 2`` over A; the noise is for
      (epsilon, delta / 2).
    - "paper" is the paper's ``kappa = 3/2`` with classical noise for (epsilon, delta / 2). It is refused where
      `stretch_bound` does not confirm 3/2, and outside of Theorem 3.4's conditions.

    Two choices are made from public numbers alone. With ``d < m ln(m)^2`` measurements do not pay, and it is the
    projection mechanism (unless m is given). If the noise is expected to be as large as L, the answer is zero. Raises
    `BadInput`: a number out of range, or "paper" outside of its region.
    """

    records: int  # n, public
    dimension: int  # d
    members: SparseVectors  # s and L; s < d
    epsilon: float  # > 0, at most 1 for "paper"
    delta: float  # in (0, 1)
    isometry: Isometry = "gershgorin"  # how the stretch of the matrix is bounded
    measurements: int | None = None  # m, below d; None for the rule ``c n epsilon sqrt(s ln(d/s) / ln(1/delta))``
    measurement_factor: float = 1.0  # c of that rule; the paper leaves it open, and a smaller one costs less noise

    def __post_init__(self) -> None:
        if self.isometry not in ("paper", "kappa", "gershgorin"):
            raise BadInput(f"isometry = {self.isometry!r}: must be 'paper', 'kappa' or 'gershgorin'")
        if not 0 < self.delta < 1:
            raise BadInput(f"delta = {self.delta}: must lie strictly between 0 and 1; pure privacy has no recovery")
        if self.dimension <= self.members.sparsity:
            raise BadInput(f"dimension = {self.dimension}: must exceed the sparsity {self.members.sparsity}")
        check_positive(measurement_factor=self.measurement_factor)
        if self.measurements is not None and not 1 <= self.measurements < self.dimension:
            raise BadInput(f"measurements = {self.measurements}: must lie from 1 to d - 1 = {self.dimension - 1}")
        _ = self.projection  # refuses records and a budget out of range
        if self.isometry == "paper" and not self.low_dimensional:
            self._check_paper()

    @cached_property
    def count(self) -> int:
        """m, measurements."""
        if self.measurements is not None:
            return self.measurements
        s = self.members.sparsity
        spread = s * math.log(self.dimension / s) / math.log(1 / self.delta)
        return math.ceil(self.measurement_factor * self.records * self.epsilon * math.sqrt(spread))

    @property
    def low_dimensional(self) -> bool:
        """True if the projection mechanism takes the place of measurements."""
        return self.measurements is None and self.dimension < max(
            self.count * math.log(self.count) ** 2, self.count + 1
        )

    @cached_property
    def projection(self) -> ProjectionMechanism:
        """The mechanism of low dimensions."""
        calibration: Literal["classical", "analytic"] = "classical" if self.isometry == "paper" else "analytic"
        return ProjectionMechanism(self.records, self.members, self.epsilon, self.delta, calibration)

    def matrix(self, rng: np.random.Generator) -> Matrix:
        """(m, d) measurements; never drawn from a generator that also draws the noise."""
        return rng.normal(scale=1 / math.sqrt(self.count), size=(self.count, self.dimension))

    def stretch(self, matrix: Matrix) -> float:
        """kappa: how much longer a measured record can be than L, as the guarantee counts it."""
        if self.isometry == "gershgorin":
            return gershgorin_stretch(matrix, self.members.sparsity)
        if self.isometry == "kappa":
            return stretch_bound(self.count, self.dimension, self.members.sparsity, self.delta / 2)
        return _PAPER_STRETCH

    def mechanism(self, matrix: Matrix) -> GaussianMechanism:
        """The mechanism that adds noise to the measurements. Raises `BadInput` for a matrix of another shape."""
        if matrix.shape != (self.count, self.dimension):
            raise BadInput(f"the matrix must be ({self.count}, {self.dimension}), got shape {matrix.shape}")
        sensitivity = 2 * self.stretch(matrix) * self.members.norm / self.records
        if self.isometry == "paper":
            return GaussianMechanism(sensitivity, classical_multiplier(self.epsilon, self.delta / 2))
        delta = self.delta if self.isometry == "gershgorin" else self.delta / 2
        return GaussianMechanism.calibrated(sensitivity, self.epsilon, delta)

    def release(self, mean: ArrayLike, rng: np.random.Generator, noise: NoiseSource) -> Vector:
        """Release a mean (d,) of n records: (d,) of l1 norm at most ``L sqrt(s)`` and l2 norm at most L.

        ``rng`` draws the matrix, which may be public; it must not be the generator of the noise. Raises `BadInput`
        unless d finite numbers are given.
        """
        value = np.asarray(mean, dtype=np.float64)
        if value.shape != (self.dimension,) or not np.isfinite(value).all():
            raise BadInput(f"the mean must be {self.dimension} finite numbers, got shape {value.shape}")
        if self.low_dimensional:
            return self.without_measurements(value, noise)
        matrix = self.matrix(rng)
        return self.from_measurements(value, matrix, self.mechanism(matrix), noise)

    def without_measurements(self, mean: Vector, noise: NoiseSource) -> Vector:
        """(d,) the private mean where dimensions are low; zero where noise is expected to be as large as L."""
        if self.projection_error >= self.members.norm:
            return np.zeros(self.dimension)
        return self.projection.release(mean, noise)

    @property
    def projection_error(self) -> float:
        """Bound on the expected l2 error of the mechanism of low dimensions."""
        return expected_error(self.projection.mechanism, self.members, self.dimension)

    def from_measurements(
        self, mean: Vector, matrix: Matrix, mechanism: GaussianMechanism, noise: NoiseSource
    ) -> Vector:
        """(d,) the private mean from a matrix and its `mechanism`; zero where noise is expected to be as large as L."""
        if mechanism.standard_deviation * math.sqrt(self.count) >= self.members.norm:
            return np.zeros(self.dimension)
        return self.members.settled(basis_pursuit(matrix, mechanism.release(matrix @ mean, noise)))

    def _check_paper(self) -> None:
        s, d, m = self.members.sparsity, self.dimension, self.count
        most = s * math.log(d / s) / m**2
        least = least_measurements(d, s, self.delta / 2, _PAPER_STRETCH)
        if not (0 < self.epsilon <= 1 and self.delta < most and least <= m < d):
            raise BadInput(
                f"isometry = 'paper' with epsilon = {self.epsilon:g}, delta = {self.delta:g}, m = {m} measurements: "
                f"its proof takes 0 < epsilon <= 1, delta < s ln(d/s) / m^2 = {most:.3g} and {least} <= m < d = {d}; "
                "use isometry = 'gershgorin' or 'kappa'"
            )


def stretch_bound(measurements: int, dimension: int, sparsity: int, failure: float) -> float:
    """Upper isometry: ``||A v|| <= kappa ||v||`` for ALL s-sparse v, but with probability ``failure`` at most, over A.

    ``1 + sqrt(s/m) + sqrt(2 (s ln(e d / s) + ln(1 / failure)) / m)``: Davidson, Szarek 2001 for one support, and the
    union over at most ``(e d / s)^s`` supports. A is (m, d) with independent N(0, 1/m) entries. Raises `BadInput` for a
    number out of range.
    """
    if not (measurements >= 1 and 1 <= sparsity <= dimension and 0 < failure < 1):
        raise BadInput(
            f"measurements = {measurements}, dimension = {dimension}, sparsity = {sparsity}, failure = {failure}: out "
            "of range; it takes m >= 1, 1 <= s <= d and a probability"
        )
    supports = sparsity * math.log(math.e * dimension / sparsity)
    tail = math.sqrt(2 * (supports + math.log(1 / failure)) / measurements)
    return 1 + math.sqrt(sparsity / measurements) + tail


def least_measurements(dimension: int, sparsity: int, failure: float, stretch: float = _PAPER_STRETCH) -> int:
    """Fewest m for which `stretch_bound` is at most ``stretch``; `BadInput` unless that is finite and exceeds 1."""
    if not 1 < stretch < math.inf:
        raise BadInput(f"stretch = {stretch}: must exceed 1")
    return math.ceil(((stretch_bound(1, dimension, sparsity, failure) - 1) / (stretch - 1)) ** 2)


def gershgorin_stretch(matrix: Matrix, sparsity: int) -> float:
    """``sqrt(c^2 + (s - 1) mu)`` of a matrix: no s-sparse unit vector is measured to be longer.

    c is the longest column, mu the largest absolute inner product of two different ones. Memory is bounded by a block
    of columns.
    """
    squares = np.einsum("ij,ij->j", matrix, matrix)
    coherence, width = 0.0, max(1, 2**22 // matrix.shape[1])
    for start in range(0, matrix.shape[1] if sparsity > 1 else 0, width):
        columns = np.arange(start, min(start + width, matrix.shape[1]))
        products = matrix[:, columns].T @ matrix
        products[columns - start, columns] = 0.0
        coherence = max(coherence, float(np.abs(products).max()))
    return math.sqrt(float(squares.max()) + (sparsity - 1) * coherence)


def basis_pursuit(matrix: Matrix, target: Vector, iterations: int = 2000, tolerance: float = TOLERANCE) -> Vector:
    """A solution z of ``matrix z = target`` of (nearly) the least l1 norm, by Douglas-Rachford splitting.

    Each iterate returned solves the equations, whenever it stops; privacy rests on nothing that happens here.
    ``matrix`` (m, d) has full rank, m <= d. It stops when the two halves of a step differ by at most ``tolerance``,
    relative to the largest entry.
    """
    factor = cho_factor(matrix @ matrix.T)

    def onto_solutions(point: Vector) -> Vector:
        return np.asarray(point - matrix.T @ cho_solve(factor, matrix @ point - target))

    point = onto_solutions(np.zeros(matrix.shape[1]))
    shrinkage = float(np.abs(point).max(initial=0.0)) / 3  # any value converges; this one did so fastest
    solution = point
    for _ in range(iterations):
        solution = onto_solutions(point)
        reflected = 2 * solution - point
        sparse = np.copysign(np.maximum(np.abs(reflected) - shrinkage, 0.0), reflected)
        point = point + sparse - solution
        if np.abs(sparse - solution).max() <= tolerance * shrinkage:
            break
    return solution


_MATRIX = 3
"""Label of the streams that matrices come from."""


@dataclass(frozen=True)
class RecoveredMean:
    """A `MeanOracle` that measures a mean of b records with one matrix for each b (Algorithm 2 in Algorithm 3).

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
