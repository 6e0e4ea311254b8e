"""Charts of a report as inline SVG that follows the page's colours, light or dark."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""
BLUE, ORANGE, GREEN, RED = "#3b82f6", "#e08e0b", "#16a34a", "#dc4c4c"
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11.0,
    "grid.alpha": 0.15,
    "grid.color": _INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "userdp",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
_LEGEND: dict[str, Any] = {
    "frameon": False,
    "loc": "lower center",
    "bbox_to_anchor": (0.46, 1.0),
    "ncols": 3,
    "fontsize": 10,
    "handlelength": 1.4,
    "columnspacing": 1.2,
}
_LOG_FROM = 20.0
"""A logarithmic axis from this ratio of the largest to the smallest value on."""


def course_chart(rounds: pd.DataFrame, metric: str, levels: Mapping[str, float]) -> str:
    """A metric by round, with horizontal lines for the initial model and training without privacy.

    Args:
        rounds: of rounds.parquet.
        metric: name without prefix.
        levels: label -> value of a line; the first is the initial model's, where the curve starts.
    """
    measured = rounds[["round", f"metric.{metric}"]].dropna()
    steps, values = [0, *measured["round"]], [next(iter(levels.values())), *measured[f"metric.{metric}"]]
    with mpl.rc_context(_STYLE):
        figure, axes = _figure()
        marker = "o" if len(steps) <= 40 else None
        axes.plot(steps, values, color=BLUE, marker=marker, markersize=4, label="released model")
        for (label, value), colour, dash in zip(levels.items(), (RED, GREEN), ("--", ":"), strict=False):
            axes.axhline(value, color=colour, linestyle=dash, label=label)
        _scale(axes, [*values, *levels.values()])
        axes.set_xlabel("round")
        axes.set_ylabel(metric.replace("_", " "))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(**_LEGEND)
        return _svg(figure, f"{metric.replace('_', ' ')} by round")


def score_chart(rounds: pd.DataFrame) -> str:
    """Concentration scores against the threshold."""
    scored = rounds[["round", "fact.score_private", "fact.threshold"]].dropna()
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(height=2.4)
        axes.plot(
            scored["round"], scored["fact.score_private"], color=BLUE, marker="o", markersize=4, label="agreement"
        )
        ends = scored["round"] - 0.5, scored["round"] + 0.5
        axes.hlines(scored["fact.threshold"], *ends, color=ORANGE, linewidth=2, label="threshold")
        axes.set_ylim(0, 1.1 * scored[["fact.score_private", "fact.threshold"]].to_numpy().max())
        axes.set_xlabel("round")
        axes.set_ylabel("score")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(**_LEGEND)
        return _svg(figure, "concentration score and threshold by round")


def _figure(height: float = 3.0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True)
    return figure, axes


def _scale(axes: Axes, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) / min(values) >= _LOG_FROM:
        axes.set_yscale("log")


def _svg(figure: Figure, title: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Inside HTML, SVG needs no namespaces; the size comes from the page.
    svg = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", svg, count=5)
    svg = svg.replace(_INK, "currentColor").replace("xlink:href", "href")
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
