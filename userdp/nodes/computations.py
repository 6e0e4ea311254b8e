"""The question to a node, about each of its users at a model x: declared data, and properties that follow from them.

A computation travels in the message, so node and server cannot disagree about its function, its parameters or its
clip. `RowMaker` and `RowPipeline` carry it out. A node may take the sum (clipping); robust statistics need the rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.guarantee import Relation
from userdp.arrays.types import Array, Rows, Vector
from userdp.errors import BadInput
from userdp.masking.sums import MaskedSum
from userdp.nodes.functions import RowFunction, row_function
from userdp.nodes.partition import Partition
from userdp.nodes.statistics import statistic
from userdp.noise import SecureNoise, rounding_slack
from userdp.problems.in_coordinates import Coordinates
from userdp.randomness import seed_sequence
from userdp.sampling.coins import SampleCoins

_LOCAL = 7
"""The label that separates users' own noise from the server's."""


@dataclass(frozen=True)
class LocalNoise:
    """Gaussian noise that each user adds to its own row; it depends neither on the node nor on the block."""

    deviation: float
    """Standard deviation of each coordinate, > 0."""
    seed: int | None
    """Seed of SIMULATED noise, which anybody who knows it can subtract; None for `userdp.noise.SecureNoise`."""
    round: int
    """The round; every round has its own stream."""

    def add(self, rows: Rows, users: NDArray[np.int64]) -> Rows:
        """Add the users' noise to their (U, columns) rows."""
        if self.seed is None:
            # Each row is released by itself: nothing is added up before its noise.
            return SecureNoise(rounding_slack(1)).gaussian(rows, self.deviation)
        return rows + self._simulated(self.seed, users, rows.shape[1])

    def _simulated(self, seed: int, users: NDArray[np.int64], columns: int) -> Rows:
        """Draw the users' noise (U, columns) from one Philox generator, at counters 2^64 blocks apart."""
        bits = np.random.Philox(seed_sequence(seed, "noise", self.round, _LOCAL))
        generator, noise = np.random.Generator(bits), np.empty((len(users), columns))
        state: Any = bits.state
        state["buffer_pos"] = 4
        for row, user in zip(noise, users.tolist(), strict=True):
            state["state"]["counter"][1] = user
            bits.state = state
            generator.standard_normal(out=row)
        noise *= self.deviation
        return noise


