"""The files of a comparison that its report is made from; they stay when the cells' directories are deleted.

results.parquet has one row a cell, rounds.parquet one a measured round of a cell, comparison.json what is the same for
all.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.comparison.cells import Cell
from simulations.comparison.config import Comparison
from simulations.comparison.oracle import oracle_entries
from simulations.comparison.theory import expected_slopes
from simulations.comparison.together import together
from simulations.records.environment import versions
from simulations.records.evaluation import NOBODY, main_metric
from simulations.records.run_directory import plain
from strategies.registry import STRATEGIES
from userdp.accounting.composition import add_or_remove_to_replace_one

NOT_RUN = "not run yet"
TABLE, ROUNDS, SUMMARY = "results.parquet", "rounds.parquet", "comparison.json"


def row(
    cell: Cell,
    record: Mapping[str, Any],
    reference: Mapping[str, Any] | None,
    tuned: Mapping[str, Any] | None,
    folder: str | None,
) -> dict[str, Any]:
    """One row of results.parquet; `simulations.records.released_fields` says of which kind each column is.

    Args:
        cell: the cell.
        record: of its cell.json; {"error_private": reason} where there is none.
        reference: the record of training without privacy on the same data.
        tuned: settings that a search on public data chose, or the oracle.
        folder: of the run, relative to the comparison's directory.
    """
    result = record.get("result") or {}
    # A run that failed half-way measured something, and it is not what the cell is about.
    metrics = {} if record.get("error_private") else result.get("metrics", {})
    references = result.get("reference", {}), _result(reference).get("reference", {})
    initial, constant = (_first(name, references) for name in ("initial", "constant"))
    free = _result(reference).get("metrics", {})
    main = main_metric(metrics) or main_metric(free)
    value, start, zero = (None if main is None else values.get(main) for values in (metrics, initial, constant))
    measured = value is not None and "not_measured" not in result
    return {
        "problem": cell.problem,
        "strategy": cell.strategy,
        "kind": cell.kind,
        "oracle": cell.oracle,
        "seed": cell.seed,
        **cell.grid,
        "main_metric": main,
        "value": value,
        "constant": zero,
        "initial": start,
        "reference_private": free.get(main),
        "better_than_constant": value < zero if measured and zero is not None else None,
        "better_than_initial": value < start if measured and start is not None else None,
        "error_private": record.get("error_private")
        or (None if value is not None else f"not measured: {result.get('not_measured', NOBODY)}"),
        **_promise(cell, result.get("guarantee")),
        "seconds": record.get("seconds"),
        "rounds": result.get("rounds"),
        "users": result.get("users"),
        "group": record.get("numbers", {}).get("group"),
        "sample_level_epsilon": record.get("numbers", {}).get("sample_level_epsilon"),
        "predicted_excess": record.get("predicted_excess"),
        "tuned": None if tuned is None or cell.oracle else json.dumps(tuned),
        "oracle_private": json.dumps(tuned) if cell.oracle and tuned is not None else None,
        "directory": folder,
        **{f"metric.{name}": one for name, one in metrics.items()},
        **{f"constant.{name}": one for name, one in constant.items()},
        **{f"initial.{name}": one for name, one in initial.items()},
        **{f"reference_private.{name}": one for name, one in free.items()},
    }


def _first(name: str, references: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The metrics of that name in the first record that has some."""
    return next((one[name] for one in references if one.get(name)), {})


