"""A mean for heavy tails: values are scaled, multiplied by smoothing noise, and softly truncated, in expectation.

Catoni, Giulini (2017) and Holland (2019), in the closed form that private gradient descent of Wang, Xiao, Devadas, Xu
(2020) and private Frank-Wolfe of Hu, Ni, Xiao, Wang (2022) use. No noise is drawn: the expectation over it is computed.
"""

import math

import numpy as np
from scipy.special import erf, ndtr

from userdp.arrays import Rows
from userdp.errors import BadInput

LARGEST = 2 * math.sqrt(2) / 3  # The bound on every truncated value

_EDGE = math.sqrt(2)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_FAR = 1e100
_DEVIATIONS = 8.5
_SATURATED = 12.0  # Beyond it, a value with little smoothing noise is truncated for certain (to 1e-24).


def soft_truncation(values: Rows) -> Rows:
    """Return ``phi(u) = u - u^3/6`` up to sqrt(2), and its value there, ``+-2 sqrt(2)/3``, beyond."""
    inside = np.clip(values, -_EDGE, _EDGE)
    return np.asarray(inside - inside**3 / 6)


def smoothed_truncation(centres: Rows, widths: Rows) -> Rows:
    """Return ``h(a, b) = E phi(a + b u)``, u standard normal; a are finite centres, b >= 0 widths; within `LARGEST`.

    The closed form cancels where the noise is wide (a cube of the centre against terms that undo it); there
    Gauss-Legendre integrates the bounded inner part, whose integrand is smooth for just those entries.
    """
    centres, b = np.broadcast_arrays(np.asarray(centres, dtype=np.float64), np.asarray(widths, dtype=np.float64))
    a = np.abs(centres)  # odd in the centre, to the last bit
    # Most entries of most data: the edge is so many deviations away that the cubic is all there is (to 1e-16).
    result = np.array(a * (1 - np.minimum(b, 1) ** 2 / 2) - np.minimum(a, _EDGE) ** 3 / 6)
    far = a + _DEVIATIONS * b > _EDGE
    result[far] = soft_truncation(a[far])
    wide = b >= 1
    narrow = far & (b > 0) & ~wide & (a < _SATURATED)
    result[wide] = _by_quadrature(a[wide], b[wide])
    result[narrow] = _closed_form(a[narrow], b[narrow])
    return np.asarray(np.copysign(np.clip(result, 0.0, LARGEST), centres))


def largest_truncated(inverse_variance: float) -> float:
    """Return ``B(beta) = (2 sqrt(2) / 3) (2 Phi(sqrt(beta)) - 1)``, the supremum of `noisily_truncated`.

    Proof. For a > 0 fold the expectation at zero: ``E phi(a w) = int_0^inf phi(a w) (p(w) - p(-w)) dw``, where p is the
    density of w ~ N(1, 1/beta) and ``p(w) >= p(-w)``. phi rises to ``2 sqrt(2) / 3``, so the expectation rises in a, to
    that bound times ``P(w > 0) - P(w < 0)``. Raises `BadInput` if the inverse variance is not positive.
    """
    if not inverse_variance > 0:
        raise BadInput(f"inverse_variance = {inverse_variance}: must be a positive number, or infinity for no noise")
    return LARGEST * float(erf(math.sqrt(inverse_variance / 2)))


def noisily_truncated(values: Rows, inverse_variance: float) -> Rows:
    """Return ``g(a) = E phi(a w)`` with ``w ~ N(1, 1/beta)``, entry by entry: odd, rising, within ``+-B(beta)``.

    beta is ``inverse_variance``, infinity for phi itself; infinite values give the limit, NaN gives zero. The last clip
    to `largest_truncated` removes nothing but rounding. It stays, because sensitivities rest on it. Raises `BadInput`
    if the inverse variance is not positive.
    """
    largest = largest_truncated(inverse_variance)
    # Beyond any bound of use, all values are equally far out.
    centres = np.clip(np.where(np.isnan(values), 0.0, values), -_FAR, _FAR)
    truncated = smoothed_truncation(centres, np.abs(centres) / math.sqrt(inverse_variance))
    return np.asarray(np.clip(truncated, -largest, largest))


def truncated_samples(values: Rows, scale: float, inverse_variance: float) -> Rows:
    """Return `noisily_truncated` of every entry over ``scale`` > 0; a (..., d) row that is not finite counts as zero.

    Raises `BadInput` if scale or inverse variance is not positive, or the scale is infinite.
    """
    if not 0 < scale < math.inf:
        raise BadInput(f"scale = {scale}: must be a positive number")
    finite = np.isfinite(values).all(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):  # infinite quotients are truncated like all that is far out
        return noisily_truncated(np.where(finite, values, 0.0) / scale, inverse_variance)


def smoothed_truncation_mean(rows: Rows, scale: float, inverse_variance: float) -> Rows:
    """Return (d,) from (n, d): ``s / n`` times the sum of truncated entries.

    *Formal guarantees.* Unit: a row; relation: replace-one, n public. Entries lie in ``+-B(beta)``, so one row moves
    each coordinate by at most `coordinate_sensitivity` and the vector by `truncation_sensitivity`.
    """
    return np.asarray(scale * (truncated_samples(rows, scale, inverse_variance).sum(axis=0) / len(rows)))


def coordinate_sensitivity(scale: float, samples: float, inverse_variance: float = math.inf) -> float:
    """Return how far replacing one row moves a coordinate of the mean: ``2 s B(beta) / n``, attained.

    ``4 sqrt(2) s / (3 n)``, for infinite beta, holds for every beta. Raises `BadInput` if the inverse variance is not
    positive.
    """
    return 2 * largest_truncated(inverse_variance) * scale / samples


def truncation_sensitivity(scale: float, samples: int, dimension: int, group: int = 1) -> float:
    """Return the l2 sensitivity to ``group`` replaced rows: ``group sqrt(d) 4 sqrt(2) s / (3 n)``, for any beta."""
    return coordinate_sensitivity(scale, samples) * group * math.sqrt(dimension)


def _closed_form(a: Rows, b: Rows) -> Rows:
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


def _by_quadrature(a: Rows, b: Rows) -> Rows:
    total = LARGEST * (ndtr((a - _EDGE) / b) - ndtr((-_EDGE - a) / b))
    with np.errstate(under="ignore"):
        for node, weight in zip(_NODES * _EDGE, _WEIGHTS * _EDGE, strict=True):
            density = np.exp(-(((node - a) / b) ** 2) / 2) / (b * math.sqrt(2 * math.pi))
            total += weight * (node - node**3 / 6) * density
    return np.asarray(total)
