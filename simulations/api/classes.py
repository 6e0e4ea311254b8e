"""Predictions in the words and units of the declared target."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from userdp.data.tables.cells import cell_text
from userdp.data.tables.columns import Columns
from userdp.problems import Problem
from userdp.problems.families import Family

Scores = TypeVar("Scores")


def level_values(levels: Sequence[object]) -> NDArray[Any]:
    """Return declared classes as predictions have them: as numbers if all of them are, else as text."""
    numbers = all(isinstance(level, int | float) and not isinstance(level, bool) for level in levels)
    return np.array(levels if numbers else [*map(cell_text, levels)], dtype=np.float64 if numbers else object)


def in_units(scores: Scores, problem: Problem, columns: Columns, apply: Callable[..., Scores]) -> Scores:
    """Return predictions of numbers in the target's units, held to its declared range; unchanged without one.

    ``apply`` takes the name of an operation of ONNX, the scores and numbers.
    """
    if columns.target_range is not None:
        low, high = map(float, columns.target_range)
        scores = apply("Add", apply("Mul", apply("Add", scores, 1.0), (high - low) / 2.0), low)
    elif isinstance(family := getattr(problem, "family", None), Family) and family.mean_range is not None:
        low, high = family.mean_range
    else:
        return scores
    return apply("Clip", scores, low, high)


def with_names(found: pd.DataFrame, levels: Sequence[object]) -> pd.DataFrame:
    """Name the classes in predictions; predictions of numbers are unchanged."""
    if "probability" not in found and "probability.0" not in found:
        return found
    named, names = level_values(levels), [cell_text(one) for one in levels]
    if "probability" in found:
        found = found.assign(**{"probability.0": 1 - found["probability"], "probability.1": found["probability"]})
        found = found.drop(columns="probability")
    found = found.assign(prediction=named[found["prediction"].astype(np.int64)])
    return found.rename(columns={f"probability.{k}": f"probability of {name}" for k, name in enumerate(names)})
