"""`userdp list`: strategies, problems, data and settings, each a list of plain objects."""

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
_UNKNOWN = (None, None, None)  # users, samples and license of data that are not public


def show(what: str, name: str | None, as_json: bool) -> None:
    """Print a listing, or everything about its entries of a name; BadInput if there is no such listing or entry."""
    if what not in LISTINGS:
        raise BadInput(f"userdp list has no {what!r}{_nearest(what, LISTINGS)}")
    listing, columns = LISTINGS[what]
    entries = listing(name)
    tables = [overview(what, columns, entries)] if name is None else map(details, entries)
    answer(as_json, entries, lambda: Console().print(*tables, sep="\n"))


def strategies(name: str | None = None) -> list[Entry]:
    """List every strategy that can be loaded, or one of them, or the class at a place."""
    loaded, faults = STRATEGIES.loaded()
    if name in faults:
        raise faults[name]
    for fault in faults.values():
        complain(str(fault))
    if name is not None and STRATEGIES.is_place(name):
        loaded = {name: STRATEGIES[name]}
    entries = {
        kind: {
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
        for kind, strategy in loaded.items()
    }
    return _chosen("strategies", name, entries)


def problems(name: str | None = None) -> list[Entry]:
    """List every loss with its certificate, or one of them."""
    entries = {
        kind: {
            "name": kind,
            "family": section.family,
            "summary": section.summary,
            "certificate": section.certificate,
            "settings": _settings(section, tuple(ProblemSettings.model_fields)),
        }
        for kind, section in PROBLEMS.loaded()[0].items()
    }
    return _chosen("problems", name, entries)


def data(name: str | None = None) -> list[Entry]:
    """List every source of users, or one of them."""
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
    return _chosen("data", name, {str(row[0]): dict(zip(keys, row, strict=True)) for row in rows})


def settings(name: str | None = None) -> list[Entry]:
    """List every key of a configuration, or those of a name, each once for each of its meanings."""
    return [
        {
            "name": key.name,
            "meaning": key.meaning,
            "values": values(key.field).replace("`", ""),
            "default": key.default,
            "effect on privacy": key.effect.replace("`", ""),
            "kinds that have it": having(key),
        }
        for key in explained(name)
    ]


LISTINGS = {
    "strategies": (strategies, ("name", "unit", "summary")),
    "problems": (problems, ("name", "family", "summary", "certificate")),
    "data": (data, ("name", "family", "users", "samples", "summary")),
    "settings": (settings, ("name", "default", "meaning")),
}
"""Word of `userdp list` -> the function that lists it, and the columns of its overview."""


def _settings(model: Any, left_out: tuple[str, ...]) -> dict[str, str]:
    return {name: field.description or "" for name, field in model.model_fields.items() if name not in left_out}


def _chosen(what: str, name: str | None, entries: Mapping[str, Entry]) -> list[Entry]:
    if name is None:
        return list(entries.values())
    if name not in entries:
        raise BadInput(f"{what} has no {name!r}{_nearest(name, entries)}")
    return [entries[name]]


def _nearest(word: str, words: Mapping[str, object]) -> str:
    return did_you_mean(word, words) or f"; there are {', '.join(words)}"


def overview(what: str, columns: tuple[str, ...], entries: list[Entry]) -> Table:
    """Return a table with one row for each entry."""
    table = Table(*(Column(column, no_wrap=column == "name", overflow="fold") for column in columns), title=what)
    for each in entries:
        table.add_row(*(_cell(each[column]) for column in columns))
    table.caption = f"userdp list {what} NAME shows everything about one"
    return table


def details(entry: Entry) -> Table:
    """Return a table of everything about one entry."""
    table = Table(show_header=False, title=escape(entry["name"]))
    for name, value in (entry | entry.get("settings", {})).items():
        if name not in ("name", "settings") and value not in (None, "", []):
            table.add_row(name, escape(_cell(value)))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(value) if isinstance(value, list) else shown(value)
