"""The confusion matrix of a model with several classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from userdp.data.tables.cells import cell_text


@dataclass(frozen=True)
class ConfusionRow:
    """An observed class: its name, (count, percent) by predicted class, and its recall in percent if it has samples."""

    name: str
    cells: list[tuple[int, int]]
    recall: int | None


def confusion_table(counts: Sequence[Sequence[int]] | None, columns: Mapping[str, Any]) -> list[ConfusionRow]:
    """Make a row for each class from "confusion" of result.json, (K, K); no rows without counts.

    ``columns`` are the declarations of the table's columns; classes without declared levels are numbers.
    """
    if not counts:
        return []
    rows = []
    levels = columns.get("target_levels") or range(len(counts))
    for number, (level, row) in enumerate(zip(levels, counts, strict=True)):
        total = sum(row)
        shares = [round(100 * count / total) if total else 0 for count in row]
        cells = list(zip(row, shares, strict=True))
        rows.append(ConfusionRow(cell_text(level), cells, shares[number] if total else None))
    return rows
