"""report.html of a run, made only from the files of its directory; and a copy of these files for others."""

import math
import shutil
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from simulations.config.run_config import REFERENCE
from simulations.records.coefficients import HIDDEN_LEVELS
from simulations.records.evaluation import main_metric
from simulations.records.released_fields import ALL_KINDS, RELEASED, Kind, kept
from simulations.records.run_directory import as_json, check_files, read_json, write_text, writing
from simulations.reports import explain
from simulations.reports.answer_pictures import answer_pictures
from simulations.reports.answers import answer_rows, remedy
from simulations.reports.coefficients import coefficient_cells, forest_chart, not_drawn
from simulations.reports.pictures import pictures
from simulations.reports.plots import course_chart, score_chart
from simulations.reports.standing import NON_PRIVATE, Usable, about_constant, references, standing
from simulations.reports.units import (
    about_errors,
    columns_of,
    errors_of,
    in_target_units,
    ordered,
    shown_with_error,
    unit_meanings,
)
from strategies.clipping.clip_facts import CLIP_FACTS
from strategies.core.plan import explained
from strategies.core.results import ANSWERS
from strategies.registry import STRATEGIES
from userdp.accounting.composition import promises_something
from userdp.accounting.guarantee import rounded_up
from userdp.data.tables.cells import cell_text
from userdp.errors import BadInput
from userdp.tracebacks import without_internals

TEMPLATES = Path(__file__).parent / "templates"
"""Jinja templates; their names end in .md because Flower packs an app's Python and Markdown files but no HTML."""
_NEEDED = ("config.toml", "plan.json", "result.json", "guarantee.json", "rounds.parquet")
_AS_THEY_ARE = ("config.toml", "plan.json", "guarantee.json", "model.npz")
_FILTERED = ("data.json", "result.json")
"""Files of a copy for others, which get its public and its noised fields and nothing else."""


@without_internals
def render(directory: Path, kinds: Collection[Kind] = ALL_KINDS) -> Path:
    """Write report.html with fields of the given kinds, and return its path; BadInput if a file of a run is missing."""
    path = directory / "report.html"
    write_text(path, page(directory, kinds))
    return path


def page(directory: Path, kinds: Collection[Kind] = ALL_KINDS) -> str:
    """Return the report of a run directory, with fields of the given kinds; see `render`.

    Private fields stand in a section of their own that says so; the rest does not depend on them.
    """
    check_files(directory, _NEEDED, "a run, such as runs/quickstart-...")
    return fill("run.html.md", _content(directory, kinds))


