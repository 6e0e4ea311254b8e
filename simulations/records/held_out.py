"""One pass over held-out people: what it keeps of a model, from which everything that takes all of them follows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulations.records.measured import MOST_CLASSES
from userdp.arrays.types import Array, Vector
from userdp.data import Block
from userdp.errors import BadInput
from userdp.problems import Problem

Target = Literal["number", "two classes", "several classes"]


@dataclass(frozen=True)
class HeldOut:
    """What a model predicts of U people and N samples, and what was observed: two numbers a sample, a few a user.

    Attributes:
        users: metric -> (U,) each user's average.
        sizes: (U,) samples of each user; those below stand in the order of their users.
        predicted: (N,) the number, or the probability of class 1; of several classes that of the predicted one.
        observed: (N,) the number or class; of several classes 1 where the predicted one was right, else 0.
        target: what is predicted; None of a loss that predicts nothing, whose ``predicted`` is empty.
        classes: K, where there are several; 0 elsewhere, and of more than `MOST_CLASSES`.
        cells: (N,) of K classes K times the observed one and the predicted one.
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
        """(N,) whose sample each is, from 0 to U - 1."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def counts(self) -> NDArray[np.int64] | None:
        """(K, K) samples of each class (rows) that are taken for each class (columns); None without classes."""
        if not self.classes:
            return None
        return np.bincount(self.cells, minlength=self.classes**2).reshape(self.classes, self.classes)


_NOTHING = (np.empty(0), np.empty(0), None, 0, np.empty(0, np.int16))


def held_out(problem: Problem, x: Vector, blocks: Iterable[Block]) -> HeldOut:
    """Measure a model on people, a block of them at a time.

    Args:
        problem: the loss.
        x: (p,) the model.
        blocks: samples of the users whom it is measured on, all usable.
    """
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
    pair = told(problem, x, block)
    if pair is None:
        return HeldOut(users, sizes, *_NOTHING)
    predicted, observed, target = _compared(*pair)
    classes = _classes(*pair)
    cells = (pair[1] * classes + pair[0]["prediction"]).astype(np.int16) if classes else np.empty(0, np.int16)
    return HeldOut(users, sizes, predicted, observed, target, classes, cells)


def told(problem: Problem, x: Vector, block: Block) -> tuple[dict[str, Array], Array] | None:
    """What `Problem.predict` says of each sample, and what was observed; None of a loss that has not both."""
    observed = problem.observed(block)
    if observed is None:
        return None
    try:
        return problem.predict(x, block), observed
    except BadInput:  # a mean of the samples, say
        return None


def _compared(told: dict[str, Array], observed: Array) -> tuple[Array, Array, Target]:
    """What is predicted of each sample, what was observed, and what that is; see `HeldOut`."""
    if "probability" in told:
        return told["probability"], observed, "two classes"
    shares = [share for name, share in told.items() if name.startswith("probability.")]
    if shares:
        return np.max(shares, axis=0), (told["prediction"] == observed).astype(np.float64), "several classes"
    return told["prediction"], observed, "number"


def _classes(told: dict[str, Array], observed: Array) -> int:
    """K, of several classes that are not too many and hold all that was observed; 0 elsewhere."""
    classes = sum(name.startswith("probability.") for name in told)
    return classes if classes <= MOST_CLASSES and ((observed >= 0) & (observed < classes)).all() else 0
