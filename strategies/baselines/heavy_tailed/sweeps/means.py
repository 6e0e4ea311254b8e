"""Tables of the page on optimal rates with heavy-tailed data: what the means err by.

Data are Student's t in d dimensions, every projection of which is t with as many degrees of freedom, so that the moment
that clips are set by is known exactly.
"""

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pandas as pd
from scipy.special import gammaln
from sweeps.slopes import slope
from sweeps.sweep import Sweep

from strategies.baselines.heavy_tailed.depth import geometric_median
from strategies.baselines.heavy_tailed.estimators import deep_centre, group_radius, simple_radius
from strategies.baselines.heavy_tailed.reference.estimators import group_means, random_partition, simple_clip_mean
from userdp.accounting.composition import rho_for
from userdp.arrays.types import Rows, Vector

DELTA = 1e-5
ORDERS = (2.0, 4.0)
RUNS = 20
"""Runs for each point of simple clipping."""
EXPONENTS: dict[str, Callable[[float], float]] = {
    "samples": lambda p: -(1 - 1 / p),
    "dimension": lambda p: 1 - 1 / (2 * p),
    "epsilon": lambda p: -(1 - 1 / p),
}
"""Power that the error of simple clipping follows where its noise decides, by the order p."""


def student(samples: int, dimension: int, freedom: float, rng: np.random.Generator) -> Rows:
    """(n, d) of Student's t."""
    scale = np.sqrt(rng.chisquare(freedom, samples) / freedom)
    return np.asarray(rng.standard_normal((samples, dimension)) / scale[:, None])


def moment(freedom: float, order: float) -> float:
    """The order-th root of ``E |t|^order``, for t with more degrees of freedom than that."""
    log = order / 2 * math.log(freedom) + gammaln((order + 1) / 2) + gammaln((freedom - order) / 2)
    return math.exp((log - gammaln(freedom / 2) - 0.5 * math.log(math.pi)) / order)


# --- Simple clipping -------------------------------------------------------------------------------------------------


@cache
def simple_clipping(along: str) -> pd.DataFrame:
    """The error of simple clipping as one of samples, dimension and epsilon changes."""
    values = {
        "samples": (2_000, 8_000, 32_000, 128_000),
        "dimension": (4, 8, 16, 32, 64),
        "epsilon": (0.05, 0.1, 0.2, 0.5, 1.0),
    }[along]
    others = {"samples": 20_000, "dimension": 10, "epsilon": 0.1 if along == "dimension" else 0.2}
    rng = np.random.default_rng(17)
    rows = []
    for order in ORDERS:
        for value in values:
            setting = others | {along: value}
            errors = _simple_errors(order, int(setting["samples"]), int(setting["dimension"]), setting["epsilon"], rng)
            spans = {"error": errors.mean(), "least": errors.min(), "most": errors.max()}
            rows.append({"p": order, **setting} | spans)
    return pd.DataFrame(rows)


def _simple_errors(order: float, samples: int, dimension: int, epsilon: float, rng: np.random.Generator) -> Vector:
    rho, freedom = rho_for(epsilon, DELTA, "paper"), order + 0.2
    radius = simple_radius(samples, dimension, order, rho, moment(freedom, order))
    found = [simple_clip_mean(student(samples, dimension, freedom, rng), radius, rho, rng) for _ in range(RUNS)]
    return np.asarray(np.linalg.norm(found, axis=1))


def slopes() -> pd.DataFrame:
    """Slopes of the logarithm of the error in the logarithm of what changes, beside theory."""
    rows = []
    for along, exponent in EXPONENTS.items():
        table = simple_clipping(along)
        row: dict[str, object] = {"slope_in": along}
        for order in ORDERS:
            own = table[table["p"] == order]
            row[f"p_=_{order:g}"], error = slope(own[along].to_numpy(), own["error"].to_numpy())
            row |= {f"standard_error,_p_=_{order:g}": error, f"theory,_p_=_{order:g}": exponent(order)}
        rows.append(row)
    return pd.DataFrame(rows)


# --- Centres of noisy group means ------------------------------------------------------------------------------------

CENTRES: dict[str, Callable[[Rows], Vector]] = {
    "iterative mean": lambda points: deep_centre(points).point,
    "geometric median": geometric_median,
    "coordinate-wise median": lambda points: np.median(points, axis=0),
    "mean": lambda points: points.mean(axis=0),
}


