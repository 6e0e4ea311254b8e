"""What `userdp run` prints at its end."""

import json
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from simulations.reports.explain import show_promise
from simulations.reports.loading import cell_counts
from simulations.reports.standing import NON_PRIVATE, about_constant, references, standing
from simulations.reports.uncertainty import about_errors, errors_of, shown_with_error
from simulations.reports.units import in_target_units, ordered


def show_outcome(result: dict[str, Any], directory: Path, *, private: bool) -> None:
    """Print what a person wants to know.

    Args:
        result: the content of result.json.
        directory: of the run.
        private: whether also to tell what the data's holder alone may know.
    """
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
        told = shown_with_error([column.get(name) for column in columns], errors.get(name))
        table.add_row(name.replace("_", " "), *told, style=style, end_section=[name] == first[-1:])
    console = Console()
    console.print(table)
    for kind, line in about_errors(result, errors, [*first, *rest]):
        console.print(line, highlight=False, style={"soft": "dim", "warning": "yellow"}[kind])
    found = standing(result)
    console.print(f"[{found.colour}]{found.title}[/{found.colour}]: {found.told}", highlight=False)
    if (origin := about_constant(result)) is not None:
        console.print(origin, style="dim", highlight=False)
    if private:
        _show_loading(json.loads((directory / "data.json").read_text(encoding="utf-8")), console)
    promised = json.loads((directory / "guarantee.json").read_text(encoding="utf-8"))
    show_promise(promised["sentence"], promised["assumptions"], console)
    console.print(f"Report: {directory / 'report.html'}", highlight=False, soft_wrap=True)


def _show_loading(data: dict[str, Any], console: Console) -> None:
    """What became of a table's cells: exact, like the column of training without privacy."""
    if data["table_private"] is None:
        return
    console.print("[bold]The table[/bold] (private: exact counts, not covered by the guarantee):")
    for line in cell_counts(data["table_private"]):
        console.print(f"  {line}", highlight=False, markup=False)
