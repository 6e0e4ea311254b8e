"""Location families, centred exactly and scaled to their ``deviation``; and the hard instance of Ghazi et al. 2025."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Vector
from userdp.data.checks import NOT_NEGATIVE, POSITIVE
from userdp.data.shape import Shape
from userdp.data.synthetic.laws import Law
from userdp.data.synthetic.populations import (
    Noise,
    Samples,
    Source,
    VectorPopulation,
    add_per_user,
    per_sample,
    vector_of,
)
from userdp.data.synthetic.power_laws import LAWS, directional_moment
from userdp.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class WithMean(VectorPopulation):
    """A population that has a mean, given or drawn.

    Attributes:
        mean: the population's mean, a scalar or a list; None draws it uniformly from [-spread, spread]^d.
        spread: see ``mean``.
    """

    truth_is = "mean"
    mean: float | Sequence[float] | None = None
    spread: float = field(default=1.0, metadata=NOT_NEGATIVE)

    def truth(self, rng: np.random.Generator) -> Vector:
        if self.mean is not None:
            return vector_of("mean", self.mean, self.dimension)
        return self.spread * rng.uniform(-1.0, 1.0, self.dimension)


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class HardInstance(Location):
    """z[k] ~ N(mean[k], m) for a user with m samples: the lower bound of Ghazi et al. (2025), section 4, appendix C."""

    name = "hard_instance"
    summary = "N(mean, m) samples for a user with m of them: the lower bound of Ghazi et al. 2025"

    def centred(self, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Noise:
        """Return normal noise times sqrt(m)."""
        rows = noise[1]
        rows *= per_sample(np.sqrt(sizes).astype(np.float32), sizes)[:, None]
        return rows


@dataclass(frozen=True, kw_only=True)
class Gaussian(Location):
    """z ~ N(own mean, deviation^2), independent coordinates.

    Attributes:
        deviation: standard deviation of a sample's coordinate around its user's mean.
    """

    name = "gaussian"
    summary = "normal samples around each user's mean"
    deviation: float = field(default=1.0, metadata=POSITIVE)

    def centred(self, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Noise:
        """Return normal noise times the deviation."""
        return self._scaled(noise[1], 1.0)

    def _scaled(self, rows: Noise, deviation: float) -> Noise:
        """Scale rows of standard deviation ``deviation`` to the declared one, in place."""
        rows *= np.float32(self.deviation / deviation)
        return rows


@dataclass(frozen=True, kw_only=True)
class HeavyTailed(Gaussian):
    """Independent coordinates of a centred law, scaled to the deviation, or by it if the variance is infinite.

    Attributes:
        shape: of the law.
    """

    spherical: ClassVar[bool] = False
    shape: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.law  # refuses a shape out of range

    @property
    def law(self) -> Law:
        """The law of a coordinate, before it is scaled."""
        return LAWS[self.name](self.shape)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The shifts and coin of a user, and the law's raw noise."""
        own = Source("user", "normal", self.dimension + 1)
        return (own, *self.law.sources(self.dimension, spherical=self.spherical))

    def centred(self, sizes: NDArray[np.int64], noise: Sequence[Noise]) -> Noise:
        """Return scaled draws of the law."""
        return self._scaled(self.law.centred(noise[1:]), self.law.unit)

    def coordinate_moment(self, order: float) -> float:
        """Return M with ``E |z_j - own mean_j|^order = M^order`` for every coordinate j; `BadInput` if infinite."""
        return float(self.deviation / self.law.unit * self.law.moment(order) ** (1 / order))

    def directional_moment(self, order: float) -> float:
        """Return M with ``E |<u, z - own mean>|^order <= M^order`` for every unit u; ``order >= 2`` (`power_laws`)."""
        return self.deviation / self.law.unit * directional_moment(self.law, order, spherical=False)


@dataclass(frozen=True, kw_only=True)
class StudentT(HeavyTailed):
    """Student's t with ``shape`` > 1 degrees of freedom; the deviation is its scale if the variance is infinite.

    Attributes:
        shape: degrees of freedom.
    """

    name = "student_t"
    summary = "heavy symmetric tails; shape = degrees of freedom (> 1)"


@dataclass(frozen=True, kw_only=True)
class MultivariateT(StudentT):
    """The multivariate t, with one gamma variable a sample: the same tails in EVERY direction, of known moments."""

    name = "multivariate_t"
    summary = "heavy symmetric tails, the same in every direction; shape = degrees of freedom (> 1)"
    spherical = True

    @property
    def law(self) -> Law:
        """The law of every direction, before it is scaled."""
        return LAWS["student_t"](self.shape)

    def directional_moment(self, order: float) -> float:
        """Return the coordinate's moment, which is exact in every direction."""
        return self.coordinate_moment(order)


@dataclass(frozen=True, kw_only=True)
class Pareto(HeavyTailed):
    """Pareto of index ``shape`` > 1, centred; the deviation is the scale of the law if the variance is infinite.

    Attributes:
        shape: tail index, P(Z > t) ~ t^-shape.
    """

    name = "pareto"
    summary = "one heavy tail, centred; shape = tail index (> 1)"


@dataclass(frozen=True, kw_only=True)
class LogNormal(HeavyTailed):
    """exp(shape N) with N normal, centred and scaled to the declared deviation.

    Attributes:
        shape: deviation of the logarithm, in (0, 4]; above, float32 samples would be mostly rounding.
    """

    name = "log_normal"
    summary = "skewed, all moments finite, centred; shape = deviation of the logarithm"
    shape: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LogLogistic(HeavyTailed):
    """Log-logistic of shape > 1, centred; the deviation is the scale of the law if the variance is infinite.

    Attributes:
        shape: tail index, P(Z > t) ~ t^-shape.
    """

    name = "log_logistic"
    summary = "one heavy tail from a bell, centred; shape = tail index (> 1)"


@dataclass(frozen=True, kw_only=True)
class BernoulliRates(WithMean):
    """Coordinates 0 or 1, each with its own rate.

    ``mean`` holds the rates; None draws them uniformly from 1/2 +- spread/2 (spread at most 1). A user's own rate is
    uniform around the population's with deviation ``heterogeneity``, or less where it would leave [0, 1], so that the
    mean stays exact. An outlier's rate is shifted and cut to [0, 1].
    """

    name = "bernoulli"
    summary = "zeros and ones, one rate a coordinate"

    def __post_init__(self) -> None:
        super().__post_init__()
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
        rows[...] = rows < per_sample(np.clip(own, 0.0, 1.0).astype(np.float32), sizes)
        return rows, None
