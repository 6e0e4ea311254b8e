"""Tables of the page on sparse gradients: stopped descent, output perturbation, and the choice from a net."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sweeps.sweep import Sweep

from strategies.baselines.sparse_gradients.accelerated import AcceleratedDescent
from strategies.baselines.sparse_gradients.bias_reduction import (
    Draw,
    ProjectedMean,
    bias_reduced_gradient,
    second_moment_bound,
)
from strategies.baselines.sparse_gradients.exponential_choice import SparseExponential, enumerable
from strategies.baselines.sparse_gradients.perturbed_minimiser import ConvexRisk, PerturbedMinimiser
from strategies.baselines.sparse_gradients.projection_mechanism import SparseVectors
from strategies.baselines.sparse_gradients.reference.descent import Gradients, StoppedRun, stopped_sgd
from strategies.baselines.sparse_gradients.stopping import Accounting, StepBudget, convex_rate, typical_length
from strategies.baselines.sparse_gradients.sweeps.rates import FAILURE, ThreeBlocks
from userdp.accounting import calibrate_noise
from userdp.noise import SeededNoise

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
DRAWS = 20_000
"""Estimates, for a bias."""
SIMULATED = 2000
"""Runs, for a length."""


def _delta(records: int) -> float:
    """Below 1 / n^2, where the length of a run is analysed."""
    return 0.9 / records**2


# --- Bias reduction and random stopping ------------------------------------------------------------------------------


def bias() -> pd.DataFrame:
    """The distance from the mean of estimates to what they estimate: 64 equal records at the edge of the ball."""
    record, oracle = np.array([1.0, 0.0, 0.0]), ProjectedMean(3, SparseVectors(1, 1.0), 1.0)
    rng = np.random.default_rng(23)
    noise, rows = SeededNoise(rng), np.tile(record, (64, 1))
    law = StepBudget(64, 1.0, _delta(64)).levels

    def reduced(level: int) -> Numbers:
        draw = Draw.of(64, level, rng)
        return bias_reduced_gradient(rows[draw.batch], rows[draw.single], float(law.chances[level]), oracle, noise)

    found = {
        "noisy mean of 2": [oracle(record, 2, noise) for _ in range(DRAWS)],
        "bias-reduced": [reduced(int(level)) for level in law.sample(rng, DRAWS)],
        "noisy mean of 64": [oracle(record, 64, noise) for _ in range(DRAWS)],
    }
    return pd.DataFrame([
        {
            "estimate": told,
            "bias": float(np.linalg.norm(np.mean(each, axis=0) - record)),
            "standard_error": float(np.linalg.norm(np.std(each, axis=0)) / math.sqrt(DRAWS)),
        }
        for told, each in found.items()
    ])  # fmt: skip


def lengths() -> pd.DataFrame:
    """Steps of simulated runs in units of n / ln(2 / delta), by the printed accounting."""
    rows = []
    for records in (256, 1024, 20_000):
        budget = StepBudget(records, 1.0, _delta(records), "paper")
        steps = budget.simulated_lengths(SIMULATED, np.random.default_rng(records))
        unit = records / math.log(2 / budget.delta)
        ended = float(np.mean(steps <= 0.1 * np.median(steps)))
        rows.append({
            "n": records,
            "quarter_quantile": float(np.quantile(steps, 0.25)) / unit,
            "median": float(np.median(steps)) / unit,
            "runs_below_a_tenth_of_the_median": ended,
        })  # fmt: skip
    return pd.DataFrame(rows)


def bounds() -> pd.DataFrame:
    """Bounds ``nu / sqrt(tau)`` on the excess risk in units of L D, and the steps tau, by accounting."""
    kinds: dict[str, tuple[Accounting, float]] = {
        "paper": ("paper", 0.25),
        "tight,_share_1/32": ("tight", 1 / 32),
        "tight,_share_1/4": ("tight", 1 / 4),
    }
    rows = []
    for records in (10_000, 100_000, 1_000_000):
        budgets = {told: StepBudget(records, 1.0, _delta(records), *kind) for told, kind in kinds.items()}
        row: dict[str, float] = {"n": records}
        for told, budget in budgets.items():
            oracle = ProjectedMean(10**6, SparseVectors(4, 1.0), budget.noise_multiplier)
            length = typical_length(budget)
            row |= {told: math.sqrt(second_moment_bound(budget.levels, oracle) / length), f"{told}:_steps": length}
        rows.append(row)
    return pd.DataFrame(rows)


def _stopped(
    gradients: Gradients, start: Numbers, budget: StepBudget, sparsity: int, distance: float, seed: int
) -> StoppedRun:
    """One run, with the step of the theorem."""
    oracle = ProjectedMean(len(start), SparseVectors(sparsity, 1.0), budget.noise_multiplier)
    rate = convex_rate(distance, second_moment_bound(budget.levels, oracle), typical_length(budget))
    rng = np.random.default_rng(seed)
    return stopped_sgd(gradients, start, budget, oracle, rate, rng, SeededNoise(rng))


def two_dimensions() -> pd.DataFrame:
    """The distance to a point, which every record has as its loss: median of 8 runs."""
    point = np.array([0.1, -0.075])

    def gradients(x: Numbers, who: Indices) -> Numbers:
        return np.tile((x - point) / max(float(np.linalg.norm(x - point)), 1e-12), (len(who), 1))

    rows = []
    for epsilon in (1.0, 4.0):
        budget = StepBudget(20_000, epsilon, _delta(20_000))
        distance = float(np.linalg.norm(point))
        runs = [_stopped(gradients, np.zeros(2), budget, 2, distance, seed) for seed in range(8)]
        ends = [float(np.linalg.norm(run.model - point)) for run in runs]
        rows.append({
            "epsilon": epsilon,
            "start": distance,
            "end": float(np.median(ends)),
            "steps": round(float(np.median([run.steps for run in runs]))),
        })  # fmt: skip
    return pd.DataFrame(rows)


def one_hot() -> pd.DataFrame:
    """Excess risk of one-hot logistic regression with 200 levels: stopped descent beside noisy steps of everybody."""
    rows = []
    for records in (20_000, 200_000):
        rng = np.random.default_rng(records)
        levels = rng.integers(200, size=records)
        truth = rng.normal(size=200)
        answers = (rng.random(records) < 1 / (1 + np.exp(-truth[levels]))).astype(np.float64)
        shares = np.bincount(levels, minlength=200) / records
        positive = np.bincount(levels, weights=answers, minlength=200) / records
        best = np.clip(np.log(positive / (shares - positive)), -5, 5)

        def risk(x: Numbers, shares: Numbers = shares, positive: Numbers = positive) -> float:
            return float(shares @ np.logaddexp(0, x) - positive @ x)

        def gradients(x: Numbers, who: Indices, seen: Indices = levels, said: Numbers = answers) -> Numbers:
            found = np.zeros((len(who), 200))
            found[np.arange(len(who)), seen[who]] = 1 / (1 + np.exp(-x[seen[who]])) - said[who]
            return found

        def mean(x: Numbers, shares: Numbers = shares, positive: Numbers = positive) -> Numbers:
            return np.asarray(shares / (1 + np.exp(-x)) - positive)

        budget = StepBudget(records, 1.0, _delta(records))
        distance = float(np.linalg.norm(best))
        ends = [risk(_stopped(gradients, np.zeros(200), budget, 1, distance, seed).model) for seed in range(3)]
        rows.append({
            "n": records,
            "start": risk(np.zeros(200)) - risk(best),
            "stopped": float(np.median(ends)) - risk(best),
            "100_noisy_steps": risk(_noisy_descent(mean, records)) - risk(best),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _noisy_descent(mean: Callable[[Numbers], Numbers], records: int) -> Numbers:
    """100 steps of 30 along noisy means of everybody's gradients, which one record moves by at most 2 / n."""
    rng, x = np.random.default_rng(0), np.zeros(200)
    deviation = 2 / records * calibrate_noise(1.0, _delta(records), 100)
    for _ in range(100):
        x = x - 30 * (mean(x) + rng.normal(scale=deviation, size=200))
    return x


