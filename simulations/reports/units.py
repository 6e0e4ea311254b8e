"""Errors of predictions in the units of the table's target, and the standard errors of metrics."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table

from simulations.records.held_out import EXPLAINED, PERCENTILES
from simulations.reports.explain import METRICS, shown, shown_apart

MEANING = (
    "error of predictions for held-out users, each user with the same weight; targets are clipped to the declared range"
)
_ROOT = "root mean squared error"
_OF_USERS = [f"_p{share}" for share in PERCENTILES]
_NAMES = {
    "squared_error": _ROOT,
    "absolute_error": "absolute error",
    **{f"squared_error{end}": f"{_ROOT}{end.replace('_', ' ')}" for end in _OF_USERS},
    **{f"absolute_error{end}": f"absolute error{end.replace('_', ' ')}" for end in _OF_USERS},
    "calibration_error": "calibration error",
    "predicted_minus_observed": "predicted minus observed",
}
"""Metric of targets in [-1, 1] -> its name in the target's units."""
_FIRST = ("excess_risk", "excess_loss", "accuracy", "macro_f1", "auc", "test_loss")
_LATER = ("log_loss", "calibration_error", "predicted_minus_observed")
_MOST_FIRST = 6


def in_target_units(metrics: Mapping[str, float | None], data: Mapping[str, Any]) -> dict[str, float]:
    """Return name -> error in the target's units; empty if the target has no declared range.

    ``metrics`` are those of result.json, of targets in [-1, 1]; ``data`` is the [data] section of the configuration.
    """
    return {name: value for _, name, value, _ in _converted(metrics, data)}


def unit_meanings(metrics: Mapping[str, float | None], data: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> meaning of the errors from `in_target_units`."""
    return {name: meaning for _, name, _, meaning in _converted(metrics, data)}


def ordered(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split metrics into the at most six that people read first (R2, errors in the target's units, ...) and the rest.

    The rest are percentiles over users, calibration, scaled errors with a counterpart in the target's units, and losses
    that equal the test loss.
    """
    names = list(names)
    in_units = {name.partition(", in units of ")[0]: name for name in names if ", in units of " in name}
    found: list[str] = [name for name in dict.fromkeys(EXPLAINED.values()) if name in names]
    found += [in_units[name] for name in (_ROOT, _NAMES["absolute_error"]) if name in in_units]
    found += [name for name in _FIRST if name in names]
    scaled = {metric for metric, name in _NAMES.items() if name in in_units}
    later = {*found, *scaled, *in_units.values(), *_LATER}
    found += [name for name in names if name not in later and not name.endswith(tuple(_OF_USERS))]
    first = found[:_MOST_FIRST]
    return first, [name for name in names if name not in first]


def _converted(metrics: Mapping[str, float | None], data: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    """Yield (metric, name in the target's units, value, meaning)."""
    columns = columns_of(data)
    # Targets of several classes have no range, and a loss without numeric predictions has no error.
    if not columns.get("target_range"):
        return
    low, high = columns["target_range"]
    unit = 0.5 * (high - low)
    for metric, name in _NAMES.items():
        value = metrics.get(metric)
        if value is not None:
            converted = unit * (math.sqrt(value) if metric.startswith("squared") else value)
            meaning = MEANING if metric in ("squared_error", "absolute_error") else METRICS[metric]
            yield metric, f"{name}, in units of {columns['target']}", converted, meaning


def columns_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the declarations of the table's columns; a public data set brings its own."""
    if data.get("kind") != "public":
        return data
    from userdp.data.tables.public import public_columns  # noqa: PLC0415 -- imports the table reader
    from userdp.data.tables.public_sets import PUBLIC_DATASETS  # noqa: PLC0415

    return public_columns(data["name"], data) if data.get("name") in PUBLIC_DATASETS else data


FEW = 30  # fewest held-out users for a reliable standard error
_WORTH_SAYING = 0.01  # smallest relative standard error that is shown; people do not read the digits of a smaller one


def errors_of(result: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, float]:
    """Return metric -> standard error if it is worth showing, also for metrics in the target's units.

    Failed runs and runs of earlier versions have none; ``data`` is the [data] section of the configuration.
    """
    metrics, errors = result.get("metrics", {}), result.get("standard_errors", {})
    found = [(metrics.get(name), name, error) for name, error in errors.items()]
    for metric, name, value, _ in _converted(metrics, data):
        scaled, error = metrics[metric], errors.get(metric)
        if scaled and error is not None:
            # The relative standard error of the root of a mean is half that of the mean.
            found.append((value, name, value / scaled * error * (0.5 if metric.startswith("squared") else 1.0)))
    return {
        name: error
        for value, name, error in found
        if value is not None and error is not None and error > _WORTH_SAYING * abs(value)
    }


def shown_with_error(values: Iterable[object], error: float | None) -> list[str]:
    """Format numbers like `shown_apart`, with the standard error after the first one; "-" is a missing number.

    >>> shown_with_error([0.8125, 0.5], 0.0312)
    ['0.8125 +/- 0.031', '0.5']
    """
    known = (None if isinstance(value, float) and math.isnan(value) else value for value in values)
    first, *others = ("-" if text == "none" else text for text in shown_apart(known))
    return [first if error is None else f"{first} +/- {shown(error, 2)}", *others]


def metric_table(title: str, columns: Mapping[str, Mapping[str, Any]], errors: Mapping[str, float]) -> Table:
    """Return a table with one row for each metric of the first column, those that people read first on top."""
    table = Table("metric", *columns, title=title)
    first, rest = ordered(next(iter(columns.values())))
    for name in [*first, *rest]:
        cells = shown_with_error([column.get(name) for column in columns.values()], errors.get(name))
        style, last = "" if name in first else "dim", [name] == first[-1:]
        table.add_row(name.replace("_", " "), *cells, style=style, end_section=last)
    return table


def about_errors(result: Mapping[str, Any], errors: Mapping[str, float], names: Iterable[str]) -> list[tuple[str, str]]:
    """Return (soft | warning, sentence) for a table of these metrics: the meaning of +/-, too few held-out users."""
    users = result.get("measured_users")
    if users is None:
        return []
    lines = []
    if any(name in errors for name in names):
        meaning = (
            f"+/- is one standard error over {shown(users)} held-out users: with as many other users, metrics would "
            "differ by less than that in about two of three cases."
        )
        lines.append(("soft", meaning))
    if users < FEW:
        warning = (
            f"Few users were held out ({users}, fewer than {FEW}): metrics and their standard errors are rough. Hold "
            "out more users (data.test_users, data.test_fraction) before you rely on them."
        )
        lines.append(("warning", warning))
    return lines
