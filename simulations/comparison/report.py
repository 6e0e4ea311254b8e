"""report.html and report.md of a comparison, made from four of its files alone: no cell's directory is read."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.comparison.foresight import foresight
from simulations.comparison.oracle import ORACLE
from simulations.comparison.page import MARKDOWN, PAGE
from simulations.comparison.plots import dot_chart, rounds_chart, sweep_chart
from simulations.comparison.table import ROUNDS, SUMMARY, TABLE
from simulations.comparison.together import sentences
from simulations.reports.explain import METRICS, digits_apart, shown, shown_claim, shown_promise
from simulations.reports.report import fill, promise
from simulations.reports.standing import CONSTANT, INITIAL, NON_PRIVATE
from userdp.errors import BadInput

_NEEDED = (TABLE, ROUNDS, SUMMARY, "comparison.toml")
_NO_WAY = 1e-6
"""Share of its value that the main metric has to fall by, without privacy, for a way to be measured."""
_MOST_COURSES = 4
"""Of so many points each has a chart by round; of more, those at the tightest budget."""


def is_comparison(directory: Path) -> bool:
    """Whether a directory is one of a comparison rather than of a run."""
    return (directory / SUMMARY).is_file()


def render_comparison(directory: Path) -> Path:
    """Write report.html and report.md into a comparison's directory.

    Returns:
        The path of report.html.

    Raises:
        BadInput: the directory does not hold a comparison's files.
    """
    _check(directory)
    content = _content(directory)
    (directory / "report.md").write_text(fill(MARKDOWN, content, html=False), encoding="utf-8")
    path = directory / "report.html"
    path.write_text(fill(PAGE, content), encoding="utf-8")
    return path


def ranked_points(directory: Path) -> list[dict[str, Any]]:
    """The ranking at every point of the grid.

    Raises:
        BadInput: the directory does not hold a comparison's files.
    """
    _check(directory)
    frame, summary, keys = _read(directory)
    oracles = _oracles(summary)
    points = [_point(*point, summary["labels"]) for point in _points(frame, keys)]
    for line in (line for point in points for line in point["ranking"]):
        line["oracle"] = line["strategy"] in oracles
    return points


def costs_together(directory: Path) -> list[str]:
    """What all runs cost the same people together, a line for each source of people.

    Raises:
        BadInput: the directory does not hold a comparison's files.
    """
    _check(directory)
    return sentences(_read(directory)[1])


def _oracles(summary: Mapping[str, Any]) -> set[str]:
    """Labels of what was tuned by looking at the answers; comparisons of earlier versions have none."""
    return {label for label, entry in summary.get("strategies", {}).items() if entry.get("oracle")}


def _check(directory: Path) -> None:
    for name in _NEEDED:
        if not (directory / name).is_file():
            raise BadInput(f"{directory} holds no {name}: give the directory of a comparison, such as comparisons/...")


def _read(directory: Path) -> tuple[pd.DataFrame, dict[str, Any], list[str]]:
    """The cells, the summary, and the keys of the grid that have more than one value."""
    frame = pd.read_parquet(directory / TABLE)
    summary: dict[str, Any] = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    return frame, summary, [key for key in summary["grid"] if frame[key].nunique() > 1]


def _content(directory: Path) -> dict[str, Any]:
    """What the templates show."""
    frame, summary, keys = _read(directory)
    courses = _courses(pd.read_parquet(directory / ROUNDS), keys)
    points = [
        point | {"course": courses.get((point["problem"], *point["values"].values()), {})}
        for point in ranked_points(directory)
    ]
    chosen, charts = _chosen(points), _charts(points, keys, summary["labels"], summary["slopes"])
    ranked = pd.DataFrame([line | {"at": point["index"]} for point in points for line in point["ranking"]])
    metrics = sorted(frame["main_metric"].dropna().unique())
    return {
        "summary": summary,
        "points": points,
        "overall": _overall(ranked, summary["labels"], _oracles(summary)),
        "zero": " or the ".join(dict.fromkeys(point["zero_name"] for point in points)),
        "oracle": ORACLE,
        "charts": charts,
        "reasons": list(dict.fromkeys(reason for _, _, reason in charts if reason)),
        "courses": [chart for point in chosen if (chart := _course_chart(point, summary["labels"]))[1]],
        "all_courses": len(chosen) == len(points),
        "metrics": [(name.replace("_", " "), METRICS.get(name, "")) for name in metrics],
        "asked": [
            {"unit": unit, "epsilon": sorted(rows["epsilon"].unique()), "delta": sorted(rows["delta"].unique())}
            for unit, rows in frame.groupby("unit")
        ],
        "guarantees": _guarantees(summary, frame),
        "together": sentences(summary),
        "errors": _errors(frame),
        "foresight": foresight(frame, keys, _oracles(summary)),
        "cells": len(frame),
        "failed": int(frame["error_private"].notna().sum()),
        "seconds": float(frame["seconds"].sum()),
        "config": (directory / "comparison.toml").read_text(encoding="utf-8"),
    }


def _points(frame: pd.DataFrame, keys: Sequence[str]) -> Iterator[tuple[str, dict[str, Any], pd.DataFrame]]:
    """(problem, grid values, rows) of every point that strategies are ranked at, in the file's order."""
    for group, cells in frame.groupby(["problem", *keys], sort=False):
        yield str(group[0]), dict(zip(keys, group[1:], strict=True)), cells


