"""Charts of a comparison, in the style of a run's. Strategies differ by colour and by marker."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from simulations.reports.explain import shown
from simulations.reports.plots import BLUE, INK, LEGEND, LEVELS, LOG_FROM, ORANGE, RED, STYLE, figure_and_axes, svg
from simulations.reports.standing import CONSTANT, INITIAL, NON_PRIVATE

_PARTS = (("initial", INITIAL), ("constant", CONSTANT), ("non_private", NON_PRIVATE))
_LEVELS = tuple((part, name, *LEVELS[name]) for part, name in _PARTS)
"""(of a point, what it is called, colour, dashes)"""
_COLOURS = (BLUE, ORANGE, "#8b5cf6", "#0d9488", "#db2777", "#84780a", "#64748b", "#0891b2", "#b45309", "#7c3aed")
_MARKERS = "osD^vP*XhH"
_MARKER_SPACING = 0.08
"""Of markers along a curve of many points, as a share of the chart's diagonal."""
_MANY_POINTS = 12
_LEGEND = {name: value for name, value in LEGEND.items() if name != "bbox_to_anchor"} | {"loc": "outside upper center"}
_LOG_AXIS_FROM = 4.0
"""A logarithmic horizontal axis from this ratio of the largest to the smallest setting on."""
_LOG_ROUNDS_FROM = 10.0
"""The same for the most and the fewest rounds of a strategy."""
_FIRST_ROUND = 0.4
"""Width of the first round on a logarithmic axis, in decades."""
_ROOM = 0.06
"""Least distance of two labels of an axis, as a share of it."""
_PRIVACY_COSTS = 2.0
"""Privacy is said to cost more than sampling from this ratio of the risks with and without it on."""
_DEEPER = 5.0
"""How much further down the axis may go for a guide."""
_BESIDE = 0.6
"""How far below the line that it is to be compared with a guide is drawn."""


def sweep_chart(
    points: Sequence[Mapping[str, Any]],
    key: str,
    name: str,
    labels: Sequence[str],
    title: str,
    power: float | None = None,
) -> tuple[str, bool]:
    """The main metric against one setting: median with minimum and maximum over seeds.

    Args:
        points: of a report, by increasing value of ``key``.
        key: dotted key of the horizontal axis.
        name: of the axis.
        labels: the strategies, in the order of their colours.
        title: said by screen readers.
        power: the slope that theory predicts where privacy costs more than sampling.

    Returns:
        SVG, and whether the predicted slope is in it; "" if nothing was measured. No slope is drawn unless both axes
        are logarithmic and the best private strategy at the end where privacy costs most has a risk that is less than
        the initial model's and at least twice that without privacy.
    """
    if not any(line["median"] is not None for point in points for line in point["ranking"]):
        return "", False
    at = [float(point["values"][key]) for point in points]
    seen = [
        *(line[part] for point in points for line in point["ranking"] for part in ("low", "high")),
        *(point[part] for point in points for part, *_ in _LEVELS),
    ]
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=_height(labels))
        edge = _metric_axis(axes, seen)
        for index, label in enumerate(labels):
            found = [
                (x, line)
                for x, point in zip(at, points, strict=True)
                for line in point["ranking"]
                if line["strategy"] == label and line["median"] is not None
            ]
            if found:
                _curve(axes, index, label, [x for x, _ in found], [line for _, line in found], edge)
        for part, label, colour, dash in _LEVELS:
            level = [
                (x, max(edge, point[part])) for x, point in zip(at, points, strict=True) if point[part] is not None
            ]
            if level:
                axes.plot(*zip(*level, strict=True), color=colour, linestyle=dash, label=label, zorder=3)
        _settings_axis(axes, at)
        drawn = power is not None and _guide(axes, points, at, power)
        axes.set_xlabel(name)
        axes.set_ylabel(points[0]["metric"])
        _legend(figure, axes)
        return svg(figure, title), drawn


