"""Quality of a model beyond means over users: ranking, calibration, spread, standard errors, and data of pictures.

Errors are over users, never over samples: samples of one user are alike, so a hundred samples of three users tell
little more than three users do. To first order a user moves a metric over all samples by the sum of its samples'
influences, and users are independent: the error is the root of the sum over users of its square, the jackknife that
leaves out one user at a time (for `auc` Obuchowski, Biometrics 53, 1997).
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from simulations.records.held_out import (
    BINS,
    ERRORS,
    EXPLAINED,
    PERCENTILES,
    SPREAD,
    HeldOut,
    held_out,
    predictions,
)
from userdp.arrays.types import Array, Vector
from userdp.data import Block
from userdp.problems import Problem


def quality(problem: Problem, x: Vector, blocks: Iterable[Block]) -> dict[str, float]:
    """Measure a model x, (p,), on blocks of usable samples.

    Returns "METRIC_p10", "METRIC_p50" and "METRIC_p90" of users' averages; "calibration_error" and
    "predicted_minus_observed" if targets are predicted; "auc" for two classes that both occur; "macro_f1" for several.
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
    """Return the share of the best constant's error that a model removes: 1 is perfect, 0 no better, below 0 worse.

    "r2" for squared errors; "deviance_explained" for counts and classes, by the log loss without a ridge term.
    """
    if (found := explained_by(metrics, constant)) is None:
        return {}
    name, measured = found
    return {name: 1.0 - metrics[measured] / constant[measured]}


def explained_by(metrics: Mapping[str, float], constant: Mapping[str, float]) -> tuple[str, str] | None:
    """Return (name of the explained share, its metric); None if the constant leaves no error."""
    for measured, name in EXPLAINED.items():
        if measured in metrics and constant.get(measured, 0.0) > 0:
            return name, measured
    if "accuracy" in metrics and constant.get("test_loss", 0.0) > 0:  # a torch module: its loss has no ridge term
        return "deviance_explained", "test_loss"
    return None


def macro_f1(counts: NDArray[np.int64]) -> float:
    """Return the mean F1 (harmonic mean of recall and precision) over classes that occur in (K, K) `HeldOut.counts`."""
    sums = counts.sum(axis=0) + counts.sum(axis=1)
    return float((2 * np.diag(counts)[sums > 0] / sums[sums > 0]).mean())


def only_class(problem: Problem, x: Vector, blocks: Iterable[Block]) -> bool:
    """Return whether targets are classes and all samples are of one, so that a constant prediction is always right."""
    classes: set[float] = set()
    for block in blocks:
        pair = predictions(problem, x, block)
        if pair is None or not any(name.startswith("probability") for name in pair[0]):
            return False
        classes |= set(np.unique(pair[1]).tolist())
        if len(classes) > 1:
            return False
    return len(classes) == 1


