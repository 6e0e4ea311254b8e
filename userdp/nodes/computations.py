"""Message computations: what a node computes for each of its users at a model x.

Pure functions (problem, x, block, **parameters) -> (U, p) rows, dense or sparse, registered by name. The name, the
clip and the parameters travel in the message, so node and server cannot disagree about them. A sum may be taken on the
node (clipping); robust statistics need the rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.arrays.sparse_rows import (
    AnyRows,
    Sparse,
    clip_rows,
    dense,
    finite_rows,
    placed_rows,
    scaled_rows,
)
from userdp.arrays.types import Array, Rows, Vector
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.masking.sums import MaskedSum
from userdp.nodes import moments, truncated
from userdp.nodes.local_training import local_update
from userdp.nodes.partition import Partition
from userdp.nodes.statistics import statistic
from userdp.noise import SecureNoise, rounding_slack
from userdp.problems.base import Problem
from userdp.problems.in_coordinates import Coordinates, InCoordinates
from userdp.randomness import seed_sequence
from userdp.sampling.coins import SampleCoins

SAMPLE_SUMS = frozenset(
    {"sample_sum", "clipped_sample_sum", "truncated_sample_sum", "truncated_regression_sum", "truncated_data_sum"}
)
"""Computations whose row is a sum over a user's samples: one that cannot be used adds nothing, and the others stay."""

GROUPED = frozenset({"clipped_sample_sum"})
"""Those whose sums may also be taken over groups of samples."""

COUNTS_USABLE = frozenset({"filled"})
"""Computations that are about which samples can be used: they see the marks, and no value of a sample."""

KEEPS_ZEROS = frozenset({"user_gradient", "rough_user_gradient", "sample_sum", "clipped_sample_sum"})
"""Computations whose rows are sparse where the problem's gradients are."""

ONE_EACH = {"loss_changes": "models", "class_shares": "classes"}
"""Computations whose rows have an entry for each row of one of the arrays, and which array that is."""

_LOCAL = 7
"""Label that keeps users' own noise apart from the server's."""


