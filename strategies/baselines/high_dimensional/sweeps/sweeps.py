"""Tables of the page on high-dimensional heavy-tailed data: models in an l1 ball."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pandas as pd
from scipy.special import ndtr
from sweeps.sweep import Sweep

from strategies.baselines.high_dimensional.frank_wolfe import FrankWolfeTheory, L1Ball, Mode
from strategies.baselines.high_dimensional.lasso import Accounting, Selections, default_threshold
from strategies.baselines.high_dimensional.reference.frank_wolfe import robust_frank_wolfe
from strategies.baselines.high_dimensional.reference.lasso import private_lasso
from strategies.baselines.smoothed_truncation import LARGEST, largest_truncated, noisily_truncated
from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput

RECORDS, DIMENSION = 10_000, 200
DELTA = RECORDS**-1.1
LASSO_ROUNDS = 39
NO_NOISE = 1e12
"""An epsilon at which noise is far below rounding."""


# --- Truncation ------------------------------------------------------------------------------------------------------


def truncation() -> pd.DataFrame:
    """``E phi(a w)`` with ``w ~ N(1, 1)``: its closed form as it is printed and ours, beside forty digits."""
    rows = []
    for value in (1.0, 1e3, 1e5, 1e6, 1e7):
        exact = _integral(value)
        ours = float(noisily_truncated(np.array(value), 1.0))
        found = {"truth": exact, "closed_form": _closed_form(value), "error_of_ours": abs(ours - exact)}
        rows.append({"a": value} | found)
    return pd.DataFrame(rows)


def _closed_form(a: float) -> float:
    """In double precision; the noise is as wide as the value."""
    low, high = (math.sqrt(2) - a) / a, (math.sqrt(2) + a) / a
    below, above = float(ndtr(-low)), float(ndtr(-high))
    bell_low, bell_high = math.exp(-(low**2) / 2), math.exp(-(high**2) / 2)
    root = math.sqrt(2 * math.pi)
    correction = LARGEST * (below - above) - (a - a**3 / 6) * (below + above)
    correction += a / root * (1 - a**2 / 2) * (bell_high - bell_low)
    correction += a**3 / 2 * (above + below + (high * bell_high + low * bell_low) / root)
    correction += a**3 / (6 * root) * ((2 + low**2) * bell_low - (2 + high**2) * bell_high)
    return a * (1 - a**2 / 2) - a**3 / 6 + correction


def _integral(a: float) -> float:
    """The integral by quadrature in forty digits: what lies within the edges, and the mass beyond them."""
    with mpmath.workdps(40):
        edge, largest = mpmath.sqrt(2), 2 * mpmath.sqrt(2) / 3
        inside = mpmath.quad(lambda x: (x - x**3 / 6) * mpmath.npdf(x, a, a), [-edge, 0, edge])
        beyond = largest * (1 - mpmath.ncdf(edge, a, a) - mpmath.ncdf(-edge, a, a))
        return float(inside + beyond)


def noise() -> pd.DataFrame:
    """The factor by which the exact supremum and the radius of the ball take less noise than the paper's bounds."""
    rows = []
    for beta in (0.3, 1.0, 3.0, math.inf):
        paper, tight = (_theory(mode, beta).choice_sensitivity(1.0, 1.0) for mode in ("paper", "tight"))
        told = f"{beta:g}" if beta < math.inf else "no smoothing"
        bounds = {"supremum": largest_truncated(beta), "the_paper's_bound": LARGEST}
        rows.append({"beta": told} | bounds | {"times_less_noise": paper / tight})
    return pd.DataFrame(rows)


def _theory(mode: Mode, inverse_variance: float = 1.0) -> FrankWolfeTheory:
    ball = L1Ball(1.0, DIMENSION)
    return FrankWolfeTheory(ball, DIMENSION, RECORDS, 1.0, 10.0, inverse_variance, mode=mode)


def choices() -> pd.DataFrame:
    """Epsilon of each round of private LASSO, by how rounds are composed."""
    rows = []
    for epsilon, delta, rounds in ((0.5, DELTA, 39), (1.0, DELTA, 39), (4.0, DELTA, 39), (10.0, 0.01, 2)):
        tight = Selections(RECORDS, rounds, "zcdp").calibrate(epsilon, delta)
        try:
            paper: float | None = Selections(RECORDS, rounds, "paper").calibrate(epsilon, delta)
        except BadInput:  # it composes to more than epsilon
            paper = None
        times = None if paper is None else tight / paper
        each = {"epsilon_of_a_round,_zCDP": tight, "the_paper's": paper, "times": times}
        rows.append({"epsilon": epsilon, "delta": delta, "rounds": rounds} | each)
    return pd.DataFrame(rows)


