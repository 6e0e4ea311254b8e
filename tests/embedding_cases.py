"""Users who send what is listed: a parameter, and three rows of two. Other tests import it, so no test lives here."""

from dataclasses import replace

import numpy as np
from helpers import federation_of

from userdp.arrays.sparse_rows import dense
from userdp.nodes.node import Node
from userdp.problems import Quadratic
from userdp.problems.embeddings import Tables

TABLES = Tables(((1, 3, 2),))
LONE = [np.eye(7)[1 + 2 * row] for row in range(3)]
SENT = np.array(
    [
        np.zeros(7),
        *LONE,
        -LONE[0],
        np.eye(7)[0],
        LONE[0] + LONE[1],
        LONE[0] - 3 * LONE[1],
        np.ones(7),
        -np.ones(7),
        1e-3 * np.eye(7)[1] + 5 * np.eye(7)[0],
        np.full(7, 1e300),
        5e-324 * np.eye(7)[3],
        np.where(np.arange(7) == 2, np.nan, 1.0),
        np.where(np.arange(7) == 5, np.inf, 0.0),
    ]
)


class Listed(Quadratic):
    """A user's one sample says which of `SENT` its gradient is."""

    def __init__(self):
        super().__init__(7, 100.0, 200.0)
        self.columns, self.tables = 1, TABLES

    def user_gradients(self, x, block):
        return SENT[block.features[:, 0].astype(np.int64)]


def federation(codes):
    return federation_of(np.array(codes, dtype=float)[:, None])


def rows(computation):
    """Everybody's row, as a node makes it."""
    asked = replace(computation, reduce="rows", lengths=False)
    node = Node(Listed(), federation(range(len(SENT))), np.arange(len(SENT)))
    return dense(node.compute(np.zeros(7), np.arange(len(SENT)), asked).values)