@dataclass(frozen=True)
class LocalNoise:
    """Gaussian noise that each user adds to what leaves it, whatever the node or the block it is in.

    Attributes:
        deviation: of each coordinate, > 0.
        seed: of SIMULATED noise; whoever knows it can take the noise off again. None for noise of the operating system
            of whoever computes it (`userdp.noise.SecureNoise`).
        round: rounds have streams of their own.
    """

    deviation: float
    seed: int | None
    round: int

    def add(self, rows: Rows, users: NDArray[np.int64]) -> Rows:
        """(U, columns) rows of these users with their noise."""
        if self.seed is None:
            # Each row is released by itself: nothing is added up before its noise.
            return SecureNoise(rounding_slack(1)).gaussian(rows, self.deviation)
        return rows + self._simulated(self.seed, users, rows.shape[1])

    def _simulated(self, seed: int, users: NDArray[np.int64], columns: int) -> Rows:
        """(U, columns): the noise of these users, each from its own counters of one Philox generator.

        2^64 blocks lie between users, so streams never overlap.
        """
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
    """What to ask of a node for each user.

    Attributes:
        name: a key of `COMPUTATIONS`.
        reduce: "rows" for one row a user, "sum" for their sum alone.
        clip_norm: l2 norm that each user's row is clipped to; None leaves rows as they are.
        l1_norm: l1 norm that it is clipped to after that, for Laplace noise; None for no such clip.
        centre: (p,) public vector that is taken off each row before the clip; the server adds it again. Rows that are
            not finite become zero after that, so such a user (like a missing one) counts as the centre. None for zero.
        statistic: a key of `STATISTICS`: one more column, computed before the clip, which ``clip_norm`` must then
            give.
        noise: what the node adds to each user's row after the clip.
        separate: compute users one by one. In one block the length of one user's data can change the last bits of
            another's row (matrix products round by shape), which a proof in floating point has to exclude.
        coins: which samples take part; a user of whom none is drawn sends zero. None for all.
        parameters: keyword arguments of the function, plain floats.
        arrays: further keyword arguments of the function, public arrays.
        coordinates: in which the model of the message is z, and vectors are by z; None for the model's own.
        lengths: also tell each user's l2 norm before the clip (about the centre): exact, for simulations alone.
        masked: the sum is put on a grid, noisy and masked before it leaves the node; for sums of clipped rows, with a
            statistic if it has a weight there.
        partition: groups of samples; the answer is then one sum for each group, over the samples of all users, and
            ``clip_norm`` says how long a user's part in all of them together can be. Only for sums over samples.
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

    def __post_init__(self) -> None:
        if self.masked is not None:
            self._check_masked(self.masked)
        if self.partition is not None:
            others = (self.centre, self.statistic, self.noise, self.l1_norm)
            if self.reduce != "sum" or self.name not in GROUPED or any(other is not None for other in others):
                raise BadInput(f"computation {self.name!r} cannot be grouped: only plain sums over samples can")
        if self.statistic is not None and self.clip_norm is None:
            raise BadInput(f"statistic {self.statistic!r} needs a clip_norm, in units of which it is computed")
        exact = self.clip_norm is not None and self.noise is None and self.coins is None and self.partition is None
        if self.lengths and not exact:
            raise BadInput("lengths are told of users who are clipped, and neither noisy, drawn by samples nor grouped")
        if self.coins is not None and (self.centre is not None or self.statistic is not None):
            raise BadInput("samples are drawn by coins only where rows have no centre and no statistic")

    def _check_masked(self, masked: MaskedSum) -> None:
        """Refuse to mask what is not priced as a masked sum, or what `question` does not name."""
        others = (self.centre, self.noise, self.l1_norm, self.coins, self.partition, self.coordinates)
        plain = self.reduce == "sum" and self.clip_norm is not None and not self.arrays and not self.lengths
        if not plain or any(other is not None for other in others):
            raise BadInput(f"computation {self.name!r} cannot be masked: only plain sums of clipped rows can")
        if (self.statistic is None) != (masked.weight is None):
            raise BadInput(f"computation {self.name!r} cannot be masked: a statistic, and nothing else, needs a weight")

    def question(self, x: Vector) -> bytes:
        """Digest of a masked computation at a model: the same for all nodes that are asked the same."""
        parameters = sorted((name, float(value)) for name, value in self.parameters.items())
        asked = repr((self.name, self.clip_norm, parameters, self.separate, self.statistic, self.masked))
        return sha256(asked.encode() + np.asarray(x, dtype="<f8").tobytes()).digest()

    @property
    def trusting(self) -> bool:
        """Whether the server sees more than noisy values, and may be told exact counts."""
        return self.noise is None and self.masked is None

    def __call__(self, problem: Problem, x: Vector, block: Block) -> tuple[AnyRows, int]:
        """The block's (U, p) rows, centred, finite and clipped, and how many users' rows became zero.

        A user counts as the centre, and is counted, if its row is not finite, or is an average over samples of which
        one cannot be used. In a sum over samples those weigh nothing, as the promise for one sample needs: its other
        samples must not vanish with it. No value that cannot be used reaches the problem.

        Raises:
            BadInput: a name is not registered, or the centre is no finite (p,) vector.
        """
        if self.name not in COMPUTATIONS:
            raise BadInput(f"computation {self.name!r} is unknown; there are {', '.join(sorted(COMPUTATIONS))}")
        if self.partition is not None:
            return self._grouped(self.partition, problem, x, block), 0
        users, kept = self._kept(block)
        if kept is block:
            return self.finish(self._raw(problem, x, block))
        rows, non_finite = self.nothing(block.users, problem), 0
        if kept is not None:
            finished, non_finite = self.finish(self._raw(problem, x, kept))
            if isinstance(finished, csr_array):
                rows = placed_rows(finished, users, block.users)
            else:
                rows[users] = finished
        return rows, non_finite + (0 if self.name in SAMPLE_SUMS else block.users - len(users))

    def nothing(self, users: int, problem: Problem) -> AnyRows:
        """(users, columns): the rows of users who count as the centre."""
        if problem.sparse and self.keeps_zeros:
            return cast(Sparse, csr_array((users, problem.dimension)))
        zero = np.zeros((users, self.length(problem.dimension)))
        if self.statistic is None or self.clip_norm is None:
            return zero
        return np.column_stack([zero, statistic(self.statistic).compute(zero, self.clip_norm)])

    def _kept(self, block: Block) -> tuple[NDArray[np.int64], Block | None]:
        """Positions of the users who count, and what counts of their samples; the block itself if that is all."""
        if self.name in COUNTS_USABLE:
            return np.arange(block.users), block
        return block.usable_samples() if self.name in SAMPLE_SUMS else block.usable_users()

    def _raw(self, problem: Problem, x: Vector, block: Block) -> AnyRows:
        if self.coordinates is not None:
            problem = InCoordinates(problem, self.coordinates)
        return COMPUTATIONS[self._function](problem, x, block, **self.parameters, **self.arrays)

    def _grouped(self, partition: Partition, problem: Problem, x: Vector, block: Block) -> Rows:
        """(1, k p): the sums of the groups, one after the other; each group takes the place of a user."""
        present, regrouped = partition.regroup(block)
        sums = np.zeros((partition.count, problem.dimension))
        if regrouped is not None:
            groups, kept = self._kept(regrouped)
            if kept is not None:
                sums[present[groups]] = dense(self._raw(problem, x, kept))
        return sums.reshape(1, -1)

    def part(self, users: slice | NDArray[np.int64]) -> "Computation":
        """What is asked of some of the users, by their positions."""
        return self if self.partition is None else replace(self, partition=self.partition.part(users))

    @cached_property
    def halves(self) -> tuple["Computation", "Computation"]:
        """What makes rows, unclipped, and what is then done to them: one after the other they do what this does."""
        made = replace(self, name=self._function, clip_norm=None, l1_norm=None, statistic=None, lengths=False)
        return made, replace(self, centre=None, lengths=False)

    @property
    def _function(self) -> str:
        """The key of what makes rows: gradients may be rough where a clip follows before anything else does."""
        clipped = self.clip_norm is not None and self.name == "user_gradient"
        return "rough_user_gradient" if clipped else self.name

    def finish(self, rows: AnyRows) -> tuple[AnyRows, int]:
        """What follows the function: (U, p) raw rows, centred, finite and clipped, with the statistic if there is one.

        Sparse rows stay sparse unless a centre or a statistic is asked for.

        Returns the rows, and how many were not finite and became zero.

        Raises:
            BadInput: the centre is no finite (p,) vector.
        """
        if self.centre is not None or self.statistic is not None:
            rows = dense(rows)
        if self.centre is not None:
            if self.centre.shape != rows.shape[1:] or not np.isfinite(self.centre).all():
                raise BadInput(f"the centre must be {rows.shape[1]} finite numbers, got shape {self.centre.shape}")
            with np.errstate(over="ignore"):  # a row that overflows is not finite, and counts as the centre
                rows = dense(rows) - self.centre
        rows, non_finite = finite_rows(rows)
        return self.clipped(rows), non_finite

    @property
    def only_clips(self) -> bool:
        """Whether nothing is done to finite rows but that each is scaled to l2 norm at most ``clip_norm``."""
        others = (self.l1_norm, self.statistic, self.partition)
        return self.clip_norm is not None and all(other is None for other in others)

    def clipped(self, rows: AnyRows) -> AnyRows:
        """(U, columns): finite rows, clipped, with the statistic if there is one."""
        clipped = rows if self.clip_norm is None else clip_rows(rows, self.clip_norm)
        if self.l1_norm is not None:
            clipped = clip_rows(clipped, self.l1_norm, order=1)
        if self.statistic is None or self.clip_norm is None:
            return clipped
        numbers = statistic(self.statistic).compute(dense(rows), self.clip_norm)
        return np.column_stack([dense(clipped), numbers])

    @property
    def keeps_zeros(self) -> bool:
        """Whether sparse gradients give sparse rows; a centre, a statistic, noise and groups make all entries count."""
        filled = (self.centre, self.statistic, self.noise, self.partition, self.masked)
        return self.name in KEEPS_ZEROS and all(other is None for other in filled)

    @property
    def of_parameters(self) -> bool:
        """Whether rows have an entry for each of the model's parameters, as gradients have."""
        return self.name not in LENGTHS and self.name not in ONE_EACH

    def width(self, dimension: int) -> int:
        """Columns of a row: as many as the function has (for each group), and one for the statistic."""
        return self.length(dimension) + (self.statistic is not None)

    def length(self, dimension: int) -> int:
        """Columns of a row that are vectors, without the statistic: p, unless the function is one of `LENGTHS`."""
        if self.partition is not None:
            return dimension * self.partition.count
        if self.name in ONE_EACH:
            return len(self.arrays[ONE_EACH[self.name]])
        if self.name not in LENGTHS:
            return dimension
        return LENGTHS[self.name](len(self.arrays["scales"]) if "scales" in self.arrays else dimension)


