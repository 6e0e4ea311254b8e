"""The answers that a server receives in a run, and the exact epsilon of a discrete outcome computed from them."""

from collections.abc import Iterator, Sequence

import numpy as np
from flwr.app import Message, MessageType

from simulations.audit.canaries import Attack, attacks
from simulations.audit.instance import Instance
from simulations.engines.grids import LocalGrid
from strategies.core.scheme import law_of
from strategies.wire.protocol import read_answer
from strategies.wire.questions import Reader
from userdp.arrays.sparse_rows import dense
from userdp.arrays.types import Array
from userdp.audit.discrete import exact_epsilon
from userdp.nodes.node import Answer, Node


class Listener(LocalGrid):
    """A grid that records the answers of all rounds, in order."""

    def __init__(self, nodes: Sequence[Node], dimension: int) -> None:
        super().__init__(nodes)
        self._dimension = dimension
        self.answers: list[Answer] = []

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        asked = {message.metadata.message_id: message for message in messages}
        reader = Reader()
        for reply in super()._deliver(messages, timeout):
            message = asked[reply.metadata.reply_to_message_id]
            if message.metadata.message_type.startswith(MessageType.TRAIN) and not reply.has_error():
                self.answers.append(read_answer(reply, *reader.request(message), self._dimension))
            yield reply


def exact_step(instance: Instance) -> float | None:
    """Compute the largest epsilon, at the claim's delta, of a round's discrete outcome over the attacks; None without.

    *Formal guarantees.* The claim's epsilon is at least this: no statistics, no confidence. *Proof.* Two runs of one
    seed on neighbouring data sets are equal up to the first round with different answers. Given all earlier releases,
    the outcome of the rounds so far has the two laws that the scheme computes from these answers (those of earlier
    rounds are the same), and it is a function of the run's releases. So the epsilon that a run claims at a delta, given
    any such past, is at least the smallest one at which the two laws are indistinguishable (`exact_epsilon`).
    *Assumption.* The strategy's claim holds given all earlier releases (adaptive composition).
    """
    law = law_of(instance.template.scheme)
    if law is None:
        return None
    found = [0.0]
    for attack in attacks(instance):
        runs = [_answers(instance, attack, coin) for coin in (1, -1)]
        for index, (first, second) in enumerate(zip(*runs, strict=False)):
            if first.shape != second.shape or not np.array_equal(first, second):
                if first.shape == second.shape:
                    one, other = (law(gathered[: index + 1]) for gathered in runs)
                    found.append(exact_epsilon(one, other, instance.plan.guarantee.delta))
                break
    return max(found)


def _answers(instance: Instance, attack: Attack, coin: int) -> list[Array]:
    """Return the nodes' answers of each round; the first canary's coin is given, all others are 1."""
    coins = np.ones(len(attack.canaries), dtype=np.int64)
    coins[0] = coin
    nodes = attack.nodes(instance, coins)
    with Listener(nodes, instance.problem.dimension) as grid:
        instance.strategy(instance.config.seed).start(grid)
    values = [dense(answer.values) for answer in grid.answers]
    return [each[0] if len(each) == 1 else each for each in values]
