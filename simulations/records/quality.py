"""What people ask of a model beyond means over users: does it rank, are its numbers right, and for whom.

Measured once, at a run's end: ranking and calibration take the scores of all held-out samples together.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from simulations.records.measured import BINS, ERRORS, EXPLAINED, MOST_CLASSES, PERCENTILES, SPREAD
from userdp.arrays.types import Array, Vector
from userdp.data import Block
from userdp.errors import BadInput
from userdp.problems import Problem


def quality(problem: Problem, x: Vector, blocks: Iterable[Block]) -> dict[str, float]:
    """Spread over users, ranking and calibration of a model; of a loss that predicts nothing the spread alone.

    Keeps two numbers a sample and a few a user; the samples themselves a block at a time.

    Args:
        problem: the loss.
        x: (p,) the model.
        blocks: samples of the users whom it is measured on, all usable.

    Returns:
        "METRIC_p10", "METRIC_p50" and "METRIC_p90" of users' averages; "calibration_error" and
        "predicted_minus_observed" where targets are predicted; "auc" where they are of two classes, and both occur;
        "macro_f1" where they are of several, as `confusion` counts them.
    """
    users: dict[str, list[Array]] = {}
    compared: list[tuple[Array, Array]] = []
    ranks, counts = False, None
    for block in blocks:
        for name, values in problem.metrics(x, block).items():
            users.setdefault(name, []).append(values)
        if (pair := _told(problem, x, block)) is None:
            continue
        one, other, ranks = _compared(*pair)
        compared.append((one, other))
        if (more := _confused(*pair)) is not None:
            counts = more if counts is None else counts + more
    spread = _spread({name: np.concatenate(values) for name, values in users.items()})
    if not compared:
        return spread
    predicted, observed = (np.concatenate(one) for one in zip(*compared, strict=True))
    if ranks and (area := auc(predicted, observed > 0.5)) is not None:
        spread = {"auc": area, **spread}
    if counts is not None:
        spread = {"macro_f1": macro_f1(counts), **spread}
    error, difference = calibration(predicted, observed)
    return {**spread, "calibration_error": error, "predicted_minus_observed": difference}


def explained(metrics: Mapping[str, float], constant: Mapping[str, float]) -> dict[str, float]:
    """How much of what the best constant leaves over a model explains: 1 is perfect, 0 no better, below it is worse.

    "r2" of squared errors; "deviance_explained" of counts and of classes, by the log loss without a ridge term.

    Args:
        metrics: of the model.
        constant: of the best constant, on the same users.
    """
    for name, told in EXPLAINED.items():
        if name in metrics and constant.get(name, 0.0) > 0:
            return {told: 1.0 - metrics[name] / constant[name]}
    if "accuracy" in metrics and constant.get("test_loss", 0.0) > 0:  # a module, whose loss is nothing but that
        return {"deviance_explained": 1.0 - metrics["test_loss"] / constant["test_loss"]}
    return {}


def _told(problem: Problem, x: Vector, block: Block) -> tuple[dict[str, Array], Array] | None:
    """What `Problem.predict` says of each sample, and what was observed; None of a loss that has not both."""
    observed = problem.observed(block)
    if observed is None:
        return None
    try:
        return problem.predict(x, block), observed
    except BadInput:  # a mean of the samples, say
        return None


def _compared(told: dict[str, Array], observed: Array) -> tuple[Array, Array, bool]:
    """What is predicted of each sample, what was observed, and whether these are two classes.

    Of several classes the probability of the predicted one, and whether it was right.
    """
    if "probability" in told:
        return told["probability"], observed, True
    shares = [share for name, share in told.items() if name.startswith("probability.")]
    if shares:
        return np.max(shares, axis=0), (told["prediction"] == observed).astype(np.float64), False
    return told["prediction"], observed, False


def confusion(problem: Problem, x: Vector, blocks: Iterable[Block]) -> NDArray[np.int64] | None:
    """(K, K) how many samples of each class (rows) are taken for each class (columns).

    None unless targets are of several classes, `MOST_CLASSES` at most.

    Args:
        problem: the loss.
        x: (p,) the model.
        blocks: samples, all usable.
    """
    pairs = filter(None, (_told(problem, x, block) for block in blocks))
    found = [counts for pair in pairs if (counts := _confused(*pair)) is not None]
    return np.sum(found, axis=0) if found else None


def _confused(told: dict[str, Array], observed: Array) -> NDArray[np.int64] | None:
    """(K, K) counts of one block; None without classes, or with too many."""
    classes = sum(name.startswith("probability.") for name in told)
    if not 0 < classes <= MOST_CLASSES or not ((observed >= 0) & (observed < classes)).all():
        return None
    cells = observed.astype(np.int64) * classes + told["prediction"].astype(np.int64)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def macro_f1(counts: NDArray[np.int64]) -> float:
    """The mean over classes of the harmonic mean of how many of it are found, and of those found how many are of it.

    Of (K, K) counts of `confusion`; classes that are neither observed nor predicted are left out.
    """
    sums = counts.sum(axis=0) + counts.sum(axis=1)
    return float((2 * np.diag(counts)[sums > 0] / sums[sums > 0]).mean())


def only_class(problem: Problem, x: Vector, blocks: Iterable[Block]) -> bool:
    """Whether targets are classes, and all samples are of one: whoever always says it is right, so nothing is shown."""
    classes: set[float] = set()
    for block in blocks:
        pair = _told(problem, x, block)
        if pair is None or not any(name.startswith("probability") for name in pair[0]):
            return False
        classes |= set(np.unique(pair[1]).tolist())
        if len(classes) > 1:
            return False
    return len(classes) == 1


def auc(scores: Array, positive: NDArray[np.bool_]) -> float | None:
    """Share of pairs of a positive and a negative sample in which the positive one scores higher; ties count half.

    By the ranks of all scores (Mann, Whitney 1947). None without a pair, NaN where a score is not finite.
    """
    ones = int(np.count_nonzero(positive))
    zeros = len(positive) - ones
    if not ones or not zeros:
        return None
    if not np.isfinite(scores).all():
        return math.nan
    ranks = float(_ranks(scores)[positive].sum())
    return (ranks - 0.5 * ones * (ones + 1)) / (ones * zeros)


def calibration(predicted: Array, observed: Array) -> tuple[float, float]:
    """How far predicted and observed means are apart: within groups of like predictions, and over all samples.

    `BINS` groups of as many samples each as equal predictions allow: these stay together, so that no order of the
    samples matters. The first number is the mean absolute difference of a sample's group, the second the signed
    difference over all. NaN where a prediction is not finite.
    """
    if not np.isfinite(predicted).all():
        return math.nan, math.nan
    count = len(predicted)
    groups = ((_ranks(predicted) - 0.5) * BINS / count).astype(np.int64)
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged
        gaps = np.bincount(groups, predicted - observed, minlength=BINS)
        return float(np.abs(gaps).sum()) / count, float(gaps.sum()) / count


def _ranks(values: Array) -> Array:
    """(N,) places in rising order, from 1; equal values share the mean of theirs."""
    _, places, times = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(times) - 0.5 * (times - 1))[places])


def _spread(users: dict[str, Array]) -> dict[str, float]:
    """Percentiles over users; each is the average of some user, so nothing overflows between two."""
    wanted = [name for name in SPREAD if name in users]
    if any(name in users for name in ERRORS):
        wanted.remove("test_loss")
    found: dict[str, float] = {}
    for name in wanted:
        values = np.percentile(users[name], PERCENTILES, method="inverted_cdf")
        found |= {f"{name}_p{share}": float(value) for share, value in zip(PERCENTILES, values, strict=True)}
    return found
