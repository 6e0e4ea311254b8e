"""Rates of averaged clipping with the paper's noise and fresh batches: Theorems 3, 4, 6 and 7."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sweeps.slopes import slope, slope_of_runs
from sweeps.sweep import Sweep

from strategies.baselines.averaged_clipping.parameters import (
    Parameters,
    TheoryConstants,
    constrained,
    non_smooth,
    unconstrained,
)
from strategies.baselines.averaged_clipping.reference.descent import (
    Descent,
    MeanGradient,
    Project,
    averaged_clipping_sgd,
    ball,
    everywhere,
    restarted_clipping_sgd,
)
from strategies.baselines.averaged_clipping.restarts import radii, restarted, rounds_per_run
from userdp.arrays.types import Rows, Vector

DIMENSION = 10


def pareto(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Centred, infinitely skewed noise (index 2.2) whose squared norm has mean 1."""
    raw = rng.pareto(2.2, size=shape) - 1 / 1.2
    return np.asarray(raw * math.sqrt(1.2**2 * 0.2 / 2.2 / shape[-1]))


def gap(found: Parameters, dimension: int, project: Project, power: float, seed: int) -> float:
    """Return the gap of ``||x||^power / power`` in the average iterate of a run from a unit vector."""
    rng = np.random.default_rng(seed)
    descent = averaged_clipping_sgd(
        lambda _, x: x * np.linalg.norm(x) ** (power - 2) + pareto(rng, (found.batch, dimension)).mean(axis=0),
        np.eye(dimension)[0],
        found.rounds,
        step=found.step,
        clip=found.clip,
        noise_multiplier=found.noise_deviation / (2 * found.clip),
        rng=rng,
        project=project,
    )
    return float(np.linalg.norm(descent.average) ** power / power)


def rates() -> pd.DataFrame:
    """Median gap of Theorem 3's run with the paper's noise and fresh batches, and the gap that the theorem allows.

    ``||x||^2 / 2`` from a unit vector in the unit ball, gradients with centred Pareto(2.2) noise.
    """
    rows: list[tuple[float, ...]] = []
    unit = ball(np.zeros(DIMENSION), 1.0)
    for power in range(4, 12):
        constants = TheoryConstants(10**power, DIMENSION, 1.0, 10.0**-power)
        found = constrained(constants)
        gaps = [gap(found, DIMENSION, unit, 2.0, seed) for seed in range(31)] if power <= 7 else [math.nan]
        sizes = constants.samples, DIMENSION, found.rounds, found.batch
        rows.append((*sizes, float(np.median(gaps)), min(gaps), max(gaps), found.risk_bound))
    columns = ["n", "d", "rounds", "batch", "error", "least", "most", "bound"]
    return pd.DataFrame(rows, columns=columns)


# --- Slopes in n, d and epsilon --------------------------------------------------------------------------------------

EXPONENT = 0.5
"""nu of Theorem 7, whose loss is ``||x||^(3/2) / (3/2)``."""


@dataclass(frozen=True)
class Claim:
    """A theorem's rate, and how to measure it.

    Attributes:
        samples: n at the centre.
        powers: The theorem's powers of n, d and epsilon.
        gaps: (constants, seed) -> gap of a run.
        bound: constants -> the theorem's bound with its constants; None for a theorem that gives none.
        factor: Of the n beside the one at the centre.
        seeds: Runs of each point.
    """

    samples: int
    powers: Mapping[str, float]
    gaps: Callable[[TheoryConstants, int], float]
    bound: Callable[[TheoryConstants], float] | None
    factor: int = 10
    seeds: int = 11


def _powers(n: float, d: float) -> Mapping[str, float]:
    return {"n": n, "d": d, "eps": n}


def _in_the_ball(constants: TheoryConstants, seed: int) -> float:
    d = constants.dimension
    return gap(constrained(constants), d, ball(np.zeros(d), 1.0), 2.0, seed)


def _rough(constants: TheoryConstants) -> Parameters:
    return non_smooth(constants, EXPONENT)


def _restarted(constants: TheoryConstants, seed: int) -> float:
    """Return the gap after three runs of Algorithm 2, from ``||x|| = 5``: the level of its noise."""
    return _half_square(run_restarts(constants, 3, seed)[-1].average)


