"""What loading a table came to, in words, for whoever holds the data: exact counts, which no guarantee covers."""

from collections.abc import Mapping
from typing import Any

from simulations.reports.explain import shown

_KINDS = {
    "clipped": "cells clipped at loading into the declared range of their column",
    "unknown_levels": "cells that hold none of the declared levels of their column",
    "unusable": "cells that hold nothing a loss could use, whose samples weigh nothing",
    "imputed": "cells that were missing and count as the value declared for them",
}
"""Field of `userdp.data.load_report.LoadReport`, by column -> what it counts."""


def cell_counts(table: Mapping[str, Any]) -> list[str]:
    """How many cells were clipped, unknown and unusable, in all and for each column that has some.

    Args:
        table: "table_private" of data.json: of training and held-out users together.
    """
    samples, steps, lines = table["samples"], table.get("steps", {}), []
    for kind, told in _KINDS.items():
        if kind not in table:
            continue
        counts = {column: count for column, count in table[kind].items() if count}
        columns = ", ".join(
            f"{column}: {shown(count)} of {shown(steps.get(column, samples))}" for column, count in counts.items()
        )
        lines.append(f"{shown(sum(counts.values()))} {told}" + (f" ({columns})" if columns else ""))
    return lines
