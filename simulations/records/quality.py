"""What people ask of a model beyond means over users: does it rank, are its numbers right, and for whom.

Measured once, at a run's end: ranking and calibration take the scores of all held-out samples together.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from simulations.records.held_out import held_out, told
from simulations.records.measured import BINS, ERRORS, EXPLAINED, PERCENTILES, SPREAD
from simulations.records.ranking import groups_alike, ranks
from userdp.arrays.types import Array, Vector
from userdp.data import Block
from userdp.problems import Problem


def quality(problem: Problem, x: Vector, blocks: Iterable[Block]) -> dict[str, float]:
    """Spread over users, ranking and calibration of a model; of a loss that predicts nothing the spread alone.

    Args:
        problem: the loss.
        x: (p,) the model.
        blocks: samples of the users whom it is measured on, all usable.

    Returns:
        "METRIC_p10", "METRIC_p50" and "METRIC_p90" of users' averages; "calibration_error" and
        "predicted_minus_observed" where targets are predicted; "auc" where they are of two classes, and both occur;
        "macro_f1" where they are of several, as `HeldOut.counts` has them.
    """
    seen = held_out(problem, x, blocks)
    spread = _spread(seen.users)
    if seen.target is None:
        return spread
    predicted, observed, counts = seen.predicted, seen.observed, seen.counts
    if seen.target == "two classes" and (area := auc(predicted, observed > 0.5)) is not None:
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
    if (found := explained_by(metrics, constant)) is None:
        return {}
    name, measured = found
    return {name: 1.0 - metrics[measured] / constant[measured]}


def explained_by(metrics: Mapping[str, float], constant: Mapping[str, float]) -> tuple[str, str] | None:
    """(what the explained part is called, the metric that it is of); None where the constant leaves nothing over."""
    for measured, name in EXPLAINED.items():
        if measured in metrics and constant.get(measured, 0.0) > 0:
            return name, measured
    if "accuracy" in metrics and constant.get("test_loss", 0.0) > 0:  # a module, whose loss is nothing but that
        return "deviance_explained", "test_loss"
    return None


def macro_f1(counts: NDArray[np.int64]) -> float:
    """The mean over classes of the harmonic mean of how many of it are found, and of those found how many are of it.

    Of (K, K) `HeldOut.counts`; classes that are neither observed nor predicted are left out.
    """
    sums = counts.sum(axis=0) + counts.sum(axis=1)
    return float((2 * np.diag(counts)[sums > 0] / sums[sums > 0]).mean())


def only_class(problem: Problem, x: Vector, blocks: Iterable[Block]) -> bool:
    """Whether targets are classes, and all samples are of one: whoever always says it is right, so nothing is shown."""
    classes: set[float] = set()
    for block in blocks:
        pair = told(problem, x, block)
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
    places = float(ranks(scores)[positive].sum())
    return (places - 0.5 * ones * (ones + 1)) / (ones * zeros)


def calibration(predicted: Array, observed: Array) -> tuple[float, float]:
    """How far predicted and observed means are apart: within groups of like predictions, and over all samples.

    There are `BINS` groups at most. The first number is the mean absolute difference of a sample's group, the second
    the signed difference over all. NaN where a prediction is not finite.
    """
    if not np.isfinite(predicted).all():
        return math.nan, math.nan
    count = len(predicted)
    groups = groups_alike(predicted, BINS)
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged
        gaps = np.bincount(groups, predicted - observed, minlength=BINS)
        return float(np.abs(gaps).sum()) / count, float(gaps.sum()) / count


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
