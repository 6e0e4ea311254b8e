"""The Flower ClientApp of a node.

A Flower user writes the loading function and is done:

>>> import numpy as np
>>> from strategies import client_app
>>> from userdp.data import ColumnarFederation
>>> def load(context):            # called once per process and partition
...     ...                       # return a userdp.nodes.node.Node with this partition's users
>>> app = client_app(load)
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from strategies.wire.claims import kept_claim
from strategies.wire.kept_key import kept_key
from strategies.wire.protocol import answer_message, failed
from userdp.errors import BadInput
from userdp.nodes.node import Node
from userdp.problems.base import Problem
from userdp.tracebacks import told

if TYPE_CHECKING:
    from strategies.wire.frames import TableNodes

log = logging.getLogger("userdp")


def client_app(
    load: Callable[[Context], object],
    *,
    problem: Problem | None = None,
    number: str | None = None,
    max_samples: int | None = None,
    **declared: Any,
) -> ClientApp:
    """Return a ClientApp that answers userdp strategies from the node that ``load`` returns.

    If that fails, the server learns the kind of the error at most. The log of the node's own machine has its place, too
    (`userdp.tracebacks.told`): the text may quote data.

    Args:
        load: from Flower's context (``context.node_config["partition-id"]`` and so on) to a `Node`, or to a DataFrame
            (pandas, polars), an Arrow table or a `datasets.Dataset`, whose rows are samples. Flower may run it for
            every message: cache expensive objects in a variable of its own module. A table that is the same object
            makes one node.
        problem: the loss, for a table.
        number: its column with the number, out of 0..n-1, of each row's user. All nodes agree on who has which number,
            which is public; the server refuses two nodes with one number, and one user with two.
        max_samples: most samples of a user, for a table.
        declared: for a table, column arguments of `userdp.data.read_table`: ``user``, ``features``, ``ranges``, ...

    Raises `BadInput`: of ``problem``, ``number`` and ``user`` some are given, and not all.
    """
    tables = None
    if problem is not None or number is not None or declared:
        # It imports pandas, and a deployed node starts a process for every message.
        from strategies.wire.frames import TableNodes  # noqa: PLC0415

        tables = TableNodes(problem, number, max_samples, declared)
    app = ClientApp()

    def respond(message: Message, context: Context) -> Message:
        try:
            node = _node(load(context), tables)
            with kept_key(context) as node.key, kept_claim(context, node.door, message.metadata.run_id):
                return answer_message(node, message)
        except Exception as error:
            log.error("this node cannot answer: %s", told(error))  # noqa: TRY400 -- a traceback may quote data
            return failed(message, type(error).__name__)

    app.train()(respond)
    app.evaluate()(respond)
    app.query()(respond)
    return app


def _node(loaded: object, tables: "TableNodes | None") -> Node:
    if isinstance(loaded, Node):
        return loaded
    if tables is None:
        raise BadInput(f"load returned a {type(loaded).__name__}: give client_app problem, number, user and features")
    return tables.node(loaded)
