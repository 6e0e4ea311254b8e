"""The questions about nodes' shares of secrets, where masked sums survive silent nodes, and their answers.

They are train messages, for these alone reach the mods of ordinary clients. The first comes before the first round.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from strategies.wire.questions import read_keys
from strategies.wire.untrusted import read_exactly, read_record, untrusted
from userdp.masking.masks import KEY_BYTES, MaskKey
from userdp.masking.shares import SEALED_BYTES, SEED_BYTES, Bytes, Sharing, Survivors, revealed, share


def sharing_question(asked: Sharing) -> RecordDict:
    """Return the message that asks a node to share its secrets."""
    numbers = {"threshold": asked.threshold, "lost": asked.lost, "rounds": asked.rounds}
    return RecordDict({"sharing": ConfigRecord({"keys": b"".join(asked.keys), **numbers})})


def survivors_question(asked: Survivors) -> RecordDict:
    """Return the message that asks a node for its shares of a round's secrets."""
    parts = {"keys": b"".join(asked.keys), "silent": asked.silent.tobytes(), "sealed": asked.sealed.tobytes()}
    return RecordDict({"survivors": ConfigRecord({"round": asked.round, **parts})})


def about_shares(message: Message) -> bool:
    """Return whether a message is one of these questions."""
    return "sharing" in message.content or "survivors" in message.content


def shares_content(key: MaskKey, message: Message) -> RecordDict:
    """Return the answer of the node with this key to one of these questions; `BadInput` if it may not answer it."""
    with untrusted("a question about shares of secrets cannot be answered"):
        if "sharing" in message.content:
            config = cast(Mapping[str, Any], message.content["sharing"])
            numbers = (int(config[name]) for name in ("threshold", "lost", "rounds"))
            public, sealed = share(key, Sharing(read_keys(config["keys"]), *numbers))
            return RecordDict({"shares": ArrayRecord({"public": Array(public), "sealed": Array(sealed)})})
        config = cast(Mapping[str, Any], message.content["survivors"])
        silent = np.frombuffer(config["silent"], dtype=np.uint8) != 0
        sealed = np.frombuffer(config["sealed"], dtype=np.uint8).reshape(-1, SEALED_BYTES)
        shares = revealed(key, Survivors(int(config["round"]), read_keys(config["keys"]), silent, sealed))
        return RecordDict({"revealed": ArrayRecord({"shares": Array(shares)})})


def read_shared(content: RecordDict, asked: Sharing) -> tuple[Bytes, Bytes]:
    """Return a node's answer to `sharing_question`, as `share` does; raises `BadInput` if it is none."""
    with untrusted("its answer does not follow the protocol"):
        arrays = read_record(content, "shares", ArrayRecord, {"public", "sealed"})
        public = read_exactly(arrays["public"], "public", np.uint8, (asked.rounds, KEY_BYTES))
        size = (asked.rounds, len(asked.keys), SEALED_BYTES)
        return public, read_exactly(arrays["sealed"], "sealed", np.uint8, size)


def read_revealed(content: RecordDict, nodes: int) -> Bytes:
    """Return a node's (k, 16) answer to `survivors_question`; raises `BadInput` if it is none."""
    with untrusted("its answer does not follow the protocol"):
        arrays = read_record(content, "revealed", ArrayRecord, {"shares"})
        return read_exactly(arrays["shares"], "shares", np.uint8, (nodes, SEED_BYTES))
