"""Private means of sparse vectors by projection, on plain arrays (Algorithm 1)."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.arrays.sparse_rows import clip_rows, finite_rows
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.noise import NoiseSource
from userdp.papers.sparse_gradients.projection_mechanism import (
    Ball,
    SparseVectors,
    _check_dimension,
    classical_multiplier,
)

Calibration = Literal["classical", "analytic"]


def enforce_membership(rows: ArrayLike, sparsity: int, norm: float) -> NDArray[np.float64]:
    """Rows with their s largest entries kept, scaled down to l2 norm at most L: privacy then rests on no promise.

    Rows that hold a NaN or an infinity become zero. Rows that were members stay as they are. What becomes of a row
    depends on that row alone.

    Args:
        rows: (n, d).
        sparsity: s, at least 1.
        norm: L, > 0.

    Raises:
        BadInput: rows of another shape, or a number out of range.
    """
    members = SparseVectors(sparsity, norm)
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2:
        raise BadInput(f"rows must be a matrix (n, d), got shape {values.shape}")
    values, _ = finite_rows(values)
    if members.sparsity < values.shape[1]:
        kept = np.argpartition(-np.abs(values), members.sparsity - 1, axis=1)[:, : members.sparsity]
        thinned = np.zeros_like(values)
        np.put_along_axis(thinned, kept, np.take_along_axis(values, kept, axis=1), axis=1)
        values = thinned
    return clip_rows(values, members.norm)


@dataclass(frozen=True)
class ProjectionMechanism:
    """Laplace or Gaussian noise on the mean of n records, then a projection.

    *Formal guarantees.* Unit: one record; relation: replace-one, n public. Assumption: each record has l1 norm at most
    ``L sqrt(s)`` and l2 norm at most L, which `enforce_membership` sees to. Replacing one moves the mean by at most ``2
    L sqrt(s) / n`` in l1 and ``2 L / n`` in l2. With delta = 0 the Laplace mechanism is epsilon-DP; with delta > 0 the
    Gaussian mechanism is (epsilon, delta)-DP. The projection looks at nothing else. Real-valued noise is assumed.

    *Accuracy.* With K the set projected on, z the true mean, z' what is released and xi the noise, ``||z' - z||_2^2 <=
    <xi, z' - z> <= ||xi||_inf 2 L sqrt(s)`` since z lies in K (Lemma 3.1), for ANY xi; and the error is at most
    ``||xi||_2``, since projections move no two points apart. With ball "l1l2" it is also at most 2 L.

    Attributes:
        records: n, public.
        members: s and L.
        epsilon: > 0.
        delta: in [0, 1); 0 for pure privacy.
        calibration: "analytic" adds the least Gaussian noise (Balle, Wang 2018); "classical" is the paper's deviation
            ``2 L sqrt(2 ln(1.25 / delta)) / (n epsilon)``, which is private for epsilon at most 1 only.
        ball: "l1" projects on the l1 ball alone, as the paper does; "l1l2" also on the l2 ball.

    Raises:
        BadInput: a number out of range, or epsilon above 1 with the classical calibration.
    """

    records: int
    members: SparseVectors
    epsilon: float
    delta: float
    calibration: Calibration = "analytic"
    ball: Ball = "l1l2"

    def __post_init__(self) -> None:
        if self.records < 1:
            raise BadInput(f"records = {self.records}: there must be at least one")
        if not 0 < self.epsilon < math.inf:
            raise BadInput(f"epsilon = {self.epsilon}: must be a positive number")
        if not 0 <= self.delta < 1:
            raise BadInput(f"delta = {self.delta}: must lie in [0, 1); 0 for pure privacy")
        for name, value, known in (
            ("calibration", self.calibration, ("analytic", "classical")),
            ("ball", self.ball, ("l1l2", "l1")),
        ):
            if value not in known:
                raise BadInput(f"{name} = {value!r}: must be {' or '.join(map(repr, known))}")
        _ = self.mechanism  # a calibration that cannot be is refused here

    @property
    def mechanism(self) -> LaplaceMechanism | GaussianMechanism:
        """What adds the noise."""
        if self.delta == 0:
            return LaplaceMechanism(2 * self.members.l1_norm / self.records, self.epsilon)
        sensitivity = 2 * self.members.norm / self.records
        if self.calibration == "classical":
            return GaussianMechanism(sensitivity, classical_multiplier(self.epsilon, self.delta))
        return GaussianMechanism.calibrated(sensitivity, self.epsilon, self.delta)

    def release(self, mean: ArrayLike, noise: NoiseSource) -> Vector:
        """The private mean.

        Args:
            mean: (d,) mean of n records.
            noise: where noise comes from.

        Returns:
            (d,) in the ball.

        Raises:
            BadInput: the mean holds a NaN or an infinity, or has another shape.
        """
        noisy = self.mechanism.release(np.asarray(mean, dtype=np.float64), noise)
        return self.members.project(noisy, self.ball)

    def error_bound(self, dimension: int, failure: float) -> float:
        """What the l2 error exceeds with probability at most ``failure``.

        Raises:
            BadInput: a dimension below 1, or a failure probability outside (0, 1).
        """
        bound = error_bound(self.mechanism, self.members, dimension, failure)
        return bound if self.ball == "l1" else min(bound, 2 * self.members.norm)


def error_bound(
    mechanism: LaplaceMechanism | GaussianMechanism, members: SparseVectors, dimension: int, failure: float
) -> float:
    """Bound on the l2 error of a noisy, projected mean, which fails with probability at most ``failure``.

    The smaller of a bound on ``||xi||_2`` and of ``sqrt(2 L sqrt(s) r)``, r a bound on ``||xi||_inf``. Laplace noise of
    scale b: ``r = b ln(d / beta)``, by the union bound, and ``||xi||_2 <= r sqrt(d)``. Normal noise of deviation sigma:
    ``r = sigma sqrt(2 ln(2 d / beta))`` and ``||xi||_2 <= sigma (sqrt(d) + sqrt(2 ln(1 / beta)))``. At the paper's
    scales these are Theorem 3.2, with constant 2, and Theorem 3.3, with constant ``2 sqrt(2)``, for both terms.

    Raises:
        BadInput: a dimension below 1, or a failure probability outside (0, 1).
    """
    _check_dimension(dimension)
    if not 0 < failure < 1:
        raise BadInput(f"failure = {failure}: must lie strictly between 0 and 1, such as 0.05")
    if isinstance(mechanism, LaplaceMechanism):
        largest = mechanism.scale * math.log(dimension / failure)
        length = largest * math.sqrt(dimension)
    else:
        deviation = mechanism.standard_deviation
        largest = deviation * math.sqrt(2 * math.log(2 * dimension / failure))
        length = deviation * (math.sqrt(dimension) + math.sqrt(2 * math.log(1 / failure)))
    return min(length, math.sqrt(2 * members.l1_norm * largest))
