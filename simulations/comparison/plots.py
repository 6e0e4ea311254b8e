"""Charts of a comparison, in the style of a run's. Strategies differ by colour and by marker."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter, NullLocator, SymmetricalLogLocator

from simulations.reports.explain import shown
from simulations.reports.plots import BLUE, LEGEND, LEVELS, LOG_FROM, ORANGE, RED, drawing, svg
from simulations.reports.standing import CONSTANT, INITIAL, NON_PRIVATE

_LEVELS = {"initial": INITIAL, "constant": CONSTANT, "non_private": NON_PRIVATE}  # field of a point -> label
_COLOURS = (BLUE, ORANGE, "#8b5cf6", "#0d9488", "#db2777", "#84780a", "#64748b", "#0891b2", "#b45309", "#7c3aed")
_MARKERS = "osD^vP*XhH"
_MARKER_SPACING = 0.08  # distance of markers along a curve with many points, as a share of the chart's diagonal
_MANY_POINTS = 12
_LEGEND = {name: value for name, value in LEGEND.items() if name != "bbox_to_anchor"} | {"loc": "outside upper center"}
_LOG_AXIS_FROM = 4.0  # ratio of the largest to the smallest setting at which the horizontal axis becomes logarithmic
_LOG_ROUNDS_FROM = 10.0  # ratio of the most to the fewest rounds at which the axis of rounds becomes logarithmic
_FIRST_ROUND = 0.4  # width of the first round on a logarithmic axis, in decades
_THOUSANDS = EngFormatter(sep="")  # 10,000 is 10k
_ROOM = 0.06  # least distance of two labels of an axis, as a share of the axis


def sweep_chart(points: Sequence[Mapping[str, Any]], key: str, name: str, labels: Sequence[str], title: str) -> str:
    """Draw the main metric against the setting ``key``: median with minimum and maximum over seeds.

    Points are sorted by the setting, whose axis is called ``name``; labels are in the order of their colours; screen
    readers read the title out. Returns SVG; "" without measurements.
    """
    at = [float(point["values"][key]) for point in points]
    placed = [
        (x, line) for x, one in zip(at, points, strict=True) for line in one["ranking"] if line["median"] is not None
    ]
    if not placed:
        return ""
    seen = [
        *(line[part] for point in points for line in point["ranking"] for part in ("low", "high")),
        *(point[part] for point in points for part in _LEVELS),
    ]
    with drawing(name, points[0]["metric"], _height(labels)) as (figure, axes):
        edge = _metric_axis(axes, seen)
        for index, label in enumerate(labels):
            found = [(x, line) for x, line in placed if line["strategy"] == label]
            if found:
                _curve(axes, index, label, [x for x, _ in found], [line for _, line in found], edge)
        for part, label in _LEVELS.items():
            level = [(x, max(edge, one[part])) for x, one in zip(at, points, strict=True) if one[part] is not None]
            if level:
                colour, dash = LEVELS[label]
                axes.plot(*zip(*level, strict=True), color=colour, linestyle=dash, label=label, zorder=3)
        _settings_axis(axes, at)
        _legend(figure, axes)
        return svg(figure, title)


def rounds_chart(point: Mapping[str, Any], labels: Sequence[str], title: str) -> str:
    """Draw the main metric by round, from the initial model on: median with minimum and maximum over seeds.

    ``point["course"]`` holds strategy -> [{"round", "median", "low", "high"}]; the result is "" without measured
    rounds.
    """
    courses = {label: point["course"][label] for label in labels if point["course"].get(label)}
    if not courses:
        return ""
    start = point["initial"]
    first = [] if start is None else [{"round": 0, "median": start, "low": start, "high": start}]
    seen = [line[part] for course in courses.values() for line in course for part in ("low", "high")]
    with drawing("round", point["metric"], _height(labels)) as (figure, axes):
        edge = _metric_axis(axes, [*seen, *(point[part] for part in _LEVELS)])
        for index, label in enumerate(labels):
            if label in courses:
                course = [*first, *courses[label]]
                _curve(axes, index, label, [line["round"] for line in course], course, edge)
        _level_lines(axes.axhline, point, edge)
        _rounds_axis(axes, [course[-1]["round"] for course in courses.values()])
        _legend(figure, axes)
        return svg(figure, title)


def dot_chart(point: Mapping[str, Any]) -> str:
    """Draw the strategies of one point: median and interval, best on top, with lines for the reference models.

    Returns SVG; "" without measurements.
    """
    lines = [line for line in point["ranking"] if line["median"] is not None]
    if not lines:
        return ""
    edge = _edge([*(line[part] for line in lines for part in ("low", "high")), *(point[part] for part in _LEVELS)])
    with drawing(point["metric"], "", max(2.0, 1.2 + 0.3 * len(lines))) as (figure, axes):  # the legend needs room
        for row, line in enumerate(lines):
            colour, marker, label = (RED, "X", "no better than the baseline") if line["worse"] else (BLUE, "o", None)
            ends = [max(edge, line["low"]), max(edge, line["high"])]
            axes.plot(ends, [row, row], color=colour, lw=5, alpha=0.3, solid_capstyle="round")
            middle = max(edge, line["median"])
            axes.plot(middle, row, color=colour, marker=marker, markersize=6, linestyle="", label=label, clip_on=False)
        _level_lines(axes.axvline, point, edge)
        if edge > 0:
            axes.set_xscale("log")
            axes.set_xlim(left=edge)
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yticks(range(len(lines)), [line["strategy"] for line in lines])
        axes.invert_yaxis()
        _legend(figure, axes)
        return svg(figure, f"{point['metric']} of each strategy, {point['index']}")


def _level_lines(draw: Any, point: Mapping[str, Any], edge: float) -> None:
    for part, label in _LEVELS.items():
        if point[part] is not None:
            colour, dash = LEVELS[label]
            draw(max(edge, point[part]), color=colour, linestyle=dash, label=label, zorder=3)


def _curve(
    axes: Axes, index: int, label: str, at: Sequence[float], lines: Sequence[Mapping[str, float]], edge: float
) -> None:
    colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
    every = _MARKER_SPACING if len(at) > _MANY_POINTS else 1
    medians, low, high = ([max(edge, line[part]) for line in lines] for part in ("median", "low", "high"))
    axes.plot(at, medians, color=colour, marker=marker, markersize=4, markevery=every, label=label, clip_on=False)
    axes.fill_between(at, low, high, color=colour, alpha=0.12, lw=0)


def _height(labels: Sequence[str]) -> float:
    return 3.2 + 0.2 * (len(labels) // 2)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        columns = 2 if max(map(len, unique)) <= 24 else 1
        figure.legend(unique.values(), unique.keys(), **_LEGEND | {"ncols": columns})


def _settings_axis(axes: Axes, at: Sequence[float]) -> None:
    values = sorted(set(at))
    place = values
    if values[0] > 0 and values[-1] >= _LOG_AXIS_FROM * values[0]:
        axes.set_xscale("log")
        place = [math.log(value) for value in values]
    axes.set_xticks(values, _labels(values, place))
    axes.xaxis.set_minor_locator(NullLocator())


def _labels(values: Sequence[float], place: Sequence[float]) -> list[str]:
    """Label ticks at increasing places; a label that would touch the one before is empty."""
    room, last, labels = _ROOM * (place[-1] - place[0]), -math.inf, []
    for value, where in zip(values, place, strict=True):
        fits = where - last >= room
        labels.append((_THOUSANDS(value) if value >= 1000 else shown(value)) if fits else "")
        last = where if fits else last
    return labels


def _rounds_axis(axes: Axes, rounds: Sequence[int]) -> None:
    """Start the axis at round 0; make it logarithmic if some strategies take many more rounds than others."""
    if max(rounds) < _LOG_ROUNDS_FROM * min(rounds):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        return
    axes.set_xscale("symlog", linthresh=1.0, linscale=_FIRST_ROUND)
    axes.set_xlim(-0.15, 1.15 * max(rounds))
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1.0, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.xaxis.set_minor_locator(NullLocator())


def _metric_axis(axes: Axes, values: Iterable[float | None]) -> float:
    """Make the axis logarithmic if the values are far apart; return its edge."""
    known = [value for value in values if value is not None]
    edge = _edge(known)
    if edge > 0:
        axes.set_yscale("log")
        axes.set_ylim(edge, 2.0 * max(known))
    return edge


def _edge(values: Iterable[float | None]) -> float:
    """Return the place of zero, an exact optimum, on a logarithmic axis; minus infinity for a linear axis.

    The axis is logarithmic if no value is negative and the positive values span at least a factor ``LOG_FROM``.
    """
    known = [value for value in values if value is not None]
    positive = [value for value in known if value > 0]
    wide = bool(positive) and min(known) >= 0 and max(positive) >= LOG_FROM * min(positive)
    return 0.5 * min(positive) if wide else -math.inf
