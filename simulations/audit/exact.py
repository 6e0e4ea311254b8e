"""Of rounds that begin with one of finitely many outcomes: the epsilon of that outcome, exactly, for worst canaries."""

from collections.abc import Iterator, Sequence

import numpy as np
from flwr.app import Message, MessageType
from numpy.typing import NDArray

from simulations.audit.canaries import Attack, attacks
from simulations.audit.instance import Instance
from simulations.engines.grids import LocalGrid
from strategies.core.scheme import DiscreteScheme
from strategies.wire.protocol import read_answer, read_request
from userdp.audit.discrete import exact_epsilon
from userdp.nodes.node import Node

Floats = NDArray[np.float64]


class _Listener(LocalGrid):
    """Keeps what nodes answer in each round, for one that holds everybody.

    Attributes:
        values: of each round, rows or their sum.
    """

    def __init__(self, nodes: Sequence[Node], dimension: int) -> None:
        super().__init__(nodes)
        self._dimension = dimension
        self.values: list[Floats] = []

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        asked = {message.metadata.message_id: message for message in messages}
        for reply in super()._deliver(messages, timeout):
            message = asked[reply.metadata.reply_to_message_id]
            if message.metadata.message_type.startswith(MessageType.TRAIN) and not reply.has_error():
                answer = read_answer(reply, *read_request(message), self._dimension)
                values = np.asarray(answer.values)
                self.values.append(values[0] if len(values) == 1 else values)
            yield reply


def exact_step(instance: Instance) -> float | None:
    """The largest epsilon, at the claim's delta, of one round's outcome among the attacks; None where none is discrete.

    *Formal guarantees.* The claim's epsilon is at least this: no statistics, no confidence. *Proof.* Two runs of one
    seed on neighbouring data sets are alike up to the first round in which answers differ. Given all that was released
    before, the round's outcome has the two laws that the scheme computes from these answers, and it is a function of
    what the run releases; so whatever epsilon a run claims at a delta, given any such past, is at least the least one
    for which the two laws are indistinguishable (`exact_epsilon`).

    Args:
        instance: of the runs; its strategy's claim must hold given what was released before (adaptive composition).
    """
    scheme = instance.template.scheme
    if not isinstance(scheme, DiscreteScheme):
        return None
    found = [0.0]
    for attack in attacks(instance):
        for first, second in zip(*(_answers(instance, attack, coin) for coin in (1, -1)), strict=False):
            if first.shape != second.shape or not np.array_equal(first, second):
                if first.shape == second.shape:
                    laws = scheme.law(first), scheme.law(second)
                    found.append(exact_epsilon(*laws, instance.plan.guarantee.delta))
                break
    return max(found)


def _answers(instance: Instance, attack: Attack, coin: int) -> list[Floats]:
    """What nodes answer in each round if the first canary's coin is this, and all others 1."""
    coins = np.ones(len(attack.canaries), dtype=np.int64)
    coins[0] = coin
    nodes = attack.nodes(instance, coins)
    with _Listener(nodes, instance.problem.dimension) as grid:
        instance.strategy(instance.config.seed).start(grid)
    return grid.values
