"""The rankings of a comparison as plain text, for a terminal, a log, or a file that standard output goes to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulations.comparison.oracle import ORACLE
from simulations.comparison.report import costs_together, ranked_points
from simulations.reports.explain import percent, shown
from simulations.reports.standing import NON_PRIVATE

_HEAD = ("strategy", "median", "min to max")
_LAST = "way to no privacy (private)"


def rankings(directory: Path) -> str:
    """One table for every point of the grid, the best strategy first, and what all runs cost together.

    Raises:
        BadInput: the directory does not hold a comparison's files.
    """
    return "\n\n".join([*map(_ranking, ranked_points(directory)), *costs_together(directory)])


def _ranking(point: dict[str, Any]) -> str:
    head = (*_HEAD, f"beside the {point['zero_name']}", _LAST)
    lines = [head, *(_line(one, point) for one in point["ranking"])]
    for name, value, way in point["references"]:
        told = f"{name} (private)" if name == NON_PRIVATE else name
        lines.append((told, _number(value, point), "", "", "-" if way is None else percent(way)))
    seeds = max((one["seeds"] for one in point["ranking"]), default=0)
    over = f"median over {seeds} seed{'' if seeds == 1 else 's'}"
    table = f"{point['index']}: {point['metric']}, {over}, smaller is better\n{_aligned(lines)}"
    return f"{table}\n  {ORACLE}" if any(one["oracle"] for one in point["ranking"]) else table


def _line(one: dict[str, Any], point: dict[str, Any]) -> tuple[str, ...]:
    """A strategy's cells of the table."""
    plain = one["oracle"] or one["holds"] is not False
    name = one["strategy"] if plain else f"{one['strategy']} (no privacy)"
    if one["median"] is None:
        return name, "-", "-", f"no result: {one['failed']} failed", "-"
    beside = _beside(one["median"], point["zero"]) + (f"; {one['failed']} failed" if one["failed"] else "")
    spread = f"{shown(one['low'])} to {shown(one['high'])}"
    return name, _number(one["median"], point), spread, beside, "-" if one["closed"] is None else percent(one["closed"])


def _beside(median: float, zero: float | None) -> str:
    if zero is None:
        return "not measured"
    return "better" if median < zero else "as good, no better" if median == zero else "WORSE"


def _number(value: float | None, point: dict[str, Any]) -> str:
    return "-" if value is None else shown(value, point["digits"])


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(f"  {line}".rstrip() for line in padded)
