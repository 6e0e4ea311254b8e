"""Robust means of user vectors, with the sup-norm sensitivity that their proofs give.

Source of the debiased estimate: Ghazi, Kumar, Liu, Manurangsi, "Linear-Time User-Level DP-SCO via Robust Statistics"
(2025), Algorithm 2. The winsorised estimate is ours.

A batch of B rows is ALIGNED (radius rho) if some sup-norm ball of radius rho holds at least ``a = ceil(2B/3)`` of them.
Neighbours replace one row. All proofs go by coordinate, where the ball is an interval I of length ``2 rho``.

**Lemma (trimmed mean).** Drop the k smallest and k largest of B numbers and average the ``K = B - 2k`` left. If ONE of
two neighbours is aligned and ``k >= floor(B/3) + 1``, the two trimmed means lie in I and differ by at most
``2 rho / K``.
*Proof.* Let ``c_1 <= ... <= c_{B-1}`` be the common numbers. For any other number, the r-th smallest of all B lies in
``[c_{r-1}, c_r]``. Sum over the kept ranks ``r = k+1 .. B-k``: both kept sums lie in an interval of length
``c_{B-k} - c_k``. I holds at least ``a - 1`` of the common numbers, at consecutive ranks; any ``B - k`` consecutive
ranks of ``1 .. B-1`` include k and B - k, and ``a - 1 >= B - k`` since ``B - a = floor(B/3)``. So ``c_k`` and
``c_{B-k}`` lie in I, ``c_{B-k} - c_k <= 2 rho``, and every kept number lies in I.

The median is the trimmed mean with ``k = floor((B-1)/2)``: K = 1 for odd B, K = 2 for even B (the midpoint of the
middle two). The trim that the lemma needs leaves something for every B >= 7 (and B = 5, not 6), hence `MINIMUM_BATCH`.

**Lemma (clipping).** ``|clip(c, a-r, a+r) - clip(d, b-r, b+r)| <= max(|a-b|, |c-d|)``, for a clip is the median of
three numbers that move by at most that (Ghazi et al. 2025, Lemma 3.3, B.2). So every estimator here is 1-Lipschitz in
the sup norm: rows that all move by at most h move it by at most h, aligned or not.

*Floating point.* A sum of numbers far larger than rho is rounded by more than the sensitivity. So each estimator first
clips every row by itself to `REACH` radii in each coordinate, a 1-Lipschitz map that keeps every ball in a ball: all of
the above stays true. `Estimator.rounding` bounds the remaining rounding in every order of addition. `finite_mean` is
finite even where a sum is not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from userdp.arrays.types import Rows, Vector
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators.columns import clipped_mean, order_statistics
from userdp.threads import side_by_side

Statistic = Literal["median", "trimmed_mean"]

MINIMUM_BATCH = 7  # The fewest rows for which the trim that the proofs need leaves at least one row to average
REACH = 2.0**20  # Radii from zero at which coordinates are clipped; without it, rounding has no bound

# Entries (32 MiB) up to which rows are one part; beyond, a part copies that many, or one column.
_PART_ENTRIES = 1 << 22


def smallest_trim(batch: int) -> int:
    """Return the least trim for which the lemma holds, ``floor(batch / 3) + 1``."""
    return batch // 3 + 1


def finite_mean(values: NDArray[np.float64], axis: int) -> Vector:
    """Return the mean of finite numbers along an axis: finite even where their sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(values.mean(axis=axis))
        if np.isfinite(mean).all():
            return mean
        shares = (values / values.shape[axis]).sum(axis=axis)
    # Rounding may carry the sum of shares past the largest of the numbers, which may be the largest float.
    return np.where(np.isfinite(mean), mean, np.clip(shares, values.min(axis=axis), values.max(axis=axis)))


def coordinate_median(rows: Rows) -> Vector:
    """Return the (d,) median (midpoint for even B) of (B, d) rows; `BadInput` unless they are finite and some."""
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def trimmed_mean(rows: Rows, trim: int) -> Vector:
    """Return the (d,) mean of each coordinate of (B, d) rows without its ``trim`` smallest and ``trim`` largest values.

    Raises `BadInput` if rows are not a non-empty matrix of finite numbers, or the trim leaves nothing.
    """
    check_rows(rows)
    if not 0 <= 2 * trim < len(rows):
        raise BadInput(f"trim = {trim}: must be at least 0 and leave some of the {len(rows)} rows")
    return _by_columns(rows, lambda part: _kept_mean(part, *_ends(part, trim), trim))


