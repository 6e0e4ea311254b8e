"""The table of docs/drill.md, from what the drill of tests/simulations/drill wrote down."""

import csv
from pathlib import Path

MEASURED = Path(__file__).resolve().parents[2] / "research" / "results" / "drill.csv"


def section() -> str:
    """Return a row for each fault, in the order in which they struck, and how long all of it took."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [
        "| fault | how | lasted | rounds that began meanwhile | resumed | well after | the run |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        resumed = "no" if row["resumed"] == "0" else "once" if row["resumed"] == "1" else f"{row['resumed']} times"
        cells = [row["fault"], row["done"], f"{row['lasted']} s", row["rounds"], resumed, f"{row['well']} s"]
        lines.append(f"| {' | '.join(cells)} | {row['run']}: {row['end']} |")
    return "\n".join([*lines, "", f"All of it took {float(rows[0]['minutes']):.0f} minutes on two cores."])
