"""The answers to a query: rows of tables, and charts."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from simulations.reports.explain import shown
from simulations.reports.pictures import Picture
from simulations.reports.plots import BLUE, drawing, svg

Answers = Sequence[Mapping[str, Any]]  # "answers" of result.json
_BARS = {"histogram": "share", "counts": "number"}  # statistics drawn as bars, with the name of their axis
_POINTS = ("mean", "group_means")
_BAR = "A line reaches over the interval of 95 %."


def answer_rows(answers: Answers) -> list[tuple[str, ...]]:
    """Return (statistic, column, level, estimate, low, high, unit) of each answer, in words."""
    return [
        (
            one["statistic"].replace("_", " "),
            one["column"] or "",
            one["level"] or "",
            "drowned in noise" if one["estimate"] is None else shown(float(one["estimate"])),
            *(shown(float(one[end])) for end in ("low", "high")),
            one["unit"],
        )
        for one in answers
    ]


def show_answers(name: str, answers: Answers, console: Console) -> None:
    """Print the answers of a query as a table."""
    table = Table("statistic", "of", "", "estimate", "interval of 95 %", "unit", title=f"{name}: answers")
    for statistic, column, level, estimate, low, high, unit in answer_rows(answers):
        table.add_row(statistic, column, level, estimate, f"{low} to {high}", unit)
    console.print(table)


def answer_pictures(answers: Answers) -> list[Picture]:
    """Draw histograms and counts as bars, and means as points with their intervals."""
    found = []
    for (statistic, column), group in groupby(answers, lambda one: (one["statistic"], one["column"])):
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
        axes.hlines(places, low, high, color=BLUE, linewidth=2)
        axes.set_yticks(places, labels)
        axes.invert_yaxis()
        return svg(figure, title)
