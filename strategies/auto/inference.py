"""Coefficients with standard errors: one Newton step from the trained model, and the noise and users that move it."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from userdp.arrays.types import Array, Vector
from userdp.data.coefficients import CoefficientMap
from userdp.state import Stateful

NORMAL = 1.959963984540054  # Quantile of a normal law beyond which 2.5 % lie, for intervals of 95 %
DROWNED = (
    0.1  # Share of a coefficient's variance along directions whose curvature noise hides, from which on it is lost
)
FAR = 0.3  # Share of the variance that may come from the curvature's noise: a step too long for one Newton step
VAGUE = 0.5  # Largest relative error of the variance by the noise on users' squared influences
EXCESS = 0.15  # Assumed length beyond the clip of the users whom it cuts, over the clip


@dataclass
class Inference(Stateful):
    """The releases for the coefficients so far; see `strategies.auto.coefficients` for the rounds.

    Attributes:
        start: (p,) the trained model, its left-out parameters at zero.
        directions: (p, k) coordinates of the other parameters, in which the loss is about equally curved.
        size: the norm of a user's curvature beyond which the user weighs less.
        edges: rising norms of slopes, between which users are counted.
        curvature: (k, k) the released mean curvature; the noise on its diagonal has ``curvature_deviation``, other
            entries 1 / sqrt(2) of it.
        clip_norm: of slopes.
        typical: norm of a slope that half of the users exceed.
        cut: share of the users whose slopes the clip may cut.
        slope_deviation: of the noise on each number of the mean slope.
        step: (k,) the Newton step from the start.
        estimate, error: (K,) coefficients and their standard errors, without units' offsets.
        trusted: (K,) 1 where the error can be trusted, 0 where noise hides it.
    """

    remembered: ClassVar[tuple[str, ...]] = (
        *("start", "directions", "size", "edges", "curvature", "curvature_deviation", "clip_norm", "typical", "cut"),
        *("slope_deviation", "step", "estimate", "error", "trusted"),
    )
    start: Vector
    directions: Array
    size: float
    edges: Vector
    curvature: Array = field(default_factory=lambda: np.zeros((0, 0)))
    curvature_deviation: float = math.nan
    clip_norm: float = math.nan
    typical: float = math.nan
    cut: float = math.nan
    slope_deviation: float = math.nan
    step: Vector = field(default_factory=lambda: np.zeros(0))
    estimate: Vector = field(default_factory=lambda: np.zeros(0))
    error: Vector = field(default_factory=lambda: np.zeros(0))
    trusted: Vector = field(default_factory=lambda: np.zeros(0))

    @property
    def model(self) -> Vector:
        """(p,) the model after the step."""
        return self.start + self.directions @ self.step if len(self.step) else self.start

    @property
    def _eigen(self) -> tuple[Vector, Array, float]:
        """The curvature's eigenvalues, its eigenvectors, and the largest eigenvalue that noise alone would have."""
        values, vectors = np.linalg.eigh(self.curvature)
        return values, vectors, self.curvature_deviation * math.sqrt(2 * len(values))

    @property
    def inverse(self) -> Array:
        """(k, k) the inverse of the curvature, whose eigenvalues are raised to the edge of their noise."""
        values, vectors, edge = self._eigen
        return np.asarray((vectors / np.maximum(values, edge)) @ vectors.T)

    def stepped(self, slope: Vector) -> Vector:
        """Return the (k,) Newton step for a released mean slope (k,)."""
        return -self.inverse @ slope

    def moved(self, reading: CoefficientMap) -> Array:
        """Return (K, k): how far each coefficient moves by a mean slope of one along each direction."""
        return np.asarray(reading.of_model @ self.directions @ self.inverse)

    def units(self, reading: CoefficientMap) -> Vector:
        """Return the (K,) scales in which users' influences on coefficients are about equally large."""
        values, vectors, edge = self._eigen
        raised = (vectors * np.maximum(values, edge)) @ vectors.T
        moved = self.moved(reading)
        return np.asarray(np.sqrt(np.einsum("ij,jk,ik->i", moved, raised, moved)))

    def conclude(self, reading: CoefficientMap, squares: Vector, deviation: float, users: float) -> None:
        """Compute estimates and errors from the released mean squared influences (K,), in units, and their noise.

        The variance of a coefficient, with its row b of `moved`, adds up

        - users' squared influences over n, for who took part: the sandwich of Huber (1967) and of Liang and Zeger
          (1986) with users as clusters;
        - the noise of the slope, ``||b||^2 s^2``;
        - that of the curvature, which turns the step v: ``(t^2 / 2) (||b||^2 ||v||^2 + <b, v>^2)``;
        - an allowance for the clip, as if the slopes that it may have cut pointed in a random direction.
        """
        moved, units = self.moved(reading), self.units(reading)
        lengths = np.square(moved).sum(axis=1)
        by_users = np.maximum(squares, 0.0) * units**2 / users
        by_noise = lengths * self.slope_deviation**2
        step = float(self.step @ self.step)
        by_curvature = self.curvature_deviation**2 / 2 * (lengths * step + (moved @ self.step) ** 2)
        by_clip = lengths * (EXCESS * self.cut * self.clip_norm) ** 2 / len(self.step)
        variance = by_users + by_noise + by_curvature + by_clip
        vague = deviation * units**2 / users > VAGUE * variance
        far = by_curvature > FAR * variance
        self.trusted = np.where(vague | far | self._drowned(reading), 0.0, 1.0)
        self.estimate, self.error = reading.of_model @ self.model, np.sqrt(variance)

    def rows(self, reading: CoefficientMap) -> list[dict[str, Any]]:
        """Return the coefficients, with standard errors where these can be trusted."""
        rows = reading.rows(self.estimate)
        for row, error, trusted in zip(rows, self.error.tolist(), self.trusted.tolist(), strict=True):
            if trusted:
                reach = NORMAL * error
                row |= {"standard_error": error, "interval": [row["estimate"] - reach, row["estimate"] + reach]}
        return rows

    def _drowned(self, reading: CoefficientMap) -> Vector:
        """Return (K,) whether much of a coefficient rests on directions whose curvature noise hides."""
        values, vectors, edge = self._eigen
        parts = np.square(reading.of_model @ self.directions @ vectors) / np.maximum(values, edge)
        return np.asarray(parts[:, values < edge].sum(axis=1) > DROWNED * parts.sum(axis=1))
