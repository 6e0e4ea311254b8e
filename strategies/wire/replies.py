"""The nodes' replies, put together to one block of rows in user order or one sum; silent users are missing."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from strategies.wire.protocol import failure, read_answer
from strategies.wire.questions import question_as_read
from strategies.wire.roster import Roster
from userdp.accounting import Privacy
from userdp.arrays.sparse_rows import add_rows, dense, entries, finite_rows
from userdp.arrays.types import Vector
from userdp.errors import BadInput, RunFailed
from userdp.nodes.computations import Computation
from userdp.nodes.node import Answer
from userdp.nodes.statistics import statistic

log = logging.getLogger("userdp")
Read = Callable[[Message, NDArray[np.int64], Computation, int], Answer]
"""Returns the answer in a reply, checked in all but its numbers, to the request of users and a computation.

It raises `BadInput`, and nothing else, if there is none.
"""
_SUM_TOLERANCE = 1 + 1e-9
_CERTAIN = 4.0  # Deviations of its noise that a count exceeds before anything is said of it


@dataclass(frozen=True)
class Request:
    """The request of a round: these users, this computation."""

    users: NDArray[np.int64]
    computation: Computation
    question: bytes = b""  # digest of a masked computation at the model that is sent; see `Computation.question`


@dataclass(frozen=True)
class Gathered:
    """The replies of a round."""

    values: NDArray[np.float64]  # (B, p) rows in user order, zero where missing; or (p,) the sum
    missing: int  # users of the cohort without an answer
    non_finite: int  # users whose row was not finite and became zero; zero where users add the noise themselves
    broken_sums: int = 0  # sums that were not finite, and became zero with all their users
    lengths: NDArray[np.float64] | None = None  # (B,) l2 norms before the clip, NaN where unknown; None if all are
    lost: bool = False  # a node of a masked sum did not answer, so the sum cannot be read
    skipped: bool = False  # a killed process asked the round, and may have released it
    noise: float = 0.0  # standard deviation of the nodes' noise on each coordinate of a masked sum; else 0

    def uncounted(self) -> "Gathered":
        """Return the same without the exact counts of users, which no guarantee covers."""
        return replace(self, missing=0, non_finite=0, broken_sums=0)


def with_keys(request: Request, roster: Roster, privacy: Privacy, x: Vector) -> Request:
    """Return the request of a round at (p,) ``x``, with the keys and noise of the nodes that a masked sum will ask.

    ``privacy`` says how many nodes may collude or fall silent. Raises `RunFailed` if one node holds all of the round's
    users who have a node, or nobody's noise would be left.
    """
    masked = request.computation.masked
    keys = () if masked is None else tuple(roster.key(node, masked.round) for node, _ in roster.assign(request.users))
    if masked is None or not keys:
        return request
    try:
        masked = masked.among(keys, privacy.colluding, privacy.lost_nodes)
    except BadInput as error:
        raise RunFailed(f"privacy.trust = 'sum': {error}") from None
    computation = replace(request.computation, masked=masked)
    return replace(request, computation=computation, question=question_as_read(computation, x))


def gather(
    request: Request,
    roster: Roster,
    replies: Iterable[Message],
    dimension: int,
    max_missing: float,
    read: Read = read_answer,
) -> Gathered:
    """Put replies, which may come in any order, together; only one answer of a sum is in memory at a time.

    Sparse answers are added to one dense sum entry by entry; sparse rows become dense, B p numbers in memory; p is
    ``dimension``. Raises `RunFailed` if a larger share of the cohort than ``max_missing`` is missing.
    """
    if request.computation.masked is not None:
        return _gather_masked(request, roster, replies, dimension, max_missing, read)
    expected = dict(roster.assign(request.users))
    first = {node: int(users[0]) for node, users in expected.items()}
    summed, width = request.computation.reduce == "sum", request.computation.width(dimension)
    values = np.zeros(width if summed else (len(request.users), width))
    lengths = np.full(len(request.users), np.nan)
    missing, non_finite, broken_sums = len(request.users) - roster.empty(request.users), 0, 0
    # By user, not by arrival: a sum of floats depends on the order.
    by_user = sorted(replies, key=lambda reply: first.get(reply.metadata.src_node_id, -1))
    for _, answer in _answers(request, expected, by_user, dimension, max_missing, read, roster.empty(request.users)):
        rows, bad = finite_rows(answer.values)
        missing -= len(answer.users)
        broken_sums += bad if summed else 0
        non_finite += min(bad + answer.non_finite, len(answer.users))
        everybody = len(answer.users) == len(request.users)
        positions = slice(None) if everybody else np.searchsorted(request.users, answer.users)
        if answer.lengths is not None:
            lengths[positions] = answer.lengths
        if summed:
            add_rows(values, rows)
        else:
            values[positions] = dense(rows)
    told = request.computation.lengths and not np.isnan(lengths).all()
    return Gathered(values, missing, non_finite, broken_sums, lengths if told else None)


def _gather_masked(
    request: Request, roster: Roster, replies: Iterable[Message], dimension: int, max_missing: float, read: Read
) -> Gathered:
    """Return the sum under the masks, without nodes that fell silent if not too many did.

    Else these are left out later, as their silence would lose those rounds too.
    """
    masked, recovery = request.computation.masked, roster.recovery
    assert masked is not None
    # Without keys nobody was asked, so nobody fell silent.
    expected = dict(roster.assign(request.users)) if masked.keys else {}
    nodes, silent, missing = list(expected), set(expected), len(request.users) - roster.empty(request.users)
    width = request.computation.width(dimension)
    total = np.zeros(width, dtype=np.uint64)
    for node, answer in _answers(request, expected, replies, dimension, max_missing, read, roster.empty(request.users)):
        assert answer.masked is not None
        total += answer.masked
        missing -= len(answer.users)
        silent.remove(node)
    lost = not nodes or len(silent) > (0 if recovery is None else recovery.lost)
    if lost:
        for node in silent:
            roster.leave_out(node)
    elif recovery is not None:
        surplus = recovery.surplus(masked, request.question, nodes, silent, width)
        lost = surplus is None
        if surplus is not None:
            total -= surplus
    if lost:
        log.warning("a round is lost: not all of its nodes answered, so what hides their sum cannot be taken off")
        return Gathered(np.zeros(width), len(request.users), 0, lost=True)
    noise, values = masked.deviation * math.sqrt(1 - len(silent) / len(nodes)), masked.values(total)
    if request.computation.counted:
        longest, count, values = request.computation.longest, values[0], values[1:]
        check_count(count / longest, noise / longest, len(request.users))
    return Gathered(values, missing, 0, noise=noise)


def check_count(told: float, deviation: float, cohort: float) -> None:
    """Refuse (`RunFailed`) to go on where most users' replies count as zero, as a count ``told`` with noise says.

    *Formal guarantees.* *Claim.* The noisy sum of a round and this verdict together are one release of the mechanism of
    the sum, at its cost, under either relation. *Why.* A user whose reply is unusable adds zero to the sum (about a
    centre, if there is one) and one to the count; any other adds a vector of norm at most C, and zero. With C counted
    for each, a user adds a row ``(C u, v)`` of norm at most C, which is all that a sampler's proof asks of rows: the
    sum of rows moves by at most 2C if a user is replaced, and by C if one is added or removed. (Rows that
    name the octave of a length stay at most sqrt(2) apart with the count beside them: none points away from another. If
    rows of a masked sum end with a number, C is their norm with it, and the number of an unusable reply is zero.)
    Noise of the sum's deviation on C times the count completes it to the Gaussian mechanism of these rows; in a masked
    sum it is an entry like any other. The verdict follows from the noisy count. *Assumptions.* Those of the sum.

    Of rounds in which all replies are models, one in 30,000 is refused at most. Noise that could pass for half a cohort
    hides some in which none is. ``deviation`` is that of the noise on the count, of so many users in a ``cohort``.
    """
    if told > max(cohort / 2, _CERTAIN * deviation):
        raise RunFailed(
            "most clients' replies count as zero, by a count with noise: models that are not finite, or that are near "
            "zero against the model sent, as updates are; reply with the whole trained model, and lower the clients' "
            "learning rate if training diverges"
        )


def _answers(
    request: Request,
    expected: dict[int, NDArray[np.int64]],
    replies: Iterable[Message],
    dimension: int,
    max_missing: float,
    read: Read,
    empty: int,
) -> Iterator[tuple[int, Answer]]:
    """Yield each expected node that answers, with its answer; `RunFailed` in the end if too many users are missing.

    So many of the users are ``empty`` places, and miss nowhere.
    """
    nodes, missing, complaint = len(expected), len(request.users) - empty, "no reply in time"
    for reply in replies:
        node = reply.metadata.src_node_id
        try:
            answer = _checked(reply, expected.pop(node, None), request.computation, dimension, nodes, read)
        except BadInput as error:
            complaint = str(error)
            log.warning("node %d counts as missing: %s", node, complaint)
            continue
        missing -= len(answer.users)
        yield node, answer
    if missing > max_missing * len(request.users):
        raise RunFailed(
            f"too many users of a cohort did not answer ({complaint}): strategy.max_missing = {max_missing} is the "
            "largest share that may be missing"
        )


def _checked(
    reply: Message, users: NDArray[np.int64] | None, computation: Computation, dimension: int, nodes: int, read: Read
) -> Answer:
    if reply.has_error():  # first, for Flower itself may reply in place of a node
        raise BadInput(failure(reply))
    if users is None:
        raise BadInput("it was not asked, or answered twice")
    answer = read(reply, users, computation, dimension)
    if computation.reduce == "sum" and computation.trusting:
        total = entries(answer.values)[: computation.length(dimension)]
        for order, norm in ((2, computation.clip_norm), (1, computation.l1_norm)):
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows exceeds the limit as well
                if norm is not None and not np.linalg.norm(total, order) <= len(users) * norm * _SUM_TOLERANCE:
                    raise BadInput("the norm of its sum exceeds what its clipped users can add up to")
        if computation.statistic is not None:
            bounds, added = statistic(computation.statistic), dense(answer.values)[0, computation.length(dimension)]
            if not bounds.low * _SUM_TOLERANCE <= added / len(users) <= bounds.high * _SUM_TOLERANCE:
                raise BadInput("the sum of its users' statistic exceeds what they can add up to")
    summed = computation.reduce == "sum" and computation.masked is None
    if summed and np.abs(entries(answer.values)).max(initial=0.0) > np.finfo(np.float64).max / nodes:
        raise BadInput("its sum is so large that the sum of all nodes could overflow")
    return answer
