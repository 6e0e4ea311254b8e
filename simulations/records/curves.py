"""Data of a run's pictures: small tables about groups of held-out users."""

import numpy as np
from numpy.typing import NDArray

from simulations.records.held_out import HeldOut
from simulations.records.measured import BINS
from simulations.records.quality import error_of_influences, groups_alike
from userdp.arrays.types import Array

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
