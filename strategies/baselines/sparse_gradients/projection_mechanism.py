"""The projection mechanism: a noisy mean of sparse vectors, projected on where such means lie.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 1, Lemma 3.1, Theorems 3.2 and 3.3). The projection is free
post-processing, and makes the error depend on the dimension d only through ``ln d`` as long as records are few.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from userdp.accounting import check_delta, check_least, check_positive
from userdp.arrays import Vector, project_l1, project_l1_l2
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.noise import NoiseSource

Ball = Literal["l1", "l1l2"]
Calibration = Literal["classical", "analytic"]


@dataclass(frozen=True)
class SparseVectors:
    """Vectors with at most ``sparsity`` non-zeros and l2 norm at most ``norm``.

    They, and all means of them, lie in the l1 ball of radius ``norm sqrt(sparsity)`` (Cauchy-Schwarz) and in the l2
    ball of radius ``norm``. What is proven here of records needs only those two bounds, so a record may also be a
    user's mean of sparse vectors, which is not sparse itself.
    """

    sparsity: int  # s, at least 1
    norm: float  # L, > 0

    def __post_init__(self) -> None:
        if not (self.sparsity >= 1 and isinstance(self.sparsity, (int, np.integer))):
            raise BadInput(f"sparsity = {self.sparsity}: must be a whole number, at least 1")
        check_positive(norm=self.norm)

    @property
    def l1_norm(self) -> float:
        """``L sqrt(s)``, which bounds the l1 norm."""
        return self.norm * math.sqrt(self.sparsity)

    def project(self, vector: ArrayLike, ball: Ball = "l1l2") -> Vector:
        """(d,) nearest point of the l1 ball, or of its part in the l2 ball; `BadInput` if not (d,) and finite."""
        if ball == "l1":
            return project_l1(vector, self.l1_norm)
        return project_l1_l2(vector, self.l1_norm, self.norm)

    def settled(self, recovered: Vector) -> Vector:
        """Return a recovered mean: zero if it is longer than 2 L, otherwise projected on the set of means.

        Neither step moves it away from a mean in that set: a vector longer than 2 L is more than L from it, and zero is
        not; projections move no two points apart.
        """
        return np.zeros_like(recovered) if np.linalg.norm(recovered) > 2 * self.norm else self.project(recovered)


def expected_error(
    mechanism: LaplaceMechanism | GaussianMechanism, members: SparseVectors, dimension: int, ball: Ball = "l1l2"
) -> float:
    """Bound on the expected l2 error of a noisy, projected mean.

    ``E ||xi||_2^2`` is d times the variance of an entry. ``E ||xi||_inf`` is at most ``b (1 + ln d)`` for Laplace noise
    of scale b (the largest of d exponentials has mean ``b (1 + 1/2 + ... + 1/d)``) and ``sigma sqrt(2 ln(2 d))`` for
    normal noise; the root of an expectation bounds that of a root.

    Raises `BadInput`: a dimension below 1.
    """
    check_least("dimension", dimension)
    if isinstance(mechanism, LaplaceMechanism):
        largest = mechanism.scale * (1 + math.log(dimension))
    else:
        largest = mechanism.standard_deviation * math.sqrt(2 * math.log(2 * dimension))
    length = mechanism.standard_deviation * math.sqrt(dimension)
    bound = min(length, math.sqrt(2 * members.l1_norm * largest))
    return bound if ball == "l1" else min(bound, 2 * members.norm)


def classical_multiplier(epsilon: float, delta: float) -> float:
    """``sqrt(2 ln(1.25 / delta)) / epsilon``, noise over l2 sensitivity (Dwork, Roth 2014, Theorem A.1).

    Raises `BadInput`: epsilon above 1, for which the formula is not private in general, or a number out of range.
    """
    if not 0 < epsilon <= 1:
        raise BadInput(
            f"epsilon = {epsilon}: the classical calibration is proven for 0 < epsilon <= 1; use calibration = "
            "'analytic'"
        )
    check_delta(delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@dataclass(frozen=True)
class ProjectionMechanism:
    """Laplace or Gaussian noise on the mean of n records, then a projection.

    *Formal guarantees.* Unit: one record; relation: replace-one, n public. Assumption: each record has l1 norm at most
    ``L sqrt(s)`` and l2 norm at most L, which clips see to. Replacing one moves the mean by at most ``2
    L sqrt(s) / n`` in l1 and ``2 L / n`` in l2. With delta = 0 the Laplace mechanism is epsilon-DP; with delta > 0 the
    Gaussian mechanism is (epsilon, delta)-DP. The projection looks at nothing else. Real-valued noise is assumed.

    *Accuracy.* With K the set projected on, z the true mean, z' what is released and xi the noise, ``||z' - z||_2^2 <=
    <xi, z' - z> <= ||xi||_inf 2 L sqrt(s)`` since z lies in K (Lemma 3.1), for ANY xi; and the error is at most
    ``||xi||_2``, since projections move no two points apart. With ball "l1l2" it is also at most 2 L.

    Raises `BadInput` for a number out of range, or epsilon above 1 with the classical calibration.
    """

    records: int  # n, public
    members: SparseVectors  # s and L
    epsilon: float  # > 0
    delta: float  # in [0, 1); 0 for pure privacy
    # "analytic" adds the least Gaussian noise (Balle, Wang 2018); "classical" is the paper's deviation ``2 L sqrt(2
    # ln(1.25 / delta)) / (n epsilon)``, which is private for epsilon at most 1 only
    calibration: Calibration = "analytic"
    ball: Ball = "l1l2"  # "l1" projects on the l1 ball alone, as the paper does; "l1l2" also on the l2 ball

    def __post_init__(self) -> None:
        if self.records < 1:
            raise BadInput(f"records = {self.records}: there must be at least one")
        check_positive(epsilon=self.epsilon)
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
        """The mechanism that adds the noise."""
        if self.delta == 0:
            return LaplaceMechanism(2 * self.members.l1_norm / self.records, self.epsilon)
        sensitivity = 2 * self.members.norm / self.records
        if self.calibration == "classical":
            return GaussianMechanism(sensitivity, classical_multiplier(self.epsilon, self.delta))
        return GaussianMechanism.calibrated(sensitivity, self.epsilon, self.delta)

    def release(self, mean: ArrayLike, noise: NoiseSource) -> Vector:
        """Release a mean (d,) of n records: (d,) in the ball. Raises `BadInput` unless d finite numbers are given."""
        noisy = self.mechanism.release(np.asarray(mean, dtype=np.float64), noise)
        return self.members.project(noisy, self.ball)
