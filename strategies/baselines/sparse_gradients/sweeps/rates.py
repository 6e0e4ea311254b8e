"""Tables of the page on sparse gradients: the rates of optimisation, beside those of the theorems."""

import math
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sweeps.slopes import slope
from sweeps.sweep import Sweep

from strategies.baselines.sparse_gradients.bias_reduction import ProjectedMean, second_moment_bound
from strategies.baselines.sparse_gradients.perturbed_minimiser import ConvexRisk, PerturbedMinimiser
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.reference.descent import stopped_sgd
from strategies.baselines.sparse_gradients.stopping import StepBudget, stationary_rate, typical_length
from userdp.noise import SeededNoise

Numbers = NDArray[np.float64]
FAILURE = 0.1
DIMENSION, WIDTH = 10_000, 0.5
SIZES = (10_000, 40_000, 160_000, 640_000)
SHARES = 0.5 ** np.arange(9)
"""The shares of the records that say something, in a family of instances."""
THEOREMS = {"7.1": "empirical", "7.6": "population"}
THEORY = {1e-6: -1 / 2, 0.0: -1 / 3}
SEEDS = range(8)


class ThreeBlocks:
    """Absolute errors, rounded off within ``width``, of records that lie in one of three blocks; the least risk is 0.

    ``shares`` are those of the blocks among all records; the others have no gradient.
    """

    def __init__(self, records: int, dimension: int, shares: Numbers, width: float) -> None:
        self.blocks = np.zeros((3, dimension))
        self.blocks[np.arange(12) // 4, np.arange(12)] = 0.5
        self.shares, self.width = shares, width
        self.targets = self.blocks @ (self.blocks.sum(axis=0) / math.sqrt(3))
        self.risk = ConvexRisk(records, dimension, 4, 1.0, 1 / width)

    def gradient(self, x: Numbers) -> Numbers:
        """The gradient of the empirical risk."""
        return np.asarray((self.shares * np.clip(self._errors(x) / self.width, -1, 1)) @ self.blocks)

    def absolute(self, model: Numbers) -> float:
        """The mean absolute error, before it is rounded off."""
        return float(self.shares @ np.abs(self._errors(model)))

    def excess(self, model: Numbers, shares: Numbers) -> float:
        """The risk of records of which each block has so large a share."""
        errors = np.abs(self._errors(model))
        near = np.minimum(errors, self.width)
        return float(shares @ (near**2 / (2 * self.width) + errors - near))

    def models(self, plan: PerturbedMinimiser, noise: SeededNoise) -> list[Numbers]:
        """Ten releases of one descent."""
        start = np.zeros(self.risk.dimension)
        descent = plan.descent(start, np.asarray)
        for _ in range(plan.rounds):
            plan.step(descent, self.gradient(descent.query), start)
        return [plan.mechanism.release(descent.point, noise) for _ in range(10)]

    def _errors(self, x: Numbers) -> Numbers:
        return np.asarray(self.blocks @ x - self.targets)


# --- Output perturbation ---------------------------------------------------------------------------------------------


@cache
def _perturbed(theorem: str, delta: float, records: int) -> tuple[float, tuple[float, ...]]:
    """(lambda, excess by seed), of the worst of a family, for the records' own risk or for their law's.

    Of each seed the largest excess is taken over the shares of records that say something.
    """
    found, weight = [], 0.0
    for seed in SEEDS:
        rng, worst = np.random.default_rng([seed, records]), []
        for share in SHARES:
            law = np.full(3, share / 3)
            counts = rng.multinomial(records, [*law, 1 - share])[:3]
            data = ThreeBlocks(records, DIMENSION, counts / records, WIDTH)
            chosen = data.risk.best_regularisation if theorem == "7.1" else data.risk.population_regularisation
            weight = chosen(1.0, delta, 1.0, FAILURE)
            plan = PerturbedMinimiser.planned(data.risk, weight, 1.0, delta)
            judged = data.shares if theorem == "7.1" else law
            worst.append(float(np.mean([data.excess(x, judged) for x in data.models(plan, SeededNoise(rng))])))
        found.append(max(worst))
    return weight, tuple(found)


def population() -> pd.DataFrame:
    """The weight of Theorem 7.6 beside that of Theorem 7.1, and what each leaves of the risk that it is for."""
    rows = []
    for delta in THEORY:
        for records in SIZES:
            row: dict[str, float] = {"delta": delta, "n": records}
            for theorem in THEOREMS:
                weight, found = _perturbed(theorem, delta, records)
                row |= {f"lambda,_{theorem}": weight, f"excess,_{theorem}": float(np.mean(found))}
            rows.append(row)
    return pd.DataFrame(rows)


# --- Stationary points -----------------------------------------------------------------------------------------------

STATIONARY_SIZES = (1000, 4000, 16_000, 64_000)
EPSILON, SHARE = 30.0, 1 / 32
"""The rate is in epsilon n: at epsilon 1 the same takes many more records."""
LEVELS = 2
NORM = math.exp(-0.5)
"""The longest gradient of ``1 - exp(-r^2 / 2)``, whose smoothness is 1."""
TARGETS = np.array([1.0, -1.0])


@cache
def _stationary(records: int) -> tuple[float, int, tuple[float, ...]]:
    """(bound, steps, length of the mean gradient by seed) of runs that give a random iterate, at an epsilon of 30."""
    budget = StepBudget(records, EPSILON, 0.9 / records**2, oracle_share=SHARE)
    oracle = ProjectedMean(LEVELS, SparseVectors(1, NORM), budget.noise_multiplier)
    moment, length = second_moment_bound(budget.levels, oracle), typical_length(budget)
    gap, ends = 1 - float(np.exp(-(TARGETS**2) / 2).mean()), []
    rate = stationary_rate(gap, 1.0, moment, length)
    for seed in SEEDS:
        rng = np.random.default_rng([seed, records])
        own = rng.integers(LEVELS, size=records)

        def gradients(x: Numbers, who: NDArray[np.int64], own: NDArray[np.int64] = own) -> Numbers:
            found, levels = np.zeros((len(who), LEVELS)), own[who]
            found[np.arange(len(who)), levels] = _slopes(x)[levels]
            return found

        run = stopped_sgd(gradients, np.zeros(LEVELS), budget, oracle, rate, rng, SeededNoise(rng), output="random")
        shares = np.bincount(own, minlength=LEVELS) / records
        ends.append(float(np.linalg.norm(shares * _slopes(run.model))))
    # The bias of the largest batch, which is the one that is left.
    bias = math.sqrt(oracle.squared_error(int(budget.levels.batches[-1])))
    bound = math.sqrt(math.sqrt(gap / length) * math.sqrt(moment) + NORM * bias)
    return bound, length, tuple(ends)


def _slopes(x: Numbers) -> Numbers:
    """The slope of ``1 - exp(-(x - t)^2 / 2)`` in each coordinate."""
    gap = x - TARGETS
    return np.asarray(gap * np.exp(-(gap**2) / 2))


def stationary() -> pd.DataFrame:
    """Length of the mean gradient at a random iterate, by records, with its bound but for the theorem's constant."""
    start = float(np.linalg.norm(_slopes(np.zeros(LEVELS)) / LEVELS))
    rows = []
    for records in STATIONARY_SIZES:
        bound, steps, ends = _stationary(records)
        told = {"start": start, "end": float(np.mean(ends)), "bound_/_sqrt(C)": bound}
        rows.append({"n": records, "steps": steps} | told)
    return pd.DataFrame(rows)


# --- Slopes ----------------------------------------------------------------------------------------------------------


def slopes() -> pd.DataFrame:
    """Slopes of logarithms in the logarithm of n, over all seeds, beside the theorems'."""
    rows: list[dict[str, object]] = []

    def add(told: str, delta: str, sizes: tuple[int, ...], found: Numbers, theory: float) -> None:
        at, spread = slope(np.repeat(sizes, found.shape[1]), found.ravel())
        rows.append({"theorem": told, "delta": delta, "slope": at, "standard_error": spread, "theory": theory})

    for delta, theory in THEORY.items():
        for theorem, risk in THEOREMS.items():
            found = np.array([_perturbed(theorem, delta, records)[1] for records in SIZES])
            add(f"{theorem}, {risk} excess", f"{delta:g}", SIZES, found, theory)
    ends = np.array([_stationary(records)[2] for records in STATIONARY_SIZES])
    add("5.8, length of the gradient", "0.9 / n^2", STATIONARY_SIZES, ends, -1 / 4)
    bounds = np.array([[_stationary(records)[0]] for records in STATIONARY_SIZES])
    add("5.8, its bound", "0.9 / n^2", STATIONARY_SIZES, bounds, -1 / 4)
    return pd.DataFrame(rows)


SWEEPS: dict[str, Sweep] = {
    "sparse-population": Sweep(population, quick=False),
    "sparse-stationary": Sweep(stationary, quick=False),
    "sparse-optimisation-slopes": Sweep(slopes, quick=False),
}
