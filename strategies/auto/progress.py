"""What the server of `Auto` knows between rounds, all of it released."""

import math
from dataclasses import InitVar, dataclass, field
from typing import ClassVar

import numpy as np

from strategies.auto.coordinates import Whitening
from strategies.auto.several_scores import step_of_scores
from strategies.clipping.moving_centre import Centre
from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions
from strategies.core.read_only import frozen
from userdp.arrays.types import Array, Vector
from userdp.problems.in_coordinates import turned
from userdp.state import State, Stateful

CLIP_BIAS = 0.2
"""Deviations of users' slopes by which clips are taken to move the best constant."""

CERTAIN = 2.0
"""Standard deviations of noise by which curvature must be felt to be heeded."""


def following_optimiser(dimension: int) -> ServerOptimiser:
    """What adaptive steps follow: Adam of step one, for gradients of about unit length."""
    # No coordinate is stretched beyond a thousand times the root mean square that it would have among equals.
    adam = {"server_optimiser": "adam", "noise_corrected": True, "adaptivity": 1e-3 / math.sqrt(dimension)}
    return ServerOptimiser(ServerOptions.model_validate(adam), 1.0, dimension)


@dataclass
class Known(Stateful):
    """The gradient in the coordinates as far as all releases tell, and how far off it may be.

    Attributes:
        gradient: (p,).
        variance: (p,) of its error.
    """

    remembered: ClassVar[tuple[str, ...]] = ("gradient", "variance")
    gradient: Vector
    variance: Vector

    @classmethod
    def first(cls, released: Vector, deviation: float) -> "Known":
        """After the first release."""
        return cls(released, np.full(len(released), deviation**2))

    def corrected(self, released: Vector, deviation: float, change: Vector, doubt: Vector) -> "Known":
        """After another release, since when the gradient has changed by ``change``, known up to variance ``doubt``.

        The precision-weighted mean of what was predicted and what was released (Kalman 1960), in each coordinate.
        """
        variance = self.variance + doubt
        gain = variance / (variance + deviation**2)
        predicted = self.gradient + change
        return Known(predicted + gain * (released - predicted), gain * deviation**2)


