"""How exact metrics are that are measured on held-out people, in words: standard errors beside the model's own."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from simulations.reports.explain import shown, shown_apart
from simulations.reports.units import errors_in_target_units

FEW = 30
"""Held-out people from which on a standard error itself is trusted."""
_WORTH_SAYING = 0.01
"""Of a metric: a smaller error is not in the digits that people look at."""


def errors_of(result: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, float]:
    """Metric -> its standard error, where that is worth saying; also of errors in the target's units.

    Args:
        result: the content of result.json; of an older run, which holds none, or of one that failed there are none.
        data: the [data] section of the run's configuration.
    """
    metrics, errors = result.get("metrics", {}), result.get("standard_errors", {})
    found = [(metrics.get(name), name, error) for name, error in errors.items()]
    found += [(value, name, error) for name, value, error in errors_in_target_units(metrics, errors, data)]
    return {
        name: error
        for value, name, error in found
        if value is not None and error is not None and error > _WORTH_SAYING * abs(value)
    }


def shown_with_error(values: Iterable[object], error: float | None) -> list[str]:
    """Numbers side by side, as `shown_apart` writes them; with an error the first, of the model itself, has it behind.

    What was not measured is a dash.

    >>> shown_with_error([0.8125, 0.5], 0.0312)
    ['0.8125 +/- 0.031', '0.5']
    """
    known = (None if isinstance(value, float) and math.isnan(value) else value for value in values)
    first, *others = ("-" if told == "none" else told for told in shown_apart(known))
    return [first if error is None else f"{first} +/- {shown(error, 2)}", *others]


def about_errors(result: Mapping[str, Any], errors: Mapping[str, float], names: Iterable[str]) -> list[tuple[str, str]]:
    """(soft | warning, a sentence) to stand under a table of metrics: what +/- means; that few were held out.

    Args:
        result: the content of result.json.
        errors: of `errors_of`.
        names: of the table's rows.
    """
    people = result.get("measured_users")
    if people is None:
        return []
    told = []
    if any(name in errors for name in names):
        meaning = (
            f"+/- is one standard error over {shown(people)} held-out people: with as many others, numbers "
            "would differ by less than that in about two of three cases."
        )
        told.append(("soft", meaning))
    if people < FEW:
        warning = (
            f"Few people were held out ({people}, fewer than {FEW}): metrics are rough, and so are their standard "
            "errors. Hold out more (data.test_users, data.test_fraction) before you rely on them."
        )
        told.append(("warning", warning))
    return told