def rounds_chart(point: Mapping[str, Any], labels: Sequence[str], title: str) -> str:
    """The main metric by round, from the initial model on: median with minimum and maximum over seeds.

    Args:
        point: of a report; ``point["course"]`` holds strategy -> [{"round", "median", "low", "high"}].
        labels: the strategies, in the order of their colours.
        title: said by screen readers.

    Returns:
        SVG; "" if no round was measured.
    """
    courses = {label: point["course"][label] for label in labels if point["course"].get(label)}
    if not courses:
        return ""
    levels = [(point[part], *look) for part, *look in _LEVELS if point[part] is not None]
    start = point["initial"]
    first = [] if start is None else [{"round": 0, "median": start, "low": start, "high": start}]
    seen = [line[part] for course in courses.values() for line in course for part in ("low", "high")]
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=_height(labels))
        edge = _metric_axis(axes, [*seen, *(level for level, *_ in levels)])
        for index, label in enumerate(labels):
            if label in courses:
                course = [*first, *courses[label]]
                _curve(axes, index, label, [line["round"] for line in course], course, edge)
        for level, label, colour, dash in levels:
            axes.axhline(max(edge, level), color=colour, linestyle=dash, label=label, zorder=3)
        _rounds_axis(axes, [course[-1]["round"] for course in courses.values()])
        axes.set_xlabel("round")
        axes.set_ylabel(point["metric"])
        _legend(figure, axes)
        return svg(figure, title)


def dot_chart(point: Mapping[str, Any]) -> str:
    """The strategies of one point: median and interval, best on top; lines for the references.

    Returns:
        SVG; "" if nothing was measured.
    """
    lines = [line for line in point["ranking"] if line["median"] is not None]
    if not lines:
        return ""
    levels = [(point[part], *look) for part, *look in _LEVELS if point[part] is not None]
    edge = _edge([*(line[part] for line in lines for part in ("low", "high")), *(level for level, *_ in levels)])
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=1.2 + 0.3 * len(lines))
        for row, line in enumerate(lines):
            colour, marker, label = (RED, "X", "worse than nothing") if line["worse"] else (BLUE, "o", None)
            ends = [max(edge, line["low"]), max(edge, line["high"])]
            axes.plot(ends, [row, row], color=colour, lw=5, alpha=0.3, solid_capstyle="round")
            middle = max(edge, line["median"])
            axes.plot(middle, row, color=colour, marker=marker, markersize=6, linestyle="", label=label, clip_on=False)
        for level, label, colour, dash in levels:
            axes.axvline(max(edge, level), color=colour, linestyle=dash, label=label, zorder=3)
        if edge > 0:
            axes.set_xscale("log")
            axes.set_xlim(left=edge)
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yticks(range(len(lines)), [line["strategy"] for line in lines])
        axes.invert_yaxis()
        axes.set_xlabel(point["metric"])
        _legend(figure, axes)
        return svg(figure, f"{point['metric']} of each strategy, {point['index']}")


def _curve(
    axes: Axes, index: int, label: str, at: Sequence[float], lines: Sequence[Mapping[str, float]], edge: float
) -> None:
    """Medians and the band about them; what lies below the edge of the chart is drawn on it."""
    colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
    every = _MARKER_SPACING if len(at) > _MANY_POINTS else 1
    medians, low, high = ([max(edge, line[part]) for line in lines] for part in ("median", "low", "high"))
    axes.plot(at, medians, color=colour, marker=marker, markersize=4, markevery=every, label=label, clip_on=False)
    axes.fill_between(at, low, high, color=colour, alpha=0.12, lw=0)


