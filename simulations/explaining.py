"""`userdp explain KEY`: one setting of a configuration, from its declaration."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulations.config.keys import Key, explained, having, values
from simulations.terminal import print_json


def explain(name: str, as_json: bool) -> None:
    """Print what a key means, once for each meaning that it has.

    Raises:
        BadInput: no configuration has such a key.
    """
    found = [_facts(key) for key in explained(name)]
    if as_json:
        print_json(found)
        return
    for facts in found:
        table = Table(show_header=False, title=escape(str(facts["key"])))
        for label, value in facts.items():
            if label != "key" and value:
                table.add_row(label, escape(", ".join(value) if isinstance(value, list) else str(value)))
        Console().print(table)


def _facts(key: Key) -> dict[str, str | list[str]]:
    return {
        "key": key.name,
        "meaning": key.meaning,
        "values": values(key.field).replace("`", ""),
        "default": key.default,
        "effect on privacy": key.effect.replace("`", ""),
        "kinds that have it": having(key),
        "example": key.example,
    }
