"""The roster of ordinary Flower clients: a node is a user."""

import logging

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from strategies import drop_in_report as report
from strategies.wire.asking import Asking
from strategies.wire.protocol import failure, read_roster, roster_question
from strategies.wire.roster import Roster
from userdp.errors import BadInput

log = logging.getLogger("userdp")

_NO_KEY = ". With trust = 'sum' a node needs the mod: @app.train(mods=[private_updates()]), and userdp[deploy]"


class NodeRoster(Roster):
    """A roster whose nodes are users 0, 1, ... in the order of their ids; further nodes are not used."""

    def gather(self, grid: Grid, timeout: float) -> None:
        """Wait until n nodes are registered or time is out; `RunFailed` if more than max_missing lack one.

        Where sums are masked, a node counts once it has sent a key of its own.
        """
        users, waits = len(self._owner), False
        question = roster_question(b"", counts=False, keys=True) if self.keys else None
        asking = Asking(grid, MessageType.TRAIN, question, timeout)
        for replies in asking.replies():
            for node, reply in replies:
                if trouble := self._enter_key(node, reply):
                    asking.again(node, f"sent no key of its own: {trouble}")
            nodes = [node for node in asking.there if node in self._keys or not self.keys]
            if len(nodes) >= users:
                break
            if not (waits or self.places):  # where users come and go, a number of nodes is one of people
                report.waiting(len(nodes), users)
            waits = True
        self._check_nodes(len(nodes), timeout)
        self._nodes = nodes[:users]
        self._owner[: len(self._nodes)] = np.arange(len(self._nodes))
        self.hint = _NO_KEY if self.keys else ""
        self._settle(timeout, "" if self.places else asking.sight())
        if len(nodes) > users:
            log.warning("there are more nodes than the plan has users, %d: the others are not used", users)

    def _enter_key(self, node: int, reply: Message) -> str:
        """Take a node's key; return why it is of no use, or nothing."""
        self._keys.pop(node, None)
        if reply.has_error():
            return failure(reply)
        try:
            key = read_roster(reply, counts=False, keys=True).key
        except BadInput as error:
            return str(error)
        if key is None or key in self._keys.values():
            return "another node has the same"
        self._keys[node] = key
        return ""
