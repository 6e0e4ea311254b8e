"""The worth of found facts for docs/find.md, from the results of research/finding.py."""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulations.finding.find import SECTIONS
from simulations.finding.settings import FindConfig, Weights

MEASURED = Path(__file__).resolve().parents[2] / "research" / "results" / "finding.json"


def sections() -> dict[str, str]:
    """Return the text of each section of the page, by name."""
    report = json.loads(MEASURED.read_text(encoding="utf-8"))
    return {"keys": _keys(), "models": _models(report["models"]), "quantiles": _quantiles(report["quantiles"])}


def _keys() -> str:
    found = [("seed", FindConfig.model_fields["seed"])]
    for name, section in SECTIONS.items():
        found += [(f"{name}.{key}", field) for key, field in section.model_fields.items() if key != "weights"]
    found += [(f"find.weights.{key}", field) for key, field in Weights.model_fields.items()]
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in found:
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        lines.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(lines)


def _models(rows: list[dict[str, Any]]) -> str:
    head = ("table", "people", "epsilon in all", "for facts", "R2, declared", "R2, found")
    head += ("ranges of the last split: declared -> found", "levels: declared -> found")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = [row["table"], f"{row['users']:,}", f"{row['epsilon']:g}", f"{row['for_facts']:g}"]
        cells += [f"{row['r2_declared']:.3f}", f"{row['r2_found']:.3f}"]
        cells += [_changes(row["declared_ranges"], row["found_ranges"])]
        cells += [_changes(row["declared_levels"], row["found_levels"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _changes(declared: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{column} {_shown(one)} -> {_shown(found.get(column, 'none'))}" for column, one in declared.items()
    )


def _shown(value: Any) -> str:
    return f"{value[0]:g} to {value[1]:g}" if isinstance(value, list) else str(value)


def _quantiles(rows: list[dict[str, float]]) -> str:
    lines = ["| quantile | epsilon | ours | OpenDP | ours / OpenDP |", f"|{'---|' * 5}"]
    for row in rows:
        theirs = f"{row['opendp']:.2f} +- {row['error']:.2f}"
        ratio = row["ours"] / row["opendp"]
        lines.append(f"| {row['share']:g} | {row['epsilon']:g} | {row['ours']:.2f} | {theirs} | {ratio:.2f} |")
    worst = max(row["ours"] / row["opendp"] for row in rows)
    verdict = (
        "Mean error of one choice among 2,000 users with one log-normal number each, at the same pure epsilon and on "
        "the same grid: the users between the quantile and the chosen bin (ours) or the chosen number (OpenDP's). Ours "
        f"is at most {worst:.2f} times OpenDP's."
    )
    return "\n".join([*lines, "", textwrap.fill(verdict, 120)])
