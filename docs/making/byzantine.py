"""What docs/byzantine.md says that hostile users do, made from what research/byzantine.py measured."""

import csv
import textwrap
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

MEASURED = Path(__file__).resolve().parents[2] / "research" / "results" / "byzantine.csv"
Cells = Mapping[tuple[str, str, str, str], list[float]]
"""(task, strategy, attack, share of hostile users) -> how far models went, a seed each."""


def section() -> str:
    """A table a task: the worst attack of each share, and which one that was."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cells: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        # A run that fails leaves the initial model.
        cells[row["task"], row["strategy"], row["attack"], row["hostile"]].append(float(row["way"] or 0.0))
    parts = [part for task in dict.fromkeys(row["task"] for row in rows) for part in _task(task, cells)]
    return "\n\n".join([*parts, _standing(cells), _guarantees(rows)])


def _task(task: str, cells: Cells) -> tuple[str, str]:
    strategies = sorted({key[1] for key in cells if key[0] == task})
    shares = sorted({key[3] for key in cells if key[0] == task}, key=float)
    head = ["strategy", *(f"{float(share):.0%} hostile" for share in shares)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for strategy in strategies:
        found = [_worst(cells, task, strategy, share) for share in shares]
        lines.append(f"| `{strategy}` | {' | '.join(found)} |")
    return f"### {task}", "\n".join(lines)


def _medians(cells: Cells, task: str, strategy: str, share: str) -> dict[str, float]:
    """Attack -> the median over seeds."""
    return {key[2]: median(ways) for key, ways in cells.items() if (key[0], key[1], key[3]) == (task, strategy, share)}


def _worst(cells: Cells, task: str, strategy: str, share: str) -> str:
    ways = _medians(cells, task, strategy, share)
    attack = min(ways, key=lambda name: ways[name])
    told = f"{ways[attack]:.2f}"
    told = f"**{told}**" if ways[attack] < 0 else told
    return told if attack == "none" else f"{told} ({attack.replace('_', ' ')})"


def _standing(cells: Cells) -> str:
    """Who stays above doing nothing, and how the robust family does."""
    tasks = dict.fromkeys(key[0] for key in cells)
    strategies = sorted({key[1] for key in cells})
    kept, broken = [], []
    for strategy in strategies:
        worst = min(
            min(_medians(cells, task, strategy, share).values())
            for task in tasks
            for share in {key[3] for key in cells if key[:2] == (task, strategy)}
        )
        (kept if worst >= 0 else broken).append(f"`{strategy}`")
    told = f"No attack of any share puts the median model of {_listed(kept)} below the initial one. " if kept else ""
    told += f"Of {_listed(broken)} some attack does." if broken else ""
    return textwrap.fill(told, 120)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _guarantees(rows: list[dict[str, str]]) -> str:
    told = {row["strategy"]: row["guarantee"] for row in rows}
    lines = ["| strategy | what it promises to the honest, whatever the others answer |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {told[name]} |" for name in sorted(told))])
