"""Private means of heavy-tailed samples: simple clipping, and the iterative mean of noisy group means.

Source: Zhao, Wu, Liu, Wang, Fan, Li, "Differential Private Stochastic Optimization with Heavy-tailed Data: Towards
Optimal Rates", Algorithms 2 and 3. Samples X have a directional moment ``E |<u, X>|^p <= M^p`` for every unit u, raw
and not centred. Relation: one sample is replaced; n is public. Numbers that the paper leaves open are ours, as said.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from userdp.computations import clip_rows, finite_rows
from userdp.errors import BadInput
from userdp.estimators.depth import Reach, reach, size_exponent
from userdp.estimators.robust import finite_mean
from userdp.mechanisms import GaussianMechanism
from userdp.noise import SeededNoise

Rows = NDArray[np.float64]
Vector = NDArray[np.float64]
RadiusForm = Literal["paper", "directional"]

STEP = 0.25
"""The inner step of the iterative mean; the contraction by ``sqrt(233/256)`` a step is proven for it."""

_EARLY = 5
"""How many times more starts the closest iterates are looked at again with."""


def clip_samples(samples: Rows, clip_norm: float) -> Rows:
    """(n, d) samples, each scaled down to l2 norm at most ``clip_norm``; one that is not finite becomes zero.

    The projection on a ball, so 1-Lipschitz and idempotent, and a map of each record by itself.

    Raises:
        BadInput: samples are no matrix with a row, or a clip that is not positive.
    """
    if samples.ndim != 2 or samples.size == 0:
        raise BadInput(f"samples must be a matrix with at least one row, got shape {samples.shape}")
    if not clip_norm > 0:
        raise BadInput(f"clip_norm = {clip_norm}: must be positive")
    return clip_rows(finite_rows(np.asarray(samples, dtype=np.float64))[0], clip_norm)


def sample_mechanism(clip_norm: float, divisor: float, rho: float) -> GaussianMechanism | None:
    """The noise on a sum of clipped samples over ``divisor``, rho-zCDP for one replaced sample; None at infinite rho.

    *Formal guarantees.* Replacing a sample moves the quotient by at most ``2 R / divisor``, and Gaussian noise of
    variance ``(2 R / divisor)^2 / (2 rho)`` a coordinate is rho-zCDP (Bun, Steinke 2016, Proposition 1.6).

    Raises:
        BadInput: rho, the clip or the divisor is not positive, or the clip is infinite where there is noise.
    """
    if not rho > 0:
        raise BadInput(f"rho = {rho}: must be positive")
    if rho == math.inf:
        return None
    return GaussianMechanism(2 * clip_norm / divisor, 1 / math.sqrt(2 * rho))


def simple_clip_mean(samples: Rows, clip_norm: float, rho: float, rng: np.random.Generator) -> Vector:
    """The mean of clipped samples with Gaussian noise (the paper's Algorithm 2).

    *Formal guarantees.* rho-zCDP for one replaced sample: clipping holds each record to norm R on its own, so the mean
    moves by at most 2R/n; see `sample_mechanism`. n, the number of rows, is public.

    Args:
        samples: (n, d).
        clip_norm: R, in units of the samples.
        rho: the budget; infinite for no noise, which protects nobody.
        rng: of the noise.

    Raises:
        BadInput: an argument out of range.
    """
    mean = finite_mean(clip_samples(samples, clip_norm), axis=0)
    mechanism = sample_mechanism(clip_norm, len(samples), rho)
    return mean if mechanism is None else mechanism.release(mean, SeededNoise(rng))


def simple_radius(
    samples: int, dimension: int, order: float, rho: float, moment: float = 1.0, form: RadiusForm = "paper"
) -> float:
    """R for `simple_clip_mean`: clipping bias, noise and the concentration of clipped samples in balance.

    "paper": ``M sqrt(d) min((n sqrt(rho / d))^(1/p), (n/d)^(1/p))``, the first for rho <= 1/d. "directional":
    ``M d^(1/2 - 1/p) (n sqrt(rho))^(1/p)`` (ours), which balances the noise with the smaller bias bound
    ``d^((p-1)/2) M^p R^(1-p)`` that the moment bound in EVERY direction gives.

    Args:
        samples: n.
        dimension: d.
        order: p >= 2, may be infinite.
        rho: of the whole run.
        moment: M; the paper silently takes 1.
        form: which.

    Raises:
        BadInput: an argument out of range.
    """
    _check_moments(samples, dimension, order, moment)
    if not rho > 0:
        raise BadInput(f"rho = {rho}: must be positive")
    power = 1 / order
    if form == "directional":
        return float(moment * dimension ** (0.5 - power) * (samples * math.sqrt(rho)) ** power)
    if form != "paper":
        raise BadInput(f"form = {form!r}: must be 'paper' or 'directional'")
    base = min(samples * math.sqrt(rho / dimension), samples / dimension)
    return float(moment * math.sqrt(dimension) * base**power)


def group_radius(samples: int, dimension: int, order: float, rho: float, moment: float = 1.0) -> float:
    """R for the iterative mean: ``M sqrt(d) (n sqrt(rho / d))^(1/p)``.

    Args:
        samples: n.
        dimension: d.
        order: p >= 2.
        rho: of the mean of all groups: that of a group over k (ours), or epsilon^2 (the paper's, in its descent).
        moment: M.

    Raises:
        BadInput: an argument out of range.
    """
    _check_moments(samples, dimension, order, moment)
    if not rho > 0:
        raise BadInput(f"rho = {rho}: must be positive")
    return float(moment * math.sqrt(dimension) * (samples * math.sqrt(rho / dimension)) ** (1 / order))


def paper_groups(failure: float) -> int:
    """The number of groups in the paper's proof: ``800 ln(1/beta)``, rounded up, for a chance beta of failure.

    Raises:
        BadInput: a chance outside (0, 1).
    """
    if not 0 < failure < 1:
        raise BadInput(f"failure = {failure}: must lie strictly between 0 and 1")
    return math.ceil(800 * math.log(1 / failure))


def settled_distance(samples: int, dimension: int, groups: int, clip_norm: float, rho: float, moment: float) -> float:
    """r_0 of the paper: with chance 1 - beta, no direction has a tenth of the group means farther than this.

    ``max(160 M sqrt(d/n), 160 sqrt(2) (R sqrt(k)/n) sqrt(d/rho), 40 sqrt(2 R^2 k^2 / (rho n^2) + M^2 k/n))``, for
    ``k = paper_groups(beta)`` and rho that of a group. The iterative mean then ends within 6 r_0 of the mean of the
    clipped samples.
    """
    n, d, k = samples, dimension, groups
    return max(
        160 * moment * math.sqrt(d / n),
        160 * math.sqrt(2) * clip_norm * math.sqrt(k) / n * math.sqrt(d / rho),
        40 * math.sqrt(2 * (clip_norm * k / n) ** 2 / rho + moment**2 * k / n),
    )


def inner_steps(start_distance: float, settled: float) -> int:
    """t_c of the paper: ``2 ln(||c_1 - mu|| / (4 r_0)) / ln(256/233)``, rounded up, at least 1.

    Raises:
        BadInput: a distance that is not a number, or r_0 that is not positive.
    """
    if not (settled > 0 and start_distance >= 0):
        raise BadInput(f"distances {start_distance} and {settled}: must be numbers, the second positive")
    if start_distance <= 4 * settled:
        return 1
    return math.ceil(2 * math.log(start_distance / (4 * settled)) / math.log(256 / 233))


@dataclass(frozen=True)
class Centre:
    """Where the iteration ended.

    Attributes:
        point: (d,) the iterate that was closest, by its own measure.
        distance: that measure, signed.
        distances: of all iterates looked at, in order.
    """

    point: Vector
    distance: float
    distances: tuple[float, ...]


def deep_centre(
    points: Rows,
    share: float = 0.5,
    steps: int = 100,
    start: Vector | None = None,
    rng: np.random.Generator | None = None,
    restarts: int = 8,
) -> Centre:
    """A centre deep among (k, d) points: steps of a quarter of the reach along its direction (Algorithm 3's loop).

    With ``share = 0.9`` as in the paper the iteration ends anywhere within the region that no direction has nine points
    in ten beyond; with 0.5 (ours) it ends near the middle. Where r_0 bounds, for every direction, how far all but a
    tenth of the points lie from mu, any share in (0.1, 0.9] has ``|d - ||c - mu||| <= r_0`` and, while c is farther
    than 4 r_0, steps that shorten the distance by ``sqrt(233/256)`` at least. So outliers, up to a tenth of the points,
    do no harm. It touches no data: applied to released points it is post-processing.

    Args:
        points: (k, d).
        share: phi in (0.1, 0.9].
        steps: t_c at most; the iteration stops when no direction has that share beyond the centre.
        start: (d,) not depending on private data, or only on what was released; the points' coordinate-wise median if
            not given.
        rng: of random starts in three dimensions and more; a fixed one if not given.
        restarts: see `reach`.

    Raises:
        BadInput: a share outside (0.1, 0.9], no steps, or points that are not finite.
    """
    if not 0.1 < share <= 0.9:
        raise BadInput(f"share = {share}: must lie in (0.1, 0.9], for which the iteration is proven")
    if steps < 1:
        raise BadInput(f"steps = {steps}: must be at least 1")
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
        if step.distance <= 0:
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


def random_partition(samples: int, groups: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(k, m): k disjoint groups of m = n // k of the n samples, uniformly at random; the rest are in no group.

    Keep it secret, and draw one for each release, where the accounting is by shuffling.

    Raises:
        BadInput: no group, or more groups than samples.
    """
    if not 1 <= groups <= samples:
        raise BadInput(f"groups = {groups}: must be at least 1 and at most the {samples} samples")
    size = samples // groups
    return rng.permutation(samples)[: groups * size].reshape(groups, size)


def group_means(
    samples: Rows, partition: NDArray[np.int64], clip_norm: float, rho: float, rng: np.random.Generator
) -> Rows:
    """(k, d): noisy means of clipped samples, group by group.

    *Formal guarantees.* One sample is in at most one group, so it moves the (k, d) matrix by at most 2R/m, in one row:
    rho-zCDP together, for any partition. By shuffling, less is lost; see `userdp.accounting.shuffling`.

    Raises:
        BadInput: an argument out of range.
    """
    means = finite_mean(clip_samples(samples, clip_norm)[partition], axis=1)
    mechanism = sample_mechanism(clip_norm, partition.shape[1], rho)
    return means if mechanism is None else mechanism.release(means, SeededNoise(rng))


def iterative_mean(
    samples: Rows,
    clip_norm: float,
    groups: int,
    rho: float,
    rng: np.random.Generator,
    *,
    share: float = 0.5,
    steps: int = 100,
    start: Vector | None = None,
    restarts: int = 8,
) -> Vector:
    """The deep centre of noisy means of a fresh random partition (the paper's Algorithm 3).

    *Formal guarantees.* That of `group_means`, of which all else is post-processing: rho-zCDP for one replaced sample
    with rho = `userdp.accounting.rho_for`, or (epsilon, delta)-DP with rho = `userdp.accounting.shuffling.group_rho`
    while the partition, drawn here and kept by nobody, is secret.

    Args:
        samples: (n, d).
        clip_norm: R.
        groups: k, from 1 to n.
        rho: that each group may spend; infinite for no noise.
        rng: of partition, noise and starts.
        share: see `deep_centre`; 0.9 is the paper's.
        steps: see `deep_centre`.
        start: see `deep_centre`.
        restarts: see `reach`.

    Raises:
        BadInput: an argument out of range.
    """
    partition = random_partition(len(samples), groups, rng)
    means = group_means(samples, partition, clip_norm, rho, rng)
    return deep_centre(means, share, steps, start, rng, restarts).point


def _check_moments(samples: int, dimension: int, order: float, moment: float) -> None:
    if samples < 1 or dimension < 1:
        raise BadInput(f"samples = {samples}, dimension = {dimension}: must be at least 1")
    if not order >= 2:
        raise BadInput(f"moment_order = {order}: must be at least 2")
    if not 0 < moment < math.inf:
        raise BadInput(f"moment = {moment}: must be a positive number")
