"""Regressions with a true parameter: dense features, or one category a sample."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import expit, ndtr

from userdp.arrays.types import Vector
from userdp.data.shape import Shape
from userdp.data.synthetic.populations import (
    Noise,
    Population,
    Samples,
    Source,
    VectorPopulation,
    student_t_in_place,
    vector_of,
)
from userdp.errors import BadInput

_LARGEST_PREDICTOR = 5.0
"""Poisson rates are at most exp(5), about 148."""


class WithParameter(VectorPopulation):
    """Features a, target from <a, theta> with theta the user's own parameter."""

    truth_is = "parameter"
    parameter: float | list[float] | None = None
    """The true parameter, a scalar or a list of its first entries, the others being zero; None draws a direction
    and gives it l2 norm parameter_norm."""
    parameter_norm: float = Field(1.0, gt=0)
    """See ``parameter``."""
    parameter_sparsity: int | None = None
    """Number of random entries of a drawn direction that are not zero; None for all."""

    def model_post_init(self, _: Any) -> None:
        if self.parameter_sparsity is not None and not 1 <= self.parameter_sparsity <= self.dimension:
            raise BadInput(
                f"parameter_sparsity = {self.parameter_sparsity}: must lie between 1 and dimension = {self.dimension}"
            )
        if self.parameter_sparsity is not None and self.parameter is not None:
            raise BadInput("parameter_sparsity describes a drawn parameter: leave out parameter_sparsity or parameter")

    def truth(self, rng: np.random.Generator) -> Vector:
        if self.parameter is not None:
            return self._filled(self.parameter)
        direction = rng.normal(size=self.dimension)
        if self.parameter_sparsity is not None:
            direction[rng.permutation(self.dimension)[self.parameter_sparsity :]] = 0.0
        return np.asarray(self.parameter_norm * direction / np.linalg.norm(direction), dtype=np.float64)

    def _filled(self, parameter: float | Sequence[float]) -> Vector:
        """Append zeros to a list, so that one list serves a sweep over dimensions."""
        missing = 0 if np.ndim(parameter) == 0 else max(0, self.dimension - len(np.atleast_1d(parameter)))
        values = parameter if missing == 0 else [*np.atleast_1d(parameter), *np.zeros(missing)]
        return vector_of("parameter", values, self.dimension)

    def predictors(self, features: Noise, truth: Vector, user_noise: Noise, sizes: NDArray[np.int64]) -> Vector:
        """Return <a, theta> of each sample, (N,), with its user's own parameter."""
        own = np.repeat(self.own_truth(truth, user_noise), sizes, axis=0)
        own *= features
        return np.asarray(own.sum(axis=1), dtype=np.float64)


class Regression(WithParameter):
    """Features a in an l1 ball, target from <a, theta> with theta the user's own parameter.

    Features are normal (or Student's t, by one factor a sample) and scaled down into the ball
    ``||a||_1 <= feature_norm``, so that a problem that declares this bound finds nothing to clip and the true
    parameter stays true.
    """

    feature_norm: float = Field(1.0, gt=0)
    """Bound on the l1 norm of a sample's features."""
    feature_deviation: float | None = Field(None, gt=0)
    """Standard deviation (scale, for Student's t) of a feature before scaling down; None for the value that leaves
    about 98 % of normal samples inside the ball."""
    feature_shape: float | None = Field(None, gt=0)
    """Degrees of freedom of Student's t features; None for normal ones."""

    @property
    def sample_shape(self) -> Shape:
        return Shape(self.columns, has_target=True, feature_norm=self.feature_norm)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The own parameter and coin of a user; features; the target's noise; a factor for Student's t."""
        normals = (
            Source("user", "normal", self.dimension + 1),
            Source("sample", "normal", self.dimension),
            Source("sample", "normal", 1),
        )
        if self.feature_shape is None:
            return normals
        return (*normals, Source("sample", "gamma", 1, self.feature_shape / 2))

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Samples:
        """Return features in their ball, and targets from each user's own parameter."""
        features = noise[1]
        if self.feature_shape is not None:
            features = student_t_in_place(features, noise[3], self.feature_shape)
        features *= np.float32(self._deviation())
        norms = np.abs(features).sum(axis=1, keepdims=True)
        # Slightly inside the ball, so that no other rounding of the norm puts a sample outside.
        features *= np.minimum(1.0, np.float32(self.feature_norm * (1 - 1e-5)) / norms)
        return features, self.targets(self.predictors(features, truth, noise[0], sizes), noise[2][:, 0])

    def _deviation(self) -> float:
        if self.feature_deviation is not None:
            return self.feature_deviation
        # The l1 norm of d standard normals: mean d sqrt(2 / pi), variance d (1 - 2 / pi); two deviations of room.
        mean, variance = self.dimension * np.sqrt(2 / np.pi), self.dimension * (1 - 2 / np.pi)
        return float(self.feature_norm / (mean + 2 * np.sqrt(variance)))

    @abstractmethod
    def targets(self, predictors: Vector, noise: Noise) -> NDArray[np.float32]:
        """Return (N,) targets from the predictors <a, theta> and one standard normal a sample."""


