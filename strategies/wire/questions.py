"""The questions of the protocol, as a strategy writes and a node reads them.

All messages of a round share the records that are equal for every node; a grid that passes them on unchanged lets a
`Reader` read those once.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from strategies.wire.untrusted import read_array, type_name
from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid
from userdp.masking.masks import KEY_BYTES
from userdp.masking.sums import MaskedSum
from userdp.nodes.computations import Computation, LocalNoise
from userdp.nodes.partition import Partition
from userdp.problems.in_coordinates import Coordinates
from userdp.sampling.coins import SampleCoins

FIRST, SHARING, PROTOCOL = 1, 2, 2
"""The version of nodes and servers that name none, the first one that shares secrets of masks, and the one spoken here.

Raise it with each change of a message. Strategies that send what older nodes do not know name the version that they
need in `strategies.core.about.About.protocol`. Version 2 differs from 1 in that replies name their version, and in that
nodes refuse records and fields that they do not know.
"""
_PARAMETER, _NOISE_OF = "parameter.", "noise."
_START, _MATRIX = "coordinates.start", "coordinates.matrix"
# Plain fields of a computation, of its noise, its coins and its masked sum, with their types.
_COMPUTATION = {
    "clip_norm": float,
    "l1_norm": float,
    "separate": bool,
    "lengths": bool,
    "statistic": str,
    "counted": bool,
}
_NOISE = {"deviation": float, "round": int, "seed": int}
_COINS = {"rate": float, "most": int}
_MASKED = {"deviation": float, "round": int, "seed": int, "weight": float}
_RECORDS = {"model", "computation", "centre", "masked", "arrays", "cohort", "coins", "partition"}
# Users, keys and groups travel raw, for parsing an array's header takes longer than a small computation.
_USERS, _KEYS, _GROUPS = np.dtype("<i8"), np.dtype("<u8"), np.dtype("<i4")


def model_record(x: NDArray[np.float64]) -> ArrayRecord:
    """Return a parameter vector as Flower's arrays."""
    values = np.ascontiguousarray(x, dtype=np.float64)
    data = _model_header(values.shape) + values.tobytes()
    record = ArrayRecord()  # entry by entry: made from a dictionary, it would make each array again
    record["x"] = Array(type_name(values.dtype), values.shape, "numpy.ndarray", data)
    return record


