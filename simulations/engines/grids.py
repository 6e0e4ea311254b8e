"""Where messages go when no Flower SuperLink is needed: in process, or over Ray actors.

Both are Flower `Grid`s, so every strategy runs on them unchanged, and both hand over a node's rows without copying
them. A node that raises gives an error reply; a node that does not answer in time gives none, and the strategy counts
its users as missing.
"""

import logging
import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from strategies.wire.protocol import (
    Holding,
    answer_content,
    answer_message,
    counts_wanted,
    failed,
    keys_wanted,
    read_model,
    read_request,
    roster_content,
)
from userdp.data import Federation
from userdp.errors import BadInput, RunFailed, UserdpError
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer, Node
from userdp.problems.base import Problem

log = logging.getLogger("userdp")
DEFAULT_NODES = 8
"""Nodes when the size of a block is not given, on every engine, so that all engines agree bit for bit."""


def shards(users: int, users_per_node: int | None = None, *, nodes: int = DEFAULT_NODES) -> list[NDArray[np.int64]]:
    """Users 0..n-1 cut into consecutive blocks, one a node.

    Args:
        users: n.
        users_per_node: block size (the last block may be smaller).
        nodes: number of blocks, as even as possible, if no block size is given; never more than users.
    """
    if users_per_node is None:
        return np.array_split(np.arange(users), min(nodes, users))
    return [np.arange(first, min(first + users_per_node, users)) for first in range(0, users, users_per_node)]


