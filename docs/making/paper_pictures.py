"""The pictures of the papers' pages: measured errors and the slopes of theory.

A line is the median over seeds in the table of a comparison, and the column `error` in that of a sweep; its band is the
range. Or it is a column of a sweep, and its band a standard error to either side.
"""

from collections.abc import Callable
from fractions import Fraction

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from making.pictures import INK, PALE, STYLE, WIDTH, svg
from making.rooms import Picture, rooms

COLOURS = ("#1f5fa8", "#c2410c", "#2f7d4f", "#7a4fa3", "#8a6d1d", "#4b5563")
MARKS = ("o", "s", "^", "D", "v", "P")


def pictures() -> dict[str, str]:
    """Return the SVG of each picture, by name."""
    with mpl.rc_context(STYLE):
        return {
            picture.name: svg(_drawing(picture)(picture, room.rows(picture.table)))
            for room in rooms()
            for picture in room.picture
        }


def _drawing(picture: Picture) -> Callable[[Picture, pd.DataFrame], Figure]:
    return _drawn_columns if picture.columns else _drawn_sweep if picture.by else _drawn


def _drawn(picture: Picture, rows: pd.DataFrame) -> Figure:
    if picture.problem is not None:
        rows = rows[rows["problem"] == picture.problem]
    start = rows.groupby("seed")["initial"].first()
    figure, ax = _figure()
    for place, (strategy, own) in enumerate(rows.groupby("strategy", sort=False)):
        spans = own.groupby(picture.along)["value"].agg(["median", "min", "max"])
        _line(ax, place, str(strategy), spans.index, spans.to_numpy())
    label = "the start" if start.nunique() == 1 else f"the start, median of {len(start)} seeds"
    ax.axhline(float(start.median()), color=INK, linestyle=":", linewidth=1, label=label)
    at = np.sort(rows[picture.along].unique())
    proven = rows[(rows["strategy"] == picture.of) & (rows[picture.along] == at[0])]
    falls = np.array([picture.grows(float(each)) for each in at])
    guide = float(proven["value"].median()) * falls / falls[0]
    ax.plot(at, guide, color=PALE, linestyle="--", label=f"slope of theory: {picture.told}")
    measure = str(rows["main_metric"].iloc[0]).replace("_", " ")
    _finish(figure, ax, at, picture.along.partition(".")[2].replace("_", " "), measure)
    return figure


def _drawn_sweep(picture: Picture, rows: pd.DataFrame) -> Figure:
    """Draw a sweep's columns error, least and most; rows without an error, which have only a bound, are left out."""
    rows = rows.dropna(subset=["error"])
    at = np.sort(rows[picture.along].unique())
    figure, ax = _figure()
    for place, value in enumerate(rows[picture.by].unique()):
        own = rows[rows[picture.by] == value].sort_values(picture.along)
        _line(ax, place, f"{picture.by} = {value:g}", at, own[["error", "least", "most"]].to_numpy())
        falls = np.array([picture.grows(float(each), value) for each in at])
        guide = float(own["error"].iloc[0]) * falls / falls[0]
        power = float(Fraction(picture.powers.get(f"{value:g}", picture.power)))
        told = f"slope of theory, {picture.by} = {value:g}: {power:.3g}"
        ax.plot(at, guide, color=COLOURS[place % len(COLOURS)], linestyle="--", linewidth=1, label=told)
    _finish(figure, ax, at, picture.along, "error")
    return figure


def _drawn_columns(picture: Picture, rows: pd.DataFrame) -> Figure:
    """Draw a sweep's columns, each with its standard error, beside the start and the bound of theory."""
    at = rows[picture.along].to_numpy()
    figure, ax = _figure()
    for place, name in enumerate(picture.columns):
        error, spread = rows[name], rows[f"standard_error,_{name}"]
        _line(ax, place, name, at, np.column_stack([error, error - spread, error + spread]))
    ax.plot(at, rows["start"], color=INK, linestyle=":", linewidth=1, label="the start")
    ax.plot(at, rows[picture.bound], color=PALE, linestyle="--", label=picture.told)
    _finish(figure, ax, at, picture.along, "excess risk")
    return figure


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained", facecolor="white")
    return figure, figure.subplots()


def _line(ax: Axes, place: int, label: str, at: ArrayLike, spans: NDArray[np.float64]) -> None:
    """Draw (points, 3) spans of median, minimum and maximum: a line and its band."""
    colour, (middle, least, most) = COLOURS[place % len(COLOURS)], spans.T
    ax.fill_between(at, least, most, color=colour, alpha=0.15, linewidth=0)
    ax.plot(at, middle, color=colour, marker=MARKS[place % len(MARKS)], label=label)


def _finish(figure: Figure, ax: Axes, at: NDArray[np.float64], along: str, measure: str) -> None:
    ax.set(xscale="log", yscale="log", xlabel=along, ylabel=measure)
    ax.set_xticks(at, [f"{each:g}" for each in at])
    ax.minorticks_off()
    figure.legend(loc="outside upper center", ncols=2, fontsize=9)
