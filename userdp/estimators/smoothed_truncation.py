"""A mean for heavy tails: each value is scaled, multiplied by smoothing noise, and softly truncated, in expectation.

Catoni, Giulini (2017) and Holland (2019), in the closed form that private gradient descent of Wang, Xiao, Devadas, Xu
(2020) uses. No noise is drawn: the expectation over it is computed.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from userdp.errors import BadInput

Array = NDArray[np.float64]

LARGEST = 2 * math.sqrt(2) / 3
"""Bound on every truncated value."""

_EDGE = math.sqrt(2)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_FAR = 1e100
_DEVIATIONS = 8.5
_SATURATED = 12.0
"""Beyond this, a value with little smoothing noise is truncated for certain (to 1e-24)."""


def soft_truncation(values: Array) -> Array:
    """``phi(u) = u - u^3/6`` up to sqrt(2), and its value there, ``+-2 sqrt(2)/3``, beyond."""
    inside = np.clip(values, -_EDGE, _EDGE)
    return np.asarray(inside - inside**3 / 6)


def smoothed_truncation(centers: Array, widths: Array) -> Array:
    """``h(a, b) = E phi(a + b u)``, u standard normal, entry by entry; within ``+-2 sqrt(2)/3``.

    The closed form cancels where the noise is wide (a cube of the centre against terms that undo it); there the bounded
    inner part is integrated by Gauss-Legendre, whose integrand is smooth for just those entries.

    Args:
        centers: a, finite.
        widths: b >= 0, of the same shape.
    """
    a, b = np.broadcast_arrays(np.asarray(centers, dtype=np.float64), np.asarray(widths, dtype=np.float64))
    size = np.abs(a)
    # Most entries of most data: the edge is so many deviations away that the cubic is all there is (to 1e-16).
    result = np.array(a * (1 - np.minimum(b, 1) ** 2 / 2) - np.clip(a, -_EDGE, _EDGE) ** 3 / 6)
    far = size + _DEVIATIONS * b > _EDGE
    result[far] = soft_truncation(a[far])
    wide = b >= 1
    narrow = far & (b > 0) & ~wide & (size < _SATURATED)
    result[wide] = _by_quadrature(a[wide], b[wide])
    result[narrow] = _closed_form(a[narrow], b[narrow])
    return np.asarray(np.clip(result, -LARGEST, LARGEST))


def truncated_samples(values: Array, scale: float, inverse_variance: float) -> Array:
    """``h(g / s, |g| / (s sqrt(kappa)))`` of every entry; a row that is not finite counts as zero.

    Raises:
        BadInput: scale or inverse variance is not a positive number.
    """
    for name, number in (("scale", scale), ("inverse_variance", inverse_variance)):
        if not 0 < number < math.inf:
            raise BadInput(f"{name} = {number}: must be a positive number")
    with np.errstate(over="ignore"):  # beyond any bound of use, all values are equally far out
        centers = np.clip(np.where(np.isfinite(values).all(axis=-1, keepdims=True), values, 0.0) / scale, -_FAR, _FAR)
    return smoothed_truncation(centers, np.abs(centers) / math.sqrt(inverse_variance))


def smoothed_truncation_mean(rows: Array, scale: float, inverse_variance: float) -> Array:
    """(d,) from (n, d): ``s / n`` times the sum of truncated entries.

    *Formal guarantees.* Unit: a row; relation: replace-one, n public. Entries lie in ``+-2 sqrt(2)/3``, so one row
    moves each coordinate by at most ``4 sqrt(2) s / (3n)`` and the vector by `truncation_sensitivity`.
    """
    return np.asarray(scale * truncated_samples(rows, scale, inverse_variance).sum(axis=0) / len(rows))


def truncation_sensitivity(scale: float, samples: int, dimension: int, group: int = 1) -> float:
    """l2 sensitivity of the mean when ``group`` rows are replaced: ``group sqrt(d) 4 sqrt(2) s / (3 n)``."""
    return 2 * LARGEST * scale * group * math.sqrt(dimension) / samples


def _closed_form(a: Array, b: Array) -> Array:
    with np.errstate(over="ignore"):  # a hundred deviations away there is nothing
        lower, upper = np.clip((_EDGE - a) / b, -100, 100), np.clip((_EDGE + a) / b, -100, 100)
    below, above = ndtr(-lower), ndtr(-upper)
    bell_lower, bell_upper = np.exp(-(lower**2) / 2), np.exp(-(upper**2) / 2)
    root = math.sqrt(2 * math.pi)
    total = a * (1 - b**2 / 2) - a**3 / 6
    total += LARGEST * (below - above) - (a - a**3 / 6) * (below + above)
    total += b / root * (1 - a**2 / 2) * (bell_upper - bell_lower)
    total += a * b**2 / 2 * (above + below + (upper * bell_upper + lower * bell_lower) / root)
    total += b**3 / (6 * root) * ((2 + lower**2) * bell_lower - (2 + upper**2) * bell_upper)
    return np.asarray(total)


def _by_quadrature(a: Array, b: Array) -> Array:
    """Truncated mass plus the integral of ``phi(x)`` times the density over ``|x| <= sqrt(2)``."""
    total = LARGEST * (ndtr((a - _EDGE) / b) - ndtr((-_EDGE - a) / b))
    with np.errstate(under="ignore"):
        for node, weight in zip(_NODES * _EDGE, _WEIGHTS * _EDGE, strict=True):
            density = np.exp(-(((node - a) / b) ** 2) / 2) / (b * math.sqrt(2 * math.pi))
            total += weight * (node - node**3 / 6) * density
    return np.asarray(total)
