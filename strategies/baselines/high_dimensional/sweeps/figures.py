"""Tables of the page on high-dimensional heavy-tailed data: the paper's own experiments, and their rates."""

import math
from functools import cache

import numpy as np
import pandas as pd
from scipy.special import expit
from sweeps.slopes import slope
from sweeps.sweep import Sweep

from strategies.baselines.high_dimensional.frank_wolfe import FrankWolfeTheory, L1Ball, Mode, root_step, step_size
from strategies.baselines.high_dimensional.hard_thresholding import log_rounds
from strategies.baselines.high_dimensional.lasso import Accounting, Selections, default_threshold
from strategies.baselines.high_dimensional.reference.frank_wolfe import robust_frank_wolfe
from strategies.baselines.high_dimensional.reference.hard_thresholding import (
    SparseBudget,
    private_hard_thresholding,
    private_sparse_optimisation,
)
from strategies.baselines.high_dimensional.reference.lasso import private_lasso
from userdp.arrays.types import Rows, Vector
from userdp.data.block import Block
from userdp.noise import SeededNoise

SEEDS = range(3)
SIZES, DIMENSIONS = (10_000, 30_000, 90_000), (200, 400, 800)
"""The sizes and dimensions of Figure 1."""
SHAPE = 0.6
"""Deviation of a feature's logarithm."""
FRANK_WOLFE: dict[str, Mode] = {"printed_s": "paper", "theorem's_s": "paper", "ours": "tight"}


# --- Frank-Wolfe -----------------------------------------------------------------------------------------------------


def figure_1() -> pd.DataFrame:
    """Mean excess risk of least squares in an l1 ball at epsilon 1, by dimension and samples."""
    rows = []
    for dimension in DIMENSIONS:
        for samples in SIZES:
            start = np.mean([_squared(np.zeros(dimension), _truth(dimension, seed)) for seed in SEEDS])
            found = {told: float(np.mean(_least_squares(told, dimension, samples))) for told in FRANK_WOLFE}
            rows.append({"d": dimension, "n": samples, "start": float(start)} | found)
    return pd.DataFrame(rows)


def slopes() -> pd.DataFrame:
    """Slopes of the logarithm of the excess risk in the logarithm of n, over all seeds, beside the theorem's."""
    rows = []
    for told in ("theorem's_s", "ours"):
        for dimension in DIMENSIONS:
            ends = np.array([_least_squares(told, dimension, samples) for samples in SIZES])
            rows.append({"theorem": "2, convex", "settings": told.replace("_", " "), "d": dimension} | _fitted(ends, 3))
    for told in ("steps of theorem 3", "steps of theorem 2"):
        ends = np.array([[_biweight(told, samples, seed) for seed in SEEDS] for samples in SIZES])
        rows.append({"theorem": "3, biweight", "settings": told, "d": DIMENSIONS[0]} | _fitted(ends, 4))
    return pd.DataFrame(rows)


def _fitted(ends: Rows, root: int) -> dict[str, float]:
    """The slope of (samples, seeds) errors; theory's is the ``root`` of the samples."""
    found, error = slope(np.repeat(SIZES, ends.shape[1]), ends.ravel())
    return {"first": float(ends[0].mean()), "last": float(ends[-1].mean()), "slope": found, "standard_error": error} | {
        "theory": -1 / root
    }


