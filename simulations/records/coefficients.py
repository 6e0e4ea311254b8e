"""The coefficients of a run's linear model, in the units of the declared columns, and the levels that noise hides."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulations.config.run_config import RunConfig
from userdp.arrays.types import Vector
from userdp.data.coefficients import CoefficientMap
from userdp.errors import BadInput
from userdp.problems import GeneralisedLinear
from userdp.problems.settings import GeneralisedLinearSettings

HIDDEN = "noise hides how certain it is"
HIDDEN_LEVELS = "so few people hold them that noise hides their share: predictions for them rest on next to nobody"

RATIOS = {"cloglog": "hazard ratio", "logistic": "odds ratio"}
"""The meaning of ``exp`` of a coefficient in a model of hazards by period."""

Rows = Sequence[dict[str, Any]]
"""One object a coefficient: "coefficient", "unit", "span", "estimate", and "standard_error" and "interval" or None."""


def reading_of(config: RunConfig) -> CoefficientMap | None:
    """Return the coefficients that the declared columns give to a linear model; None for other models and data."""
    # Reading tables is slow to import, and most plans need none of it.
    from userdp.data.tables.numeric import Numeric  # noqa: PLC0415
    from userdp.data.tables.sources import TableSource  # noqa: PLC0415

    data, problem = config.data, config.problem
    linear = isinstance(problem, GeneralisedLinearSettings) and issubclass(problem.loss, GeneralisedLinear)
    if not (linear and isinstance(data, TableSource) and isinstance(data.columns.samples, Numeric)):
        return None
    reading = data.columns.samples.coefficients(problem.intercept)
    if data.columns.survival is None:
        return reading
    told = f"log {RATIOS[problem.kind]} "
    units = tuple((told if span > 0 else "") + unit for unit, span in zip(reading.units, reading.spans, strict=True))
    return replace(reading, units=units)


def ratio_of(row: Mapping[str, Any]) -> str:
    """Return the meaning of ``exp`` of a coefficient, from its unit; '' for none."""
    return next((name for name in RATIOS.values() if row["unit"].startswith(f"log {name}")), "")


def of_model(config: RunConfig, model: Vector) -> Rows:
    """Return the coefficients of a released model, of whose certainty nothing was released.

    Raises:
        BadInput: the model is not linear in columns of a table.
    """
    reading = reading_of(config)
    if reading is None:
        raise BadInput(
            f"problem.kind = {config.problem.kind!r}, data.kind = {config.data.kind!r}: there are no coefficients; "
            "train a linear model, such as squared, logistic or poisson, on features of a table"
        )
    return reading.rows(reading.of_model @ model)


def with_level_names(config: RunConfig, told: dict[str, Any]) -> dict[str, Any]:
    """Return what a strategy reports, with "hidden_levels" by name in place of the places of hidden columns."""
    told = dict(told)
    places: Sequence[int] = told.pop("hidden_columns", ())
    if not len(places):
        return told
    from userdp.data.tables.sources import TableSource  # noqa: PLC0415 -- slow to import

    names: Sequence[str] = config.data.columns.samples.level_names if isinstance(config.data, TableSource) else ()
    hidden = [names[place] for place in places if place < len(names) and names[place]]
    return told | ({"hidden_levels": hidden} if hidden else {})
