"""Noise that is written down in one run and played back in another: so two runs on neighbours release the same.

Whatever depends on released values alone is then the same in both. What enters a release differs, and may differ by no
more than its noise is made for.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from userdp.accounting import Cost
from userdp.noise import NoiseSource, SeededNoise
from userdp.randomness import stream

Kind = Literal["gaussian", "laplace", "choose"]


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