@cache
def _least_squares(told: str, dimension: int, samples: int) -> tuple[float, ...]:
    """Excess risks by seed. The printed scale is ``n epsilon``; rounds are the printed ``(n epsilon)^(1/3)``."""
    theory = FrankWolfeTheory(L1Ball(1.0, dimension), dimension, samples, 1.0, 10.0, mode=FRANK_WOLFE[told])
    rounds = theory.rounds(None)
    scale = float(samples) if told == "printed_s" else theory.scale(rounds)
    ends = []
    for seed in SEEDS:
        truth, rng = _truth(dimension, seed), np.random.default_rng([seed, samples])

        def gradients(index: int, w: Vector, truth: Vector = truth, rng: np.random.Generator = rng) -> Rows:
            features = _features(samples // rounds, dimension, rng)
            residuals = features @ (w - truth) - 0.1 * rng.standard_normal(len(features))
            return 2 * features * residuals[:, None]

        end = robust_frank_wolfe(gradients, np.zeros(dimension), theory, rounds, scale, seed=seed)[-1]
        ends.append(_squared(end, truth))
    return tuple(ends)


def _features(samples: int, dimension: int, rng: np.random.Generator) -> Rows:
    return np.asarray(np.exp(SHAPE * rng.standard_normal((samples, dimension))))


def _truth(dimension: int, seed: int) -> Vector:
    """Dense and positive, of l1 norm 1."""
    parameter = np.abs(np.random.default_rng(seed).standard_normal(dimension))
    return np.asarray(parameter / parameter.sum())


def _squared(model: Vector, truth: Vector) -> float:
    """The mean squared error of a prediction on the law of `_features`, above that of the truth."""
    gap, square = model - truth, SHAPE**2
    return float(math.exp(square) * (math.expm1(square) * gap @ gap + gap.sum() ** 2))


WIDTH = 3.0
"""c of the biweight loss."""


def _biweight(told: str, samples: int, seed: int) -> float:
    """Excess of the biweight risk, on 20,000 fresh samples."""
    dimension = DIMENSIONS[0]
    theory = FrankWolfeTheory(L1Ball(1.0, dimension), dimension, samples, 1.0, 1.5)
    third = told == "steps of theorem 3"
    rounds = theory.root_rounds() if third else theory.rounds(None)
    truth, rng = _truth(dimension, seed), np.random.default_rng([seed, samples])

    def gradients(index: int, w: Vector) -> Rows:
        features = _features(samples // rounds, dimension, rng)
        residuals = features @ (w - truth) - 0.1 * rng.standard_normal(len(features))
        return features * (residuals * np.maximum(1 - (residuals / WIDTH) ** 2, 0) ** 2)[:, None]

    step = (lambda _: root_step(rounds)) if third else step_size
    end = robust_frank_wolfe(gradients, np.zeros(dimension), theory, rounds, theory.scale(rounds), seed=seed, step=step)
    features, noise = _features(20_000, dimension, rng), 0.1 * rng.standard_normal(20_000)
    losses = [np.minimum((features @ (w - truth) - noise) ** 2 / WIDTH**2, 1) for w in (end[-1], truth)]
    risks = [WIDTH**2 / 6 * float((1 - (1 - part) ** 3).mean()) for part in losses]
    return risks[0] - risks[1]


# --- Logistic regression, and LASSO ----------------------------------------------------------------------------------

CELLS = ((200, 10_000), (200, 30_000), (400, 10_000))
"""Dimensions and samples."""


def figure_2() -> pd.DataFrame:
    """Excess of the logistic loss in the unit l1 ball, targets without noise, over Frank-Wolfe without privacy."""
    rows = []
    for dimension, samples in CELLS:
        found = np.array([_logistic_in_ball(dimension, samples, seed) for seed in SEEDS]).mean(axis=0)
        told = dict(zip(("start", *FRANK_WOLFE), found.tolist(), strict=True))
        rows.append({"d": dimension, "n": samples} | told)
    return pd.DataFrame(rows)


def _logistic_in_ball(dimension: int, samples: int, seed: int) -> list[float]:
    """At the start and after each of `FRANK_WOLFE`, on 20,000 fresh samples; the truth has mixed signs."""
    rng = np.random.default_rng([seed, samples, dimension])
    truth = rng.standard_normal(dimension)
    test = _features(20_000, dimension, rng)
    signs = np.sign(test @ truth)

    def loss(model: Vector) -> float:
        return float(np.logaddexp(0, -signs * (test @ model)).mean())

    def slopes_at(features: Rows, model: Vector) -> Vector:
        own = np.sign(features @ truth)
        return np.asarray(-own * expit(-own * (features @ model)))

    ball = L1Ball(1.0, dimension)
    best = np.zeros(dimension)
    for index in range(300):
        scores = ball.scores(slopes_at(test, best) @ test / len(test))
        best = ball.towards(best, int(np.argmax(scores)), step_size(index))
    ends = [np.zeros(dimension)]
    for told, mode in FRANK_WOLFE.items():
        theory = FrankWolfeTheory(ball, dimension, samples, 1.0, 1.5, mode=mode)
        rounds = theory.rounds(None)
        scale = float(samples) if told == "printed_s" else theory.scale(rounds)

        def gradients(index: int, w: Vector, rounds: int = rounds) -> Rows:
            features = _features(samples // rounds, dimension, rng)
            return features * slopes_at(features, w)[:, None]

        ends.append(robust_frank_wolfe(gradients, np.zeros(dimension), theory, rounds, scale, seed=seed)[-1])
    return [loss(end) - loss(best) for end in ends]


def figures_5_and_6() -> pd.DataFrame:
    """Mean excess risk of Algorithm 2 at epsilon 1, with the printed K and accounting and with ours."""
    rows = []
    for figure in ("5, log-normal", "6, Student's t"):
        for dimension, samples in CELLS:
            found = np.array([_lasso(figure, dimension, samples, seed) for seed in SEEDS]).mean(axis=0)
            told = dict(zip(("start", "printed", "ours"), found.tolist(), strict=True))
            rows.append({"figure": figure, "d": dimension, "n": samples} | told)
    return pd.DataFrame(rows)


def _lasso(figure: str, dimension: int, samples: int, seed: int) -> list[float]:
    truth, rng = _truth(dimension, seed), np.random.default_rng([seed, samples])
    heavy = figure.startswith("6")
    features = rng.standard_t(10, (samples, dimension)) if heavy else _features(samples, dimension, rng)
    targets = features @ truth + 0.1 * rng.standard_normal(samples)
    block = Block(features.astype(np.float32), np.arange(samples + 1), targets.astype(np.float32))
    rounds, ends = int(samples**0.4), [np.zeros(dimension)]
    moment = 6.25 if heavy else 6.0  # the fourth moment of t(10)
    accountings: tuple[Accounting, ...] = ("paper", "zcdp")
    for accounting in accountings:
        each = Selections(samples, rounds, accounting).calibrate(1.0, samples**-1.1)
        printed = samples**0.25 / rounds**0.125
        level = default_threshold(samples, dimension, rounds, each, moment, 0.1) if accounting == "zcdp" else printed
        shape = {"radius": 1.0, "threshold": level, "epsilon": each, "rounds": rounds, "seed": seed}
        ends.append(private_lasso(block, np.zeros(dimension), **shape)[-1])
    if heavy:
        return [float(1.25 * ((end - truth) ** 2).sum()) for end in ends]
    return [_squared(end, truth) for end in ends]


# --- Sparse models ---------------------------------------------------------------------------------------------------

RELEVANT, SPARSE_DIMENSION = 20, 200
READINGS = {"variance 5": math.sqrt(5), "deviation 5": 5.0}
"""The deviation of features ``N(0, 5)``, by each reading."""


def figure_7() -> pd.DataFrame:
    """Squared distance to the truth after Algorithm 3, with both steps, and after Algorithm 5, at our scale."""
    rows = []
    for reading, deviation in READINGS.items():
        for epsilon in (1.0, 4.0):
            found = np.array([_linear(deviation, epsilon, seed) for seed in SEEDS]).mean(axis=0)
            told = dict(zip(("printed_step", "theorem's_step", "Algorithm_5"), found.tolist(), strict=True))
            rows.append({"N(0,_5)": reading, "epsilon": epsilon, "start": 1.0} | told)
    return pd.DataFrame(rows)


def _linear(deviation: float, epsilon: float, seed: int) -> list[float]:
    """Log-normal noise, centred; moments are those of normal features at the start."""
    records, rng = 50_000, np.random.default_rng(seed)
    truth, square = _sparse_truth(rng), deviation**2
    features = deviation * rng.standard_normal((records, SPARSE_DIMENSION))
    targets = features @ truth + rng.lognormal(0, 0.5, records) - math.exp(0.125)
    printed, short = (SparseBudget(RELEVANT, epsilon, records**-1.1, rate) for rate in (0.5, 2 / (3 * square)))

    def gradients(model: Vector, fold: slice) -> Rows:
        return features[fold] * (features[fold] @ model - targets[fold])[:, None]

    fits = [
        private_hard_thresholding(features, targets, budget, _noise(seed), fourth_moment=3 * square**2)
        for budget in (printed, short)
    ]
    moment = square * (3 * square + 0.4)
    fits.append(
        private_sparse_optimisation(gradients, records, SPARSE_DIMENSION, short, _noise(seed), second_moment=moment)
    )
    return [float(((fit.model - truth) ** 2).sum()) for fit in fits]


def figures_10_and_11() -> pd.DataFrame:
    """Logistic loss on fresh samples after Algorithm 5, with the printed scale and step and with ours."""
    rows = []
    for figure in ("10, variance 5", "10, deviation 5", "11"):
        for records in (8000, 80_000):
            found = np.array([_logistic(figure, records, seed) for seed in SEEDS]).mean(axis=0)
            told = dict(zip(("start", "best_multiple_of_the_truth", "printed", "ours"), found.tolist(), strict=True))
            rows.append({"figure": figure, "n": records} | told)
    return pd.DataFrame(rows)


def _logistic(figure: str, records: int, seed: int) -> tuple[float, float, float, float]:
    rng = np.random.default_rng([seed, records])
    truth = _sparse_truth(rng)
    deviation = {"10, variance 5": math.sqrt(5), "10, deviation 5": 5.0, "11": 5 * math.sqrt(2)}[figure]

    def drawn(count: int) -> tuple[Rows, Vector]:
        """Features, and signs as targets."""
        shape = (count, SPARSE_DIMENSION)
        features = rng.laplace(0, 5, shape) if figure == "11" else deviation * rng.standard_normal(shape)
        # A log-gamma variable of shape 1/2 has mean psi(1/2).
        noise = np.log(rng.gamma(0.5, size=count)) + 1.96351 if figure == "11" else rng.logistic(0, 0.5, count)
        return features, np.where(features @ truth + noise > 0, 1.0, -1.0)

    def gradients(model: Vector, fold: slice) -> Rows:
        features, signs = drawn(fold.stop - fold.start)
        return features * (-signs * expit(-signs * (features @ model)))[:, None]

    fits = []
    for scale, rate in ((2.0 * records, 0.5), (None, 2 / (3 * deviation**2 / 4))):
        budget = SparseBudget(2 * RELEVANT, 1.0, records**-1.1, rate, log_rounds(records))
        fits.append(
            private_sparse_optimisation(
                gradients, records, SPARSE_DIMENSION, budget, _noise(seed), scale=scale, second_moment=deviation**2
            ).model
        )
    features, signs = drawn(20_000)

    def loss(model: Vector) -> float:
        return float(np.logaddexp(0, -signs * (features @ model)).mean())

    best = min(loss(multiple * truth) for multiple in np.geomspace(0.1, 10, 41))
    return loss(0 * truth), best, loss(fits[0]), loss(fits[1])


def _sparse_truth(rng: np.random.Generator) -> Vector:
    """On the unit sphere."""
    truth = np.zeros(SPARSE_DIMENSION)
    truth[rng.choice(SPARSE_DIMENSION, RELEVANT, replace=False)] = rng.normal(size=RELEVANT)
    return np.asarray(truth / np.linalg.norm(truth))


def _noise(seed: int) -> SeededNoise:
    return SeededNoise(np.random.default_rng(1_000 + seed))


SWEEPS: dict[str, Sweep] = {
    "high-dimensional-figure-1": Sweep(figure_1, quick=False),
    "high-dimensional-slopes": Sweep(slopes, quick=False),
    "high-dimensional-figure-2": Sweep(figure_2, quick=False),
    "high-dimensional-figures-5-and-6": Sweep(figures_5_and_6, quick=False),
    "high-dimensional-figure-7": Sweep(figure_7, quick=False),
    "high-dimensional-figures-10-and-11": Sweep(figures_10_and_11, quick=False),
}
