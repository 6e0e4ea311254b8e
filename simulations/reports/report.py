"""report.html: one page, complete in itself, made from the files of a run directory and nothing else."""

import json
import math
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from simulations.config.run_config import REFERENCE
from simulations.records.evaluation import main_metric
from simulations.records.released_fields import ALL_KINDS, Kind, kept
from simulations.reports.confusion import confusion_table
from simulations.reports.explain import (
    METRICS,
    NOTHING_PROMISED,
    chance,
    percent,
    shown,
    shown_apart,
    shown_claim,
    shown_number,
)
from simulations.reports.loading import cell_counts
from simulations.reports.pictures import pictures
from simulations.reports.plots import course_chart, score_chart
from simulations.reports.report_page import PAGE, STYLE
from simulations.reports.standing import NON_PRIVATE, about_constant, references, standing
from simulations.reports.uncertainty import about_errors, errors_of, shown_with_error
from simulations.reports.units import columns_of, in_target_units, ordered, unit_meanings
from strategies.core.clip_facts import CLIP_FACTS
from strategies.core.descriptions import explained
from strategies.registry import STRATEGIES
from userdp.accounting.composition import promises_something
from userdp.accounting.guarantee import rounded_up
from userdp.errors import BadInput
from userdp.tracebacks import without_internals

_NEEDED = ("config.toml", "plan.json", "result.json", "guarantee.json", "rounds.parquet")


@without_internals
def render(directory: Path, kinds: Collection[Kind] = ALL_KINDS) -> Path:
    """Write report.html into a run directory, of fields of those kinds.

    Returns:
        Its path.

    Raises:
        BadInput: the directory does not hold a run's files.
    """
    path = directory / "report.html"
    path.write_text(page(directory, kinds), encoding="utf-8")
    return path


def page(directory: Path, kinds: Collection[Kind] = ALL_KINDS) -> str:
    """The report of a run directory, of fields of those kinds.

    What is private stands in a section of its own, which says so; the rest reads the same without it.

    Raises:
        BadInput: the directory does not hold a run's files.
    """
    for name in _NEEDED:
        if not (directory / name).is_file():
            raise BadInput(f"{directory} holds no {name}: give the directory of a run, such as runs/quickstart-...")
    return fill(PAGE, _content(directory, kinds))


