"""Charts of a model's predictions against observations, each with an explanation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from simulations.reports.explain import shown
from simulations.reports.plots import BLUE, INK, LEGEND, drawing, svg
from userdp.data.tables.cells import cell_text

Curve = Mapping[str, Sequence[float | None]]  # column -> values, as `simulations.records.quality` makes them
Range = tuple[float, float]

_GROUPS = "Held-out samples are put into groups of similar predictions, one point for each group."
_BARS = "Bars reach two standard errors over users to either side."
_BAR: dict[str, Any] = {"color": BLUE, "alpha": 0.25, "linewidth": 6}
_POINT: dict[str, Any] = {"marker": "o", "markersize": 4, "color": BLUE}


@dataclass(frozen=True)
class Picture:
    """A chart of a report: its title, an SVG element, and an explanation in plain words."""

    title: str
    chart: str
    how_to_read: str


def pictures(curves: Mapping[str, Curve], metrics: Mapping[str, Any], columns: Mapping[str, Any]) -> list[Picture]:
    """Draw the charts of a run from "curves" of result.json; a run without curves has none.

    Metrics are those of the released model; columns are the declarations of the table's columns, for names and units.
    """
    levels, positive = columns.get("target_levels"), columns.get("positive")
    name = repr(cell_text(levels[1])) if levels else "class 1" if positive is None else repr(cell_text(positive))
    draw: dict[str, Callable[[Curve], Picture]] = {
        "predicted_against_observed": lambda curve: _numbers(curve, columns),
        "calibration": lambda curve: _calibration(curve, name),
        "predicted_class_calibration": _predicted_class,
        "roc": lambda curve: _roc(curve, metrics.get("auc"), name),
    }
    return [drawn(curves[kind]) for kind, drawn in draw.items() if kind in curves]


def _numbers(curve: Curve, columns: Mapping[str, Any]) -> Picture:
    name, target_range = str(columns.get("target") or "target"), columns.get("target_range")
    predicted, observed, low, high = (
        in_units(curve[column], target_range) for column in ("predicted", "observed", "observed_p10", "observed_p90")
    )
    with drawing("predicted", "observed", height=3.4) as (figure, axes):
        axes.vlines(predicted, low, high, **_BAR, label="middle 80 %")
        axes.plot(predicted, observed, **_POINT, label="mean")
        _diagonal(axes, float(predicted.min()), float(predicted.max()), "as predicted")
        axes.legend(**LEGEND)
        chart = svg(figure, f"observed {name} by predicted {name}")
    return Picture(
        f"Predicted against observed {name}",
        chart,
        f"{_GROUPS} A point shows the mean prediction of its group (across) and the mean observation (up); the bar "
        "holds the middle 80 % of the group's observations. On the dashed line predictions are right on average. The "
        "more the points rise in comparison with the length of the bars, the more a prediction says about a single "
        "sample.",
    )


def _calibration(curve: Curve, positive: str) -> Picture:
    return Picture(
        f"Calibration of the probability of {positive}",
        _rates(curve, "predicted probability", "observed share"),
        f"{_GROUPS} A point shows the predicted probability (across) and how often {positive} was observed in its "
        "group (up). On the dashed line the probabilities are right; below it they are too high, above it too low. "
        f"{_BARS}",
    )


def _predicted_class(curve: Curve) -> Picture:
    return Picture(
        "Calibration of the predicted class",
        _rates(curve, "probability of the predicted class", "observed accuracy"),
        "Held-out samples are put into groups by the probability of the predicted class, one point for each group; the "
        "height of a point is how often that class was right. On the dashed line the model is as sure as it should be; "
        f"below it the model is too sure. {_BARS}",
    )


def _rates(curve: Curve, across: str, up: str) -> str:
    predicted, observed, error = (
        np.array(curve[column], dtype=np.float64) for column in ("predicted", "observed", "standard_error")
    )
    ends = np.clip([observed - 2 * error, observed + 2 * error], 0.0, 1.0)
    with drawing(across, up, height=3.4) as (figure, axes):
        axes.vlines(predicted, *ends, **_BAR, label="two standard errors")
        axes.plot(predicted, observed, **_POINT, label="observed")
        _diagonal(axes, 0.0, 1.0, "as predicted")
        axes.legend(**LEGEND)
        return svg(figure, f"{up} by {across}")


def _roc(curve: Curve, area: float | None, positive: str) -> Picture:
    false, true = (np.array(curve[f"{name}_positive_rate"], dtype=np.float64) for name in ("false", "true"))
    with drawing("false positive rate", "true positive rate", height=3.4) as (figure, axes):
        label = "ROC" if area is None else f"ROC, area under it (AUC) {shown(area)}"
        axes.plot(false, true, color=BLUE, label=label)
        _diagonal(axes, 0.0, 1.0, "blind guesses")
        axes.legend(**LEGEND)
        chart = svg(figure, f"ROC curve of {positive}")
    return Picture(
        "Ranking (ROC curve)",
        chart,
        "For every threshold of the predicted probability: the share of held-out samples of "
        f"{positive} above it (up), against the share of the other samples above it (across). A curve close to the "
        "upper left corner ranks well; along the dashed line the model guesses blindly.",
    )


def in_units(values: Sequence[float | None], target_range: Range | None) -> Any:
    """Convert values of a target, scaled to [-1, 1] if its range is declared, into the target's units."""
    scaled = np.array(values, dtype=np.float64)
    return scaled if not target_range else target_range[0] + 0.5 * (scaled + 1.0) * (target_range[1] - target_range[0])


def _diagonal(axes: Axes, low: float, high: float, label: str) -> None:
    axes.plot([low, high], [low, high], color=INK, alpha=0.6, linestyle="--", linewidth=1, label=label)
