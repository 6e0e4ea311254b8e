"""Pictures of a model's predictions beside what was observed, each with the words that say how to read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from simulations.reports.explain import shown
from simulations.reports.plots import BLUE, INK, LEGEND, STYLE, figure_and_axes, svg
from userdp.data.tables.cells import cell_text

Curve = Mapping[str, Sequence[float | None]]
"""Column -> its values, as `simulations.records.curves` makes them."""
Range = tuple[float, float]

_GROUPS = "Held-out samples are put into groups of like predictions, one point each."
_BARS = "Bars reach two standard errors over people to either side."
_DRAWN: dict[str, Any] = {"marker": "o", "markersize": 4, "color": BLUE}


@dataclass(frozen=True)
class Picture:
    """One picture of a report.

    Attributes:
        title: what it shows.
        chart: an SVG element.
        how_to_read: in plain words.
    """

    title: str
    chart: str
    how_to_read: str


def pictures(curves: Mapping[str, Curve], metrics: Mapping[str, Any], columns: Mapping[str, Any]) -> list[Picture]:
    """The pictures of a run; none of a run without curves.

    Args:
        curves: "curves" of result.json.
        metrics: of the released model, for the area under its ROC curve.
        columns: what the table's columns are declared to be, for names and the target's units.
    """
    found = []
    if "predicted_against_observed" in curves:
        found.append(_numbers(curves["predicted_against_observed"], columns))
    if "calibration" in curves:
        found.append(_calibration(curves["calibration"], _class_one(columns)))
    if "predicted_class_calibration" in curves:
        found.append(_predicted_class(curves["predicted_class_calibration"]))
    if "roc" in curves:
        found.append(_roc(curves["roc"], metrics.get("auc"), _class_one(columns)))
    return found


def _numbers(curve: Curve, columns: Mapping[str, Any]) -> Picture:
    """Of targets that are numbers, in the target's units where its range is declared."""
    name, spanned = str(columns.get("target") or "target"), columns.get("target_range")
    predicted, observed, low, high = (
        in_units(curve[column], spanned) for column in ("predicted", "observed", "observed_p10", "observed_p90")
    )
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=3.4)
        axes.vlines(predicted, low, high, color=BLUE, alpha=0.25, linewidth=6, label="middle 80 %")
        axes.plot(predicted, observed, **_DRAWN, label="mean")
        _diagonal(axes, float(predicted.min()), float(predicted.max()), "as predicted")
        axes.set_xlabel("predicted")
        axes.set_ylabel("observed")
        axes.legend(**LEGEND)
        chart = svg(figure, f"observed {name} by predicted {name}")
    return Picture(
        f"Predicted against observed {name}",
        chart,
        f"{_GROUPS} A point stands above what was predicted, on average over its group, at the height of what was "
        "observed; the bar holds the middle 80 % of the group's observed values. On the dashed line predictions are "
        "right on average. The further the points climb in comparison with the bars' length, the more a prediction "
        "tells of a single sample.",
    )


def _calibration(curve: Curve, positive: str) -> Picture:
    """Of two classes."""
    return Picture(
        f"Calibration of the probability of {positive}",
        _rates(curve, "predicted probability", "observed share"),
        f"{_GROUPS} A point's height is how often {positive} was observed in its group, above the probability that was "
        "predicted. On the dashed line probabilities can be taken at their word; below it they are too high, above it "
        f"too low. {_BARS}",
    )


def _predicted_class(curve: Curve) -> Picture:
    """Of several classes."""
    return Picture(
        "Calibration of the predicted class",
        _rates(curve, "probability of the predicted class", "observed share of right ones"),
        "Held-out samples are put into groups by the probability of the class that the model predicts, one point each; "
        "its height is how often that class was right. On the dashed line the model knows how sure it may be; below it "
        f"it is too sure of itself. {_BARS}",
    )


def _rates(curve: Curve, across: str, up: str) -> str:
    predicted, observed, error = (
        np.array(curve[column], dtype=np.float64) for column in ("predicted", "observed", "standard_error")
    )
    ends = np.clip([observed - 2 * error, observed + 2 * error], 0.0, 1.0)
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=3.4)
        axes.vlines(predicted, *ends, color=BLUE, alpha=0.25, linewidth=6, label="two standard errors")
        axes.plot(predicted, observed, **_DRAWN, label="observed")
        _diagonal(axes, 0.0, 1.0, "as predicted")
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.legend(**LEGEND)
        return svg(figure, f"{up} by {across}")


def _roc(curve: Curve, area: float | None, positive: str) -> Picture:
    """Of two classes."""
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=3.4)
        label = "ROC" if area is None else f"ROC, area under it (AUC) {shown(area)}"
        false, true = (np.array(curve[f"{name}_positive_rate"], dtype=np.float64) for name in ("false", "true"))
        axes.plot(false, true, color=BLUE, label=label)
        _diagonal(axes, 0.0, 1.0, "blind guesses")
        axes.set_xlabel("share of the others above a threshold")
        axes.set_ylabel("share of the class above it")
        axes.legend(**LEGEND)
        chart = svg(figure, f"ROC curve of {positive}")
    return Picture(
        "Ranking (ROC curve)",
        chart,
        "For every threshold that the predicted probability may have to pass: how many of the held-out samples of "
        f"{positive} pass it (upward), against how many of the others do (to the right). A curve close to the upper "
        "left corner ranks well; along the dashed line the model is blind.",
    )


def in_units(values: Sequence[float | None], spanned: Range | None) -> Any:
    """Values of a target, which is scaled to [-1, 1] for training where its range is declared, in its own units."""
    scaled = np.array(values, dtype=np.float64)
    return scaled if not spanned else spanned[0] + 0.5 * (scaled + 1.0) * (spanned[1] - spanned[0])


def _class_one(columns: Mapping[str, Any]) -> str:
    """What the class is called of which probabilities are."""
    levels, positive = columns.get("target_levels"), columns.get("positive")
    if levels:
        return repr(cell_text(levels[1]))
    return "class 1" if positive is None else repr(cell_text(positive))


def _diagonal(axes: Axes, low: float, high: float, label: str) -> None:
    axes.plot([low, high], [low, high], color=INK, alpha=0.6, linestyle="--", linewidth=1, label=label)
