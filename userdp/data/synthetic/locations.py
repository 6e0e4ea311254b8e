"""Location families, centred exactly and scaled to their ``deviation``."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.arrays.types import Vector
from userdp.data.shape import Shape
from userdp.data.synthetic.populations import (
    Noise,
    Samples,
    Source,
    VectorPopulation,
    add_per_user,
    vector_of,
)
from userdp.errors import BadInput


class WithMean(VectorPopulation):
    """A population that has a mean, given or drawn."""

    truth_is = "mean"
    mean: float | list[float] | None = None
    """The population's mean, a scalar or a list; None draws it uniformly from [-spread, spread]^d."""
    spread: float = Field(1.0, ge=0)
    """See ``mean``."""

    def truth(self, rng: np.random.Generator) -> Vector:
        if self.mean is not None:
            return vector_of("mean", self.mean, self.dimension)
        return self.spread * rng.uniform(-1.0, 1.0, self.dimension)


class Location(WithMean):
    """Samples around a mean: z = mean + own shift of the user + centred noise."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shifts and coin of a user, and one normal per coordinate of a sample."""
        return (Source("user", "normal", self.dimension + 1), Source("sample", "normal", self.dimension))

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Samples:
        """Return centred noise around each user's own mean."""
        rows = self.centred(sizes, noise)
        add_per_user(rows, self.own_truth(truth, noise[0]), sizes)
        return rows, None

    @abstractmethod
    def centred(self, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Noise:
        """Return (N, d) noise of mean zero, in place where possible."""


class Gaussian(Location):
    """z ~ N(own mean, deviation^2), independent coordinates."""

    name = "gaussian"
    summary = "normal samples around each user's mean"
    deviation: float = Field(1.0, gt=0)
    """Standard deviation of a sample's coordinate around its user's mean."""

    def centred(self, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Noise:
        """Return normal noise times the deviation."""
        rows = noise[1]
        rows *= np.float32(self.deviation)
        return rows


class BernoulliRates(WithMean):
    """Coordinates 0 or 1, each with its own rate.

    ``mean`` holds the rates; None draws them uniformly from 1/2 +- spread/2 (spread at most 1). A user's own rate is
    uniform around the population's with deviation ``heterogeneity``, or less where it would leave [0, 1], so that the
    mean stays exact. An outlier's rate is shifted and cut to [0, 1].
    """

    name = "bernoulli"
    summary = "zeros and ones, one rate a coordinate"

    def model_post_init(self, _: Any) -> None:
        if self.spread > 1:
            raise BadInput(f"spread of bernoulli must be at most 1 (rates lie in [0, 1]), got {self.spread}")

    @property
    def sample_shape(self) -> Shape:
        return Shape(self.columns, has_target=False, bound=1.0)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shifts and coin of a user, a uniform shift per rate, and uniforms to compare with rates."""
        return (
            Source("user", "normal", self.dimension + 1),
            Source("user", "uniform", self.dimension),
            Source("sample", "uniform", self.dimension),
        )

    def truth(self, rng: np.random.Generator) -> Vector:
        rates = 0.5 + super().truth(rng) / 2 if self.mean is None else super().truth(rng)
        if rates.min() < 0 or rates.max() > 1:
            raise BadInput("mean of bernoulli must hold rates in [0, 1]; change those outside")
        return rates

    def samples(self, truth: Vector, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Samples:
        """Return where uniform noise lies below the user's own rate."""
        coins, shifts, rows = noise
        width = np.minimum(np.sqrt(3.0) * self.heterogeneity, np.minimum(truth, 1 - truth))
        own = truth + width * (2.0 * shifts.astype(np.float64) - 1.0)
        own[self.outlying(coins)] += self.outlier_shift
        rows[...] = rows < np.repeat(np.clip(own, 0.0, 1.0).astype(np.float32), sizes, axis=0)
        return rows, None
