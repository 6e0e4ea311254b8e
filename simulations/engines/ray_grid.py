"""A Flower `Grid` on Ray: nodes in actors, on this machine or on a cluster."""

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from threading import Timer
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from numpy.typing import NDArray

from simulations.engines.grids import InMachineGrid, error_reply, one_thread
from strategies.wire.protocol import Holding, answer_content, failed, roster_content
from strategies.wire.questions import Reader, counts_wanted, keys_wanted
from strategies.wire.shares import about_shares, shares_content
from userdp.data import Federation
from userdp.errors import RunFailed, UserdpError
from userdp.masking.masks import MaskKey
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer, Node
from userdp.problems.base import Problem

log = logging.getLogger("userdp")
ATTEMPTS = 3  # attempts in a round with actors that die; after the last their users are missing
PATIENCE = 15  # seconds until somebody who waits for Ray is told so
_REMEDY = '; engine.kind = "local" runs without it'
STARTS = 4  # attempts to start Ray, whose processes have half a minute to appear: too little on a busy machine

Model = NDArray[np.float64] | None
Task = tuple[int, NDArray[np.int64] | None, Computation | Message | None]
"""Node, its users and the computation, or a question about shares; else a question for the users of the node."""
Outcome = Answer | Holding | RecordDict | UserdpError | str
"""An answer, the users of a node, its shares, an error of userdp, or the kind of a foreign error."""


def begin_ray(failed: str, remedy: str = "", **settings: Any) -> tuple[Any, bool]:
    """Return Ray's module, and whether Ray was started now; RunFailed, which begins with ``failed``, otherwise."""
    # Ray must not hide GPUs from actors that reserve none: they share them. So says its future default.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it calls home by default
    import ray  # noqa: PLC0415 -- a second's import that local runs do not need

    if own := not ray.is_initialized():
        _check_head(settings.get("address"), failed, remedy)
    slow = Timer(PATIENCE, lambda: log.warning("Ray has not started after %s s, and is waited for%s", PATIENCE, remedy))
    slow.daemon = True
    slow.start()
    try:
        for left in reversed(range(STARTS if own else 0)):
            try:
                ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **settings)
                break
            except Exception as error:  # of no type of its own where its processes are late
                if left and "timed out" in str(error):
                    ray.shutdown()
                    continue
                raise RunFailed(f"{failed} ({error}){remedy}") from error
    finally:
        slow.cancel()
    return ray, own


