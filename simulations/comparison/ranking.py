"""The rankings of a comparison, at every point of its grid and as plain text for a terminal, a log or a file."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.comparison.table import ROUNDS, SUMMARY, TABLE, rests_on, sentences
from simulations.records.evaluation import verdict
from simulations.records.run_directory import check_files, read_json
from simulations.reports.explain import digits_apart, percent, shown, shown_claim, shown_promise
from simulations.reports.standing import CONSTANT, INITIAL, NON_PRIVATE

_NO_GAP = 1e-6  # relative improvement of training without privacy over the baseline that counts as rounding
_FEWEST_RANKED = 4  # fewest strategies for a rank correlation


def read(directory: Path) -> tuple[pd.DataFrame, dict[str, Any], list[str]]:
    """Read the cells, the summary, and the keys of the grid with several values; BadInput if a file is missing."""
    check_files(directory, (TABLE, ROUNDS, SUMMARY, "comparison.toml"), "a comparison, such as comparisons/...")
    frame = pd.read_parquet(directory / TABLE)
    summary: dict[str, Any] = read_json(directory / SUMMARY)
    return frame, summary, [key for key in summary["grid"] if frame[key].nunique() > 1]


def ranked_points(frame: pd.DataFrame, summary: Mapping[str, Any], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Rank the strategies at every point of the grid, in the file's order; keys have more than one value."""
    return [
        _point(str(problem), dict(zip(keys, map(_plain, values), strict=True)), cells, summary["labels"])
        for (problem, *values), cells in frame.groupby(["problem", *keys], sort=False)
    ]


