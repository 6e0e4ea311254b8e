"""The paper's tables 2 and 4 at their own settings, beside their numbers; and the time of one clip against m."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sweeps.sweep import Sweep

from strategies.baselines.averaged_clipping.parameters import TheoryConstants, average_clip, paper_noise
from userdp.arrays import clip_rows
from userdp.arrays.types import Rows, Vector

# --- Tables 2 and 4 --------------------------------------------------------------------------------------------------

SAMPLES, DIMENSION, BATCH, EPOCHS, EPSILON = 100_000, 10, 200, 400, 1.0
SEEDS, RADIUS = 3, 2.0
METHODS = {"CC": (0.54, 5e-4), "UC": (0.87, 2e-4), "DP-SGD": (0.74, 4e-4)}
"""Clips and steps of appendix B."""
EARLIER = (5, 40)
"""Epochs after which errors are noted, too."""
NOISES: dict[str, Callable[[np.random.Generator, int], Vector]] = {
    "Student's t(2)": lambda rng, n: rng.standard_t(2, n),
    "Laplace": lambda rng, n: rng.laplace(0.0, 1.0, n),
    "chi^2(1)": lambda rng, n: rng.chisquare(1, n) - 1,
}
PRINTED = {
    ("logistic", "Student's t(2)"): (0.8428, 0.8505, 0.8754),
    ("logistic", "Laplace"): (0.5702, 0.6056, 0.6960),
    ("logistic", "chi^2(1)"): (0.6118, 0.6432, 0.7226),
    ("ridge", "Student's t(2)"): (0.7967, 0.7985, 0.7974),
    ("ridge", "Laplace"): (0.5102, 0.5206, 0.5285),
    ("ridge", "chi^2(1)"): (0.5515, 0.5619, 0.5653),
}
"""Tables 2 and 4 at epsilon = 1, in the order of `METHODS`."""


@dataclass(frozen=True)
class Model:
    """A loss of a linear score u and a target.

    Attributes:
        targets: (scores with noise) -> targets.
        slope: (scores, targets) -> derivative of the loss by the score.
        loss: (scores, targets) -> the loss.
    """

    targets: Callable[[Vector], Vector]
    slope: Callable[[Rows, Rows], Rows]
    loss: Callable[[Rows, Rows], Rows]


def _sigmoid(u: Rows) -> Rows:
    return np.asarray(1 / (1 + np.exp(-u)))


MODELS = {
    "ridge": Model(lambda u: u, lambda u, y: 2 * (u - y), lambda u, y: (u - y) ** 2),
    # As printed: y = 2 [1 / exp(u) > 1/2] - 1, and the loss log(1 + exp(1 + y u)).
    "logistic": Model(
        lambda u: np.where(u < math.log(2), 1.0, -1.0),
        lambda u, y: y * _sigmoid(1 + y * u),
        lambda u, y: np.logaddexp(0.0, 1 + y * u),
    ),
}


def tables() -> pd.DataFrame:
    """Errors of average iterates at epsilon = 1 by the paper's noise: distance and loss, as shares of the start's."""
    rows = []
    for name, model in MODELS.items():
        found = _errors(model)
        middle, spread = found.mean(axis=2), found.std(axis=2, ddof=1) / math.sqrt(SEEDS)
        for law, noise in enumerate(NOISES):
            for index, method in enumerate(METHODS):
                row: dict[str, float | str] = {"model": name, "noise": noise, "method": method}
                row["printed"] = PRINTED[name, noise][index]
                for moment, epochs in enumerate((*EARLIER, EPOCHS)):
                    row[f"distance,_{epochs}"] = middle[moment, 0, law, index]
                row["standard_error"] = spread[-1, 0, law, index]
                row[f"loss,_{EPOCHS}"] = middle[-1, 1, law, index]
                row["standard_error,_loss"] = spread[-1, 1, law, index]
                rows.append(row)
    return pd.DataFrame(rows)


def _errors(model: Model) -> NDArray[np.float64]:
    """Return (moments, 2, s, laws, methods): distances to the best model, and losses, over those of the start, zero.

    The truth has a squared length of 2: then the noise's share of the initial loss, which no model can go below, is
    one half for Laplace and chi^2, and so near what the paper prints. Laws share features and truths.
    """
    rng = np.random.default_rng(0)
    features = rng.standard_normal((SEEDS, SAMPLES, DIMENSION))
    truths = rng.standard_normal((SEEDS, DIMENSION))
    truths *= math.sqrt(2) / np.linalg.norm(truths, axis=1)[:, None]
    scores = np.einsum("snd,sd->sn", features, truths)
    shaken = np.array([[law(rng, SAMPLES) for law in NOISES.values()] for _ in range(SEEDS)])
    targets = model.targets(scores[:, None] + shaken)  # (s, laws, n)
    averages = _descended(model, features, targets, rng)
    found = np.empty((len(averages), 2, SEEDS, len(NOISES), len(METHODS)))
    for seed, law in np.ndindex(SEEDS, len(NOISES)):
        y = targets[seed, law]
        best, start = _best(model, features[seed], y), float(model.loss(np.zeros(SAMPLES), y).mean())
        for moment, points in enumerate(averages[:, seed, law]):
            found[moment, 0, seed, law] = np.linalg.norm(points - best, axis=1) / np.linalg.norm(best)
            found[moment, 1, seed, law] = model.loss(features[seed] @ points.T, y[:, None]).mean(axis=0) / start
    return found


def _descended(model: Model, features: Rows, targets: Rows, rng: np.random.Generator) -> Rows:
    """Return the (moments, s, laws, methods, d) averages of the iterates after each number of epochs.

    All are run side by side on the same batches, of a new order in each epoch.
    """
    steps_of_epoch, shape = SAMPLES // BATCH, (SEEDS, len(NOISES) * len(METHODS), DIMENSION)
    clips, steps = (np.tile(column, len(NOISES))[:, None] for column in np.array(list(METHODS.values())).T)
    each = slice(list(METHODS).index("DP-SGD"), None, len(METHODS))
    bounded = slice(list(METHODS).index("CC"), None, len(METHODS))
    constants = TheoryConstants(SAMPLES, DIMENSION, EPSILON, 1 / SAMPLES)
    noise = clips * paper_noise(constants, 1.0, BATCH, EPOCHS * steps_of_epoch)
    noise[each] /= BATCH  # the sensitivity of a sum of clipped samples is smaller by the batch
    wanted = np.repeat(np.moveaxis(targets, 1, 2), len(METHODS), axis=2)  # (s, n, laws of methods)
    lengths = np.linalg.norm(features, axis=2)[:, :, None]
    x, sums, moments = np.zeros(shape), np.zeros(shape), []
    for epoch in range(1, EPOCHS + 1):
        order = rng.permutation(SAMPLES)
        shaken = noise * rng.standard_normal((steps_of_epoch, *shape))
        for index, drawn in enumerate(order.reshape(steps_of_epoch, BATCH)):
            sums += x
            rows = features[:, drawn]
            slopes = model.slope(rows @ x.transpose(0, 2, 1), wanted[:, drawn])
            single = np.abs(slopes[:, :, each]) * lengths[:, drawn]
            slopes[:, :, each] *= np.minimum(1.0, clips[each, 0] / np.maximum(single, 1e-300))
            means = slopes.transpose(0, 2, 1) @ rows / BATCH
            norms = np.sqrt(np.einsum("skd,skd->sk", means, means))[:, :, None]
            x = x - steps * (means * np.minimum(1.0, clips / np.maximum(norms, 1e-300)) + shaken[index])
            norms = np.sqrt(np.einsum("skd,skd->sk", x[:, bounded], x[:, bounded]))[:, :, None]
            x[:, bounded] *= np.minimum(1.0, RADIUS / np.maximum(norms, 1e-300))
        if epoch in (*EARLIER, EPOCHS):
            moments.append(sums.reshape(SEEDS, len(NOISES), len(METHODS), DIMENSION) / (epoch * steps_of_epoch))
    return np.array(moments)


def _best(model: Model, features: Rows, targets: Vector) -> Vector:
    """Return the model of the least loss, by Newton's steps with differences of slopes."""
    x = np.zeros(DIMENSION)
    for _ in range(20):
        scores = features @ x
        slopes = model.slope(scores, targets)
        curvatures = (model.slope(scores + 1e-4, targets) - slopes) / 1e-4
        x = x - np.linalg.solve((features * curvatures[:, None]).T @ features, features.T @ slopes)
    return x