class LogisticRegression(Regression):
    """y = 1 with probability 1 / (1 + exp(-<a, theta>)), else 0."""

    name = "logistic_regression"
    summary = "dense features, zero-one targets, a true parameter"

    def targets(self, predictors: Vector, noise: Noise) -> NDArray[np.float32]:
        return logistic_targets(predictors, noise)


class LinearRegression(Regression):
    """y = <a, theta> + normal noise."""

    name = "linear_regression"
    summary = "dense features, normal targets, a true parameter"
    noise_deviation: float = Field(0.1, ge=0)
    """Standard deviation of a target around its prediction."""

    def targets(self, predictors: Vector, noise: Noise) -> NDArray[np.float32]:
        return linear_targets(predictors, noise, self.noise_deviation)


class PoissonRegression(Regression):
    """y ~ Poisson(exp(<a, theta>)), the predictor cut at 5."""

    name = "poisson_regression"
    summary = "dense features, counts as targets, a true parameter"

    def targets(self, predictors: Vector, noise: Noise) -> NDArray[np.float32]:
        """Return Poisson counts: the smallest count whose distribution function reaches the uniform."""
        rates = np.exp(np.minimum(predictors, _LARGEST_PREDICTOR))
        uniforms: Vector = ndtr(noise.astype(np.float64))
        counts = np.zeros(len(rates), dtype=np.float32)
        open_rows = np.flatnonzero(uniforms > np.exp(-rates))
        terms = np.exp(-rates[open_rows])
        reached = terms.copy()
        count = 0
        while len(open_rows):
            count += 1
            terms *= rates[open_rows] / count
            reached += terms
            counts[open_rows] = count
            # Far in the tail a term no longer moves the sum: the count is as large as float64 can tell.
            still = (uniforms[open_rows] > reached) & (reached + terms > reached)
            open_rows, terms, reached = open_rows[still], terms[still], reached[still]
        return counts


class Categorical(Population):
    """One category a sample, and a zero-one target with the category's own rate.

    Category l has frequency proportional to ``(l + 1)^-skew`` and log odds ``parameter[l]``; a user shifts all its log
    odds by one number of deviation ``heterogeneity``.
    """

    name = "categorical"
    summary = "one category a sample, zero-one targets, a true rate a category (for one-hot problems)"
    truth_is = "parameter"
    levels: int = Field(ge=1)
    """L, number of categories; codes are 0..L-1."""
    parameter: float | list[float] | None = None
    """Log odds of each category, a scalar or a list; None draws them uniformly from [-spread, spread]."""
    spread: float = Field(2.0, ge=0)
    """See ``parameter``."""
    skew: float = Field(0.0, ge=0)
    """0 for equal frequencies, 1 for Zipf's law."""

    columns: ClassVar[int] = 1
    sample_bytes: ClassVar[int] = 8  # an int32 code and a float32 target

    @property
    def sample_shape(self) -> Shape:
        return Shape(1, has_target=True, target_range=(0.0, 1.0), levels=self.levels)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shift and coin of a user; category and target of a sample."""
        return (Source("user", "normal", 2), Source("sample", "normal", 2))

    def truth(self, rng: np.random.Generator) -> Vector:
        """Return the log odds of the categories, (L,)."""
        if self.parameter is not None:
            return vector_of("parameter", self.parameter, self.levels)
        return self.spread * rng.uniform(-1.0, 1.0, self.levels)

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Samples:
        """Return (N, 1) int32 codes and zero-one targets."""
        edges = column_edges(self.levels, self.skew)
        codes = np.searchsorted(edges, ndtr(noise[1][:, 0].astype(np.float64)), side="right").astype(np.int32)
        shifts = np.repeat(self.own_truth(np.zeros(1), noise[0])[:, 0], sizes)
        return codes[:, None], logistic_targets(truth[codes] + shifts, noise[1][:, 1])


def column_edges(columns: int, skew: float) -> Vector:
    """Cut [0, 1) into shares, the one of column j proportional to ``(j + 1)^-skew``: (columns - 1,) inner edges."""
    shares = np.arange(1, columns + 1, dtype=np.float64) ** -skew
    return np.asarray(np.cumsum(shares / shares.sum())[:-1])


def linear_targets(predictors: Vector, noise: Noise, deviation: float) -> NDArray[np.float32]:
    """Return the predictor plus normal noise of standard deviation ``deviation``, from one standard normal each."""
    return (predictors + deviation * noise.astype(np.float64)).astype(np.float32)


def logistic_targets(predictors: Vector, noise: Noise) -> NDArray[np.float32]:
    """Return 1 with probability expit(predictor), else 0, from one standard normal each."""
    uniforms: Vector = ndtr(noise.astype(np.float64))
    rates: Vector = expit(predictors)
    return (uniforms < rates).astype(np.float32)
