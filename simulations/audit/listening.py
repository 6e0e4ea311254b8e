"""The view of a server: the answers of nodes before they are added up."""

from collections.abc import Iterator, Sequence

from flwr.app import Message, MessageType

from simulations.engines.grids import LocalGrid
from strategies.wire.protocol import read_answer
from strategies.wire.questions import Reader
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
