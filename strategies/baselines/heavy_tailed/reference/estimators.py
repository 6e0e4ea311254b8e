"""Private means of heavy-tailed samples on plain arrays: clipped, and deep among means of groups."""

import math

import numpy as np
from numpy.typing import NDArray

from strategies.baselines.heavy_tailed.estimators import deep_centre
from userdp.arrays import Rows, Vector, clip_rows, finite_rows
from userdp.errors import BadInput
from userdp.estimators import finite_mean
from userdp.mechanisms import GaussianMechanism
from userdp.noise import SeededNoise


def clip_samples(samples: Rows, clip_norm: float) -> Rows:
    """(n, d) samples, each scaled down to l2 norm at most ``clip_norm``; one that is not finite becomes zero.

    The projection on a ball, so 1-Lipschitz and idempotent, and a map of each record by itself. Raises `BadInput`:
    samples are no matrix with a row, or a clip that is not positive.
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

    Raises `BadInput`: rho, the clip or the divisor is not positive, or the clip is infinite where there is noise.
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

    Raises `BadInput` for an argument out of range.

    Args:
        samples: (n, d).
        clip_norm: R, in units of the samples.
        rho: the budget; infinite for no noise, which protects nobody.
        rng: of the noise.
    """
    mean = finite_mean(clip_samples(samples, clip_norm), axis=0)
    mechanism = sample_mechanism(clip_norm, len(samples), rho)
    return mean if mechanism is None else mechanism.release(mean, SeededNoise(rng))


def paper_groups(failure: float) -> int:
    """The number of groups in the paper's proof: ``800 ln(1/beta)``, rounded up, for a chance beta of failure.

    Raises `BadInput`: a chance outside (0, 1).
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

    Raises `BadInput`: a distance that is not a number, or r_0 that is not positive.
    """
    if not (settled > 0 and start_distance >= 0):
        raise BadInput(f"distances {start_distance} and {settled}: must be numbers, the second positive")
    if start_distance <= 4 * settled:
        return 1
    return math.ceil(2 * math.log(start_distance / (4 * settled)) / math.log(256 / 233))


def random_partition(samples: int, groups: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(k, m): k disjoint groups of m = n // k of the n samples, uniformly at random; the rest are in no group.

    Keep it secret, and draw one for each release, where the accounting is by shuffling. Raises `BadInput`: no group, or
    more groups than samples.
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
    rho-zCDP together, for any partition. By shuffling, less is lost; see `strategies.baselines.heavy_tailed.shuffling`.

    Raises `BadInput` for an argument out of range.
    """
    means = finite_mean(clip_samples(samples, clip_norm)[partition], axis=1)
    mechanism = sample_mechanism(clip_norm, partition.shape[1], rho)
    return means if mechanism is None else mechanism.release(means, SeededNoise(rng))


def iterative_mean(
    samples: Rows,  # (n, d)
    clip_norm: float,  # R
    groups: int,  # k, from 1 to n
    rho: float,  # that each group may spend; infinite for no noise
    rng: np.random.Generator,  # of partition, noise and starts
    *,
    share: float = 0.5,  # see `deep_centre`; 0.9 is the paper's
    steps: int = 100,  # see `deep_centre`
    start: Vector | None = None,  # see `deep_centre`
    restarts: int = 8,  # see `reach`
) -> Vector:
    """The deep centre of noisy means of a fresh random partition (the paper's Algorithm 3).

    *Formal guarantees.* That of `group_means`, of which all else is post-processing: rho-zCDP for one replaced sample
    with rho = `userdp.accounting.rho_for`, or (epsilon, delta)-DP with rho = `shuffling.group_rho`
    while the partition, drawn here and kept by nobody, is secret.

    Raises `BadInput` for an argument out of range.
    """
    partition = random_partition(len(samples), groups, rng)
    means = group_means(samples, partition, clip_norm, rho, rng)
    return deep_centre(means, share, steps, start, rng, restarts).point
