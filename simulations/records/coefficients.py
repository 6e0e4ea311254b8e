"""The coefficients of a run's linear model, in the units of the declared columns."""

from collections.abc import Sequence
from typing import Any

from simulations.config.run_config import RunConfig
from strategies.auto.inference import NORMAL, Inference
from userdp.arrays.types import Vector
from userdp.data.coefficients import CoefficientMap
from userdp.errors import BadInput
from userdp.problems import GeneralisedLinear
from userdp.problems.settings import GeneralisedLinearSettings

HIDDEN = "noise hides how certain it is"

Rows = Sequence[dict[str, Any]]
"""One object a coefficient: "coefficient", "unit", "span", "estimate", and "standard_error" and "interval" or None."""


def reading_of(config: RunConfig) -> CoefficientMap | None:
    """Return the coefficients that the declared columns give to a linear model; None for other models and data."""
    # Reading tables is slow to import, and most plans need none of it.
    from userdp.data.tables.coefficients import coefficient_map  # noqa: PLC0415
    from userdp.data.tables.numeric import Numeric  # noqa: PLC0415
    from userdp.data.tables.sources import TableSource  # noqa: PLC0415

    data, problem = config.data, config.problem
    linear = isinstance(problem, GeneralisedLinearSettings) and issubclass(problem.loss, GeneralisedLinear)
    if not (linear and isinstance(data, TableSource) and isinstance(data.columns.samples, Numeric)):
        return None
    return coefficient_map(data.columns, problem.intercept)


def with_errors(reading: CoefficientMap, found: Inference) -> Rows:
    """Return the coefficients that a run released, with standard errors where these can be trusted."""
    rows = _rows(reading, found.estimate)
    for row, error, trusted in zip(rows, found.error.tolist(), found.trusted.tolist(), strict=True):
        if trusted:
            reach = NORMAL * error
            row |= {"standard_error": error, "interval": [row["estimate"] - reach, row["estimate"] + reach]}
    return rows


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
    return _rows(reading, reading.of_model @ model)


def _rows(reading: CoefficientMap, estimates: Vector) -> Rows:
    values = (estimates + reading.offset).tolist()
    return [
        {"coefficient": name, "unit": unit, "span": span, "estimate": value, "standard_error": None, "interval": None}
        for name, unit, span, value in zip(reading.names, reading.units, reading.spans.tolist(), values, strict=True)
    ]
