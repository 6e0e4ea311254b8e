"""A sum over nodes that shows the server the noisy total alone: grid, shares of discrete noise and masks, as one value.

>>> import numpy as np
>>> from userdp.masking.grid import IntegerGrid
>>> from userdp.masking.masks import MaskKey
>>> from userdp.masking.sums import MaskedSum
>>> nodes = [MaskKey(), MaskKey()]
>>> asked = MaskedSum(IntegerGrid(-40), deviation=0.001, seed=0).among(tuple(node.public for node in nodes))
>>> parts = [asked.hidden(asked.whole(np.ones((1, 1)))[0], node, b"", place) for place, node in enumerate(nodes)]
>>> bool(abs(asked.values(parts[0] + parts[1])[0] - 2) < 0.01)
True
"""

import math
from dataclasses import dataclass, replace
from itertools import count
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid, Residues
from userdp.masking.masks import MaskKey
from userdp.masking.shares import hiding
from userdp.noise import discrete_gaussian
from userdp.randomness import stream

SUM_SLACK = 2.0**-20
"""The relative excess of the noise over what the sensitivity demands; covers that of clipped rows in float64."""

_SHARE = 8  # Label that separates nodes' shares of noise from the server's and from users' own.
_LEAST_SHARE = 8.0  # Of a share's deviation, in grid steps.
_MOST_SHARE = 2.0**58  # Of the same: 16 of them, beside a sum below 2^62, are a signed number of 64 bits.
_MOST_NODES = 1 << 30
LEAST_NODES = 2
"""The fewest nodes of a sum: nobody would hide the total of one."""
_ROUNDING = 1 + 2.0**-50  # So that 0.29 of 100 nodes are 29 of them, in floating point too.


def coalition(nodes: int, colluding: float) -> int:
    """Return the most of k = ``nodes`` >= 2 nodes that collude: a share ``colluding`` in [0, 1) of them, at least one.

    Every node knows its own share of the noise, so a single curious one is a coalition. One node is always left.
    """
    return min(nodes - 1, max(1, math.floor(colluding * nodes * _ROUNDING)))


def loudness(nodes: int, colluding: float, lost: int = 0) -> float:
    """Return the noise of all nodes over that of the nodes outside the largest `coalition`, but for ``lost`` of these.

    Raises `BadInput` if none is left.
    """
    left = nodes - coalition(nodes, colluding) - lost
    if left < 1:
        raise BadInput(
            f"{nodes} nodes are too few for privacy.lost_nodes = {lost} and privacy.colluding = {colluding:g}, which "
            f"may leave nobody's noise: at least {fewest_nodes(colluding, lost)} nodes are needed"
        )
    return math.sqrt(nodes / left)


def fewest_nodes(colluding: float, lost: int) -> int:
    """Return the fewest nodes of which one is left without a `coalition` and ``lost`` others."""
    first = max(LEAST_NODES, math.floor(lost / max(1 - colluding, 1 / _MOST_NODES)))
    return next(nodes for nodes in count(first) if nodes - coalition(nodes, colluding) > lost)


def most_loudness(colluding: float, lost: int = 0) -> float:
    """Return a bound on the `loudness` of any number of nodes: a number that leaves one of them has it, or nearly.

    Let m of k nodes be left. If one colludes, ``k / m = 1 + (1 + lost) / m``. If the share ``colluding`` of k does, at
    most, ``k (1 - colluding) <= m + lost``. Both bounds on ``k / m`` are largest at m = 1.
    """
    return math.sqrt(max(2.0 + lost, (1 + lost) / max(1 - colluding * _ROUNDING, 1 / _MOST_NODES)))


