"""The output of `userdp run` at its end."""

import json
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from simulations.reports.explain import cell_counts, show_promise
from simulations.reports.standing import NON_PRIVATE, about_constant, references, standing
from simulations.reports.units import about_errors, errors_of, in_target_units, ordered, shown_with_error


def show_outcome(result: dict[str, Any], directory: Path, *, private: bool) -> None:
    """Print metrics, verdict and guarantee of a run; with ``private`` also the figures for the data's holder alone."""
    section = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))["data"]
    measured = {"this run": result["metrics"], **references(result)}
    if private and result["reference_private"]["non_private"]:
        measured[f"{NON_PRIVATE} (private)"] = result["reference_private"]["non_private"]
    columns = [metrics | in_target_units(metrics, section) for metrics in measured.values()]
    table = Table("metric", *measured, title=f"{result['name']}: {result['strategy']}")
    first, rest = ordered(columns[0])
    errors = errors_of(result, section)
    for name in [*first, *rest]:
        style = "" if name in first else "dim"
        cells = shown_with_error([column.get(name) for column in columns], errors.get(name))
        table.add_row(name.replace("_", " "), *cells, style=style, end_section=[name] == first[-1:])
    console = Console()
    console.print(table)
    for kind, line in about_errors(result, errors, [*first, *rest]):
        console.print(line, highlight=False, style={"soft": "dim", "warning": "yellow"}[kind])
    verdict = standing(result)
    colour = {"good": "green", "bad": "red"}.get(verdict.kind, "yellow")
    console.print(f"[{colour}]{verdict.title}[/{colour}]: {verdict.explanation}", highlight=False)
    if (origin := about_constant(result)) is not None:
        console.print(origin, style="dim", highlight=False)
    table_private = (
        json.loads((directory / "data.json").read_text(encoding="utf-8"))["table_private"] if private else None
    )
    if table_private is not None:
        console.print("[bold]The table[/bold] (private: exact counts, not covered by the guarantee):")
        for line in cell_counts(table_private):
            console.print(f"  {line}", highlight=False, markup=False)
    promised = json.loads((directory / "guarantee.json").read_text(encoding="utf-8"))
    show_promise(promised["sentence"], promised["assumptions"], console)
    console.print(f"Report: {directory / 'report.html'}", highlight=False, soft_wrap=True)
