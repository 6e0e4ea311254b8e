"""The app of research/quickstart for docs/drop-in.md: what privacy changes in it, and what it costs."""

import csv
import difflib
import statistics
from pathlib import Path

_RESEARCH = Path(__file__).resolve().parents[2] / "research"
_PAIRS = (("digits/server_app.py", "digits/private_server_app.py"), ("pyproject.toml", "private.toml"))


def changes() -> list[str]:
    """Return the lines that go (-) and come (+) where the app becomes private."""
    folder, found = _RESEARCH / "quickstart", []
    for before, after in _PAIRS:
        lines = ((folder / name).read_text(encoding="utf-8").splitlines() for name in (before, after))
        found += [line for line in difflib.unified_diff(*lines, n=0, lineterm="") if line[:2] not in ("--", "++", "@@")]
    return found


def difference() -> str:
    """Return these lines as a block."""
    return "\n".join(["```udiff", *changes(), "```"])


def accuracies() -> str:
    """Return a table of accuracies, from research/results/drop_in.csv."""
    with (_RESEARCH / "results" / "drop_in.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| strategy | epsilon | accuracy: mean | lowest | highest |", "|---|---|---|---|---|"]
    for method, epsilon in dict.fromkeys((row["method"], row["epsilon"]) for row in rows):
        own = [float(row["accuracy"]) for row in rows if (row["method"], row["epsilon"]) == (method, epsilon)]
        cells = (statistics.mean(own), min(own), max(own))
        lines.append(f"| `{method}` | {epsilon or 'none'} | {' | '.join(f'{cell:.1%}' for cell in cells)} |")
    seeds = len({row["seed"] for row in rows})
    return "\n".join([*lines, "", f"{seeds} seeds each; `python research/drop_in.py TABLE` measures them again."])
