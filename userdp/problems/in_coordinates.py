"""A problem seen in other coordinates: the model is ``x = start + T z``, and training looks for z."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.problems.base import Box, Certificate, Problem
from userdp.problems.landscape import Landscape, MeasuredCurvature


def turned(rows: Array, matrix: Array) -> Array:
    """(..., p): each block of d numbers of rows (..., p), as a row, times ``matrix`` (d, d); d divides p."""
    if rows.shape[-1] == len(matrix):
        return np.asarray(rows @ matrix)
    return np.asarray((rows.reshape(-1, len(matrix)) @ matrix).reshape(rows.shape))


def turned_back(models: Array, matrix: Array) -> Array:
    """(..., p): the rows whose blocks `turned` by the transpose of ``matrix`` are those of ``models`` (..., p)."""
    return np.asarray(np.linalg.solve(matrix, models.reshape(-1, len(matrix)).T).T.reshape(models.shape))


@dataclass(frozen=True, eq=False)
class Coordinates:
    """``x = start + T z``: public.

    Attributes:
        start: (p,) the model at z = 0.
        matrix: (p, p) T, invertible; or (d, d), d a divisor of p, what T does to each of the p / d blocks of z.

    Raises:
        BadInput: shapes that do not fit, or values that are not finite.
    """

    start: Vector
    matrix: Array

    def __post_init__(self) -> None:
        p = len(self.start)
        d = len(self.matrix)
        if self.start.shape != (p,) or self.matrix.shape != (d, d) or d == 0 or p % d:
            raise BadInput(
                f"coordinates of shapes {self.start.shape} and {self.matrix.shape}: must be (p,) and (p, p), or (d, d) "
                "where d divides p"
            )
        if not (np.isfinite(self.start).all() and np.isfinite(self.matrix).all()):
            raise BadInput("coordinates must be finite numbers")

    def models(self, places: Array) -> Array:
        """(p,) or (U, p): x of each z."""
        return np.asarray(self.start + turned(places, self.matrix.T))

    def places(self, models: Array) -> Array:
        """(p,) or (U, p): z of each x."""
        return turned_back(models - self.start, self.matrix)


class SeenBox(Box):
    """A box of models, seen in coordinates, where it is none: the nearest model is meant, not the nearest z.

    Its centre is where the coordinates start.
    """

    def __init__(self, box: Box, coordinates: Coordinates) -> None:
        super().__init__(np.zeros_like(coordinates.start), math.inf)
        object.__setattr__(self, "_seen", (box, coordinates))

    def project(self, x: Vector) -> Vector:
        """(p,) or (U, p): the coordinates of the nearest model in the box; themselves where that is inside."""
        box, coordinates = self.__dict__["_seen"]
        models = coordinates.models(x)
        inside = box.project(models)
        outside = (models != inside).any(axis=-1, keepdims=True)
        return np.where(outside, coordinates.places(inside), x) if outside.any() else x


class InCoordinates(Problem):
    """``f(start + T z)`` as a function of z; a gradient is T^T times that by x.

    Args:
        problem: f, on dense parameters.
        coordinates: start and T.
        curvature: the curvature that default steps follow. The certificate says nothing of it.

    Raises:
        BadInput: coordinates of another dimension, or gradients that are sparse.
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
        reason = "coordinates were learnt, in which nothing is certified of curvature"
        self.certificate, self.measured = Certificate(convex=problem.certificate.convex, reason=reason), curvature
        lies = problem.landscape
        if lies is not None and curvature is not None:
            self.landscape = Landscape(lies.start, curvature.most * self.dimension, math.inf, assumed=lies.assumed)

    def bound(self, block: Block) -> tuple[Block, int]:
        """As f does."""
        return self.problem.bound(block)

    def user_gradients(self, x: Vector, block: Block) -> Rows:
        """(U, p): each user's average gradient by z."""
        return self._turned(dense(self.problem.user_gradients(self.coordinates.models(x), block)))

    def user_gradients_at(self, models: NDArray[np.float64], block: Block) -> Rows:
        """(U, p): each user's average gradient by z, at its own z."""
        return self._turned(dense(self.problem.user_gradients_at(self.coordinates.models(models), block)))

    def sample_gradients(self, x: Vector, block: Block) -> Rows:
        """(N, p): each sample's gradient by z."""
        return self._turned(dense(self.problem.sample_gradients(self.coordinates.models(x), block)))

    def sample_losses(self, x: Vector, block: Block) -> NDArray[np.float64]:
        """(N,): f of each sample."""
        return self.problem.sample_losses(self.coordinates.models(x), block)

    def _turned(self, gradients: Rows) -> Rows:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite counts as zero later
            return turned(gradients, self.coordinates.matrix)
