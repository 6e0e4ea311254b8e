"""How far metrics of held-out people would move with other people: standard errors over users, never over samples.

A user's samples are alike, so that a hundred samples of three people tell little more than three people do. A metric
over all samples changes, to first order, by the sum of its samples' influences. The sum of a user's influences is what
that user moves, and users are independent: the error is the root of the sum over users of its square. This is the
jackknife that leaves out one user at a time, to first order (for `auc` Obuchowski, Biometrics 53, 1997).
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulations.records.held_out import HeldOut
from simulations.records.quality import explained_by
from simulations.records.ranking import ranks
from userdp.arrays.types import Array


def standard_errors(seen: HeldOut) -> dict[str, float]:
    """Metric -> one standard error over users, where it can be told: of two users at least, and of finite values.

    Of all means over users, of "predicted_minus_observed", of "auc" where two classes are predicted and both occur, and
    of "macro_f1" of several.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged
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
    """The standard error of what a model explains of the best constant's error ("r2"), as `explained` has it.

    One less the ratio of two means over the same users. That the constant is fitted to these users counts to second
    order only, since it has the least error of all.

    Args:
        users: metric -> (U,) of the model.
        constant: metric -> (U,) of the best constant; empty where there is none.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that diverged
        means = [{name: float(values.mean()) for name, values in one.items()} for one in (users, constant)]
        if (found := explained_by(*means)) is None:
            return {}
        name, measured = found
        left, whole = users[measured], constant[measured]
        error = error_of_mean(left - left.mean() / whole.mean() * whole) / float(whole.mean())
    return {name: error} if math.isfinite(error) else {}


def error_of_mean(values: Array) -> float:
    """One standard error of the mean of (U,) independent values; NaN of fewer than two."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def error_of_influences(influences: Array, owners: NDArray[np.int64]) -> float:
    """One standard error of a metric over samples; NaN of fewer than two users.

    Args:
        influences: (N,) how far each sample moves the metric; they sum to zero.
        owners: (N,) the number of each sample's user.
    """
    users, places = np.unique(owners, return_inverse=True)
    if len(users) < 2:
        return math.nan
    moved = np.bincount(places, influences)
    return math.sqrt(len(users) / (len(users) - 1) * float(moved @ moved))


def auc_influences(scores: Array, positive: NDArray[np.bool_]) -> Array | None:
    """(N,) how far each sample moves the area under the curve; None without a sample of each class.

    A positive sample moves it by the share of negative ones below its score, less the area, over the number of positive
    ones; a negative sample by the share of positive ones above, likewise. Ties count half.
    """
    ones = int(np.count_nonzero(positive))
    zeros = len(positive) - ones
    if not ones or not zeros:
        return None
    # Of all samples below, those of the other class.
    below = ranks(scores)
    below[positive] -= ranks(scores[positive])
    below[~positive] -= ranks(scores[~positive])
    shares = np.where(positive, below / zeros, 1.0 - below / ones)
    area = shares[positive].mean()
    return np.asarray((shares - area) / np.where(positive, ones, zeros))


def f1_influences(cells: NDArray[np.int16], counts: NDArray[np.int64]) -> Array:
    """(N,) how far each sample moves the mean F1 of the classes.

    With T samples of a class that are found, and S that are observed or predicted to be of it, F1 is 2 T / S. A sample
    that is found moves it by 2 / S more than one that is not, and each that counts in S by F1 / S less.

    Args:
        cells: (N,) of K classes K times the observed one and the predicted one.
        counts: (K, K) how many of each.
    """
    sums = counts.sum(axis=0) + counts.sum(axis=1)
    share = 1.0 / np.maximum(sums, 1)
    scores = 2.0 * np.diag(counts) * share
    observed, predicted = np.divmod(cells, len(counts))
    gained = np.where(observed == predicted, 2.0 * share[observed], 0.0)
    lost = (scores * share)[observed] + (scores * share)[predicted]
    return np.asarray((gained - lost) / np.count_nonzero(sums))
