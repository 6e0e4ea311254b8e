"""Coefficients for people: a table for the terminal, cells and a forest plot for the report."""

import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from simulations.records.coefficients import HIDDEN, Rows, ratio_of
from simulations.reports.explain import shown
from simulations.reports.plots import BLUE, INK, drawing, svg

NONE_RELEASED = (
    "These are the coefficients of the released model, which aims at predictions; nothing is known of their errors. "
    "For standard errors train with strategy.coefficients = 0.5, which sets half of the budget aside for them."
)
_MOST, _LEAST, _NAMED = 40, 1.6, 10  # Bars of a plot; inches of one of few bars; names of those without a bar
_LARGEST_LOG = 700.0  # Of a ratio that is shown; beyond 709 there is no ``exp``


def coefficient_cells(rows: Rows) -> list[tuple[str, str, str, str, str]]:
    """Return (name, unit, estimate, standard error, interval) of each coefficient."""
    return [
        (
            row["coefficient"],
            row["unit"],
            shown(row["estimate"], 3) + _ratios(row, [row["estimate"]], f"{ratio_of(row)} "),
            "-" if row["standard_error"] is None else shown(row["standard_error"], 2),
            HIDDEN
            if row["interval"] is None
            else " to ".join(shown(end, 3) for end in row["interval"]) + _ratios(row, row["interval"]),
        )
        for row in rows
    ]


def _ratios(row: dict[str, Any], logs: list[float], told: str = "") -> str:
    """Return these logarithms as ratios, if the coefficient's ``exp`` is one and a number, which units may prevent."""
    if not ratio_of(row) or max(logs) > _LARGEST_LOG:
        return ""
    return f" ({told}{' to '.join(shown(math.exp(one), 3) for one in logs)})"


def show_coefficients(rows: Rows, console: Console) -> None:
    """Print the coefficients with their intervals; without any, say how to get them."""
    released = any(row["interval"] is not None for row in rows)
    headers = ("standard error", "interval of 95 %") if released else ()
    table = Table("coefficient", "unit", Column("estimate", justify="right"), *headers)
    for name, unit, *numbers in coefficient_cells(rows):
        table.add_row(escape(name), escape(unit), *numbers[: 1 + len(headers)])
    console.print(table)
    if not released:
        console.print(NONE_RELEASED, highlight=False)


def _spanned(rows: Rows) -> Rows:
    return [row for row in rows if row["interval"] is not None and row["span"] > 0]


def not_drawn(rows: Rows) -> str:
    """Say which coefficients `forest_chart` leaves out, and why; '' if none but an intercept."""
    hidden, beyond = [row["coefficient"] for row in rows if row["interval"] is None], len(_spanned(rows)) - _MOST
    names = ", ".join([*hidden[:_NAMED], *([f"{len(hidden) - _NAMED} more"] if len(hidden) > _NAMED else [])])
    return " ".join(
        [
            *([f"Not drawn, because {HIDDEN}: {names}."] if hidden else []),
            *([f"{beyond} more are in the table alone."] if beyond > 0 else []),
        ]
    )


def forest_chart(rows: Rows) -> str:
    """Draw each coefficient with its interval, over the span of its column; '' if there is nothing to draw."""
    known = _spanned(rows)[:_MOST]
    if not known:
        return ""
    places = range(len(known), 0, -1)
    with drawing("change over the declared span", "", height=max(_LEAST, 0.8 + 0.26 * len(known))) as (figure, axes):
        axes.axvline(0.0, color=INK, linewidth=1, alpha=0.5)
        for place, row in zip(places, known, strict=True):
            low, high = (row["span"] * end for end in row["interval"])
            axes.plot([low, high], [place, place], color=BLUE, linewidth=2)
            axes.plot(row["span"] * row["estimate"], place, color=BLUE, marker="o", markersize=4)
        axes.set_yticks(list(places), [row["coefficient"] for row in known])
        return svg(figure, "coefficients with intervals")
