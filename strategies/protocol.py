"""The records of the messages between a userdp strategy (server) and a node (client).

Beside a clip, ``center`` travels if rows are clipped about one, ``coins`` if samples are drawn, and ``partition`` where
samples are summed by groups: which group each sample OF THIS NODE'S users is in, and no other.

| message | server -> node | node -> server |
|---|---|---|
| query | ``question``: a salt | ``roster``: users, ``identities`` if it has labels; ``facts``: samples clipped |
| train | ``model``, ``cohort`` (users), ``computation`` | ``answer``: users and values; ``facts``: rows not finite |

Sparse values are the three arrays of a `scipy.sparse.csr_array`, and ``columns`` is among the facts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray
from scipy.sparse import csr_array

from userdp.computations import Computation, LocalNoise
from userdp.errors import BadInput
from userdp.identities import DIGEST_BYTES
from userdp.node import Answer, Node
from userdp.partition import Partition
from userdp.sampling.coins import SampleCoins
from userdp.sparse_rows import Sparse, require_canonical, sparse_rows

_PARAMETER = "parameter."
_USERS = np.dtype("<i8")
_KEYS = np.dtype("<u8")
"""User indices on the wire: raw, for parsing an array's header takes longer than a small cohort's computation."""
_GROUPS = np.dtype("<i4")
_SPARSE = ("data", "indices", "indptr")
"""Names of a sparse answer's arrays."""
MALFORMED = (KeyError, ValueError, TypeError, AttributeError, EOFError, OverflowError)
"""What reading records can raise when they hold something else than the protocol's."""


class SharedArray(Array):
    """A Flower array that keeps the numpy array it was made of: no copy inside one machine.

    Only for grids that never serialise (local, Ray); Flower's own grid gets plain arrays.
    """

    def __init__(self, array: NDArray[np.generic]) -> None:
        self.__dict__.update(array=array, dtype=str(array.dtype), shape=array.shape, stype="numpy.ndarray")

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """Serialised on demand."""
        return Array(self.__dict__["array"]).data

    def numpy(self) -> NDArray[np.generic]:
        """The array itself."""
        return cast(NDArray[np.generic], self.__dict__["array"])


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
    if computation.clip_norm is not None:
        config["clip_norm"] = computation.clip_norm
    if computation.l1_norm is not None:
        config["l1_norm"] = computation.l1_norm
    if computation.separate:
        config["separate"] = True
    if computation.statistic is not None:
        config["statistic"] = computation.statistic
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
    if computation.center is not None:
        content["center"] = model_record(computation.center)
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
        statistic=str(config["statistic"]) if "statistic" in config else None,
        coins=_read_coins(message.content["coins"]) if "coins" in message.content else None,
        center=model_vector(cast(ArrayRecord, message.content["center"])) if "center" in message.content else None,
        partition=_read_partition(message.content["partition"]) if "partition" in message.content else None,
    )
    users = np.frombuffer(cast(bytes, message.content["cohort"]["users"]), dtype=_USERS)
    return users.astype(np.int64), computation


def _read_partition(config: Mapping[str, Any]) -> Partition:
    groups = np.frombuffer(config["groups"], dtype=_GROUPS).reshape(-1, int(config["slots"]))
    return Partition(groups.astype(np.int32), int(config["count"]))


def _read_noise(config: Mapping[str, Any]) -> LocalNoise:
    seed = int(config["noise.seed"]) if "noise.seed" in config else None
    return LocalNoise(float(config["noise.deviation"]), seed, int(config["noise.round"]))


def _read_coins(config: Mapping[str, Any]) -> SampleCoins:
    keys = np.frombuffer(config["keys"], dtype=_KEYS).astype(np.uint64)
    return SampleCoins(float(config["rate"]), keys, int(config["most"]) if "most" in config else None)


def answer_content(answer: Answer, *, share: bool) -> RecordDict:
    """A node's answer as records; ``share`` keeps the arrays themselves (same machine only)."""
    wrap = SharedArray if share else Array
    # Entry by entry: a record made from a dictionary would serialise and copy each array.
    arrays = ArrayRecord()
    arrays["users"] = wrap(answer.users)
    facts = MetricRecord({"non_finite": answer.non_finite})
    if isinstance(answer.values, csr_array):
        facts["columns"] = answer.values.shape[1]
        for part in _SPARSE:
            arrays[part] = wrap(getattr(answer.values, part))
    else:
        arrays["values"] = wrap(answer.values)
    return RecordDict({"answer": arrays, "facts": facts})


