"""The records of the messages between a userdp strategy (server) and a node (client).

Beside a clip, ``centre`` travels if rows are clipped about one, ``arrays`` where the computation needs public ones,
``coins`` if samples are drawn, and ``partition`` where samples are summed by groups: which group each sample OF THIS
NODE'S users is in, and no other.

| message | server -> node | node -> server |
|---|---|---|
| query | ``question``: a salt | ``roster``: users, ``identities`` if it has labels, ``key`` if asked for; ``facts``: \
samples clipped |
| train | ``model``, ``cohort`` (users), ``computation`` | ``answer``: users and values; ``facts``: rows not finite |

Where sums are masked (`strategies.wire.masked_sums`), nodes' public ``key`` is asked for in the query, and the answer
holds whole numbers, ``masked``, for values.

Within one machine, where a simulation asks for them, users' ``lengths`` before the clip are in the answer too.

Sparse values are the three arrays of a `scipy.sparse.csr_array`, and ``columns`` is among the facts. Facts are exact:
they are left out where nothing but what is noised may leave a node (see `counts_wanted`), and a reply that has them all
the same is none. A node that fails says so by the kind of its error, never by its text, which may quote data.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray
from scipy.sparse import csr_array

from strategies.wire.masked_sums import read_key, read_masked_sum
from strategies.wire.questions import Reader, counts_wanted, keys_wanted
from strategies.wire.untrusted import AtMost, SharedArray, read_array, read_count, read_record, untrusted
from userdp.arrays.sparse_rows import Sparse, require_canonical, sparse_rows
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.nodes.identities import DIGEST_BYTES
from userdp.nodes.node import Answer, Node

_SPARSE = ("data", "indices", "indptr")
"""Names of a sparse answer's arrays."""
_MOST_SAMPLES = 2**53 - 1
"""Clipped samples that a node can tell of: beyond, sums in files would not be exact."""
_STRANGE_REPLY = "a reply does not follow the protocol"
NODE_FAILED = 1
"""Code of the error reply of a node that failed."""
_KIND = re.compile(r"(?:<class ')?([A-Za-z_][A-Za-z0-9_.]{0,79})(?:'>.*)?", re.DOTALL)
"""What an error reply begins with: the kind of the error, alone or (as Flower writes it) followed by its text."""


def answer_content(answer: Answer, *, counts: bool, share: bool) -> RecordDict:
    """A node's answer as records.

    Args:
        answer: what the node computed.
        counts: whether the server is told how many users were not finite; see `counts_wanted`.
        share: keep the arrays themselves (same machine only).
    """
    wrap = SharedArray if share else Array
    # Entry by entry: a record made from a dictionary would serialise and copy each array.
    arrays, facts = ArrayRecord(), MetricRecord()
    arrays["users"] = wrap(answer.users)
    if counts:
        facts["non_finite"] = answer.non_finite
    if isinstance(answer.values, csr_array):
        facts["columns"] = answer.values.shape[1]
        for part in _SPARSE:
            arrays[part] = wrap(getattr(answer.values, part))
    elif answer.masked is not None:
        arrays["masked"] = wrap(answer.masked)
    else:
        arrays["values"] = wrap(answer.values)
    if answer.lengths is not None:
        arrays["lengths"] = wrap(answer.lengths)
    return RecordDict({"answer": arrays, "facts": facts})


def read_answer(message: Message, users: NDArray[np.int64], computation: Computation, dimension: int) -> Answer:
    """The answer in a reply, which is as asked for in everything but its numbers.

    Args:
        message: the reply.
        users: (U,) whom its node was asked for.
        computation: what it was asked for.
        dimension: p.

    Returns:
        (U, width) rows or (1, width) their sum, dense or sparse, which need not be finite and may be read-only. What
        the node was not asked to count is counted as zero.

    Raises:
        BadInput: the reply does not hold one.
    """
    with untrusted(_STRANGE_REPLY):
        content = message.content
        shape = 1 if computation.reduce == "sum" else len(users), computation.width(dimension)
        sparse = "columns" in content["facts"]
        if sparse and not computation.keeps_zeros:
            raise BadInput("sparse values of a computation that leaves no entry zero")
        counted = {"non_finite"} if computation.trusting else set()
        plain = "values" if computation.masked is None else "masked"
        told, parts = (counted | {"columns"}, _SPARSE) if sparse else (counted, (plain,))
        facts: Mapping[str, Any] = read_record(content, "facts", MetricRecord, told)
        # Nodes on other machines do not tell lengths, whatever they are asked.
        named = ("lengths",) if computation.lengths and "lengths" in content["answer"] else ()
        arrays = read_record(content, "answer", ArrayRecord, {"users", *parts, *named})
        if set(content) != {"answer", "facts"}:
            raise BadInput("there are other records than answer and facts")
        if not np.array_equal(read_array(arrays["users"], "users", "i", users.shape), users):
            raise BadInput("it speaks for other users than asked")
        if computation.masked is not None:
            return Answer(users, np.zeros((1, 0)), 0, masked=read_masked_sum(arrays["masked"], shape[1]))
        non_finite = read_count(facts["non_finite"], "non_finite", len(users)) if counted else 0
        lengths = read_array(arrays["lengths"], "lengths", "f", users.shape) if named else None
        if lengths is not None and not np.all(lengths >= 0):
            raise BadInput("lengths must be at least zero")
        if not sparse:
            values = read_array(arrays["values"], "values", "fiu", shape)
            return Answer(users, np.asarray(values, dtype=np.float64), non_finite, lengths)
        if read_count(facts["columns"], "columns", shape[1]) != shape[1]:
            raise BadInput(f"sparse values must have {shape[1]} columns")
        return Answer(users, _sparse_values(arrays, shape), non_finite, lengths)