def fill(template: str, content: dict[str, Any]) -> str:
    """Fill in one of `TEMPLATES`; the content cannot add markup to a page in HTML."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html.md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("shown", "percent", "chance", "settings", "shown_apart", "shown_claim", "shown_line")
    environment.filters |= {name: getattr(explain, name) for name in names} | {"shown_with_error": shown_with_error}
    environment.globals["shown_number"] = explain.shown_number
    return environment.get_template(template).render(content)


def _content(directory: Path, kinds: Collection[Kind]) -> dict[str, Any]:
    names = ("result.json", "plan.json", "guarantee.json", "data.json")
    there = [read_json(directory / name) if (directory / name).is_file() else {} for name in names]
    result, plan, guarantee, data = (kept(name, values, kinds) for name, values in zip(names, there, strict=True))
    config = (directory / "config.toml").read_text(encoding="utf-8")
    section = tomllib.loads(config).get("data", {})
    rounds = pd.read_parquet(directory / "rounds.parquet")
    rounds = rounds[list(kept("rounds.parquet", dict.fromkeys(map(str, rounds.columns)), kinds))]
    errors = errors_of(result, section)
    measured = "answers" not in result and ("metrics" in result or "error" in result)
    return {
        "result": result,
        "plan": plan,
        "guarantee": guarantee,
        "data": data,
        "config": config,
        "requested": tomllib.loads(config)["privacy"],
        "verdict": standing(result, Usable.of(rounds)) if measured else None,
        "promise": promise(guarantee),
        "course": _course(rounds, result),
        "numbers": _numbers(plan),
        "references": list(references(result)),
        "about_constant": about_constant(result),
        "metrics": _metrics(result, section),
        "answers": answer_rows(result.get("answers") or []),
        "remedy": remedy(result.get("answers") or []),
        "answer_pictures": answer_pictures(result.get("answers") or []),
        "held_out": explain.held_out_rows(result),
        "coefficients": coefficient_cells(result.get("coefficients", ())),
        "hidden_levels": result.get("hidden_levels", ()),
        "about_hidden_levels": HIDDEN_LEVELS,
        "forest": forest_chart(result.get("coefficients", ())),
        "not_drawn": not_drawn(result.get("coefficients", ())),
        "errors": {name.replace("_", " "): error for name, error in errors.items()},
        "about_errors": about_errors(result, errors, list(errors)),
        "confusion": confusion_table(result.get("confusion"), columns_of(section)),
        "pictures": pictures(result.get("curves") or {}, result.get("metrics", {}), columns_of(section)),
        "tests_failed": int((rounds["fact.passed"] == 0).sum()) if "fact.passed" in rounds else 0,
        "private": _private(rounds, result, data, section) if "reference_private" in result else None,
    }


def promise(guarantee: dict[str, Any]) -> str:
    """Return the guarantee in plain words."""
    if not guarantee["holds"]:
        return "No privacy is promised: treat the model as if it were the data."
    unit = "any one person (user), with all their samples," if guarantee["unit"] == "user" else "any one SINGLE SAMPLE"
    change = "were replaced" if guarantee["relation"] == "replace_one" else "were added or left out"
    epsilon = guarantee["epsilon"]
    factor = rounded_up(math.exp(epsilon), 3) if epsilon < 20 else f"e^{rounded_up(epsilon, 3)}"
    words = (
        f"If {unit} {change}, no outcome would become more than {factor} times as likely or unlikely (epsilon = "
        f"{explain.shown_claim(epsilon)}), except with probability {explain.shown_claim(guarantee['delta'])} (delta)."
    )
    if guarantee["unit"] == "sample":
        words += " This does NOT protect a person who holds several samples."
    return words


def _course(rounds: pd.DataFrame, result: dict[str, Any], free: dict[str, float] | None = None) -> str | None:
    main = main_metric(result.get("metrics", {}))
    if main is None or f"metric.{main}" not in rounds or not rounds[f"metric.{main}"].notna().any():
        return None
    levels = {name: values.get(main) for name, values in (references(result) | {NON_PRIVATE: free or {}}).items()}
    measured = {name: value for name, value in levels.items() if value is not None}
    return course_chart(rounds, main, result["reference"]["initial"].get(main), measured)


def _private(
    rounds: pd.DataFrame, result: dict[str, Any], data: dict[str, Any], section: dict[str, Any]
) -> dict[str, Any]:
    free = None if result["strategy"] == REFERENCE else result["reference_private"]["non_private"]
    table = data.get("table_private")
    own = _with_units(result["metrics"], section)
    return {
        "metrics": [
            (name.replace("_", " "), own.get(name), value) for name, value in _with_units(free or {}, section).items()
        ],
        "course": _course(rounds, result, free) if free else None,
        "score": score_chart(rounds) if {"fact.score_private", "fact.threshold"} <= set(rounds.columns) else None,
        "samples": result["samples_private"],
        "bounded": data.get("clipped_samples_private", 0),
        "missing": result["missing_users_private"],
        "non_finite": result["non_finite_users_private"],
        "table": table,
        "cells": [] if table is None else explain.cell_counts(table),
        "clip": _clip(rounds),
        "doubts": [] if table is None else [*table.get("nothing_usable", []), *table.get("doubts", [])],
    }


def _clip(rounds: pd.DataFrame) -> list[tuple[str, list[float], str]]:
    found = []
    for name, fact in CLIP_FACTS.items():
        if f"fact.{name}" in rounds and len(values := rounds[f"fact.{name}"].dropna()):
            figures = [float(values.iloc[0]), float(values.median()), float(values.iloc[-1])]
            found.append((name.removesuffix("_private").replace("_", " "), figures, fact.meaning))
    return found


def _numbers(plan: dict[str, Any]) -> list[tuple[str, Any, str]]:
    top = ("rounds", "cohort", "users", "users_needed", "noise", "signal", "pass_probability")
    values = {name: plan[name] for name in top if plan[name] is not None} | plan["numbers"]
    if not promises_something(values.get("replace_one_delta", 0.0), plan["users"]):
        values["replace_one_epsilon"] = values["replace_one_delta"] = explain.NOTHING_PROMISED
    meanings = explained(STRATEGIES[plan["strategy"]].about) if plan["strategy"] in STRATEGIES else {}
    return [(name.replace("_", " "), value, meanings.get(name, "")) for name, value in values.items()]


def _metrics(result: dict[str, Any], section: dict[str, Any]) -> list[list[tuple[str, list[Any], str]]]:
    """Return (name, [this run, reference models ...], meaning) of the most important metrics, and of the others."""
    measured = (result.get("metrics", {}), *references(result).values())
    columns = [_with_units(metrics, section) for metrics in measured]
    meanings = dict.fromkeys(measured[0], "") | explain.METRICS | unit_meanings(measured[0], section)
    return [
        [(name.replace("_", " "), [column.get(name) for column in columns], meanings[name]) for name in names]
        for names in ordered(columns[0])
        if names
    ]


def _with_units(metrics: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    return metrics | in_target_units(metrics, section)


def confusion_table(
    counts: Sequence[Sequence[int]] | None, columns: Mapping[str, Any]
) -> list[tuple[str, list[tuple[int, int]], int | None]]:
    """Make a row for each class from "confusion" of result.json, (K, K); no rows without counts.

    A row holds the class, (count, percent) by predicted class, and the recall in percent if it has samples. ``columns``
    are the declarations of the table's columns; classes without declared levels are numbers.
    """
    if not counts:
        return []
    rows = []
    levels = columns.get("target_levels") or range(len(counts))
    for number, (level, row) in enumerate(zip(levels, counts, strict=True)):
        total = sum(row)
        shares = [round(100 * count / total) if total else 0 for count in row]
        cells = list(zip(row, shares, strict=True))
        rows.append((cell_text(level), cells, shares[number] if total else None))
    return rows


def copy_released(directory: Path, target: Path) -> Path:
    """Copy the fields of a run that others may see into an empty or new folder, and return the path of its report.

    BadInput if the run has not ended, promises nothing, or has noise that anybody can remove.
    """
    _check_released(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput(f"--released {target}: must be a new or an empty folder, so that nothing else is handed on")
    rounds = pd.read_parquet(directory / "rounds.parquet")
    columns = list(kept("rounds.parquet", dict.fromkeys(map(str, rounds.columns)), RELEASED))
    with writing(f"--released {target}:", "choose another"):
        target.mkdir(parents=True, exist_ok=True)
        for name in _AS_THEY_ARE:
            shutil.copyfile(directory / name, target / name)
        if (directory / ANSWERS).is_file():
            shutil.copyfile(directory / ANSWERS, target / ANSWERS)
        for name in _FILTERED:
            (target / name).write_text(as_json(kept(name, read_json(directory / name), RELEASED)), encoding="utf-8")
        rounds[columns].to_parquet(target / "rounds.parquet", index=False)
        path = target / "report.html"
        path.write_text(page(target, ALL_KINDS), encoding="utf-8")  # for others, unlike the files of `render`
    return path


def _check_released(directory: Path) -> None:
    check_files(directory, (*_AS_THEY_ARE, *_FILTERED, "rounds.parquet"), "a run that has ended")
    if not read_json(directory / "guarantee.json")["holds"]:
        raise BadInput(f"{directory}: this run promises no privacy, so nothing of it may be handed on")
    config = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    if config["privacy"]["noise"] == "seeded" and config["data"]["kind"] == "table":
        raise BadInput(
            f'{directory}: privacy.noise = "seeded" does not protect the people of a table: anybody who guesses the '
            "seed can remove the noise; copy a run with secure noise (userdp run FILE --set privacy.noise=secure), "
            "which is a new one, and adds its cost to what this one has spent"
        )
