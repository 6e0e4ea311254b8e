"""Runs and plans on a terminal: what a run ended with, the numbers of one plan, and many plans side by side."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from simulations.records.run_directory import read_json
from simulations.reports.answers import show_answers
from simulations.reports.explain import (
    NOTHING_PROMISED,
    assumptions_of,
    cell_counts,
    held_out_rows,
    show_promise,
    shown,
    shown_number,
)
from simulations.reports.standing import NON_PRIVATE, Usable, about_constant, references, standing
from simulations.reports.units import about_errors, errors_of, in_target_units, metric_table
from simulations.runs.advice import Advice
from strategies.core.plan import Plan
from userdp.accounting.composition import promises_something
from userdp.accounting.guarantee import Guarantee

_CHANGES = {"replace_one": "replaced", "add_or_remove": "added or removed"}
_FIRST = ("rounds", "cohort", "users", "users_needed", "noise", "signal")


def show_plan(plan: Plan, values: Mapping[str, Any], meanings: Mapping[str, str]) -> None:
    """Print every number of a plan, its plain ``values`` and their ``meanings``, its guarantee and its warnings."""
    rows: dict[str, Any] = {name: plan.stated(name) for name in _FIRST}
    rows |= {"pass_probability": values["pass_probability"]} if values["pass_probability"] is not None else {}
    forecast = {name: value for name, value in (values["forecast"] or {}).items() if value is not None}
    rows |= forecast | dict(values["numbers"])
    if not promises_something(rows.get("replace_one_delta", 0.0), plan.users):
        rows["replace_one_epsilon"] = rows["replace_one_delta"] = NOTHING_PROMISED
    table = Table("number", "value", "meaning", title=f"{plan.strategy}: the plan")
    for name, value in rows.items():
        table.add_row(name, "no limit" if value is None else shown_number(name, value), meanings.get(name, ""))
    console = Console()
    console.print(table)
    show_promise(plan.guarantee, console)
    for warning in plan.warnings:
        console.print(f"[yellow]Warning.[/yellow] {escape(warning)}", highlight=False)


def show_advice(found: Sequence[Advice]) -> None:
    """Print strategies side by side, the best prediction first, and the reasons of those that refuse."""
    planned = [each for each in found if each.plan is not None]
    start = next((each.as_dict()["start_excess"] for each in planned if each.predicted is not None), None)
    table = Table(
        "",
        Column("strategy", no_wrap=True),
        Column("predicted excess risk", justify="right", min_width=9),
        Column("noise", justify="right", no_wrap=True),
        Column("rounds", justify="right", no_wrap=True),
        Column("one user is", min_width=9),
        Column("the server", min_width=7),
        title="strategies by predicted excess risk",
    )
    if start is not None:
        table.caption = (
            f"(*) the file's own settings; all others by default. The initial model's excess risk is {shown(start)} at "
            "most. Predicted for a loss equally curved in all directions: if columns differ in scale, only auto finds "
            "coordinates in which they do not. One epsilon protects less if neighbours add or remove a user than if "
            "they replace one: compare risks within one relation"
        )
    for place, each in enumerate(planned, start=1):
        values = each.as_dict()
        table.add_row(
            str(place),
            each.strategy + (" (*)" if each.configured else ""),
            "cannot tell" if each.predicted is None else shown(each.predicted),
            "" if values["model_noise"] is None else shown(values["model_noise"]),
            shown(values["rounds"]),
            _CHANGES.get(values["relation"] or "", ""),
            "trusted" if each.trusting else "need not be",
            style="red" if each.predicted is not None and start is not None and each.predicted >= start else "",
        )
    console = Console()
    console.print(table)
    for each in found:
        if each.plan is None:
            console.print(f"[bold]{each.strategy}[/bold] refuses: {escape(each.reason)}", highlight=False)
    for line in assumptions_of({each.strategy: each.plan.guarantee for each in found if each.plan is not None}):
        console.print(line, highlight=False, markup=False)
    console.print("userdp plan FILE --set strategy.kind=NAME shows all numbers of one strategy.", highlight=False)


def show_outcome(result: dict[str, Any], directory: Path, *, private: bool) -> None:
    """Print metrics and verdict of a run, or its answers, and the guarantee.

    With ``private`` it also prints the figures for the data's holder alone.
    """
    console = Console()
    if "answers" in result:
        show_answers(result["name"], result["answers"], console)
    else:
        _show_metrics(result, directory, console, private=private)
    table_private = read_json(directory / "data.json")["table_private"] if private else None
    if table_private is not None:
        console.print("[bold]The table[/bold] (private: exact counts, not covered by the guarantee):")
        for line in cell_counts(table_private):
            console.print(f"  {line}", highlight=False, markup=False)
    show_promise(Guarantee.from_dict(read_json(directory / "guarantee.json")), console)
    if (directory / "report.html").exists():
        console.print(f"Report: {directory / 'report.html'}", highlight=False, soft_wrap=True)


def _show_metrics(result: dict[str, Any], directory: Path, console: Console, *, private: bool) -> None:
    import pandas as pd  # noqa: PLC0415 -- slow to import, and a plan reads no rounds

    section = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))["data"]
    measured = {"this run": result["metrics"], **references(result)}
    if private and result["reference_private"]["non_private"]:
        measured[f"{NON_PRIVATE} (private)"] = result["reference_private"]["non_private"]
    columns = {name: metrics | in_target_units(metrics, section) for name, metrics in measured.items()}
    errors = errors_of(result, section)
    console.print(metric_table(f"{result['name']}: {result['strategy']}", columns, errors))
    for kind, line in about_errors(result, errors, columns["this run"]):
        console.print(line, highlight=False, style={"soft": "dim", "warning": "yellow"}[kind])
    if covered := held_out_rows(result):
        table = Table("metric", "this run", "interval of 95 %", title="covered by the guarantee")
        for name, value, low, high, _ in covered:
            table.add_row(name, value, f"{low} to {high}")
        console.print(table)
    verdict = standing(result, Usable.of(pd.read_parquet(directory / "rounds.parquet")))
    colour = {"good": "green", "bad": "red"}.get(verdict.kind, "yellow")
    console.print(f"[{colour}]{verdict.title}[/{colour}]: {verdict.explanation}", highlight=False)
    if (origin := about_constant(result)) is not None:
        console.print(origin, style="dim", highlight=False)
