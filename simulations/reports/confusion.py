"""Which classes a model takes for which, as a table whose cells are the darker the more of a class are in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from userdp.data.tables.cells import cell_text


@dataclass(frozen=True)
class ConfusionRow:
    """Samples of one class.

    Attributes:
        name: of the class.
        cells: (count, percent of the class) by the class that they are taken for.
        found: percent of the class that are taken for it; None where nobody is of it.
    """

    name: str
    cells: list[tuple[int, int]]
    found: int | None


def confusion_table(counts: Sequence[Sequence[int]] | None, columns: Mapping[str, Any]) -> list[ConfusionRow]:
    """A row for each class; nothing without counts.

    Args:
        counts: K rows of K, "confusion" of result.json.
        columns: what the table's columns are declared to be, for the classes' names; numbers where there are none.
    """
    if not counts:
        return []
    declared = columns.get("target_levels") or range(len(counts))
    rows = []
    for number, (level, own) in enumerate(zip(declared, counts, strict=True)):
        total = sum(own)
        shares = [round(100 * count / total) if total else 0 for count in own]
        rows.append(
            ConfusionRow(cell_text(level), list(zip(own, shares, strict=True)), shares[number] if total else None)
        )
    return rows
