"""Flower `Grid`s without a SuperLink: nodes in this process, here, or in Ray actors (`ray_grid`).

Every strategy runs on them unchanged, and they hand over a node's rows without copying them. A node that raises gives
an error reply; a node that does not answer in time gives none, and the strategy counts its users as missing.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from strategies.wire.protocol import answer_message, failed
from strategies.wire.questions import Reader, keys_wanted
from userdp.data.federation import Federation, JoinedFederation
from userdp.data.source import Datasets
from userdp.errors import BadInput, UserdpError
from userdp.masking.masks import MaskKey
from userdp.nodes.node import Node
from userdp.problems.base import Problem

if TYPE_CHECKING:
    from threadpoolctl import LibController

log = logging.getLogger("userdp")
MOST_NODES = 8  # nodes if neither their number nor the size of a block is given; fewer for few samples


def shards(users: int, users_per_node: int | None = None, *, nodes: int = MOST_NODES) -> list[NDArray[np.int64]]:
    """Cut users 0..n-1 into consecutive blocks of ``users_per_node``, one a node; or into ``nodes`` even blocks."""
    if users_per_node is None:
        return np.array_split(np.arange(users), min(nodes, users))
    return [np.arange(first, min(first + users_per_node, users)) for first in range(0, users, users_per_node)]


def worthwhile_nodes(problem: Problem, federation: Federation) -> int:
    """Return how many nodes are worth their messages, up to `MOST_NODES`: equal on every engine and machine."""
    return int(np.clip(federation.nbytes // problem.node_bytes, 1, MOST_NODES))


class InMachineGrid(Grid):
    """A grid of one machine or one cluster: node ids 1..k, no serialisation."""

    complete = True  # no node will come later

    def __init__(self, nodes: int) -> None:
        self._node_ids = list(range(1, nodes + 1))
        self._replies: dict[str, Message] = {}
        self._sent = 0
        if TaskIdentity._run_id is None:
            # Flower's Message needs an identity that only its own processes have.
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
        self._run = Run.create_empty(TaskIdentity.run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the resources of the grid."""

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self._node_ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages and keep the replies for `pull_messages`."""
        return self._push(messages, None)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies to earlier messages, each once."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Deliver messages and return the replies that came within ``timeout`` seconds."""
        return self.pull_messages(self._push(messages, timeout))

    def _push(self, messages: Iterable[Message], timeout: float | None) -> list[str]:
        batch = list(messages)
        for message in batch:
            if message.metadata.dst_node_id not in self._node_ids:
                raise BadInput(f"there is no node {message.metadata.dst_node_id}")
            self._sent += 1
            message.metadata.__dict__["_message_id"] = str(self._sent)
        for reply in self._deliver(batch, timeout):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in batch]

    @abstractmethod
    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        """Yield replies, in any order."""


def error_reply(message: Message, error: Exception) -> Message:
    """Return the reply of a node that raised an error."""
    if isinstance(error, UserdpError):  # its text names fields, never data, unlike that of a foreign error
        log.warning("node %d cannot answer: %s", message.metadata.dst_node_id, error)
    return failed(message, type(error).__name__)


def populated(
    datasets: Datasets, blocks: list[NDArray[np.int64]], *, evaluate: bool, places: int | None = None
) -> tuple[Federation, list[NDArray[np.int64]]]:
    """Return the users of all nodes and the numbers of each node's; with ``evaluate`` held-out users join in shares.

    They are numbered after all ``places`` of training users, of which the last may be empty.
    """
    train, test = datasets.users, datasets.test
    if not evaluate or test is None:
        return train, blocks
    first = train.users if places is None else places
    further = [first + users for users in shards(test.users, nodes=len(blocks))]
    further += [np.empty(0, dtype=np.int64)] * (len(blocks) - len(further))
    return JoinedFederation(train, test, first), [np.concatenate(both) for both in zip(blocks, further, strict=True)]


class LocalGrid(InMachineGrid):
    """All nodes in this process, one after the other; ids 1..k in their order."""

    engine = "local"

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(len(nodes))
        self._nodes = nodes

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        reader = Reader()
        with one_thread():
            for message in messages:
                if deadline is not None and time.monotonic() > deadline:
                    log.warning("time is up: the remaining nodes were not asked")
                    return
                try:
                    node = self._nodes[message.metadata.dst_node_id - 1]
                    if message.metadata.message_type == MessageType.QUERY and keys_wanted(message):
                        node.key = MaskKey()  # a new run: the server of this process is no adversary
                    yield answer_message(node, message, share=True, reader=reader)
                except Exception as error:
                    yield error_reply(message, error)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one BLAS thread, like a Ray actor: results must not depend on the number of threads."""
    libraries = _libraries()
    before = [library.get_num_threads() for library in libraries]
    for library in libraries:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in zip(libraries, before, strict=True):
            library.set_num_threads(threads)


@lru_cache(maxsize=1)  # finding the libraries takes as long as a small round, and so does a context of threadpoolctl
def _libraries() -> list["LibController"]:
    if find_spec("threadpoolctl") is None:  # of the extra "fast"
        return []
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
