"""The answers to a query as rows of tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from simulations.reports.explain import shown

Answers = Sequence[Mapping[str, Any]]  # "answers" of result.json


HEADINGS = ("statistic", "of", "", "estimate", "interval of 95 %", "unit")


def answer_rows(answers: Answers) -> list[tuple[str, ...]]:
    """Return each answer in words, below `HEADINGS`; a test has no interval."""
    return [
        (
            one["statistic"].replace("_", " "),
            ", ".join(filter(None, (one["column"], f"where {one['where']}" if one.get("where") else None))),
            one["level"] or "",
            "drowned in noise" if one["estimate"] is None else shown(float(one["estimate"])),
            _interval(one["low"], one["high"]),
            one["unit"],
        )
        for one in answers
    ]


def _interval(low: float | None, high: float | None) -> str:
    """Return an interval in words; an end that is not known is any number, and a test has none of both."""
    if low is None and high is None:
        return ""
    return " to ".join("any" if end is None else shown(float(end)) for end in (low, high))


def remedy(answers: Answers) -> str:
    """Return what helps against the answers that are not known; '' if all are."""
    if all(one["estimate"] is not None for one in answers):
        return ""
    from userdp.queries.answers import REMEDY  # noqa: PLC0415 -- loads PyArrow, which training does not need

    return f"Where noise hides an answer: {REMEDY}."


def show_answers(name: str, answers: Answers, console: Console) -> None:
    """Print the answers of a query as a table."""
    table = Table(*HEADINGS, title=f"{name}: answers", caption=remedy(answers))
    for row in answer_rows(answers):
        table.add_row(*row)
    console.print(table)
