"""Convex losses minimised over a box from gradients alone, one gradient at a time.

Steps are those of limited-memory BFGS (Nocedal, 1980) in the coordinates that no bound holds, as in the two-metric
projection (Bertsekas, 1982), or of the spectral projected gradient (Birgin, Martinez and Raydan, 2000) where such a
step would not lead downhill. No loss is asked for: along a line the slopes of a convex loss say enough.
"""

import math
from collections import deque
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Vector
from userdp.state import Stateful

PAIRS, NUMBERS = 100, 20_000_000
"""Steps that are remembered at most, each with how it changed the gradient, and numbers in all of them (but for five
steps): badly scaled columns take many."""
UPHILL = 0.5  # Of the slope down at a step's start: it is too long where its end rises by more
SHORTEST, LONGEST = 0.1, 0.9  # The largest and the least shortening of a step that was too long, within its bracket
GROWTH = 10.0  # Most growth from step to step: far from where it was learnt, curvature misleads
FLAT = 1e4  # Growth of the step size where the gradient does not change
FIRST = 0.1  # The bound on the first step: no coordinate moves further than this, or than this part of the radius


class BoxDescent(Stateful):
    """Asks for the gradient at `point`, is told it, and goes on from there.

    Args:
        start: (p,) where it starts, within the box.
        lower: (p,) bounds of the box; may be infinite.
        upper: the same.
        tolerance: it has converged when this share of the first gradient is left, of the part that no bound holds.
        step: one that is known to lead downhill, 1 / smoothness, say; 0 where none is known.

    Attributes:
        point: (p,) where the next gradient is wanted.
        best: (p,) the last accepted point, where the loss was least so far.
        share: of the first gradient, what is left at `best`.
        converged: whether `best` is a minimiser, to `tolerance` or to what floating point can tell.
    """

    remembered: ClassVar[tuple[str, ...]] = (
        *("point", "best", "share", "converged", "_step", "_pairs", "_gradient", "_first", "_probe"),
        *("_direction", "_slope", "_reach", "_longest"),
    )
    given: ClassVar[tuple[str, ...]] = ("_lower", "_upper", "_tolerance")

    def __init__(self, start: Vector, lower: Vector, upper: Vector, tolerance: float, step: float) -> None:
        self.point = self.best = start
        self.share, self.converged = 1.0, False
        self._lower, self._upper, self._tolerance, self._step = lower, upper, tolerance, step
        self._pairs: deque[list[Vector]] = deque(maxlen=max(5, min(PAIRS, NUMBERS // (2 * len(start)))))
        self._gradient: Vector | None = None
        self._first, self._probe = 0.0, 1.0
        self._direction = np.zeros_like(start)
        self._slope = 0.0
        self._reach, self._longest = 1.0, math.inf

    def tell(self, gradient: Vector, *, usable: bool = True) -> None:
        """The gradient at `point`; not ``usable`` where it overflowed, which means that the step was too long."""
        if self._gradient is None:
            self._begin(gradient)
            return
        slope = float(gradient @ self._direction) if usable else math.inf
        if math.isnan(slope) or slope > -UPHILL * self._slope:
            self._shorten(slope)
        else:
            self._accept(gradient)

    def _begin(self, gradient: Vector) -> None:
        self._gradient = gradient
        steepest = float(np.abs(gradient).max())
        if steepest > 0:
            width = float(np.min(self._upper - self._lower)) / 2
            self._probe = FIRST * min(1.0, width) / steepest
            self._step = max(self._step, self._probe)
        self._first = self._left(gradient)
        self._aim()

    def _accept(self, gradient: Vector) -> None:
        assert self._gradient is not None
        moved, change = self.point - self.best, gradient - self._gradient
        curvature = float(moved @ change)
        if curvature > 1e-14 * float(np.linalg.norm(moved) * np.linalg.norm(change)):
            self._step = float(moved @ moved) / curvature
            self._pairs.append([moved, change])
        else:
            self._step = min(self._step * FLAT, 1e100)
        self._longest = GROWTH * float(np.abs(moved).max())
        self.best, self._gradient = self.point, gradient
        self._aim()

    def _shorten(self, slope: float) -> None:
        """Look for a step between the nearest one that was too long and the start, where the slope would be zero."""
        # Along a line the slopes of a convex loss grow: what lies beyond a step that is too long is too long as well.
        guess = -self._slope / (slope - self._slope) if math.isfinite(slope) else 0.0
        self._reach *= min(max(guess, SHORTEST), LONGEST)
        following = self._within(self.best + self._reach * self._direction)
        if np.array_equal(following, self.best):
            self._give_up()
        else:
            self.point = following

    def _give_up(self) -> None:
        """No point that floating point can tell from here is better in this direction."""
        if self._pairs:
            self._pairs.clear()
            self._aim()
        else:
            self.converged = True
            self.point = self.best

    def _aim(self) -> None:
        assert self._gradient is not None
        gradient = self._gradient
        left = self._left(gradient)
        self.share = left / self._first if self._first else 0.0
        self.converged = self.share <= self._tolerance
        self.point = self.best
        if self.converged:
            return
        free = self._free(gradient)
        direction = self._towards(-self._newton(np.where(free, gradient, 0.0), free))
        slope = float(gradient @ direction)
        length = float(np.linalg.norm(direction))
        if not slope < -1e-10 * float(np.linalg.norm(gradient[free])) * length:
            direction = self._towards(-self._step * gradient)
            slope = float(gradient @ direction)
        self._direction, self._slope, self._reach = direction, slope, 1.0
        self.point = self._within(self.best + direction)
        if slope >= 0 or np.array_equal(self.point, self.best):
            self._give_up()

    def _towards(self, move: Vector) -> Vector:
        """(p,): the part of a move that stays in the box and is not too long; of gradients, still downhill."""
        inside = self._within(self.best + move) - self.best
        length = float(np.abs(inside).max())
        return inside * (self._longest / length) if length > self._longest else inside

    def _newton(self, gradient: Vector, free: NDArray[np.bool_]) -> Vector:
        """(p,): the inverse of the Hessian as remembered, in the free coordinates, times the gradient."""
        rest, scale = gradient.copy(), self._step
        kept: list[tuple[Vector, Vector, float, float]] = []
        for moved, change in reversed(self._pairs):
            step, turn = np.where(free, moved, 0.0), np.where(free, change, 0.0)
            curvature = float(step @ turn)
            if curvature <= 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(turn)):
                continue
            if not kept:
                scale = curvature / float(turn @ turn)
            weight = float(step @ rest) / curvature
            rest -= weight * turn
            kept.append((step, turn, curvature, weight))
        rest *= scale
        for step, turn, curvature, weight in reversed(kept):
            rest += (weight - float(turn @ rest) / curvature) * step
        return rest

    def _left(self, gradient: Vector) -> float:
        """The largest entry of the gradient, less what would leave the box in a step of one and the same size."""
        moved = self._within(self.best - self._probe * gradient) - self.best
        return float(np.abs(moved).max()) / self._probe

    def _free(self, gradient: Vector) -> NDArray[np.bool_]:
        """(p,): which coordinates no bound holds where they are."""
        held = ((self.best <= self._lower) & (gradient > 0)) | ((self.best >= self._upper) & (gradient < 0))
        return np.asarray(~held)

    def _within(self, x: Vector) -> Vector:
        return np.clip(x, self._lower, self._upper)
