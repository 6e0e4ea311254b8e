"""Noise that is written down in one run and played back in another: so two runs on neighbours release the same.

Whatever depends on released values alone is then the same in both. What enters a release differs, and may differ by no
more than its noise is made for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from userdp.accounting import Cost, epsilon_of
from userdp.noise import NoiseSource, SeededNoise
from userdp.randomness import stream

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Kind = Literal["gaussian", "laplace", "choose"]
_GRID = 1e-3
"""Width of a cell of privacy losses, whose middle counts for all of it: what is found is not too much."""


@dataclass(frozen=True)
class Draw:
    """One draw of noise.

    Attributes:
        kind: of the noise.
        value: what it was added to, or the scores that were chosen by.
        scale: the noise's standard deviation or scale, or the epsilon of a choice.
        cost: of the release that it belongs to, as the mechanism charged it.
        released: what came of it.
    """

    kind: Kind
    value: NDArray[np.float64]
    scale: float
    cost: Cost
    released: Any

    @property
    def sensitivity(self) -> float | None:
        """How far neighbours' values may lie apart: l2 for Gaussian noise, l1 for Laplace, in any score of a choice.

        None for the noises of a test, which share a cost.
        """
        if self.kind == "gaussian":
            return self.scale / self.cost.noise_multiplier if self.cost.noise_multiplier < np.inf else None
        if self.kind == "choose":
            return 1.0
        return None if self.cost.failure_delta or not self.cost.pure_epsilon else self.scale * self.cost.pure_epsilon

    def distance(self, other: "Draw") -> float:
        """How far the values of two runs lie apart, in the norm of the sensitivity."""
        apart = np.abs(self.value - other.value)
        if self.kind == "gaussian":
            return float(np.linalg.norm(apart))
        return float(apart.max(initial=0.0) if self.kind == "choose" else apart.sum())


@dataclass
class Tape:
    """What a run draws, in order.

    Attributes:
        played: the draws of another run, whose releases this one gets; None to draw anew.
        draws: of this run.
    """

    played: "list[Draw] | None" = None
    draws: list[Draw] = field(default_factory=list)

    def source(self, seed: int, index: int, purpose: int) -> NoiseSource:
        """The noise of a round's purpose."""
        return Taped(SeededNoise(stream(seed, "noise", index, purpose)), self)

    def note(self, draw: Draw) -> Any:
        """Write a draw down; what is released."""
        if self.played is not None:
            before = self.played[len(self.draws)] if len(self.draws) < len(self.played) else None
            if before is None or before.kind != draw.kind or np.shape(before.value) != np.shape(draw.value):
                raise AssertionError(
                    "the runs of two neighbours draw other noises, though all that was released is alike"
                )
            draw = Draw(draw.kind, draw.value, draw.scale, draw.cost, before.released)
        self.draws.append(draw)
        return draw.released


@dataclass(frozen=True)
class Taped(NoiseSource):
    """Seeded noise that is written down, or taken from another run.

    Attributes:
        inner: draws, where nothing is played back.
        tape: where it is written.
    """

    inner: SeededNoise
    tape: Tape

    def gaussian(self, value: ArrayLike, deviation: float) -> NDArray[np.float64]:
        """See `NoiseSource`."""
        return np.asarray(self._noted("gaussian", value, deviation))

    def laplace(self, value: ArrayLike, scale: float) -> NDArray[np.float64]:
        """See `NoiseSource`."""
        return np.asarray(self._noted("laplace", value, scale))

    def choose(self, scores: ArrayLike, epsilon: float) -> NDArray[np.int64]:
        """See `NoiseSource`."""
        return np.asarray(self._noted("choose", scores, epsilon))

    def _noted(self, kind: Kind, value: ArrayLike, scale: float) -> Any:
        draw = partial(Draw, kind, np.array(value, dtype=np.float64), scale, self.spent)
        return self.tape.note(draw(getattr(self.inner, kind)(value, scale)))


def epsilon_between(one: Tape, other: Tape, delta: float) -> float:
    """The epsilon at which the laws of what two runs drew, given what was released before, are apart by ``delta``.

    A lower bound for whatever promises to hide the difference. The noises of a test, which are numbers alone, are left
    out: what they are added to is compared and not released.
    """
    drawn = list(zip(one.draws, other.draws, strict=True))
    squares = sum((a.distance(b) / a.scale) ** 2 for a, b in drawn if a.kind == "gaussian")
    gaussian = Cost(noise_multiplier=squares**-0.5) if squares else Cost()
    others = [law for a, b in drawn if a.kind != "gaussian" and a.value.ndim for law in _losses(a, b)]
    if not others:
        return epsilon_of(gaussian, 1, delta)
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism  # noqa: PLC0415 -- slow to import

    if squares:
        noise = gaussian.noise_multiplier
        others.append(from_gaussian_mechanism(noise, pessimistic_estimate=False, value_discretization_interval=_GRID))
    return float(reduce(lambda before, law: before.compose(law), others).get_epsilon_for_delta(delta))


def _losses(one: Draw, other: Draw) -> "Iterator[PrivacyLossDistribution]":
    """The privacy losses of each entry of Laplace noise, or of each choice, that differs between two runs."""
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415 -- slow to import

    if one.kind == "laplace":
        apart = np.abs(one.value - other.value).ravel()
        for moved in apart[apart > 0]:
            yield pld.from_laplace_mechanism(
                one.scale, float(moved), pessimistic_estimate=False, value_discretization_interval=_GRID
            )
        return
    for rows in zip(np.atleast_2d(one.value), np.atleast_2d(other.value), strict=True):
        if not np.array_equal(*rows):
            laws = (dict(enumerate(log_softmax(one.scale / 2 * row).tolist())) for row in rows)
            yield pld.from_two_probability_mass_functions(
                *laws, pessimistic_estimate=False, value_discretization_interval=_GRID, symmetric=False
            )
