"""Descents on plain arrays: averaged clipping, its restarts, and the baselines that it is compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.baselines.averaged_clipping.parameters import average_clip
from strategies.baselines.averaged_clipping.restarts import Run
from strategies.baselines.samples.batch_rounds import clamped_batch
from strategies.baselines.smoothed_truncation import smoothed_truncation_mean, truncation_sensitivity
from userdp.arrays import Indices, Rows, Vector, clip_rows, finite_rows
from userdp.mechanisms import GaussianMechanism
from userdp.noise import SeededNoise

MeanGradient = Callable[[int, Vector], Vector]
"""(round, x) -> mean gradient of the round's batch, by a public divisor."""

Project = Callable[[Vector], Vector]


@dataclass(frozen=True, eq=False)
class Descent:
    """A run."""

    points: Rows  # (N + 1, d) x^0, ..., x^N
    gradients: Rows  # (N, d) the noisy gradients that were followed
    clipped: int  # rounds in which the mean was shortened
    clip_calls: int  # how often a clip was computed
    noise_multiplier: float  # noise over sensitivity in every round, for the ledger; 0 without noise

    @property
    def average(self) -> Vector:
        """Mean of x^0, ..., x^{N-1}: what the theory speaks of. x^N is not in it."""
        return np.asarray(self.points[:-1].mean(axis=0))

    @property
    def last(self) -> Vector:
        """x^N."""
        return np.asarray(self.points[-1])


def everywhere(x: Vector) -> Vector:
    """The projection on the whole space."""
    return x


def ball(centre: Vector, radius: float) -> Project:
    """The projection on the l2 ball."""
    return lambda x: centre + average_clip(x - centre, radius)


def poisson_rows(samples: int, batch: int, rng: np.random.Generator) -> Callable[[int], Indices]:
    """Rounds of independent coins: each row with chance batch/samples; a round may draw nobody."""
    rate = clamped_batch(batch, samples) / samples
    return lambda index: np.flatnonzero(rng.random(samples) < rate)


def batch_mean(
    sum_gradient: Callable[[Vector, Indices], Vector], rows: Callable[[int], Indices], batch: int
) -> MeanGradient:
    """Sum over the round's rows by the FIXED ``batch``, never by the number drawn; zero where nobody was drawn."""

    def mean(index: int, x: Vector) -> Vector:
        drawn = rows(index)
        return sum_gradient(x, drawn) / batch if len(drawn) else np.zeros_like(x)

    return mean


def averaged_clipping_sgd(
    mean_gradient: MeanGradient,  # of a round's batch
    start: Vector,  # (d,) x^0, within the set
    rounds: int,  # N
    *,
    step: float,  # gamma
    clip: float,  # lambda; infinity (without noise) never clips
    noise_multiplier: float,  # noise over ``2 clip``; 0 for none
    rng: np.random.Generator,  # of the noise
    project: Project = everywhere,  # on the convex set
) -> Descent:
    """Algorithm 1, AClipped-dpSGD; without noise, the paper's non-private baseline.

    *Formal guarantees.* Each round releases one vector of sensitivity ``2 clip`` (`average_clip`) with Gaussian noise
    of ``noise_multiplier`` times that. Rounds of Poisson-sampled rows compose by `userdp.accounting.amplified`, of
    fresh rows in parallel, of all rows as plain Gaussians. Everything after is post-processing.
    """
    mechanism = GaussianMechanism(2 * clip, noise_multiplier) if noise_multiplier else None
    points, gradients, clipped = np.empty((rounds + 1, len(start))), np.empty((rounds, len(start))), 0
    points[0] = start
    for index in range(rounds):
        mean = mean_gradient(index, points[index])
        gradient = average_clip(mean, clip)
        clipped += not np.array_equal(gradient, mean)
        gradients[index] = gradient if mechanism is None else mechanism.release(gradient, SeededNoise(rng))
        points[index + 1] = project(points[index] - step * gradients[index])
    return Descent(points, gradients, clipped, rounds, noise_multiplier)


