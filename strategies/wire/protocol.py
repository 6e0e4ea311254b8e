"""The replies of the protocol, as a node writes and the server reads them; docs/what-leaves.md lists all fields.

Sums may be masked: then a query asks for nodes' public keys, a round's message holds the keys of all its nodes in one
order, and answers hold masked whole numbers. A node that lost its key does not find it there and cannot answer.

If sums survive silent nodes, two more questions are about nodes' secrets (`strategies.wire.shares`).

Server and nodes may be of different versions. The question for a node's users names the server's `PROTOCOL`, and its
reply the node's; a version that is not named is the first. A node answers every older question as its server expects.
A server refuses nodes that are older than its run needs (`strategies.wire.roster`), because they would ignore fields
that they do not know.

Within one machine, a simulation may ask for users' lengths before the clip. Sparse values are the three arrays of a
`scipy.sparse.csr_array`. Facts are exact counts: where only noised values may leave a node they are left out (see
`counts_wanted`), and a reply with them is refused. A failing node reports the kind of its error, never its text, which
may quote data.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray
from scipy.sparse import csr_array

from strategies.wire.claims import Claim
from strategies.wire.questions import FIRST, PROTOCOL, Reader, counts_wanted, keys_wanted, version_wanted
from strategies.wire.shares import about_shares, shares_content
from strategies.wire.untrusted import AtMost, SharedArray, read_array, read_count, read_exactly, read_record, untrusted
from userdp.arrays.sparse_rows import Sparse, require_canonical, sparse_rows
from userdp.errors import BadInput
from userdp.masking.masks import KEY_BYTES
from userdp.nodes.computations import Computation
from userdp.nodes.node import DIGEST_BYTES, Answer, Node

_SPARSE = ("data", "indices", "indptr")
_LAST = 2**31  # Beyond any version.
_MOST_SAMPLES = 2**53 - 1  # Beyond, sums of clipped samples in files would not be exact.
_STRANGE_REPLY = "a reply does not follow the protocol"
NODE_FAILED = 1  # The code of the error reply of a node that failed
_GONE = 4, 5  # Flower's codes where a node left before its reply was read, or before it answered
# The kind of the error at the start of an error reply, alone or (as Flower writes it) followed by its text.
_KIND = re.compile(r"(?:<class ')?([A-Za-z_][A-Za-z0-9_.]{0,79})(?:'>.*)?", re.DOTALL)


def answer_content(answer: Answer, *, counts: bool, share: bool) -> RecordDict:
    """Return a node's answer as records, with exact counts or not; ``share`` keeps arrays (same machine only)."""
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
    """Return the answer in a reply to the request of ``computation`` for (U,) ``users``; p is ``dimension``.

    Everything is checked but its numbers: (U, width) rows or (1, width) their sum, dense or sparse, may hold NaN and
    may be read-only. Counts that were not requested are zero. Raises `BadInput` for any other reply.
    """
    with untrusted(_STRANGE_REPLY):
        content = message.content
        shape = 1 if computation.reduce == "sum" else len(users), computation.width(dimension)
        sparse = "columns" in content["facts"]
        if sparse and not computation.keeps_zeros:
            raise BadInput("sparse values of a computation that leaves no entry zero")
        counted = {"non_finite"} if computation.trusting else set()
        plain = "values" if computation.masked is None else "masked"
        names, parts = (counted | {"columns"}, _SPARSE) if sparse else (counted, (plain,))
        facts: Mapping[str, Any] = read_record(content, "facts", MetricRecord, names)
        # Nodes on other machines leave lengths out, even if requested.
        named = ("lengths",) if computation.lengths and "lengths" in content["answer"] else ()
        arrays = read_record(content, "answer", ArrayRecord, {"users", *parts, *named})
        if set(content) != {"answer", "facts"}:
            raise BadInput("the records must be answer and facts alone")
        if not np.array_equal(read_array(arrays["users"], "users", "i", users.shape), users):
            raise BadInput("it speaks for other users than asked")
        if computation.masked is not None:
            masked = read_exactly(arrays["masked"], "a masked sum", np.uint64, (shape[1],))
            return Answer(users, np.zeros((1, 0)), 0, masked=masked)
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
    """Return sparse values with everything checked but their numbers, as for dense ones."""
    stored = (AtMost(shape[0] * shape[1]),)
    data = np.asarray(read_array(arrays["data"], "sparse values", "fiu", stored), dtype=np.float64)
    indices = read_array(arrays["indices"], "their columns", "i", stored)
    indptr = read_array(arrays["indptr"], "indptr", "i", (shape[0] + 1,))
    # Before scipy sees them: its routines trust the arrays.
    require_canonical(data, indices, indptr, shape[1], "sparse values of a reply")
    return sparse_rows(data, indices, indptr, shape[1])


@dataclass(frozen=True)
class Holding:
    """The users that a node holds."""

    users: NDArray[np.signedinteger[Any]]  # (U,), of any integer type and length: copied after the roster's checks
    clipped_samples: int  # their samples that were clipped into the declared bounds; zero where counts are not wanted
    identities: NDArray[np.uint8] | None = None  # (U, 16) salted digests of labels; None where a node has none
    key: bytes | None = None  # public key of the node's masks; None where keys are not wanted
    protocol: int = FIRST  # version of the protocol that the node speaks


