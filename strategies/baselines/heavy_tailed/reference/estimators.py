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

    Samples are (n, d); an infinite rho adds no noise and protects nobody. Raises `BadInput` for an argument out of
    range.
    """
    mean = finite_mean(clip_samples(samples, clip_norm), axis=0)
    mechanism = sample_mechanism(clip_norm, len(samples), rho)
    return mean if mechanism is None else mechanism.release(mean, SeededNoise(rng))


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
