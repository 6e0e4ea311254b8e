"""What the pictures of a run are drawn from: small tables about groups of held-out people."""

import numpy as np
from numpy.typing import NDArray

from simulations.records.held_out import HeldOut
from simulations.records.measured import BINS
from simulations.records.ranking import groups_alike
from simulations.records.uncertainty import error_of_influences
from userdp.arrays.types import Array

Curve = dict[str, list[float]]
"""Column -> its values."""

POINTS = 100
"""Of a ROC curve, at most."""
PEOPLE_A_GROUP = 5
"""Held-out people for each group of samples, on average: few points are then about one person alone."""
FEWEST_PEOPLE = 2 * PEOPLE_A_GROUP
"""Of whom pictures are made."""


def curves(seen: HeldOut) -> dict[str, Curve]:
    """Name -> columns of a curve; nothing of fewer than `FEWEST_PEOPLE` people, or where a prediction is not finite.

    "predicted_against_observed" of targets that are numbers, as the loss has them; "calibration" and "roc" of two
    classes, "predicted_class_calibration" of several, nothing if one alone was observed.
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
    """Shares of negative and of positive samples whose score is at least a threshold, as it falls: from 0 to 1.

    Args:
        scores: (N,), finite.
        positive: (N,) the samples of class 1; there have to be some of either.
        points: how many are kept, both ends among them: the area under them differs by 2 / (points - 1) at most.
            None for all, whose area is `simulations.records.quality.auc`.
    """
    _, places = np.unique(-scores, return_inverse=True)
    above = np.cumsum(np.bincount(places, positive)), np.cumsum(np.bincount(places, ~positive))
    true, false = (np.concatenate([[0.0], one / one[-1]]) for one in above)
    if points is not None:
        # Evenly along the curve, whose steps are as long to the right as up.
        kept = np.unique(np.searchsorted(true + false, np.linspace(0.0, 2.0, points)))
        true, false = true[kept], false[kept]
    return false, true


def _one_class(seen: HeldOut) -> bool:
    if seen.target == "two classes":
        return bool(seen.observed.min() == seen.observed.max())
    return seen.counts is not None and np.count_nonzero(seen.counts.sum(axis=1)) == 1


def _means(seen: HeldOut, groups: NDArray[np.int64]) -> Curve:
    """Means over the samples of each group that has some, and how many these are."""
    samples = np.bincount(groups)
    there = samples > 0
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged
        sums = {name: np.bincount(groups, getattr(seen, name)) for name in ("predicted", "observed")}
        means = {name: (values[there] / samples[there]).tolist() for name, values in sums.items()}
    return means | {"samples": samples[there].tolist()}


def _errors(seen: HeldOut, groups: NDArray[np.int64]) -> list[float]:
    """One standard error over users of each group's observed mean; NaN of a group of one user."""
    owners, errors = seen.owners, []
    for group in np.unique(groups):
        inside = groups == group
        observed = seen.observed[inside]
        errors.append(error_of_influences((observed - observed.mean()) / len(observed), owners[inside]))
    return errors


def _percentiles(observed: Array, groups: NDArray[np.int64]) -> Curve:
    """Of what was observed in each group the range that leaves out a tenth at either end."""
    values = observed[np.lexsort((observed, groups))]
    samples = np.bincount(groups)
    ends = np.cumsum(samples)[samples > 0]
    samples = samples[samples > 0]
    low, high = (values[ends - samples + np.ceil(share * samples).astype(np.int64) - 1] for share in (0.1, 0.9))
    return {"observed_p10": low.tolist(), "observed_p90": high.tolist()}
