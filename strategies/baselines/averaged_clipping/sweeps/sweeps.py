"""Tables of the page on averaged clipping."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.special import ndtr
from scipy.stats import binom
from sweeps.sweep import Sweep

from strategies.baselines.averaged_clipping.parameters import TheoryConstants, average_clip, constrained, paper_noise
from strategies.baselines.averaged_clipping.reference.descent import (
    averaged_clipping_sgd,
    ball,
    batch_mean,
    poisson_rows,
    sample_clipping_sgd,
    smoothed_truncation_gd,
)
from strategies.baselines.samples.poisson_samples import PoissonSamples
from userdp.accounting.amplified import poisson_epsilon
from userdp.arrays.types import Indices, Rows, Vector
from userdp.sampling import DisjointBatches, PoissonBatches, Sampler

DIMENSION = 10


def user_level() -> pd.DataFrame:
    """Noise multipliers of every way to draw, for one sample and for a user of 50; a user's noise in clips as well."""
    users, rate, rounds, most, batch = 100_000, 0.01, 100, 50, 500

    def coins(joint: bool) -> list[Sampler]:
        return [PoissonSamples(users, rate, rounds, most=own, joint=joint) for own in (None, most)]

    ways: dict[str, list[Sampler]] = {
        "averaged clipping, a coin for each sample": coins(joint=True),
        "averaged clipping, a coin for each user": [PoissonBatches(users, rate, rounds)] * 2,
        "averaged clipping, every user in one round": [DisjointBatches(users, users // rounds, 1)] * 2,
        "averaged clipping, everybody in every round": [DisjointBatches(users, users, rounds)] * 2,
        "clipped samples, a coin for each": coins(joint=False),
    }
    rows = []
    for way, samplers in ways.items():
        sample, user = (sampler.calibrate(1.0, 1e-6) for sampler in samplers)
        sensitivity = 1 / batch if way.startswith("clipped samples") else 2.0  # in clips
        rows.append((way, sample, user, sensitivity * user))
    return pd.DataFrame(rows, columns=["way", "multiplier_for_a_sample", "multiplier_for_a_user", "noise_for_a_user"])


def bias() -> pd.DataFrame:
    """Gradient 1 plus noise of 4 (5 %) or -0.21, clip 2: a batch's mean is a binomial's, so nothing is drawn."""
    clip, chance, high = 2.0, 0.05, 4.0
    low = -chance * high / (1 - chance)
    variance = chance * high**2 + (1 - chance) * low**2
    of_samples = 1 - (chance * min(clip, 1 + high) + (1 - chance) * (1 + low))
    rows = []
    for batch in (1, 2, 5, 10, 20):
        heads = np.arange(batch + 1)
        means = 1 + (heads * high + (batch - heads) * low) / batch
        clipped = np.array([average_clip(np.array([mean]), clip)[0] for mean in means])
        found = abs(float(binom.pmf(heads, batch, chance) @ clipped) - 1)
        rows.append((batch, found, of_samples, variance / (2 * batch * clip), 2 * variance / (batch * clip)))
    columns = ["batch", "bias", "bias_of_clipped_samples", "bound_proven_here", "bound_of_the_paper"]
    return pd.DataFrame(rows, columns=columns)


EXPERIMENTS = ((500, 24, 30, 1 / 500, (0.5, 1.0, 2.0)), (21_000, 200, 30, 1 / 21_000, (0.5, 1.0, 2.0)),
               (100_000, 200, 400, 1e-5, (0.5, 1.0, 2.0)), (50_000, 500, 150, 1e-5, (2.0, 4.0, 6.0)))  # fmt: skip
"""The experiments of the paper: n, m, passes, delta, and the epsilons."""


def closed_form() -> pd.DataFrame:
    """The cost of noise by the closed form at the settings of the paper's experiments, and the constant needed."""
    rows = []
    for samples, batch, passes, delta, epsilons in EXPERIMENTS:
        rounds, rate = round(passes * samples / batch), batch / samples
        for epsilon in epsilons:
            noise = paper_noise(TheoryConstants(samples, 1, epsilon, delta), 1.0, batch, rounds)
            spent = poisson_epsilon(noise / 2, rate, rounds, delta)
            constant = 2 * PoissonSamples(samples, rate, rounds).calibrate(epsilon, delta) / noise
            rows.append((samples, batch, passes, delta, epsilon, spent, constant))
    columns = ["n", "batch", "passes", "delta", "epsilon_claimed", "epsilon_found", "constant_needed"]
    return pd.DataFrame(rows, columns=columns)


def rates_cost() -> pd.DataFrame:
    """The cost of the closed form with the rounds and batches of Theorem 3, by an accountant and by one look at signs.

    If the others' gradients give -clip and one's own, where it is drawn, +clip, then the chance that some round's
    noisy value is positive is ``1 - (1 - q Phi(clip / s))^N`` with it, and at most ``N Phi(-clip / s)`` without.
    """
    rows = []
    for power in (4, 5, 6, 7):
        constants = TheoryConstants(10**power, DIMENSION, 1.0, 10.0**-power)
        found = constrained(constants)
        rate, clips = found.batch / constants.samples, found.clip / found.noise_deviation
        seen = 1 - (1 - rate * ndtr(clips)) ** found.rounds - math.e * found.rounds * ndtr(-clips)
        spent = poisson_epsilon(1 / (2 * clips), rate, found.rounds, constants.delta)
        rows.append((constants.samples, found.rounds, found.batch, constants.delta, seen, spent))
    columns = ["n", "rounds", "batch", "delta_claimed", "delta_at_least", "epsilon_found"]
    return pd.DataFrame(rows, columns=columns)


# Least squares, as the paper has them: (<a, x> - y)^2, normal features, noise by Student's t with 3 degrees -----------

SAMPLES, BATCH, ROUNDS, DELTA = 20_000, 200, 3000, 1 / 20_000
"""n, m, rounds (30 passes), and delta; epsilon is 0.5."""
AVERAGED = {"constrained": (0.54, 5e-4, 2.0), "unconstrained": (0.87, 2e-4, math.inf)}
"""Clips and steps of the paper, and the radius of the ball."""
OF_SAMPLES = (0.74, 4e-4)
"""The clip and the step of DP-SGD."""


@dataclass(frozen=True, eq=False)
class Regression:
    """A sample of n features and targets, drawn from a seed."""

    seed: int

    @cached_property
    def data(self) -> tuple[Rows, Vector]:
        """(n, d) features and (n,) targets."""
        rng = np.random.default_rng(self.seed)
        truth = rng.normal(size=DIMENSION)
        features = rng.normal(size=(SAMPLES, DIMENSION))
        return features, features @ (truth / np.linalg.norm(truth)) + rng.standard_t(3, size=SAMPLES)

    def gradients(self, x: Vector, drawn: Indices | slice = slice(None)) -> Rows:
        """(B, d): of the drawn samples."""
        features, targets = self.data
        return np.asarray(2 * (features[drawn] @ x - targets[drawn])[:, None] * features[drawn])

    def error(self, x: Vector) -> float:
        """Distance to the least-squares solution over that of the start, which is zero."""
        features, targets = self.data
        best = np.linalg.lstsq(features, targets, rcond=None)[0]
        return float(np.linalg.norm(x - best) / np.linalg.norm(best))


def order() -> pd.DataFrame:
    """Errors of the average iterate with the paper's clips and steps; median of six samples."""
    closed = paper_noise(TheoryConstants(SAMPLES, DIMENSION, 0.5, DELTA), 1.0, BATCH, ROUNDS)
    certified = PoissonSamples(SAMPLES, BATCH / SAMPLES, ROUNDS).calibrate(0.5, DELTA)
    # In multiples of the sensitivity that each algorithm has: 2 clip, and clip / m.
    noises = {
        "none": (0.0, 0.0),
        "the paper's, epsilon claimed 0.5": (closed / 2, closed),
        "certified, epsilon 0.5": (certified, certified),
    }
    rows: list[tuple[float | str, ...]] = []
    for noise, (joint, single) in noises.items():
        found = [
            [
                *(_averaged(Regression(seed), *how, joint) for how in AVERAGED.values()),
                _clipped(Regression(seed), single),
            ]
            for seed in range(6)
        ]
        rows.append((noise, *np.median(found, axis=0).tolist()))
    return pd.DataFrame(rows, columns=["noise", *AVERAGED, "DP-SGD"])


def _averaged(data: Regression, clip: float, step: float, radius: float, multiplier: float) -> float:
    rng = np.random.default_rng([data.seed, 1])
    mean = batch_mean(lambda x, drawn: data.gradients(x, drawn).sum(axis=0), poisson_rows(SAMPLES, BATCH, rng), BATCH)
    start, project = np.zeros(DIMENSION), ball(np.zeros(DIMENSION), radius)
    run = {"step": step, "clip": clip, "noise_multiplier": multiplier}
    return data.error(averaged_clipping_sgd(mean, start, ROUNDS, **run, rng=rng, project=project).average)


def _clipped(data: Regression, multiplier: float) -> float:
    rng = np.random.default_rng([data.seed, 1])
    drawn, (clip, step) = poisson_rows(SAMPLES, BATCH, rng), OF_SAMPLES
    run = {"step": step, "clip": clip, "noise_multiplier": multiplier}
    descent = sample_clipping_sgd(
        lambda index, x: data.gradients(x, drawn(index)), np.zeros(DIMENSION), ROUNDS, batch=BATCH, **run, rng=rng
    )
    return data.error(descent.average)


def truncated() -> pd.DataFrame:
    """Errors of full private gradient descent, 30 steps, by the step; median of six samples."""
    rounds, moment = 30, 16.0
    multiplier = DisjointBatches(SAMPLES, SAMPLES, rounds).calibrate(0.5, DELTA)
    # Balances the noise with the bias for coordinates of that second moment.
    scale = math.sqrt(moment * SAMPLES * 0.5 / math.sqrt(DIMENSION * rounds * math.log(1 / DELTA)))
    rows = []
    for step in (0.001, 0.01, 0.05):
        found = []
        for seed in range(6):
            data, rng = Regression(seed), np.random.default_rng([seed, 1])
            descent = smoothed_truncation_gd(
                data.gradients,
                np.zeros(DIMENSION),
                rounds,
                step=step,
                scale=scale,
                inverse_variance=1.0,
                noise_multiplier=multiplier,
                rng=rng,
            )
            found.append((data.error(descent.average), data.error(descent.last)))
        rows.append((step, *np.median(found, axis=0).tolist()))
    return pd.DataFrame(rows, columns=["step", "error_of_the_average", "error_of_the_last"])


SWEEPS: dict[str, Sweep] = {
    "averaged-clipping-user-level": Sweep(user_level),
    "averaged-clipping-bias": Sweep(bias),
    "averaged-clipping-closed-form": Sweep(closed_form),
    "averaged-clipping-rates-cost": Sweep(rates_cost),
    "averaged-clipping-order": Sweep(order, quick=False),
    "averaged-clipping-truncated": Sweep(truncated),
}
