"""The files of a comparison that its report is made from, and its total cost; they outlive the cells' directories.

results.parquet has one row for each cell, rounds.parquet one for each measured round, comparison.json the rest.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from simulations.comparison.config import Cell, Comparison
from simulations.records.environment import versions
from simulations.records.evaluation import NOBODY, main_metric, told_apart
from simulations.records.run_directory import as_json, read_json, write_text, write_whole
from simulations.reports.explain import NOTHING_PROMISED, assumptions_of, shown_promise
from strategies.registry import STRATEGIES
from userdp.accounting.composition import add_or_remove_to_replace_one
from userdp.accounting.guarantee import Guarantee

NOT_RUN = "not run yet"
TABLE, ROUNDS, SUMMARY = "results.parquet", "rounds.parquet", "comparison.json"


def row(
    cell: Cell,
    record: Mapping[str, Any],
    reference: Mapping[str, Any] | None,
    tuned: Mapping[str, Any] | None,
    folder: str | None,
) -> dict[str, Any]:
    """Make one row of results.parquet; `simulations.records.released_fields` states the kind of each column.

    ``record`` is the content of the cell's cell.json, ``reference`` that of training without privacy on the same data;
    ``tuned`` settings were chosen by tuning on public data.
    """
    result, free = record.get("result") or {}, (reference or {}).get("result") or {}
    # Metrics of a run that failed half-way are not the cell's.
    metrics = {} if record.get("error_private") else result.get("metrics", {})
    references = [one.get("reference", {}) for one in (result, free)]
    errors = references[0].get("difference_errors", {})
    initial: Mapping[str, Any] = next((one["initial"] for one in references if one.get("initial")), {})
    constant: Mapping[str, Any] = next((one["constant"] for one in references if one.get("constant")), {})
    free = free.get("metrics", {})
    main = main_metric(metrics) or main_metric(free)
    value, start, zero = (None if main is None else values.get(main) for values in (metrics, initial, constant))
    measured = value is not None and "not_measured" not in result
    numbers = record.get("numbers", {})
    groups = {"metric": metrics, "constant": constant, "initial": initial, "reference_private": free}
    return {
        "problem": cell.problem,
        "strategy": cell.strategy,
        "kind": cell.kind,
        "seed": cell.seed,
        **cell.grid,
        "main_metric": main,
        "value": value,
        "constant": zero,
        "initial": start,
        "reference_private": free.get(main),
        "better_than_constant": told_apart(value if measured else None, zero, errors.get("constant")),
        "better_than_initial": told_apart(value if measured else None, start, errors.get("initial")),
        "constant_error": errors.get("constant"),
        "initial_error": errors.get("initial"),
        "error_private": record.get("error_private")
        or (None if value is not None else f"not measured: {result.get('not_measured', NOBODY)}"),
        **_promise(cell, result.get("guarantee"), numbers),
        "seconds": record.get("seconds"),
        "rounds": result.get("rounds"),
        "users": result.get("users"),
        "group": numbers.get("group"),
        "sample_level_epsilon": numbers.get("sample_level_epsilon"),
        "predicted_excess": record.get("predicted_excess"),
        "tuned": None if tuned is None else json.dumps(tuned),
        "directory": folder,
        **{f"{group}.{name}": one for group, values in groups.items() for name, one in values.items()},
    }


def _promise(cell: Cell, guarantee: Mapping[str, Any] | None, numbers: Mapping[str, Any]) -> dict[str, Any]:
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
            given |= {name: numbers[name] for name in ("replace_one_epsilon", "replace_one_delta") if name in numbers}
    return asked | given


def write_table(
    root: Path, comparison: Comparison, rows: Sequence[dict[str, Any]], chosen: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write results.parquet, rounds.parquet and comparison.json into the comparison's directory."""
    frame = pd.DataFrame(list(rows))
    for key in comparison.grid_keys:
        # A column of a Parquet file has one type.
        if frame[key].map(lambda value: isinstance(value, list | dict)).any():
            frame[key] = frame[key].map(json.dumps)
    for name, rows_of in ((TABLE, frame), (ROUNDS, _rounds(root, frame, comparison.grid_keys))):
        write_whole(root / name, partial(rows_of.to_parquet, index=False))
    config, tuning = comparison.config, comparison.config.tuning
    found = [[*json.loads(group), dict(best)] for group, best in chosen.items()]
    summary = {
        "name": config.name,
        "labels": list(comparison.labels),
        "grid": list(comparison.grid_keys),
        "seeds": list(dict.fromkeys(cell.seed for cell in comparison.cells)),
        "strategies": {
            entry.name: {
                "kind": entry.kind,
                "summary": STRATEGIES[entry.kind].about.summary_line,
                "guarantee": _guarantee(root, rows, entry.name),
            }
            for entry in config.strategy
        },
        "settings": [
            [entry.label, name, settings] for entry in config.problems for name, settings in entry.strategy.items()
        ],
        "tuning": None if tuning is None else tuning.model_dump() | {"chosen": found},
        "together": together(comparison.cells, rows),
        "versions": versions(),
    }
    write_text(root / SUMMARY, as_json(summary))


