"""Predictions and observations of held-out users, collected in one pass; metrics over all of them follow from it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Array, Vector
from userdp.data import Block
from userdp.errors import BadInput
from userdp.problems import Problem

Target = Literal["number", "two classes", "several classes"]
BINS = 10  # groups of held-out samples, by prediction, whose means calibration compares
PERCENTILES = (10, 50, 90)  # percentiles over held-out users of each user's average
MOST_CLASSES = 64  # a larger confusion table would help nobody
ERRORS = ("squared_error", "absolute_error")
SPREAD = ("test_loss", "accuracy", *ERRORS)  # metrics whose spread over users is shown; the loss only without an error
EXPLAINED = {"squared_error": "r2", "deviance": "deviance_explained", "log_loss": "deviance_explained"}
"""Metric -> name of the share of the best constant's value that a model removes."""


@dataclass(frozen=True)
class HeldOut:
    """Predictions and observations of U users and N samples.

    Attributes:
        users: metric -> (U,) each user's average.
        sizes: (U,) samples of each user; samples below follow the order of their users.
        predicted: (N,) the number, or the probability of class 1; with several classes that of the predicted one.
        observed: (N,) the number or class; with several classes 1 if the predicted one was right, else 0.
        target: kind of the target; None for a loss that predicts nothing, whose ``predicted`` is empty.
        classes: K for several classes; 0 otherwise, and for more than `MOST_CLASSES`.
        cells: (N,) K times the observed class plus the predicted one; empty without classes.
    """

    users: dict[str, Array]
    sizes: NDArray[np.int64]
    predicted: Array
    observed: Array
    target: Target | None
    classes: int
    cells: NDArray[np.int16]

    @property
    def owners(self) -> NDArray[np.int64]:
        """(N,) The user of each sample, from 0 to U - 1."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def counts(self) -> NDArray[np.int64] | None:
        """(K, K) The samples by observed class (rows) and predicted class (columns); None without classes."""
        if not self.classes:
            return None
        return np.bincount(self.cells, minlength=self.classes**2).reshape(self.classes, self.classes)


_NOTHING = (np.empty(0), np.empty(0), None, 0, np.empty(0, np.int16))


def held_out(problem: Problem, x: Vector, blocks: Iterable[Block]) -> HeldOut:
    """Measure a model x, (p,), on users, one block of usable samples at a time."""
    parts = [_of_block(problem, x, block) for block in blocks]
    if not parts:
        return HeldOut({}, np.empty(0, np.int64), *_NOTHING)
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("sizes", "predicted", "observed", "cells")
    }
    users = {name: np.concatenate([part.users[name] for part in parts]) for name in parts[0].users}
    return HeldOut(users, target=parts[0].target, classes=min(part.classes for part in parts), **columns)


def _of_block(problem: Problem, x: Vector, block: Block) -> HeldOut:
    users, sizes = problem.metrics(x, block), problem.observed_sizes(block)
    pair = predictions(problem, x, block)
    if pair is None:
        return HeldOut(users, sizes, *_NOTHING)
    predicted, observed, target = _compared(*pair)
    classes = _classes(*pair)
    cells = (pair[1] * classes + pair[0]["prediction"]).astype(np.int16) if classes else np.empty(0, np.int16)
    return HeldOut(users, sizes, predicted, observed, target, classes, cells)


def predictions(problem: Problem, x: Vector, block: Block) -> tuple[dict[str, Array], Array] | None:
    """Return `Problem.predict` for each sample, and the observed targets; None for a loss without either."""
    observed = problem.observed(block)
    if observed is None:
        return None
    try:
        return problem.predict(x, block), observed
    except BadInput:  # such as a mean of the samples
        return None


def _compared(predicted: dict[str, Array], observed: Array) -> tuple[Array, Array, Target]:
    if "probability" in predicted:
        return predicted["probability"], observed, "two classes"
    shares = [share for name, share in predicted.items() if name.startswith("probability.")]
    if shares:
        return np.max(shares, axis=0), (predicted["prediction"] == observed).astype(np.float64), "several classes"
    return predicted["prediction"], observed, "number"


def _classes(predicted: dict[str, Array], observed: Array) -> int:
    classes = sum(name.startswith("probability.") for name in predicted)
    return classes if classes <= MOST_CLASSES and ((observed >= 0) & (observed < classes)).all() else 0
