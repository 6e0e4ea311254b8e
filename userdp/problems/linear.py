"""The linear loss: the hard instance of user-level private optimisation."""

import numpy as np

from userdp.arrays.types import Vector
from userdp.problems.bounds import positive
from userdp.problems.separable import BoundedSettings, MeanSufficient


class Linear(MeanSufficient):
    """``f(x; z) = -<x, z>``, z in ``[-bound, bound]^d``: find the sign of every mean.

    The loss of the lower bound of Ghazi, Kumar, Liu, Manurangsi, "Linear-Time User-Level DP-SCO via Robust Statistics"
    (2025), Section 4: the gradient ``-z`` depends on no model, so only the accuracy of means matters. The domain
    ``|x_j| <= radius`` is finite, since a linear loss has no minimum on an infinite one.

    Formal guarantees:
        A1 to A4 with ``phi' = -z_j``, so ``G = bound``, and a zero Hessian, so ``beta = 0``: steps of any size are
        1-Lipschitz. See `Separable`. The computed gradient is the negative of the user's computed mean, exactly.
    """

    name = "linear"
    summary = "the paper's hard instance: signs of means, a loss without curvature"

    def __init__(self, dimension: int, bound: float, radius: float = 1.0) -> None:
        bound = positive("problem.bound", bound)
        radius = positive("problem.radius", radius)
        super().__init__(
            dimension, -bound, bound, radius, slope=bound, curvature=0.0, strong_convexity=0.0, start=bound * radius
        )
        self.gradient_rounding = 0.0

    def potential(self, x: Vector) -> Vector:
        """Return zero."""
        return np.zeros_like(x)

    def mean_at(self, x: Vector) -> Vector:
        """Return zero."""
        return np.zeros_like(x)

    def minimiser(self, mean: Vector) -> Vector:
        """Return the corner of the box on the mean's side: excess risk ``radius ||mu||_1 - <x, mu>``."""
        return np.asarray(self.domain.radius * np.sign(mean))


class LinearSettings(BoundedSettings, loss=Linear):
    """Settings of `userdp.problems.Linear`."""
