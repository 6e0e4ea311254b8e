"""Listings of strategies, problems and data, each a list of plain objects, and `userdp explain KEY`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from simulations.config.keys import explained, having, values
from simulations.reports.explain import shown
from simulations.terminal import answer, complain
from strategies.core.recipe import guarantees
from strategies.registry import STRATEGIES
from userdp.data import POPULATIONS, PUBLIC_DATASETS
from userdp.data.synthetic.source import SyntheticData, synthetic_settings
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.sources import TableData, TableSource
from userdp.errors import BadInput
from userdp.problems.registry import PROBLEMS
from userdp.problems.settings import ProblemSettings

Entry = dict[str, Any]
COLUMNS = {
    "strategies": ("name", "unit", "summary"),
    "problems": ("name", "family", "summary", "certificate"),
    "data": ("name", "family", "users", "samples", "summary"),
}
"""Listing -> the columns of its overview."""
_UNKNOWN = (None, None, None)  # users, samples and license of data that are not public


def strategies(place: str | None = None) -> list[Entry]:
    """List every strategy that can be loaded, or the class at a place, with its paper and its guarantee."""
    return [
        {
            "name": strategy.about.name,
            "family": strategy.about.family,
            "paper": strategy.about.paper,
            "unit": list(strategy.about.units),
            "guarantee": " ".join(guarantees(strategy).split()),
            "cost": strategy.about.cost,
            "needs": strategy.about.needs,
            "summary": strategy.about.summary_line,
            "settings": _settings(strategy, ()),
        }
        for strategy in ([STRATEGIES[place]] if place else STRATEGIES.loaded()[0].values())
    ]


def problems() -> list[Entry]:
    """List every loss with its certificate."""
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


def data() -> list[Entry]:
    """List every source of users."""
    common = tuple(SyntheticData.model_fields)
    keys = ("name", "family", "summary", "source", "users", "samples", "license", "settings")
    rows: list[tuple[Any, ...]] = [
        (name, "synthetic", kind.summary, "made from the seed", *_UNKNOWN, _settings(synthetic_settings(name), common))
        for name, kind in POPULATIONS.loaded()[0].items()
    ]
    table = "any CSV or Parquet file with a user column"
    rows.append(("table", "table", table, "your file", *_UNKNOWN, _settings(TableData, ("kind",))))
    settings = _settings(TableSource, ("kind",))
    rows += [
        (one.name, "public", one.summary, one.source, one.users, one.samples, one.license, dict(settings))
        for one in PUBLIC_DATASETS.values()
    ]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _settings(model: Any, left_out: tuple[str, ...]) -> dict[str, str]:
    return {name: field.description or "" for name, field in model.model_fields.items() if name not in left_out}


def overview(what: str, entries: list[Entry]) -> Table:
    """Return a table with one row for each entry."""
    columns = COLUMNS[what]
    table = Table(*(Column(column, no_wrap=column == "name", overflow="fold") for column in columns), title=what)
    for each in entries:
        table.add_row(*(_cell(each[column]) for column in columns))
    table.caption = f"userdp {what} NAME shows everything about one"
    return table


def details(title: str, facts: Mapping[str, Any]) -> Table:
    """Return a table of everything about one thing."""
    table = Table(show_header=False, title=escape(title))
    for name, value in facts.items():
        if value not in (None, "", []):
            table.add_row(name, escape(_cell(value)))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(value) if isinstance(value, list) else shown(value)


def show(what: str, name: str | None, as_json: bool) -> None:
    """Print a listing (strategies, problems or data), or everything about one entry; BadInput if there is none."""
    place = None
    if what == "strategies":
        faults = STRATEGIES.loaded()[1]
        if name in faults:
            raise faults[name]
        for fault in faults.values():
            complain(str(fault))
        place = name if name is not None and STRATEGIES.is_place(name) else None
    entries = strategies(place) if what == "strategies" else problems() if what == "problems" else data()
    if name is not None and place is None:
        names = [entry["name"] for entry in entries]
        if name not in names:
            hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
            raise BadInput(f"{what} has no {name!r}{hint}")
        entries = [entries[names.index(name)]]
    facts = {key: value for key, value in entries[0].items() if key not in ("name", "settings")}
    one = name and details(entries[0]["name"], facts | entries[0]["settings"])
    answer(as_json, entries, lambda: Console().print(one or overview(what, entries)))


def explain(name: str, as_json: bool) -> None:
    """Print what a key of a configuration means, once for each meaning; BadInput if there is no such key."""
    found = [
        {
            "key": key.name,
            "meaning": key.meaning,
            "values": values(key.field).replace("`", ""),
            "default": key.default,
            "effect on privacy": key.effect.replace("`", ""),
            "kinds that have it": having(key),
            "example": key.example,
        }
        for key in explained(name)
    ]
    tables = [details(str(facts.pop("key")), facts) for facts in map(dict, found)]
    answer(as_json, found, lambda: Console().print(*tables, sep="\n"))
