"""Quantiles of users' samples on a public grid as wide as numbers are, without a declared range."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.costs import Cost
from userdp.accounting.guarantee import Relation
from userdp.arrays.types import Vector
from userdp.errors import BadInput
from userdp.mechanisms.exponential import ExponentialMechanism
from userdp.noise import NoiseSource, Scores

_UNITS = 1 << 20  # A user's vote in units that add up exactly in float64.


def rank_sensitivity(share: float, relation: Relation) -> float:
    """Return how far a user moves a score of `rank_scores`."""
    return 1.0 if relation == "replace_one" else max(share, 1 - share)


def rank_scores(votes: Vector, share: float, relation: Relation, shift: float = 0.0, *, beyond: bool = False) -> Scores:
    """Return the score (G,) of each bin: how many users would have to vote otherwise until the quantile is in it.

    *Formal guarantees.* *Claim.* A user moves no score by more than `rank_sensitivity`, whatever the data. *Why.* Let
    T be the sum of all votes, F those below an edge, and ``E = F - share T - shift``, which rises from the first edge
    to the last. A score is ``-max(0, E at the lower edge, -E at the upper one)``. A user's votes are not negative and
    add up to 1 at most, so the user's part of E lies between -share and 1 - share: replacing a user moves E by 1 at
    most, adding or removing one by max(share, 1 - share). A maximum of three functions, none of which moves further,
    moves no further. The shift is public.

    Args:
        votes: (G,) the sums of users' votes in each bin.
        share: of all votes below the quantile.
        relation: the neighbouring relation, on which the bound rests.
        shift: of the rank, in users.
        beyond: whether to add two scores, the first and the last (G + 2,), of all that lies below the bins and above
            them; then one score is 0, also if the shift leads beyond all votes.
    """
    after = np.cumsum(votes)
    excess = np.concatenate([[0.0], after]) - (share * float(after[-1]) + shift)
    if beyond:
        excess = np.concatenate([[-np.inf], excess, [np.inf]])
    return Scores(-np.maximum(0.0, np.maximum(excess[:-1], -excess[1:])), rank_sensitivity(share, relation))


@dataclass(frozen=True, eq=False)
class Grid:
    """Bins that are chosen without looking at the data: bin j holds ``edges[j] <= x < edges[j + 1]``.

    The outer bins also hold all numbers beyond. Raises `BadInput` for arrays that are not as described.

    Attributes:
        edges: (G + 1,) two finite numbers or more that rise strictly.
        weights: (G + 1,) positive numbers; a bin's chance grows in proportion to that of its lower edge.
    """

    edges: NDArray[np.float64]
    weights: NDArray[np.float64]

    def __post_init__(self) -> None:
        edges, weights = self.edges, self.weights
        if edges.ndim != 1 or len(edges) < 2 or not np.isfinite(edges).all() or np.any(np.diff(edges) <= 0):
            raise BadInput("the edges of a private quantile must be two finite numbers or more that rise strictly")
        if weights.shape != edges.shape or not np.isfinite(weights).all() or np.any(weights <= 0):
            raise BadInput("the weights of a private quantile's edges must be as many positive numbers")

    @classmethod
    def even(cls, edges: NDArray[np.float64]) -> Self:
        """Return the grid whose bins weigh the same."""
        return cls(edges, np.ones(len(edges)))

    @property
    def bins(self) -> NDArray[np.float64]:
        """The weight (G,) of each bin."""
        return self.weights[:-1]

    def turned(self) -> "Grid":
        """Return the grid of negative numbers, whose lower edges are the upper edges of this one."""
        return Grid(-self.edges[::-1], self.weights[::-1])


@dataclass(frozen=True)
class UserQuantile:
    """Chooses the bin of a public grid that holds a quantile of users' samples, all users weighing the same.

    A user's vote is split among its samples, and bins score by `rank_scores`. Some bin always scores 0, however many
    samples are equal. The chance of a bin is proportional to its weight times ``exp(epsilon score / (2 sensitivity))``.

    *Formal guarantees.* Unit: a user. *Claim.* The choice is that of an exponential mechanism whose scores move by at
    most ``sensitivity``: 1 if a user is replaced, ``max(share, 1 - share)`` if one is added or removed. So it is
    (epsilon, 0)-DP, and epsilon^2 / 8-zCDP. *Why.* The votes of a user with a sample add up to 1, and one without has
    none, so `rank_scores` holds. A public weight adds a constant to a score. No range enters. *Assumptions.* The
    grid and users' numbers are public. A user's samples are those of its own rows. Votes are whole multiples of 2^-20
    that add up to one a user, so sums of fewer than 2^33 users are exact in any order; what else is rounded lies within
    the slack of `rounding_slack` for the number of users.

    *Utility.* With n users heard, and probability ``1 - failure``, the chosen bin's lower edge has at most ``share n +
    reach`` of the votes below it, and its upper edge at least ``share n - reach``.

    Attributes:
        share: in (0, 1), the share of the votes below the quantile.
        epsilon: > 0, of the choice.
        relation: the neighbouring relation.
    """

    share: float
    epsilon: float
    relation: Relation

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise BadInput(f"share = {self.share}: must lie strictly between 0 and 1, such as 0.01")

    @property
    def sensitivity(self) -> float:
        """The largest movement of a score, in users."""
        return rank_sensitivity(self.share, self.relation)

    @property
    def mechanism(self) -> ExponentialMechanism:
        """The mechanism that chooses a bin."""
        return ExponentialMechanism(self.sensitivity, self.epsilon)

    @property
    def cost(self) -> Cost:
        """The cost of one choice."""
        return self.mechanism.cost

    def reach(self, grid: Grid, failure: float) -> float:
        """Return how many users' votes the chosen bin is away from the quantile, but with probability ``failure``."""
        return self.mechanism.shortfall(1, failure * float(grid.bins.min() / grid.bins.sum()))

    def scores(self, owner: NDArray[np.int64], values: NDArray[np.float64], edges: NDArray[np.float64]) -> Scores:
        """Return the score (G,) of each bin, in users; see `choose`."""
        usable = np.flatnonzero(~np.isnan(values))
        rows = usable[np.argsort(owner[usable], kind="stable")]
        sizes = np.bincount(owner[rows])
        samples = np.repeat(sizes, sizes)
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        votes = (rank + 1) * _UNITS // np.maximum(samples, 1) - rank * _UNITS // np.maximum(samples, 1)
        bins = np.clip(np.searchsorted(edges, values[rows], side="right") - 1, 0, len(edges) - 2)
        inside = np.bincount(bins, weights=votes, minlength=len(edges) - 1) / _UNITS
        return rank_scores(inside, self.share, self.relation)

    def choose(self, owner: NDArray[np.int64], values: NDArray[np.float64], grid: Grid, noise: NoiseSource) -> int:
        """Return the number of the chosen bin.

        Args:
            owner: (N,) public number of each sample's user.
            values: (N,) samples; NaN for one that does not count.
            grid: G bins.
            noise: the source of the noise.
        """
        constants = 2 * self.sensitivity / self.epsilon * np.log(grid.bins)
        return self.mechanism.choose(self.scores(owner, values, grid.edges).plus(constants), noise)
