"""report.html of an audit, made from the files of its directory and nothing else."""

import csv
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulations.audit.chart import TradeOffChart
from simulations.audit.many_runs import LESSONS
from simulations.audit.page import PAGE
from simulations.reports.report import fill
from userdp.audit.trade_off import Approximate, Gaussian

AUDIT, CURVE, CONFIG = "audit.json", "trade-off.csv", "config.toml"
Points = tuple[list[float], list[float]]
"""Measured false positives, and false negatives."""


def is_audit(directory: Path) -> bool:
    """Whether a directory is one of an audit."""
    return (directory / AUDIT).is_file()


def render_audit(directory: Path) -> Path:
    """Write report.html, and of one strategy the chart alone as trade-off.svg and trade-off.png.

    Returns:
        The path of report.html.
    """
    values = json.loads((directory / AUDIT).read_text(encoding="utf-8"))
    entries = values if isinstance(values, list) else [values]
    curves = _curves(directory)
    audits = [_shown(one, curves) for one in entries if "refused" not in one]
    content = {
        **{name: entries[0][name] for name in ("name", "seed", "versions", "command")},
        "audits": audits,
        "refusals": [one for one in entries if "refused" in one],
        "several": isinstance(values, list),
        "refuted": [one["strategy"] for one in audits if one["refuted"]],
        "unit": "sample" if {one["unit"] for one in audits} == {"sample"} else "user",
        "config": (directory / CONFIG).read_text(encoding="utf-8"),
    }
    if not content["several"]:
        for kind in ("svg", "png"):
            _chart(audits[0], curves).save(directory / f"trade-off.{kind}")
    path = directory / "report.html"
    path.write_text(fill(PAGE, content), encoding="utf-8")
    return path


def _shown(one: Mapping[str, Any], curves: Mapping[str, Points]) -> dict[str, Any]:
    """What the page shows of one audit."""
    success = [
        (f"guess something about a {one['unit']}", float(rate), most, one["unrefuted_guess_success"][rate])
        for rate, most in one["most_guess_success"].items()
    ]
    membership = one["most_membership_accuracy"], one["unrefuted_membership_accuracy"]
    return dict(one) | {
        "success": [("tell two equally likely data sets apart", 0.5, *membership), *success],
        "chart": _chart(one, curves).element(),
        "points": bool(curves[one["strategy"]][0]),
        "proved_share": one["measured_epsilon"] / one["claimed_epsilon"],
        "right": one["correct"] / one["guesses"],
        "tested": one["runs"] - one["runs"] // LESSONS,
    }


def _chart(one: Mapping[str, Any], curves: Mapping[str, Points]) -> TradeOffChart:
    pairs = (one["claimed_mu"], one["claimed_epsilon"]), (one["measured_mu"], one["measured_epsilon"])
    claimed, left = (Approximate(epsilon, one["delta"]) if mu is None else Gaussian(mu) for mu, epsilon in pairs)
    return TradeOffChart(one["strategy"], claimed, left, *curves[one["strategy"]])


def _curves(directory: Path) -> Mapping[str, Points]:
    """Strategy -> its measured errors."""
    found: defaultdict[str, Points] = defaultdict(lambda: ([], []))
    if (directory / CURVE).is_file():
        with (directory / CURVE).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                for column, values in zip(("false_positives", "false_negatives"), found[row["strategy"]], strict=True):
                    values.append(float(row[column]))
    return found
