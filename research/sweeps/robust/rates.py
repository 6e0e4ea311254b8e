"""Tables of the founding paper's page: its rate and its lower bound beside plans and runs.

A linear loss on a box, ``f(x; z) = -<x, z>``: its excess risk is linear in the noise, as in the paper's theorems. The
second term of Theorem 3.1 is ``d^(3/2) / (n eps^2 sqrt(m))``, that of the lower bound, Theorem 4.1, has eps for eps^2.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from simulations.config.run_config import RunConfig, parse_config
from simulations.runs.build import build_problem, load_datasets, make_strategy, public_facts
from simulations.runs.run import make_grid
from strategies import LocalizedRobustSGD, PublicFacts, model_vector
from sweeps.sweep import Sweep
from userdp import Privacy
from userdp.arrays.types import Vector
from userdp.problems import Linear

DELTA = 1e-9
USUAL = {"n": 1e6, "m": 100.0, "d": 10.0, "eps": 1.0}
ALONG: Mapping[str, tuple[float, ...]] = {
    "n": (1e5, 3e5, 1e6, 3e6, 1e7),
    "m": (10.0, 30.0, 100.0, 300.0, 1000.0),
    "d": (2.0, 5.0, 10.0, 20.0, 50.0),
    "eps": (0.25, 0.5, 1.0, 2.0, 4.0),
}
THEORY = {"n": -1.0, "m": -0.5, "d": 1.5, "eps": -2.0}
"""Powers of the second term of Theorem 3.1."""
PIECES: Mapping[str, Mapping[str, Any]] = {
    "the paper's": {"estimate": "debiased", "kernel": "exp", "test": "above_threshold"},
    "ours": {},
}


# --- Slopes ----------------------------------------------------------------------------------------------------------


def slope(at: Vector, found: Vector) -> tuple[float, float]:
    """Return the slope of log ``found`` in log ``at``, (k,) both, and its standard error by least squares."""
    fit, covariance = np.polyfit(np.log(at), np.log(found), 1, cov=True)
    return float(fit[0]), float(math.sqrt(covariance[0, 0]))


def planned(pieces: Mapping[str, Any], *, n: float, m: float, d: float, eps: float) -> float:
    """Return d times the planned noise on a coordinate of the mean gradient, of one phase.

    The radius is the paper's for G = 1; the batch is half as large again, as noise is for scores that move by 2.
    A linear loss loses a coordinate's mean where the noise turns its sign: that much, up to a factor below one.
    """
    batch = math.ceil(150 * math.log(n * m * d / DELTA) / eps)
    strategy = LocalizedRobustSGD(
        Linear(int(d), bound=6.0),
        PublicFacts(users=int(n), min_samples=int(m)),
        Privacy(eps, DELTA),
        seed=0,
        batch=batch,
        radius=math.log(n * m * d) / math.sqrt(m),
        phases=1,
        learning_rate=1.0,
        deviation=1.0,
        **pieces,
    )
    (phase,) = strategy.scheme.phases
    travelled = phase.learning_rate * (phase.steps + 1) / 2
    return d * phase.mechanism.standard_deviation / travelled


def slopes() -> pd.DataFrame:
    """Slopes of the planned privacy term in users, samples, columns and epsilon, beside the theorem's."""
    rows = []
    for along, values in ALONG.items():
        row: dict[str, Any] = {"slope_in": along, "Theorem_3.1": THEORY[along]}
        for name, pieces in PIECES.items():
            found = np.array([planned(pieces, **(USUAL | {along: value})) for value in values])
            row[name], row[f"standard_error,_{name}"] = slope(np.array(values), found)
        rows.append(row)
    return pd.DataFrame(rows)


# --- The lower bound -------------------------------------------------------------------------------------------------

SEEDS = range(10)
FULL = 10.0
"""Users of the hard law, in units of ``sqrt(d) / eps``; the others hold zeros (appendix C, Lemma C.1)."""
STRATEGY_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "dp_fed_sgd": {"rounds": 1, "clip_norm": 6.0, "learning_rate": 1e6},
    "localized_robust_sgd": {"deviation": 3.0},
    "auto": {},
}
"""Written down once; a step of a million leaves the box, which a linear loss asks for."""


def hard_instance() -> pd.DataFrame:
    """Excess risk on the mixture of Lemma C.1, beside the start and the bound of Theorem 4.1 without its logarithms."""
    rows = []
    d, m, epsilon = 10, 10, 1.0
    for n in (1_000, 10_000, 100_000):
        row: dict[str, Any] = {"n": n, "bound,_d^(3/2)_/_(n_eps)": d**1.5 / (n * epsilon)}
        share = FULL * math.sqrt(d) / (epsilon * n)
        for name, settings in STRATEGY_SETTINGS.items():
            found = [_excess(_hard(n, m, d, epsilon, share, {"kind": name, **settings}, seed)) for seed in SEEDS]
            starts, ends = np.array(found).T
            row.setdefault("start", float(starts.mean()))
            row[name] = float(ends.mean())
            row[f"standard_error,_{name}"] = float(ends.std(ddof=1) / math.sqrt(len(ends)))
        rows.append(row)
    return pd.DataFrame(rows)


def _hard(n: int, m: int, d: int, epsilon: float, share: float, strategy: Mapping[str, Any], seed: int) -> RunConfig:
    data = {"kind": "synthetic", "population": "hard_instance", "users": n, "test_users": 0, "samples_per_user": m}
    return parse_config(
        {
            "name": "hard-instance",
            "seed": seed,
            "problem": {"kind": "linear", "bound": 6.0 * math.sqrt(m), "radius": 1.0},
            "data": {**data, "dimension": d, "share": share},
            "privacy": {"epsilon": epsilon, "delta": DELTA},
            "strategy": strategy,
        }
    )


def _excess(config: RunConfig) -> tuple[float, float]:
    """Return the excess risk of the start and of the trained model; the start's where the strategy refuses."""
    problem, datasets = build_problem(config), load_datasets(config)
    assert datasets.train is not None
    strategy = make_strategy(config, problem, public_facts(config, datasets.train))
    with make_grid(config, problem, datasets) as grid:
        released = model_vector(strategy.start(grid).arrays)
    start, end = (problem.excess_risk(x, datasets.train) for x in (problem.initial(), released))
    assert start is not None
    assert end is not None
    return start, end


SWEEPS: dict[str, Sweep] = {
    "robust-slopes": Sweep(slopes),
    "robust-hard-instance": Sweep(hard_instance, quick=False),
}
