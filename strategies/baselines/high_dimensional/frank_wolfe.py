"""Private Frank-Wolfe over a polytope with robust gradients: Hu, Ni, Xiao, Wang 2022 (Algorithm 1).

Each round takes samples of its own, estimates the gradient coordinate by coordinate with smooth truncation, lets the
exponential mechanism choose a vertex, and moves towards it.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from strategies.baselines.smoothed_truncation import coordinate_sensitivity
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.noise import Scores

Mode = Literal["tight", "paper"]
Schedule = Literal["falling", "root"]

_ROUNDING = 1e-12
"""The distance outside, relative to its size, at which rounding may put a model."""

_SMALLEST = 2.0**-500
"""Above this, and below its inverse, squares of diameters and scores neither vanish nor overflow."""


class Polytope(ABC):
    """The convex hull of finitely many vertices.

    The score of a vertex v at a gradient g is ``-<v, g>``, up to one constant on all of them.
    """

    name: str  # as messages have it
    count: int  # number of vertices
    diameter: float  # largest l1 distance of two vertices
    diameter_l2: float  # largest l2 distance of two vertices
    least: Vector | float  # of each coordinate
    most: Vector | float  # of each coordinate

    @abstractmethod
    def scores(self, gradient: Vector) -> Vector:
        """(count,): of every vertex, larger is better."""

    @abstractmethod
    def towards(self, x: Vector, vertex: int, step: float) -> Vector:
        """``(1 - step) x + step v``."""

    @abstractmethod
    def holds(self, x: Vector) -> bool:
        """Return True if x lies in it, up to rounding."""

    def check_start(self, x: Vector) -> None:
        """Refuse a model outside. Raises `BadInput`: it lies outside."""
        if not self.holds(x):
            raise BadInput(f"initial model of l1 norm {np.abs(x).sum():.6g}: must lie in {self.name}")

    def scored(self, gradient: Vector, moved: float) -> Scores:
        """The scores at a gradient of which one user moves no coordinate by more than ``moved``."""
        return Scores(self.scores(gradient), self.score_sensitivity(moved))

    def score_sensitivity(self, gradient_sensitivity: float, mode: Mode = "tight") -> float:
        """Return how far scores move, up to a constant on all of them, if no coordinate of g moves farther than given.

        "tight" is half the l1 diameter times that. Let g move by b: the changes ``-<v, b>`` of two scores differ by
        ``<w - v, b>``, at most the diameter times the largest entry of b. So all changes lie in an interval of that
        length, and its middle is the constant. "paper" takes the whole diameter.
        """
        return gradient_sensitivity * self.diameter / (2 if mode == "tight" else 1)


class L1Ball(Polytope):
    """``{x : ||x||_1 <= radius}``; vertex j is ``radius e_j``, vertex d + j its negative. O(d) a round.

    The radius is half the l1 diameter, and half the l2 diameter too. Raises `BadInput` for a number out of range.
    """

    def __init__(self, radius: float, dimension: int) -> None:
        _check_radius("an l1 ball", radius, dimension)
        self.radius, self.dimension, self.count = radius, dimension, 2 * dimension
        self.diameter = self.diameter_l2 = 2 * radius
        self.least, self.most, self.name = -radius, radius, f"the l1 ball of radius {radius:g}"

    def scores(self, gradient: Vector) -> Vector:
        return np.concatenate([-self.radius * gradient, self.radius * gradient])

    def towards(self, x: Vector, vertex: int, step: float) -> Vector:
        moved = (1 - step) * x
        sign = 1 if vertex < self.dimension else -1
        moved[vertex % self.dimension] += sign * step * self.radius
        return moved

    def holds(self, x: Vector) -> bool:
        return float(np.abs(x).sum()) <= self.radius * (1 + _ROUNDING)


class Simplex(Polytope):
    """``{x : x >= 0, sum of x = radius}``; vertex j is ``radius e_j``. O(d) a round.

    Raises `BadInput` for a number out of range, or a single vertex.
    """

    def __init__(self, radius: float, dimension: int) -> None:
        _check_radius("a simplex", radius, dimension, 2)
        self.radius, self.count = radius, dimension
        self.diameter, self.diameter_l2 = 2 * radius, math.sqrt(2) * radius
        self.least, self.most, self.name = 0.0, radius, f"the simplex of entries that add up to {radius:g}"

    def scores(self, gradient: Vector) -> Vector:
        return -self.radius * gradient

    def towards(self, x: Vector, vertex: int, step: float) -> Vector:
        moved = (1 - step) * x
        moved[vertex] += step * self.radius
        return moved

    def holds(self, x: Vector) -> bool:
        slack = self.radius * _ROUNDING
        return float(x.min()) >= -slack and abs(float(x.sum()) - self.radius) <= slack


class Hull(Polytope):
    """The convex hull of any vertices. O(count d) a round; its diameters take O(count^2 d) once.

    Scores are those of the vertices less the middle of their ranges. That is one constant on all scores, and keeps what
    rounding does to a score far below the sensitivity, however far from zero the polytope lies.

    Raises `BadInput` unless vertices (count, d) are finite, and the diameters neither zero nor near the range's ends.
    """

    def __init__(self, vertices: NDArray[np.float64]) -> None:
        told = f"polytope of vertices of shape {vertices.shape}: must be finite (count, d), at least two different"
        if vertices.ndim != 2 or not len(vertices) or not np.isfinite(vertices).all():
            raise BadInput(told)
        self.vertices = vertices
        self.count, self.name = len(vertices), f"the hull of {len(vertices)} vertices"
        self.least, self.most = vertices.min(axis=0), vertices.max(axis=0)
        self._middle = self.least / 2 + self.most / 2
        self._offsets = vertices - self._middle
        self.diameter = self.diameter_l2 = 0.0
        with np.errstate(over="ignore"):
            for offset in self._offsets:
                gaps = self._offsets - offset
                self.diameter = max(self.diameter, float(np.abs(gaps).sum(axis=1).max()))
                self.diameter_l2 = max(self.diameter_l2, float(np.linalg.norm(gaps, axis=1).max()))
        if not _SMALLEST < self.diameter < 1 / _SMALLEST:
            raise BadInput(f"{told}, and from {_SMALLEST:.0e} to {1 / _SMALLEST:.0e} apart (l1 norm)")

    def scores(self, gradient: Vector) -> Vector:
        return np.asarray(-(self._offsets @ gradient))

    def towards(self, x: Vector, vertex: int, step: float) -> Vector:
        return np.asarray((1 - step) * x + step * self.vertices[vertex])

    def holds(self, x: Vector) -> bool:
        # In units of the diameter, for which the solver's tolerance is made.
        equations = np.vstack([self._offsets.T / self.diameter, np.ones(self.count)])
        wanted = np.append((x - self._middle) / self.diameter, 1.0)
        return bool(linprog(np.zeros(self.count), A_eq=equations, b_eq=wanted).status == 0)


def _check_radius(told: str, radius: float, dimension: int, least: int = 1) -> None:
    if not _SMALLEST < radius < 1 / _SMALLEST or dimension < least:
        raise BadInput(
            f"{told} of radius {radius} in {dimension} dimensions: the radius must be positive, from {_SMALLEST:.0e} "
            f"to {1 / _SMALLEST:.0e}, and there must be at least {least} dimensions"
        )


def step_size(index: int) -> float:
    """``2 / (t + 2)`` in round t = index + 1, so 2/3 first; T rounds leave the start ``2 / ((T + 1) (T + 2))``."""
    return 2 / (index + 3)


def root_step(rounds: int) -> float:
    """``1 / sqrt(T)``, the same in all rounds: of Theorem 3, for losses that are not convex."""
    return 1 / math.sqrt(rounds)


@dataclass(frozen=True)
class FrankWolfeTheory:
    """The public numbers of private Frank-Wolfe, and the bounds that they promise; `BadInput` for one out of range."""

    polytope: Polytope  # W
    dimension: int  # d
    samples: int  # n, over all rounds
    epsilon: float  # of every round, which is that of the run
    second_moment: float  # tau, bound on the mean of a squared gradient coordinate
    inverse_variance: float = 1.0  # beta of the smoothing noise; infinity for none, where the bound is best
    failure: float = 0.1  # zeta; bounds hold but with probability 2 zeta
    mode: Mode = "tight"  # how sensitivities are bounded; "paper" is looser, both are valid

    def __post_init__(self) -> None:
        for name in ("dimension", "samples", "epsilon", "second_moment", "inverse_variance"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} = {getattr(self, name)}: must be a positive number")
        if not 0 < self.failure < 1:
            raise BadInput(f"failure = {self.failure}: must lie strictly between 0 and 1")

    def _terms(self, rounds: float) -> tuple[float, float]:
        """(a, b) with error ``D (a / s + b s / m)`` for a scale s and m samples: bias, then tails and choice."""
        bias = self.second_moment * (1 + 1 / self.inverse_variance) / 2
        tails = math.log(2 * self.dimension * rounds / self.failure)
        choice = 2 * self.choice_sensitivity(1.0, 1.0) / self.epsilon
        choice *= math.log(self.polytope.count * rounds / self.failure) / self.polytope.diameter
        return bias, tails + choice

    def choice_sensitivity(self, scale: float, fold: float) -> float:
        """Return the sensitivity of the vertices' scores, for gradients that are means of ``fold`` truncated ones."""
        beta = self.inverse_variance if self.mode == "tight" else math.inf
        return self.polytope.score_sensitivity(coordinate_sensitivity(scale, fold, beta), self.mode)

    def scale(self, rounds: int) -> float:
        """The s that minimises `round_error`: ``sqrt(a m / b)``, with m = floor(n / T)."""
        bias, spread = self._terms(rounds)
        return math.sqrt(bias * (self.samples // rounds) / spread)

    def round_error(self, rounds: int, scale: float) -> float:
        """Return the most by which chosen vertices fall short of the best in ``<v, gradient>``, except with 2 zeta.

        ``D (tau (1 + 1/beta) / (2 s) + (s/m) ln(2 d T / zeta)) + (2 Delta / epsilon) ln(count T / zeta)``, with D the
        l1 diameter and Delta the `choice_sensitivity`. The smoothing law does not depend on data, so that the first
        bound needs no divergence between smoothing laws: it is Catoni's by Jensen's inequality.
        """
        bias, spread = self._terms(rounds)
        return self.polytope.diameter * (bias / scale + spread * scale / (self.samples // rounds))

    def root_rounds(self) -> int:
        """T of Theorem 3, ``sqrt(n epsilon / ln(d / zeta))``, from 1 to n / 50; its constant is left open."""
        found = math.sqrt(self.samples * self.epsilon / math.log(self.dimension / self.failure))
        return max(1, min(self.samples // 50, math.floor(found)))

    def rounds(self, smoothness: float | None) -> int:
        """T that minimises `excess_bound` without the start: ``(4 C^2 n / (D^2 a b))^(1/3)``, from 1 to n / 50.

        b depends on the logarithm of T, so this is a fixed point. Without a smoothness, or with the mode "paper", the
        ``(n epsilon)^(1/3)`` of the paper's experiments.
        """
        most = max(1, self.samples // 50)
        if smoothness is None or self.mode == "paper":
            return max(1, min(most, math.floor(math.cbrt(self.samples * self.epsilon))))
        curvature, found = smoothness * self.polytope.diameter_l2**2, 1.0
        for _ in range(30):
            bias, spread = self._terms(found)
            found = math.cbrt(4 * curvature**2 * self.samples / (self.polytope.diameter**2 * bias * spread))
            found = min(max(found, 1.0), float(most))
        return math.floor(found)