def threshold(nodes: int, colluding: float, lost: int) -> int:
    """Return how many of N = ``nodes`` nodes' shares rebuild a secret, for (c) of `userdp.masking.shares.Sharing`.

    It is the least number for which that holds, so that as many nodes as possible may be gone when shares are asked
    for. With so few nodes that this exceeds N - ``lost``, it is N - ``lost``, and (b) alone holds: see
    `withstands_lies`. Raises `BadInput` if the largest `coalition` would have as many.
    """
    loudness(nodes, colluding, lost)
    others = nodes - coalition(nodes, colluding)
    return min(nodes - lost, nodes - others + others * lost // (lost + 1) + 1)


def withstands_lies(nodes: int, colluding: float, lost: int) -> bool:
    """Return whether (c) of `userdp.masking.shares.Sharing` holds, at the `threshold` for so many nodes."""
    return nodes - coalition(nodes, colluding) > lost * (lost + 1)


def least_loudness(most_nodes: int, colluding: float) -> float:
    """Return the smallest `loudness` of 2 to ``most_nodes`` nodes: that of the largest number with a coalition of one.

    With c of k nodes in it, loudness rises with ``c / k``. While c is one, that falls with k. From two on,
    ``c / k > c colluding / (c + 1)``, which is no less than the value at the end of one. If some of the k nodes fall
    silent, the noise of the others is above that of those outside the coalition by more: c is a larger share of them.
    """
    last = most_nodes if not colluding else min(most_nodes, math.ceil(2 / colluding))
    return min(loudness(nodes, colluding) for nodes in range(max(LEAST_NODES, last - 2), last + 1))


@dataclass(frozen=True)
class MaskedSum:
    """A sum over nodes, as each node that adds its part knows it.

    *Formal guarantees.* *Claim.* Let each user's row be clipped to norm C, and each of the k >= 2 nodes of a sum add to
    the sum of its users' rows an independent discrete Gaussian share of deviation ``deviation / sqrt(k)`` on each of p
    coordinates. Let the adversary know the keys, data and shares of c < k of these nodes, the masked parts of all, and
    with them the sum and every iterate. Let the sum lack the parts of at most l other nodes; none, unless secrets are
    shared (`userdp.masking.shares.Sharing`). Let ``sigma = deviation sqrt((k - c - l) / k)`` be at least ``z`` times
    the sensitivity, enlarged by `SUM_SLACK`. Then for users of the other nodes the sum is as private as the Gaussian
    mechanism with noise multiplier z, but for an addition to delta of less than
    ``(1 + e^epsilon) p (step / sigma)^2 / 40``. *Adversaries.* The server: c = 0. Another node, which subtracts its own
    share from the iterate it receives: c = 1, with or without the server. Nodes that collude: c of them, with or
    without the server, which adds nothing but the sum. `among` makes the sum so loud that sigma is the requested
    deviation at c = `coalition` and l = ``lost``; an adversary of fewer nodes sees more noise, which is
    post-processing. A user is not protected against the node that holds its data. *Unit and relation.* Those of the
    sensitivity: a user; 2C for replacing one. *Proof.*

    1. *Visible values.* Given the others' parts, masked parts reveal only the sum of these nodes' rows and shares
       modulo 2^64 (`MaskKey`; this step needs a bounded adversary), a function of that sum. If secrets are shared, it
       is the sum of all these nodes but l, and nothing of the others' parts is revealed (`Sharing`). Who is in it
       follows from what was released before and from who fell silent.
    2. *Sensitivity.* A user's row on the grid is at most ``C (1 + 2^-22)`` long (`IntegerGrid`, `rounding_slack`), so
       the sum moves by no more than the sensitivity enlarged by `SUM_SLACK`, exactly: whole numbers are added.
    3. *Shares add up to one discrete Gaussian, nearly.* Let X and Y be discrete Gaussians on the whole numbers with
       parameters s and t; ``r^2 = s^2 t^2 / (s^2 + t^2)``, ``c = s^2 / (s^2 + t^2)``. Completing the square,
       ``P(X + Y = y)`` is proportional to ``exp(-y^2 / (2 (s^2 + t^2))) sum_x exp(-(x - c y)^2 / (2
       r^2))``. By Poisson summation the sum over x is ``sqrt(2 pi) r (1 + e)`` with ``|e| <= 2 sum_j exp(-2 pi^2 r^2
       j^2)`` for every y. So the law of X + Y is that of one discrete Gaussian of parameter ``sqrt(s^2 + t^2)`` up to a
       factor within ``(1 + e) / (1 - e)`` of 1. Adding h equal shares one by one, ``r^2 >= s^2 / 2``, so after h of
       them the factor is within ``5 h exp(-pi^2 s^2)`` of 1: below 1e-260 for the s >= 8 and h <= 2^30 demanded here
       (Kairouz, Liu, Steinke 2021, Theorem 11, is like it).
    4. *One discrete Gaussian is a rounded continuous one, nearly.* Their total variation is below
       ``(step / sigma)^2 / 49`` on each coordinate, by the midpoint rule (`userdp.noise.SecureNoise`, step 3); with
       what step 3 adds, below a fortieth. Rounding is post-processing of the Gaussian mechanism on whole numbers, and
       an output law within total variation t of an (epsilon, delta)-DP one is (epsilon, delta + (1 + e^epsilon) t)-DP.
       Over coordinates and adaptive rounds these t add up.
    5. *Remaining shares.* At least k - c - l nodes in the sum keep their shares secret, whose deviation together is
       sigma or more. The adversary's knowledge of the c others is independent of these shares: subtracting it is
       post-processing.
    6. *Rounds.* Nodes of a sum are those that hold its cohort, so k varies. The claim holds for each sum with its own
       k, and `among` prices each: rounds compose at sigma. A sum of one node is refused: nobody else would hide its
       total.
    7. *Once.* With one key a node answers one question of a round (`MaskKey.spend`), so no part is released twice with
       two shares, whose mean would have less noise.

    *Rows that end with a number.* If users release a number in [-b, b] beside their clipped vector, it is multiplied by
    a weight w, public before the round: one more coordinate of a row, whose norm is ``sqrt(clip^2 + (w b)^2)`` at most.
    That is the C of the claim, which then prices both together. The sum of the numbers has noise ``deviation / w``.

    *Assumptions.* Nodes are honest in what they compute and add. Whether they fall silent does not depend on users'
    data. The server passes keys on unchanged and sends the
    plan's questions: it is curious, not active. Seeded shares are a simulation, rounded from continuous noise.
    """

    grid: IntegerGrid  # of the rows
    # Standard deviation of all shares together on each coordinate, > 0, in units of the values. Before the keys are
    # known, that of the shares unknown to every adversary; `among` converts it.
    deviation: float
    seed: int | None = None  # of SIMULATED shares; None for the operating system's
    round: int = 0  # sums of different rounds have shares and masks of their own
    keys: tuple[bytes, ...] = ()  # public keys of the nodes of this sum; empty before any node is asked
    weight: float | None = None  # of the number that each row ends with, > 0; None where rows are vectors alone

    @classmethod
    def hiding(
        cls,
        deviation: float,
        terms: int,
        longest: float,
        colluding: float,
        weight: float | None = None,
        lost: int = 0,
    ) -> Self:
        """Return a sum that hides noise of ``deviation`` from every `coalition`, before its nodes are known.

        Its grid has room for ``terms`` rows of l2 norm ``longest``, weighted number included, and the noise of any
        number of nodes, of which ``lost`` may fall silent. Raises `BadInput` for a number out of range.
        """
        grid = IntegerGrid.finest(deviation * most_loudness(colluding, lost), terms, longest)
        return cls(grid, deviation, weight=weight)

    def among(self, keys: tuple[bytes, ...], colluding: float = 0.0, lost: int = 0) -> Self:
        """Return the sum of the nodes with these keys, with ``deviation`` left when a coalition subtracts its own.

        So much is left even if up to ``lost`` others fall silent. Raises `BadInput` if the sum has its nodes already,
        or nobody's noise would be left.
        """
        _check_nodes(len(keys))
        if self.keys:
            raise BadInput("this masked sum has its nodes already: make a new one")
        return replace(self, keys=keys, deviation=self.deviation * loudness(len(keys), colluding, lost))

    def whole(self, rows: Rows) -> NDArray[np.int64]:
        """Return (U, p) finite rows in grid steps, their numbers weighted."""
        return self.grid.whole(rows if self.weight is None else rows * self._weights(rows.shape[1]))

    def values(self, total: Residues) -> Vector:
        """Return the (p,) values of the sum of all parts, its number in units of its own."""
        values = self.grid.values(total)
        return values if self.weight is None else values / self._weights(len(values))

    def _weights(self, columns: int) -> Vector:
        weights = np.ones(columns)
        weights[-1] = self.weight
        return weights

    def excess(self, dimension: int, epsilon: float) -> float:
        """Return a bound on the addition to delta if ``deviation`` is hidden; see *Formal guarantees*."""
        closeness = self.grid.step / self.deviation
        return (1 + math.exp(min(epsilon, 700.0))) * dimension * closeness**2 / 40

    def hidden(self, total: NDArray[np.int64], key: MaskKey, question: bytes, first_user: int) -> Residues:
        """Return the (p,) part that leaves a node, from the (p,) sum of its users' rows on the grid.

        ``key`` is the node's own, and ``question`` a digest of the nodes' question: masks of nodes with different
        questions do not cancel, so nobody learns an answer to a question of its own by asking others another.
        ``first_user``, of the node's users in this sum, names the stream of seeded shares. Raises `BadInput`: the
        node's key is not among the keys or the only one, or its share would be too small.
        """
        _check_nodes(len(self.keys))
        share = self._share(len(total), first_user)
        return (total + share).view(np.uint64) + hiding(key, self.round, self.keys, question, len(total))

    def _share(self, length: int, first_user: int) -> NDArray[np.int64]:
        nodes = len(self.keys)
        deviation = math.ldexp(self.deviation, -self.grid.exponent) / math.sqrt(nodes)
        if not (nodes <= _MOST_NODES and _LEAST_SHARE <= deviation <= _MOST_SHARE):
            raise BadInput(f"a masked sum of {nodes} nodes, shares of {deviation:g} grid steps: use a finer grid")
        if self.seed is None:
            return discrete_gaussian(length, deviation)
        generator = stream(self.seed, "noise", self.round, _SHARE, first_user)
        return np.rint(generator.normal(scale=deviation, size=length)).astype(np.int64)


def _check_nodes(nodes: int) -> None:
    if nodes < LEAST_NODES:
        raise BadInput(
            f"a masked sum has {nodes} node(s): at least two must hold users of a round, or nobody hides the total of "
            "the only one; raise strategy.cohort, divide the users among more nodes, or set privacy.trust = 'server'"
        )
