"""Rates of the paper's two methods on arrays: the excess risk of Theorems 4 and 7, the iterative mean of Theorem 5.

Data are Student's t with p + 0.2 degrees of freedom. The loss is half the squared distance to a sample, on the unit
ball, from a point on its boundary to the mean, its centre.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from sweeps.slopes import slope_of_runs
from sweeps.sweep import Sweep

from strategies.baselines.averaged_clipping.reference.descent import ball
from strategies.baselines.heavy_tailed.estimators import group_radius
from strategies.baselines.heavy_tailed.reference.descent import (
    dp_sco_clip,
    dp_sco_iterative,
    iterative_descent,
    simple_descent,
)
from strategies.baselines.heavy_tailed.reference.estimators import iterative_mean
from strategies.baselines.heavy_tailed.sweeps.means import DELTA, EXPONENTS, ORDERS, moment, student
from userdp.accounting.composition import rho_for

GROUPS = 10
Measure = Callable[[int, int, float, float, np.random.Generator], float]
"""(n, d, epsilon, p, rng) -> what a run leaves."""


def _clipped(n: int, d: int, epsilon: float, order: float, rng: np.random.Generator) -> float:
    """Return the excess risk of Algorithm 1 with Algorithm 2."""
    data, project, start = student(n, d, order + 0.2, rng), ball(np.zeros(d), 1.0), np.eye(d)[0]
    numbers = simple_descent(n, d, order, epsilon, DELTA, **_sizes(order))
    found = dp_sco_clip(lambda x: x - data, project, start, numbers, rng)
    return float(found @ found / 2)


def _iterated(n: int, d: int, epsilon: float, order: float, rng: np.random.Generator) -> float:
    """Return the excess risk of Algorithm 1 with Algorithm 3."""
    data, project, start = student(n, d, order + 0.2, rng), ball(np.zeros(d), 1.0), np.eye(d)[0]
    numbers = iterative_descent(n, d, order, epsilon, DELTA, groups=GROUPS, **_sizes(order))
    found = dp_sco_iterative(lambda x: x - data, project, start, numbers, GROUPS, rng)
    return float(found @ found / 2)


def _sizes(order: float) -> dict[str, float]:
    """Return the loss's constants; a gradient's moment is at most that of a sample and the model's length together."""
    return {"smoothness": 1.0, "diameter": 2.0, "moment": moment(order + 0.2, order) + 1}


def _mean(n: int, d: int, epsilon: float, order: float, rng: np.random.Generator) -> float:
    """Return the error of the iterative mean, private."""
    rho = rho_for(epsilon, DELTA, "paper")
    radius = group_radius(n, d, order, rho / GROUPS, moment(order + 0.2, order))
    found = iterative_mean(student(n, d, order + 0.2, rng), radius, GROUPS, rho, rng)
    return float(np.linalg.norm(found))


def _slopes(methods: dict[str, Measure], at: dict[float, dict[str, tuple[float, ...]]], seeds: int) -> pd.DataFrame:
    """Return the slope of each method's mean error in each number, with its standard error, beside the theorem's.

    ``at`` are, for each order p, three values of each number; the one in the middle is that of the others' rows.
    """
    rows = []
    for name in EXPONENTS:
        for order, values in at.items():
            row: dict[str, object] = {"slope_in": name, "p": order, "theorem": EXPONENTS[name](order)}
            for method, measure in methods.items():
                found = np.empty((3, seeds))
                for index, seed in np.ndindex(found.shape):
                    sizes = [three[index if other == name else 1] for other, three in values.items()]
                    found[index, seed] = measure(*sizes, order, np.random.default_rng([31, seed]))
                row[method], row[f"standard_error,_{method}"] = slope_of_runs(np.array(values[name]), found)
            rows.append(row)
    return pd.DataFrame(rows)


def excess() -> pd.DataFrame:
    """Slopes of the mean excess risk of both methods, by the privacy terms of Theorems 4 and 7; 30 runs per point."""
    others = {"dimension": (3, 5, 8), "epsilon": (0.25, 0.5, 1.0)}
    at = {2.0: {"samples": (10_000, 20_000, 40_000), **others}, 4.0: {"samples": (1_000, 2_000, 4_000), **others}}
    return _slopes({"simple clipping": _clipped, "iterative mean": _iterated}, at, 30)


def iterative() -> pd.DataFrame:
    """Slopes of the iterative mean's error, by the privacy term of Theorem 5; 20 runs per point."""
    numbers = {"samples": (10_000, 30_000, 90_000), "dimension": (3, 6, 12), "epsilon": (0.1, 0.3, 0.9)}
    return _slopes({"iterative mean": _mean}, dict.fromkeys(ORDERS, numbers), 20)


SWEEPS: dict[str, Sweep] = {
    "heavy-tailed-excess": Sweep(excess, quick=False, portable=False),
    "heavy-tailed-iterative": Sweep(iterative, quick=False, portable=False),
}
"""The sweeps of rates."""