class InMachineGrid(Grid):
    """What the grids of this module share: node ids 1..k, no serialisation."""

    def __init__(self, nodes: int) -> None:
        self._node_ids = list(range(1, nodes + 1))
        self._replies: dict[str, Message] = {}
        self._sent = 0
        if TaskIdentity._run_id is None:
            # Flower's Message insists on an identity that only its own processes have.
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
        self._run = Run.create_empty(TaskIdentity.run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what the grid holds."""

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
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes; they are there from the start."""
        return list(self._node_ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages and keep the replies for `pull_messages`."""
        return self._push(messages, None)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to earlier messages, each once."""
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
        """Replies, in any order."""


def _error_reply(message: Message, error: Exception) -> Message:
    if isinstance(error, UserdpError):  # whose texts name fields, never data, unlike those of foreign errors
        log.warning("node %d cannot answer: %s", message.metadata.dst_node_id, error)
    return failed(message, type(error).__name__)


class _Models:
    """The models of a round's messages, each read once: all messages of a round carry the same record."""

    def __init__(self) -> None:
        self._read: dict[int, NDArray[np.float64]] = {}

    def of(self, message: Message) -> NDArray[np.float64] | None:
        """The message's model; None in a query."""
        if message.metadata.message_type == MessageType.QUERY:
            return None
        key = id(message.content["model"])
        if key not in self._read:
            self._read[key] = read_model(message)
        return self._read[key]


class LocalGrid(InMachineGrid):
    """All nodes in this process, one after the other.

    Args:
        nodes: the nodes; ids 1..k in this order.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(len(nodes))
        self._nodes = nodes

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        models = _Models()
        with one_thread():
            for message in messages:
                if deadline is not None and time.monotonic() > deadline:
                    log.warning("time is up: the remaining nodes were not asked")
                    return
                try:
                    node = self._nodes[message.metadata.dst_node_id - 1]
                    yield answer_message(node, message, share=True, model=models.of(message))
                except Exception as error:
                    yield _error_reply(message, error)


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread, as in a Ray actor: results must not depend on how many there are."""
    with _thread_pools().limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _thread_pools() -> ThreadpoolController:
    """Looked for at the first round and kept: finding the libraries takes milliseconds, as long as a small round."""
    return ThreadpoolController()


class _Worker:
    """A Ray actor: some of the nodes, built when first asked."""

    def __init__(self, problem: Problem, federation: Federation, users: Mapping[int, NDArray[np.int64]]) -> None:
        self._problem, self._federation, self._users = problem, federation, users
        self._nodes: dict[int, Node] = {}

    def compute(
        self, x: NDArray[np.float64] | None, tasks: Sequence[tuple[int, NDArray[np.int64] | None, Computation | None]]
    ) -> list[Answer | Holding | UserdpError | str]:
        """Answers in order; a task without computation asks whom the node holds."""
        with one_thread():
            return [self._one(x, *task) for task in tasks]

    def _one(
        self,
        x: NDArray[np.float64] | None,
        node_id: int,
        users: NDArray[np.int64] | None,
        computation: Computation | None,
    ) -> Answer | Holding | UserdpError | str:
        """An answer, an error that may be told, or the kind of a foreign one."""
        try:
            if node_id not in self._nodes:
                self._nodes[node_id] = Node(self._problem, self._federation, self._users[node_id])
            node = self._nodes[node_id]
            if x is None or users is None or computation is None:
                return Holding(node.users, node.clipped_samples, key=node.key.public)
            return node.compute(x, users, computation)
        except UserdpError as error:
            return error
        except Exception as error:
            return type(error).__name__


class RayGrid(InMachineGrid):
    """Nodes in Ray actors, on this machine or on a cluster.

    Args:
        problem: the loss.
        federation: the data, or the recipe for it; put into the object store once and read there without a copy.
        user_blocks: users of each node; ids 1..k in this order.
        workers: actors; one a CPU of the cluster if not given.
        address: of a running Ray cluster; a private one is started on this machine if not given.
        gpus: share of a GPU that Ray sets aside for each actor, which then sees no other; no more actors are started
            than there are shares. 0: none, and actors see all GPUs of their machine.

    Raises:
        RunFailed: Ray cannot be reached or started, or has no GPU to share.
    """

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        user_blocks: Sequence[NDArray[np.int64]],
        workers: int | None = None,
        address: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        # GPUs of which none is set aside are the actors' to share: Ray must not hide them.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray  # noqa: PLC0415 -- a second's import that local runs do not need

        super().__init__(len(user_blocks))
        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            try:
                ray.init(
                    address=address,
                    num_cpus=None if address else workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise RunFailed(f"engine.address = {address!r}: Ray cannot be reached or started ({error})") from error
        there = ray.cluster_resources()  # type: ignore[no-untyped-call]
        count = min(workers or max(1, int(there.get("CPU", 1))), len(user_blocks))
        if gpus:
            count = min(count, self._shares(there.get("GPU", 0.0), gpus))
        free = int(ray.available_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
        if free < count:
            log.warning("%d actors were asked for and %d CPUs are free: nodes wait until there are more", count, free)
        self._actor = ray.remote(num_cpus=1, num_gpus=gpus)(_Worker)
        self._shared = [ray.put(problem), ray.put(federation)]
        self._users = [
            {index + 1: user_blocks[index] for index in range(worker, len(user_blocks), count)}
            for worker in range(count)
        ]
        self._workers = [self._start(worker) for worker in range(count)]

    def _shares(self, there: float, each: float) -> int:
        """How many actors find a share of a GPU; a share lies on one GPU as a whole.

        Raises:
            RunFailed: none does; Ray would wait for a GPU forever.
        """
        shares = int(there) * int(1 / each + 1e-9)
        if not shares:
            self._leave()
            raise RunFailed(
                f"engine.gpus_per_actor = {each:g}: Ray knows of no GPU; set it to 0, or start Ray where there are some"
            )
        return shares

    def _start(self, worker: int) -> Any:
        return self._actor.remote(*self._shared, self._users[worker])

    def close(self) -> None:
        """Stop the actors, and Ray if this grid started it."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        self._leave()

    def _leave(self) -> None:
        if self._started:
            self._ray.shutdown()

    def _deliver(self, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        pending: dict[Any, tuple[int, list[Message]]] = {}
        models = _Models()
        for worker, part in self._by_worker(messages).items():
            x: NDArray[np.float64] | None = None
            tasks: list[tuple[int, NDArray[np.int64] | None, Computation | None]] = []
            for message in part:
                users, computation = None, None
                if (model := models.of(message)) is not None:
                    x = model
                    users, computation = read_request(message)
                tasks.append((message.metadata.dst_node_id, users, computation))
            pending[self._workers[worker].compute.remote(x, tasks)] = (worker, part)
        done, late = self._ray.wait(list(pending), num_returns=len(pending), timeout=timeout) if pending else ([], [])
        for reference in done:
            worker, part = pending[reference]
            try:
                outcomes = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._replace(worker, f"an actor died ({type(error).__name__})")
                yield from (failed(message, "ActorDied") for message in part)
                continue
            for message, outcome in zip(part, outcomes, strict=True):
                yield self._reply(message, outcome)
        for reference in late:
            self._replace(pending[reference][0], "an actor did not answer in time")

    def _by_worker(self, messages: Sequence[Message]) -> dict[int, list[Message]]:
        parts: dict[int, list[Message]] = {}
        for message in messages:
            parts.setdefault((message.metadata.dst_node_id - 1) % len(self._workers), []).append(message)
        return parts

    def _replace(self, worker: int, why: str) -> None:
        """A dead or stuck actor would fail in every later round: start a fresh one."""
        log.warning("%s: starting another", why)
        self._ray.kill(self._workers[worker])
        self._workers[worker] = self._start(worker)

    def _reply(self, message: Message, outcome: Any) -> Message:
        if isinstance(outcome, Exception):
            return _error_reply(message, outcome)
        if isinstance(outcome, str):
            return failed(message, outcome)
        counts = counts_wanted(message)
        if isinstance(outcome, Holding):
            key, clipped = outcome.key if keys_wanted(message) else None, outcome.clipped_samples if counts else None
            return Message(roster_content(outcome.users, clipped, key=key), reply_to=message)
        return Message(answer_content(outcome, counts=counts, share=True), reply_to=message)
