"""Plans on a terminal: the numbers of one, and many side by side."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from simulations.reports.explain import NOTHING_PROMISED, show_promise, shown, shown_number
from simulations.reports.minutes import Clock, MinuteLines
from simulations.runs.advice import Advice
from simulations.runs.advice import Progress as OnPlan
from strategies.core.plan import Plan
from userdp.accounting.composition import promises_something

_CHANGES = {"replace_one": "replaced", "add_or_remove": "added or removed"}
_FIRST = ("rounds", "cohort", "users", "users_needed", "noise", "signal")


def show_plan(plan: Plan, values: Mapping[str, Any], meanings: Mapping[str, str]) -> None:
    """Print every number of a plan, what it promises and what speaks against it.

    Args:
        plan: to show.
        values: its plain values.
        meanings: name of a number -> what it means.
    """
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


@contextmanager
def planning_bar(clock: Clock = time.monotonic) -> Iterator[OnPlan]:
    """What is called before each plan: a bar on a terminal, a line a minute elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = MinuteLines(clock)
        yield lambda _, done, of: lines.tell(done, of, lambda: f"{done} of {of} strategies planned")
        return
    columns = (TextColumn("planning"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("", total=None)

        def step(strategy: str, done: int, of: int) -> None:
            bar.update(task, completed=done, total=of, description=strategy)

        yield step


def show_advice(found: Sequence[Advice]) -> None:
    """Print strategies side by side, the best prediction first, and why others refuse."""
    start = next((each.as_dict()["start_excess"] for each in found if each.predicted is not None), None)
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
            "most. Predicted for a loss equally curved in all directions: where columns differ in scale, only auto "
            "finds such coordinates. One epsilon protects less where neighbours add or remove a user than where they "
            "replace one: compare risks within one relation"
        )
    planned = [each for each in found if each.plan is not None]
    for place, each in enumerate(planned, start=1):
        values = each.as_dict()
        predicted = "cannot tell" if each.predicted is None else shown(each.predicted)
        noise = "" if values["model_noise"] is None else shown(values["model_noise"])
        name = each.strategy + (" (*)" if each.configured else "")
        style = "red" if each.predicted is not None and start is not None and each.predicted >= start else ""
        server = "trusted" if each.trusting else "need not be"
        relation = _CHANGES.get(values["relation"] or "", "")
        table.add_row(str(place), name, predicted, noise, shown(values["rounds"]), relation, server, style=style)
    console = Console()
    console.print(table)
    for each in found:
        if each.plan is None:
            console.print(f"[bold]{each.strategy}[/bold] refuses: {escape(each.reason)}", highlight=False)
    console.print("userdp plan FILE --set strategy.kind=NAME shows all numbers of one.", highlight=False)
