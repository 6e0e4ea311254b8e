"""The answers to a query as rows of tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from simulations.reports.explain import shown

Answers = Sequence[Mapping[str, Any]]  # "answers" of result.json


def answer_rows(answers: Answers) -> list[tuple[str, ...]]:
    """Return (statistic, column, level, estimate, low, high, unit) of each answer, in words."""
    return [
        (
            one["statistic"].replace("_", " "),
            one["column"] or "",
            one["level"] or "",
            "drowned in noise" if one["estimate"] is None else shown(float(one["estimate"])),
            *("any" if one[end] is None else shown(float(one[end])) for end in ("low", "high")),  # a ratio has no bound
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
