"""Noisy means over users, each with its share of one budget."""

import math
from dataclasses import dataclass

from strategies.core.results import Noise
from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.nodes.covered import check_covered
from userdp.nodes.statistics import Statistic
from userdp.sampling import MixedBatches, WeightedBatches, WeightedSlots

AnySampler = WeightedBatches | WeightedSlots | MixedBatches


@dataclass(frozen=True)
class Movement:
    """The distance by which one user can move a sum of users' vectors (l2 norms)."""

    replaced: float  # by being replaced
    added: float  # by being added or removed, from or to a zero vector
    number: bool = False  # whether the sum is that of the statistic beside the vectors

    @classmethod
    def of_ball(cls, radius: float) -> "Movement":
        """Bound vectors of norm at most ``radius``."""
        return cls(2 * radius, radius)

    @classmethod
    def of_box(cls, squares: float) -> "Movement":
        """Bound numbers in intervals about zero, whose squared widths have that sum."""
        return cls(math.sqrt(squares), math.sqrt(squares) / 2)

    @classmethod
    def of_interval(cls, low: float, high: float) -> "Movement":
        """Bound one number in ``[low, high]``, which holds zero, beside the vectors."""
        return cls(high - low, max(high, -low), number=True)

    @classmethod
    def of_acute(cls, norm: float = 1.0) -> "Movement":
        """Bound vectors of at most that norm, no two of which have a negative inner product.

        ``||q - r||^2 = ||q||^2 + ||r||^2 - 2 <q, r> <= 2 norm^2``. Such are numbers that are not negative, among them
        shares of one whole, whose norm is 1 at most, and positive semidefinite matrices with the Frobenius norm.
        """
        return cls(math.sqrt(2.0) * norm, norm)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Releases of users' means, each with its own share of the budget."""

    sampler: AnySampler
    noise_multiplier: float

    def mechanism(self, index: int, movement: Movement, part: float = 1.0) -> GaussianMechanism:
        """Return the mechanism of a mean released in round ``index``, with that part of the round's share."""
        moved = movement.replaced if self.sampler.relation == "replace_one" else movement.added
        if isinstance(self.sampler, MixedBatches):  # a coin also decides whether a user is there at all
            moved = max(moved, self.sampler.sensitivity_factor * movement.added)
        multiplier = self.sampler.multiplier(index, self.noise_multiplier)
        return GaussianMechanism(moved / self.sampler.expected(index), multiplier / math.sqrt(part))


@dataclass
class Release:
    """Releases from the sum of one round, each with a noise stream of its own, and for all that ``asked`` allows."""

    scheme: Shares
    index: int
    noise: Noise
    asked: Computation
    heard: float = 1.0  # released share of users who are not silent; what is released is made a mean over these
    skipped: bool = False  # a killed process may have released the round, and nobody is asked again
    made: int = 0

    def mean(self, sums: Vector, movement: Movement, part: float = 1.0, *, silent: float = 0.0) -> tuple[Vector, float]:
        """Return (heard users' mean with noise for that part of the round's share, the noise's standard deviation).

        The mean over all users is released, to which whoever is ``silent`` adds that; dividing by the share of those
        who are heard, and taking away the others' part, is post-processing.

        Raises:
            RunFailed: a user could move the mean by more than the noise is made for.
        """
        mechanism, source = self.scheme.mechanism(self.index, movement, part), self.noise(self.made)
        self.made += 1
        n = self.scheme.sampler.expected(self.index)
        check_covered(self.asked, mechanism, n, self.scheme.sampler.relation, number=movement.number)
        released = mechanism.release(sums / n, source)
        return (released - (1 - self.heard) * silent) / self.heard, mechanism.standard_deviation / self.heard

    def fraction(
        self, sums: Vector, movement: Movement, part: float = 1.0, *, silent: float = 0.0
    ) -> tuple[float, float]:
        """Return (a released mean of numbers in [-1/2, 1/2], shifted and held to [0, 1], its standard deviation)."""
        released, deviation = self.mean(sums, movement, part, silent=silent)
        return min(max(float(released[0]) + 0.5, 0.0), 1.0), deviation

    def logarithm(self, sums: Vector, statistic: Statistic, part: float = 1.0) -> tuple[float, float]:
        """Return (a released mean of logarithms, held to the statistic's interval, its standard deviation).

        The vector of whoever is silent is zero, the shortest there is.
        """
        movement = Movement.of_interval(statistic.low, statistic.high)
        released, deviation = self.mean(sums, movement, part, silent=statistic.low)
        return min(max(float(released[0]), statistic.low), statistic.high), deviation

    @property
    def users(self) -> float:
        """The expected number of users in the round who are heard."""
        return self.heard * self.scheme.sampler.expected(self.index)