def _user_gradient(problem: Problem, x: Vector, block: Block) -> AnyRows:
    return problem.user_gradients(x, block)


def _rough_user_gradient(problem: Problem, x: Vector, block: Block) -> AnyRows:
    return problem.rough_user_gradients(x, block)


def _sample_sum(problem: Problem, x: Vector, block: Block) -> AnyRows:
    """The sum of a user's sample gradients, unclipped: one batched gradient, no gradient of a single sample."""
    return scaled_rows(problem.user_gradients(x, block), block.sizes.astype(np.float64))


def _clipped_sample_sum(problem: Problem, x: Vector, block: Block, sample_clip_norm: float) -> AnyRows:
    return problem.sample_clipped_sums(x, block, sample_clip_norm)


COMPUTATIONS: dict[str, Callable[..., AnyRows]] = {
    "user_gradient": _user_gradient,
    "rough_user_gradient": _rough_user_gradient,
    "sample_sum": _sample_sum,
    "clipped_sample_sum": _clipped_sample_sum,
    "truncated_sample_sum": truncated.truncated_sample_sum,
    "truncated_user_gradient": truncated.truncated_user_gradient,
    "truncated_regression_gradient": truncated.truncated_regression_gradient,
    "truncated_regression_sum": truncated.truncated_regression_sum,
    "truncated_data_gradient": truncated.truncated_data_gradient,
    "truncated_data_sum": truncated.truncated_data_sum,
    "local_update": local_update,
    "column_scales": moments.column_scales,
    "moment_size": moments.moment_size,
    "second_moments": moments.second_moments,
    "weighted_gradient": moments.weighted_gradient,
    "mean_target": moments.mean_target,
    "class_shares": moments.class_shares,
    "filled": moments.filled,
    "improved": moments.improved,
    "curvature_along": moments.curvature_along,
    "loss_changes": moments.loss_changes,
}
LENGTHS: dict[str, Callable[[int], int]] = {
    "column_scales": lambda d: 2 * d,
    "moment_size": lambda _: 1,
    "second_moments": lambda d: d * (d + 1) // 2,
    "mean_target": lambda _: 1,
    "filled": lambda _: 1,
    "improved": lambda _: 1,
    "curvature_along": lambda _: 1,
}
"""Entries of a row of computations whose rows are no gradients, from d: how many columns scales are given for, or p."""
