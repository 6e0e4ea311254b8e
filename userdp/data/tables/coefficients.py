"""The coefficients of a linear model in the units of a table's own columns."""

import numpy as np

from userdp.data.coefficients import CoefficientMap
from userdp.data.tables.columns import Columns
from userdp.data.tables.numeric import Numeric
from userdp.errors import BadInput

INTERCEPT = "intercept"


def coefficient_map(columns: Columns, intercept: bool) -> CoefficientMap:
    """Return the map of a linear score of these columns, whose parameters are those of its features.

    A feature is ``a + f x`` of a column x, so its coefficient is f times the parameter, and the intercept, at x = 0 for
    all numbers, gains a times the parameter. With an intercept one level of a column says nothing that the others do
    not: each is compared with the first. A target in a declared range is half the range times the score, above its
    middle.

    Raises:
        BadInput: features have no columns of their own (codes, sequences, pictures).
    """
    samples = columns.samples
    if not isinstance(samples, Numeric):
        raise BadInput("coefficients need features of their own columns: declare data.features or data.categorical")
    features, low = samples.names, samples.low
    factors, starts, spans = np.ones(len(features)), np.zeros(len(features)), np.ones(len(features))
    for place, (first, last) in enumerate(samples.ranges.values()):
        spans[place] = last - first
        factors[place] = (1.0 - low) / (last - first)
        starts[place] = low - factors[place] * first
    levels = {place: places[0] for places in samples.places.values() for place in places}
    references = levels if intercept else {}
    width = len(features) + intercept
    of_model = np.eye(width)
    of_model[range(len(features)), range(len(features))] = factors
    if intercept:
        of_model[-1, :-1] = starts
    for place, first in references.items():
        of_model[place, first] -= 1.0
        of_model[-1, first] = 1.0
    kept = [place for place in range(width) if references.get(place) != place]
    of_model = of_model[kept]
    model_of = np.zeros((width, len(kept)))
    model_of[kept] = np.linalg.inv(of_model[:, kept])
    size, middle = _target(columns)
    offset = np.zeros(len(kept))
    if intercept:
        offset[-1] = middle
    names, spans = [*features, INTERCEPT], np.append(spans, 0.0)
    units = [*(_unit(samples, place, references) for place in range(len(features))), "at 0 of all numbers"]
    return CoefficientMap(
        tuple(names[place] for place in kept),
        tuple(units[place] for place in kept),
        spans[kept],
        size * of_model,
        model_of / size,
        offset,
    )


def _target(columns: Columns) -> tuple[float, float]:
    """Return half the length and the middle of the target's declared range; (1, 0) without one."""
    if columns.target_range is None:
        return 1.0, 0.0
    low, high = columns.target_range
    return (high - low) / 2.0, (low + high) / 2.0


def _unit(samples: Numeric, place: int, references: dict[int, int]) -> str:
    name = samples.names[place]
    if place in references:
        return f"against {samples.names[references[place]]}"
    if place >= len(samples.ranges):
        return "1 or 0"
    return f"per day of {name}" if name in samples.dated.bounds else f"per 1 of {name}"