class Estimator(ABC):
    """A mean of rows held, by coordinate, to within ``width`` of a trimmed mean; `BadInput` out of range."""

    default_width: ClassVar[float]  # in radii
    radius: float  # rho > 0, radius of the balls that aligned batches share; in units of the rows
    width: float | None  # s > 0; None means the subclass's own multiple of ``radius``
    trim: int | None  # k; None means the smallest allowed, ``floor(B/3) + 1``, with the smallest sensitivity

    def __post_init__(self) -> None:
        for name, value in (("radius", self.radius), ("width", self.width)):
            if value is not None and not 0 < value < np.inf:
                raise BadInput(f"{name} = {value}: must be a positive number, in units of the gradients")
        if self.trim is not None and self.trim < 1:
            raise BadInput(f"trim = {self.trim}: must be at least a third of the batch, rounded down, plus 1")

    @property
    def clip_width(self) -> float:
        """The width in use."""
        return self.default_width * self.radius if self.width is None else self.width

    @abstractmethod
    def _held_mean(self, rows: Rows, centre: Vector, farthest: float) -> Vector:
        """Return the (c,) estimate from c columns, their (c,) centre, and how far from zero they are clipped."""

    @abstractmethod
    def _sensitivity(self, batch: int, centre_moves: float) -> float:
        """Return the bound on ``||g - g'||_inf`` when trimmed means differ by at most ``centre_moves``."""

    @property
    def minimum_batch(self) -> int:
        """The smallest B for which the proof holds."""
        return MINIMUM_BATCH if self.trim is None else max(MINIMUM_BATCH, 2 * self.trim + 1)

    def check(self, batch: int) -> None:
        """Refuse too few rows (`PopulationTooSmall`), or a trim below a third of them (`BadInput`)."""
        if batch < self.minimum_batch:
            raise PopulationTooSmall(
                f"a batch of {batch} users is too small: the estimator's proof needs at least {self.minimum_batch}"
            )
        needed = smallest_trim(batch)
        if self.trim is not None and self.trim < needed:
            raise BadInput(f"trim = {self.trim} is below a third of {batch} users: the proof needs at least {needed}")

    def sup_sensitivity(self, batch: int) -> float:
        """Return the bound on ``||g - g'||_inf`` between neighbours of ``batch`` rows, one of them aligned.

        Raises `BadInput`, see `check`.
        """
        self.check(batch)
        return self._sensitivity(batch, 2 * self.radius / (batch - 2 * self._trim(batch)))

    def error(self, batch: int) -> float:
        """Return e, how far rounding in float64 can move the estimate of any finite rows, in the sup norm.

        *Formal guarantees.* For B at most 2^30, and radius and width between 2^-960 and 2^960. Take the clipped rows as
        given: each is a function of one user's row, and clipping rounds nothing. With u = 2^-53, ``R = REACH rho`` and
        K rows left by the trim, ``e = u (1 + 2^-19) ((B + K + 1) R + s)``. Proof:

        1. The trimmed mean of one or two numbers errs by at most ``K u R (1 + 2^-20)``, that of more, all within R, by
           ``(2 + B / 128) u R`` (`clipped_mean`); and it lies no further than that beyond R.
        2. The ends of a clip err by the centre's error, and by u (R + s) as the width is added to it; a number clipped
           between them errs by no more (it is 1-Lipschitz in them).
        3. `Winsorized`: so does the mean of the clipped rows, and being a mean of B numbers within R, it errs by
           ``(2 + B / 128) u R`` besides. `Debiased`: so does the clipped mean, itself a mean of B numbers within R.
        4. Both means together err by at most ``(B + K) u R (1 + 2^-20)``: ``2 + B / 128 <= B`` for every B >= 7, and
           where K > 2, B >= 11 and ``2 (2 + B / 128) <= B``.

        Raises `BadInput`, see `check`.
        """
        self.check(batch)
        kept = batch - 2 * self._trim(batch)
        return (1 + 2.0**-19) * 2.0**-53 * ((batch + kept + 1) * REACH * self.radius + self.clip_width)

    def rounding(self, batch: int) -> float:
        """Return how much computing in float64 can enlarge the sensitivity, relatively.

        *Formal guarantees.* Each of two neighbours' estimates is within `error` of the true one, and these are within
        `sup_sensitivity` of each other. Raises `BadInput`, see `check`.
        """
        return 2 * self.error(batch) / self.sup_sensitivity(batch)

    def __call__(self, rows: Rows) -> Vector:
        """Return the (d,) estimate from (B, d) rows; `BadInput` unless they are finite, or as `check`."""
        check_rows(rows)
        self.check(len(rows))
        trim, farthest = self._trim(len(rows)), REACH * self.radius

        def of_part(part: Rows) -> Vector:
            low, high = (np.clip(end, -farthest, farthest) for end in _ends(part, trim))
            return self._held_mean(part, _kept_mean(part, low, high, trim), farthest)

        return _by_columns(rows, of_part)

    def _trim(self, batch: int) -> int:
        return smallest_trim(batch) if self.trim is None else self.trim


