"""Noisy counts of the users who touch each row of a model's tables, and the rows that they choose."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.problems.embeddings import Tables


@dataclass(frozen=True)
class Counts:
    """The noisy counts that rows are chosen by, as shares of the cohort."""

    tables: Tables
    dimension: int  # p, the model's parameters
    mechanism: GaussianMechanism  # of the mean over a cohort of users' `row_weights`
    rounds: int  # whose counts are added up
    false_rows: float  # share of rows that nobody touches which pass the threshold

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of a count."""
        return math.sqrt(self.rounds) * self.mechanism.standard_deviation

    @property
    def threshold(self) -> float:
        """The count above which a row is chosen."""
        return -self.deviation * float(ndtri(self.false_rows))

    def chosen(self, counts: Vector) -> Vector:
        """Return the rising numbers of the rows that noisy counts (V,) choose."""
        return np.flatnonzero(counts > self.threshold).astype(np.float64)

    def places(self, rows: Vector) -> NDArray[np.int64]:
        """Return the rising places (k,) of the parameters in these rows and outside of tables."""
        return self.tables.kept(rows, self.dimension)

    def placed(self, values: Vector, places: NDArray[np.int64]) -> Vector:
        """Return (p,) these values (k,) in their places, and zero elsewhere."""
        whole = np.zeros(self.dimension)
        whole[places] = values
        return whole

    @property
    def computation(self) -> Computation:
        """The question by which users are counted."""
        return Computation("row_weights", "sum", 1.0, arrays={"tables": self.tables.described})

    def expected_rows(self, per_user: int) -> float:
        """Bound the expected number of chosen rows, if each user touches ``per_user`` rows at most.

        A row of count c, at least 0, is chosen with probability ``Phi((c - threshold) / deviation)``, at most
        ``false_rows + slope c``; all counts together are at most ``rounds sqrt(per_user)``.
        """
        counts = np.linspace(0, self.threshold + 8 * self.deviation, 10_001)[1:]
        passed = ndtr((counts - self.threshold) / self.deviation) - self.false_rows
        slope = float(np.max(passed / counts)) * 1.001  # between points of the grid
        whole = self.tables.rows * self.false_rows + slope * self.rounds * math.sqrt(per_user)
        return min(float(self.tables.rows), whole)
