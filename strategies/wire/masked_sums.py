"""Masked sums on the wire: whose masks are in a sum, what a node is told of it, and what it sends.

A query asks each node for its public key. A round's message holds the keys of all nodes of the round, in the same
order. A node that has lost its key, as after a restart, does not find it there and cannot answer.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from strategies.wire.untrusted import read_array
from userdp.errors import BadInput
from userdp.masking.grid import IntegerGrid, Residues
from userdp.masking.masks import KEY_BYTES
from userdp.masking.sums import MaskedSum


def masked_record(masked: MaskedSum) -> ConfigRecord:
    """What a node is told of a sum."""
    config: dict[str, Any] = {
        "exponent": masked.grid.exponent,
        "deviation": masked.deviation,
        "round": masked.round,
        "keys": b"".join(masked.keys),
    }
    for name in ("seed", "weight"):
        if (value := getattr(masked, name)) is not None:
            config[name] = value
    return ConfigRecord(config)


def read_masked(config: Mapping[str, Any]) -> MaskedSum:
    """The sum that `masked_record` wrote of."""
    joined = config["keys"]
    keys = tuple(joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES))
    seed = int(config["seed"]) if "seed" in config else None
    weight = float(config["weight"]) if "weight" in config else None
    grid = IntegerGrid(int(config["exponent"]))
    return MaskedSum(grid, float(config["deviation"]), seed, int(config["round"]), keys, weight)


def read_key(array: object) -> bytes:
    """A node's public key, in a reply. To be called inside `strategies.wire.untrusted.untrusted`.

    Raises:
        BadInput: it is none.
    """
    key = read_array(array, "key", "u", (KEY_BYTES,))
    if key.dtype != np.uint8:
        raise BadInput("a key must be bytes")
    return key.tobytes()


def read_masked_sum(array: object, length: int) -> Residues:
    """(length,) the residues in a reply. To be called inside `strategies.wire.untrusted.untrusted`.

    Raises:
        BadInput: there are none.
    """
    residues = read_array(array, "a masked sum", "u", (length,))
    if residues.dtype != np.uint64:
        raise BadInput("a masked sum must be whole numbers of 64 bits")
    return residues