@dataclass(frozen=True)
class Debiased(Estimator):
    """The mean, clipped to within ``width`` of a robust statistic (Ghazi et al. 2025, Algorithm 2).

    *Formal guarantees.* Unit: one row (a user), replaced. Assumption: at least one of the two neighbouring batches is
    aligned at ``radius``, and B >= 7. Then ``||g - g'||_inf <= 2 radius / K + 2 width``: the robust statistics differ
    by at most ``2 radius / K`` (lemma of this module; K = 1 or 2 for the median, B - 2 trim for the trimmed mean), and
    each result lies within ``width`` of its statistic. The paper's bound (Lemma 3.3, B.3) is ``4 radius + 2 width``. It
    is 1-Lipschitz in the sup norm without any assumption.
    """

    default_width: ClassVar[float] = 1.0
    statistic: Statistic
    radius: float
    width: float | None = None  # s > 0, how far the mean may lie from the statistic; None means ``radius``
    trim: int | None = None  # of the trimmed mean alone

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistic not in ("median", "trimmed_mean"):
            raise BadInput(f"statistic = {self.statistic!r}: must be 'median' or 'trimmed_mean'")
        if self.statistic == "median" and self.trim is not None:
            raise BadInput(f"trim = {self.trim}: the median takes none; leave it out or choose 'trimmed_mean'")

    def _held_mean(self, rows: Rows, centre: Vector, farthest: float) -> Vector:
        low, high = (np.clip(end, -farthest, farthest) for end in (rows.min(axis=0), rows.max(axis=0)))
        held: Vector = np.clip(clipped_mean(rows, low, high), centre - self.clip_width, centre + self.clip_width)
        return held

    def _sensitivity(self, batch: int, centre_moves: float) -> float:
        return centre_moves + 2 * self.clip_width

    def _trim(self, batch: int) -> int:
        return (batch - 1) // 2 if self.statistic == "median" else super()._trim(batch)


@dataclass(frozen=True)
class Winsorized(Estimator):
    """The mean of rows each clipped, coordinate by coordinate, to within ``width`` of their trimmed mean.

    *Formal guarantees.* Unit: one row (a user), replaced. Assumption: at least one of the two neighbouring batches is
    aligned at rho = ``radius``, and B >= 7. With s = ``width``, k = ``trim`` and K = B - 2k,
    ``||g - g'||_inf <= 2 rho / K + 2 s / B``: the trimmed means differ by at most ``D = 2 rho / K`` (lemma of this
    module), so each unchanged row's clip moves by at most D and the changed row's by at most D + 2 s. For
    ``s >= 2 rho`` it is at most ``(2 s + floor(B/3) D) / B``: both trimmed means lie in the interval I of length 2 rho,
    so no row in I is clipped, and only rows outside I, at most floor(B/3) of the aligned batch, can move with the
    trimmed mean. If the changed row was one of them, the others contribute at most ``(floor(B/3) - 1) D`` and it adds D
    + 2 s; if it was in I, it moves by at most ``2 rho + s <= 2 s``. It is 1-Lipschitz in the sup norm without any
    assumption. A batch inside one ball is not clipped at all when ``s >= 2 rho``: the estimate is then its mean,
    without bias. So None, for ``width = 2 rho``, gives a smaller sensitivity (about 6 rho / B) than ``width = rho``
    (about 8 rho / B), and less bias.
    """

    default_width: ClassVar[float] = 2.0
    radius: float
    width: float | None = None
    trim: int | None = None

    def _held_mean(self, rows: Rows, centre: Vector, farthest: float) -> Vector:
        low, high = centre - self.clip_width, centre + self.clip_width
        return clipped_mean(rows, np.maximum(low, -farthest), np.minimum(high, farthest))

    def _sensitivity(self, batch: int, centre_moves: float) -> float:
        movers = batch // 3 if self.clip_width >= 2 * self.radius else batch
        return (movers * centre_moves + 2 * self.clip_width) / batch


def check_rows(rows: Rows) -> None:
    """Refuse rows that are not a non-empty matrix of finite numbers, with `BadInput`."""
    if rows.ndim != 2 or 0 in rows.shape:
        raise BadInput(f"rows have shape {rows.shape}: must be a non-empty (users, dimension) matrix")
    if not np.isfinite(rows).all():
        raise BadInput("a row is not finite: replace such rows first (userdp.nodes.computations.finite_rows)")


def _by_columns(rows: Rows, of_part: Callable[[Rows], Vector]) -> Vector:
    def of_columns(first: int) -> Vector:
        return of_part(np.ascontiguousarray(rows[:, first : first + step], dtype=np.float64))

    step = rows.shape[1] if rows.size <= _PART_ENTRIES else max(1, _PART_ENTRIES // len(rows))
    return np.concatenate(side_by_side(of_columns, range(0, rows.shape[1], step)))


def _ends(rows: Rows, trim: int) -> tuple[Vector, Vector]:
    return order_statistics(rows, trim, len(rows) - 1 - trim)


def _kept_mean(rows: Rows, low: Vector, high: Vector, trim: int) -> Vector:
    if len(rows) - 2 * trim <= 2:
        return finite_mean(np.stack([low, high]), axis=0)
    return clipped_mean(rows, low, high, dropped=trim)
