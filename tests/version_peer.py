"""A federation of two nodes that is shared out between two processes, whose versions of userdp may differ.

`python version_peer.py node|server SOCKET KIND` plays one part of it, with the userdp that PYTHONPATH names first, for
whoever listens at the socket; `tests/strategies/wire/test_versions.py` plays the other. Only names that former versions
have are imported.
"""

import sys
from multiprocessing.connection import Client, Connection

import numpy as np
from flwr.app import Message, MessageType

from simulations.engines.grids import InMachineGrid
from strategies import DPFedSGD, PublicFacts
from strategies.wire.protocol import answer_message
from userdp.accounting import Privacy
from userdp.data import Block, ColumnarFederation
from userdp.masking.masks import MaskKey
from userdp.nodes.node import Node
from userdp.problems import Quadratic

KINDS = ("rows", "masked")
"""Sums that the server reads, and sums under masks, for which it asks for the nodes' keys."""
_USERS, _PROBLEM = 12, Quadratic(2, 1.0, 1.0)


def half(number: int) -> Node:
    """The node of the first or the last users."""
    values = np.linspace(-1.0, 1.0, 2 * _USERS, dtype=np.float32).reshape(_USERS, 2)
    data = ColumnarFederation(Block(values, np.arange(_USERS + 1)))
    return Node(_PROBLEM, data, np.array_split(np.arange(_USERS), 2)[number])


def answers(node: Node, messages: list[Message]) -> list[Message]:
    """A node's replies, as they travel between machines."""
    for message in messages:
        if message.metadata.message_type == MessageType.QUERY:
            node.key = MaskKey()
    return [answer_message(node, message) for message in messages]


class TwoProcesses(InMachineGrid):
    """Node 1 is in this process, node 2 at the other end of a connection."""

    def __init__(self, there: Connection) -> None:
        super().__init__(2)
        self._here, self._there = half(0), there

    def _deliver(self, messages, timeout):
        there = [message for message in messages if message.metadata.dst_node_id == 2]
        yield from answers(self._here, [message for message in messages if message.metadata.dst_node_id == 1])
        if there:
            self._there.send(there)
            yield from self._there.recv()


def serve(there: Connection, kind: str) -> bytes:
    """Train on both nodes, and return the released model."""
    privacy = Privacy(2.0, 1e-3, trust="sum") if kind == "masked" else Privacy(2.0, 1e-3)
    given, settings = (_PROBLEM, PublicFacts(_USERS), privacy), {"rounds": 3, "clip_norm": 1.0}
    if hasattr(DPFedSGD, "strategy"):
        strategy = DPFedSGD(**settings).strategy(*given, seed=0)
    else:  # the first version made both at once
        strategy = DPFedSGD(*given, seed=0, **settings)
    result = strategy.start(TwoProcesses(there), roster_timeout=1.0)
    there.send(None)
    return result.arrays["x"].numpy().tobytes()


def answer(there: Connection) -> None:
    """Be node 2 until the server is done."""
    node = half(1)
    InMachineGrid.__init__(object.__new__(TwoProcesses), 0)  # gives this process the identity that messages need
    while (messages := there.recv()) is not None:
        there.send(answers(node, messages))


if __name__ == "__main__":
    part, socket, kind = sys.argv[1:]
    with Client(socket) as connection:
        if part == "node":
            answer(connection)
        else:
            model = serve(connection, kind)
            connection.send(model)
