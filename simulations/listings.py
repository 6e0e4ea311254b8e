"""What there is: strategies, problems, data, each as a list of plain objects."""

from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from simulations.reports.explain import shown
from simulations.terminal import complain, print_json
from strategies.core.recipe import documentation
from strategies.registry import STRATEGIES
from userdp.data import POPULATIONS, PUBLIC_DATASETS
from userdp.data.synthetic.source import SyntheticData, synthetic_settings
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.sources import TableColumns, TableData
from userdp.errors import BadInput
from userdp.problems.registry import PROBLEMS
from userdp.problems.settings import ProblemSettings


def strategies(place: str | None = None) -> list[dict[str, Any]]:
    """Every strategy that can be loaded, or the class at a place, with its paper and what it promises."""
    return [
        {
            "name": strategy.about.name,
            "family": strategy.about.family,
            "paper": strategy.about.paper,
            "unit": list(strategy.about.units),
            "guarantee": documentation(strategy),
            "cost": strategy.about.cost,
            "needs": strategy.about.needs,
            "summary": strategy.about.summary_line,
            "settings": _settings(strategy, ()),
        }
        for strategy in ([STRATEGIES[place]] if place else STRATEGIES.loaded()[0].values())
    ]


def problems() -> list[dict[str, Any]]:
    """Every loss with what is certified about it."""
    return [
        {
            "name": name,
            "family": section.family,
            "summary": section.summary,
            "certificate": section.certificate,
            "settings": _settings(section, tuple(ProblemSettings.model_fields)),
        }
        for name, section in PROBLEMS.loaded()[0].items()
    ]


def data() -> list[dict[str, Any]]:
    """Every source of users."""
    common = tuple(SyntheticData.model_fields)
    synthetic = [
        {
            "name": name,
            "family": "synthetic",
            "summary": kind.summary,
            "source": "made from the seed",
            "users": None,
            "samples": None,
            "license": None,
            "settings": _settings(synthetic_settings(name), common),
        }
        for name, kind in POPULATIONS.items()
    ]
    table = {
        "name": "table",
        "family": "table",
        "summary": "any CSV or Parquet file with a user column",
        "source": "your file",
        "users": None,
        "samples": None,
        "license": None,
        "settings": _settings(TableData, ("kind",)),
    }
    public = [
        {
            "name": entry.name,
            "family": "public",
            "summary": entry.summary,
            "source": entry.source,
            "users": entry.users,
            "samples": entry.samples,
            "license": entry.license,
            "settings": _settings(TableColumns, ("kind",)),
        }
        for entry in PUBLIC_DATASETS.values()
    ]
    return [*synthetic, table, *public]


def entry(what: str, entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The entry of that name.

    Raises:
        BadInput: there is none.
    """
    names = [entry["name"] for entry in entries]
    if name not in names:
        hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
        raise BadInput(f"{what} has no {name!r}{hint}")
    return entries[names.index(name)]


def _settings(model: Any, left_out: tuple[str, ...]) -> dict[str, str]:
    """Setting -> description."""
    return {name: field.description or "" for name, field in model.model_fields.items() if name not in left_out}


def overview(what: str, entries: list[dict[str, Any]], columns: tuple[str, ...]) -> Table:
    """One row an entry."""
    table = Table(*(Column(column, no_wrap=column == "name", overflow="fold") for column in columns), title=what)
    for each in entries:
        table.add_row(*(_cell(each[column]) for column in columns))
    table.caption = f"userdp {what} NAME shows all about one"
    return table


def details(one: dict[str, Any]) -> Table:
    """Everything about one entry, its settings last."""
    table = Table(show_header=False, title=one["name"])
    for key, value in one.items():
        if key not in ("name", "settings"):
            table.add_row(key, _cell(value))
    for setting, description in one["settings"].items():
        table.add_row(setting, escape(description))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(value) if isinstance(value, list) else shown(value)


def show(what: str, columns: tuple[str, ...], name: str | None, as_json: bool) -> None:
    """Print a list of what there is, or everything about one.

    Args:
        what: strategies, problems or data.
        columns: of the list, for people.
        name: of the one; None for all.
        as_json: for programs.

    Raises:
        BadInput: there is none of that name.
    """
    if what == "strategies":
        faults = STRATEGIES.loaded()[1]
        if name in faults:
            raise faults[name]
        for fault in faults.values():
            complain(str(fault))
    own = name if what == "strategies" and name is not None and STRATEGIES.is_place(name) else None
    found: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "strategies": partial(strategies, own),
        "problems": problems,
        "data": data,
    }
    entries: list[dict[str, Any]] = found[what]()
    if name is not None and own is None:
        entries = [entry(what, entries, name)]
    if as_json:
        print_json(entries)
    elif name is None:
        Console().print(overview(what, entries, columns))
    else:
        Console().print(details(entries[0]))
