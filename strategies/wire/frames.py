"""A node from a table in memory: a DataFrame, another Arrow table, or a `datasets.Dataset`, with a column of users."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from userdp.data.tables.cells import numbers_of
from userdp.data.tables.columns import Columns
from userdp.data.tables.frames import Frame, table_file
from userdp.data.tables.ids import ids_of
from userdp.data.tables.reading import first_row, read_cells, require_columns
from userdp.data.tables.tabular import owners_of, table_of
from userdp.errors import BadInput
from userdp.nodes.node import Node
from userdp.problems.base import Problem


class TableNodes:
    """Makes nodes of tables in which a column holds the number of each row's user among all n.

    *Formal guarantees.* *Claim.* Replacing one user's rows, their number apart, changes this user's samples alone.
    *Why.* Rows are read and bounded as by `userdp.data.read_table`, and numbers only say which user is which. Two nodes
    with one number, and, by salted digests of labels, one user with two, end the run. *Assumptions.* Those of
    `read_table`, and who has which number is public.

    Args (`BadInput` if ``problem``, ``number`` or the column ``user`` is missing, and what `read_table` refuses):
        problem: the loss.
        number: the column of numbers.
        max_samples: most samples of a user.
        declared: column arguments of `read_table`, ``user`` among them.
    """

    def __init__(
        self, problem: Problem | None, number: str | None, max_samples: int | None, declared: Mapping[str, Any]
    ) -> None:
        if problem is None or number is None or "user" not in declared:
            raise BadInput("client_app: for nodes from tables give problem, number, user and features; or none of them")
        if "split_column" in declared:
            raise BadInput("split_column: all users of a node train, so leave held-out users out of its table")
        self._problem, self._number, self._max_samples, self._columns = (
            problem,
            number,
            max_samples,
            Columns(**declared),
        )
        self._made: tuple[object, Node] | None = None

    def node(self, data: object) -> Node:
        """Return the node of a DataFrame, an Arrow table or a `datasets.Dataset`; the same one for the same object.

        Raises `BadInput`: what `read_table` refuses; another kind of object; a number that is missing, negative or not
        whole, two numbers of one user, or one number of two.
        """
        if self._made is None or self._made[0] is not data:
            self._made = data, self._node(data)
        return self._made[1]

    def _node(self, data: object) -> Node:
        user = self._columns.user
        names = list(dict.fromkeys([*self._columns.names, self._number]))
        if isinstance(data, str | Path):
            raise BadInput("load returned a path: return the table, so that a file that changes is read again")
        if hasattr(data, "column_names") and hasattr(data, "select_columns"):  # a data set of Hugging Face
            require_columns("the data set", names, data.column_names)
            data = data.select_columns(names).with_format("arrow")[:].replace_schema_metadata(None)
        with table_file(cast(Frame, data), names) as path:
            table = table_of(path, self._columns, max_samples=self._max_samples)
            numbers = _numbers(read_cells(path, list({user, self._number})), user, self._number)
        users = np.array([numbers[label] for label in table.labels])
        rows = np.argsort(users)
        return Node(self._problem, table.federation, users[rows], rows, table.labels[rows].tolist())


def _numbers(cells: pa.Table, user: str, number: str) -> dict[str, int]:
    """Return label of a user -> its number, or refuse the column of numbers."""
    labels, owner = owners_of(ids_of(cells[user], user), user)
    given = numbers_of(cells[number], number)
    bad = ~((given >= 0) & (given == np.floor(given)))
    if bad.any():
        raise BadInput(f"column {number!r} has {first_row(bad)} without a whole number from 0: number the users")
    own = given[np.unique(owner, return_index=True)[1]]
    if (other := given != own[owner]).any():
        raise BadInput(f"column {number!r} has {first_row(other)} unlike their user's first row: a user has one number")
    if len(np.unique(own)) < len(own):
        raise BadInput(f"column {number!r} gives one number to two users: each needs its own")
    return dict(zip(labels.tolist(), own.astype(np.int64).tolist(), strict=True))
