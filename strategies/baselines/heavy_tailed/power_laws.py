"""Laws with power tails, all laws by name, and the moments of many coordinates together."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.special import expit, gammaln, stdtr

from strategies.baselines.heavy_tailed.laws import (
    ChiSquared,
    Laplace,
    Law,
    LogGamma,
    Logistic,
    LogNormal,
    Noise,
    Normal,
    integral,
)
from userdp.data import student_t_in_place
from userdp.errors import BadInput

LawName = Literal[
    "normal", "logistic", "laplace", "chi_squared", "log_gamma", "log_normal", "student_t", "pareto", "log_logistic"
]


class StudentT(Law):
    """Student's t with ``shape`` degrees of freedom."""

    name = "student_t"
    draws = ("normal", "gamma")
    symmetric = True
    power_tail = True
    least_shape = 1.0

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return normals over the root of a scaled gamma variable."""
        return student_t_in_place(noise[0], noise[1], self.shape)

    def _variance(self) -> float:
        return self.shape / (self.shape - 2)

    def _survival(self, t: float) -> float:
        return float(stdtr(self.shape, -t))

    def _moment(self, order: float) -> float:
        nu = self.shape
        logs = gammaln((order + 1) / 2) + gammaln((nu - order) / 2) - gammaln(nu / 2)
        return float(nu ** (order / 2) * np.exp(logs) / math.sqrt(math.pi))


class Pareto(Law):
    """Pareto of index ``shape`` on [1, inf), minus its mean ``shape / (shape - 1)``."""

    name = "pareto"
    draws = ("exponential",)
    power_tail = True
    least_shape = 1.0

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return ``exp(E / shape)`` minus its mean, with E an exponential."""
        rows = noise[0]
        rows *= np.float32(1 / self.shape)
        np.exp(rows, out=rows)
        rows -= np.float32(self._mean)
        return rows

    def _variance(self) -> float:
        return self.shape / (self.shape - 2) / (self.shape - 1) ** 2

    def _survival(self, t: float) -> float:
        return float(min(1.0, max(t + self._mean, 1.0) ** -self.shape))

    @property
    def _mean(self) -> float:
        return self.shape / (self.shape - 1)

    def _moment(self, order: float) -> float:
        index, mean = self.shape, self._mean
        # Above the mean a beta integral; below it, on [1, mean], a bounded integrand.
        logs = gammaln(order + 1) + gammaln(index - order) - gammaln(index + 1)
        above = index * mean ** (order - index) * float(np.exp(logs))
        return float(above + integral(lambda x: (mean - x) ** order * index * x ** (-index - 1), 1, mean))


class LogLogistic(Law):
    """``P(X > t) = 1 / (1 + t^shape)``, minus its mean ``(pi / shape) / sin(pi / shape)``."""

    name = "log_logistic"
    draws = ("exponential",)
    power_tail = True
    least_shape = 1.0

    def centred(self, noise: Sequence[Noise]) -> Noise:
        """Return ``(exp(E) - 1)^(1 / shape)`` minus its mean, with E an exponential."""
        rows = noise[0]
        np.expm1(rows, out=rows)
        np.power(rows, np.float32(1 / self.shape), out=rows)
        rows -= np.float32(self._mean)
        return rows

    @property
    def _mean(self) -> float:
        return math.pi / self.shape / math.sin(math.pi / self.shape)

    def _variance(self) -> float:
        angle = 2 * math.pi / self.shape
        return angle / math.sin(angle) - self._mean**2

    def _survival(self, t: float) -> float:
        x = t + self._mean
        return float(expit(-self.shape * math.log(x))) if x > 0 else 1.0

    def _moment(self, order: float) -> float:
        mean = self._mean

        def near(t: float) -> float:
            return float(order * t ** (order - 1) * (self._survival(t) + 1 - self._survival(-t)))

        return integral(near, 0, mean) + self._upper(mean, order)

    def _upper(self, start: float, order: float) -> float:
        """``int_start^inf order t^(order - 1) P(Z > t) dt``, which converges slowly as the order nears the tail.

        With ``t = start v^(-1 / (tail - order))`` it is an integral over v in (0, 1] of a bounded function.
        """
        gap = self.tail - order

        def bounded(v: float) -> float:
            log_t = math.log(start) - math.log(v) / gap
            chance = self._survival(math.exp(log_t)) if log_t < 700 else 0.0
            return order / gap * math.exp(order * log_t + math.log(chance) - math.log(v)) if chance else 0.0

        return integral(bounded, 0, 1)


LAWS: dict[str, type[Law]] = {
    law.name: law for law in (Normal, Logistic, Laplace, ChiSquared, LogGamma, LogNormal, StudentT, Pareto, LogLogistic)
}


def directional_moment(law: Law, order: float, *, spherical: bool) -> float:
    """Return M with ``E |<u, Z>|^order <= M^order`` for every unit vector u, in any dimension; ``order >= 2``.

    Z has independent coordinates of the law or, if ``spherical``, the rotation invariant law with these coordinates
    (the multivariate t, the standard normal).

    *Proof.* Spherical: ``<u, Z>`` has the law itself, so M is exact. Independent: the terms ``u_j Z_j`` are independent
    of mean zero, so for ``order >= 2`` Rio (2009, Theorem 2.1) gives
    ``||sum u_j Z_j||_p^2 <= (p - 1) sum ||u_j Z_j||_p^2 = (p - 1) ||Z_1||_p^2``. At order 2 this is exact too. Raises
    `BadInput` if the order is below 2, or the law has no such moment.
    """
    if order < 2:
        raise BadInput(f"moment order {order:g}: the bound on every direction holds from order 2 on")
    single = float(law.moment(order) ** (1 / order))
    return single if spherical or isinstance(law, Normal) else math.sqrt(order - 1) * single
