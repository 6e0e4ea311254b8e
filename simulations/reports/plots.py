"""Charts of a report as inline SVG that follows the page's colours, light or dark."""

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simulations.reports.standing import CONSTANT, INITIAL, NON_PRIVATE

INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""
BLUE, ORANGE, GREEN, RED = "#3b82f6", "#e08e0b", "#16a34a", "#dc4c4c"
STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11.0,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "userdp",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
LEGEND: dict[str, Any] = {
    "frameon": False,
    "loc": "lower center",
    "bbox_to_anchor": (0.46, 1.0),
    "ncols": 3,
    "fontsize": 10,
    "handlelength": 1.4,
    "columnspacing": 1.2,
}
LEVELS = {INITIAL: (RED, "--"), CONSTANT: (ORANGE, "-."), NON_PRIVATE: (GREEN, ":")}
"""What a model is compared with -> colour and dashes of its line."""
LOG_FROM = 20.0
"""A logarithmic axis from this ratio of the largest to the smallest value on."""


def course_chart(rounds: pd.DataFrame, metric: str, start: float | None, levels: Mapping[str, float]) -> str:
    """A metric by round, with horizontal lines for what the model is compared with.

    Args:
        rounds: of rounds.parquet.
        metric: name without prefix.
        start: of the initial model, where the curve starts, if it is known.
        levels: label, one of `LEVELS`, -> value of a line.
    """
    measured = rounds[["round", f"metric.{metric}"]].dropna()
    first = [] if start is None else [(0, start)]
    steps, values = zip(*first, *zip(measured["round"], measured[f"metric.{metric}"], strict=True), strict=True)
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes()
        marker = "o" if len(steps) <= 40 else None
        axes.plot(steps, values, color=BLUE, marker=marker, markersize=4, label="released model")
        for label, value in levels.items():
            colour, dash = LEVELS[label]
            axes.axhline(value, color=colour, linestyle=dash, label=label)
        _scale(axes, [*values, *levels.values()])
        axes.set_xlabel("round")
        axes.set_ylabel(metric.replace("_", " "))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(**LEGEND)
        return svg(figure, f"{metric.replace('_', ' ')} by round")


def score_chart(rounds: pd.DataFrame) -> str:
    """Concentration scores against the threshold."""
    scored = rounds[["round", "fact.score_private", "fact.threshold"]].dropna()
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=2.4)
        axes.plot(
            scored["round"], scored["fact.score_private"], color=BLUE, marker="o", markersize=4, label="agreement"
        )
        ends = scored["round"] - 0.5, scored["round"] + 0.5
        axes.hlines(scored["fact.threshold"], *ends, color=ORANGE, linewidth=2, label="threshold")
        axes.set_ylim(0, 1.1 * scored[["fact.score_private", "fact.threshold"]].to_numpy().max())
        axes.set_xlabel("round")
        axes.set_ylabel("score")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(**LEGEND)
        return svg(figure, "concentration score and threshold by round")


def figure_and_axes(height: float = 3.0) -> tuple[Figure, Axes]:
    """An empty chart, as wide as a report's page is."""
    figure = Figure(figsize=(4.6, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True)
    return figure, axes


def _scale(axes: Axes, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) / min(values) >= LOG_FROM:
        axes.set_yscale("log")


def svg(figure: Figure, title: str) -> str:
    """The figure as an element of a page, ``title`` read out by screen readers."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Inside HTML, SVG needs no namespaces; the size comes from the page.
    text = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", text, count=5)
    text = text.replace(INK, "currentColor").replace("xlink:href", "href")
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
