"""The excess risks of runs, in closed form, over seeds, beside the founding paper's Theorems 3.1 and 4.1."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from sweeps.slopes import slope_of_runs
from sweeps.sweep import Sweep

from simulations.config.run_config import RunConfig, parse_config
from simulations.engines.configured import make_grid
from simulations.runs.build import build_problem, load_datasets, make_strategy, public_facts
from strategies import model_vector
from strategies.baselines.robust.sweeps.rates import PAPER, THEORY
from userdp.arrays.types import Rows, Vector

SEEDS = 10
Settings = Mapping[str, Any]


def excess(config: RunConfig) -> tuple[float, float]:
    """Return the excess risk of the start and of the trained model."""
    problem, datasets = build_problem(config), load_datasets(config)
    assert datasets.train is not None
    strategy = make_strategy(config, problem, public_facts(config, datasets.train))
    with make_grid(config, problem, datasets) as grid:
        released = model_vector(strategy.start(grid).arrays)
    start, end = (problem.excess_risk(x, datasets.train) for x in (problem.initial(), released))
    assert start is not None
    assert end is not None
    return start, end


def of_seeds(
    problem: Settings, data: Settings, epsilon: float, delta: float, strategy: Settings, seeds: int = SEEDS
) -> Rows:
    """Return the (2, s) excess risks of the starts and of the trained models, of all seeds."""
    found = []
    for seed in range(seeds):
        sizes = {"kind": "synthetic", "test_users": 0, **data}
        told = {"name": "sweep", "seed": seed, "problem": problem, "data": sizes, "strategy": strategy}
        found.append(excess(parse_config({**told, "privacy": {"epsilon": epsilon, "delta": delta}})))
    return np.array(found).T


def standard_error(found: Vector) -> float:
    """Return the standard error of the mean."""
    return float(found.std(ddof=1) / math.sqrt(len(found)))


# --- Excess risks by the number of samples ---------------------------------------------------------------------------

BOXED = {"bound": 6.0, "radius": 1.0}
SPREAD = 0.3
"""Standard deviation of a sample's coordinate for the paper's own pieces; means are uniform in [-1, 1]."""
PIECES: Mapping[str, Settings] = {
    "the paper's": {"kind": "localized_robust_sgd", **PAPER, "batch": 3_000, "deviation": SPREAD},
    "ours": {"kind": "localized_robust_sgd", "batch": 3_000, "deviation": SPREAD},
    "localized_clipping": {"kind": "localized_clipping", "deviation": SPREAD},
    "dp_fed_sgd": {"kind": "dp_fed_sgd", "rounds": 1, "clip_norm": 2.0, "learning_rate": 1e6},
}
DEFAULTS: Mapping[str, Settings] = {
    "ours": {"kind": "localized_robust_sgd", "deviation": 1.0},
    "localized_clipping": {"kind": "localized_clipping", "deviation": 1.0},
    "dp_fed_sgd": {"kind": "dp_fed_sgd"},
}


def pieces() -> pd.DataFrame:
    """Excess risk of a linear loss, d = 4, n = 100,000, epsilon = 4, delta = 1e-6: the paper's pieces at work."""
    data = {"population": "gaussian", "users": 100_000, "dimension": 4, "deviation": SPREAD}
    return _by_samples((10, 100), {"kind": "linear", **BOXED}, data, 4.0, PIECES)


def many_samples() -> pd.DataFrame:
    """Excess risk of a quadratic loss, d = 10, n = 3,000, epsilon = 1, delta = 1e-6, by samples per user."""
    data = {"population": "gaussian", "users": 3_000, "dimension": 10}
    return _by_samples((10, 100, 1_000), {"kind": "quadratic", **BOXED}, data, 1.0, DEFAULTS)


def _by_samples(
    samples: tuple[int, ...], problem: Settings, data: Settings, epsilon: float, strategies: Mapping[str, Settings]
) -> pd.DataFrame:
    rows = []
    for m in samples:
        row: dict[str, Any] = {"m": m}
        for name, settings in strategies.items():
            starts, ends = of_seeds(problem, {**data, "samples_per_user": m}, epsilon, 1e-6, settings)
            row.setdefault("start", starts.mean())
            row |= {name: ends.mean(), f"standard_error,_{name}": standard_error(ends)}
        rows.append(row)
    return pd.DataFrame(rows)


# --- Slopes ----------------------------------------------------------------------------------------------------------

USUAL = {"n": 3_000, "m": 20, "d": 10, "eps": 1.0}
ALONG: Mapping[str, tuple[float, ...]] = {
    "n": (1_000, 3_000, 9_000),
    "m": (5, 20, 80),
    "d": (5, 10, 20),
    "eps": (0.5, 1.0, 2.0),
}
SQUARED = {"n": -2.0, "m": -1.0, "d": 2.0, "eps": -4.0}
"""Powers of d times the square of a coordinate's noise in Theorem 3.1."""


