"""The projection mechanism: a noisy mean of sparse vectors, projected on where such means lie.

Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 1, Lemma 3.1, Theorems 3.2 and 3.3). The projection is free
post-processing, and makes the error depend on the dimension d only through ``ln d`` as long as records are few.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.papers.sparse_gradients.projections import project_l1, project_l1_l2

Ball = Literal["l1", "l1l2"]


@dataclass(frozen=True)
class SparseVectors:
    """Vectors with at most ``sparsity`` non-zeros and l2 norm at most ``norm``.

    They, and all means of them, lie in the l1 ball of radius ``norm sqrt(sparsity)`` (Cauchy-Schwarz) and in the l2
    ball of radius ``norm``. What is proven here of records needs only those two bounds, so a record may also be a
    user's mean of sparse vectors, which is not sparse itself.

    Attributes:
        sparsity: s, at least 1.
        norm: L, > 0.
    """

    sparsity: int
    norm: float

    def __post_init__(self) -> None:
        if not (self.sparsity >= 1 and isinstance(self.sparsity, (int, np.integer))):
            raise BadInput(f"sparsity = {self.sparsity}: must be a whole number, at least 1")
        if not 0 < self.norm < math.inf:
            raise BadInput(f"norm = {self.norm}: must be a positive number")

    @property
    def l1_norm(self) -> float:
        """``L sqrt(s)``, which bounds the l1 norm."""
        return self.norm * math.sqrt(self.sparsity)

    def project(self, vector: ArrayLike, ball: Ball = "l1l2") -> Vector:
        """(d,) nearest point of the l1 ball, or of what it has in common with the l2 ball.

        Raises:
            BadInput: a number that is not finite, or another shape.
        """
        if ball == "l1":
            return project_l1(vector, self.l1_norm)
        return project_l1_l2(vector, self.l1_norm, self.norm)


def expected_error(
    mechanism: LaplaceMechanism | GaussianMechanism, members: SparseVectors, dimension: int, ball: Ball = "l1l2"
) -> float:
    """Bound on the expected l2 error of a noisy, projected mean.

    ``E ||xi||_2^2`` is d times the variance of an entry. ``E ||xi||_inf`` is at most ``b (1 + ln d)`` for Laplace noise
    of scale b (the largest of d exponentials has mean ``b (1 + 1/2 + ... + 1/d)``) and ``sigma sqrt(2 ln(2 d))`` for
    normal noise; the root of an expectation bounds that of a root.

    Raises:
        BadInput: a dimension below 1.
    """
    _check_dimension(dimension)
    if isinstance(mechanism, LaplaceMechanism):
        largest = mechanism.scale * (1 + math.log(dimension))
    else:
        largest = mechanism.standard_deviation * math.sqrt(2 * math.log(2 * dimension))
    length = mechanism.standard_deviation * math.sqrt(dimension)
    bound = min(length, math.sqrt(2 * members.l1_norm * largest))
    return bound if ball == "l1" else min(bound, 2 * members.norm)


def classical_multiplier(epsilon: float, delta: float) -> float:
    """``sqrt(2 ln(1.25 / delta)) / epsilon``, noise over l2 sensitivity (Dwork, Roth 2014, Theorem A.1).

    Raises:
        BadInput: epsilon above 1, for which the formula is not private in general, or a number out of range.
    """
    if not 0 < epsilon <= 1:
        raise BadInput(
            f"epsilon = {epsilon}: the classical calibration is proven for 0 < epsilon <= 1; use calibration = "
            "'analytic'"
        )
    if not 0 < delta < 1:
        raise BadInput(f"delta = {delta}: must lie strictly between 0 and 1, such as 1e-6")
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _check_dimension(dimension: int) -> None:
    if dimension < 1:
        raise BadInput(f"dimension = {dimension}: must be at least 1")
