"""One question to nodes that come and go: nobody's silence delays the question to another."""

import math
import time
from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

_POLL_SECONDS = 0.2
_AGAIN_SECONDS = 5.0  # after which a node is asked again that could not answer
_GRACE_SECONDS = 10.0  # of silence, after which nobody waits for a node whose users others hold
_MOST_NAMED = 5


class Asking:
    """Asks every node of a grid once, as soon as it is there: a SuperNode that was killed is back as another node.

    A node that left is asked anew when it comes back, and one that failed if the caller says so (`again`). A silent one
    is not: the question is still with it, and its answer is read whenever it comes. Nodes ``but`` are not asked.

    Attributes:
        there: the nodes at the last look, rising.
        seen: node -> why its answer was of no use, for people.
    """

    def __init__(
        self, grid: Grid, kind: str, question: RecordDict | None, timeout: float, but: Iterable[int] = ()
    ) -> None:
        self._grid, self._kind, self._question = grid, kind, question
        self._timeout = max(_POLL_SECONDS, timeout)  # nobody can answer in no time
        self.there: list[int] = []
        self.seen: dict[int, str] = {}
        self._due = dict.fromkeys(but, math.inf)
        self._open: dict[str, int] = {}  # message -> node that has not answered it
        self._heard = time.monotonic()

    def replies(self) -> Iterator[list[tuple[int, Message]]]:
        """Yield what has come since the last look, by node, until time is out or no node will come."""
        deadline, pause, last = self._heard + self._timeout, _POLL_SECONDS, getattr(self._grid, "complete", False)
        while True:
            now = time.monotonic()
            self.there = sorted(self._grid.get_node_ids())
            self._due = {node: self._due.get(node, now) for node in self.there}
            due = [node for node, at in self._due.items() if at <= now]
            self._due |= dict.fromkeys(due, math.inf)
            content = self._question
            messages = [] if content is None else [Message(content, node, self._kind) for node in due]
            came = self._exchanged(messages, wait=last)
            # One answer of each: whatever else comes answers nothing that is open.
            numbered = ((reply.metadata.reply_to_message_id, reply) for reply in came)
            answered = [(self._open.pop(number), reply) for number, reply in numbered if number in self._open]
            if answered:
                self._heard = time.monotonic()
            for node, _ in answered:
                self.seen.pop(node, None)
            yield answered
            if last or time.monotonic() >= deadline:
                return
            time.sleep(pause)
            pause = min(1.1 * pause, 10 * _POLL_SECONDS)  # each look is work for the SuperLink

    def _exchanged(self, messages: list[Message], *, wait: bool) -> list[Message]:
        """Send these, and return the replies to all that are open: of a grid that is complete, when time is out."""
        pushed = None
        if wait:
            came = list(self._grid.send_and_receive(messages, timeout=self._timeout)) if messages else []
        elif messages:
            pushed = set(self._grid.push_messages(messages))
        for message in messages:
            number, node = message.metadata.message_id, message.metadata.dst_node_id
            if pushed is None or number in pushed:
                self._open[number] = node
            else:
                self._due[node] = 0.0  # it left just now, or the SuperLink did not take the message
        if not wait:
            came = list(self._grid.pull_messages(list(self._open))) if self._open else []
        return came

    def again(self, node: int, why: str) -> None:
        """Ask that node again later, whose answer was of no use; ``why`` is for people."""
        self._due[node], self.seen[node] = time.monotonic() + _AGAIN_SECONDS, why

    @property
    def silent(self) -> set[int]:
        """The nodes that have not answered."""
        return set(self._open.values())

    @property
    def quiet(self) -> bool:
        """True if nobody is still to answer who can be expected to."""
        return not self._open or time.monotonic() > self._heard + _GRACE_SECONDS

    def sight(self) -> str:
        """Say what was seen of whom."""
        there, silent = set(self.there), self.silent
        told = [f"node {node} did not answer" for node in sorted(silent & there)]
        told += [f"node {node} left before it answered" for node in sorted(silent - there)]
        told += [f"node {node}: {why}" for node, why in self.seen.items()]
        more = [f"and {len(told) - _MOST_NAMED} more"] if len(told) > _MOST_NAMED else []
        return "; ".join([f"{len(there)} nodes were registered", *told[:_MOST_NAMED], *more])