def _rounds(root: Path, frame: pd.DataFrame, grid_keys: Sequence[str]) -> pd.DataFrame:
    """Collect the main metric of every finished cell by measured round; the initial model is in results.parquet.

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
    for one in rows:
        path = root / str(one["directory"]) / "guarantee.json"
        if one["strategy"] == label and one["error_private"] is None and path.is_file():
            return dict(read_json(path))
    return None


def together(cells: Sequence[Cell], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compute the total cost of the runs on each source of real users with more than one private run.

    Synthetic users are drawn anew from the seed and are not real.

    *Formal guarantees.* *Claim.* The models of the counted runs, released together, would be (epsilon, delta)-DP for
    replacing one user, or one sample if some of the runs protect samples only; epsilon and delta are the sums over the
    runs. *Why.* Each counted run promises (e_i, d_i) for replacing one: its own guarantee, or the one that follows from
    adding or removing (the plan's own price, or `add_or_remove_to_replace_one`). A promise for a user covers each
    sample of that user. A run that does not read the replaced user's data, because its seed holds the user out,
    promises (0, 0) for them. Basic composition adds up (Dwork, Roth 2014, Theorem 3.16). *Assumptions.* Those of each
    run; every run draws noise of its own, which runs of one seed in a simulation do not; one person is in one source.
    Measured metrics are not covered.

    The runs of a source have a guarantee, the others finished without one; users are the fewest of a counted run.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for cell, row in zip(cells, rows, strict=True):
        if (source := _source(cell.raw["data"])) is not None and row["holds"] is not None:
            found.setdefault(source, []).append(row)
    kept = {source: [row for row in own if row["holds"]] for source, own in found.items()}
    return [
        {
            "source": source,
            "runs": len(counted),
            "others": len(found[source]) - len(counted),
            "unit": "sample" if any(row["unit"] == "sample" for row in counted) else "user",
            "epsilon": sum(float(row["replace_one_epsilon"]) for row in counted),
            "delta": min(1.0, sum(float(row["replace_one_delta"]) for row in counted)),
            "users": min(int(row["users"]) for row in counted),
        }
        for source, counted in kept.items()
        if len(counted) > 1
    ]


def _source(data: Mapping[str, Any]) -> str | None:
    """Name the source of a [data] section: a file, or a public data set; None for synthetic users."""
    if data["kind"] == "synthetic":
        return None
    return Path(data["path"]).name if "path" in data else str(data.get("name", data["kind"]))


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Describe each total cost in comparison.json; comparisons of earlier versions have none."""
    return [_sentence(one) for one in summary.get("together", ())]


def rests_on(summary: Mapping[str, Any]) -> list[str]:
    """Return what the epsilons of comparison.json rest on, and which strategies' do."""
    given = {label: entry["guarantee"] for label, entry in summary.get("strategies", {}).items()}
    return assumptions_of({label: Guarantee.from_dict(one) for label, one in given.items() if one is not None})


def _sentence(one: Mapping[str, Any]) -> str:
    unit = "one whole user" if one["unit"] == "user" else "one single sample"
    others = f"; {one['others']} more runs promise nothing" if one["others"] else ""
    cost = shown_promise(one["epsilon"], one["delta"], one.get("users", 1))
    cost = cost if cost == NOTHING_PROMISED else f"at most {cost}"
    return (
        f"{one['runs']} runs on the same users ({one['source']}): with independent noise their total cost is {cost}, "
        f"for replacing {unit}{others}; further runs on these users add to it (simulation: nothing was released)"
    )