CLAIMS = {
    "Theorem 3": Claim(10**6, _powers(-2 / 7, 1 / 7), _in_the_ball, lambda c: constrained(c).risk_bound),
    "Theorem 4": Claim(
        10**8,
        _powers(-2 / 7, 1 / 7),
        lambda c, seed: gap(unconstrained(c), c.dimension, everywhere, 2.0, seed),
        lambda c: unconstrained(c).risk_bound,
    ),
    "Theorem 6": Claim(10**9, _powers(-1.0, 0.5), _restarted, None, factor=3, seeds=8),
    "Theorem 7": Claim(
        10**10,
        # Of its four terms, at the alpha that makes the first equal to the third.
        _powers(-(1 + EXPONENT) / 7, (1 + EXPONENT) / 14),
        lambda c, seed: gap(_rough(c), c.dimension, everywhere, 1 + EXPONENT, seed),
        lambda c: _rough(c).risk_bound,
    ),
}


def slopes() -> pd.DataFrame:
    """Slopes of the mean gap and of the proven bound, beside the theorems' powers; delta = 1e-12."""
    rows = []
    for theorem, claim in CLAIMS.items():
        along = {
            "n": (claim.samples // claim.factor, claim.samples, claim.samples * claim.factor),
            "d": (4, 10, 25),
            "eps": (0.25, 0.5, 1.0),
        }
        for name, values in along.items():
            at = [_constants(theorem, **{"n": claim.samples, "d": 10, "eps": 1.0, name: value}) for value in values]
            found = np.array([[claim.gaps(constants, seed) for seed in range(claim.seeds)] for constants in at])
            power, error = slope_of_runs(np.array(values), found)
            bound, bound_error = math.nan, math.nan
            if claim.bound is not None:
                bound, bound_error = slope(np.array(values), np.array([claim.bound(constants) for constants in at]))
            rows.append((theorem, name, claim.powers[name], power, error, bound, bound_error))
    columns = ["of", "slope_in", "theorem", "gap", "standard_error,_gap", "proven_bound", "standard_error,_bound"]
    return pd.DataFrame(rows, columns=columns)


def _constants(theorem: str, n: float, d: float, eps: float) -> TheoryConstants:
    """Return the constants of that theorem's loss; the gradient of ``||x||^(1 + nu)`` has M = 2^(1 - nu)."""
    smoothness = 2 ** (1 - EXPONENT) if theorem == "Theorem 7" else 1.0
    return TheoryConstants(int(n), int(d), eps, 1e-12, smoothness=smoothness)


# --- Restarts --------------------------------------------------------------------------------------------------------

FIRST_GAP = 12.5
"""The gap of ``||x||^2 / 2`` at ``||x|| = 5``."""


def run_restarts(constants: TheoryConstants, runs: int, seed: int) -> list[Descent]:
    """Return the descents of Algorithm 2 for ``||x||^2 / 2`` (mu = L = 1) from ``||x|| = 5``, by the paper's noise."""
    rounds = rounds_per_run(constants, 1.0)
    rng = np.random.default_rng(seed)

    def oracle(_: int, batch: int) -> MeanGradient:
        noise = _batch_means(rng, rounds, batch, constants.dimension)
        return lambda index, x: x + noise[index]

    start = 5 * np.eye(constants.dimension)[0]
    return restarted_clipping_sgd(oracle, start, restarted(constants, 1.0, FIRST_GAP, runs, rounds), rounds, rng)


def _batch_means(rng: np.random.Generator, rounds: int, batch: int, dimension: int) -> Rows:
    return np.asarray(pareto(rng, (rounds, batch, dimension)).mean(axis=1))


def restarts() -> pd.DataFrame:
    """Gaps of Algorithm 2, run by run; n = 1e9, epsilon = 1, delta = 1e-9."""
    constants = TheoryConstants(10**9, DIMENSION, 1.0, 1e-9)
    rounds = rounds_per_run(constants, 1.0)
    schedule = restarted(constants, 1.0, FIRST_GAP, 6, rounds)
    rows: list[tuple[float, ...]] = [(0, math.nan, next(radii(FIRST_GAP, 1.0)), math.nan, FIRST_GAP)]
    for index, (run, descent) in enumerate(zip(schedule, run_restarts(constants, 6, 0), strict=True), start=1):
        # The mean of N0 iterates that follow noise of deviation s has a gap of about d s^2 / (2 N0).
        floor = DIMENSION * run.noise_deviation**2 / (2 * rounds)
        rows.append((index, rounds, run.radius, floor, _half_square(descent.average)))
    return pd.DataFrame(rows, columns=["run", "rounds", "distance_counted_on", "gap_of_the_noise_alone", "gap"])


def _half_square(x: Vector) -> float:
    return float(x @ x / 2)


SWEEPS: dict[str, Sweep] = {
    "averaged-clipping-rates": Sweep(rates),
    "averaged-clipping-restarted": Sweep(restarts),
    "averaged-clipping-slopes": Sweep(slopes, quick=False),
}
"""The sweeps of rates."""
