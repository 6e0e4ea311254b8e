"""report.html of an audit and its chart, made only from the files of the audit's directory."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simulations.audit.many_runs import LESSONS
from simulations.records.run_directory import read_json, write_text, write_whole
from simulations.reports.plots import BLUE, GREEN, GREY, LEGEND, ORANGE, drawing, svg
from simulations.reports.report import fill
from userdp.audit.trade_off import Approximate, Gaussian

AUDIT, CURVE, CONFIG = "audit.json", "trade-off.csv", "config.toml"
Points = tuple[list[float], list[float]]  # measured false positive rates and false negative rates


def render_audit(directory: Path) -> Path:
    """Write report.html and return its path.

    An audit of one strategy also gets its chart as trade-off.svg and trade-off.png.
    """
    values = read_json(directory / AUDIT)
    several = isinstance(values, list)
    entries, curves = values if several else [values], dict[str, Points]()
    if (directory / CURVE).is_file():
        for name, own in pd.read_csv(directory / CURVE).groupby("strategy"):
            curves[str(name)] = own["false_positives"].tolist(), own["false_negatives"].tolist()
    images = () if several else tuple(directory / f"trade-off.{kind}" for kind in ("svg", "png"))
    audits = [_shown(one, curves.get(one["strategy"], ([], [])), images) for one in entries if "refused" not in one]
    content = {
        **{name: entries[0][name] for name in ("name", "seed", "versions", "command")},
        "audits": audits,
        "refusals": [one for one in entries if "refused" in one],
        "several": several,
        "refuted": [one["strategy"] for one in audits if one["refuted"]],
        "unit": "sample" if {one["unit"] for one in audits} == {"sample"} else "user",
        "config": (directory / CONFIG).read_text(encoding="utf-8"),
    }
    path = directory / "report.html"
    write_text(path, fill("audit.html.md", content))
    return path


def _shown(one: Mapping[str, Any], points: Points, images: tuple[Path, ...]) -> dict[str, Any]:
    success = [
        (f"guess something about a {one['unit']}", float(rate), most, one["unrefuted_guess_success"][rate])
        for rate, most in one["most_guess_success"].items()
    ]
    membership = one["most_membership_accuracy"], one["unrefuted_membership_accuracy"]
    return dict(one) | {
        "success": [("tell two equally likely data sets apart", 0.5, *membership), *success],
        "chart": _chart(one, points, images),
        "points": bool(points[0]),
        "tested": one["runs"] - one["runs"] // LESSONS,
    }


def _chart(one: Mapping[str, Any], points: Points, images: tuple[Path, ...]) -> str:
    """Draw the trade-off between an attacker's two errors; save it as each of the images and return it as SVG."""
    pairs = (one["claimed_mu"], one["claimed_epsilon"]), (one["measured_mu"], one["measured_epsilon"])
    claim, unrefuted = (Approximate(epsilon, one["delta"]) if mu is None else Gaussian(mu) for mu, epsilon in pairs)
    alarms = np.linspace(0, 1, 401)
    with drawing("false positives", "false negatives", height=4.0) as (figure, axes):
        axes.fill_between(alarms, 0, claim.false_negatives(alarms), color=BLUE, alpha=0.12)
        axes.plot(alarms, claim.false_negatives(alarms), color=BLUE, label="claimed")
        axes.plot(alarms, unrefuted.false_negatives(alarms), color=GREEN, linestyle="--", label="not refuted")
        axes.plot([0, 1], [1, 0], color=GREY, linestyle=":", label="blind")
        if points[0]:
            axes.plot(*points, color=ORANGE, marker="o", markersize=2.5, linestyle="none", label="measured")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.legend(**(LEGEND | {"ncols": 4}))
        for path in images:
            write_whole(path, partial(figure.savefig, dpi=160, format=path.suffix[1:]))
        return svg(figure, f"errors of an attacker on {one['strategy']}")
