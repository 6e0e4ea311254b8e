"""A problem in other coordinates: the model is ``x = start + T z``, and training optimises z."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.fixed_order import product
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Box, Certificate, Landscape, MeasuredCurvature, Problem


def turned(rows: Array, matrix: Array) -> Array:
    """Multiply each block of d numbers of rows (..., p) by ``matrix`` (d, d); d divides p."""
    if rows.shape[-1] == len(matrix):
        return product(rows, matrix)
    return product(rows.reshape(-1, len(matrix)), matrix).reshape(rows.shape)


def turned_back(models: Array, matrix: Array) -> Array:
    """Return the rows (..., p) that `turned` maps to ``models`` (..., p) by the transpose of ``matrix``."""
    return np.asarray(np.linalg.solve(matrix, models.reshape(-1, len(matrix)).T).T.reshape(models.shape))


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Public coordinates ``x = start + T z``; `BadInput` for values that are not finite or shapes that do not fit."""

    start: Vector
    """(p,) the model at z = 0."""
    matrix: Array
    """(p, p) T, invertible; or (d, d), d a divisor of p, the effect of T on each of the p / d blocks of z."""

    def __post_init__(self) -> None:
        p, d = len(self.start), len(self.matrix)
        if self.start.shape != (p,) or self.matrix.shape != (d, d) or d == 0 or p % d:
            raise BadInput(
                f"coordinates of shapes {self.start.shape} and {self.matrix.shape}: must be (p,) and (p, p), or (d, d) "
                "where d divides p"
            )
        if not (np.isfinite(self.start).all() and np.isfinite(self.matrix).all()):
            raise BadInput("coordinates must be finite numbers")

    def models(self, places: Array) -> Array:
        """Return x of each z, (p,) or (U, p)."""
        return np.asarray(self.start + turned(places, self.matrix.T))

    def places(self, models: Array) -> Array:
        """Return z of each x, (p,) or (U, p)."""
        return turned_back(models - self.start, self.matrix)


class SeenBox(Box):
    """A box of models in coordinates where it is none; `project` finds the nearest model, the centre is z = 0."""

    def __init__(self, box: Box, coordinates: Coordinates) -> None:
        super().__init__(np.zeros_like(coordinates.start), math.inf)
        object.__setattr__(self, "_seen", (box, coordinates))

    def project(self, x: Vector) -> Vector:
        """Return the coordinates (p,) or (U, p) of the nearest model in the box; themselves if the model is inside."""
        box, coordinates = self.__dict__["_seen"]
        models = coordinates.models(x)
        inside = box.project(models)
        outside = (models != inside).any(axis=-1, keepdims=True)
        return np.where(outside, coordinates.places(inside), x) if outside.any() else x


class InCoordinates(Problem):
    """``f(start + T z)`` as a function of z; a gradient is T^T times that by x.

    Default step sizes follow ``curvature``; the certificate does not rest on it. Raises `BadInput` if f has sparse
    gradients or the coordinates have another dimension.
    """

    def __init__(self, problem: Problem, coordinates: Coordinates, curvature: MeasuredCurvature | None = None) -> None:
        if len(coordinates.start) != problem.dimension or problem.sparse:
            raise BadInput(
                f"problem.kind = {problem.name!r} has {problem.dimension} parameters and cannot be seen in "
                f"{len(coordinates.start)} coordinates, or has sparse gradients"
            )
        self.problem, self.coordinates = problem, coordinates
        self.name, self.summary = problem.name, problem.summary  # type: ignore[misc]
        self.dimension, self.columns, self.has_targets = problem.dimension, problem.columns, problem.has_targets
        self.domain = SeenBox(problem.domain, coordinates)
        self.bends_boundedly, self.fixed_order = problem.bends_boundedly, problem.fixed_order
        reason = "coordinates were learnt, in which nothing is certified of curvature"
        self.certificate, self.measured = Certificate(convex=problem.certificate.convex, reason=reason), curvature
        lies = problem.landscape
        if lies is not None and curvature is not None:
            self.landscape = Landscape(lies.start, curvature.most * self.dimension, math.inf, assumed=lies.assumed)

    def bound(self, block: Block) -> tuple[Block, int]:
        return self.problem.bound(block)

    def user_gradients(self, x: Vector, block: Block) -> Rows:
        """Compute the (U, p) average gradients by z."""
        return self._turned(dense(self.problem.user_gradients(self.coordinates.models(x), block)))

    def user_gradients_at(self, models: NDArray[np.float64], block: Block) -> Rows:
        """See `Problem.user_gradients_at`, by z."""
        return self._turned(dense(self.problem.user_gradients_at(self.coordinates.models(models), block)))

    def user_curvatures(self, block: Block, turn: Array | None = None) -> Vector:
        """See `Problem.user_curvatures`, by z."""
        matrix = self.coordinates.matrix
        return self.problem.user_curvatures(block, matrix if turn is None else matrix @ turn)

    def sample_gradients(self, x: Vector, block: Block) -> Rows:
        """Compute the (N, p) gradients by z."""
        return self._turned(dense(self.problem.sample_gradients(self.coordinates.models(x), block)))

    def sample_losses(self, x: Vector, block: Block) -> NDArray[np.float64]:
        return self.problem.sample_losses(self.coordinates.models(x), block)

    def _turned(self, gradients: Rows) -> Rows:
        with np.errstate(over="ignore", invalid="ignore"):  # a row that is not finite counts as zero later
            return turned(gradients, self.coordinates.matrix)
