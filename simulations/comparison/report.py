"""report.html and report.md of a comparison, made from four of its files; no cell's directory is read."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.comparison import ranking
from simulations.comparison.plots import dot_chart, rounds_chart, sweep_chart
from simulations.comparison.table import ROUNDS, sentences
from simulations.records.run_directory import write_text
from simulations.reports.explain import METRICS
from simulations.reports.report import fill, promise

_MOST_COURSES = 4  # most points with a chart by round each; of more points, only some at the tightest budget have one


def render_comparison(directory: Path) -> Path:
    """Write report.html and report.md, and return the former's path; BadInput without a comparison's files."""
    content = _content(directory)
    write_text(directory / "report.md", fill("comparison.md", content))
    path = directory / "report.html"
    write_text(path, fill("comparison.html.md", content))
    return path


def _content(directory: Path) -> dict[str, Any]:
    frame, summary, keys = ranking.read(directory)
    labels = summary["labels"]
    courses = _courses(pd.read_parquet(directory / ROUNDS), keys)
    points = [
        point | {"course": courses.get((point["problem"], *point["values"].values()), {})}
        for point in ranking.ranked_points(frame, summary, keys)
    ]
    chosen = _chosen(points)
    titled = [(f"{point['index']}: {point['metric']} by round", point) for point in chosen]
    return {
        "summary": summary,
        "points": points,
        "overall": ranking.overall(points, labels),
        "zero": " or the ".join(dict.fromkeys(point["zero_name"] for point in points)),
        "charts": _charts(points, keys, labels),
        "courses": [(title, svg) for title, point in titled if (svg := rounds_chart(point, labels, title))],
        "all_courses": len(chosen) == len(points),
        "metrics": [
            (name.replace("_", " "), METRICS.get(name, "")) for name in sorted(frame["main_metric"].dropna().unique())
        ],
        "asked": [
            {"unit": unit, "epsilon": sorted(rows["epsilon"].unique()), "delta": sorted(rows["delta"].unique())}
            for unit, rows in frame.groupby("unit")
        ],
        "guarantees": _guarantees(summary, frame),
        "together": sentences(summary),
        "errors": [
            (strategy, reason, len(rows))
            for (strategy, reason), rows in frame.groupby(["strategy", "error_private"], sort=False)
        ],
        "foresight": ranking.foresight(frame, keys),
        "cells": len(frame),
        "failed": int(frame["error_private"].notna().sum()),
        "seconds": float(frame["seconds"].sum()),
        "config": (directory / "comparison.toml").read_text(encoding="utf-8"),
    }


def _courses(rounds: pd.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]]:
    """Return (problem, *grid values) -> strategy -> median, minimum and maximum over seeds of every measured round."""
    found: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for (strategy, *group), cells in rounds.groupby(["strategy", "problem", *keys], sort=False):
        # A run that ended early released its last model, which the comparison uses.
        values = cells.pivot_table(index="round", columns="seed", values="value", aggfunc="last").ffill()
        spread = pd.DataFrame({"median": values.median(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)})
        found.setdefault(tuple(group), {})[str(strategy)] = spread.reset_index().to_dict("records")  # type: ignore[assignment]
    return found


def _chosen(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Choose the points shown by round: all, or each problem's first and last one at the tightest budget."""
    if len(points) <= _MOST_COURSES:
        return list(points)
    chosen = []
    for problem in dict.fromkeys(point["problem"] for point in points):
        own = [point for point in points if point["problem"] == problem]
        tightest = min(point["epsilon"] for point in own)
        ends = [point for point in own if point["epsilon"] == tightest]
        chosen += [ends[0], *ends[1:][-1:]]
    return chosen


def _charts(points: Sequence[dict[str, Any]], keys: Sequence[str], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Draw the main metric against every numeric key with the others fixed, or one chart for each point without one.

    Returns (caption, SVG) of each chart.
    """
    numeric = [key for key in keys if all(type(point["values"][key]) in (int, float) for point in points)]
    charts = []
    for key in numeric:
        for held, line in _lines(points, key):
            title = f"{held}: {line[0]['metric']} against {ranking.short(key)}"
            charts.append((title, sweep_chart(line, key, ranking.short(key), labels, title)))
    if not numeric:
        charts = [(f"{point['index']}: {point['metric']}", dot_chart(point)) for point in points]
    return [chart for chart in charts if chart[1]]


def _lines(points: Sequence[dict[str, Any]], key: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        others = ranking.in_words({name: value for name, value in point["values"].items() if name != key})
        found.setdefault(", ".join([point["problem"], *others]), []).append(point)
    for title, line in found.items():
        yield title, sorted(line, key=lambda point: float(point["values"][key]))


def _guarantees(summary: Mapping[str, Any], frame: pd.DataFrame) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for label in summary["labels"]:
        entry = summary["strategies"][label]
        given = entry["guarantee"]
        holds = given is not None and given["holds"]
        shared = {
            "promise": None if given is None else promise(given),
            "adversary": given["adversary"] if holds else None,
            "holds": holds,
        }
        member = _member(label, entry, frame[frame["strategy"] == label])
        found.setdefault(tuple(shared.values()), shared | {"strategies": []})["strategies"].append(member)
    return list(found.values())


def _member(label: str, entry: Mapping[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    given, kept = entry["guarantee"], rows[rows["holds"].eq(other=True)]
    grouped = kept[kept["unit"].eq("user")].dropna(subset=["group", "sample_level_epsilon"])
    other = kept[kept["relation"].ne("replace_one")]
    samples, epsilon = grouped["group"], grouped["sample_level_epsilon"]
    return {
        "label": label,
        "kind": entry["kind"],
        "summary": entry["summary"],
        "assumptions": given["assumptions"] if given is not None and given["holds"] else [],
        "replace_one": None if other.empty else ranking.replaced(other.iloc[0]),
        "group": None if grouped.empty else (int(samples.iloc[0]), float(epsilon.iloc[0])),
    }
