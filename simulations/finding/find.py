"""``userdp find`` in Python, and what it shows.

>>> import numpy as np, pandas as pd
>>> from userdp import find
>>> people = np.repeat(np.arange(2000), 3)
>>> table = pd.DataFrame({"person": people, "age": 20.0 + people % 60, "ward": np.where(people % 3, "A", "B")})
>>> found = find(
...     table, user="person", all_users=2000, numbers=["age"], words=["ward"], epsilon=2.0, delta=1e-6
... )
>>> found.settings["categorical"]
{'ward': ['A', 'B']}
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulations.account.entering import refusal
from simulations.api.arguments import as_in_a_file
from simulations.config.places import absolute_path
from simulations.finding.facts import COSTS, Found, find_facts
from simulations.finding.plan import FindPlan
from simulations.finding.settings import FindConfig, FindPrivacy, FindSection, TableSection, load_find, parse_find
from simulations.records.run_directory import plain, writing
from simulations.reports.explain import show_promise
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.frames import FRAME, Tabular, table_file
from userdp.errors import BadInput
from userdp.settings import Section
from userdp.tracebacks import without_internals

SECTIONS: dict[str, type[Section]] = {"data": TableSection, "find": FindSection, "privacy": FindPrivacy}
"""Name of a section of the file -> its keys."""


@without_internals
def find(data: Tabular, **settings: Any) -> Found:
    """Find privately what a run has to declare about a table, like ``userdp find``.

    Args:
        data: a DataFrame or other Arrow table, the path of a CSV or Parquet file, or the path of a file of
            ``userdp find`` (TOML).
        **settings: the keys of that file by their names: ``user``, ``all_users``, ``numbers``, ``words``, ``dates``,
            ``target``, ``max_samples``, ``share``, ...; ``epsilon``, ``delta``, ``relation``, ``noise``, ``account``;
            ``seed``.

    Returns:
        The facts, as ``settings`` for `train`, and their guarantee, whose cost adds to that of every run.

    Raises:
        BadInput: a setting that cannot be used, a budget that is too small, or more than the account has left, or a
            table that does not fit.
    """
    if isinstance(data, str | Path) and Path(data).suffix.lower() == ".toml":
        if settings:
            raise BadInput(f"{next(iter(settings))} is given beside a file, which has all settings: change it there")
        return find_facts(load_find(Path(data)))
    if isinstance(data, str | Path):
        return find_facts(parse_find(_sections(settings, absolute_path(data))))
    config = parse_find(_sections(settings, FRAME))
    with table_file(data, config.columns) as path:
        there = config.data.model_copy(update={"path": str(path)})
        return find_facts(config.model_copy(update={"data": there}))


def _sections(settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    raw: dict[str, Any] = {"data": {"path": path}, "find": {}, "privacy": {}}
    homes = {key: name for name, section in SECTIONS.items() for key in section.model_fields}
    for key, value in settings.items():
        if value is None:
            continue  # not given
        if key == "seed":
            raw[key] = value
        elif key in homes and key != "path":
            raw[homes[key]][key] = as_in_a_file(value)
        else:
            raise BadInput(f"there is no setting {key!r}{did_you_mean(key, [*homes, 'seed'])}")
    return raw


def declared(config: FindConfig, found: Found) -> str:
    """Return the [data] section of a run's file, with what it cost in its first lines."""
    section = {"kind": "table", "path": config.data.path, **found.settings}
    lines = [*str(found.guarantee).splitlines(), COSTS]
    comments = "".join(f"# {line}\n" for line in [*lines, *found.notes])
    return f"{comments}\n{tomli_w.dumps({'data': section})}"


def find_into(output: Path, path: Path, overrides: Sequence[str] = ()) -> Found:
    """Find what a file of ``userdp find`` asks for, and write the [data] section into a new file.

    Raises `BadInput` also for an ``output`` that exists, before data are read: its facts have been paid for.
    """
    if output.exists():
        raise BadInput(
            f"--output {output} exists, and its facts have been paid for: use them, or give another --output"
        )
    with writing(f"--output {output}:", "choose another"):
        file = open(output, "x", encoding="utf-8", opener=_for_its_owner)  # noqa: SIM115 -- before the budget is spent
    try:
        with file:
            found = find_facts(config := load_find(path, overrides))
            file.write(declared(config, found))
    except BaseException:
        output.unlink()
        raise
    return found


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def foreseen(path: Path, overrides: Sequence[str] = ()) -> Found:
    """Return what is known of a search before it opens the table: its guarantee and its numbers, and no facts."""
    plan = FindPlan(load_find(path, overrides))
    asked = plan.config.privacy
    refused = None if asked.account is None else refusal(asked.accounts, asked.account, plan.entry)
    notes = () if refused is None else (f"this search would be refused: {refused}",)
    return Found({}, plan.guarantee, notes, plan.numbers)


def values(found: Found) -> dict[str, Any]:
    """Return the facts as plain values, for JSON."""
    return {
        "data": plain(found.settings),
        "guarantee": found.guarantee.as_dict(),
        "notes": [*found.notes],
        "numbers": dict(found.numbers),
    }


def show(found: Found, path: Path) -> None:
    """Print the facts, their cost, and the file that has them; without facts, the numbers of the search."""
    console, table = Console(), Table("fact", "column", "value", title="found, to be declared")
    for row in found.rows:
        table.add_row(*map(escape, row))
    if not found.settings:
        table = Table("number", "value", title="what the budget allows to find")
        for name, number in found.numbers.items():
            table.add_row(name, f"{number:.3g}")
    console.print(table)
    show_promise(found.guarantee, console)
    console.print(f"  {COSTS}", highlight=False)
    for note in found.notes:
        console.print(f"[yellow]Note.[/yellow] {escape(note)}", highlight=False)
    if found.settings:
        console.print(f"The section data of a run's file: {path}", highlight=False, markup=False, soft_wrap=True)