def auc(scores: Array, positive: NDArray[np.bool_]) -> float | None:
    """Return the share of pairs of a positive and a negative sample that are ranked correctly; ties count half.

    Computed from the ranks of all scores (Mann, Whitney 1947). None without a pair, NaN if a score is not finite.
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
    """Return how far predicted and observed means are apart, within groups of similar predictions and over all samples.

    The first number is the mean over samples of their group's absolute difference, with up to `BINS` groups; the second
    is the signed difference over all. NaN if a prediction is not finite.
    """
    if not np.isfinite(predicted).all():
        return math.nan, math.nan
    count = len(predicted)
    groups = groups_alike(predicted, BINS)
    with np.errstate(over="ignore", invalid="ignore"):  # a model may have diverged
        gaps = np.bincount(groups, predicted - observed, minlength=BINS)
        return float(np.abs(gaps).sum()) / count, float(gaps.sum()) / count


def _spread(users: dict[str, Array]) -> dict[str, float]:
    """Return percentiles over users; each is the average of some user, so that no interpolation overflows."""
    wanted = [name for name in SPREAD if name in users]
    if any(name in users for name in ERRORS):
        wanted.remove("test_loss")
    found: dict[str, float] = {}
    for name in wanted:
        values = np.percentile(users[name], PERCENTILES, method="inverted_cdf")
        found |= {f"{name}_p{share}": float(value) for share, value in zip(PERCENTILES, values, strict=True)}
    return found


def ranks(values: Array) -> Array:
    """(N,) Ranks in rising order, from 1; equal values share the mean of their ranks."""
    _, places, times = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(times) - 0.5 * (times - 1))[places])


def groups_alike(predicted: Array, groups: int) -> NDArray[np.int64]:
    """(N,) The group of each sample, 0 with the lowest predictions.

    Groups have equal sizes up to ties: equal predictions share a group, so that the order of the samples does not
    matter, and some of the ``groups`` may be empty.
    """
    return ((ranks(predicted) - 0.5) * groups / len(predicted)).astype(np.int64)


def standard_errors(seen: HeldOut) -> dict[str, float]:
    """Return metric -> one standard error over users, if there are two users and all values are finite."""
    with np.errstate(over="ignore", invalid="ignore"):  # a model may have diverged
        errors = {name: error_of_mean(values) for name, values in seen.users.items()}
        if seen.target is not None and np.isfinite(seen.predicted).all():
            gaps = seen.predicted - seen.observed
            errors["predicted_minus_observed"] = error_of_influences((gaps - gaps.mean()) / len(gaps), seen.owners)
            influences = auc_influences(seen.predicted, seen.observed > 0.5)
            if seen.target == "two classes" and influences is not None:
                errors["auc"] = error_of_influences(influences, seen.owners)
        if seen.counts is not None:
            errors["macro_f1"] = error_of_influences(f1_influences(seen.cells, seen.counts), seen.owners)
    return {name: error for name, error in errors.items() if math.isfinite(error)}


def explained_error(users: Mapping[str, Array], constant: Mapping[str, Array]) -> dict[str, float]:
    """Return the standard error of the share that a model explains ("r2"), see `simulations.records.quality.explained`.

    The share is one minus the ratio of two means over the same users, metric -> (U,). That the constant is fitted to
    these users counts only to second order, since it has the least error of all constants.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a model may have diverged
        means = [{name: float(values.mean()) for name, values in one.items()} for one in (users, constant)]
        if (found := explained_by(*means)) is None:
            return {}
        name, measured = found
        left, whole = users[measured], constant[measured]
        error = error_of_mean(left - left.mean() / whole.mean() * whole) / float(whole.mean())
    return {name: error} if math.isfinite(error) else {}


