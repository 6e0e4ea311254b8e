"""Standard errors of metrics measured on held-out users, and the sentences about them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from simulations.reports.explain import shown, shown_apart
from simulations.reports.units import errors_in_target_units

FEW = 30  # fewest held-out users for a reliable standard error
_WORTH_SAYING = 0.01  # smallest relative standard error that is shown; people do not read the digits of a smaller one


def errors_of(result: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, float]:
    """Return metric -> standard error if it is worth showing, also for metrics in the target's units.

    Failed runs and runs of earlier versions have none; ``data`` is the [data] section of the configuration.
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
    """Format numbers like `shown_apart`, with the standard error after the first one; "-" is a missing number.

    >>> shown_with_error([0.8125, 0.5], 0.0312)
    ['0.8125 +/- 0.031', '0.5']
    """
    known = (None if isinstance(value, float) and math.isnan(value) else value for value in values)
    first, *others = ("-" if text == "none" else text for text in shown_apart(known))
    return [first if error is None else f"{first} +/- {shown(error, 2)}", *others]


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