# --- Output perturbation ---------------------------------------------------------------------------------------------


def output_rates() -> pd.DataFrame:
    """Excess risk of absolute errors of records in three blocks, rounded off within 0.002; ten runs each."""
    rows = []
    for records, dimension in [*((n, 100) for n in (1000, 2000, 4000, 8000, 16_000)), (4000, 10_000)]:
        rng = np.random.default_rng(records + dimension)
        shares = np.bincount(rng.integers(0, 3, records), minlength=3) / records
        data = ThreeBlocks(records, dimension, shares, 0.002)
        plan = PerturbedMinimiser.planned(data.risk, data.risk.best_regularisation(1.0, 1e-6, 1.0, FAILURE), 1.0, 1e-6)
        excess = float(np.mean([data.absolute(model) for model in data.models(plan, SeededNoise(rng))]))
        rows.append({
            "d": dimension,
            "n": records,
            "excess": excess,
            "excess_times_root_of_n": excess * math.sqrt(records),
            "bound": plan.excess_bound(1.0, FAILURE) + 0.002,
        })  # fmt: skip
    return pd.DataFrame(rows)


def output_on_easy_data() -> pd.DataFrame:
    """Excess risk of logistic regression on random sparse features, with our bound, the paper's, and the rounds."""
    dimension, sparsity, radius = 200, 5, 3.0
    rows = []
    for records in (1000, 8000, 32_000):
        rng = np.random.default_rng(records)
        columns = np.argsort(rng.random((records, dimension)), axis=1)[:, :sparsity]
        values = rng.choice([-1.0, 1.0], columns.shape) / math.sqrt(sparsity)
        ends = np.arange(0, columns.size + 1, sparsity)
        data = csr_array((values.ravel(), columns.ravel(), ends), shape=(records, dimension))

        def loss(x: Numbers, data: csr_array = data) -> float:
            return float(np.logaddexp(0.0, -(data @ x)).mean())

        def gradient(x: Numbers, data: csr_array = data) -> Numbers:
            return np.asarray(data.T @ (-1 / (1 + np.exp(data @ x))) / data.shape[0])

        risk = ConvexRisk(records, dimension, sparsity, 1.0, 0.25)
        weight = risk.best_regularisation(1.0, 1e-6, radius, FAILURE)
        plan = PerturbedMinimiser.planned(risk, weight, 1.0, 1e-6)
        models = [plan(gradient, np.zeros(dimension), SeededNoise(rng)) for _ in range(10)]
        rows.append({
            "n": records,
            "rounds": plan.rounds,
            "excess": float(np.mean([loss(model) for model in models])) - loss(_minimiser(gradient, dimension, radius)),
            "bound": plan.excess_bound(radius, FAILURE),
            "the_paper's_bound": risk.paper_guarantee(1.0, 1e-6, radius, FAILURE)[1],
        })  # fmt: skip
    return pd.DataFrame(rows)


