"""Charts of the answers to a query: bars; points with intervals, of effects beside a line of none; and curves."""

from collections.abc import Mapping
from itertools import cycle, groupby
from typing import Any

from simulations.reports.answers import Answers
from simulations.reports.pictures import Picture
from simulations.reports.plots import BLUE, GREEN, INK, LEGEND, ORANGE, RED, drawing, plain, svg

_BARS = ("histogram", "counts", "shares")  # statistics drawn as bars
_POINTS = ("mean", "group_means", "effect")
_SHARE = "share of users"  # the unit of a curve's points
_BAR = "A line reaches over the interval of 95 %."
_BAND = "Share of people without the event by then; the band is the interval of 95 % at each time."


def answer_pictures(answers: Answers) -> list[Picture]:
    """Draw histograms, counts and shares as bars, means and effects as points, and survival as curves."""
    found = []
    for (statistic, column, where, _), group in groupby(sorted(answers, key=_ratio), _subject):
        everything, fits = list(group), f" where {where}" if where else ""
        known = [one for one in everything if one["estimate"] is not None]
        if known and statistic in (*_BARS, *_POINTS):
            words = f"{statistic.replace('_', ' ')} of {column}{fits}"
            found.append(Picture(words[0].upper() + words[1:], _chart(words, statistic, known), _BAR))
        elif statistic == "survival":
            found.append(
                Picture(f"Survival until {column}{fits}", _curves(f"survival until {column}{fits}", everything), _BAND)
            )
    return found


def _subject(one: Mapping[str, Any]) -> list[Any]:
    return [one["statistic"], one["column"], one.get("where"), _ratio(one)]  # ratios have an axis of their own


def _ratio(one: Mapping[str, Any]) -> bool:
    return bool(one["unit"] == "ratio")


def _curves(title: str, answers: Answers) -> str:
    """Draw the share of people without an event by time, a curve with its band for each group."""
    curves: dict[str, list[tuple[float, ...]]] = {}
    for one in answers:
        group, _, time = one["level"].rpartition("at ")
        if one["unit"] == _SHARE and one["estimate"] is not None:
            curves.setdefault(group[:-2], []).append((float(time), *(one[key] for key in ("estimate", "low", "high"))))
    unit = next(one["unit"] for one in answers if one["unit"] != _SHARE)  # of the median, the first that is none
    with drawing(unit, "share without the event") as (figure, axes):
        for (group, points), colour in zip(curves.items(), cycle((BLUE, ORANGE, GREEN, RED)), strict=False):
            times, values, low, high = zip(*points, strict=True)
            axes.plot(times, values, color=colour, label=plain(group), marker="o", markersize=3)
            axes.fill_between(times, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(0, 1)
        if len(curves) > 1:
            axes.legend(**LEGEND)
        return svg(figure, title)


def _chart(title: str, statistic: str, answers: Answers) -> str:
    labels = [plain(str(one["level"] or one["column"])) for one in answers]
    places, values = range(len(labels)), [float(one["estimate"]) for one in answers]
    low, high = ([float(one[end]) for one in answers] for end in ("low", "high"))
    with drawing(str(answers[0]["unit"]), "", height=0.9 + 0.3 * len(labels)) as (figure, axes):
        if statistic in _BARS:
            axes.barh(places, values, color=BLUE, alpha=0.35)
        else:
            axes.plot(values, places, color=BLUE, marker="o", linestyle="", markersize=5)
        if statistic == "effect":
            axes.axvline(float(_ratio(answers[0])), linestyle="--", color=INK, linewidth=1)
        axes.hlines(places, low, high, color=BLUE, linewidth=2)
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
        return svg(figure, title)