def restarted_clipping_sgd(
    mean_gradient_of: Callable[[int, int], MeanGradient],  # (run, batch) -> oracle of that run
    start: Vector,  # (d,)
    runs: Sequence[Run],  # the schedule
    rounds: int,  # N0 of every run
    rng: np.random.Generator,  # of the noise
    # noise over ``2 clip``, the same in all runs (accountant); the schedule's own if not given
    noise_multiplier: float | None = None,
) -> list[Descent]:
    """Algorithm 2, R-AClipped-dpSGD; the model is the last run's average."""
    descents: list[Descent] = []
    for index, run in enumerate(runs):
        multiplier = run.noise_deviation / (2 * run.clip) if noise_multiplier is None else noise_multiplier
        descents.append(
            averaged_clipping_sgd(
                mean_gradient_of(index, run.batch),
                descents[-1].average if descents else start,
                rounds,
                step=run.step,
                clip=run.clip,
                noise_multiplier=multiplier,
                rng=rng,
            )
        )
    return descents


def sample_clipping_sgd(
    # (round, x) -> (B, d) rows of the round's batch; B may vary and may be 0
    sample_gradients: Callable[[int, Vector], Rows],
    start: Vector,  # (d,)
    rounds: int,  # N
    *,
    batch: int,  # m, the public divisor
    step: float,  # gamma
    clip: float,  # lambda
    noise_multiplier: float,  # noise over ``clip / batch``; 0 for none
    rng: np.random.Generator,  # of the noise
) -> Descent:
    """DP-SGD with a clip of every sample (Abadi et al. 2016; Das et al. 2023): the paper's first baseline.

    *Formal guarantees.* Adding or removing a sample moves the sum by at most ``clip``, hence the mean by
    ``clip / batch``; the noise is ``noise_multiplier`` times that. Accounted as `averaged_clipping_sgd`.
    """
    mechanism = GaussianMechanism(clip / batch, noise_multiplier) if noise_multiplier else None
    points, gradients = np.empty((rounds + 1, len(start))), np.empty((rounds, len(start)))
    clipped, calls = 0, 0
    points[0] = start
    for index in range(rounds):
        rows, _ = finite_rows(sample_gradients(index, points[index]))
        short = clip_rows(rows, clip)
        clipped += bool((np.abs(rows - short).max(initial=0.0)) > 0)
        calls += len(rows)
        mean = short.sum(axis=0) / batch
        gradients[index] = mean if mechanism is None else mechanism.release(mean, SeededNoise(rng))
        points[index + 1] = points[index] - step * gradients[index]
    return Descent(points, gradients, clipped, calls, noise_multiplier)


def smoothed_truncation_gd(
    sample_gradients: Callable[[Vector], Rows],  # x -> (n, d)
    start: Vector,  # (d,)
    rounds: int,  # T
    *,
    step: float,  # gamma
    scale: float,  # s
    inverse_variance: float,  # kappa of the multiplicative noise that is smoothed over
    noise_multiplier: float,  # noise over sensitivity; 0 for none
    rng: np.random.Generator,  # of the noise
    project: Project = everywhere,  # on the convex set
) -> Descent:
    """Full gradients, each coordinate by smoothed truncation (Wang et al. 2020): the paper's second baseline.

    *Formal guarantees.* Replacing a sample moves a round's mean by at most `truncation_sensitivity` in l2, and the
    noise is ``noise_multiplier`` times that; rounds compose as one Gaussian mechanism.
    """
    points, gradients, samples = np.empty((rounds + 1, len(start))), np.empty((rounds, len(start))), 0
    points[0] = start
    for index in range(rounds):
        rows = sample_gradients(points[index])
        samples += len(rows)
        gradient = smoothed_truncation_mean(rows, scale, inverse_variance)
        if noise_multiplier:
            sensitivity = truncation_sensitivity(scale, len(rows), len(start))
            gradient = GaussianMechanism(sensitivity, noise_multiplier).release(gradient, SeededNoise(rng))
        gradients[index] = gradient
        points[index + 1] = project(points[index] - step * gradient)
    return Descent(points, gradients, rounds, samples, noise_multiplier)
