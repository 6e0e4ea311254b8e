"""From the nodes' replies to one block of rows in user order, or one sum; whoever did not answer is missing."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray
from scipy.sparse import csr_array

from strategies.protocol import read_answer
from strategies.roster import Roster
from userdp.computations import Computation, finite_rows, statistic
from userdp.errors import BadInput, RunFailed
from userdp.node import Answer
from userdp.sparse_rows import add_rows, dense, entries

log = logging.getLogger("userdp")
_SUM_TOLERANCE = 1 + 1e-9


@dataclass(frozen=True)
class Request:
    """What a round asks: these users, this computation."""

    users: NDArray[np.int64]
    computation: Computation


@dataclass(frozen=True)
class Gathered:
    """The replies of a round.

    Attributes:
        values: (B, p) rows in user order, zero where nobody answered; or (p,) the sum.
        missing: users of the cohort without an answer.
        non_finite: users whose row was not finite and became zero.
    """

    values: NDArray[np.float64]
    missing: int
    non_finite: int


def gather(
    request: Request,
    roster: Roster,
    replies: Iterable[Message],
    dimension: int,
    max_missing: float,
    read: Callable[[Message], Answer] = read_answer,
) -> Gathered:
    """Put replies together; of a sum, one answer at a time is in memory.

    Sparse answers are added to one dense sum entry by entry, and sparse rows become dense: what is asked for as rows
    has B p numbers in memory here, however few of them are not zero.

    Args:
        request: what was asked.
        roster: which node was asked for whom.
        replies: in any order; the result does not depend on it.
        dimension: p.
        max_missing: largest share of the cohort that may be missing.
        read: from a reply of a node that was asked to its answer; raises `BadInput` where there is none.

    Raises:
        RunFailed: more users are missing than that.
    """
    expected = dict(roster.assign(request.users))
    first = {node: int(users[0]) for node, users in expected.items()}
    complaint = "no reply in time"
    summed = request.computation.reduce == "sum"
    width = request.computation.width(dimension)
    values = np.zeros(width if summed else (len(request.users), width))
    answered = np.zeros(len(request.users), dtype=bool)
    non_finite = 0
    # By user, not by arrival: a sum of floats depends on the order.
    for reply in sorted(replies, key=lambda reply: first.get(reply.metadata.src_node_id, -1)):
        node = reply.metadata.src_node_id
        try:
            answer = _checked(reply, expected.pop(node, None), request.computation, dimension, read)
            if summed:
                _check_size(answer, len(first))
        except BadInput as error:
            complaint = str(error)
            log.warning("node %d counts as missing: %s", node, complaint)
            continue
        rows, bad = finite_rows(answer.values)
        non_finite += bad + answer.non_finite
        positions = np.searchsorted(request.users, answer.users)
        answered[positions] = True
        if summed:
            add_rows(values, rows)
        else:
            values[positions] = dense(rows)
    missing = int((~answered).sum())
    if missing > max_missing * len(request.users):
        raise RunFailed(
            f"{missing} of {len(request.users)} users of a cohort did not answer ({complaint}); "
            f"strategy.max_missing = {max_missing} allows fewer"
        )
    return Gathered(values, missing, non_finite)


def _check_size(answer: Answer, nodes: int) -> None:
    """Refuse a sum that is so large that the sum over all nodes could overflow."""
    if np.abs(entries(answer.values)).max(initial=0.0) > np.finfo(np.float64).max / nodes:
        raise BadInput("its sum is so large that the sum of all nodes could overflow")


def _checked(
    reply: Message,
    users: NDArray[np.int64] | None,
    computation: Computation,
    p: int,
    read: Callable[[Message], Answer],
) -> Answer:
    """The reply's answer, if it is one to the question asked."""
    if reply.has_error():  # first, for Flower itself may reply in place of a node
        raise BadInput(f"its app failed: {reply.error.reason}")
    if users is None:
        raise BadInput("it was not asked, or answered twice")
    answer = read(reply)
    shape = (1 if computation.reduce == "sum" else len(users), computation.width(p))
    if answer.values.shape != shape or not np.array_equal(answer.users, users):
        raise BadInput(f"it returned values of shape {answer.values.shape} where {shape} was asked for")
    if isinstance(answer.values, csr_array) and not computation.keeps_zeros:
        raise BadInput("it returned sparse values of a computation that leaves no entry zero")
    if computation.reduce == "sum" and computation.noise is None:
        total = entries(answer.values)[: computation.length(p)]
        for order, norm in ((2, computation.clip_norm), (1, computation.l1_norm)):
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows exceeds the limit as well
                if norm is not None and not np.linalg.norm(total, order) <= len(users) * norm * _SUM_TOLERANCE:
                    raise BadInput("the norm of its sum exceeds what its clipped users can add up to")
        if computation.statistic is not None:
            bounds, added = statistic(computation.statistic), dense(answer.values)[0, computation.length(p)]
            if not bounds.low * _SUM_TOLERANCE <= added / len(users) <= bounds.high * _SUM_TOLERANCE:
                raise BadInput("the sum of its users' statistic exceeds what they can add up to")
    return answer
