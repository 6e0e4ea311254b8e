"""Private means of heavy-tailed samples: simple clipping, and the iterative mean of noisy group means.

Source: Zhao, Wu, Liu, Wang, Fan, Li, "Differential Private Stochastic Optimization with Heavy-tailed Data: Towards
Optimal Rates", Algorithms 2 and 3. Samples X have a directional moment ``E |<u, X>|^p <= M^p`` for every unit u, raw
and not centred. Relation: one sample is replaced; n is public. Numbers that the paper leaves open are ours, as said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from strategies.baselines.heavy_tailed.depth import Reach, reach, size_exponent
from userdp.accounting import check_least, check_positive
from userdp.arrays import Rows, Vector
from userdp.errors import BadInput

RadiusForm = Literal["paper", "directional"]

STEP = 0.25
"""The inner step of the iterative mean; the contraction is proven for it."""

CONTRACTION = math.sqrt(233 / 256)
"""The largest share that a step leaves of a distance above 4 r_0 (the paper's equation 104)."""

_EARLY = 5
"""The factor by which a second look at the closest iterates raises the number of starts."""


def simple_radius(
    samples: int, dimension: int, order: float, rho: float, moment: float = 1.0, form: RadiusForm = "paper"
) -> float:
    """R for `simple_clip_mean`: clipping bias, noise and the concentration of clipped samples in balance.

    "paper": ``M sqrt(d) min((n sqrt(rho / d))^(1/p), (n/d)^(1/p))``, the first for rho <= 1/d. "directional": ``M
    d^(1/2 - 1/p) (n sqrt(rho))^(1/p)`` (ours), which balances the noise with the smaller bias bound ``d^((p-1)/2) M^p
    R^(1-p)`` that the moment bound in EVERY direction gives. ``rho`` is of the whole run, p >= 2 may be infinite; the
    paper silently takes M = 1. Raises `BadInput` for an argument out of range.
    """
    _check_moments(samples, dimension, order, moment, rho)
    power = 1 / order
    if form == "directional":
        return float(moment * dimension ** (0.5 - power) * (samples * math.sqrt(rho)) ** power)
    if form != "paper":
        raise BadInput(f"form = {form!r}: must be 'paper' or 'directional'")
    base = min(samples * math.sqrt(rho / dimension), samples / dimension)
    return float(moment * math.sqrt(dimension) * base**power)


def group_radius(samples: int, dimension: int, order: float, rho: float, moment: float = 1.0) -> float:
    """R for the iterative mean: ``M sqrt(d) (n sqrt(rho / d))^(1/p)``.

    ``rho`` is of the mean of all groups: that of a group over k (ours), or epsilon^2 (the paper's, in its descent). p
    >= 2. Raises `BadInput` for an argument out of range.
    """
    _check_moments(samples, dimension, order, moment, rho)
    return float(moment * math.sqrt(dimension) * (samples * math.sqrt(rho / dimension)) ** (1 / order))


@dataclass(frozen=True)
class Centre:
    """The end of the iteration."""

    point: Vector  # (d,) the iterate that was closest, by its own measure
    distance: float  # that measure, signed
    distances: tuple[float, ...]  # of all iterates looked at, in order


def deep_centre(
    points: Rows,  # (k, d)
    share: float = 0.5,  # phi in (0.1, 0.9]
    steps: int = 100,  # t_c at most; the iteration also stops when no direction has that share beyond the centre
    # (d,) not depending on private data, or only on what was released; the points' coordinate-wise median if not given
    start: Vector | None = None,
    rng: np.random.Generator | None = None,  # of random starts in three dimensions and more; a fixed one if not given
    restarts: int = 8,  # see `reach`
) -> Centre:
    """A centre deep among (k, d) points: steps of a quarter of the reach along its direction (Algorithm 3's loop).

    With ``share = 0.9`` as in the paper the iteration ends anywhere within the region that no direction has nine points
    in ten beyond; with 0.5 (ours) it ends near the middle. Where r_0 bounds, for every direction, how far all but a
    tenth of the points lie from mu, any share in (0.1, 0.9] has ``|d - ||c - mu||| <= r_0`` and, while c is farther
    than 4 r_0, steps that shorten the distance by ``sqrt(233/256)`` at least. So outliers, up to a tenth of the points,
    do no harm. It touches no data: applied to released points it is post-processing. Raises `BadInput`: a share outside
    (0.1, 0.9], no steps, or points that are not finite.
    """
    if not 0.1 < share <= 0.9:
        raise BadInput(f"share = {share}: must lie in (0.1, 0.9], for which the iteration is proven")
    check_least("steps", steps)
    rng = np.random.default_rng(0) if rng is None else rng
    exponent = size_exponent(points if start is None else np.vstack([points, start]))
    points = np.ldexp(points, -exponent)
    centre = np.median(points, axis=0) if start is None else np.ldexp(start, -exponent)
    visited: list[Vector] = []
    found: list[Reach] = []
    for _ in range(steps):
        step = reach(points - centre, share, rng, restarts, found[-1].direction if found else None)
        visited.append(centre)
        found.append(step)
        if step.distance <= 0 or arrived([one.distance for one in found]):
            break
        centre = centre + STEP * step.distance * step.direction
    else:
        # The proof needs the last centre's distance too, which the paper's listing never takes.
        visited.append(centre)
        found.append(reach(points - centre, share, rng, restarts, found[-1].direction))
    distances = _looked_again(points, share, visited, found, rng, restarts)
    best = int(np.argmin(distances))
    measured = np.ldexp(distances, exponent).tolist()
    return Centre(np.ldexp(visited[best], exponent), measured[best], tuple(measured))


def arrived(distances: Sequence[float]) -> bool:
    """Return whether the last distance is so large that an iterate must have come within 4 r_0 of mu.

    Ours; the paper takes a fixed number of steps. Let c_l and the j - 1 iterates after it be farther than 4 r_0 from
    mu. With ``q = CONTRACTION`` and D the distance of c_l from mu, that of c_(l+j) is at most ``q^j D``, and r_0 less
    than ``q^(j-1) D / 4``. Since measured distances are within r_0, the one of c_(l+j) is below ``q^(j-1) (q + 1/4)
    D``, that of c_l above ``(1 - q^(j-1) / 4) D``, and so their ratio below ``q^(j-1) (q + 1/4) / (1 - q^(j-1) / 4)``.
    Where it is not, one of these iterates was within 4 r_0. ``distances`` are those of all iterates, in order.
    """
    *earlier, last = distances
    left = CONTRACTION ** np.arange(len(earlier) - 1, -1, -1.0)
    return bool((last >= left * (CONTRACTION + 0.25) / (1 - left / 4) * np.array(earlier)).any())


def _looked_again(
    points: Rows, share: float, visited: list[Vector], found: list[Reach], rng: np.random.Generator, restarts: int
) -> list[float]:
    """Distances, those of the three closest iterates from more starts: a distance found too small would win."""
    distances = [step.distance for step in found]
    if points.shape[1] > 2:
        for index in np.argsort(distances, kind="stable")[:3]:
            hint = found[index].direction
            again = reach(points - visited[index], share, rng, _EARLY * restarts, hint)
            distances[index] = max(distances[index], again.distance)
    return distances


def _check_moments(samples: int, dimension: int, order: float, moment: float, rho: float) -> None:
    if samples < 1 or dimension < 1:
        raise BadInput(f"samples = {samples}, dimension = {dimension}: must be at least 1")
    if not order >= 2:
        raise BadInput(f"moment_order = {order}: must be at least 2")
    check_positive(moment=moment)
    if not rho > 0:
        raise BadInput(f"rho = {rho}: must be positive")
