"""Robust estimates of the mean of user vectors, and scores of how well the users agree."""

from typing import TYPE_CHECKING

from userdp.estimators.concentration import ExpKernel, Kernel, RampKernel, concentration_score, replacement_bound
from userdp.estimators.robust import (
    MINIMUM_BATCH,
    Debiased,
    Estimator,
    Winsorized,
    coordinate_median,
    smallest_trim,
    trimmed_mean,
)
from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.estimators.robust import REACH, check_rows, finite_mean

__all__ = [
    "MINIMUM_BATCH",
    "REACH",
    "Debiased",
    "Estimator",
    "ExpKernel",
    "Kernel",
    "RampKernel",
    "Winsorized",
    "check_rows",
    "concentration_score",
    "coordinate_median",
    "finite_mean",
    "replacement_bound",
    "smallest_trim",
    "trimmed_mean",
]

__getattr__, __dir__ = lazily(__name__)
