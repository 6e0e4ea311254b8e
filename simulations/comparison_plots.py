"""Charts of a comparison, in the style of a run's."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from simulations.plots import BLUE, GREEN, LEGEND, LOG_FROM, ORANGE, RED, STYLE, figure_and_axes, svg

INITIAL, NON_PRIVATE = "initial model", "without privacy"
_COLOURS = (BLUE, ORANGE, "#8b5cf6", "#0d9488", "#db2777", "#84780a", "#64748b", "#0891b2", "#b45309", "#7c3aed")
_MARKERS = "osD^vP*XhH"


def sweep_chart(points: Sequence[Mapping[str, Any]], key: str, name: str, labels: Sequence[str], title: str) -> str:
    """The main metric against one setting: median with minimum and maximum over seeds.

    Args:
        points: of a report, by increasing value of ``key``.
        key: dotted key of the horizontal axis.
        name: of the axis.
        labels: the strategies, in the order of their colours.
        title: said by screen readers.

    Returns:
        SVG; "" if nothing was measured.
    """
    if not any(line["median"] is not None for point in points for line in point["ranking"]):
        return ""
    seen: list[float] = []
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=3.2 + 0.2 * (len(labels) // 2))
        for index, label in enumerate(labels):
            found = [
                (float(point["values"][key]), line)
                for point in points
                for line in point["ranking"]
                if line["strategy"] == label and line["median"] is not None
            ]
            if not found:
                continue
            at, lines = [x for x, _ in found], [line for _, line in found]
            colour = _COLOURS[index % len(_COLOURS)]
            axes.plot(
                at,
                [line["median"] for line in lines],
                color=colour,
                marker=_MARKERS[index % len(_MARKERS)],
                markersize=4,
                label=label,
            )
            axes.fill_between(
                at, [line["low"] for line in lines], [line["high"] for line in lines], color=colour, alpha=0.12, lw=0
            )
            seen += [line[part] for line in lines for part in ("low", "high")]
        for part, label, colour, dash in (("initial", INITIAL, RED, "--"), ("non_private", NON_PRIVATE, GREEN, ":")):
            level = [(float(point["values"][key]), point[part]) for point in points if point[part] is not None]
            if level:
                axes.plot(*zip(*level, strict=True), color=colour, linestyle=dash, label=label)
                seen += [value for _, value in level]
        _log(axes, [float(point["values"][key]) for point in points], seen)
        axes.set_xlabel(name)
        axes.set_ylabel(points[0]["metric"])
        axes.legend(**LEGEND | {"ncols": 2})
        return svg(figure, title)


def dot_chart(point: Mapping[str, Any]) -> str:
    """The strategies of one point: median and interval, best on top; lines for the references.

    Returns:
        SVG; "" if nothing was measured.
    """
    lines = [line for line in point["ranking"] if line["median"] is not None]
    if not lines:
        return ""
    levels = {INITIAL: point["initial"], NON_PRIVATE: point["non_private"]}
    with mpl.rc_context(STYLE):
        figure, axes = figure_and_axes(height=1.2 + 0.3 * len(lines))
        for row, line in enumerate(lines):
            colour = RED if line["worse"] else BLUE
            axes.plot([line["low"], line["high"]], [row, row], color=colour, lw=5, alpha=0.3, solid_capstyle="round")
            axes.plot(line["median"], row, color=colour, marker="o", markersize=6)
        for (label, level), colour, dash in zip(levels.items(), (RED, GREEN), ("--", ":"), strict=True):
            if level is not None:
                axes.axvline(level, color=colour, linestyle=dash, label=label)
        seen = [line[part] for line in lines for part in ("low", "high")] + [
            one for one in levels.values() if one is not None
        ]
        if _wide(seen):
            axes.set_xscale("log", nonpositive="clip")
            axes.set_xlim(left=0.5 * min(value for value in seen if value > 0))
        axes.set_yticks(range(len(lines)), [line["strategy"] for line in lines])
        axes.invert_yaxis()
        axes.set_xlabel(point["metric"])
        if axes.get_legend_handles_labels()[0]:
            axes.legend(**LEGEND)
        return svg(figure, f"{point['metric']} of each strategy, {point['index']}")


def _log(axes: Axes, at: Sequence[float], values: Sequence[float]) -> None:
    """Logarithmic axes over more than a decade of positive values."""
    if min(at) > 0 and max(at) >= 10 * min(at):
        axes.set_xscale("log")
    else:
        axes.set_xticks(sorted(set(at)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if _wide(values):
        # Zero, an exact optimum, is drawn on the lower edge.
        axes.set_yscale("log", nonpositive="clip")
        axes.set_ylim(bottom=0.5 * min(value for value in values if value > 0))


def _wide(values: Sequence[float]) -> bool:
    """Whether values, none of them negative, span so much that they are shown by their logarithm."""
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) >= LOG_FROM * min(positive)