def error_of_mean(values: Array) -> float:
    """Return one standard error of the mean of (U,) independent values; NaN for fewer than two."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def error_of_influences(influences: Array, owners: NDArray[np.int64]) -> float:
    """Return one standard error of a metric over samples from their (N,) influences, which sum to zero, and (N,) users.

    NaN for fewer than two users.
    """
    users, places = np.unique(owners, return_inverse=True)
    if len(users) < 2:
        return math.nan
    moved = np.bincount(places, influences)
    return math.sqrt(len(users) / (len(users) - 1) * float(moved @ moved))


def auc_influences(scores: Array, positive: NDArray[np.bool_]) -> Array | None:
    """(N,) The influence of each sample on the area under the curve; None without a sample of each class.

    A positive sample moves it by (share of negative samples below its score - area) / (number of positive samples), a
    negative sample by (share of positive samples above - area) / (number of negative samples). Ties count half.
    """
    ones = int(np.count_nonzero(positive))
    zeros = len(positive) - ones
    if not ones or not zeros:
        return None
    # Samples below, minus those of the own class: samples below of the other class.
    below = ranks(scores)
    below[positive] -= ranks(scores[positive])
    below[~positive] -= ranks(scores[~positive])
    shares = np.where(positive, below / zeros, 1.0 - below / ones)
    area = shares[positive].mean()
    return np.asarray((shares - area) / np.where(positive, ones, zeros))


def f1_influences(cells: NDArray[np.int16], counts: NDArray[np.int64]) -> Array:
    """(N,) The influence of each sample on the mean F1 of the classes, from (N,) `HeldOut.cells` and (K, K) counts.

    With T correctly predicted samples of a class, and S the sum of its observed and its predicted ones, F1 is 2 T / S.
    A correct sample moves it by 2 / S more than another, and each sample that counts in S by F1 / S less.
    """
    sums = counts.sum(axis=0) + counts.sum(axis=1)
    share = 1.0 / np.maximum(sums, 1)
    scores = 2.0 * np.diag(counts) * share
    observed, predicted = np.divmod(cells, len(counts))
    gained = np.where(observed == predicted, 2.0 * share[observed], 0.0)
    lost = (scores * share)[observed] + (scores * share)[predicted]
    return np.asarray((gained - lost) / np.count_nonzero(sums))


Curve = dict[str, list[float]]  # column -> its values

POINTS = 100  # points of a ROC curve, at most
PEOPLE_A_GROUP = 5  # held-out users for each group of samples, on average, so that few points are about one user alone
FEWEST_PEOPLE = 2 * PEOPLE_A_GROUP  # pictures need at least this many users


def curves(seen: HeldOut) -> dict[str, Curve]:
    """Return name -> columns of a curve; none for fewer than `FEWEST_PEOPLE` users, or predictions that are not finite.

    A number gives "predicted_against_observed", in the loss's units; two classes give "calibration" and "roc"; several
    classes give "predicted_class_calibration". If only one class was observed, there is no curve.
    """
    if seen.target is None or len(seen.sizes) < FEWEST_PEOPLE or not np.isfinite(seen.predicted).all():
        return {}
    groups = groups_alike(seen.predicted, min(BINS, len(seen.sizes) // PEOPLE_A_GROUP))
    if seen.target == "number":
        means = _means(seen, groups)
        finite = np.isfinite([means["predicted"], means["observed"]]).all()
        return {"predicted_against_observed": means | _percentiles(seen.observed, groups)} if finite else {}
    if _one_class(seen):
        return {}
    means = _means(seen, groups) | {"standard_error": _errors(seen, groups)}
    if seen.target == "several classes":
        return {"predicted_class_calibration": means}
    positive = seen.observed > 0.5
    found = {"calibration": means}
    if 0 < np.count_nonzero(positive) < len(positive):
        false, true = roc(seen.predicted, positive)
        found["roc"] = {"false_positive_rate": false.tolist(), "true_positive_rate": true.tolist()}
    return found


def roc(scores: Array, positive: NDArray[np.bool_], points: int | None = POINTS) -> tuple[Array, Array]:
    """Return the shares of negative and of positive samples above a falling threshold, from 0 to 1.

    ``scores`` (N,) are finite, and both classes of ``positive`` (N,) occur. Of all points, whose area is
    `simulations.records.quality.auc`, ``points`` are kept, which changes the area by 2 / (points - 1) at most.
    """
    _, places = np.unique(-scores, return_inverse=True)
    above = np.cumsum(np.bincount(places, positive)), np.cumsum(np.bincount(places, ~positive))
    true, false = (np.concatenate([[0.0], one / one[-1]]) for one in above)
    if points is not None:
        # Evenly along the curve: a step to the right counts as much as a step up.
        kept = np.unique(np.searchsorted(true + false, np.linspace(0.0, 2.0, points)))
        true, false = true[kept], false[kept]
    return false, true


def _one_class(seen: HeldOut) -> bool:
    if seen.target == "two classes":
        return bool(seen.observed.min() == seen.observed.max())
    return seen.counts is not None and np.count_nonzero(seen.counts.sum(axis=1)) == 1


def _means(seen: HeldOut, groups: NDArray[np.int64]) -> Curve:
    """Return the means over the samples of each group that is not empty, and its number of samples."""
    samples = np.bincount(groups)
    there = samples > 0
    with np.errstate(over="ignore", invalid="ignore"):  # a model may have diverged
        sums = {name: np.bincount(groups, getattr(seen, name)) for name in ("predicted", "observed")}
        means = {name: (values[there] / samples[there]).tolist() for name, values in sums.items()}
    return means | {"samples": samples[there].tolist()}


def _errors(seen: HeldOut, groups: NDArray[np.int64]) -> list[float]:
    """Return one standard error over users of each group's observed mean; NaN for a group of one user."""
    owners, errors = seen.owners, []
    for group in np.unique(groups):
        inside = groups == group
        observed = seen.observed[inside]
        errors.append(error_of_influences((observed - observed.mean()) / len(observed), owners[inside]))
    return errors


def _percentiles(observed: Array, groups: NDArray[np.int64]) -> Curve:
    values = observed[np.lexsort((observed, groups))]
    samples = np.bincount(groups)
    ends = np.cumsum(samples)[samples > 0]
    samples = samples[samples > 0]
    low, high = (values[ends - samples + np.ceil(share * samples).astype(np.int64) - 1] for share in (0.1, 0.9))
    return {"observed_p10": low.tolist(), "observed_p90": high.tolist()}
