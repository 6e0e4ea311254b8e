"""Charts of a report as inline SVG in the page's colours, light or dark."""

import html
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simulations.reports.standing import CONSTANT, INITIAL, NON_PRIVATE

INK = "#010203"  # stands for the page's text colour until the SVG is written
BLUE, ORANGE, GREEN, RED, GREY = "#3b82f6", "#c77700", "#16a34a", "#dc4c4c", "#808080"
STYLE: dict[Any, Any] = {
    **dict.fromkeys(
        ("axes.edgecolor", "axes.labelcolor", "grid.color", "text.color", "xtick.color", "ytick.color"), INK
    ),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11.0,
    "grid.alpha": 0.15,
    "svg.fonttype": "none",
    "svg.hashsalt": "userdp",
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
LEVELS = {INITIAL: (RED, "--"), CONSTANT: (ORANGE, "-."), NON_PRIVATE: (GREEN, ":")}  # colour and dashes
LOG_FROM = 20.0  # ratio of the largest to the smallest value at which an axis becomes logarithmic


def plain(text: str) -> str:
    """Return a text that Matplotlib draws as it is: what stands between two dollar signs is a formula to it."""
    return text.replace("$", r"\$")


@contextmanager
def drawing(x: str, y: str, height: float = 3.0) -> Iterator[tuple[Figure, Axes]]:
    """Provide an empty chart of a page's width in the style of reports, with labelled axes; height in inches."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6, height), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(visible=True)
        axes.set(xlabel=plain(x), ylabel=plain(y))
        yield figure, axes


def course_chart(rounds: pd.DataFrame, metric: str, start: float | None, levels: Mapping[str, float]) -> str:
    """Draw a metric by round from rounds.parquet, with a horizontal line for each reference model.

    The curve starts at the initial model's metric ``start`` if that is known; ``levels`` are keyed as `LEVELS`.
    """
    measured = rounds[["round", f"metric.{metric}"]].dropna()
    first = [] if start is None else [(0, start)]
    steps, values = zip(*first, *zip(measured["round"], measured[f"metric.{metric}"], strict=True), strict=True)
    name = metric.replace("_", " ")
    with drawing("round", name) as (figure, axes):
        marker = "o" if len(steps) <= 40 else None
        axes.plot(steps, values, color=BLUE, marker=marker, markersize=4, label="released model")
        for label, value in levels.items():
            colour, dash = LEVELS[label]
            axes.axhline(value, color=colour, linestyle=dash, label=label)
        _scale(axes, [*values, *levels.values()])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(**LEGEND)
        return svg(figure, f"{name} by round")


def score_chart(rounds: pd.DataFrame) -> str:
    """Draw the agreement score of each round against its threshold; ``rounds`` is the table rounds.parquet."""
    scored = rounds[["round", "fact.score_private", "fact.threshold"]].dropna()
    score, threshold = scored["fact.score_private"], scored["fact.threshold"]
    with drawing("round", "score", height=2.4) as (figure, axes):
        axes.plot(scored["round"], score, color=BLUE, marker="o", markersize=4, label="agreement")
        ends = scored["round"] - 0.5, scored["round"] + 0.5
        axes.hlines(threshold, *ends, color=ORANGE, linewidth=2, label="threshold")
        axes.set_ylim(0, 1.1 * max(score.max(), threshold.max()))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(**LEGEND)
        return svg(figure, "concentration score and threshold by round")


def _scale(axes: Axes, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) / min(values) >= LOG_FROM:
        axes.set_yscale("log")


def svg(figure: Figure, title: str) -> str:
    """Return the figure as an SVG element of a page; screen readers read ``title`` out."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Inside HTML, SVG needs no namespaces; the size comes from the page.
    text = re.sub(r' (xmlns(:\w+)?|version|width|height)="[^"]*"', "", text, count=5)
    text = text.replace(INK, "currentColor").replace("xlink:href", "href")
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)
