"""Coefficients as people read them: names, units, and what they are in terms of a model's parameters."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Array, Vector
from userdp.errors import BadInput


@dataclass(frozen=True, eq=False)
class CoefficientMap:
    """K coefficients of a model with p parameters; all of it follows from declarations, nothing from data.

    Models of the form ``model_of @ coefficients`` predict what all models predict: levels of a column are compared with
    the first one, whose parameter is left out (its row of ``model_of`` is zero).

    Attributes:
        names: K names, such as "age" or "sex=female".
        units: the unit of each: "per 1 of age", or "against sex=male".
        spans: (K,) the largest difference of each column that is declared, in its unit; 0 for the intercept.
        of_model: (K, p) coefficients of a model, without the offset.
        model_of: (p, K) the model with these coefficients; ``of_model @ model_of`` is the identity.
        offset: (K,) added to the coefficients of a model: targets may be measured from the middle of their range.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    spans: Vector
    of_model: Array
    model_of: Array
    offset: Vector

    def __post_init__(self) -> None:
        count = len(self.names)
        if not np.allclose(self.of_model @ self.model_of, np.eye(count), atol=1e-8):
            raise BadInput("of_model and model_of disagree: their product must be the identity")

    @property
    def kept(self) -> NDArray[np.intp]:
        """The positions of the parameters that are not left out."""
        return np.flatnonzero(self.model_of.any(axis=1))

    def rows(self, estimates: Vector) -> list[dict[str, Any]]:
        """Return one object for each of the (K,) estimates without offset, of whose certainty nothing is known."""
        values = (estimates + self.offset).tolist()
        return [
            {"coefficient": name, "unit": unit, "span": span, "estimate": one, "standard_error": None, "interval": None}
            for name, unit, span, one in zip(self.names, self.units, self.spans.tolist(), values, strict=True)
        ]

    @classmethod
    def plain(cls, dimension: int, intercept: bool) -> "CoefficientMap":
        """Return the map of features without names or units: parameters are coefficients themselves."""
        features, one = dimension - intercept, np.eye(dimension)
        names = (*(f"feature {place}" for place in range(features)), *("intercept",) * intercept)
        units = (*("per 1",) * features, *("at 0 of all features",) * intercept)
        spans = np.concatenate([np.ones(features), np.zeros(int(intercept))])
        return cls(names, units, spans, one, one, np.zeros(dimension))
