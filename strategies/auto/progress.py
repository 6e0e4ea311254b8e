"""The memory of `Auto`'s server, and its coordinates and steps, from releases alone: no privacy rests on them."""

import math
from dataclasses import InitVar, dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from strategies.auto.column_coordinates import ColumnCoordinates
from strategies.auto.inference import Inference
from strategies.auto.several_scores import step_of_scores
from strategies.clipping.recentred_clipping import Centre
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from userdp.arrays.read_only import frozen
from userdp.arrays.types import Array, Vector
from userdp.problems import Box
from userdp.problems.in_coordinates import turned, turned_back
from userdp.state import State, Stateful

FLOOR, LEAST_FLOOR = 0.5, 0.25
"""Eigenvalues are raised to a share of the largest eigenvalue that noise alone is expected to have. The share is that
eigenvalue itself, held between these two: where moments are little hidden by noise, so are gradients, and slow
directions cost more than steps that `Progress.heed` may shorten."""


@dataclass(frozen=True)
class Whitening(Stateful):
    """Coordinates in which second moments are about one at most."""

    remembered: ClassVar[tuple[str, ...]] = ("matrix", "raised", "seen", "deviation")
    matrix: Array  # (d, d) W with ``W^T A W`` near the identity
    raised: Vector  # (p,) the second moments along its columns, at least the floor; once for each block of d parameters
    seen: Vector  # (p,) the released second moments over these: 1 unless they were raised
    deviation: float  # of the noise of A

    @property
    def floored(self) -> int:
        """The number of directions whose second moment was raised to the floor."""
        return int((self.seen < 1).sum())

    @property
    def doubtful(self) -> NDArray[np.bool_]:
        """(p,) the directions whose second moment noise may have lowered by a third or more."""
        return np.asarray((self.seen < 1) | (self.raised < 2 * self.deviation * math.sqrt(2 * len(self.matrix))))

    @property
    def sure(self) -> Vector:
        """(p,) the second moments beyond their noise's typical eigenvalue, over the raised: curvature is as large."""
        return np.maximum(self.seen - self.deviation * math.sqrt(len(self.matrix) / 2) / self.raised, 0.0)

    @property
    def followed(self) -> Vector:
        """(p,) the move of a step for each unit of descent."""
        return np.ones(len(self.seen))

    def doubt(self, move: Vector) -> Vector:
        """Return the (p,) variance of a gradient's change by a move, per curvature^2, from the noise of A."""
        d = len(self.matrix)
        lengths = (move**2 / self.raised).reshape(-1, d).sum(axis=1)
        return np.asarray(0.5 * self.deviation**2 * np.repeat(lengths, d) / self.raised)

    def repeated(self, blocks: int) -> "Whitening":
        """Return the same for so many blocks of parameters, each of all columns."""
        return replace(self, raised=np.tile(self.raised, blocks), seen=np.tile(self.seen, blocks))


def whitening(moments: Array, deviation: float) -> Whitening:
    """Whiten noisy second moments (p, p), whose entries' noise has that deviation (off the diagonal over sqrt(2))."""
    edge = deviation * math.sqrt(2 * len(moments))
    values, vectors = np.linalg.eigh(moments)
    part = min(max(edge, LEAST_FLOOR), FLOOR)
    raised = np.maximum(values, max(part * edge, 1e-6))
    return Whitening(vectors / np.sqrt(raised), raised, np.clip(values / raised, 0.0, 1.0), deviation)


CLIP_BIAS = 0.2  # Assumed bias of the best constant by clips, in deviations of users' slopes
OFF_CENTRE = 0.2  # Assumed mean of the way's scores over their root mean square: centres are those of weighted users
TYPICAL = 1.5
"""Root mean square of users' slopes over their geometric mean, which lengths release: in five directions about 2.1 for
one normal sample a user, and 1.1 for means of many. This is the geometric mean of the two."""
RARELY = 0.05  # Share of tables without a signal of which a model is released rather than the constant
CERTAIN = 2.0  # Standard deviations of noise by which measured curvature must exceed the assumed one to shorten steps


def following_optimiser(dimension: int) -> ServerOptimiser:
    """Return Adam of step one, for gradients of about unit length."""
    # Stretch no coordinate beyond a thousand times its root mean square among equal ones.
    adam = {"server_optimiser": "adam", "noise_corrected": True, "adaptivity": 1e-3 / math.sqrt(dimension)}
    return ServerOptimiser(ServerOptions.model_validate(adam), 1.0, dimension)


