"""Charts of the answers to a query."""

from itertools import groupby

from simulations.reports.answers import Answers
from simulations.reports.pictures import Picture
from simulations.reports.plots import BLUE, drawing, svg

_BARS = ("histogram", "counts", "shares")  # statistics drawn as bars
_SUBJECT = ("statistic", "column", "where")
_POINTS = ("mean", "group_means")
_BAR = "A line reaches over the interval of 95 %."


def answer_pictures(answers: Answers) -> list[Picture]:
    """Draw histograms, counts and shares as bars, and means as points with their intervals."""
    found = []
    for (statistic, column, where), group in groupby(answers, lambda one: [one.get(key) for key in _SUBJECT]):
        known = [one for one in group if one["estimate"] is not None]
        if known and statistic in (*_BARS, *_POINTS):
            words = f"{statistic.replace('_', ' ')} of {column}{f' where {where}' if where else ''}"
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
        axes.hlines(places, low, high, color=BLUE, linewidth=2)
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
        return svg(figure, title)
