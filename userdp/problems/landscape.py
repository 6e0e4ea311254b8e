"""The sizes of a loss over its domain, from which plans predict accuracy. No privacy proof reads them."""

import math
from dataclasses import dataclass

AVERAGE_SIZE = math.sqrt(2 / math.pi)
"""The expected size of a standard normal number."""


ASSUMED_SIZE = 1.0
"""The assumed largest target, and root mean square of a feature, if they have no declared bound."""


@dataclass(frozen=True)
class MeasuredCurvature:
    """A measured or guessed bound ``most`` on a loss's curvature, for step sizes; NO PROOF rests on it.

    It is no number, so that no `Certificate` can hold it and no formula can mistake it for certified.
    """

    most: float


@dataclass(frozen=True)
class Landscape:
    """The sizes of a loss on its declared bounds.

    Attributes:
        start: bound on the risk of the initial model minus the least one, which the domain is assumed to contain.
        trace: largest trace of a sample's Hessian at the initial model.
        steepness: most that the risk grows for each unit of standard deviation of independent normal noise on every
            coordinate of a model; infinite if unbounded.
        pull: trace of the ridge term's Hessian, in addition to ``trace``.
        assumed: whether data have no bounds and `ASSUMED_SIZE` stands for them: a scale to compare noise with, which
            refuses nothing.
    """

    start: float
    trace: float
    steepness: float
    pull: float = 0.0
    assumed: bool = False

    def of_noise(self, deviation: float) -> float:
        """Bound the cost of independent normal noise of that standard deviation on every coordinate of the best model.

        A loss of curvature H loses ``trace(H) deviation^2 / 2`` in expectation, and one of bounded slope no more than
        its slope times the expected change of its score by the noise.
        """
        square = deviation * deviation  # of a float: infinite where ** would raise
        return min(self.trace * square / 2, self.steepness * deviation) + self.pull * square / 2
