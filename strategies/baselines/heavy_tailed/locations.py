"""Location families with heavy tails, centred exactly and scaled to their ``deviation``."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.heavy_tailed.laws import Law, Noise
from strategies.baselines.heavy_tailed.power_laws import LAWS, directional_moment
from userdp.data import Gaussian, Source


class HeavyTailed(Gaussian):
    """Independent coordinates of a centred law, scaled to the deviation, or by it if the variance is infinite."""

    spherical: ClassVar[bool] = False
    shape: float = 3.0
    """Shape of the law."""

    def model_post_init(self, _: Any) -> None:
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
        rows = self.law.centred(noise[1:])
        rows *= np.float32(self.deviation / self.law.unit)
        return rows

    def coordinate_moment(self, order: float) -> float:
        """Return M with ``E |z_j - own mean_j|^order = M^order`` for every coordinate j; `BadInput` if infinite."""
        return float(self.deviation / self.law.unit * self.law.moment(order) ** (1 / order))

    def directional_moment(self, order: float) -> float:
        """Return M with ``E |<u, z - own mean>|^order <= M^order`` for every unit u; ``order >= 2`` (`power_laws`)."""
        return self.deviation / self.law.unit * directional_moment(self.law, order, spherical=False)


class StudentT(HeavyTailed):
    """Student's t with ``shape`` > 1 degrees of freedom; the deviation is its scale if the variance is infinite."""

    name = "student_t"
    summary = "heavy symmetric tails; shape = degrees of freedom (> 1)"
    shape: float = 3.0
    """Degrees of freedom."""


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


class Pareto(HeavyTailed):
    """Pareto of index ``shape`` > 1, centred; the deviation is the scale of the law if the variance is infinite."""

    name = "pareto"
    summary = "one heavy tail, centred; shape = tail index (> 1)"
    shape: float = 3.0
    """Tail index, P(Z > t) ~ t^-shape."""


class LogNormal(HeavyTailed):
    """exp(shape N) with N normal, centred and scaled to the declared deviation."""

    name = "log_normal"
    summary = "skewed, all moments finite, centred; shape = deviation of the logarithm"
    shape: float = 1.0
    """Deviation of the logarithm, in (0, 4]; above, float32 samples would be mostly rounding."""


class LogLogistic(HeavyTailed):
    """Log-logistic of shape > 1, centred; the deviation is the scale of the law if the variance is infinite."""

    name = "log_logistic"
    summary = "one heavy tail from a bell, centred; shape = tail index (> 1)"
    shape: float = 3.0
    """Tail index, P(Z > t) ~ t^-shape."""