def _sparse_values(arrays: ArrayRecord, shape: tuple[int, int]) -> Sparse:
    """Sparse values, of which everything is checked but that they are finite, as of dense ones."""
    stored = (AtMost(shape[0] * shape[1]),)
    data = np.asarray(read_array(arrays["data"], "sparse values", "fiu", stored), dtype=np.float64)
    indices = read_array(arrays["indices"], "their columns", "i", stored)
    indptr = read_array(arrays["indptr"], "indptr", "i", (shape[0] + 1,))
    # Before scipy sees them: its routines trust the arrays.
    require_canonical(data, indices, indptr, shape[1], "sparse values of a reply")
    return sparse_rows(data, indices, indptr, shape[1])


@dataclass(frozen=True)
class Holding:
    """Whom a node holds.

    Attributes:
        users: (U,) indices, of any integer type and as many as it likes: no copy until the roster has counted them.
        clipped_samples: how many of their samples were clipped into the declared bounds; zero where that was not asked.
        identities: (U, 16) salted digests of what they are called; None where a node does not know.
        key: public key of the node's masks; None where that was not asked.
    """

    users: NDArray[np.signedinteger[Any]]
    clipped_samples: int
    identities: NDArray[np.uint8] | None = None
    key: bytes | None = None


def roster_question(salt: bytes, *, counts: bool, keys: bool = False) -> RecordDict:
    """The question whom a node holds, (if ``counts``) how many of their samples it had to clip, and its public key."""
    return RecordDict({"question": ConfigRecord({"salt": salt, "counts": counts, "keys": keys})})


def roster_content(
    users: NDArray[np.int64],
    clipped_samples: int | None,
    identities: NDArray[np.uint8] | None = None,
    key: bytes | None = None,
) -> RecordDict:
    """Which users a node holds, and how many of their samples were clipped into the declared bounds, if asked."""
    arrays = {"users": Array(users)} | ({} if identities is None else {"identities": Array(identities)})
    if key is not None:
        arrays["key"] = Array(np.frombuffer(key, dtype=np.uint8))
    facts = MetricRecord({} if clipped_samples is None else {"clipped_samples": clipped_samples})
    return RecordDict({"roster": ArrayRecord(arrays), "facts": facts})


def read_roster(message: Message, *, counts: bool, keys: bool = False) -> Holding:
    """What the reply to a query says.

    Args:
        message: the reply.
        counts: whether counts were asked for.
        keys: whether public keys were.

    Raises:
        BadInput: the reply does not follow the protocol.
    """
    with untrusted(_STRANGE_REPLY):
        content = message.content
        named = "identities" in content["roster"]
        parts = {"users"} | ({"identities"} if named else set()) | ({"key"} if keys else set())
        arrays = read_record(content, "roster", ArrayRecord, parts)
        facts: Mapping[str, Any] = read_record(content, "facts", MetricRecord, {"clipped_samples"} if counts else set())
        if set(content) != {"roster", "facts"}:
            raise BadInput("there are other records than roster and facts")
        users = read_array(arrays["users"], "users", "i", (None,))
        digests = read_array(arrays["identities"], "identities", "u", (len(users), DIGEST_BYTES)) if named else None
        if digests is not None and digests.dtype != np.uint8:
            raise BadInput("identities must be bytes")
        clipped = read_count(facts["clipped_samples"], "clipped_samples", _MOST_SAMPLES) if counts else 0
        return Holding(users, clipped, digests, read_key(arrays["key"]) if keys else None)


def failed(message: Message, kind: str) -> Message:
    """The reply of a node that cannot answer; where counts are not told, the kind of its error is not either."""
    try:
        told = counts_wanted(message)
    except Exception:  # the message itself may be what went wrong
        told = False
    return Message(Error(NODE_FAILED, kind if told else None), reply_to=message)


def failure(reply: Message) -> str:
    """The kind of error that a node replied with; never its text, which may quote data."""
    found = _KIND.fullmatch(reply.error.reason or "")
    return f"error {reply.error.code}" if found is None else found[1]


def answer_message(node: Node, message: Message, *, share: bool = False, reader: Reader | None = None) -> Message:
    """The node's reply to any message of the protocol.

    Args:
        node: who answers.
        message: the question.
        share: keep the arrays themselves in the reply (same machine only). Lengths are told there alone: a node on
            another machine, or with people who have names, tells no more about single users than the clipped sum, or
            the rows, that it is asked for.
        reader: of this round's messages, where they share records; one of its own if not given.

    Raises:
        BadInput: the message asks for something the node cannot give.
    """
    with untrusted("a question does not follow the protocol"):
        counts = counts_wanted(message)
    if message.metadata.message_type == MessageType.QUERY:
        users, salt = node.users, cast(bytes, message.content["question"]["salt"])
        digests = None if node.labels is None else node.identities(salt)
        key = node.key.public if keys_wanted(message) else None
        return Message(roster_content(users, node.clipped_samples if counts else None, digests, key), reply_to=message)
    reader = reader or Reader()
    users, computation = reader.request(message)
    if computation.lengths and (not share or node.labels is not None):
        computation = replace(computation, lengths=False)
    answer = node.compute(reader.model(message), users, computation)
    return Message(answer_content(answer, counts=counts, share=share), reply_to=message)
