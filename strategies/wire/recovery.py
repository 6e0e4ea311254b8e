"""The server's side of masked sums that survive silent nodes: it keeps sealed shares, and asks for some of them."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
from flwr.app import Message, MessageType, RecordDict

from strategies.wire.protocol import failure
from strategies.wire.shares import read_revealed, read_shared, sharing_question, survivors_question
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.masking.grid import Residues
from userdp.masking.shares import Bytes, Sharing, Survivors, rebuilt, surplus
from userdp.masking.sums import MaskedSum, threshold, withstands_lies

log = logging.getLogger("userdp")
Ask = Callable[[list[Message]], Iterable[Message]]
Found = TypeVar("Found")


class Recovery:
    """Lets N nodes share the secrets of a run's rounds, and takes off what silent nodes leave of the others' masks.

    Args:
        ask: sends messages and returns the replies that come in time.
        keys: node -> its public key.
        privacy: for ``colluding`` and ``lost_nodes``.
        rounds: of the run.

    Attributes:
        lost: how many nodes of a round may fall silent.

    Raises `RunFailed`: too few nodes share their secrets.
    """

    def __init__(self, ask: Ask, keys: Mapping[int, bytes], privacy: Privacy, rounds: int) -> None:
        self._ask, self._keys, self.lost = ask, keys, privacy.lost_nodes
        self._places = {node: place for place, node in enumerate(keys)}
        shape = len(keys), privacy.colluding, privacy.lost_nodes
        try:
            self._threshold = threshold(*shape)
        except BadInput as error:
            raise RunFailed(str(error)) from None
        if not withstands_lies(*shape):
            log.warning("so few nodes rely on the server to tell all of them the same about who fell silent")
        asked = Sharing(tuple(keys.values()), self._threshold, self.lost, rounds)
        questions = {node: sharing_question(asked) for node in keys}
        self._shared = dict(self._answers(questions, lambda content: read_shared(content, asked)))
        self._present = set(keys)

    def absent(self) -> set[int]:
        """Return the nodes that did not share their secrets."""
        return self._present - self._shared.keys()

    def leave_out(self, node: int) -> None:
        """Ask that node no more. Raises `RunFailed`: too few are left to rebuild secrets."""
        self._present.discard(node)
        if len(self._present) < self._threshold:
            raise RunFailed(
                f"fewer than {self._threshold} of {len(self._keys)} nodes are left, so nobody can take the masks off "
                "their sums: resume the run, or begin another, and those that are there share secrets anew"
            )

    def key(self, node: int, round_index: int) -> bytes:
        """Return the public round key of a node that shared its secrets."""
        return bytes(self._shared[node][0][round_index])

    def surplus(
        self, masked: MaskedSum, question: bytes, nodes: Sequence[int], silent: Collection[int], length: int
    ) -> Residues | None:
        """Return the (length,) residues by which the parts of a round exceed their sum; None if too few nodes answer.

        Survivors are asked first, because they have just answered, and then, if these are too few, all others.

        Args:
            masked: the sum.
            question: digest of the nodes' question, see `Computation.question`.
            nodes: the nodes of the sum, in the order of its keys.
            silent: those whose parts are not in it.
            length: of a part.
        """
        gone, keys = np.array([node in silent for node in nodes]), tuple(self._keys[node] for node in nodes)
        shares: dict[int, Bytes] = {}
        survivors = [node for node in nodes if node not in silent]
        for wave in (survivors, sorted(self._present.difference(survivors))):
            if len(shares) < self._threshold:
                asked = {node: Survivors(masked.round, keys, gone, self._sealed(node, nodes, masked)) for node in wave}
                questions = {node: survivors_question(one) for node, one in asked.items()}
                for node, found in self._answers(questions, lambda content: read_revealed(content, len(nodes))):
                    shares[self._places[node]] = found
        if len(shares) < self._threshold:
            return None
        used = dict(islice(shares.items(), self._threshold))
        secrets = [rebuilt({place: each[who] for place, each in used.items()}) for who in range(len(nodes))]
        try:
            return surplus(masked.keys, gone, secrets, question, length)
        except BadInput as error:
            log.warning("a node gave wrong shares: %s", error)
            return None

    def _sealed(self, node: int, nodes: Sequence[int], masked: MaskedSum) -> Bytes:
        """Return the (k, 48) shares of a round that the nodes of the sum dealt to a node."""
        return np.stack([self._shared[sender][1][masked.round, self._places[node]] for sender in nodes])

    def _answers(
        self, questions: Mapping[int, RecordDict], read: Callable[[RecordDict], Found]
    ) -> Iterator[tuple[int, Found]]:
        """Ask nodes, and yield each that answers, with its answer."""
        messages = [Message(content, node, MessageType.TRAIN) for node, content in questions.items()]
        left = set(questions)
        for reply in self._ask(messages) if messages else ():
            node = reply.metadata.src_node_id
            try:
                found = _read(reply, read, asked=node in left)
            except BadInput as error:
                log.warning("node %d gives no shares of secrets: %s", node, error)
                continue
            left.remove(node)
            yield node, found


def _read(reply: Message, read: Callable[[RecordDict], Found], *, asked: bool) -> Found:
    if reply.has_error():
        raise BadInput(failure(reply))
    if not asked:
        raise BadInput("it was not asked, or answered twice")
    return read(reply.content)
