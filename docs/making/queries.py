"""The tables of docs/query.md, from research/results/queries.json, which research/queries.py writes."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "research" / "results" / "queries.json"


def section() -> str:
    """Return the coverage of intervals, errors beside OpenDP's, and the time of ten statistics."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    asked = dict.fromkeys(row["asked"] for row in found["coverage"])
    held = {(row["asked"], *_case(row)): f"{row['mean']:.1%}" for row in found["coverage"]}
    cases = {_case(row): _named(row) for row in found["coverage"]}
    lines = [f"| asked of | {' | '.join(cases.values())} |", "|---" * (1 + len(cases)) + "|"]
    lines += [f"| {name} | {' | '.join(held.get((name, *case), '') for case in cases)} |" for name in asked]
    lines += ["", "| asked alone, of 5,000 users | beside | error over theirs |", "|---|---|---|"]
    for row in found["errors"]:
        other = "OpenDP" if row["other"] == "OpenDP" else "sums of cells"
        lines.append(f"| {row['asked'].replace('_', ' ')} | {other} | {row['ratio']:.2f} |")
    lines += ["", f"Ten statistics of 100,000 users in memory took {found['seconds']:.1f} s on two shared processors."]
    return "\n".join(lines)


def _case(row: dict[str, Any]) -> tuple[int, int, str]:
    return row["users"], row["most_samples"], row["relation"]


def _named(row: dict[str, Any]) -> str:
    samples = "" if row["most_samples"] == 1 else f", 1 to {row['most_samples']} samples"
    return f"{row['users']:,} users{samples}{'' if row['relation'] == 'replace_one' else ', add or remove'}"
