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
            ", ".join(filter(None, (one["column"], f"where {one['where']}" if one.get("where") else None))),
            one["level"] or "",
            "drowned in noise" if one["estimate"] is None else shown(float(one["estimate"])),
            *(shown(float(one[end])) for end in ("low", "high")),
            one["unit"],
        )
        for one in answers
    ]


def remedy(answers: Answers) -> str:
    """Return what helps against the answers that are not known; '' if all are."""
    if all(one["estimate"] is not None for one in answers):
        return ""
    from userdp.queries.answers import REMEDY  # noqa: PLC0415 -- loads PyArrow, which training does not need

    return f"Where noise hides an answer: {REMEDY}."


def show_answers(name: str, answers: Answers, console: Console) -> None:
    """Print the answers of a query as a table."""
    table = Table(
        "statistic", "of", "", "estimate", "interval of 95 %", "unit", title=f"{name}: answers", caption=remedy(answers)
    )
    for statistic, column, level, estimate, low, high, unit in answer_rows(answers):
        table.add_row(statistic, column, level, estimate, f"{low} to {high}", unit)
    console.print(table)
