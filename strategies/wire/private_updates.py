"""A mod for ordinary Flower clients: a clipped update leaves the node, masked if the server asks for that."""

import logging
import math
from typing import cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from strategies.wire.kept_key import kept_key
from strategies.wire.model_layout import ModelLayout
from strategies.wire.protocol import answer_content, failed, roster_content
from strategies.wire.questions import Reader, version_wanted
from strategies.wire.shares import about_shares, shares_content
from userdp.arrays.sparse_rows import clip_rows, dense
from userdp.errors import BadInput
from userdp.masking.masks import MaskKey
from userdp.nodes.node import Answer
from userdp.nodes.pipeline import RowPipeline
from userdp.tracebacks import told

log = logging.getLogger("userdp")


def private_updates(clip_norm: float | None = None) -> Mod:
    """Return a mod for ``@app.train(mods=[private_updates()])``; the client's own code stays as it is.

    A server with a drop-in strategy of ``trust="sum"`` gets a masked part of a sum, from which it learns nothing but
    the noisy sum of all nodes. Any other server gets a model whose update is clipped to ``clip_norm``, and
    "num-examples" of 1. No metric of the client leaves, for no noise covers it.

    *Formal guarantees.* *Claim.* That of `MaskedSum` for a user who is this node, against the server and other nodes.
    *Why.* The reply is the update of the trained arrays, a function of the model sent and of this node's data, through
    `RowPipeline`: zero if it is not finite, clipped to the requested norm, on the grid, with a share of the noise and
    pairwise masks. Nothing else is in the reply; a failure names no text of the client's. *Assumptions.* Those of
    `MaskedSum`. With ``clip_norm`` and another server, nothing but the length of the update is promised.

    Args:
        clip_norm: > 0, the largest l2 norm of an update in a reply to a server that asks for the model; such a server
            is refused if it is not given.

    Raises `BadInput` for a clip that is not positive and finite.
    """
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise BadInput(f"clip_norm = {clip_norm}: must be a positive number, such as 1.0")

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            with kept_key(context) as key:
                if "question" in message.content:
                    nobody = np.empty(0, dtype=np.int64)  # the server numbers the nodes
                    reply = roster_content(nobody, None, None, key.public, versioned=version_wanted(message))
                    return Message(reply, reply_to=message)
                if about_shares(message):
                    return Message(shares_content(key, message), reply_to=message)
                if "masked" in message.content:
                    return _masked(message, context, call_next, key)
                return _clipped(message, context, call_next, clip_norm)
        except Exception as error:
            log.error("this node cannot answer: %s", told(error))  # noqa: TRY400 -- a traceback may quote data
            return failed(message, type(error).__name__)

    return mod


def _masked(message: Message, context: Context, call_next: ClientAppCallable, key: MaskKey) -> Message:
    """Return the part of a masked sum."""
    content = message.content
    plain = RecordDict({name: content[name] for name in ("arrays", "config")})
    message.content = RecordDict({name: record for name, record in content.items() if name not in (*plain, "layout")})
    users, computation = Reader().request(message)
    frozen = str(cast(ConfigRecord, content["layout"])["frozen"])
    layout = ModelLayout(content.array_records["arrays"], frozen.split("\n") if frozen else (), ties=False)
    if computation.masked is None or computation.clip_norm is None or len(users) != 1:
        raise BadInput("a node is one user, and its update is clipped: the server asks for something else")
    sent = layout.vector(content.array_records["arrays"])  # before the client, which may train in place
    message.content = plain
    reply = call_next(message, context)
    pipeline = RowPipeline(computation, users, layout.dimension)
    pipeline.add(layout.update(reply, sent, computation.name), slice(0, 1))
    answer = Answer(users, pipeline.values, 0, masked=pipeline.masked(key, sent))
    return Message(answer_content(answer, counts=False, share=False), reply_to=message)


def _clipped(message: Message, context: Context, call_next: ClientAppCallable, clip_norm: float | None) -> Message:
    """Return the model with a clipped update."""
    if clip_norm is None:
        raise BadInput(
            "the server asks for the trained model itself: give its drop-in strategy trust = 'sum', or this node's mod "
            "a clip_norm"
        )
    arrays = message.content.array_records["arrays"]
    layout = ModelLayout(arrays, ties=False)
    sent = layout.vector(arrays)
    update = layout.update(call_next(message, context), sent, "local_update")
    finite = update if np.isfinite(update).all() else np.zeros_like(update)
    model = layout.moved(sent, dense(clip_rows(finite, clip_norm))[0])
    return Message(RecordDict({"arrays": model, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