def _result(record: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (record or {}).get("result") or {}


def _promise(cell: Cell, guarantee: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was asked for, what was given, and what that means for replacing one user or sample."""
    privacy = cell.raw["privacy"]
    asked = {"unit": privacy.get("unit", "user"), "epsilon": privacy["epsilon"], "delta": privacy["delta"]}
    given: dict[str, Any] = dict.fromkeys(
        ("relation", "holds", "spent_epsilon", "replace_one_epsilon", "replace_one_delta")
    )
    if guarantee is not None:
        given |= {name: guarantee[name] for name in ("relation", "holds")}
        if guarantee["holds"]:
            pair = guarantee["epsilon"], guarantee["delta"]
            given["spent_epsilon"] = pair[0]
            replaced = pair if guarantee["relation"] == "replace_one" else add_or_remove_to_replace_one(*pair)
            given["replace_one_epsilon"], given["replace_one_delta"] = replaced
    return asked | given


def write_table(
    root: Path, comparison: Comparison, rows: Sequence[dict[str, Any]], chosen: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write results.parquet, rounds.parquet and comparison.json into the comparison's directory."""
    frame = pd.DataFrame(list(rows))
    for key in comparison.grid_keys:
        # Parquet columns have one type each.
        if frame[key].map(lambda value: isinstance(value, list | dict)).any():
            frame[key] = frame[key].map(json.dumps)
    _write(root / TABLE, frame)
    _write(root / ROUNDS, _rounds(root, frame, comparison.grid_keys))
    tuning, oracles = comparison.config.tuning, {entry.name: entry for entry in oracle_entries(comparison.config)}
    summary = {
        "name": comparison.config.name,
        "labels": list(comparison.labels),
        "grid": list(comparison.grid_keys),
        "seeds": list(dict.fromkeys(cell.seed for cell in comparison.cells)),
        "strategies": {
            entry.name: {
                "kind": entry.kind,
                "summary": STRATEGIES[entry.kind].about.summary_line,
                "guarantee": _guarantee(root, rows, entry.name),
                "oracle": entry.name in oracles,
            }
            for entry in (*comparison.config.strategy, *oracles.values())
        },
        "settings": [
            [entry.label, name, settings]
            for entry in comparison.config.problems
            for name, settings in entry.strategy.items()
        ],
        "tuning": None if tuning is None else tuning.model_dump() | {"chosen": _chosen(chosen, oracles, inside=False)},
        "oracle_private": {"seed": comparison.oracle_seed, "chosen": _chosen(chosen, oracles, inside=True)}
        if oracles
        else None,
        "slopes": expected_slopes(comparison),
        "together": together(comparison.cells, rows),
        "versions": versions(),
    }
    (root / SUMMARY).write_text(json.dumps(plain(summary), indent=2) + "\n", encoding="utf-8")


def _chosen(chosen: Mapping[str, Mapping[str, Any]], oracles: Collection[str], *, inside: bool) -> list[list[Any]]:
    """[problem, strategy, point of the grid, settings] of every search, of the oracle's strategies or of all others."""
    found = [[*json.loads(group), dict(best)] for group, best in chosen.items()]
    return [one for one in found if (one[1] in oracles) == inside]


def _write(path: Path, frame: pd.DataFrame) -> None:
    partial = path.with_name(f".{path.name}.partial")
    frame.to_parquet(partial, index=False)
    partial.replace(path)


def _rounds(root: Path, frame: pd.DataFrame, grid_keys: Sequence[str]) -> pd.DataFrame:
    """The main metric of every finished cell by round, where it was measured; the initial model is in results.parquet.

    Columns: problem, strategy, seed, the keys of the grid, round (from 1), spent_epsilon, value.
    """
    columns = ["problem", "strategy", "seed", *grid_keys]
    types = {"round": int, "spent_epsilon": float, "value": float}
    found = []
    for cell in frame[frame["error_private"].isna()].to_dict("records"):
        path, metric = root / cell["directory"] / ROUNDS, f"metric.{cell['main_metric']}"
        if path.is_file() and metric in (course := pd.read_parquet(path)):
            course = course.rename(columns={metric: "value"})[list(types)].dropna(subset=["value"])
            found.append(course.astype(types).assign(**{name: cell[name] for name in columns}))
    empty = frame.loc[[], columns].assign(**{name: pd.Series(dtype=kind) for name, kind in types.items()})
    return pd.concat(found, ignore_index=True)[list(empty)] if found else empty


def _guarantee(root: Path, rows: Sequence[dict[str, Any]], label: str) -> dict[str, Any] | None:
    """In full, of the first cell of a strategy that has one."""
    for one in rows:
        path = root / str(one["directory"]) / "guarantee.json"
        if one["strategy"] == label and one["error_private"] is None and path.is_file():
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return values
    return None
