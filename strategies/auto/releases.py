"""Releases of unequal shares of one budget, each of a mean over users, whose vectors move by what is stated."""

import math
from dataclasses import dataclass

from strategies.core.mean_rounds import check_covered
from strategies.core.step import Noise
from userdp.arrays.types import Vector
from userdp.mechanisms import GaussianMechanism
from userdp.nodes.computations import Computation
from userdp.sampling import MixedBatches, WeightedBatches, WeightedSlots


@dataclass(frozen=True)
class Movement:
    """How far one user can move a sum of users' vectors (l2 norms).

    Attributes:
        replaced: by being replaced.
        added: by being added or removed, from or to a zero vector.
        number: whether it is of the number that stands beside the vectors.
    """

    replaced: float
    added: float
    number: bool = False

    @classmethod
    def of_ball(cls, radius: float) -> "Movement":
        """Of vectors of norm at most ``radius``."""
        return cls(2 * radius, radius)

    @classmethod
    def of_box(cls, squares: float) -> "Movement":
        """Of numbers in intervals about zero, whose squared widths have that sum."""
        return cls(math.sqrt(squares), math.sqrt(squares) / 2)

    @classmethod
    def of_interval(cls, low: float, high: float) -> "Movement":
        """Of one number in ``[low, high]``, which holds zero, beside the vectors."""
        return cls(high - low, max(high, -low), number=True)

    @classmethod
    def of_shares(cls) -> "Movement":
        """Of shares of one whole: numbers that are not negative and add up to one at most.

        Squares of numbers in [0, 1] are no more than these, so ``||q||^2 <= 1``. ``<q, r> >= 0`` for such vectors, so
        ``||q - r||^2 = ||q||^2 + ||r||^2 - 2 <q, r> <= 2``, which two users of one class each attain.
        """
        return cls(math.sqrt(2.0), 1.0)

    @classmethod
    def of_matrices(cls, norm: float) -> "Movement":
        """Of positive semidefinite matrices of at most that Frobenius norm.

        ``||H - G||^2 = ||H||^2 + ||G||^2 - 2 <H, G>``, and such matrices have ``<H, G> >= 0``.
        """
        return cls(math.sqrt(2.0) * norm, norm)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Releases of users' means, of which each has its own share of the budget.

    Attributes:
        sampler: who takes part in each round, and the rounds' shares.
        noise_multiplier: of all rounds together.
    """

    sampler: WeightedBatches | WeightedSlots | MixedBatches
    noise_multiplier: float

    def mechanism(self, index: int, movement: Movement, part: float = 1.0) -> GaussianMechanism:
        """Of a mean released in round ``index``, with that part of the round's share."""
        moved = movement.replaced if self.sampler.relation == "replace_one" else movement.added
        multiplier = self.sampler.multiplier(index, self.noise_multiplier)
        return GaussianMechanism(moved / self.sampler.expected(index), multiplier / math.sqrt(part))


@dataclass
class Release:
    """What a round's stage may do to the sum it was answered with: each release has a noise stream of its own.

    Attributes:
        scheme: the shares.
        index: of the round.
        noise: makes the noise source of a purpose within the round.
        asked: what users sent, which no release may take to move less than its clip allows.
        made: releases so far.
    """

    scheme: Shares
    index: int
    noise: Noise
    asked: Computation
    made: int = 0

    def mean(self, sums: Vector, movement: Movement, part: float = 1.0) -> tuple[Vector, float]:
        """(the users' mean with noise for that part of the round's share, the noise's standard deviation).

        Raises:
            RunFailed: a user could move the mean by more than the noise is made for.
        """
        mechanism, source = self.scheme.mechanism(self.index, movement, part), self.noise(self.made)
        self.made += 1
        check_covered(self.asked, mechanism, self.users, self.scheme.sampler.relation, number=movement.number)
        return mechanism.release(sums / self.users, source), mechanism.standard_deviation

    @property
    def users(self) -> float:
        """Who took part, on average: what sums are divided by."""
        return self.scheme.sampler.expected(self.index)