def centres() -> pd.DataFrame:
    """Errors with privacy: of simple clipping, and of centres of the same noisy means of groups."""
    samples, groups, order, freedom, runs = 100_000, 20, 3.0, 3.5, 10
    rho = rho_for(1.0, DELTA)
    found: dict[str, dict[str, float]] = {name: {} for name in ("simple clipping", *CENTRES)}
    for dimension in (1, 10):
        rng = np.random.default_rng(18)
        radius = simple_radius(samples, dimension, order, rho, moment(freedom, order))
        wide = group_radius(samples, dimension, order, rho / groups, moment(freedom, order))
        errors: dict[str, list[float]] = {name: [] for name in found}
        for _ in range(runs):
            data = student(samples, dimension, freedom, rng)
            points = group_means(data, random_partition(samples, groups, rng), wide, rho, rng)
            errors["simple clipping"].append(float(np.linalg.norm(simple_clip_mean(data, radius, rho, rng))))
            for name, centre in CENTRES.items():
                errors[name].append(float(np.linalg.norm(centre(points))))
        for name, own in errors.items():
            found[name][f"error,_d_=_{dimension}"] = float(np.mean(own))
    return pd.DataFrame([{"mean": name} | own for name, own in found.items()])


def tails() -> pd.DataFrame:
    """Quantiles of the error without noise."""
    rng, errors = np.random.default_rng(19), []
    for _ in range(300):
        data = student(2_000, 1, 2.1, rng)
        points = data[random_partition(2_000, 100, rng)].mean(axis=1)
        errors.append([abs(float(deep_centre(points).point[0])), abs(float(data.mean()))])
    levels = {"median_error": 0.5, "90_%_quantile": 0.9, "99_%_quantile": 0.99, "largest": 1.0}
    found = {name: np.quantile(errors, level, axis=0) for name, level in levels.items()}
    return pd.DataFrame({"mean": ["iterative mean", "sample mean"]} | found)


def outliers() -> pd.DataFrame:
    """Errors where a twentieth of the groups' means lie far off, and the iteration starts far off too."""
    rows = []
    for dimension in (1, 2, 10):
        rng, errors = np.random.default_rng(20), []
        for _ in range(5):
            clean = rng.standard_normal((40, dimension))
            spoilt = clean.copy()
            spoilt[:2] = 1e3
            start = np.full(dimension, 300.0)
            found = [deep_centre(points, start=start).point for points in (clean, spoilt)]
            errors.append([float(np.linalg.norm(point)) for point in (*found, spoilt.mean(axis=0))])
        names = ("no_outliers,_iterative_mean", "outliers,_iterative_mean", "outliers,_mean")
        rows.append({"dimension": dimension} | dict(zip(names, np.mean(errors, axis=0), strict=True)))
    return pd.DataFrame(rows)


def starts() -> pd.DataFrame:
    """Errors of the iteration by its share and its start, in standard deviations of a group's mean."""
    samples, groups, runs = 20_000, 100, 8
    rows = []
    for share in (0.9, 0.5):
        for start in ("afar", "median"):
            row: dict[str, object] = {"share_phi": share, "start": start}
            for dimension in (1, 10):
                rng, errors = np.random.default_rng(21), []
                for _ in range(runs):
                    data = student(samples, dimension, 2.1, rng)
                    points = data[random_partition(samples, groups, rng)].mean(axis=1)
                    unit = float(points.std(axis=0).mean())
                    far = np.full(dimension, 50 * unit / math.sqrt(dimension)) if start == "afar" else None
                    errors.append(float(np.linalg.norm(deep_centre(points, share, start=far).point)) / unit)
                row[f"error,_d_=_{dimension}"] = float(np.mean(errors))
            rows.append(row)
    return pd.DataFrame(rows)


def skewed() -> pd.DataFrame:
    """Bias and deviation on data with one heavy tail, without noise and clip."""
    samples, groups, exponent, runs = 20_000, 50, 2.2, 300
    rng, mean = np.random.default_rng(22), 1 / (exponent - 1)
    errors = []
    for _ in range(runs):
        data = rng.pareto(exponent, (samples, 1))
        points = data[random_partition(samples, groups, rng)].mean(axis=1)
        errors.append([float(deep_centre(points).point[0]) - mean, float(data.mean()) - mean])
    bias, deviation = np.mean(errors, axis=0), np.std(errors, axis=0, ddof=1)
    names = ["iterative mean", "sample mean"]
    shown = {"bias": bias, "standard_deviation": deviation, "bias_in_deviations": bias / deviation}
    return pd.DataFrame({"mean": names} | shown)


SWEEPS: dict[str, Sweep] = {
    "heavy-tailed-samples": Sweep(partial(simple_clipping, "samples")),
    "heavy-tailed-dimension": Sweep(partial(simple_clipping, "dimension")),
    "heavy-tailed-epsilon": Sweep(partial(simple_clipping, "epsilon")),
    "heavy-tailed-slopes": Sweep(slopes),
    "heavy-tailed-centres": Sweep(centres, portable=False),
    "heavy-tailed-tails": Sweep(tails),
    "heavy-tailed-outliers": Sweep(outliers, portable=False),
    "heavy-tailed-starts": Sweep(starts, quick=False),
    "heavy-tailed-skewed": Sweep(skewed),
}