# --- Least squares ---------------------------------------------------------------------------------------------------


def least_squares() -> pd.DataFrame:
    """Mean excess risk of models in an l1 ball, over true parameters of positive and of mixed signs."""
    found = {"positive": _excesses(np.abs), "mixed_signs": _excesses(np.asarray)}
    methods = list(found["positive"])
    columns = {name: [own[method] for method in methods] for name, own in found.items()}
    return pd.DataFrame({"method": methods} | columns)


def _excesses(signs: Callable[[Vector], Vector]) -> dict[str, float]:
    """The model's mean squared error of a prediction, above that of the truth."""
    mean, variance = math.exp(0.18), math.exp(0.36) * math.expm1(0.36)
    runs: dict[str, list[float]] = {}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        parameter = signs(rng.standard_normal(DIMENSION))
        parameter /= np.abs(parameter).sum()
        features = np.exp(0.6 * rng.standard_normal((RECORDS, DIMENSION)))
        targets = features @ parameter + 0.1 * rng.standard_normal(RECORDS)
        for name, fit in _methods(features, targets).items():
            gap = fit(seed) - parameter
            runs.setdefault(name, []).append(float(variance * gap @ gap + (mean * gap.sum()) ** 2))
    return {name: float(np.mean(own)) for name, own in runs.items()}


def _methods(features: Rows, targets: Vector) -> dict[str, Callable[[int], Vector]]:
    """Functions from a seed to a model, at epsilon = 1."""
    block = Block(features.astype(np.float32), np.arange(RECORDS + 1), targets.astype(np.float32))
    each: dict[Accounting, float] = {
        "paper": Selections(RECORDS, LASSO_ROUNDS, "paper").calibrate(1.0, DELTA),
        "zcdp": Selections(RECORDS, LASSO_ROUNDS, "zcdp").calibrate(1.0, DELTA),
    }

    def frank_wolfe(mode: Mode) -> Callable[[int], Vector]:
        theory = _theory(mode)
        rounds = math.floor(math.cbrt(RECORDS))
        size = RECORDS // rounds

        def gradients(index: int, model: Vector) -> Rows:
            part = slice(index * size, (index + 1) * size)
            return np.asarray(2 * features[part] * (features[part] @ model - targets[part])[:, None])

        start = np.zeros(DIMENSION)
        return lambda seed: np.asarray(
            robust_frank_wolfe(gradients, start, theory, rounds, theory.scale(rounds), seed=seed)[-1]
        )

    def lasso(threshold: float, epsilon: float) -> Callable[[int], Vector]:
        shape = {"radius": 1.0, "threshold": threshold, "epsilon": epsilon}
        return lambda seed: np.asarray(
            private_lasso(block, np.zeros(DIMENSION), **shape, rounds=LASSO_ROUNDS, seed=seed)[-1]
        )

    def ours(accounting: Accounting) -> float:
        return default_threshold(RECORDS, DIMENSION, LASSO_ROUNDS, each[accounting], 6.0, 0.1)

    papers = RECORDS**0.25 / LASSO_ROUNDS**0.125
    return {
        "w = 0": lambda seed: np.zeros(DIMENSION),
        "Frank-Wolfe, sensitivities of the paper": frank_wolfe("paper"),
        "Frank-Wolfe, tight": frank_wolfe("tight"),
        "LASSO, the paper's K and accounting": lasso(papers, each["paper"]),
        "LASSO, the paper's K, zCDP": lasso(papers, each["zcdp"]),
        "LASSO, default K, the paper's accounting": lasso(ours("paper"), each["paper"]),
        "LASSO, default K, zCDP": lasso(ours("zcdp"), each["zcdp"]),
        "LASSO without noise and truncation": lasso(1e3, NO_NOISE),
    }


SWEEPS: dict[str, Sweep] = {
    "high-dimensional-truncation": Sweep(truncation),
    "high-dimensional-noise": Sweep(noise),
    "high-dimensional-choices": Sweep(choices),
    "high-dimensional-least-squares": Sweep(least_squares, quick=False),
}
