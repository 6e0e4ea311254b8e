"""Robust estimates of the mean of user vectors, and scores of how well the users agree."""

from typing import TYPE_CHECKING

from userdp.estimators.concentration import ExpKernel, Kernel, RampKernel, concentration_score, replacement_bound
from userdp.estimators.outlier_removal import IndicatorKernel, NeighbourMean, neighbour_counts
from userdp.estimators.robust import (
    MINIMUM_BATCH,
    Debiased,
    Estimator,
    Winsorized,
    coordinate_median,
    smallest_trim,
    trimmed_mean,
)
from userdp.estimators.rotation import CellGrid, HadamardRotation
from userdp.lazy import lazily

if TYPE_CHECKING:
    from userdp.estimators.robust import finite_mean
    from userdp.estimators.smoothed_truncation import (
        LARGEST,
        coordinate_sensitivity,
        largest_truncated,
        smoothed_truncation_mean,
        truncation_sensitivity,
    )

__all__ = [
    "LARGEST",
    "MINIMUM_BATCH",
    "CellGrid",
    "Debiased",
    "Estimator",
    "ExpKernel",
    "HadamardRotation",
    "IndicatorKernel",
    "Kernel",
    "NeighbourMean",
    "RampKernel",
    "Winsorized",
    "concentration_score",
    "coordinate_median",
    "coordinate_sensitivity",
    "finite_mean",
    "largest_truncated",
    "neighbour_counts",
    "replacement_bound",
    "smallest_trim",
    "smoothed_truncation_mean",
    "trimmed_mean",
    "truncation_sensitivity",
]

__getattr__, __dir__ = lazily(__name__)
