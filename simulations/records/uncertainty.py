"""Standard errors of metrics over held-out users, never over samples.

Samples of one user are alike, so a hundred samples of three users tell little more than three users do. To first order
a metric over all samples changes by the sum of its samples' influences. A user moves it by the sum of its samples'
influences, and users are independent: the error is the root of the sum over users of its square. To first order this is
the jackknife that leaves out one user at a time (for `auc` Obuchowski, Biometrics 53, 1997).
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulations.records.held_out import HeldOut
from simulations.records.quality import explained_by, ranks
from userdp.arrays.types import Array


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