@dataclass
class Known(Stateful):
    """The gradient in the coordinates as estimated from all releases, and the variance of its error, both (p,)."""

    remembered: ClassVar[tuple[str, ...]] = ("gradient", "variance", "walked")
    gradient: Vector
    variance: Vector
    walked: Vector  # that of all moves together, which curvature corrects only as far as it is sure

    def corrected(self, released: Vector, deviation: float, change: Vector, doubt: Vector, sure: Vector) -> "Known":
        """Return the estimate after another release: its precision-weighted mean with the prediction (Kalman 1960).

        The gradient has changed by ``change`` since the former release, known up to variance ``doubt``. Of the error
        of former moves it shows the share that is ``sure``.
        """
        variance = self.variance + doubt
        gain = variance / (variance + deviation**2)
        predicted = self.gradient + change
        walked = (1 - sure * gain) ** 2 * self.walked + (gain * deviation) ** 2
        return Known(predicted + gain * (released - predicted), gain * deviation**2, walked)


@dataclass
class Progress(Stateful):
    """The server's memory, all of it computed from releases."""

    remembered: ClassVar[tuple[str, ...]] = (
        *("curvature", "constant", "start", "z", "move", "damping", "scales", "size", "coordinates", "radius"),
        *("across", "level_deviation", "highest", "uneven", "slope", "length", "gradient"),
        *("hidden", "heard", "vague", "curved", "rare", "bend"),
    )
    parts: ClassVar[tuple[str, ...]] = ("centre", "whitened", "columns", "known", "optimiser", "inference")
    given: ClassVar[tuple[str, ...]] = ("learns",)
    initial: InitVar[Vector]  # (p,) the model before the first round
    curvature: float  # assumed bound on the second derivative of the loss by its scores, in any direction
    centre: Centre  # the memory of `Recentred` steps
    columns: ColumnCoordinates | None = None  # the coordinates of columns that are many and rare
    learns: bool = True  # coordinates are learnt; else there are no matrices: a module's would not fit into memory
    # (K, K) the second derivatives by the K scores, each with a block of d = p / K parameters, over their largest
    # eigenvalue, the curvature; see `strategies.auto.several_scores.split`
    across: Array = field(default_factory=lambda: np.eye(1))
    constant: Vector = field(init=False)  # (p,) the best known model that predicts the same of everybody, or `initial`
    start: Vector = field(init=False)  # (p,) where the descent begins
    z: Vector = field(init=False)  # (p,) the position in the coordinates: the model is ``start + T z``
    move: Vector = field(init=False)  # (p,) the last step
    damping: float = 1.0  # divisor of steps where noise hides curvature; see `heed`
    scales: Vector = field(init=False)  # (d,) divisors of columns
    hidden: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))  # (d,) columns that noise hides
    size: float = field(init=False)  # norm of a user's second moments beyond which the user weighs less
    coordinates: Array = field(init=False)  # (d, d) the action of T on each block
    whitened: Whitening = field(init=False)  # the origin of the coordinates
    known: Known | None = None  # the estimate of the gradient; None before its first release
    # of the noise on the constant's score (of several: at most); infinite if no mean target was released
    level_deviation: float = math.inf
    heard: float = 1.0  # share of users who are heard; 1 unless noise allows to tell that some are not
    vague: float = 0.0  # standard deviation of that share, over it; 0 if it is 1
    curved: float = 0.0  # curvature at the released constant, without a margin; 0 if none was released
    rare: float = 0.0  # slope at the constant of the user to whom a sample of the rarer class belongs, on average
    bend: float = 0.0  # by which the scores' variance takes their mean away from the constant; see `_stretch`
    highest: float = math.inf  # larger counts are lowered to this in their mean; infinite for none
    uneven: float = 1.0  # factor on the lengths of clips; see `strategies.auto.level.unevenness`
    slope: float = 0.0  # root mean square of samples' slopes at the constant, as far as the mean target tells
    length: float = 1.0  # that factor times users' typical gradient length as last released
    radius: float = 1.0  # of the next clip of adaptive steps
    gradient: Vector = field(default_factory=lambda: np.zeros(0))  # (p,) the direction of the next `StepLength`
    optimiser: ServerOptimiser = field(init=False)  # of `AdaptiveStep`
    inference: Inference | None = None  # of coefficients; None before their rounds

    def __post_init__(self, initial: Vector) -> None:
        p = len(initial)
        d = p // len(self.across)
        self.scales, self.size = np.ones(d), float(d)
        self.coordinates = np.eye(d if self.learns else 0)
        self.whitened = Whitening(self.coordinates, np.ones(p), np.ones(p), 0.0)
        self.begin(initial)

    def begin(self, initial: Vector) -> None:
        """Begin at this model."""
        self.constant = self.start = frozen(initial)
        self.z, self.move = np.zeros(len(self.space.seen)), np.zeros(len(self.space.seen))

    @property
    def space(self) -> Whitening | ColumnCoordinates:
        """The coordinates, with the second moments seen in them."""
        return self.whitened if self.columns is None else self.columns

    @property
    def released_constant(self) -> Vector | None:
        """(p,) the constant; None if no mean target was released."""
        return None if self.level_deviation == math.inf else self.constant

    def learn(self, released: Vector, deviation: float) -> None:
        """Correct the known gradient by a release, predicted from the former ones and the last step."""
        known = self.known
        if known is None:
            variance = np.full(len(released), deviation**2)
            self.known = Known(released, variance, variance)
            return
        self.heed(released, deviation)
        spread = self.spread(self.move)
        change = self.curvature * self.space.seen * spread
        doubt = self.curvature**2 * self.space.doubt(spread)
        sure = self.whitened.sure if self.columns is None else np.ones(len(doubt))
        self.known = known.corrected(released, deviation, change, doubt, sure)

    def heed(self, released: Vector, deviation: float) -> None:
        """Shorten steps where the gradient changed by more than the coordinates explain.

        Where noise hides second moments, curvature may be several times the assumed one, and whole steps would
        diverge. The last step measures the curvature along it, up to noise; its lower confidence bound counts.
        """
        doubtful, followed = self.space.doubtful, self.space.followed
        if self.known is None or not doubtful.any():
            return
        move = np.where(doubtful, self.move, 0.0)
        assumed = np.divide(self.spread(move), followed, out=np.zeros_like(move), where=followed > 0)
        length = self.curvature * float(move @ assumed)
        if length == 0:
            return
        # A step follows the error of the known gradient, which the next release does not repeat.
        repeated = float(followed[doubtful] @ self.known.variance[doubtful]) / (self.curvature * self.damping)
        felt = (float((released - self.known.gradient) @ move) - repeated) / length
        error = math.sqrt(float((deviation**2 + self.known.variance) @ move**2)) / length
        self.damping = max(self.damping, felt - CERTAIN * error)

    def spread(self, move: Vector) -> Vector:
        """Return the (p,) change of the gradient by a move, over the curvature, where second moments are one."""
        return np.asarray((self.across @ move.reshape(len(self.across), -1)).ravel())

    def towards(self, known: Known) -> Vector:
        """Return the (p,) step to where the gradient vanishes, shortened where noise hides curvature.

        For several scores, or many columns, it is shrunk as noise demands.
        """
        step, variance = np.asarray(-known.gradient / self.curvature), known.variance / self.curvature**2
        if self.columns is not None:
            step = self.columns.step(step, variance, self.z)
        elif len(self.across) > 1:
            step = step_of_scores(self.across, step, variance, self.z)
        return np.asarray(np.where(self.space.doubtful, step / self.damping, step))

    @property
    def along(self) -> Vector:
        """(p,) the coordinates of a step of one along the constant, for one score."""
        return np.asarray(np.linalg.solve(self.coordinates, np.eye(len(self.z))[-1]))

    @property
    def slope_deviation(self) -> float:
        """The typical slope of a user in each coordinate, as last released."""
        return self.length / math.sqrt(len(self.z))

    @property
    def slope_size(self) -> float:
        """The root mean square of users' slopes in each coordinate, as far as releases tell."""
        return max(TYPICAL * self.slope_deviation, self.slope)

    def slope_variance(self, known: Known, bias: float) -> float:
        """Return the variance of the gradient along the constant, with a bias of so many typical slopes."""
        return float(known.variance @ self.along**2) + (bias * self.slope_deviation) ** 2

    def settle(self, variance: float | None = None) -> float:
        """Update the constant: the precision-weighted mean of the released mean target and the model's part.

        What separates the two beyond noise is a bias of the model, as clips give it where few targets are large.

        A range far wider than the targets makes the mean's noise large, while gradients are clipped to users' lengths.
        In the coordinates a constant is a multiple of one direction, and the best one, for equal curvature, the
        model's part along it. For several scores the constant stays as released.

        Args:
            variance: of the error of that part; None to compute it from the known gradient.

        Returns:
            That variance; 0 if the constant stays.
        """
        if self.known is None or self.level_deviation == math.inf or len(self.across) > 1 or not self.learns:
            return 0.0
        along = self.along
        square = float(along @ along)
        part = float(along @ self.z) / square
        constant, level = self.start.copy(), self.level_deviation**2  # the released constant
        apart = (constant[-1] + part) / self._stretch(self.z - part * along) - constant[-1]
        own = variance
        if own is None:
            own = float(self.known.variance @ along**2) / (square * self.curvature) ** 2
            bias = CLIP_BIAS * self.slope_deviation / self.curvature
            own += max(bias**2, apart**2 - CERTAIN**2 * (own + level))
        constant[-1] += level / (own + level) * apart
        self.constant = frozen(constant)
        return own

    def _stretch(self, way: Vector) -> float:
        """Return the mean score over the constant's that predicts the same mean, after a move by which scores vary."""
        return math.sqrt(1 + self.bend * float(self.space.seen @ way**2))

    def finish(self, users: float, *, balanced: bool) -> None:
        """End the descent: settle the constant, and shrink the way from there as far as chance hides it.

        Of a way of squared length S and variance V in p coordinates a share of ``V / S`` is worth forgetting (James and
        Stein 1961), and ``sqrt(2 / p)`` of that more for how much V varies; and all of a way that chance makes as long
        once in twenty, were curvature lower by its error: that of the matrix, and of rates and counts. V is that of the
        noise, and that by which people like these ``users`` differ. Unless predictions will be ``balanced``, their mean
        moves to the constant's, the more the less certain it is.
        """
        biased = self.settle()
        if self.known is None or len(self.across) > 1 or not self.learns:
            return
        released, seen = self.level_deviation < math.inf, self.space.seen
        along = self.along if released else np.zeros(len(self.z))
        centre = float(along @ self.z) / (float(along @ along) or 1.0) * along
        way = self.z - centre
        slopes, curvature = self.slope_size**2 / users, self.curved or self.curvature
        noises = (self.known.variance, np.maximum(self.known.walked, self.known.variance))
        chance, most = (float(seen @ (noise + slopes)) / curvature**2 for noise in noises)
        square, vague = float(seen @ way**2), self.level_deviation if self.slope > 0 else 0.0
        likely = float(chdtri(len(way) - released, RARELY)) / len(way) * (1 + vague) ** 2
        forgotten = (1 + math.sqrt(2 / len(way))) * chance / square if square > likely * most else 1.0
        way *= 1 - min(forgotten, 1.0)
        if released and not balanced:
            wanted = (self._stretch(way) * self.constant[-1] - self.start[-1]) * along
            centre += biased / (biased + OFF_CENTRE**2 * float(seen @ way**2)) * (wanted - centre)
        self.z = centre + way

    def directed(self, gradient: Vector, deviation: float) -> Vector:
        """Return the optimiser's (p,) move of step one, after a release with noise of that deviation."""
        return self.optimiser.step(np.zeros_like(gradient), gradient / self.length, deviation / self.length)

    def new_part(self, attribute: str, state: State) -> Stateful:
        """Make a part that exists from a later round on."""
        if attribute == "inference":
            return Inference(self.start, self.coordinates, self.size, self.start)
        return Known(self.z, self.z, self.z) if attribute == "known" else following_optimiser(len(self.start))

    @property
    def model(self) -> Vector:
        """(p,) the current model."""
        return self.model_at(self.z) if self.learns or self.columns is not None else self.start

    def model_at(self, z: Vector) -> Vector:
        """Return the (p,) model at these coordinates."""
        if self.columns is not None:
            return self.start + self.columns.moved(z)
        return self.start + turned(z, self.coordinates.T)

    def inside(self, z: Vector, domain: Box) -> Vector:
        """Return z, or the coordinates of the nearest model of the domain."""
        model = self.model_at(z)
        inside = domain.project(model)
        if np.array_equal(model, inside):
            return z
        if self.columns is not None:
            return self.columns.placed(inside - self.start, z)
        return turned_back(inside - self.start, self.coordinates)