def fill(template: str, content: dict[str, Any], *, html: bool = True) -> str:
    """A page from its template; with ``html`` what stands in the content cannot add markup."""
    environment = Environment(
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (shown, percent, chance, shown_apart, shown_claim, shown_with_error)
    environment.filters |= {one.__name__: one for one in filters}
    environment.globals["shown_number"] = shown_number
    return environment.from_string(template).render(style=Markup(STYLE), **content)


def _content(directory: Path, kinds: Collection[Kind]) -> dict[str, Any]:
    """What the template shows."""
    names = ("result.json", "plan.json", "guarantee.json", "data.json")
    result, plan, guarantee, data = (kept(name, _json(directory / name), kinds) for name in names)
    config = (directory / "config.toml").read_text(encoding="utf-8")
    section = tomllib.loads(config).get("data", {})
    rounds = pd.read_parquet(directory / "rounds.parquet")
    rounds = rounds[list(kept("rounds.parquet", dict.fromkeys(map(str, rounds.columns)), kinds))]
    return {
        "result": result,
        "plan": plan,
        "guarantee": guarantee,
        "data": data,
        "config": config,
        "requested": tomllib.loads(config)["privacy"],
        "verdict": standing(result) if "metrics" in result or "error" in result else None,
        "promise": promise(guarantee),
        "course": _course(rounds, result),
        "numbers": _numbers(plan),
        "references": list(references(result)),
        "about_constant": about_constant(result),
        "metrics": _metrics(result, section),
        "confusion": confusion_table(result.get("confusion"), columns_of(section)),
        **_uncertainty(result, section),
        "pictures": pictures(result.get("curves") or {}, result.get("metrics", {}), columns_of(section)),
        "tests_failed": _failed_tests(rounds),
        "private": _private(rounds, result, data, section) if "reference_private" in result else None,
    }


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is no file: a run that was killed leaves no data.json."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return values


def promise(guarantee: dict[str, Any]) -> str:
    """The guarantee in plain words."""
    if not guarantee["holds"]:
        return "No privacy is promised: treat the model as if it were the data."
    whom = "any one person (user), with all their samples," if guarantee["unit"] == "user" else "any one SINGLE SAMPLE"
    change = "were replaced" if guarantee["relation"] == "replace_one" else "were added or left out"
    epsilon = guarantee["epsilon"]
    factor = rounded_up(math.exp(epsilon), 3) if epsilon < 20 else f"e^{rounded_up(epsilon, 3)}"
    words = (
        f"If {whom} {change}, no outcome would become more than {factor} times as likely or unlikely (epsilon = "
        f"{shown_claim(epsilon)}), except with probability {shown_claim(guarantee['delta'])} (delta)."
    )
    if guarantee["unit"] == "sample":
        words += " This does NOT protect a person who holds several samples."
    return words


def _course(rounds: pd.DataFrame, result: dict[str, Any], free: dict[str, float] | None = None) -> str | None:
    """The chart of the main metric by round; with a line for training without privacy, if that is given."""
    main = main_metric(result.get("metrics", {}))
    if main is None or f"metric.{main}" not in rounds or not rounds[f"metric.{main}"].notna().any():
        return None
    lines = {name: values.get(main) for name, values in references(result).items()} | {
        NON_PRIVATE: (free or {}).get(main)
    }
    return course_chart(
        rounds,
        main,
        result["reference"]["initial"].get(main),
        {name: one for name, one in lines.items() if one is not None},
    )


def _private(
    rounds: pd.DataFrame, result: dict[str, Any], data: dict[str, Any], section: dict[str, Any]
) -> dict[str, Any]:
    """What stands in the section for the holder of the data alone."""
    free = None if result["strategy"] == REFERENCE else result["reference_private"]["non_private"]
    table = data.get("table_private")
    scored = {"fact.score_private", "fact.threshold"} <= set(rounds.columns)
    return {
        "metrics": [
            (name.replace("_", " "), _with_units(result["metrics"], section).get(name), value)
            for name, value in _with_units(free or {}, section).items()
        ],
        "course": _course(rounds, result, free) if free else None,
        "score": score_chart(rounds) if scored else None,
        "samples": result["samples_private"],
        "bounded": data.get("clipped_samples_private", 0),
        "missing": result["missing_users_private"],
        "non_finite": result["non_finite_users_private"],
        "table": table,
        "cells": [] if table is None else cell_counts(table),
        "clip": _clip(rounds),
        "met_nowhere": [] if table is None else [*table.get("nothing_usable", []), *table.get("met_nowhere", [])],
    }


def _clip(rounds: pd.DataFrame) -> list[tuple[str, list[float], str]]:
    """What clips are tuned by: (name, [in the first round that has it, median over rounds, in the last], meaning)."""
    found = []
    for name, fact in CLIP_FACTS.items():
        if f"fact.{name}" in rounds and len(values := rounds[f"fact.{name}"].dropna()):
            figures = [float(values.iloc[0]), float(values.median()), float(values.iloc[-1])]
            found.append((name.removesuffix("_private").replace("_", " "), figures, fact.meaning))
    return found


def _numbers(plan: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """(name, value, what it means) of every number of the plan."""
    top = ("rounds", "cohort", "users", "users_needed", "noise", "signal", "pass_probability")
    values = {name: plan[name] for name in top if plan[name] is not None} | plan["numbers"]
    if not promises_something(values.get("replace_one_delta", 0.0), plan["users"]):
        values["replace_one_epsilon"] = values["replace_one_delta"] = NOTHING_PROMISED
    meanings = explained(STRATEGIES[plan["strategy"]]) if plan["strategy"] in STRATEGIES else {}
    return [(name.replace("_", " "), value, meanings.get(name, "")) for name, value in values.items()]


def _metrics(result: dict[str, Any], section: dict[str, Any]) -> list[list[tuple[str, list[Any], str]]]:
    """(name, [this run, and what needs no features], what it means) of the few that matter most, and of the others."""
    measured = (result.get("metrics", {}), *references(result).values())
    columns = [_with_units(metrics, section) for metrics in measured]
    meanings = dict.fromkeys(measured[0], "") | METRICS | unit_meanings(measured[0], section)
    first, rest = ordered(columns[0])
    return [
        [(name.replace("_", " "), [column.get(name) for column in columns], meanings[name]) for name in names]
        for names in (first, rest)
        if names
    ]


def _uncertainty(result: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    """Standard errors by the names that the table of metrics has, and what is said of them under it."""
    errors = errors_of(result, section)
    return {
        "errors": {name.replace("_", " "): error for name, error in errors.items()},
        "about_errors": about_errors(result, errors, list(errors)),
    }


def _with_units(metrics: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    return metrics | in_target_units(metrics, section)


def _failed_tests(rounds: pd.DataFrame) -> int:
    """Batches or phases that did not pass their test."""
    return int((rounds["fact.passed"] == 0).sum()) if "fact.passed" in rounds else 0