def read_answer(message: Message) -> Answer:
    """The answer in a reply.

    Raises:
        BadInput: the reply does not hold one.
    """
    try:
        arrays = cast(ArrayRecord, message.content["answer"])
        facts: Mapping[str, Any] = cast(MetricRecord, message.content["facts"])
        users, non_finite = arrays["users"].numpy(), int(facts["non_finite"])
        columns = int(facts["columns"]) if "columns" in facts else None
        parts = [arrays[part].numpy() for part in (("values",) if columns is None else _SPARSE)]
    except MALFORMED as error:
        raise BadInput(f"a reply does not follow the protocol ({type(error).__name__})") from error
    if users.dtype.kind not in "iu" or parts[0].dtype.kind not in "fiu":
        raise BadInput(f"a reply does not follow the protocol (users are {users.dtype}, values are {parts[0].dtype})")
    values = np.asarray(parts[0], dtype=np.float64)
    users = np.asarray(users, dtype=np.int64)
    if columns is None:
        return Answer(users, values, non_finite)
    return Answer(users, _sparse_values(values, parts[1], parts[2], columns), non_finite)


def _sparse_values(
    data: NDArray[np.float64], indices: NDArray[np.generic], indptr: NDArray[np.generic], columns: int
) -> Sparse:
    """Sparse values, of which everything has been checked but that they are finite, as of dense ones.

    Raises:
        BadInput: the arrays are no sparse rows of that many columns.
    """
    kinds, flat = (indices.dtype.kind, indptr.dtype.kind), {data.ndim, indices.ndim, indptr.ndim}
    if kinds != ("i", "i") or flat != {1} or not 0 < columns < 2**31:
        raise BadInput(
            f"a reply does not follow the protocol (places of sparse values are {indices.dtype} and {indptr.dtype}, "
            f"in {columns} columns)"
        )
    # Before scipy sees them: its routines trust the arrays.
    require_canonical(data, indices, indptr, columns, "sparse values of a reply")
    return sparse_rows(data, indices, indptr, columns)


@dataclass(frozen=True)
class Holding:
    """Whom a node holds.

    Attributes:
        users: (U,) indices.
        clipped_samples: how many of their samples were clipped into the declared bounds.
        identities: (U, 16) salted digests of what they are called; None where a node does not know.
    """

    users: NDArray[np.int64]
    clipped_samples: int
    identities: NDArray[np.uint8] | None = None


def roster_question(salt: bytes) -> RecordDict:
    """The question whom a node holds."""
    return RecordDict({"question": ConfigRecord({"salt": salt})})


def roster_content(
    users: NDArray[np.int64], clipped_samples: int, identities: NDArray[np.uint8] | None = None
) -> RecordDict:
    """Which users a node holds, and how many of their samples were clipped into the declared bounds."""
    arrays = {"users": Array(users)} | ({} if identities is None else {"identities": Array(identities)})
    return RecordDict({"roster": ArrayRecord(arrays), "facts": MetricRecord({"clipped_samples": clipped_samples})})


def read_roster(message: Message) -> Holding:
    """What the reply to a query says.

    Raises:
        BadInput: the reply does not follow the protocol.
    """
    try:
        arrays = cast(ArrayRecord, message.content["roster"])
        users = arrays["users"].numpy()
        digests = arrays["identities"].numpy() if "identities" in arrays else None
        clipped = int(cast(MetricRecord, message.content["facts"])["clipped_samples"])  # type: ignore[arg-type]
    except MALFORMED as error:
        raise BadInput(f"a reply does not follow the protocol ({type(error).__name__})") from error
    if users.dtype.kind not in "iu" or users.ndim != 1:
        raise BadInput(f"a reply does not follow the protocol (users are {users.dtype} of shape {users.shape})")
    if digests is not None and (digests.dtype != np.uint8 or digests.shape != (len(users), DIGEST_BYTES)):
        raise BadInput(f"a reply does not follow the protocol (identities are {digests.dtype} of {digests.shape})")
    return Holding(np.asarray(users, dtype=np.int64), clipped, cast("NDArray[np.uint8] | None", digests))


def _read_salt(message: Message) -> bytes:
    try:
        return cast(bytes, message.content["question"]["salt"])
    except MALFORMED as error:
        raise BadInput(f"a query does not follow the protocol ({type(error).__name__})") from error


def answer_message(
    node: Node, message: Message, *, share: bool = False, model: NDArray[np.float64] | None = None
) -> Message:
    """The node's reply to any message of the protocol.

    Args:
        node: who answers.
        message: the question.
        share: keep the arrays themselves in the reply (same machine only).
        model: the message's model, where the caller has read it already.

    Raises:
        BadInput: the message asks for something the node cannot give.
    """
    if message.metadata.message_type == MessageType.QUERY:
        users = node.users
        digests = None if node.labels is None else node.identities(_read_salt(message))
        return Message(roster_content(users, node.clipped_samples, digests), reply_to=message)
    users, computation = read_request(message)
    answer = node.compute(read_model(message) if model is None else model, users, computation)
    return Message(answer_content(answer, share=share), reply_to=message)
