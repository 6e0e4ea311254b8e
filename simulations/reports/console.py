"""The output of `userdp run` at its end."""

import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console

from simulations.records.run_directory import read_json
from simulations.reports.explain import cell_counts, show_promise
from simulations.reports.standing import NON_PRIVATE, about_constant, references, standing
from simulations.reports.units import about_errors, errors_of, in_target_units, metric_table


def show_outcome(result: dict[str, Any], directory: Path, *, private: bool) -> None:
    """Print metrics, verdict and guarantee of a run; with ``private`` also the figures for the data's holder alone."""
    section = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))["data"]
    measured = {"this run": result["metrics"], **references(result)}
    if private and result["reference_private"]["non_private"]:
        measured[f"{NON_PRIVATE} (private)"] = result["reference_private"]["non_private"]
    columns = {name: metrics | in_target_units(metrics, section) for name, metrics in measured.items()}
    errors, console = errors_of(result, section), Console()
    console.print(metric_table(f"{result['name']}: {result['strategy']}", columns, errors))
    for kind, line in about_errors(result, errors, columns["this run"]):
        console.print(line, highlight=False, style={"soft": "dim", "warning": "yellow"}[kind])
    verdict = standing(result)
    colour = {"good": "green", "bad": "red"}.get(verdict.kind, "yellow")
    console.print(f"[{colour}]{verdict.title}[/{colour}]: {verdict.explanation}", highlight=False)
    if (origin := about_constant(result)) is not None:
        console.print(origin, style="dim", highlight=False)
    table_private = read_json(directory / "data.json")["table_private"] if private else None
    if table_private is not None:
        console.print("[bold]The table[/bold] (private: exact counts, not covered by the guarantee):")
        for line in cell_counts(table_private):
            console.print(f"  {line}", highlight=False, markup=False)
    promised = read_json(directory / "guarantee.json")
    show_promise(promised["sentence"], promised["assumptions"], console)
    if (directory / "report.html").exists():
        console.print(f"Report: {directory / 'report.html'}", highlight=False, soft_wrap=True)
