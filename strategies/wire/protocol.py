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

from strategies.wire.masked_sums import masked_record, read_key, read_masked, read_masked_sum
from strategies.wire.untrusted import AtMost, SharedArray, read_array, read_count, read_record, untrusted
from userdp.arrays.sparse_rows import Sparse, require_canonical, sparse_rows
from userdp.errors import BadInput
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.identities import DIGEST_BYTES
from userdp.nodes.node import Answer, Node
from userdp.nodes.partition import Partition
from userdp.problems.in_coordinates import Coordinates
from userdp.sampling.coins import SampleCoins

_PARAMETER = "parameter."
_START, _MATRIX = "coordinates.start", "coordinates.matrix"
_USERS = np.dtype("<i8")
_KEYS = np.dtype("<u8")
"""User indices on the wire: raw, for parsing an array's header takes longer than a small cohort's computation."""
_GROUPS = np.dtype("<i4")
_SPARSE = ("data", "indices", "indptr")
"""Names of a sparse answer's arrays."""
_MOST_SAMPLES = 2**53 - 1
"""Clipped samples that a node can tell of: beyond, sums in files would not be exact."""
_STRANGE_REPLY = "a reply does not follow the protocol"
NODE_FAILED = 1
"""Code of the error reply of a node that failed."""
_KIND = re.compile(r"(?:<class ')?([A-Za-z_][A-Za-z0-9_.]{0,79})(?:'>.*)?", re.DOTALL)
"""What an error reply begins with: the kind of the error, alone or (as Flower writes it) followed by its text."""


def model_record(x: NDArray[np.float64]) -> ArrayRecord:
    """A parameter vector as Flower's arrays."""
    return ArrayRecord({"x": Array(x)})


def model_vector(arrays: ArrayRecord) -> NDArray[np.float64]:
    """The parameter vector in Flower's arrays.

    Raises:
        BadInput: not made by `model_record`.
    """
    if list(arrays) != ["x"]:
        raise BadInput(
            f"the model must be one array named 'x', got {sorted(arrays)}; make it with model_record(vector)"
        )
    return np.asarray(arrays["x"].numpy(), dtype=np.float64)


def train_content(model: ArrayRecord, users: NDArray[np.int64], computation: Computation) -> RecordDict:
    """What the server asks of a node."""
    config: dict[str, str | float | int] = {"name": computation.name, "reduce": computation.reduce}
    for name in ("clip_norm", "l1_norm", "separate", "lengths", "statistic"):
        value = getattr(computation, name)
        if value is not None and value is not False:  # a clip at zero is one
            config[name] = value
    if (noise := computation.noise) is not None:
        config |= {"noise.deviation": noise.deviation, "noise.round": noise.round}
        if noise.seed is not None:
            config["noise.seed"] = noise.seed
    config |= {_PARAMETER + name: float(value) for name, value in computation.parameters.items()}
    content = RecordDict(
        {
            "model": model,
            "cohort": ConfigRecord({"users": users.astype(_USERS).tobytes()}),
            "computation": ConfigRecord(config),  # type: ignore[arg-type]
        }
    )
    if (coins := computation.coins) is not None:
        # A node gets the keys of its own users: it must not be able to tell whose other samples are drawn.
        config_of_coins = {"rate": coins.rate, "keys": coins.keys[users].astype(_KEYS).tobytes()}
        if coins.most is not None:
            config_of_coins["most"] = coins.most
        content["coins"] = ConfigRecord(config_of_coins)  # type: ignore[arg-type]
    if computation.centre is not None:
        content["centre"] = model_record(computation.centre)
    if computation.masked is not None:
        content["masked"] = masked_record(computation.masked)
    if arrays := _arrays_of(computation):
        content["arrays"] = ArrayRecord({name: Array(values) for name, values in arrays.items()})
    if (partition := computation.partition) is not None:
        groups = partition.groups.astype(_GROUPS).tobytes()
        content["partition"] = ConfigRecord({"groups": groups, "slots": partition.slots, "count": partition.count})
    return content


def read_model(message: Message) -> NDArray[np.float64]:
    """The model of a train message."""
    return model_vector(cast(ArrayRecord, message.content["model"]))