def _point(problem: str, values: dict[str, Any], cells: pd.DataFrame, labels: Sequence[str]) -> dict[str, Any]:
    constant = median(cells["constant"]) if "constant" in cells else None  # comparisons of earlier versions have none
    initial, free = median(cells["initial"]), median(cells["reference_private"])
    zero = initial if constant is None else constant
    error = "initial_error" if constant is None else "constant_error"
    lines = [_line(label, cells[cells["strategy"] == label], zero, free, error) for label in labels]
    lines.sort(key=lambda line: math.inf if line["median"] is None else line["median"])
    names = dict.fromkeys(str(name) for name in cells["main_metric"].dropna())
    return {
        "index": ", ".join([problem, *in_words(values)]),
        "problem": problem,
        "values": values,
        "epsilon": float(cells["epsilon"].min()),
        "mixed": cells["relation"][cells["holds"].eq(other=True)].nunique() > 1,
        # A median looks equal to the baseline only if it is.
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


def _line(label: str, rows: pd.DataFrame, zero: float | None, free: float | None, error: str) -> dict[str, Any]:
    good = rows["value"].dropna()
    middle = median(good)
    # Seeds share their people: more of them do not lower the error over people.
    spread = median(rows[error]) if error in rows else None  # comparisons of earlier versions have none
    found = None if middle is None or zero is None else verdict(middle, zero, spread)
    return {
        "strategy": label,
        "median": middle,
        "low": None if good.empty else float(good.min()),
        "high": None if good.empty else float(good.max()),
        "seeds": len(good),
        "failed": len(rows) - len(good),
        "reason": next(iter(rows["error_private"].dropna()), None),
        "worse": found in ("even", "worse"),
        "verdict": found,
        "closed": _closed(middle, zero, free),
        "terms": _terms(rows),
        "holds": bool(rows["holds"].dropna().all()) if rows["holds"].notna().any() else None,
    }


def _terms(rows: pd.DataFrame) -> str:
    given = rows[rows["holds"].eq(other=True)]
    if given.empty:
        return ""
    # The numbers of a plan are the same for all seeds.
    one = given.iloc[0]
    words = f"{one['unit']} level, {one['relation'].replace('_', ' ')}"
    if one["relation"] != "replace_one":
        words += f"; to replace one: {replaced(one)}"
    if one["unit"] == "user" and pd.notna(one["group"]) and pd.notna(one["sample_level_epsilon"]):
        user, sample = (shown_claim(float(one[name])) for name in ("spent_epsilon", "sample_level_epsilon"))
        words += (
            f"; epsilon = {user} for a user of {shown(int(one['group']))} samples by group privacy: "
            f"noise calibrated to epsilon = {sample} per sample"
        )
    return words


def replaced(row: "pd.Series[Any]") -> str:
    """Describe the promise for replacing one user that follows from one for adding or removing a user."""
    epsilon, delta = (float(row[f"replace_one_{name}"]) for name in ("epsilon", "delta"))
    return shown_promise(epsilon, delta, int(row["users"]))


def median(values: pd.Series) -> float | None:
    """Return the median of the known values; None if none is known."""
    known = values.dropna()
    return None if known.empty else float(known.astype(float).median())


def in_words(values: Mapping[str, Any]) -> list[str]:
    """Format a point of the grid as "name = value" for each key."""
    return [f"{short(key)} = {shown(value)}" for key, value in values.items()]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def short(key: str) -> str:
    """Return the last part of a dotted key, in words."""
    return key.rpartition(".")[2].replace("_", " ")


def _stuck(zero: float | None, free: float | None) -> bool:
    """Return whether training without privacy is no better than the baseline, up to rounding."""
    return zero is not None and free is not None and zero - free <= _NO_GAP * max(abs(zero), abs(free))


def _closed(value: float | None, zero: float | None, free: float | None) -> float | None:
    """Return the closed share of the gap between baseline and training without privacy; None without a gap."""
    if value is None or zero is None or free is None or _stuck(zero, free):
        return None
    return (zero - value) / (zero - free)


def overall(points: Sequence[dict[str, Any]], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Count over all points how often each strategy is first, no better than the baseline, or fails; best first."""
    ranked = pd.DataFrame([line | {"at": point["index"]} for point in points for line in point["ranking"]])
    private = ranked[ranked["holds"].fillna(value=True).astype(bool)]
    best = private[private["median"] == private.groupby("at")["median"].transform("min")]
    lines = []
    for label in labels:
        own = ranked[ranked["strategy"] == label]
        lines.append(
            {
                "strategy": label,
                "private": label in set(private["strategy"]),
                "first": int((best["strategy"] == label).sum()),
                "worse": int(own["worse"].sum()),
                "failed": int(own["failed"].sum()),
                "closed": median(own["closed"]),
            }
        )
    return sorted(lines, key=lambda line: (not line["private"], -line["first"], -(line["closed"] or -math.inf)))


def foresight(frame: pd.DataFrame, keys: Sequence[str]) -> dict[str, float | int] | None:
    """Compute Spearman's rank correlation of predicted excess risk and main metric over strategies.

    The result is the mean over "points", with at most this many "strategies" each; None if no point has enough
    strategies with a prediction and a measurement.
    """
    if "predicted_excess" not in frame:
        return None  # a comparison of an earlier version
    known = frame.dropna(subset=["predicted_excess", "value"])
    found, most = [], 0
    for _, cells in known.groupby(["problem", *keys], sort=False):
        medians = cells.groupby("strategy")[["predicted_excess", "value"]].median()
        if len(medians) >= _FEWEST_RANKED and medians.nunique().min() > 1:
            found.append(float(medians.corr("spearman").to_numpy()[0, 1]))
            most = max(most, len(medians))
    return {"correlation": sum(found) / len(found), "points": len(found), "strategies": most} if found else None


# As plain text -----------------------------------------------------------------------------------------------------


def rankings(directory: Path) -> str:
    """Format a table for every point of the grid, best strategy first, and the total cost; BadInput: see `read`."""
    frame, summary, keys = read(directory)
    below = [*sentences(summary), "\n".join(rests_on(summary))]
    return "\n\n".join([*map(_table, ranked_points(frame, summary, keys)), *filter(None, below)])


def _table(point: dict[str, Any]) -> str:
    head = ("strategy", "median", "min to max", f"against the {point['zero_name']}", "gap closed (private)")
    rows: list[tuple[str, ...]] = [head, *(_row(line, point) for line in point["ranking"])]
    digits = partial(shown, digits=point["digits"])
    for name, value, closed in point["references"]:
        label = f"{name} (private)" if name == NON_PRIVATE else name
        rows.append((label, _dash(value, digits), "", "", _dash(closed, percent)))
    seeds = max((line["seeds"] for line in point["ranking"]), default=0)
    title = (
        f"{point['index']}: {point['metric']}, median over {seeds} seed{'' if seeds == 1 else 's'}, smaller is better"
    )
    return "\n".join([title, *_aligned(rows)])


def _row(line: dict[str, Any], point: dict[str, Any]) -> tuple[str, ...]:
    name = line["strategy"] if line["holds"] is not False else f"{line['strategy']} (no privacy)"
    if line["median"] is None:
        return name, "-", "-", f"no result: {line['failed']} failed", "-"
    value, zero = line["median"], point["zero"]
    words = {None: "not measured", "better": "better", "even": "no clear difference", "worse": "WORSE"}
    told = "equal, no better" if value == zero else words[line["verdict"]]
    told += f"; {line['failed']} failed" if line["failed"] else ""
    spread = f"{shown(line['low'])} to {shown(line['high'])}"
    return name, shown(value, point["digits"]), spread, told, _dash(line["closed"], percent)


def _dash(value: float | None, formatted: Callable[[float], str]) -> str:
    return "-" if value is None else formatted(value)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