@dataclass
class Progress(Stateful):
    """What the server knows, all of it released.

    Attributes:
        initial: (p,) the model before the first round.
        constant: (p,) the best that is known of those that predict the same of everybody; the initial model where none
            is looked for.
        curvature: what the second derivative of the loss by its scores is taken to be at most, in any direction.
        centre: what `Recentred` steps follow.
        learns: whether coordinates are learnt; else there are no matrices, which a module's would not fit into memory.
        across: (K, K) the second derivatives by the K scores, each of which has a block of d = p / K parameters, over
            their largest eigenvalue, the curvature; see `strategies.auto.several_scores.split`.
        start: (p,) where the descent begins.
        z: (p,) how far it has come, in the coordinates: the model is ``start + T z``.
        move: (p,) its last step.
        damping: what steps are divided by where curvature is hidden in noise; see `heed`.
        scales: (d,) what columns are divided by.
        size: norm of a user's second moments beyond which the user weighs less.
        coordinates: (d, d) what T does to each block.
        whitened: how they were found.
        known: of the gradient; None before the first release of one.
        level_deviation: of the noise on the constant's score (of several: at most); infinite where no mean target was
            released.
        highest: what larger counts are taken for in their mean; infinite for none.
        uneven: by how much clips are longer than for gradients of equal lengths; see
            `strategies.auto.level.unevenness`.
        length: that, times users' typical gradient length as last released.
        radius: of the next clip of adaptive steps.
        gradient: (p,) along which the next `StepLength` goes.
        optimiser: what `AdaptiveStep` follows.
        unit: length of the gradients that it is given as one.
    """

    remembered: ClassVar[tuple[str, ...]] = (
        *("curvature", "constant", "start", "z", "move", "damping", "scales", "size", "coordinates", "radius"),
        *("across", "level_deviation", "highest", "uneven", "length", "gradient", "unit"),
    )
    added: ClassVar[tuple[str, ...]] = ("highest",)
    parts: ClassVar[tuple[str, ...]] = ("centre", "whitened", "known", "optimiser")
    given: ClassVar[tuple[str, ...]] = ("learns",)
    initial: InitVar[Vector]
    curvature: float
    centre: Centre
    learns: bool = True
    across: Array = field(default_factory=lambda: np.eye(1))
    constant: Vector = field(init=False)
    start: Vector = field(init=False)
    z: Vector = field(init=False)
    move: Vector = field(init=False)
    damping: float = 1.0
    scales: Vector = field(init=False)
    size: float = field(init=False)
    coordinates: Array = field(init=False)
    whitened: Whitening = field(init=False)
    known: Known | None = None
    level_deviation: float = math.inf
    highest: float = math.inf
    uneven: float = 1.0
    length: float = 1.0
    radius: float = 1.0
    gradient: Vector = field(default_factory=lambda: np.zeros(0))
    optimiser: ServerOptimiser = field(init=False)
    unit: float = 1.0

    def __post_init__(self, initial: Vector) -> None:
        self.begin(initial)
        p = len(initial)
        d = p // len(self.across)
        self.scales, self.size = np.ones(d), float(d)
        self.coordinates = np.eye(d if self.learns else 0)
        self.whitened = Whitening(self.coordinates, np.ones(p), np.ones(p), 0.0)

    def begin(self, initial: Vector) -> None:
        """Begin at this model."""
        self.constant = self.start = frozen(initial)  # later steps replace the start; nothing changes it in place
        self.z, self.move = np.zeros_like(initial), np.zeros_like(initial)

    @property
    def released_constant(self) -> Vector | None:
        """(p,) the constant; None where no mean target was released."""
        return None if self.level_deviation == math.inf else self.constant

    def heed(self, released: Vector, deviation: float) -> None:
        """Shorten steps where the gradient changed by more than the coordinates explain.

        Where noise hides second moments, curvature may be several times what it is taken for, and whole steps would
        swing ever wider. The last step tells the curvature along it, up to noise: what is certain of it is heeded.
        """
        hidden = self.whitened.seen < 1
        if self.known is None or not hidden.any():
            return
        move = np.where(hidden, self.move, 0.0)
        length = self.curvature * float(move @ self.spread(move))
        if length == 0:
            return
        felt = float((released - self.known.gradient) @ move) / length
        error = math.sqrt(float((deviation**2 + self.known.variance) @ move**2)) / length
        self.damping = max(self.damping, felt - CERTAIN * error)

    def damped(self, step: Vector) -> Vector:
        """(p,) the step, shortened where curvature is hidden."""
        return np.asarray(np.where(self.whitened.seen < 1, step / self.damping, step))

    def spread(self, move: Vector) -> Vector:
        """(p,) how a move changes the gradient where second moments are one, over the curvature."""
        return np.asarray((self.across @ move.reshape(len(self.across), -1)).ravel())

    def towards(self, known: Known) -> Vector:
        """(p,) the step to where the gradient vanishes; of several scores only as far as noise lets tell."""
        if len(self.across) == 1:
            return np.asarray(-known.gradient / self.curvature)
        return step_of_scores(self.across, -known.gradient / self.curvature, known.variance / self.curvature**2, self.z)

    @property
    def along(self) -> Vector:
        """(p,) the coordinates of a step of one along the constant, where there is one score."""
        return np.asarray(np.linalg.solve(self.coordinates, np.eye(len(self.z))[-1]))

    @property
    def slope_deviation(self) -> float:
        """Typical slope of a user in each coordinate, as last released."""
        return self.length / math.sqrt(len(self.z))

    def slope_variance(self, known: Known, bias: float) -> float:
        """Of the gradient along the constant, as far as releases tell it; clips move it by ``bias`` typical slopes."""
        return float(known.variance @ self.along**2) + (bias * self.slope_deviation) ** 2

    def settle(self, variance: float | None = None) -> None:
        """Find the constant anew: the released mean target, and what the model says of it, by their precision.

        A range far wider than the targets makes the mean's noise large, and gradients are clipped to what users have.
        In the coordinates a constant is a multiple of one direction, and the best one, for equal curvature, the
        model's part along it. Of several scores the constant stays as it was released.

        Args:
            variance: of the error of that part; None for what gradients leave of it.
        """
        if self.known is None or self.level_deviation == math.inf or len(self.across) > 1:
            return
        along = self.along
        square = float(along @ along)
        own = variance
        if own is None:
            bias = CLIP_BIAS * self.slope_deviation / self.curvature
            own = float(self.known.variance @ along**2) / (square * self.curvature) ** 2 + bias**2
        constant = self.start.copy()  # where training begins is the constant that was released
        constant[-1] += self.level_deviation**2 / (own + self.level_deviation**2) * float(along @ self.z) / square
        self.constant = frozen(constant)

    def follow_with(self, optimiser: ServerOptimiser, unit: float) -> None:
        """Follow released gradients with that, in units of that length."""
        self.optimiser, self.unit = optimiser, unit

    def directed(self, gradient: Vector, deviation: float) -> Vector:
        """(p,) where the optimiser goes after a release with noise of that deviation, for a step of one."""
        return self.optimiser.step(np.zeros_like(gradient), gradient / self.unit, deviation / self.unit)

    def new_part(self, attribute: str, state: State) -> Stateful:
        """What is there from a later round on."""
        return Known(self.z, self.z) if attribute == "known" else following_optimiser(len(self.start))

    @property
    def model(self) -> Vector:
        """(p,) where the descent is."""
        return self.model_at(self.z) if self.learns else self.start

    def model_at(self, z: Vector) -> Vector:
        """(p,) the model at these coordinates."""
        return self.start + turned(z, self.coordinates.T)
