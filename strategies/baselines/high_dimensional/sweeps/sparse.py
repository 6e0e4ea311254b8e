"""Tables of the page on high-dimensional heavy-tailed data: models with few entries that are not zero."""

import numpy as np
import pandas as pd
from sweeps.sweep import Sweep

from strategies.baselines.high_dimensional.hard_thresholding import truncated_gradient_bound, truncation_level
from strategies.baselines.high_dimensional.reference.hard_thresholding import (
    SparseBudget,
    private_hard_thresholding,
    private_sparse_optimisation,
)
from strategies.baselines.peeling import Peeling, PeelingAccounting
from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput
from userdp.noise import SeededNoise

DIMENSION = 200
NO_NOISE = 1e12
"""An epsilon at which noise is far below rounding."""
Data = tuple[Rows, Vector, Vector]
"""Features, targets and the true parameter."""
ACCOUNTINGS: dict[str, PeelingAccounting] = {"paper's_noise": "paper", "ours": "tight"}


# --- Peeling ---------------------------------------------------------------------------------------------------------


def peeling() -> pd.DataFrame:
    """The noise of ours over the paper's, for numbers of entries."""
    rows = []
    for delta in (1e-2, 1e-5, 1e-8):
        for epsilon in (0.1, 1.0):
            row = {"delta": delta, "epsilon": epsilon}
            for sparsity in (1, 5, 20, 100):
                paper, ours = (Peeling(sparsity, 1.0, epsilon, delta, each).scale for each in ACCOUNTINGS.values())
                row[f"s_=_{sparsity}"] = ours / paper
            rows.append(row)
    return pd.DataFrame(rows)


def experiment() -> pd.DataFrame:
    """Scale of the noise on each entry where features have deviation 5, s = 20 and there are 50,000 records."""
    records, sparsity, rounds, rate = 50_000, 20, 10, 0.5
    rows = []
    for epsilon in (1.0, 2.0, 4.0):
        bound = truncated_gradient_bound(truncation_level(records, epsilon, sparsity, rounds), sparsity)
        moved = 2 * bound * rate / (records // rounds)
        scales = {
            told: Peeling(sparsity, moved, epsilon, records**-1.1, each).scale for told, each in ACCOUNTINGS.items()
        }
        rows.append({"epsilon": epsilon} | scales)
    return pd.DataFrame(rows)


# --- Least squares ---------------------------------------------------------------------------------------------------


def least_squares() -> pd.DataFrame:
    """Mean excess risk of private hard thresholding by epsilon."""
    found: dict[float, dict[str, list[float]]] = {}
    for seed in range(3):
        data = _regression(200_000, seed)
        for epsilon in (1.0, 4.0, 10.0, 100.0, NO_NOISE):
            for told, accounting in ACCOUNTINGS.items():
                value = _excess(data, epsilon, accounting, seed)
                if value is not None:
                    found.setdefault(epsilon, {}).setdefault(told, []).append(value)
    return pd.DataFrame(
        {"epsilon": f"{epsilon:g}" if epsilon < NO_NOISE else "no noise", "start": 1.0}
        | {told: float(np.mean(own)) for told, own in by_noise.items()}
        for epsilon, by_noise in found.items()
    )


def other_parameters() -> pd.DataFrame:
    """The same at epsilon 1 for six other true parameters and half the users."""
    rows = []
    for seed in range(10, 16):
        data = _regression(100_000, seed)
        truth = np.abs(data[2])
        row: dict[str, object] = {"smaller_entry": float(truth[truth > 0].min()), "start": 1.0}
        for told, accounting in ACCOUNTINGS.items():
            row[told] = float(np.mean([_excess(data, 1.0, accounting, each) for each in range(3)]))
        rows.append(row)
    return pd.DataFrame(rows).sort_values("smaller_entry", ignore_index=True)


def _regression(records: int, seed: int) -> Data:
    """(features, targets, truth): normal features, two entries that are not zero, noise of deviation 0.1."""
    rng = np.random.default_rng(seed)
    truth = np.zeros(DIMENSION)
    truth[rng.choice(DIMENSION, 2, replace=False)] = rng.normal(size=2)
    truth /= np.linalg.norm(truth)
    features = rng.standard_normal((records, DIMENSION))
    targets = features @ truth + 0.1 * rng.normal(size=records)
    return features, targets, np.asarray(truth)


def _excess(data: Data, epsilon: float, accounting: PeelingAccounting, seed: int) -> float | None:
    """Squared distance of the model from the truth; None where the paper's noise is not proven to be enough."""
    features, targets, truth = data
    records, rounds = len(targets), 12
    level = truncation_level(records, epsilon if epsilon < NO_NOISE else 1.0, 2, rounds)
    budget = SparseBudget(2, epsilon, records**-1.1, 2 / 3, rounds, accounting)
    try:
        fit = private_hard_thresholding(features, targets, budget, _noise(seed), level=level)
    except BadInput:
        return None
    return float(((fit.model - truth) ** 2).sum())


def _noise(seed: int) -> SeededNoise:
    return SeededNoise(np.random.default_rng(1_000 + seed))


# --- Sparse means ----------------------------------------------------------------------------------------------------

TAU = 44.0
"""The second moment of a gradient's coordinate, as it is declared."""


def means() -> pd.DataFrame:
    """Squared errors of sparse optimisation by epsilon."""
    rows = []
    for epsilon in (1.0, 4.0):
        errors = {told: _mean_error(epsilon, each) for told, each in ACCOUNTINGS.items()}
        rows.append({"epsilon": epsilon, "start": 12.0} | errors)
    return pd.DataFrame(rows)


def scales() -> pd.DataFrame:
    """Squared errors at the scales that the paper's experiments name, with its noise, and at ours."""
    named = {"n epsilon": 20_000.0, "(n epsilon tau)^(1/2)": (20_000 * TAU) ** 0.5, "ours": None}
    return pd.DataFrame(
        {"scale": told, "start": 12.0, "squared_error": _mean_error(1.0, "paper", scale)}
        for told, scale in named.items()
    )


def _mean_error(epsilon: float, accounting: PeelingAccounting, scale: float | None = None) -> float:
    """The mean error of three seeds: entries w* + t(3), three of 200 entries of w* are 2, six are kept."""
    records, errors = 20_000, []
    truth = np.zeros(DIMENSION)
    truth[:3] = 2.0
    budget = SparseBudget(6, epsilon, records**-1.1, 1 / 3, 4, accounting)
    for seed in range(3):
        rows = truth + np.random.default_rng(seed).standard_t(3, (records, DIMENSION))

        def gradients(model: Vector, fold: slice, rows: Rows = rows) -> Rows:
            return np.asarray(2 * (model - rows[fold]))

        fit = private_sparse_optimisation(
            gradients, records, DIMENSION, budget, _noise(seed), scale=scale, second_moment=TAU
        )
        errors.append(float(((fit.model - truth) ** 2).sum()))
    return float(np.mean(errors))


SWEEPS: dict[str, Sweep] = {
    "high-dimensional-peeling": Sweep(peeling),
    "high-dimensional-papers-experiment": Sweep(experiment),
    "high-dimensional-thresholding": Sweep(least_squares, quick=False),
    "high-dimensional-parameters": Sweep(other_parameters, quick=False),
    "high-dimensional-means": Sweep(means),
    "high-dimensional-scales": Sweep(scales),
}
