"""The Flower ClientApp of a node.

A Flower user writes the loading function and is done:

>>> import numpy as np
>>> from strategies import client_app
>>> from userdp.data import ColumnarFederation
>>> def load(context):            # called once a process and partition
...     ...                       # return a userdp.nodes.node.Node with this partition's users
>>> app = client_app(load)
"""

import logging
from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from strategies.wire.kept_key import kept_key
from strategies.wire.protocol import answer_message, failed
from userdp.nodes.node import Node

log = logging.getLogger("userdp")


def client_app(load: Callable[[Context], Node]) -> ClientApp:
    """Return a ClientApp that answers userdp strategies from the node that ``load`` returns.

    If that fails, the server learns the kind of the error at most; the text, which may quote data, goes to the log of
    the node's own machine.

    Args:
        load: from Flower's context (``context.node_config["partition-id"]`` and so on) to a `Node`. Flower may run it
            for every message: cache expensive objects in a variable of its own module.
    """
    app = ClientApp()

    def respond(message: Message, context: Context) -> Message:
        try:
            node = load(context)
            with kept_key(context) as node.key:
                return answer_message(node, message)
        except Exception as error:
            log.exception("this node cannot answer")
            return failed(message, type(error).__name__)

    app.train()(respond)
    app.evaluate()(respond)
    app.query()(respond)
    return app
