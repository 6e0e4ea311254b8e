"""The view of a run's adversary, and epsilon recomputed from the noise that is left in it, by dp-accounting alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
    from_laplace_mechanism,
    from_two_probability_mass_functions,
)
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from flwr.app import Array, Message
from helpers import afresh, federation_of, gathered, taken
from helpers_audits import epsilon_lower_bound
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp

from simulations.engines.grids import LocalGrid
from strategies.wire.replies import Gathered
from userdp.nodes.node import Node
from userdp.noise import NoiseSource, Scores, in_units

Floats = NDArray[np.float64]
_STILL = 1e-9
"""A move of less than this share of its noise is one of rounding, and costs nothing that a test could see."""


# --- Epsilon ------------------------------------------------------------------------------------------------


def gaussian_epsilon(distance: float, delta: float) -> float:
    """The epsilon of one release with outcomes that many standard deviations apart."""
    losses = GaussianPrivacyLoss(1 / distance)
    if losses.get_delta_for_epsilon(0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: losses.get_delta_for_epsilon(epsilon) - delta, 0.0, 1e4, xtol=1e-9))


@cache
def gaussian(distance: float, rate: float | None = None) -> PrivacyLossDistribution:
    """The same as a distribution of losses; with a rate, of a unit that takes part with that chance."""
    if rate is None:
        return from_gaussian_mechanism(1 / distance)
    return from_gaussian_mechanism(
        1 / distance, sampling_prob=rate, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE
    )


# --- The draws of a run -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """One draw of noise: what was to be hidden, the size of the noise, and what came out."""

    kind: str
    value: Floats
    size: float
    outcome: NDArray[Any]


def _hidden(value: Any) -> Floats:
    return np.array(in_units(value) if isinstance(value, Scores) else value, dtype=np.float64)


class _Kept(NoiseSource):
    """Whatever is drawn goes through ``_kept``."""

    def gaussian(self, value: Any, deviation: float) -> Any:
        return self._kept("gaussian", value, deviation)

    def laplace(self, value: Any, scale: float) -> Any:
        return self._kept("laplace", value, scale)

    def choose(self, scores: Any, epsilon: float, *, flips: bool = False) -> Any:
        assert not flips  # `Losses` knows the law of the exponential mechanism
        return self._kept("choose", scores, epsilon)


@dataclass
class Recorded(_Kept):
    """Draws as another source does, and keeps what it was asked for."""

    source: NoiseSource
    draws: list[Draw]

    def _kept(self, kind: str, value: Any, size: float) -> Any:
        outcome = np.array(getattr(self.source, kind)(value, size))
        value = _hidden(value)
        self.draws.append(Draw(kind, value, float(size), outcome.copy()))
        return outcome


@dataclass
class Replayed(_Kept):
    """Gives the outcomes of another run, and keeps what it was to hide here."""

    outcomes: Iterator[Draw]
    draws: list[Draw]

    def _kept(self, kind: str, value: Any, size: float) -> Any:
        draw = next(self.outcomes)
        assert draw.kind == kind
        self.draws.append(Draw(kind, _hidden(value), float(size), draw.outcome))
        return draw.outcome.copy()


@dataclass
class Losses:
    """The losses of draws that are released one after the other, added up.

    Attributes:
        square: of the distance of all Gaussian ones together, in standard deviations.
        others: distributions of the losses of the rest.
    """

    square: float = 0.0
    others: list[PrivacyLossDistribution] = field(default_factory=list)

    def add(self, one: Draw, other: Draw, rate: float | None = None) -> None:
        """A draw of two runs with neighbouring data that have had the same outcomes so far."""
        assert one.size == other.size, "the size of the noise depends on the data"
        moved = np.ravel(one.value - other.value)
        if one.kind == "gaussian":
            distance = float(np.linalg.norm(moved)) / one.size
            if rate is None:
                self.square += distance**2
            elif distance > _STILL:
                self.others.append(gaussian(distance, rate))
        elif one.kind == "laplace":
            self.others += [from_laplace_mechanism(one.size / shift) for shift in np.abs(moved) if shift > _STILL]
        else:
            pairs = zip(np.atleast_2d(one.value), np.atleast_2d(other.value), strict=True)
            self.others += [_choice(*pair, one.size) for pair in pairs if not np.array_equal(*pair)]

    def epsilon(self, delta: float) -> float:
        """The epsilon of all of them together."""
        losses, together = list(self.others), math.sqrt(self.square)
        if not losses:
            return gaussian_epsilon(together, delta) if together > _STILL else 0.0
        if together > _STILL:
            losses.append(gaussian(together))
        whole = losses[0]
        for loss in losses[1:]:
            whole = whole.compose(loss)
        return float(whole.get_epsilon_for_delta(delta))


def _choice(one: Floats, other: Floats, epsilon: float) -> PrivacyLossDistribution:
    """The losses of a choice by the exponential mechanism with these scores, in both directions."""
    laws = [epsilon * scores / 2 - logsumexp(epsilon * scores / 2) for scores in (one, other)]
    lower, upper = (dict(enumerate(law.tolist())) for law in laws)
    return from_two_probability_mass_functions(lower, upper, symmetric=False)


# --- What travels -------------------------------------------------------------------------------------------


class Overheard(LocalGrid):
    """Keeps all that it delivers."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self.asked: list[Message] = []
        self.answers: list[Message] = []

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        self.asked += messages
        for reply in super()._deliver(messages, timeout):
            self.answers.append(reply)
            yield reply

    @property
    def trained(self) -> list[Message]:
        """The messages of rounds, in their order."""
        return [message for message in self.asked if "model" in message.content]


def fields_of(message: Message) -> dict[str, Any]:
    """Every field of a message, comparable to the bit."""
    return {
        f"{record}.{name}": (value.dtype, value.shape, value.data) if isinstance(value, Array) else value
        for record, values in message.content.items()
        for name, value in values.items()
    }


def audit(method, samples=1, runs=20_000):
    """Return a lower bound on epsilon for a user at either end of the world, among four users, the others at zero."""
    scores, rounds = [], method.plan.rounds
    afresh(method)
    for first, side in ((0, 1000.0), (runs, -1000.0)):
        rows = np.zeros((4, samples, 1))
        rows[0] = side
        replies = [gathered(method, federation_of(rows), index, np.zeros(1)).values for index in range(rounds)]
        found = np.empty(runs)
        for number in range(runs):
            method.noise_seed, x = first + number, np.zeros(1)
            for index, values in enumerate(replies):
                x = taken(method, index, x, Gathered(values, 0, 0)).following
            found[number] = x[0]
        scores.append(found)
    return epsilon_lower_bound(*scores, method.plan.guarantee.delta)