@lru_cache(maxsize=8)
def _model_header(shape: tuple[int, ...]) -> bytes:
    """Return what `numpy.save` writes before a model's numbers: equal in every round, and slow to make."""
    empty = BytesIO()
    npy.write_array_header_1_0(empty, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return empty.getvalue()


def model_vector(arrays: ArrayRecord) -> NDArray[np.float64]:
    """Return the parameter vector in Flower's arrays that `model_record` made, in the caller's `untrusted` if need be.

    Raises `BadInput` for other arrays. Other errors mean that their header cannot be parsed.
    """
    if list(arrays) != ["x"]:
        raise BadInput(f"a model must be one array named 'x', got {sorted(arrays)}: make it with model_record(vector)")
    return np.array(read_array(arrays["x"], "the model", "fiu", None), dtype=np.float64)


def common_records(model: ArrayRecord, computation: Computation) -> dict[str, ArrayRecord | ConfigRecord]:
    """Return the records for all nodes of a round: the model, and the computation without the parts of single users."""
    config: dict[str, Any] = {"name": computation.name, "reduce": computation.reduce}
    config |= _written(computation, _COMPUTATION)
    if computation.noise is not None:
        config |= {_NOISE_OF + name: value for name, value in _written(computation.noise, _NOISE).items()}
    config |= {_PARAMETER + name: float(value) for name, value in computation.parameters.items()}
    records: dict[str, ArrayRecord | ConfigRecord] = {"model": model, "computation": ConfigRecord(config)}
    if computation.centre is not None:
        records["centre"] = model_record(computation.centre)
    if (masked := computation.masked) is not None:
        grid_and_keys: dict[str, Any] = {"exponent": masked.grid.exponent, "keys": b"".join(masked.keys)}
        records["masked"] = ConfigRecord(grid_and_keys | _written(masked, _MASKED))
    arrays = dict(computation.arrays)
    if (seen := computation.coordinates) is not None:
        arrays |= {_START: seen.start, _MATRIX: seen.matrix}
    if arrays:
        records["arrays"] = ArrayRecord({name: Array(values) for name, values in arrays.items()})
    return records


def train_content(
    common: Mapping[str, ArrayRecord | ConfigRecord], users: NDArray[np.int64], computation: Computation
) -> RecordDict:
    """Return the message to one node: ``common`` records, its ``users`` in the cohort, and their computation."""
    content = RecordDict(dict(common))
    content["cohort"] = ConfigRecord({"users": users.astype(_USERS).tobytes()})
    if (coins := computation.coins) is not None:
        # A node gets the keys of its own users: it must not be able to tell whose other samples are drawn.
        keys = coins.keys[users].astype(_KEYS).tobytes()
        content["coins"] = ConfigRecord(_written(coins, _COINS) | {"keys": keys})
    if (partition := computation.partition) is not None:
        groups = partition.groups.astype(_GROUPS).tobytes()
        content["partition"] = ConfigRecord({"groups": groups, "slots": partition.slots, "count": partition.count})
    return content


class Reader:
    """Reads train messages; records that messages of a round share are read once."""

    def __init__(self) -> None:
        self._models: dict[int, NDArray[np.float64]] = {}
        self._computations: dict[int, Computation] = {}

    def model(self, message: Message) -> NDArray[np.float64]:
        """Return the (p,) model."""
        record = cast(ArrayRecord, message.content["model"])
        if id(record) not in self._models:
            self._models[id(record)] = model_vector(record)
        return self._models[id(record)]

    def request(self, message: Message) -> tuple[NDArray[np.int64], Computation]:
        """Return (U,) users, and their computation; `BadInput` if the message asks for more than this version knows."""
        content = message.content
        _refuse_unknown(set(content) - _RECORDS)
        record = content["computation"]
        if id(record) not in self._computations:
            self._computations[id(record)] = _read_common(content)
        computation = self._computations[id(record)]
        if "coins" in content:
            config = cast(Mapping[str, Any], content["coins"])
            keys = np.frombuffer(config["keys"], dtype=_KEYS).astype(np.uint64)
            computation = replace(computation, coins=SampleCoins(keys=keys, **_read(config, _COINS)))
        if "partition" in content:
            config = cast(Mapping[str, Any], content["partition"])
            groups = np.frombuffer(config["groups"], dtype=_GROUPS).reshape(-1, int(config["slots"]))
            computation = replace(computation, partition=Partition(groups.astype(np.int32), int(config["count"])))
        users = np.frombuffer(cast(bytes, content["cohort"]["users"]), dtype=_USERS)
        return users.astype(np.int64, copy=False), computation


def question_as_read(computation: Computation, x: NDArray[np.float64]) -> bytes:
    """Return the digest of a masked computation at (p,) ``x`` that nodes make of its message."""
    return _read_common(common_records(ArrayRecord(), computation)).question(x)


def _read_common(content: Mapping[str, Any]) -> Computation:
    config, fields = content["computation"], dict[str, Any]()
    known = {"name", "reduce", *_COMPUTATION, *(_NOISE_OF + name for name in _NOISE)}
    _refuse_unknown({name for name in config if name not in known and not name.startswith(_PARAMETER)})
    own = {name.removeprefix(_NOISE_OF): value for name, value in config.items() if name.startswith(_NOISE_OF)}
    if "deviation" in own:
        fields["noise"] = LocalNoise(**{"seed": None} | _read(own, _NOISE))
    if "centre" in content:
        fields["centre"] = model_vector(content["centre"])
    if "masked" in content:
        grid, keys = IntegerGrid(int(content["masked"]["exponent"])), read_keys(content["masked"]["keys"])
        fields["masked"] = MaskedSum(grid, keys=keys, **_read(content["masked"], _MASKED))
    arrays = {name: np.asarray(array.numpy(), dtype=np.float64) for name, array in content.get("arrays", {}).items()}
    if _START in arrays:
        fields["coordinates"] = Coordinates(arrays.pop(_START), arrays.pop(_MATRIX))
    return Computation(
        name=str(config["name"]),
        reduce="sum" if config["reduce"] == "sum" else "rows",
        parameters={
            key.removeprefix(_PARAMETER): float(value) for key, value in config.items() if key.startswith(_PARAMETER)
        },
        arrays=arrays,
        **fields,
        **_read(config, _COMPUTATION),
    )


def read_keys(joined: bytes) -> tuple[bytes, ...]:
    """Return the public keys that a message joins; `BadInput` if one of them is cut."""
    if len(joined) % KEY_BYTES:
        raise BadInput(f"keys must have {KEY_BYTES} bytes each")
    return tuple(joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES))


def _refuse_unknown(names: set[str]) -> None:
    """Refuse what a newer server asks for: a node that left it out would compute something else than was accounted."""
    if names:
        raise BadInput(
            f"the server asks for {', '.join(sorted(names))}, which version {PROTOCOL} of the protocol does not know: "
            "upgrade userdp at this node"
        )


def _written(source: Computation | LocalNoise | SampleCoins | MaskedSum, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the fields that are set; a clip at zero is."""
    values = {name: getattr(source, name) for name in kinds}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _read(config: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    return {name: kind(config[name]) for name, kind in kinds.items() if name in config}


def counts_wanted(message: Message) -> bool:
    """Return whether the reply to a message has exact counts.

    It has none where users are protected against the server: a query says so; in training nodes add noise.
    """
    if message.metadata.message_type == MessageType.QUERY:
        return message.content["question"]["counts"] is True
    return "noise.deviation" not in message.content["computation"] and "masked" not in message.content


def keys_wanted(message: Message) -> bool:
    """Return whether the reply to a query has the node's public key."""
    return message.content["question"].get("keys") is True


def version_wanted(message: Message) -> bool:
    """Return whether the reply to a query names the node's version."""
    return "protocol" in message.content["question"]