def _guide(axes: Axes, points: Sequence[Mapping[str, Any]], at: Sequence[float], power: float) -> bool:
    """A thin line of the predicted slope beside the best private strategy, from the end where privacy costs most."""
    end = 0 if power < 0 else -1
    point = points[end]
    good = [line["median"] for line in point["ranking"] if line["holds"] and line["median"] and not line["worse"]]
    floor = point["non_private"] or 0.0
    # A floor of zero lies on the edge of the chart, which then has to stay where it is.
    if (
        floor <= 0
        or axes.get_xscale() != "log"
        or axes.get_yscale() != "log"
        or not good
        or min(good) < _PRIVACY_COSTS * floor
    ):
        return False
    low, high = axes.get_ylim()
    values = [_BESIDE * min(good) * (x / at[end]) ** power for x in at]
    axes.plot(at, values, color=INK, alpha=0.55, linewidth=1.0, label=f"theory: slope {_signed(power)}")
    axes.set_ylim(max(min(0.8 * min(values), low), low / _DEEPER), high)
    return True


def _signed(power: float) -> str:
    """A slope with a minus sign as wide as a plus sign."""
    return f"{power:+g}".replace("-", "\N{MINUS SIGN}")


def _height(labels: Sequence[str]) -> float:
    """Of a chart whose legend has two columns, in inches."""
    return 3.2 + 0.2 * (len(labels) // 2)


def _legend(figure: Figure, axes: Axes) -> None:
    """Above the chart, in as many columns as there is room for."""
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        columns = 2 if max(map(len, unique)) <= 24 else 1
        figure.legend(unique.values(), unique.keys(), **_LEGEND | {"ncols": columns})


def _settings_axis(axes: Axes, at: Sequence[float]) -> None:
    """Ticks at the settings, logarithmic where they are far apart; labels that would touch are left out."""
    values = sorted(set(at))
    place = [float(value) for value in values]
    if values[0] > 0 and values[-1] >= _LOG_AXIS_FROM * values[0]:
        axes.set_xscale("log")
        place = [math.log(value) for value in values]
    axes.set_xticks(values, _labels(values, place))
    axes.xaxis.set_minor_locator(NullLocator())


def _labels(values: Sequence[float], place: Sequence[float]) -> list[str]:
    """Of ticks at ``place``, in any unit and increasing; empty where it would touch the one before."""
    room, last, labels = _ROOM * (place[-1] - place[0]), -math.inf, []
    for value, where in zip(values, place, strict=True):
        fits = where - last >= room
        labels.append(_brief(value) if fits else "")
        last = where if fits else last
    return labels


def _brief(value: float) -> str:
    """A tick's label of at most four or five characters: 10,000 is 10k."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % size == 0):
            return f"{value / size:.4g}{unit}"
    return shown(value)


def _rounds_axis(axes: Axes, rounds: Sequence[int]) -> None:
    """From round 0, the initial model; logarithmic beyond 1 where some strategies take many more rounds than others."""
    if max(rounds) < _LOG_ROUNDS_FROM * min(rounds):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        return
    axes.set_xscale("symlog", linthresh=1.0, linscale=_FIRST_ROUND)
    axes.set_xlim(-0.15, 1.15 * max(rounds))
    ticks = [0, *(step * 10**power for power in range(9) for step in (1, 2, 5) if step * 10**power <= max(rounds))]
    axes.set_xticks(ticks, _labels(ticks, [math.log10(tick) if tick else -_FIRST_ROUND for tick in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())


def _metric_axis(axes: Axes, values: Sequence[float | None]) -> float:
    """Logarithmic where the values are far apart; returns their edge."""
    known = [value for value in values if value is not None]
    edge = _edge(known)
    if edge > 0:
        axes.set_yscale("log")
        axes.set_ylim(edge, 2.0 * max(known))
    return edge


def _edge(values: Sequence[float]) -> float:
    """Where zero, an exact optimum, is drawn if the axis is logarithmic; minus infinity if it is not.

    It is where values, none of them negative, span so much that they are shown by their logarithm.
    """
    positive = [value for value in values if value > 0]
    wide = bool(positive) and min(values) >= 0 and max(positive) >= LOG_FROM * min(positive)
    return 0.5 * min(positive) if wide else -math.inf
