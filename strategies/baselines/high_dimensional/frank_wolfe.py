"""Private Frank-Wolfe over a polytope with robust gradients: Hu, Ni, Xiao, Wang 2022 (Algorithm 1).

Each round takes samples of its own, estimates the gradient coordinate by coordinate with smooth truncation, lets the
exponential mechanism choose a vertex, and moves towards it.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from strategies.baselines.smoothed_truncation import coordinate_sensitivity
from userdp.arrays import Vector
from userdp.errors import BadInput
from userdp.noise import Scores

Mode = Literal["tight", "paper"]


class Polytope(ABC):
    """The convex hull of finitely many vertices; the score of a vertex v at a gradient g is ``-<v, g>``."""

    count: int  # number of vertices
    diameter: float  # largest l1 distance of two vertices
    diameter_l2: float  # largest l2 distance of two vertices
    reach: float  # an l1 ball of this radius, wherever its centre, holds all vertices

    @abstractmethod
    def scores(self, gradient: Vector) -> Vector:
        """(count,): of every vertex, larger is better."""

    @abstractmethod
    def towards(self, x: Vector, vertex: int, step: float) -> Vector:
        """``(1 - step) x + step v``."""

    def scored(self, gradient: Vector, moved: float) -> Scores:
        """The scores at a gradient of which one user moves no coordinate by more than ``moved``."""
        return Scores(self.scores(gradient), self.score_sensitivity(moved))

    def score_sensitivity(self, gradient_sensitivity: float, mode: Mode = "tight") -> float:
        """Return how far scores move, up to a constant on all of them, if no coordinate of g moves farther than given.

        "tight" is ``reach`` times that: with c the centre, ``-<v, g> = -<v - c, g> - <c, g>``, where the first moves by
        at most ``||v - c||_1`` times the change of a coordinate and the second is the same for all vertices. "paper"
        takes the l1 diameter, up to twice as much, by the same argument with a vertex for c.
        """
        return gradient_sensitivity * (self.reach if mode == "tight" else self.diameter)


class L1Ball(Polytope):
    """``{x : ||x||_1 <= radius}``; vertex j is ``radius e_j``, vertex d + j its negative. O(d) a round.

    The radius is half the l1 diameter, and half the l2 diameter too. Raises `BadInput` for a number out of range.
    """

    def __init__(self, radius: float, dimension: int) -> None:
        if not 0 < radius < math.inf or dimension < 1:
            raise BadInput(f"an l1 ball of radius {radius} in {dimension} dimensions: both must be positive")
        self.radius, self.dimension, self.count = radius, dimension, 2 * dimension
        self.diameter = self.diameter_l2 = 2 * radius
        self.reach = radius

    def scores(self, gradient: Vector) -> Vector:
        return np.concatenate([-self.radius * gradient, self.radius * gradient])

    def towards(self, x: Vector, vertex: int, step: float) -> Vector:
        moved = (1 - step) * x
        sign = 1 if vertex < self.dimension else -1
        moved[vertex % self.dimension] += sign * step * self.radius
        return moved


def step_size(index: int) -> float:
    """``2 / (t + 2)`` in round t = index + 1, so 2/3 first; T rounds leave the start ``2 / ((T + 1) (T + 2))``."""
    return 2 / (index + 3)


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
