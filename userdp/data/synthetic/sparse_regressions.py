"""Regressions on sparse samples: a few of very many columns, as words of a text or items of a list."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import over_rows, scaled_rows, sparse_rows, squared_lengths
from userdp.arrays.types import Vector
from userdp.data.checks import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE
from userdp.data.shape import Shape
from userdp.data.synthetic.populations import Noise, Samples, Source, VectorPopulation, per_sample
from userdp.data.synthetic.regressions import column_edges, linear_targets, logistic_targets
from userdp.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class SparseRegression(VectorPopulation):
    """A few columns a sample, target from <a, theta>; samples are sparse rows of l2 norm ``feature_norm``.

    A sample draws ``nonzeros`` columns, column j with frequency proportional to ``(j + 1)^-skew``, each with a normal
    value; values of a column drawn twice add up. Then it is scaled to its norm. A user shifts all its predictors by one
    number of deviation ``heterogeneity``, an outlier by ``outlier_shift`` more.

    Attributes:
        nonzeros: entries of a sample that are not zero; fewer if a column is drawn twice.
        feature_norm: l2 norm of every sample.
        skew: 0 for columns of equal frequency, 1 for Zipf's law.
        link: logistic for zero-one targets, linear for predictors with normal noise.
        parameter_nonzeros: coordinates of the true parameter that are not zero, the most frequent columns; None for
            all.
        parameter_deviation: standard deviation of those coordinates, which are normal.
        noise_deviation: standard deviation of a linear target around its prediction.
    """

    name = "sparse_regression"
    summary = "a few of many columns a sample as sparse rows, zero-one or normal targets, a true parameter"
    truth_is = "parameter"
    nonzeros: int = field(default=20, metadata=AT_LEAST_ONE)
    feature_norm: float = field(default=1.0, metadata=POSITIVE)
    skew: float = field(default=0.0, metadata=NOT_NEGATIVE)
    link: Literal["logistic", "linear"] = "logistic"
    parameter_nonzeros: int | None = None
    parameter_deviation: float = field(default=1.0, metadata=POSITIVE)
    noise_deviation: float = field(default=0.1, metadata=NOT_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.link not in ("logistic", "linear"):
            raise BadInput(f"link must be logistic or linear, got {self.link!r}")
        for name in ("nonzeros", "parameter_nonzeros"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= self.dimension:
                raise BadInput(f"{name} must lie between 1 and dimension = {self.dimension}, got {value}")

    @property
    def sample_shape(self) -> Shape:
        bounds = (0.0, 1.0) if self.link == "logistic" else None
        return Shape(self.columns, True, target_range=bounds, sparsity=self.nonzeros, feature_length=self.feature_norm)

    @property
    def sample_bytes(self) -> int:
        """8 bytes for each entry (value and column), 4 for the row's end and 4 for the target."""
        return 8 * self.nonzeros + 8

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shift and coin of a user; columns (two uniforms each) and values of a sample; its target's noise."""
        return (
            Source("user", "normal", 2),
            Source("sample", "uniform", 2 * self.nonzeros),
            Source("sample", "normal", self.nonzeros),
            Source("sample", "normal", 1),
        )

    def truth(self, rng: np.random.Generator) -> Vector:
        """Return a parameter (d,) that is normal on the most frequent columns and zero on the others."""
        parameter = np.zeros(self.dimension)
        count = self.parameter_nonzeros or self.dimension
        parameter[:count] = self.parameter_deviation * rng.normal(size=count)
        return parameter

    @cached_property
    def _edges(self) -> Vector:
        return column_edges(self.dimension, self.skew)

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Samples:
        """Return (N, d) sparse rows and their targets."""
        samples = len(noise[1])
        # A float32 uniform has 24 bits, too few for a million columns: two of them make one of 48.
        coarse, fine = np.split(noise[1].astype(np.float64), 2, axis=1)
        columns = np.searchsorted(self._edges, (coarse + fine * 2.0**-24).ravel(), side="right").astype(np.int32)
        ends = np.arange(0, samples * self.nonzeros + 1, self.nonzeros, dtype=np.int32)
        rows = csr_array((noise[2].ravel(), columns, ends), shape=(samples, self.dimension))
        rows.sum_duplicates()
        # Slightly inside the ball, so that no other rounding of the norm puts a sample outside.
        lengths = np.maximum(np.sqrt(squared_lengths(rows)), np.finfo(np.float32).tiny)  # a normal can be zero
        scaled = scaled_rows(rows, self.feature_norm * (1 - 1e-5) / lengths)
        features = sparse_rows(scaled.data.astype(np.float32), rows.indices, rows.indptr, self.dimension)
        shifts = per_sample(self.own_truth(np.zeros(1), noise[0])[:, 0], sizes)
        predictors = over_rows(np.add, features.data * truth[features.indices], features) + shifts
        if self.link == "logistic":
            return features, logistic_targets(predictors, noise[3][:, 0])
        return features, linear_targets(predictors, noise[3][:, 0], self.noise_deviation)
