"""Charts of the answers to a query: bars, or points with intervals, of effects beside a line where there is none."""

from itertools import groupby

from simulations.reports.answers import Answers
from simulations.reports.pictures import Picture
from simulations.reports.plots import BLUE, INK, drawing, svg

_BARS = ("histogram", "counts")  # statistics drawn as bars
_POINTS = ("mean", "group_means", "effect")
_BAR = "A line reaches over the interval of 95 %."


def answer_pictures(answers: Answers) -> list[Picture]:
    """Draw histograms and counts as bars, and means and effects as points with their intervals."""
    found = []
    in_order = sorted(answers, key=lambda one: one["unit"] == "ratio")  # which has an axis of its own
    for (statistic, column, _), group in groupby(in_order, lambda one: (one["statistic"], one["column"], one["unit"])):
        known = [one for one in group if one["estimate"] is not None]
        if known and statistic in (*_BARS, *_POINTS):
            words = f"{statistic.replace('_', ' ')} of {column}"
            found.append(Picture(words[0].upper() + words[1:], _chart(words, statistic, known), _BAR))
    return found


def _chart(title: str, statistic: str, answers: Answers) -> str:
    labels = [str(one["level"] or one["column"]) for one in answers]
    places, values = range(len(labels)), [float(one["estimate"]) for one in answers]
    low, high = ([float(one[end]) for one in answers] for end in ("low", "high"))
    with drawing(str(answers[0]["unit"]), "", height=0.9 + 0.3 * len(labels)) as (figure, axes):
        if statistic in _BARS:
            axes.barh(places, values, color=BLUE, alpha=0.35)
        else:
            axes.plot(values, places, color=BLUE, marker="o", linestyle="", markersize=5)
        if statistic == "effect":
            axes.axvline(float(answers[0]["unit"] == "ratio"), linestyle="--", color=INK, linewidth=1)
        axes.hlines(places, low, high, color=BLUE, linewidth=2)
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
        return svg(figure, title)
