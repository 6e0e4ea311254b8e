"""Errors of predictions in the units of the table's target, which is scaled to [-1, 1] for training."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simulations.records.measured import EXPLAINED, PERCENTILES
from simulations.reports.explain import METRICS

MEANING = (
    "of predictions for held-out users, each with the same weight; target cells are clipped into the declared range"
)
_ROOT = "root mean squared error"
_OF_USERS = [f"_p{share}" for share in PERCENTILES]
_TOLD = {
    "squared_error": _ROOT,
    "absolute_error": "absolute error",
    **{f"squared_error{end}": f"{_ROOT}{end.replace('_', ' ')}" for end in _OF_USERS},
    **{f"absolute_error{end}": f"absolute error{end.replace('_', ' ')}" for end in _OF_USERS},
    "calibration_error": "calibration error",
    "predicted_minus_observed": "predicted minus observed",
}
"""Metric of targets in [-1, 1] -> what it is called in the target's units."""
_FIRST = ("excess_risk", "excess_loss", "accuracy", "macro_f1", "auc", "test_loss")
_LATER = ("log_loss", "calibration_error", "predicted_minus_observed")
_MOST_FIRST = 6


def in_target_units(metrics: Mapping[str, float | None], data: Mapping[str, Any]) -> dict[str, float]:
    """Name -> error in units of the target; nothing where the target has no declared range, or nothing was measured.

    Args:
        metrics: of a model, as result.json has them: of targets in [-1, 1].
        data: the [data] section of the run's configuration.
    """
    return {name: value for _, name, value, _ in _converted(metrics, data)}


def unit_meanings(metrics: Mapping[str, float | None], data: Mapping[str, Any]) -> dict[str, str]:
    """What each of these means."""
    return {name: meaning for _, name, _, meaning in _converted(metrics, data)}


def errors_in_target_units(
    metrics: Mapping[str, float | None], errors: Mapping[str, float | None], data: Mapping[str, Any]
) -> list[tuple[str, float, float]]:
    """(name, value, its standard error) in units of the target, of metrics whose own standard errors are given.

    In proportion to its size the root of a mean moves by half as much as the mean.

    Args:
        metrics: of a model, of targets in [-1, 1].
        errors: metric -> its standard error, likewise.
        data: the [data] section of the run's configuration.
    """
    found = []
    for metric, name, value, _ in _converted(metrics, data):
        scaled, error = metrics[metric], errors.get(metric)
        if scaled and error is not None:
            found.append((name, value, value / scaled * error * (0.5 if metric.startswith("squared") else 1.0)))
    return found


def ordered(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Metrics as people read them: at most six first: R2, errors in the target's units; then the rest.

    The rest are percentiles over users, calibration, what is scaled where it stands in units too, and losses that are
    the test loss by another name.

    Args:
        names: of result.json's metrics and of those in units.
    """
    names = list(names)
    in_units = {name.partition(", in units of ")[0]: name for name in names if ", in units of " in name}
    found: list[str] = [name for name in dict.fromkeys(EXPLAINED.values()) if name in names]
    found += [in_units[told] for told in (_ROOT, _TOLD["absolute_error"]) if told in in_units]
    found += [name for name in _FIRST if name in names]
    scaled = {name for name, told in _TOLD.items() if told in in_units}
    later = {*found, *scaled, *in_units.values(), *_LATER}
    found += [name for name in names if name not in later and not name.endswith(tuple(_OF_USERS))]
    first = found[:_MOST_FIRST]
    return first, [name for name in names if name not in first]


def _converted(metrics: Mapping[str, float | None], data: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    """(metric, its name in units, value, what it means)."""
    columns = columns_of(data)
    # Targets of several classes, and a loss that predicts no number, have no range or no error.
    if not columns.get("target_range"):
        return
    low, high = columns["target_range"]
    unit = 0.5 * (high - low)
    for metric, told in _TOLD.items():
        value = metrics.get(metric)
        if value is not None:
            converted = unit * (math.sqrt(value) if metric.startswith("squared") else value)
            meaning = MEANING if metric in ("squared_error", "absolute_error") else METRICS[metric]
            yield metric, f"{told}, in units of {columns['target']}", converted, meaning


def columns_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the table's columns are declared to be; a public data set has declarations of its own."""
    if data.get("kind") != "public":
        return data
    from userdp.data.tables.public import public_columns  # noqa: PLC0415 -- with it comes what reads tables
    from userdp.data.tables.public_sets import PUBLIC_DATASETS  # noqa: PLC0415

    return public_columns(data["name"], data) if data.get("name") in PUBLIC_DATASETS else data
