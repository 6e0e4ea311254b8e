"""The pictures of the papers' pages: measured errors and the slopes of theory.

A line is the median over seeds in a table of `research/papers.py`, and the column `error` in a table of
`research/paper_sweeps.py`. Its band is the range.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from making.papers import RESULTS
from making.pictures import INK, PALE, STYLE, WIDTH, svg

COLOURS = ("#1f5fa8", "#c2410c", "#2f7d4f", "#7a4fa3", "#8a6d1d", "#4b5563")
MARKS = ("o", "s", "^", "D", "v", "P")
ZERO = 0.1
"""The height of zero on a logarithmic axis, relative to the smallest positive error; it is labelled."""


@dataclass(frozen=True)
class Theory:
    """A theoretical rate, up to a factor.

    Attributes:
        of: The strategy that the rate is proven for; the line starts at its first median.
        grows: The rate as a function of the horizontal axis.
        told: The label.
    """

    of: str
    grows: Callable[[float], float]
    told: str


@dataclass(frozen=True)
class Picture:
    """A table's errors along one key of its grid.

    Attributes:
        table: The name of the table.
        along: The key on the horizontal axis.
        theory: The theoretical rate.
        problem: The problem to draw; None if the table has one only.
    """

    table: str
    along: str
    theory: Theory
    problem: str | None = None


@dataclass(frozen=True)
class SweepPicture:
    """A sweep's errors along one of its columns, on logarithmic axes; the table has columns error, least and most.

    Rows without an error, which have only a bound, are left out.

    Attributes:
        table: The name of the table.
        along: The column on the horizontal axis.
        by: The column with one line per value.
        power: The theoretical exponent of a line, by its value.
    """

    table: str
    along: str
    by: str
    power: Callable[[float], float]


def _one_over(epsilon: float) -> float:
    return 1 / epsilon


def _one_over_square(epsilon: float) -> float:
    return 1 / epsilon**2


PICTURES = {
    "paper-core-hard-instance": Picture(
        "compare-hard-instance", "privacy.epsilon", Theory("localized-ours", _one_over, "1 / epsilon")
    ),
    "paper-core-as-written": Picture(
        "robust-paper", "privacy.epsilon", Theory("paper-calibrated", _one_over_square, "1 / epsilon^2, Theorem 3.1")
    ),
    "user-level": Picture(
        "user-level", "data.samples_per_user", Theory("robust_rounds", lambda samples: 1 / samples, "1 / m")
    ),
    "paper-high-dimension": Picture(
        "high-dimensional-dimension",
        "data.dimension",
        Theory("robust_frank_wolfe", lambda dimension: math.log(dimension) ** (1 / 3), "log(d)^(1/3), Corollary 1"),
    ),
    "paper-high-dimensional-budget": Picture(
        "high-dimensional-sparse",
        "privacy.epsilon",
        Theory("private_hard_thresholding", _one_over, "1 / epsilon, Theorem 7"),
    ),
    "paper-sparse-packing": Picture(
        "sparse-means",
        "privacy.epsilon",
        Theory("projected_sgd", _one_over_square, "1 / epsilon^2, Theorem 3.3 for few columns"),
        "packing",
    ),
    "paper-sparse-blocks": Picture(
        "sparse-means",
        "privacy.epsilon",
        Theory("projected_sgd", _one_over, "1 / epsilon, Theorem 3.3 for many columns"),
        "blocks",
    ),
    "paper-averaged-clipping-linear": Picture(
        "heavy-tailed-linear", "privacy.epsilon", Theory("averaged_clipping", _one_over, "1 / epsilon"), "student-t"
    ),
    "paper-averaged-clipping-restarts": Picture(
        "averaged-clipping-restarts", "privacy.epsilon", Theory("three-runs", _one_over, "1 / epsilon, Theorem 6")
    ),
}
SWEEP_PICTURES = {
    "paper-averaged-clipping-rates": SweepPicture("averaged-clipping-rates", "n", "d", lambda d: -2 / 7),
    "paper-sparse-rates": SweepPicture("sparse-rates", "n", "delta", lambda delta: -0.5),
    "paper-heavy-tailed-samples": SweepPicture("heavy-tailed-samples", "samples", "p", lambda p: -(1 - 1 / p)),
    "paper-heavy-tailed-epsilon": SweepPicture("heavy-tailed-epsilon", "epsilon", "p", lambda p: -(1 - 1 / p)),
}


def pictures() -> dict[str, str]:
    """Return the SVG of each picture, by name."""
    with mpl.rc_context(STYLE):
        drawn = {name: svg(_drawn(picture)) for name, picture in PICTURES.items()}
        return drawn | {name: svg(_drawn_sweep(picture)) for name, picture in SWEEP_PICTURES.items()}


def _drawn(picture: Picture) -> Figure:
    rows = pd.read_csv(RESULTS / f"{picture.table}.csv")
    if picture.problem is not None:
        rows = rows[rows["problem"] == picture.problem]
    start = rows.groupby("seed")["initial"].first()
    positive = rows["value"][rows["value"] > 0]
    zero = ZERO * float(positive.min())
    figure, ax = _figure()
    if (rows["value"] <= 0).any():
        ax.axhline(zero, color=PALE, linewidth=1, label="zero")
        rows = rows.assign(value=rows["value"].clip(lower=zero))
    for place, (strategy, own) in enumerate(rows.groupby("strategy", sort=False)):
        spans = own.groupby(picture.along)["value"].agg(["median", "min", "max"])
        _line(ax, place, str(strategy), spans.index, spans.to_numpy())
    label = "the start" if start.nunique() == 1 else f"the start, median of {len(start)} seeds"
    ax.axhline(float(start.median()), color=INK, linestyle=":", linewidth=1, label=label)
    at = np.sort(rows[picture.along].unique())
    proven = rows[(rows["strategy"] == picture.theory.of) & (rows[picture.along] == at[0])]
    falls = np.array([picture.theory.grows(float(each)) for each in at])
    guide = float(proven["value"].median()) * falls / falls[0]
    ax.plot(at, guide, color=PALE, linestyle="--", label=f"slope of theory: {picture.theory.told}")
    measure = str(rows["main_metric"].iloc[0]).replace("_", " ")
    _finish(figure, ax, at, picture.along.partition(".")[2].replace("_", " "), measure)
    return figure


def _drawn_sweep(picture: SweepPicture) -> Figure:
    rows = pd.read_csv(RESULTS / "sweeps" / f"{picture.table}.csv").dropna(subset=["error"])
    at = np.sort(rows[picture.along].unique())
    figure, ax = _figure()
    for place, value in enumerate(rows[picture.by].unique()):
        own = rows[rows[picture.by] == value].sort_values(picture.along)
        power = picture.power(float(value))
        _line(ax, place, f"{picture.by} = {value:g}", at, own[["error", "least", "most"]].to_numpy())
        guide = float(own["error"].iloc[0]) * (at / at[0]) ** power
        told = f"slope of theory, {picture.by} = {value:g}: {power:.3g}"
        ax.plot(at, guide, color=COLOURS[place % len(COLOURS)], linestyle="--", linewidth=1, label=told)
    _finish(figure, ax, at, picture.along, "error")
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
