"""The effect of hostile users for docs/byzantine.md, from the results of research/byzantine.py."""

import csv
import textwrap
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).resolve().parents[2] / "research" / "results"
MEASURED = RESULTS / "byzantine.csv"
Cells = Mapping[tuple[str, str, str, str], list[float]]
"""(task, strategy, attack, share of hostile users) -> progress of the model, one entry per seed."""


def section() -> str:
    """Return a table for each task with the worst attack of each share and its name."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cells: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        # A failed run leaves the initial model.
        cells[row["task"], row["strategy"], row["attack"], row["hostile"]].append(float(row["way"] or 0.0))
    parts = [part for task in dict.fromkeys(row["task"] for row in rows) for part in _task(task, cells)]
    return "\n\n".join([*parts, _standing(cells), _guarantees(rows)])


def _task(task: str, cells: Cells) -> tuple[str, str]:
    strategies = sorted({key[1] for key in cells if key[0] == task})
    shares = sorted({key[3] for key in cells if key[0] == task}, key=float)
    head = ["strategy", *(f"{float(share):.0%} hostile" for share in shares)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for strategy in strategies:
        worst = [_worst(cells, task, strategy, share) for share in shares]
        lines.append(f"| `{strategy}` | {' | '.join(worst)} |")
    return f"### {task}", "\n".join(lines)


def _medians(cells: Cells, task: str, strategy: str, share: str) -> dict[str, float]:
    """Return the median over seeds of each attack."""
    return {
        key[2]: median(progress)
        for key, progress in cells.items()
        if (key[0], key[1], key[3]) == (task, strategy, share)
    }


def _worst(cells: Cells, task: str, strategy: str, share: str) -> str:
    progress = _medians(cells, task, strategy, share)
    attack = min(progress, key=lambda name: progress[name])
    cell = f"{progress[attack]:.2f}"
    cell = f"**{cell}**" if progress[attack] < 0 else cell
    return cell if attack == "none" else f"{cell} ({attack.replace('_', ' ')})"


def _standing(cells: Cells) -> str:
    """List the strategies that stay above the initial model under every attack, and the others."""
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
    text = f"No attack puts the median model of {_listed(kept)} below the initial model. " if kept else ""
    text += f"Some attack does so to {_listed(broken)}." if broken else ""
    return textwrap.fill(text, 120)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _guarantees(rows: list[dict[str, str]]) -> str:
    """Return what is promised to honest users; a row also names its accountant and the server's part."""
    promises = sorted({row["guarantee"].partition(", by ")[0] for row in rows})
    return f"Whatever the others answer, honest users have {' or '.join(promises)}."


def votes() -> str:
    """Return rows of research/votes.py; bold where votes are nearer than both clips that are not tuned."""
    with (RESULTS / "votes.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["hostile"] in {"0", "0.3"}]
    methods = ("vote_descent", "dp_fed_sgd", "adaptive_clipping", "tuned")
    head = ["users", "columns", "spread", "hostile", *(f"`{name}`" for name in methods[:-1]), "tuned, not private"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [f"{float(row[name]):.3f}" for name in methods]
        if float(row["vote_descent"]) < min(float(row[name]) for name in methods[1:-1]):
            cells[0] = f"**{cells[0]}**"
        where = [f"{int(row['users']):,}", row["columns"], row["spread"], f"{float(row['hostile']):.0%}"]
        lines.append(f"| {' | '.join([*where, *cells])} |")
    return "\n".join(lines)