def _minimiser(gradient: Callable[[Numbers], Numbers], dimension: int, radius: float) -> Numbers:
    """The minimiser of a logistic risk on the ball, but for a ridge of 0.001."""
    descent = AcceleratedDescent(
        np.zeros(dimension), 1e-3, 0.251, lambda x: x * min(1.0, radius / max(float(np.linalg.norm(x)), 1e-300))
    )
    for _ in range(400):
        descent.step(gradient(descent.query) + 1e-3 * descent.query)
    return descent.point


# --- The choice from a net -------------------------------------------------------------------------------------------


def nets() -> pd.DataFrame:
    """The finest net that is enumerated."""
    rows = [(d, len(enumerable(d)) - 1) for d in (2, 3, 5, 10, 20)]
    return pd.DataFrame([
        {"d": d, "candidates": int(enumerable(d)[steps]), "radius_over_tau": math.sqrt(steps)} for d, steps in rows
    ])  # fmt: skip


def choices() -> pd.DataFrame:
    """Excess risk of the choice for absolute errors in three dimensions; mean of 20 choices, and the bound."""
    rows, truth = [], np.array([0.9, 0.0, 0.0])
    for records in (200, 2000, 20_000):
        rng = np.random.default_rng(records)
        signs = rng.choice([-1.0, 1.0], (records, 3)) / math.sqrt(2)
        signs[np.arange(records), rng.integers(3, size=records)] = 0.0
        kinds, counts = np.unique(signs, axis=0, return_counts=True)

        def risk(models: Numbers, kinds: Numbers = kinds, shares: Numbers = counts / records) -> Numbers:
            return np.asarray(np.abs((models - truth) @ kinds.T) @ shares)

        made = SparseExponential.planned(records, 3, 2, 1.0, 1.0, 1.0)
        found = np.array([made(risk, SeededNoise(rng)) for _ in range(20)])
        rows.append({
            "n": records,
            "candidates": made.candidates,
            "excess": float(risk(found).mean()),
            "bound": made.excess_bound(FAILURE),
        })  # fmt: skip
    return pd.DataFrame(rows)


SWEEPS: dict[str, Sweep] = {
    "sparse-bias": Sweep(bias),
    "sparse-lengths": Sweep(lengths),
    "sparse-bounds": Sweep(bounds, quick=False),
    "sparse-two-dimensions": Sweep(two_dimensions, quick=False),
    "sparse-one-hot": Sweep(one_hot, quick=False),
    "sparse-output-rates": Sweep(output_rates),
    "sparse-output-easy": Sweep(output_on_easy_data),
    "sparse-nets": Sweep(nets),
    "sparse-choices": Sweep(choices),
}
"""Tables of Algorithms 3 to 7."""