def _check_head(address: str | None, failed: str, remedy: str) -> None:
    """Raise RunFailed if nobody answers at an address, which Ray would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise RunFailed(f"{failed} ({error.strerror or error}){remedy}") from None


class _Worker:
    """A Ray actor: some of the nodes, each built on its first task."""

    def __init__(self, problem: Problem, federation: Federation, users: Mapping[int, NDArray[np.int64]]) -> None:
        self._problem, self._federation, self._users = problem, federation, users
        self._nodes: dict[int, Node] = {}

    def compute(self, x: Model, tasks: Sequence[Task]) -> list[Outcome]:
        """Return the outcomes of tasks, in order."""
        with one_thread():
            return [self._one(x, *task) for task in tasks]

    def _one(
        self, x: Model, node_id: int, users: NDArray[np.int64] | None, asked: Computation | Message | None
    ) -> Outcome:
        try:
            if node_id not in self._nodes:
                self._nodes[node_id] = Node(self._problem, self._federation, self._users[node_id])
            node = self._nodes[node_id]
            if isinstance(asked, Message):
                return shares_content(node.key, asked)
            if x is None or users is None or asked is None:
                node.key = MaskKey()  # a new run, as in `LocalGrid`
                return Holding(node.users, node.clipped_samples, key=node.key.public)
            return node.compute(x, users, asked)
        except UserdpError as error:
            return error
        except Exception as error:
            return type(error).__name__


class RayGrid(InMachineGrid):
    """Nodes in Ray actors, on this machine or on a cluster; ids 1..k in the order of ``user_blocks``.

    Ray gets problem and federation once, and actors read them without a copy. There is one actor a CPU by default.
    ``address`` is that of a running Ray cluster; a private one starts on this machine by default. ``gpus`` is the share
    of a GPU that Ray reserves for each actor, which then sees no other; it limits the number of actors. With 0, actors
    see all GPUs of their machine. RunFailed if Ray cannot be reached or started, or has no GPU to share.
    """

    engine = "ray"

    def __init__(
        self,
        problem: Problem,
        federation: Federation,
        user_blocks: Sequence[NDArray[np.int64]],
        workers: int | None = None,
        address: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        super().__init__(len(user_blocks))
        failed = f"engine.address = {address!r}: Ray cannot be reached or started"
        cpus = None if address else workers
        # Without an address Ray would join a cluster on this machine.
        self._ray, self._started = begin_ray(failed, _REMEDY, address=address or "local", num_cpus=cpus)
        there = self._ray.cluster_resources()
        count = min(workers or max(1, int(there.get("CPU", 1))), len(user_blocks))
        if gpus:
            count = min(count, self._shares(there.get("GPU", 0.0), gpus))
        free = int(self._ray.available_resources().get("CPU", 0))
        if free < count:
            log.warning("%d actors were asked for and %d CPUs are free: nodes wait until there are more", count, free)
        self._actor = self._ray.remote(num_cpus=1, num_gpus=gpus)(_Worker)
        self._shared = [self._ray.put(problem), self._ray.put(federation)]
        self._users = [
            {index + 1: user_blocks[index] for index in range(worker, len(user_blocks), count)}
            for worker in range(count)
        ]
        self._workers: list[Any] = [self._actor.remote(*self._shared, users) for users in self._users]

    def _shares(self, there: float, each: float) -> int:
        """Return how many actors find a share of a GPU, as a whole on one GPU; without any, Ray would wait forever."""
        shares = int(there) * int(1 / each + 1e-9)
        if not shares:
            self._leave()
            raise RunFailed(f"engine.gpus_per_actor = {each:g}: Ray has no GPU; set 0, or start Ray where one is")
        return shares

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
        deadline = None if timeout is None else time.monotonic() + timeout
        asked: dict[int, Sequence[Message]] = {}
        for message in messages:
            worker = (message.metadata.dst_node_id - 1) % len(self._workers)
            asked[worker] = [*asked.get(worker, ()), message]
        reader = Reader()
        for attempt in range(1, ATTEMPTS + 1):
            replies, lost = self._answers(asked, reader, deadline)
            yield from replies
            # A fresh actor lacks the keys that the other nodes' masks use.
            asked = {worker: part for worker, part in lost.items() if attempt < ATTEMPTS and not _masked(part)}
            for worker in lost.keys() - asked.keys():
                yield from (failed(message, "ActorDied") for message in lost[worker])

    def _answers(
        self, asked: Mapping[int, Sequence[Message]], reader: Reader, deadline: float | None
    ) -> tuple[list[Message], dict[int, Sequence[Message]]]:
        """Return replies in time, and the messages of actors that died and were replaced."""
        pending = {self._ask(worker, part, reader): worker for worker, part in asked.items()}
        if not pending:
            return [], {}
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, late = self._ray.wait(list(pending), num_returns=len(pending), timeout=left)
        replies, lost = list[Message](), dict[int, Sequence[Message]]()
        for reference in done:
            worker = pending[reference]
            try:
                outcomes = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._replace(worker, f"an actor died ({type(error).__name__})")
                lost[worker] = asked[worker]
                continue
            replies += [self._reply(*pair) for pair in zip(asked[worker], outcomes, strict=True)]
        for reference in late:
            self._replace(pending[reference], "an actor did not answer in time")
        return replies, lost

    def _ask(self, worker: int, messages: Sequence[Message], reader: Reader) -> Any:
        x: Model = None
        tasks: list[Task] = []
        for message in messages:
            task: tuple[NDArray[np.int64] | None, Computation | Message | None] = None, None
            if about_shares(message):
                task = None, message
            elif message.metadata.message_type != MessageType.QUERY:
                x, task = reader.model(message), reader.request(message)
            tasks.append((message.metadata.dst_node_id, *task))
        return self._workers[worker].compute.remote(x, tasks)

    def _replace(self, worker: int, why: str) -> None:
        """Replace a dead or stuck actor, which would fail in every later round.

        The new one reserves no CPU: that of the old one may not be free yet, or be gone with its machine.
        """
        log.warning("%s: starting another", why)
        self._ray.kill(self._workers[worker])
        self._workers[worker] = self._actor.options(num_cpus=0).remote(*self._shared, self._users[worker])

    def _reply(self, message: Message, outcome: Any) -> Message:
        if isinstance(outcome, Exception):
            return error_reply(message, outcome)
        if isinstance(outcome, str):
            return failed(message, outcome)
        if isinstance(outcome, RecordDict):
            return Message(outcome, reply_to=message)
        counts = counts_wanted(message)
        if isinstance(outcome, Holding):
            key, clipped = outcome.key if keys_wanted(message) else None, outcome.clipped_samples if counts else None
            return Message(roster_content(outcome.users, clipped, key=key), reply_to=message)
        return Message(answer_content(outcome, counts=counts, share=True), reply_to=message)


def _masked(messages: Sequence[Message]) -> bool:
    return any("masked" in message.content or about_shares(message) for message in messages)
