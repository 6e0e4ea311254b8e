"""The view of a run's adversary: what travels, and epsilon of the noise that is left in it, by dp-accounting alone."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from flwr.app import Array, Message
from helpers import afresh, federation_of, gathered, taken
from helpers_audits import epsilon_lower_bound
from scipy.optimize import brentq

from simulations.engines.grids import LocalGrid
from strategies.wire.replies import Gathered
from userdp.nodes.node import Node


def gaussian_epsilon(distance: float, delta: float) -> float:
    """The epsilon of one release with outcomes that many standard deviations apart."""
    losses = GaussianPrivacyLoss(1 / distance)
    if losses.get_delta_for_epsilon(0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: losses.get_delta_for_epsilon(epsilon) - delta, 0.0, 1e4, xtol=1e-9))


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
