"""The rounds of `Auto` that release coefficients with standard errors, before its last one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.auto.inference import Inference
from strategies.auto.progress import Progress, whitening
from strategies.auto.releases import Movement, Release
from strategies.auto.stages import Stage
from userdp.arrays.types import Array, Vector
from userdp.data.coefficients import CoefficientMap
from userdp.nodes.computations import Computation
from userdp.nodes.moments import symmetric

NARROWEST, WIDEST = 2.0, 8.0  # Range of a curvature's size with full weight, over sqrt(k) and over k
_HIDES = 0.5  # That eigenvalue, at the narrowest size, from which on errors are expected to be hidden
_HIDDEN = 0.15  # Largest eigenvalue of the curvature's noise that a wider size may cost, over an average curvature
_EDGES = 2.0 ** np.arange(-3, 6.5, 0.5)  # Norms of slopes that are told apart, over that of training's last gradients
_AHEAD = 4  # Intervals beyond a clip in which users are counted: up to four times its length
_CUT = 0.15  # Users that a clip may cut, in roots of n
_SURE = 1.5  # Deviations of noise by which a count of users must exceed zero to widen the clip
_FAINT = 0.08  # Noise on mean squares, over a typical one, that a wider clip may cost
_NARROW, _WIDE = 0.5, 3.0  # Range of the clip of squares, over that of slopes, squared, for equal coordinates


def begun(progress: Progress, reading: CoefficientMap, noise: float) -> Inference:
    """Return where the rounds begin: the trained model, in coordinates of the parameters that are not left out.

    The size of full weight is as wide as ``noise``, the standard deviation of a mean curvature's over that size,
    permits. Where the model of the mean is not quite right, weights change what is estimated.
    """
    whole, kept = progress.whitened, reading.kept
    vectors = whole.matrix * np.sqrt(whole.raised)
    moments = (vectors * (whole.seen * whole.raised)) @ vectors.T
    directions = np.zeros((len(progress.start), len(kept)))
    directions[kept] = whitening(moments[np.ix_(kept, kept)], whole.deviation).matrix / progress.scales[kept, None]
    k = len(kept)
    wide = _HIDDEN / (noise * math.sqrt(2 * k)) if noise else math.inf
    size = min(max(wide, NARROWEST * math.sqrt(k)), WIDEST * k) * progress.curvature
    start = reading.model_of @ (reading.of_model @ progress.model)
    return Inference(start, directions, size, progress.length * _EDGES)


@dataclass(frozen=True, eq=False)
class OfCoefficients(Stage):
    """A round that asks about the coefficients; with ``periods`` samples weigh by their features, not users."""

    reading: CoefficientMap
    periods: int = 0  # of hazards, whose levels are the last of the coefficients

    def _asked(self, name: str, clip_norm: float, progress: Progress, found: Inference, **arrays: Array) -> Computation:
        known = {"directions": found.directions, "weighing": found.start}
        parameters = {"size": found.size} | ({"curvature": progress.curvature} if self.periods else {})
        return Computation(name, "sum", clip_norm, parameters=parameters, arrays=known | arrays)


@dataclass(frozen=True, eq=False)
class Curvatures(OfCoefficients, share=0.2):
    """The mean curvature of the loss at the trained model."""

    noise: float = 0.0  # standard deviation of the noise on a mean, over the clip

    @property
    def hides(self) -> bool:
        """True if the noise is expected to hide the errors of most coefficients."""
        k = len(self.reading.names)
        return self.noise * math.sqrt(2 * k) * NARROWEST * math.sqrt(k) > _HIDES

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its curvature, clipped to the size, which is its weight."""
        found = begun(progress, self.reading, self.noise / progress.heard)
        return self._asked("user_curvature", found.size, progress, found)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`."""
        found = begun(progress, self.reading, self.noise / progress.heard)
        released, deviation = release.mean(sums, Movement.of_acute(found.size))
        found.curvature, found.curvature_deviation = symmetric(released), deviation
        progress.inference = found
        return {"noise_deviation": deviation}


class SlopeSizes(OfCoefficients, share=0.12):
    """The number of users with slopes of each size, from which the clip follows."""

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends in which interval the norm of its slope lies."""
        found = _found(progress)
        return self._asked("slope_sizes", 1.0, progress, found, model=found.start, edges=found.edges)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; the clip exceeds all but so few users that noise would hide them."""
        found = _found(progress)
        shares, deviation = release.mean(sums, Movement.of_acute())
        edges, half = found.edges, _first(np.cumsum(shares)[:-1] >= 0.5)
        beyond = np.convolve(shares, np.ones(_AHEAD))[_AHEAD:]  # in the intervals that follow each edge
        found.cut = max(_CUT / math.sqrt(release.users), _SURE * math.sqrt(_AHEAD) * deviation)
        found.typical = float(edges[half])
        found.clip_norm = float(edges[half + _first(beyond[half : len(edges)] <= found.cut)])
        return {"radius": found.clip_norm, "length": found.typical, "noise_deviation": deviation}


class Slopes(OfCoefficients, share=0.6):
    """The mean slope at the trained model, and the step that it asks for."""

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends its clipped slope."""
        found = _found(progress)
        return self._asked("weighted_slope", found.clip_norm, progress, found, model=found.start)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; takes one Newton step."""
        found = _found(progress)
        slope, found.slope_deviation = release.mean(sums, Movement.of_ball(found.clip_norm))
        found.step = found.stepped(slope)
        return {"radius": found.clip_norm, "noise_deviation": found.slope_deviation}


@dataclass(frozen=True, eq=False)
class Influences(OfCoefficients, share=0.08):
    """The users' mean squared influence on each coefficient: how much the choice of users moves it.

    The level of a period moves by the few users with an event then, far more than all else: a clip of all influences
    together would cut what these users tell of other coefficients. So levels are not asked. Given what came before, a
    period's slope has mean zero and the curvature as its variance: squares are one over the number of periods there,
    in units, where hazards are those of the model, and less where samples weigh less.
    """

    noise: float = 0.0  # standard deviation of the noise on a mean, over the clip

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user sends the squares of its influences at the model after the step."""
        found = _found(progress)
        influence = found.moved(self.reading) / found.units(self.reading)[:, None]
        influence[len(influence) - self.periods :] = 0.0
        return self._asked(
            "squared_influence", self._clip(progress), progress, found, model=found.model, influence=influence
        )

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; concludes with estimates and errors."""
        clip = self._clip(progress)
        squares, deviation = release.mean(sums, Movement.of_acute(clip))
        squares[len(squares) - self.periods :] = 1 / max(self.periods, 1)
        _found(progress).conclude(self.reading, squares, deviation, release.users)
        return {"radius": clip, "noise_deviation": deviation}

    def _clip(self, progress: Progress) -> float:
        """Return the clip of squares: k equal normal numbers of mean square one have squares of norm ``sqrt(3 k)``."""
        found = _found(progress)
        k = len(found.step)
        equal = math.sqrt(3 / k) * found.clip_norm**2
        noise = self.noise / progress.heard
        # By period a typical person has no event, and a short slope; the mean square is known.
        square = np.trace(found.curvature) / self.periods if self.periods else found.typical**2
        wide = _FAINT * square / k / (noise * equal) if noise else _WIDE
        return min(max(wide, _NARROW), _WIDE) * equal / progress.curvature


def _found(progress: Progress) -> Inference:
    assert progress.inference is not None  # made by the first of the rounds
    return progress.inference


def _first(true: NDArray[np.bool_]) -> int:
    """Return the first place where this is true; the last place if it is nowhere."""
    places = np.flatnonzero(true)
    return int(places[0]) if len(places) else len(true) - 1
