"""The tables of docs/query.md, from research/results/queries.json, which research/queries.py writes."""

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "research" / "results" / "queries.json"


def section() -> str:
    """Return the coverage of intervals, errors beside OpenDP's, and the time of ten statistics."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = [
        "| asked | users | samples of a user | neighbours | intervals that hold the truth |",
        "|---|---|---|---|---|",
    ]
    for row in found["coverage"]:
        most, relation = row["most_samples"], row["relation"].replace("_", " ")
        samples = "1" if most == 1 else f"1 to {most}"
        lines.append(f"| {row['asked']} | {row['users']:,} | {samples} | {relation} | {row['mean']:.1%} |")
    lines += ["", "| asked alone, of 5,000 users | beside | error over theirs |", "|---|---|---|"]
    for row in found["errors"]:
        other = "OpenDP" if row["other"] == "OpenDP" else "sums of cells"
        lines.append(f"| {row['asked'].replace('_', ' ')} | {other} | {row['ratio']:.2f} |")
    lines += ["", f"Ten statistics of 100,000 users in memory took {found['seconds']:.1f} s on two shared processors."]
    return "\n".join(lines)
