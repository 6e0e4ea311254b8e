"""Coverage of private evaluation for docs/evaluate.md, from research/results/evaluation.csv."""

import csv
from pathlib import Path

_RESULTS = Path(__file__).resolve().parents[2] / "research" / "results" / "evaluation.csv"


def section() -> str:
    """Return a table: how often intervals of 95 % hold the truth."""
    with _RESULTS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| held-out users | epsilon | loss | accuracy | auc |", "|---|---|---|---|---|"]
    for row in rows:
        shares = " | ".join(f"{float(row[name]):.1%}" for name in ("log_loss", "accuracy", "auc"))
        lines.append(f"| {int(row['users']):,} | {float(row['epsilon']):g} | {shares} |")
    fewest = min(int(row["repetitions"]) for row in rows)
    return "\n".join([*lines, "", f"{fewest:,} repetitions each; `python research/evaluation.py` measures them again."])