# --- Time ------------------------------------------------------------------------------------------------------------


def clip_times() -> pd.DataFrame:
    """Milliseconds of a step's gradient with one clip and with m, d = 100, the least of 30; and their ratio."""
    rng = np.random.default_rng(0)
    rows = []
    for batch in (50, 200, 800):
        features, targets, x = rng.standard_normal((batch, 100)), rng.standard_normal(batch), rng.standard_normal(100)

        def once(features: Rows = features, targets: Vector = targets, x: Vector = x) -> Vector:
            return average_clip(features.T @ (features @ x - targets) / len(features), 1.0)

        def each(features: Rows = features, targets: Vector = targets, x: Vector = x) -> Vector:
            return np.asarray(clip_rows((features @ x - targets)[:, None] * features, 1.0).mean(axis=0))

        one, many = (1e3 * min(_seconds(work) for _ in range(30)) for work in (once, each))
        rows.append((batch, one, many, many / one))
    return pd.DataFrame(rows, columns=["m", "one_clip", "m_clips", "times"])


def _seconds(work: Callable[[], Vector]) -> float:
    """Return how long ten calls take, for one of them."""
    began = time.perf_counter()
    for _ in range(10):
        work()
    return (time.perf_counter() - began) / 10


SWEEPS: dict[str, Sweep] = {
    "averaged-clipping-tables": Sweep(tables, quick=False),
    "averaged-clipping-times": Sweep(clip_times, quick=False, portable=False),
}
"""The sweeps of the paper's tables."""
