"""How a loss lies over its domain: what plans predict accuracy by. No privacy proof reads it."""

import math
from dataclasses import dataclass

AVERAGE_SIZE = math.sqrt(2 / math.pi)
"""Expected size of a standard normal number."""


ASSUMED_SIZE = 1.0
"""Largest target, and root mean square of a feature, where neither has a declared bound."""


@dataclass(frozen=True)
class MeasuredCurvature:
    """A bound on a loss's curvature that was measured or guessed: steps follow it, and NO PROOF may rest on it.

    It is no number, so that no `Certificate` can hold it and no formula can take it for certified.

    Attributes:
        most: curvature in any direction.
    """

    most: float


@dataclass(frozen=True)
class Landscape:
    """Sizes of a loss on its declared bounds.

    Attributes:
        start: most that the risk of the initial model can lie above the least one, which the domain is to contain.
        trace: largest trace of a sample's Hessian where training starts.
        steepness: most that the risk grows for each unit of standard deviation of independent normal noise on every
            coordinate of a model; infinite where there is no bound.
        pull: of the ridge term's Hessian, the trace; it comes on top.
        assumed: whether data are unbounded and sizes are what they would be of `ASSUMED_SIZE`: a scale to hold noise
            against, which refuses nothing.
    """

    start: float
    trace: float
    steepness: float
    pull: float = 0.0
    assumed: bool = False

    def of_noise(self, deviation: float) -> float:
        """What independent normal noise of that deviation on every coordinate of the best model costs, at most.

        A loss of curvature H loses ``trace(H) deviation^2 / 2`` in expectation, and one of bounded slope no more than
        its slope times the expected size of what the noise moves its score by.
        """
        square = deviation * deviation  # of a float: infinite where ** would raise
        return min(self.trace * square / 2, self.steepness * deviation) + self.pull * square / 2