def _courses(rounds: pd.DataFrame, keys: Sequence[str]) -> dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]]:
    """(problem, *grid values) -> strategy -> median, minimum and maximum over seeds of every measured round."""
    found: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for (strategy, *group), cells in rounds.groupby(["strategy", "problem", *keys], sort=False):
        # A run that ended early released its last model, and that is what it is compared by.
        values = cells.pivot_table(index="round", columns="seed", values="value", aggfunc="last").ffill()
        spread = pd.DataFrame({"median": values.median(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)})
        found.setdefault(tuple(group), {})[str(strategy)] = spread.reset_index().to_dict("records")  # type: ignore[assignment]
    return found


def _chosen(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points shown by round: all, or for each problem the first and the last of those at the tightest budget."""
    if len(points) <= _MOST_COURSES:
        return list(points)
    chosen = []
    for problem in dict.fromkeys(point["problem"] for point in points):
        own = [point for point in points if point["problem"] == problem]
        tightest = min(point["epsilon"] for point in own)
        ends = [point for point in own if point["epsilon"] == tightest]
        chosen += [ends[0], *ends[1:][-1:]]
    return chosen


def _course_chart(point: dict[str, Any], labels: Sequence[str]) -> tuple[str, str]:
    """(title, SVG) of the main metric by round."""
    title = f"{point['index']}: {point['metric']} by round"
    return title, rounds_chart(point, labels, title)


def _point(problem: str, values: dict[str, Any], cells: pd.DataFrame, labels: Sequence[str]) -> dict[str, Any]:
    """The ranking at one point of the grid."""
    constant = _median(cells["constant"]) if "constant" in cells else None  # comparisons of earlier versions have none
    initial, free = _median(cells["initial"]), _median(cells["reference_private"])
    zero = initial if constant is None else constant
    lines = []
    for label in labels:
        rows = cells[cells["strategy"] == label]
        good = rows["value"].dropna()
        median = _median(good)
        lines.append(
            {
                "strategy": label,
                "median": median,
                "low": None if good.empty else float(good.min()),
                "high": None if good.empty else float(good.max()),
                "seeds": len(good),
                "failed": len(rows) - len(good),
                "reason": next(iter(rows["error_private"].dropna()), None),
                "worse": median is not None and zero is not None and median >= zero,
                "closed": _closed(median, zero, free),
                "terms": _terms(rows),
                "holds": bool(rows["holds"].dropna().all()) if rows["holds"].notna().any() else None,
            }
        )
    lines.sort(key=lambda line: math.inf if line["median"] is None else line["median"])
    names = dict.fromkeys(str(name) for name in cells["main_metric"].dropna())
    title = ", ".join([problem, *(f"{_short(key)} = {shown(_number(value))}" for key, value in values.items())])
    return {
        "index": title,
        "problem": problem,
        "values": values,
        "epsilon": float(cells["epsilon"].min()),
        "mixed": cells["relation"][cells["holds"].eq(other=True)].nunique() > 1,
        # A median looks equal to what it is compared with only where it is.
        "digits": max(digits_apart([line["median"], zero]) for line in lines),
        "metric": next(iter(names), "no metric").replace("_", " "),
        "zero_name": INITIAL if constant is None else CONSTANT,
        "zero": zero,
        "constant": constant,
        "initial": initial,
        "non_private": free,
        "references": [
            (name, value, _closed(value, zero, free))
            for name, value in ((CONSTANT, constant), (INITIAL, initial), (NON_PRIVATE, free))
            if value is not None or name != CONSTANT
        ],
        "stuck": _stuck(zero, free),
        "ranking": lines,
    }


def _terms(rows: pd.DataFrame) -> str:
    """On what terms a strategy has its place in a ranking: whose data, which relation, and what these cost it."""
    given = rows[rows["holds"].eq(other=True)]
    if given.empty:
        return ""
    # The numbers of a plan: the same for all seeds.
    one = given.iloc[0]
    words = f"{one['unit']} level, {one['relation'].replace('_', ' ')}"
    if one["relation"] != "replace_one":
        words += f"; to replace one: {_replaced(one)}"
    if one["unit"] == "user" and pd.notna(one["group"]) and pd.notna(one["sample_level_epsilon"]):
        user, sample = (shown_claim(float(one[name])) for name in ("spent_epsilon", "sample_level_epsilon"))
        words += (
            f"; epsilon = {user} for a user of {shown(int(one['group']))} samples by group privacy: "
            f"noise as for epsilon = {sample} a sample"
        )
    return words


def _replaced(row: "pd.Series[Any]") -> str:
    """What a run that promises for adding or removing a user promises for replacing one."""
    epsilon, delta = (float(row[f"replace_one_{name}"]) for name in ("epsilon", "delta"))
    return shown_promise(epsilon, delta, int(row["users"]))


def _median(values: pd.Series) -> float | None:
    known = values.dropna()
    return None if known.empty else float(known.astype(float).median())


def _number(value: Any) -> Any:
    """A plain number of a numpy one."""
    return value.item() if hasattr(value, "item") else value


def _short(key: str) -> str:
    """The last part of a dotted key, in words."""
    return key.rpartition(".")[2].replace("_", " ")


def _stuck(zero: float | None, free: float | None) -> bool:
    """Whether training without privacy ended no better than the zero of the way, but for rounding."""
    return zero is not None and free is not None and zero - free <= _NO_WAY * max(abs(zero), abs(free))


def _closed(median: float | None, zero: float | None, free: float | None) -> float | None:
    """Share of the way from the best constant (the initial model, where there is none) to the model without privacy.

    None where there is no way to go.
    """
    if median is None or zero is None or free is None or _stuck(zero, free):
        return None
    return (zero - median) / (zero - free)


def _overall(ranked: pd.DataFrame, labels: Sequence[str], oracles: Collection[str]) -> list[dict[str, Any]]:
    """How often each strategy comes first, is worse than doing nothing, or fails; over all points of the grid."""
    private = ranked[ranked["holds"].fillna(value=True).astype(bool) & ~ranked["strategy"].isin(list(oracles))]
    best = private.groupby("at")["median"].transform("min")
    lines = []
    for label in labels:
        own = ranked[ranked["strategy"] == label]
        first = private[(private["strategy"] == label) & (private["median"] == best)]
        lines.append(
            {
                "strategy": label,
                "private": label in set(private["strategy"]),
                "oracle": label in oracles,
                "first": len(first),
                "worse": int(own["worse"].sum()),
                "failed": int(own["failed"].sum()),
                "closed": _median(own["closed"]),
            }
        )
    return sorted(lines, key=lambda line: (not line["private"], -line["first"], -(line["closed"] or -math.inf)))


def _charts(
    points: Sequence[dict[str, Any]],
    keys: Sequence[str],
    labels: Sequence[str],
    slopes: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> list[tuple[str, str, str]]:
    """(title, SVG, why its slope is expected), for the main metric against every numeric key, the other keys held.

    Without such a key it is one chart a problem.
    """
    numeric = [key for key in keys if all(_is_number(point["values"][key]) for point in points)]
    charts = []
    for key in numeric:
        for held, line in _lines(points, key):
            title = f"{held}: {line[0]['metric']} against {_short(key)}"
            slope = slopes.get(line[0]["problem"], {}).get(key)
            chart, drawn = sweep_chart(line, key, _short(key), labels, title, None if slope is None else slope["power"])
            charts.append((title, chart, slope["reason"] if slope is not None and drawn else ""))
    if not numeric:
        charts = [(f"{point['index']}: {point['metric']}", dot_chart(point), "") for point in points]
    return [chart for chart in charts if chart[1]]


def _lines(points: Sequence[dict[str, Any]], key: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Points that differ in nothing but ``key``."""
    found: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        others = [f"{_short(name)} = {shown(_number(value))}" for name, value in point["values"].items() if name != key]
        found.setdefault(", ".join([point["problem"], *others]), []).append(point)
    for title, line in found.items():
        yield title, sorted(line, key=lambda point: float(point["values"][key]))


def _is_number(value: Any) -> bool:
    value = _number(value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _guarantees(summary: Mapping[str, Any], frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Every promise in words, with the strategies that make it."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for label in summary["labels"]:
        entry = summary["strategies"][label]
        given = entry["guarantee"]
        holds = given is not None and given["holds"]
        oracle = bool(entry.get("oracle"))
        what = {
            "promise": None if given is None else f"{ORACLE[0].upper()}{ORACLE[1:]}." if oracle else promise(given),
            "adversary": given["adversary"] if holds else None,
            "holds": holds,
        }
        own = _member(label, entry, frame[frame["strategy"] == label])
        found.setdefault(tuple(what.values()), what | {"strategies": []})["strategies"].append(own)
    return list(found.values())


def _member(label: str, entry: Mapping[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """What a strategy's promise rests on, and what a weaker unit or another relation cost."""
    given, kept = entry["guarantee"], rows[rows["holds"].eq(other=True)]
    grouped = kept[kept["unit"].eq("user")].dropna(subset=["group", "sample_level_epsilon"])
    other = kept[kept["relation"].ne("replace_one")]
    return {
        "label": label,
        "kind": entry["kind"],
        "summary": entry["summary"],
        "assumptions": given["assumptions"] if given is not None and given["holds"] else [],
        "replace_one": None if other.empty else _replaced(other.iloc[0]),
        "group": None
        if grouped.empty
        else (int(grouped["group"].iloc[0]), float(grouped["sample_level_epsilon"].iloc[0])),
    }


def _errors(frame: pd.DataFrame) -> list[tuple[str, str, int]]:
    """(strategy, reason, cells) of what failed."""
    failed = frame[frame["error_private"].notna()]
    return [(*map(str, key), len(rows)) for key, rows in failed.groupby(["strategy", "error_private"], sort=False)]  # type: ignore[misc]