def roster_question(salt: bytes, *, counts: bool, keys: bool = False, claim: Claim | None = None) -> RecordDict:
    """Return the question for a node's users, (if ``counts``) their clipped samples, and (if ``keys``) its key.

    ``claim`` is what the run promises, which nodes behind a door have to know; older nodes leave it aside.
    """
    content = RecordDict(
        {"question": ConfigRecord({"salt": salt, "counts": counts, "keys": keys, "protocol": PROTOCOL})}
    )
    if claim is not None:
        content["claim"] = claim.record()
    return content


def roster_content(
    users: NDArray[np.int64],
    clipped_samples: int | None,
    identities: NDArray[np.uint8] | None = None,
    key: bytes | None = None,
    *,
    versioned: bool = True,
) -> RecordDict:
    """Return the reply to a query; ``clipped_samples`` is None where counts are not wanted.

    It names the node's version if the question is ``versioned``; an older server refuses fields that it does not know.
    """
    arrays = {"users": Array(users)} | ({} if identities is None else {"identities": Array(identities)})
    if key is not None:
        arrays["key"] = Array(np.frombuffer(key, dtype=np.uint8))
    facts = MetricRecord({} if clipped_samples is None else {"clipped_samples": clipped_samples})
    if versioned:
        facts["protocol"] = PROTOCOL
    return RecordDict({"roster": ArrayRecord(arrays), "facts": facts})


def read_roster(message: Message, *, counts: bool, keys: bool = False) -> Holding:
    """Return the content of a reply to a query with these settings; raises `BadInput` if it breaks the protocol."""
    with untrusted(_STRANGE_REPLY):
        content = message.content
        named = "identities" in content["roster"]
        parts = {"users"} | ({"identities"} if named else set()) | ({"key"} if keys else set())
        arrays = read_record(content, "roster", ArrayRecord, parts)
        versioned = {"protocol"} if "protocol" in content["facts"] else set()
        counted = {"clipped_samples"} if counts else set()
        facts: Mapping[str, Any] = read_record(content, "facts", MetricRecord, counted | versioned)
        if set(content) != {"roster", "facts"}:
            raise BadInput("the records must be roster and facts alone")
        users = read_array(arrays["users"], "users", "i", (None,))
        size = (len(users), DIGEST_BYTES)
        digests = read_exactly(arrays["identities"], "identities", np.uint8, size) if named else None
        clipped = read_count(facts["clipped_samples"], "clipped_samples", _MOST_SAMPLES) if counts else 0
        key = read_exactly(arrays["key"], "key", np.uint8, (KEY_BYTES,)).tobytes() if keys else None
        version = read_count(facts["protocol"], "protocol", _LAST) if versioned else FIRST
        return Holding(users, clipped, digests, key, version)


def failed(message: Message, kind: str) -> Message:
    """Return the reply of a node that cannot answer; it hides the kind of the error where counts are not wanted."""
    try:
        shown = counts_wanted(message)
    except Exception:  # the message itself may be at fault
        shown = False
    return Message(Error(NODE_FAILED, kind if shown else None), reply_to=message)


def failure(reply: Message) -> str:
    """Say how a node failed: with the kind of its error, never its text, which may quote data."""
    if reply.error.code in _GONE:
        return "it is gone"
    found = _KIND.fullmatch(reply.error.reason or "")
    kind = f"error {reply.error.code}" if found is None else found[1]
    return f"its app failed: {kind} (see that node's log)"


def answer_message(node: Node, message: Message, *, share: bool = False, reader: Reader | None = None) -> Message:
    """Return the node's reply to any message of the protocol.

    Args:
        node: the node that answers.
        message: the question.
        share: keep the arrays themselves in the reply (same machine only), with lengths if requested. A node on another
            machine, or with people who have names, reveals no more about single users than the requested sum or rows.
        reader: of this round's messages, if they share records.

    Raises `BadInput`: the node cannot give what the message requests, or its door does not let it in.
    """
    if node.door is not None:
        node.door.enter(message)
    if about_shares(message):
        return Message(shares_content(node.key, message), reply_to=message)
    with untrusted("a question does not follow the protocol"):
        counts = counts_wanted(message)
    if message.metadata.message_type == MessageType.QUERY:
        users, salt = node.users, cast(bytes, message.content["question"]["salt"])
        digests = None if node.labels is None else node.identities(salt)
        key = node.key.public if keys_wanted(message) else None
        clipped, versioned = node.clipped_samples if counts else None, version_wanted(message)
        return Message(roster_content(users, clipped, digests, key, versioned=versioned), reply_to=message)
    reader = reader or Reader()
    users, computation = reader.request(message)
    if node.door is not None:
        node.door.check(message, computation)
    if computation.lengths and (not share or node.labels is not None):
        computation = replace(computation, lengths=False)
    answer = node.compute(reader.model(message), users, computation)
    return Message(answer_content(answer, counts=counts, share=share), reply_to=message)
