"""Parts of shipped configurations, and the plan of one, for pages that explain them."""

from pathlib import Path

from simulations import load_config
from simulations import plan as plan_of
from simulations.reports.explain import shown
from strategies import STRATEGIES
from strategies.core.plan import explained

CONFIGS = Path(__file__).resolve().parents[2] / "simulations" / "configs"
FIRST = ("rounds", "cohort", "users", "users_needed", "noise", "signal")


def table() -> str:
    """Return the declaration of a table in a shipped configuration."""
    return excerpt("robust-table.toml", "[data]", "[privacy]")


def comparison() -> str:
    """Return the budget, grid and strategies of a shipped comparison."""
    return excerpt("compare-quick.toml", "[privacy]", "# What clipping")


def plan(file: str = "quickstart.toml") -> str:
    """Return the numbers of a shipped configuration's plan, and its guarantee."""
    planned = plan_of(load_config(CONFIGS / file))
    meanings = explained(STRATEGIES[planned.strategy].about)
    numbers = {name: planned.stated(name) for name in FIRST} | dict(planned.numbers)
    rows = [f"| `{name}` | {shown(value)} | {meanings.get(name, '')} |" for name, value in numbers.items()]
    promise = f"The guarantee is {planned.guarantee.sentence()}. It assumes:"
    assumptions = "\n".join(f"- {one}" for one in planned.guarantee.assumptions)
    return "\n".join(["| number | value | meaning |", "|---|---|---|", *rows, "", promise, "", assumptions])


def excerpt(file: str, start: str, end: str) -> str:
    """Return the lines of a configuration from one that begins with ``start`` to before one that begins with ``end``.

    Raises:
        ValueError: there is no such line.
    """
    lines = (CONFIGS / file).read_text(encoding="utf-8").splitlines()
    places = [[at for at, line in enumerate(lines) if line.startswith(mark)] for mark in (start, end)]
    if not all(places):
        raise ValueError(f"{file} has no line that begins with {start!r}, or none with {end!r}")
    return "\n".join(["```toml", *lines[places[0][0] : places[1][0]], "```"]).replace("\n\n```", "\n```")
