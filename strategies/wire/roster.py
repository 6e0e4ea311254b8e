"""The map of users to nodes: which node answers for which user."""

import logging
import math
import secrets
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.wire.asking import Asking
from strategies.wire.claims import Claim
from strategies.wire.protocol import Holding, failure, read_roster, roster_question
from strategies.wire.questions import FIRST, SHARING
from strategies.wire.recovery import Recovery
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import DIGEST_BYTES, repeated

log = logging.getLogger("userdp")
_NOBODY = -1


class Roster:
    """Maps users 0..n-1 (n = ``users``, public) to Flower nodes.

    Flower's node ids are random and nodes register one by one, so the roster asks every node for its users and waits
    for USERS, not for nodes: no run trains on whichever nodes come first. If so many lack one in the end that more than
    the share ``max_missing`` would miss, the run ends before anything is spent.

    Each user has one node at most, however often nodes are asked: the first answer of a node counts. A node that left
    holds nobody, so a silo that was started anew takes its own users back once its former node is gone; two nodes that
    both stay with the same users end the run. So it is between questions of the run (`renew`), but for masked sums.

    No person may be two users. Nodes that know users' labels send salted digests of them (a salt for this roster
    alone); a label that occurs twice, in one node or in two, ends the run (`repeated` says what that proves). Either
    every node with users sends digests or none: comparing some with others would find nothing.
    """

    require_identities: bool = False  # refuse nodes that do not know their users' labels, as data of real people demand
    counts: bool = True  # ask how many samples were clipped; False where users are protected against the server
    keys: bool = False  # ask for nodes' public keys, where sums are masked
    recovery: Recovery | None = None  # where sums survive silent nodes
    places: bool = False  # users may come and go: a number that no node holds is an empty place, and nobody is missing
    nodes: int = 0  # that have to say whom they hold; where users come and go, nothing else misses a silo
    claim: Claim | None = None  # what the run promises, for nodes that answer no other one
    needs: int = FIRST  # the oldest version of the protocol that knows every field of the run's messages
    hint = ""  # what else may be the matter where users have no node

    def __init__(self, users: int, max_missing: float = 1.0) -> None:
        self._max_missing = max_missing
        self._salt = secrets.token_bytes(DIGEST_BYTES)
        self._holdings: dict[int, Holding] = {}
        self._twins: dict[int, int] = {}  # node -> the node whose users it claims, all of them and no others
        self._owner = np.full(users, _NOBODY, dtype=np.int32)
        self._empty = np.zeros(users, dtype=bool)
        self._nodes: list[int] = []
        self._keys: dict[int, bytes] = {}
        self._strangers = dict[int, Holding | None]()  # asked after the roster -> whom they hold, if they said it
        self._timeout = 0.0

    def expect(self, privacy: Privacy, protocol: int, *, trusted: bool, nodes: int = 0) -> None:
        """Ask for what a run of so many nodes needs, with a strategy that sends a version's messages."""
        self.keys = privacy.trust == "sum"
        self.counts, self.nodes = trusted and not self.keys, nodes
        self.needs = max(protocol, SHARING if privacy.lost_nodes else FIRST)

    @property
    def absent(self) -> int:
        """The number of users without a node."""
        return int((self._owner == _NOBODY).sum())

    @property
    def clipped_samples(self) -> int:
        """Samples that nodes clipped into the declared bounds, as far as they tell."""
        return sum(holding.clipped_samples for holding in self._holdings.values())

    def gather(self, grid: Grid, timeout: float) -> None:
        """Ask nodes for their users until all n are there or ``timeout`` seconds have passed.

        A failing node holds nobody: its users count as missing. Raises `RunFailed` if two nodes claim one user or hold
        one person, or a node claims a user outside 0..n-1, sends no digests though others do, or is of an older version
        than the run ``needs``; or if too many users have no node.
        """
        if not self.absent:
            return
        self._timeout = timeout
        asking = Asking(grid, MessageType.QUERY, self._question(), timeout)
        for replies in asking.replies():
            for node in self._holdings.keys() - asking.there:
                self._free(node)
            for node, reply in replies:
                self._twins.pop(node, None)
                if trouble := self._enter(node, reply):
                    asking.again(node, trouble)
            self._twins = {node: twin for node, twin in self._twins.items() if node in asking.there}
            if not self.absent and not self._twins and asking.quiet:
                break
        for node, twin in self._twins.items():
            raise RunFailed(
                f"node {node} claims a user that is claimed already: a user in two places has no guarantee. It holds "
                f"the users of node {twin}, which did not leave: stop one of them, or, if one is the other started "
                "anew, run again or give roster_timeout more seconds"
            )
        self._check_nodes(len(self._holdings), timeout)
        if self.places:
            self._empty = self._owner == _NOBODY
        else:
            self._settle(timeout, asking.sight())
        if self.places and (asking.seen or asking.silent):  # Nobody may know whether anybody lacks a node.
            log.warning("some nodes did not say whom they hold after roster_timeout = %s s: see their logs", timeout)
        elif self.places and not (self.nodes or getattr(grid, "complete", False)):
            log.warning(
                "as users may come and go, nothing tells whether a node stayed away: give engine.nodes (nodes of start)"
            )

    def _question(self) -> RecordDict:
        return roster_question(self._salt, counts=self.counts, keys=self.keys, claim=self.claim)

    def renew(self, grid: Grid) -> None:
        """Let nodes that came since take the places of nodes that left, if they hold the same people, from now on.

        What the latter were asked stays theirs, so that nobody answers a question twice. Where sums are masked there is
        no such change, because others' masks are for the key that left. Newcomers are asked once, unless they fail.
        """
        if self.keys or not self._holdings or getattr(grid, "complete", False):
            return
        if self._holdings.keys() <= set(grid.get_node_ids()):
            return
        known = self._strangers.keys() | self._holdings.keys()
        asking = Asking(grid, MessageType.QUERY, self._question(), self._timeout, known)
        for replies in asking.replies():
            self._strangers |= {node: self._held(reply) for node, reply in replies if not reply.has_error()}
            for node in self._strangers.keys() & set(asking.there):
                self._replace(self._holdings.keys() - asking.there, node)
            if not asking.silent or self._holdings.keys() <= set(asking.there):
                break
        self._strangers |= dict.fromkeys(asking.silent)

    def _held(self, reply: Message) -> Holding | None:
        """Return what a newcomer says of its users; None if it is of no use."""
        try:
            holding = read_roster(reply, counts=self.counts, keys=self.keys)
        except BadInput:
            return None
        return holding if holding.protocol >= self.needs else None

    def _replace(self, left: set[int], node: int) -> None:
        """Put a newcomer in the place of one that left and held the same people, if there is one."""
        held = self._strangers[node]
        for old in left:
            if held is not None and _same(self._holdings[old], held):
                self._nodes[self._nodes.index(old)] = node
                self._holdings[node] = self._holdings.pop(old)
                del self._strangers[node]
                return

    def _check_nodes(self, nodes: int, timeout: float) -> None:
        if nodes < self.nodes:
            raise RunFailed(
                f"fewer than nodes = {self.nodes} nodes said whom they hold after roster_timeout = {timeout:g} s: "
                "start those that are missing, or give roster_timeout more seconds"
            )

    def _settle(self, timeout: float, sight: str) -> None:
        """End the run if too many users have no node; tell, with what was seen of whom, if some have none."""
        users = len(self._owner)
        told = f"after roster_timeout = {timeout:g} s{sight and f' ({sight})'}"
        if self.absent > self._max_missing * users:
            raise RunFailed(
                f"too few users have a node {told}: max_missing = {self._max_missing} needs "
                f"{users - math.floor(self._max_missing * users)} of the {users}; start the nodes that are missing, or "
                f"give roster_timeout more seconds{self.hint}"
            )
        if self.absent:
            # Only the holder of the data may know how many.
            log.warning("some of the %d users have no node %s: they count as missing in every round", users, told)

    def _enter(self, node: int, reply: Message) -> str:
        """Take what a node says of its users; return why it is of no use, or nothing."""
        if node in self._holdings:
            return ""
        if reply.has_error():
            return failure(reply)
        try:
            holding = read_roster(reply, counts=self.counts, keys=self.keys)
        except BadInput as error:
            return str(error)  # It counts as silent: a garbled reply must not end the run of all others.
        if holding.protocol < self.needs:
            raise RunFailed(
                f"node {node} speaks version {holding.protocol} of the protocol, and this run needs {self.needs}: "
                "upgrade userdp at that node, and resume or start the run again"
            )
        if holding.key is not None and holding.key in self._keys.values():
            return "its key is that of another node"
        planned, users = len(self._owner), holding.users
        if len(users) > planned or (users.size and (users.min() < 0 or users.max() >= planned)):
            raise RunFailed(f"node {node} claims users outside 0..{planned - 1}: the plan is for {planned} users")
        if (
            len(users)
            and (place := self._owner[users[0]]) != _NOBODY
            and _same(self._holdings[self._nodes[place]], holding)
        ):
            self._twins[node] = self._nodes[place]
            return f"it claims the users of node {self._nodes[place]}"
        if len(np.unique(users)) < len(users) or np.any(self._owner[users] != _NOBODY):
            raise RunFailed(f"node {node} claims a user that is claimed already: a user in two places has no guarantee")
        self._identify(node, holding)
        self._owner[users] = len(self._nodes)
        self._nodes.append(node)
        self._holdings[node] = holding
        if holding.key is not None:
            self._keys[node] = holding.key
        return ""

    def _free(self, node: int) -> None:
        """Forget a node that left: whoever brings its users back is asked, and counts, like any other."""
        place = self._nodes.index(node)
        self._owner[self._owner == place] = _NOBODY
        self._owner[self._owner > place] -= 1
        del self._nodes[place], self._holdings[node]
        self._keys.pop(node, None)

    def _identify(self, node: int, holding: Holding) -> None:
        if not len(holding.users):
            return
        others = [held.identities for held in self._holdings.values() if len(held.users)]
        digests = [each for each in (*others, holding.identities) if each is not None]
        named = holding.identities is not None
        wanted = self.require_identities or (others[0] is not None if others else named)
        if named != wanted:
            raise RunFailed(
                f"node {node} {'alone says' if named else 'does not say'} who its users are: every silo must give "
                "its users' labels, to find people who are in two silos"
            )
        if named and repeated(np.concatenate(digests)):
            raise RunFailed(
                f"node {node} holds somebody twice or together with another silo: one person in two places has no "
                "guarantee; keep each person in one silo"
            )

    def empty(self, cohort: NDArray[np.int64]) -> int:
        """Return how many of a cohort's numbers are empty places."""
        return int(np.count_nonzero(self._empty[cohort]))

    def share_secrets(self, grid: Grid, timeout: float, privacy: Privacy, rounds: int) -> None:
        """Let nodes share secrets if sums are to survive silent ones; those that do not are left out.

        ``rounds`` are those of the run, and ``timeout`` is in seconds, of each question about shares. Raises
        `RunFailed`: too few nodes share their secrets.
        """
        if privacy.lost_nodes:
            keys = {node: self._keys[node] for node in self._nodes}
            self.recovery = Recovery(partial(grid.send_and_receive, timeout=timeout), keys, privacy, rounds)
            for node in self.recovery.absent():
                self.leave_out(node)

    def key(self, node: int, round_index: int) -> bytes:
        """Return the public key that a node which holds users has for a round."""
        return self._keys[node] if self.recovery is None else self.recovery.key(node, round_index)

    def leave_out(self, node: int) -> None:
        """Ask that node no more: its users have no node from now on. Raises `RunFailed` as `Recovery.leave_out`."""
        self._owner[self._owner == self._nodes.index(node)] = _NOBODY
        if self.recovery is not None:
            self.recovery.leave_out(node)

    def assign(self, cohort: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Split a rising cohort by node into (node id, its users, rising), without the users that have no node."""
        if not len(cohort):  # a Poisson cohort may be empty
            return []
        owners = self._owner[cohort]
        turns = 1 + np.flatnonzero(owners[1:] != owners[:-1])
        if np.any(owners[turns] < owners[turns - 1]):  # nodes that hold users in turns
            order = np.argsort(owners, kind="stable")
            owners, cohort = owners[order], cohort[order]
            turns = 1 + np.flatnonzero(owners[1:] != owners[:-1])
        parts = pairwise([0, *turns.tolist(), len(cohort)])
        return [(self._nodes[owners[first]], cohort[first:last]) for first, last in parts if owners[first] != _NOBODY]


def _same(one: Holding, other: Holding) -> bool:
    """Return whether two nodes say that they hold the same people."""
    pairs: tuple[tuple[Any, Any], ...] = (one.users, other.users), (one.identities, other.identities)
    return all(np.array_equal(*pair) for pair in pairs)