@dataclass(frozen=True)
class Computation:
    """A question to a node, with one row per user as the answer.

    Attributes:
        name: a key of `ROW_FUNCTIONS`.
        reduce: "rows" for one row per user, "sum" for their sum alone.
        clip_norm: l2 norm to which each user's row is clipped; None for no clip.
        l1_norm: l1 norm to which it is clipped afterwards, for Laplace noise; None for no such clip.
        centre: (p,) public vector, subtracted from each row before the clip; the server adds it again. A row that is
            then not finite becomes zero, so such a user (like a missing one) counts as the centre. None for zero.
        statistic: a key of `STATISTICS`: one more column, computed before the clip; needs ``clip_norm``.
        noise: noise that the node adds to each user's row after the clip.
        separate: compute each user's row to the last bit from that user's data alone, as a proof in floating point
            needs: in a fixed order (`userdp.arrays.fixed_order`) where that is proven, else user by user.
        coins: the samples that take part; a user without a drawn sample sends zero. None for all.
        parameters: keyword arguments of the function, plain floats.
        arrays: further keyword arguments of the function, public arrays.
        coordinates: coordinates in which the message's model is z, and vectors are by z; None for the model's own.
        lengths: also return each user's exact l2 norm before the clip (about the centre); for simulations alone.
        masked: the sum is put on a grid, noisy and masked before it leaves the node; only for sums of clipped rows,
            with a statistic if the mask gives it a weight.
        counted: users whose row is not finite are counted in a masked sum: each row has one more entry, at its front,
            which is `longest` for such a row, whose other entries are zero, and 0 for any other.
        partition: groups of samples; the answer is one sum for each group, over the samples of all users, and
            ``clip_norm`` bounds the length of a user's part in all of them together. Only for sums over samples.
    """

    name: str = "user_gradient"
    reduce: Literal["rows", "sum"] = "rows"
    clip_norm: float | None = None
    l1_norm: float | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    centre: Vector | None = field(default=None, compare=False)
    statistic: str | None = None
    noise: LocalNoise | None = None
    separate: bool = False
    partition: Partition | None = field(default=None, compare=False)
    coins: SampleCoins | None = field(default=None, compare=False)
    arrays: Mapping[str, Array] = field(default_factory=dict, compare=False)
    lengths: bool = False
    coordinates: Coordinates | None = field(default=None, compare=False)
    masked: MaskedSum | None = None
    counted: bool = False

    def __post_init__(self) -> None:
        if self.masked is not None:
            self._check_masked(self.masked)
        elif self.counted:
            raise BadInput(f"computation {self.name!r} counts users by a masked sum, and has none: leave out counted")
        if self.partition is not None:
            others = (self.centre, self.statistic, self.noise, self.l1_norm)
            if self.reduce != "sum" or not self.function.groups_samples or any(other is not None for other in others):
                raise BadInput(f"computation {self.name!r} cannot be grouped: only plain sums over samples can")
        if self.statistic is not None and self.clip_norm is None:
            raise BadInput(f"statistic {self.statistic!r} needs a clip_norm as its unit")
        exact = self.clip_norm is not None and self.noise is None and self.coins is None and self.partition is None
        if self.lengths and not exact:
            raise BadInput("lengths need a clip_norm and exclude noise, coins and a partition: leave one of them out")
        if self.coins is not None and (self.centre is not None or self.statistic is not None):
            raise BadInput("coins exclude a centre and a statistic: leave out the coins, or both of these")

    def _check_masked(self, masked: MaskedSum) -> None:
        """Refuse a mask for a question that is not priced as a masked sum, or that `question` does not describe."""
        others = (self.centre, self.noise, self.l1_norm, self.coins, self.partition, self.coordinates)
        plain = self.reduce == "sum" and self.clip_norm is not None and not self.arrays and not self.lengths
        if not plain or any(other is not None for other in others):
            raise BadInput(f"computation {self.name!r} cannot be masked: only plain sums of clipped rows can")
        if (self.statistic is None) != (masked.weight is None):
            raise BadInput(f"computation {self.name!r} cannot be masked: a statistic, and nothing else, needs a weight")
        if self.counted and self.statistic is not None and (held := statistic(self.statistic)).low != -held.high:
            raise BadInput(f"users beside statistic {self.statistic!r} cannot be counted: its range is not about zero")

    def question(self, x: Vector) -> bytes:
        """Compute the digest of a masked computation at a model: nodes with the same question have the same digest."""
        parameters = sorted((name, float(value)) for name, value in self.parameters.items())
        asked = repr((self.name, self.clip_norm, parameters, self.separate, self.statistic, self.masked))
        asked += "counted" * self.counted
        return sha256(asked.encode() + np.asarray(x, dtype="<f8").tobytes()).digest()

    @property
    def trusting(self) -> bool:
        """True if the server sees more than noisy values, and may know exact counts."""
        return self.noise is None and self.masked is None

    def sensitivity(self, relation: Relation, order: Literal[1, 2] = 2, weight: float = 1.0) -> float | None:
        """Bound how far one user moves the sum of all users' rows, in the l1 or l2 norm (``order``); None if unbounded.

        *Formal guarantees.* *Claim.* Let two populations differ in one whole user, who is replaced by another, or added
        or removed. Their sums, before any noise, then differ by no more than this, but for rounding (see
        `userdp.noise.rounding_slack`), for any data, if a user's row follows from that user's data alone.
        *Why.* `RowPipeline` clips every row to an l2 norm C (which the l1 norm bounds too), and holds its statistic
        within bounds, whichever of the user's samples can be used; an absent user adds nothing. So the vector moves by
        at most 2C if the user is replaced (sqrt(2) C if rows are `RowFunction.acute`), by C if it is added or removed,
        and the number by `Statistic.sensitivity`. In sums over groups each slot of a user moves its group's sum by at
        most the clip of a sample, and slots in one group add up; slots are drawn without looking at data.

        The l1 norm is bounded only if rows are clipped to one. ``weight`` is the statistic's within a row: 0 for the
        vectors alone, `MaskedSum.weight` for masked sums. If they are ``counted``, a row that is `longest` and points
        away from none is no further than this from any other.
        """
        longest = self._longest(order)
        if longest is None or not math.isfinite(longest):
            return None
        apart = math.sqrt(2.0) if order == 2 and self.function.acute and self.centre is None else 2.0
        vector = longest * (apart if relation == "replace_one" else 1)
        number = 0.0 if self.statistic is None else weight * statistic(self.statistic).sensitivity(relation)
        return vector + number if order == 1 else math.hypot(vector, number)

    def _longest(self, order: Literal[1, 2]) -> float | None:
        """Return the largest norm of a user's vector, from the node's clips, or from a sample's clip and its groups."""
        if order == 1:
            return self.l1_norm
        if self.partition is not None:
            clip = self.parameters.get("sample_clip_norm")
            return None if clip is None else clip * self.partition.longest
        return min((norm for norm in (self.clip_norm, self.l1_norm) if norm is not None), default=None)

    @property
    def longest(self) -> float:
        """The largest l2 norm of a row of a masked sum, weighted number included."""
        assert self.masked is not None
        assert self.clip_norm is not None
        if self.statistic is None or self.masked.weight is None:
            return self.clip_norm
        return math.hypot(self.clip_norm, self.masked.weight * statistic(self.statistic).sensitivity("add_or_remove"))

    def part(self, users: slice | NDArray[np.int64]) -> "Computation":
        """Return the computation for some of the users, by their positions."""
        return self if self.partition is None else replace(self, partition=self.partition.part(users))

    @property
    def function(self) -> RowFunction:
        """The function that makes rows; rough gradients if a clip is the next step. `BadInput` for an unknown name."""
        clipped = self.clip_norm is not None and self.name == "user_gradient"
        return row_function("rough_user_gradient" if clipped else self.name)

    def check_centre(self, dimension: int) -> None:
        """Raise `BadInput` unless the centre is a finite vector of the length of rows."""
        length = self.length(dimension)
        if self.centre is not None and (self.centre.shape != (length,) or not np.isfinite(self.centre).all()):
            raise BadInput(f"the centre must be {length} finite numbers, got shape {self.centre.shape}")

    @property
    def keeps_zeros(self) -> bool:
        """True if sparse gradients give sparse rows; a centre, a statistic, noise and groups fill all entries."""
        filled = (self.centre, self.statistic, self.noise, self.partition, self.masked)
        return self.function.keeps_zeros and all(other is None for other in filled)

    @property
    def of_parameters(self) -> bool:
        """True if rows have one entry for each of the model's parameters, like gradients."""
        return self.function.length is None

    def width(self, dimension: int) -> int:
        """Return the columns of a row: its length, one for the statistic, and one if users are counted."""
        return self.length(dimension) + (self.statistic is not None) + self.counted

    def length(self, dimension: int) -> int:
        """Return the columns of a row without the statistic: p, unless the function or the groups say otherwise."""
        if self.partition is not None:
            return dimension * self.partition.count
        length = self.function.length
        return dimension if length is None else length(dimension, self.arrays)