@dataclass(frozen=True)
class Task:
    """A loss with its users, and settings for it, written down once.

    Attributes:
        problem: The loss.
        data: Its users.
        deviation: Standard deviation of a sample's coordinate that the robust strategy is told.
        clipped: Settings of user-level clipping.
        seeds: Runs of each point; the excess of a linear loss, a few wrong signs, takes more.
    """

    problem: Settings
    data: Settings
    deviation: float
    clipped: Settings
    seeds: int = SEEDS

    def runs(self, strategy: str, n: int, m: int, d: int, eps: float) -> Vector:
        """Return the (s,) excess risks of the trained models."""
        settings = {"deviation": self.deviation} if strategy == "localized_robust_sgd" else self.clipped
        data = {**self.data, "users": n, "samples_per_user": m, "dimension": d}
        return np.asarray(of_seeds(self.problem, data, eps, 1e-6, {"kind": strategy, **settings}, self.seeds)[1])


TASKS = {
    "linear": Task(
        {"kind": "linear", **BOXED},
        {"population": "gaussian", "spread": 0.1},
        1.0,
        {"rounds": 1, "learning_rate": 1e6, "clip_norm": 1.0},
        seeds=40,
    ),
    "quadratic": Task({"kind": "quadratic", **BOXED}, {"population": "gaussian"}, 1.0, {}),
    "logistic": Task(
        {"kind": "bernoulli", "radius": 2.0}, {"population": "bernoulli"}, 0.5, {"clip_norm": 1.0, "learning_rate": 4.0}
    ),
}


def excess_slopes() -> pd.DataFrame:
    """Slopes of the mean excess risk in users, samples, columns and epsilon, beside the theorem's."""
    rows = []
    for loss, task in TASKS.items():
        runs = cache(task.runs)
        for along, values in ALONG.items():
            row: dict[str, Any] = {"loss": loss, "slope_in": along, "Theorem_3.1": THEORY[along]}
            row["noise_squared"] = SQUARED[along]
            for name, strategy in {"ours": "localized_robust_sgd", "dp_fed_sgd": "dp_fed_sgd"}.items():
                found = np.array([runs(strategy, *(USUAL | {along: value}).values()) for value in values])
                middle = found[values.index(USUAL[along])]
                row[f"{name}_at_the_centre"] = middle.mean()
                row[name], row[f"standard_error,_{name}"] = slope_of_runs(np.array(values), found)
            rows.append(row)
    return pd.DataFrame(rows)


SAMPLING = {"n": -0.5, "m": -0.5, "d": 1.0}
"""Powers of the first term of Theorem 3.1, which is there without privacy, too."""


def sampling_slopes() -> pd.DataFrame:
    """Slopes of the excess risk without privacy, of a linear loss whose means are as small as their errors.

    Fixed means would be told from zero by enough samples, after which their signs, and so the model, are exact.
    """
    usual, rows = {"n": 300, "m": 10, "d": 10}, []

    def runs(n: int, m: int, d: int) -> Vector:
        data = {"population": "gaussian", "spread": 1 / math.sqrt(n * m), "users": n, "samples_per_user": m}
        data["dimension"] = d
        return np.asarray(of_seeds({"kind": "linear", **BOXED}, data, 1.0, 1e-6, {"kind": "non_private"}, 40)[1])

    for along, values in {"n": (100, 300, 900), "m": (3, 10, 30), "d": (5, 10, 20)}.items():
        found = np.array([runs(**usual | {along: value}) for value in values])
        power, error = slope_of_runs(np.array(values, dtype=float), found)
        rows.append({"slope_in": along, "Theorem_3.1": SAMPLING[along], "measured": power, "standard_error": error})
    return pd.DataFrame(rows)


# --- The lower bound -------------------------------------------------------------------------------------------------

FULL = 10.0
"""Users of the hard law, in units of ``sqrt(d) / eps``; the others hold zeros (appendix C, Lemma C.1)."""
STRATEGY_SETTINGS: Mapping[str, Settings] = {
    "dp_fed_sgd": {"rounds": 1, "clip_norm": 6.0, "learning_rate": 1e6},
    "localized_robust_sgd": {"deviation": 3.0},
    "auto": {},
}
"""Written down once; a step of a million leaves the box, which a linear loss asks for."""


def hard_instance() -> pd.DataFrame:
    """Excess risk on the mixture of Lemma C.1, beside the start and the bound of Theorem 4.1 without its logarithms.

    At epsilon 0.1, the largest of the lemma.
    """
    rows = []
    d, m, epsilon = 10, 10, 0.1
    problem = {"kind": "linear", "bound": 6.0 * math.sqrt(m), "radius": 1.0}
    for n in (10_000, 30_000, 100_000):
        row: dict[str, Any] = {"n": n, "bound,_d^(3/2)_/_(n_eps)": d**1.5 / (n * epsilon)}
        data = {"population": "hard_instance", "users": n, "samples_per_user": m, "dimension": d}
        data["share"] = FULL * math.sqrt(d) / (epsilon * n)
        for name, settings in STRATEGY_SETTINGS.items():
            starts, ends = of_seeds(problem, data, epsilon, 1e-9, {"kind": name, **settings})
            row.setdefault("start", float(starts.mean()))
            row[name], row[f"standard_error,_{name}"] = float(ends.mean()), standard_error(ends)
        rows.append(row)
    return pd.DataFrame(rows)


SWEEPS: dict[str, Sweep] = {
    "robust-pieces": Sweep(pieces, quick=False),
    "robust-samples": Sweep(many_samples, quick=False),
    "robust-excess": Sweep(excess_slopes, quick=False),
    "robust-sampling": Sweep(sampling_slopes),
    "robust-hard-instance": Sweep(hard_instance, quick=False),
}
"""The sweeps of runs."""
