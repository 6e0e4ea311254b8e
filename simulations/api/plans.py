"""Plans on a terminal: the numbers of one, and many side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from simulations.reports.explain import NOTHING_PROMISED, show_promise, shown, shown_number
from simulations.runs.advice import Advice
from strategies.core.plan import Plan
from userdp.accounting.composition import promises_something

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
    show_promise(plan.guarantee.sentence(), plan.guarantee.assumptions, console)
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
    console.print("userdp plan FILE --set strategy.kind=NAME shows all numbers of one strategy.", highlight=False)
