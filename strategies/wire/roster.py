"""The map of users to nodes: which node answers for which user."""

import logging
import secrets
import time
from functools import partial
from itertools import pairwise

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from strategies.wire.claims import Claim
from strategies.wire.protocol import Holding, failure, read_roster, roster_question
from strategies.wire.questions import FIRST, SHARING
from strategies.wire.recovery import Recovery
from userdp.accounting import Privacy
from userdp.errors import BadInput, RunFailed
from userdp.nodes.node import DIGEST_BYTES, repeated

log = logging.getLogger("userdp")
_POLL_SECONDS = 0.2
_NOBODY = -1


class Roster:
    """Maps users 0..n-1 (n = ``users``, public) to Flower nodes.

    Flower's node ids are random and nodes register one by one, so the roster asks every node for its users and waits
    for USERS, not for nodes: no run trains on whichever nodes come first.

    No person may be two users. Nodes that know users' labels send salted digests of them (a salt for this roster
    alone); a label that occurs twice, in one node or in two, ends the run (`repeated` says what that proves). Either
    every node with users sends digests or none: comparing some with others would find nothing.
    """

    require_identities: bool = False  # refuse nodes that do not know their users' labels, as data of real people demand
    counts: bool = True  # ask how many samples were clipped; False where users are protected against the server
    keys: bool = False  # ask for nodes' public keys, where sums are masked
    recovery: Recovery | None = None  # where sums survive silent nodes
    places: bool = False  # users may come and go: a number that no node holds is an empty place, and nobody is missing
    claim: Claim | None = None  # what the run promises, for nodes that answer no other one
    needs: int = FIRST  # the oldest version of the protocol that knows every field of the run's messages

    def __init__(self, users: int) -> None:
        self._salt = secrets.token_bytes(DIGEST_BYTES)
        self._digests: list[NDArray[np.uint8]] = []
        self._owner = np.full(users, _NOBODY, dtype=np.int64)
        self._empty = np.zeros(users, dtype=bool)
        self._nodes: list[int] = []
        self._keys: dict[int, bytes] = {}
        self.clipped_samples = 0

    def expect(self, privacy: Privacy, protocol: int, *, trusted: bool) -> None:
        """Ask for what a run needs, whose strategy sends messages of a version and trusts the server, or does not."""
        self.keys = privacy.trust == "sum"
        self.counts = trusted and not self.keys
        self.needs = max(protocol, SHARING if privacy.lost_nodes else FIRST)

    @property
    def absent(self) -> int:
        """The number of users without a node."""
        return int((self._owner == _NOBODY).sum())

    def gather(self, grid: Grid, timeout: float) -> None:
        """Ask nodes for their users until all n are there or ``timeout`` seconds have passed.

        A failing node holds nobody: its users count as missing. Raises `RunFailed` if two nodes claim one user or hold
        one person, or a node claims a user outside 0..n-1, sends no digests though others do, or is of an older version
        than the run ``needs``.
        """
        deadline = time.monotonic() + timeout
        asked: set[int] = set()
        while self.absent:
            new = [node for node in grid.get_node_ids() if node not in asked]
            if new:
                asked.update(new)
                question = roster_question(self._salt, counts=self.counts, keys=self.keys, claim=self.claim)
                left = max(_POLL_SECONDS, deadline - time.monotonic())
                queries = [Message(question, node, MessageType.QUERY) for node in new]
                for reply in grid.send_and_receive(queries, timeout=left):
                    self._enter(reply)
            if not self.absent or (self.places and getattr(grid, "complete", False)) or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
        if self.places:
            self._empty = self._owner == _NOBODY
        elif self.absent:
            # Only the holder of the data may know how many.
            log.warning("some of the %d users have no node: they count as missing in every round", len(self._owner))

    def _enter(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            log.warning("node %d could not say whom it holds: %s", node, failure(reply))
            return
        try:
            holding = read_roster(reply, counts=self.counts, keys=self.keys)
        except BadInput as error:
            # It counts as silent: a garbled reply must not end the run of all others.
            log.warning("node %d could not say whom it holds: %s", node, error)
            return
        if holding.protocol < self.needs:
            raise RunFailed(
                f"node {node} speaks version {holding.protocol} of the protocol, and this run needs {self.needs}: "
                "upgrade userdp at that node, and resume or start the run again"
            )
        if holding.key is not None and holding.key in self._keys.values():
            log.warning("node %d counts as absent: its key is that of another node", node)
            return
        planned, users = len(self._owner), holding.users
        if len(users) > planned or (users.size and (users.min() < 0 or users.max() >= planned)):
            raise RunFailed(f"node {node} claims users outside 0..{planned - 1}: the plan is for {planned} users")
        if len(np.unique(users)) < len(users) or np.any(self._owner[users] != _NOBODY):
            raise RunFailed(f"node {node} claims a user that is claimed already: a user in two places has no guarantee")
        self._identify(node, holding)
        self._owner[users] = len(self._nodes)
        self._nodes.append(node)
        if holding.key is not None:
            self._keys[node] = holding.key
        self.clipped_samples += holding.clipped_samples

    def _identify(self, node: int, holding: Holding) -> None:
        if not len(holding.users):
            return
        first = self.absent == len(self._owner)
        named = holding.identities is not None
        wanted = self.require_identities or (named if first else bool(self._digests))
        if named != wanted:
            raise RunFailed(
                f"node {node} {'alone says' if named else 'does not say'} who its users are: every silo must give "
                "its users' labels, to find people who are in two silos"
            )
        if holding.identities is None:
            return
        self._digests.append(holding.identities)
        if repeated(np.concatenate(self._digests)):
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