def read_request(message: Message) -> tuple[NDArray[np.int64], Computation]:
    """Users and computation of a train message."""
    config = message.content["computation"]
    computation = Computation(
        name=str(config["name"]),
        reduce="sum" if config["reduce"] == "sum" else "rows",
        clip_norm=float(config["clip_norm"]) if "clip_norm" in config else None,  # type: ignore[arg-type]
        l1_norm=float(config["l1_norm"]) if "l1_norm" in config else None,  # type: ignore[arg-type]
        parameters={
            key.removeprefix(_PARAMETER): float(value)  # type: ignore[arg-type]
            for key, value in config.items()
            if key.startswith(_PARAMETER)
        },
        noise=_read_noise(config) if "noise.deviation" in config else None,
        separate=bool(config.get("separate", False)),
        lengths=bool(config.get("lengths", False)),
        statistic=str(config["statistic"]) if "statistic" in config else None,
        coins=_read_coins(message.content["coins"]) if "coins" in message.content else None,
        centre=model_vector(cast(ArrayRecord, message.content["centre"])) if "centre" in message.content else None,
        partition=_read_partition(message.content["partition"]) if "partition" in message.content else None,
        masked=read_masked(message.content["masked"]) if "masked" in message.content else None,
        **_read_arrays(message.content.get("arrays", {})),
    )
    users = np.frombuffer(cast(bytes, message.content["cohort"]["users"]), dtype=_USERS)
    return users.astype(np.int64), computation


def _arrays_of(computation: Computation) -> dict[str, NDArray[np.float64]]:
    """Its public arrays by name, with those of its coordinates."""
    seen = computation.coordinates
    more = {} if seen is None else {_START: seen.start, _MATRIX: seen.matrix}
    return {**computation.arrays, **more}


def _read_arrays(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a computation that `_arrays_of` wrote."""
    arrays = {name: np.asarray(array.numpy(), dtype=np.float64) for name, array in record.items()}
    if _START not in arrays:
        return {"arrays": arrays}
    seen = Coordinates(arrays.pop(_START), arrays.pop(_MATRIX))
    return {"arrays": arrays, "coordinates": seen}


def _read_partition(config: Mapping[str, Any]) -> Partition:
    groups = np.frombuffer(config["groups"], dtype=_GROUPS).reshape(-1, int(config["slots"]))
    return Partition(groups.astype(np.int32), int(config["count"]))


def _read_noise(config: Mapping[str, Any]) -> LocalNoise:
    seed = int(config["noise.seed"]) if "noise.seed" in config else None
    return LocalNoise(float(config["noise.deviation"]), seed, int(config["noise.round"]))


def _read_coins(config: Mapping[str, Any]) -> SampleCoins:
    keys = np.frombuffer(config["keys"], dtype=_KEYS).astype(np.uint64)
    return SampleCoins(float(config["rate"]), keys, int(config["most"]) if "most" in config else None)


def counts_wanted(message: Message) -> bool:
    """Whether the reply to a message tells exact counts.

    Not where users are protected against the server: a query says so, and in training the node adds noise itself.
    """
    if message.metadata.message_type == MessageType.QUERY:
        return message.content["question"]["counts"] is True
    return "noise.deviation" not in message.content["computation"] and "masked" not in message.content


def keys_wanted(message: Message) -> bool:
    """Whether the reply to a query tells the node's public key."""
    return message.content["question"].get("keys") is True


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


def answer_message(
    node: Node, message: Message, *, share: bool = False, model: NDArray[np.float64] | None = None
) -> Message:
    """The node's reply to any message of the protocol.

    Args:
        node: who answers.
        message: the question.
        share: keep the arrays themselves in the reply (same machine only). Lengths are told there alone: a node on
            another machine, or with people who have names, tells no more about single users than the clipped sum, or
            the rows, that it is asked for.
        model: the message's model, where the caller has read it already.

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
    users, computation = read_request(message)
    if not share or node.labels is not None:
        computation = replace(computation, lengths=False)
    answer = node.compute(read_model(message) if model is None else model, users, computation)
    return Message(answer_content(answer, counts=counts, share=share), reply_to=message)
