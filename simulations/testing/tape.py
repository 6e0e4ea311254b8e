"""Noise that is recorded in one run and replayed in another, so that two runs on neighbours release the same.

Everything that depends on released values alone is then equal in both runs. The values that enter a release differ, by
no more than the sensitivity of its mechanism.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax

from userdp.accounting import Cost, epsilon_of
from userdp.noise import NoiseSource, Scores, SeededNoise, in_units
from userdp.randomness import stream

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Kind = Literal["gaussian", "laplace", "choose"]
_ROUNDED_DOWN: Any = {"pessimistic_estimate": False, "value_discretization_interval": 1e-3}
"""The grid of privacy losses, on which their composition is a lower bound."""


@dataclass(frozen=True)
class Draw:
    """One draw of noise: its distribution, the value before the noise (or the scores of a choice), and the release.

    ``scale`` is a standard deviation or scale, or the epsilon of a choice; ``cost`` is what the mechanism charged for
    the release.
    """

    kind: Kind
    value: NDArray[np.float64]
    scale: float
    cost: Cost
    released: Any

    @property
    def sensitivity(self) -> float | None:
        """The distance of neighbours' values: l2 for Gaussian noise, l1 for Laplace, largest score for a choice.

        None for the noises of a test, which share a cost.
        """
        if self.kind == "gaussian":
            return self.scale / self.cost.noise_multiplier if self.cost.noise_multiplier < np.inf else None
        if self.kind == "choose":
            return 1.0
        return None if self.cost.failure_delta or not self.cost.pure_epsilon else self.scale * self.cost.pure_epsilon

    def distance(self, other: "Draw") -> float:
        """Compute the distance of two runs' values in the norm of the sensitivity."""
        apart = np.abs(self.value - other.value)
        if self.kind == "gaussian":
            return float(np.linalg.norm(apart))
        return float(apart.max(initial=0.0) if self.kind == "choose" else apart.sum())


@dataclass
class Tape:
    """The draws of a run, in order; releases come from the draws ``played`` by another run, if given."""

    played: "list[Draw] | None" = None
    draws: list[Draw] = field(default_factory=list)

    def source(self, seed: int, index: int, purpose: int) -> NoiseSource:
        """Return the noise for a round and a purpose."""
        return Taped(SeededNoise(stream(seed, "noise", index, purpose)), self)

    def note(self, draw: Draw) -> Any:
        """Record a draw and return its release."""
        if self.played is not None:
            before = self.played[len(self.draws)] if len(self.draws) < len(self.played) else None
            if before is None or before.kind != draw.kind or np.shape(before.value) != np.shape(draw.value):
                raise AssertionError(
                    "the runs of two neighbours draw different noises, though their releases are equal"
                )
            draw = Draw(draw.kind, draw.value, draw.scale, draw.cost, before.released)
        self.draws.append(draw)
        return draw.released


@dataclass(frozen=True)
class Taped(NoiseSource):
    """Seeded noise that is recorded on a tape, or replayed from it."""

    inner: SeededNoise
    tape: Tape
    charged: Cost = field(default_factory=Cost)  # by the mechanism that charged last

    def charge(self, cost: Cost) -> None:
        super().charge(cost)
        object.__setattr__(self, "charged", cost)  # a source is frozen except for its account

    def gaussian(self, value: ArrayLike, deviation: float) -> NDArray[np.float64]:
        return np.asarray(self._noted("gaussian", value, deviation))

    def laplace(self, value: ArrayLike, scale: float) -> NDArray[np.float64]:
        return np.asarray(self._noted("laplace", value, scale))

    def choose(self, scores: Scores, epsilon: float, *, flips: bool = False) -> NDArray[np.int64]:
        return np.asarray(self._noted("choose", scores, epsilon, flips=flips))

    def _noted(self, kind: Kind, value: ArrayLike | Scores, scale: float, **more: bool) -> Any:
        before = np.array(in_units(value) if isinstance(value, Scores) else value, dtype=np.float64)
        return self.tape.note(Draw(kind, before, scale, self.charged, getattr(self.inner, kind)(value, scale, **more)))


def epsilon_between(one: Tape, other: Tape, delta: float) -> float:
    """Bound from below the epsilon that two runs' releases cost at ``delta``, given the releases before each.

    The noises of a test, which are scalars, are left out: the test compares their values and does not release them.
    """
    draws = list(zip(one.draws, other.draws, strict=True))
    squares = sum((a.distance(b) / a.scale) ** 2 for a, b in draws if a.kind == "gaussian")
    gaussian = Cost(noise_multiplier=squares**-0.5) if squares else Cost()
    losses = [loss for a, b in draws if a.kind != "gaussian" and a.value.ndim for loss in _losses(a, b)]
    if not losses:
        return epsilon_of(gaussian, 1, delta)
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism  # noqa: PLC0415 -- slow to import

    if squares:
        losses.append(from_gaussian_mechanism(gaussian.noise_multiplier, **_ROUNDED_DOWN))
    return float(reduce(lambda before, loss: before.compose(loss), losses).get_epsilon_for_delta(delta))


def _losses(one: Draw, other: Draw) -> "Iterator[PrivacyLossDistribution]":
    """Yield the privacy loss of each Laplace entry, or of each choice, that differs between two runs."""
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415 -- slow to import

    if one.kind == "laplace":
        apart = np.abs(one.value - other.value).ravel()
        yield from (pld.from_laplace_mechanism(one.scale, float(by), **_ROUNDED_DOWN) for by in apart[apart > 0])
        return
    for scores in zip(np.atleast_2d(one.value), np.atleast_2d(other.value), strict=True):
        if not np.array_equal(*scores):
            laws = (dict(enumerate(log_softmax(one.scale / 2 * each).tolist())) for each in scores)
            yield pld.from_two_probability_mass_functions(*laws, symmetric=False, **_ROUNDED_DOWN)
