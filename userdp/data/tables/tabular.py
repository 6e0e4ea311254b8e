"""Any file of a table with a user column, as a federation."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block, Features
from userdp.data.federation import ColumnarFederation, Federation
from userdp.data.shape import require_number
from userdp.data.source import LoadReport
from userdp.data.tables.cells import Rows, Texts, cell_text
from userdp.data.tables.columns import Columns
from userdp.data.tables.contributions import bounded_rows, public_order
from userdp.data.tables.ids import doubtful_ids
from userdp.data.tables.reading import first_row, read_columns
from userdp.data.tables.streamed import MEMORY_MIB, outgrows, read_owners, stored_federation
from userdp.data.tables.survival import AtRisk, Periods
from userdp.data.tables.targets import targets_of
from userdp.data.tables.unusable import CELLS, Counts, doubts, sentences
from userdp.data.tables.windows import Windows
from userdp.errors import BadInput
from userdp.tracebacks import without_internals

if TYPE_CHECKING:
    from userdp.data.tables.frames import Tabular

log = logging.getLogger("userdp")


@dataclass(frozen=True, eq=False)
class Table:
    """A federation read from a file.

    Attributes:
        federation: the users' samples.
        labels: (n,) the user column's text for users 0..n-1.
        feature_names: (k,) names of the features, ``column=level`` for one-hot ones; of sequences (C,) the channels, of
            codes and pictures the columns.
        report: counts of clipped cells and of what is left out.
        held_out: (n,) mask of the users that the split column holds out for the test; None without one.
    """

    federation: Federation
    labels: NDArray[np.object_]
    feature_names: list[str]
    report: LoadReport
    held_out: NDArray[np.bool_] | None = None


@without_internals
def read_table(
    path: "Tabular",
    *,
    users: int | None = None,
    min_samples: int = 1,
    max_samples: int | None = None,
    seed: int = 0,
    memory: int = MEMORY_MIB,
    **declared: Any,
) -> Table:
    """Read users from a CSV, Excel or Parquet file (by its suffix), a row for each sample; ``user`` names its user.

    A table in memory takes the place of ``path``: a pandas DataFrame, or any object of the Arrow PyCapsule interface,
    such as a polars DataFrame or a DuckDB relation. Its cells mean what they mean in a Parquet file.

    The other arguments are the keys of ``[data]`` in a configuration, with the same meaning and defaults:
    docs/configuration.md lists them, and ``userdp list settings data.KEY`` describes one. Two differ. ``users`` is the
    public number of users to keep, the first ones of the public order, and a split column's users count too. ``seed``
    is that of the order of users and of the choice of ``max_samples`` samples (stream "split").

    Users come from the rows, so each has a sample. A public rule numbers them: distinct labels sorted as text, permuted
    by the seed. The set of labels, and of users with at least ``min_samples``, is taken to be public. A sample is a
    row, or with ``sequence`` a window of a user's rows: see `userdp.data.tables.windows.Windows`. With a tokenizer and
    ``target`` a row is a sample, whose features are tokens: see `userdp.data.tables.texts.text_rows`.

    Cells that a loss cannot use are marked: NaN among numeric features and targets (a cell that is missing, no number,
    or not finite; of targets also one beyond float32's range) and in a whole picture, -1 among codes (a cell that is no
    declared level). Problems give such a sample weight zero. Where ``impute`` declares a value, a missing cell counts
    as that instead. Other cells that are not as declared are counted.

    Cells and levels are compared as text, by `userdp.data.tables.cells.cell_text`; a missing cell is ''. Users are told
    apart by `userdp.data.tables.ids.ids_of`. Dates are read by `userdp.data.tables.date_cells`, and cells hashed by
    `userdp.data.tables.codes.hashed_rows`.

    *Formal guarantee*: replacing one user's rows by any others, with any cells, changes no bit of anybody else's
    samples, even if it changes the types of columns, and never makes the load fail. Three things are public by
    assumption: which users exist and hold at least ``min_samples``; which users are held out, so that replacing rows
    keep that cell; and the types of a Parquet file's columns as far as they are refused at all (lists, or dates where
    numbers are declared). A file is assumed to be well formed, as `userdp.data.tables.reading.read_columns` says: one
    person's unquoted separator can make it unreadable, which its holder is told before anything is released. One
    person's cell can decide whether any cell of a column can be used (``report.nothing_usable``), or nine in ten, and
    whether most lie in the declared range; the ids, whether two of them may be one person's (``report.doubts``): these
    are warnings in the log of the data holder, never errors.

    Raises:
        BadInput: a file, column or declaration that cannot be used, a row without a user, a user whose rows disagree
            on the split, or too little room for the temporary file; no cell's content is shown.
        PopulationTooSmall: fewer eligible users than ``users``.
    """
    from userdp.data.tables.frames import table_file  # noqa: PLC0415 -- imports pandas, and a plan reads no table

    columns = Columns(**declared)
    with table_file(path, columns.names) as file:
        table = table_of(
            file, columns, users=users, min_samples=min_samples, max_samples=max_samples, seed=seed, memory=memory
        )
    for sentence in (*table.report.nothing_usable, *table.report.doubts):
        log.warning("%s", sentence)
    return table


def table_of(
    source: Path,
    columns: Columns,
    *,
    users: int | None = None,
    min_samples: int = 1,
    max_samples: int | None = None,
    seed: int = 0,
    memory: int = MEMORY_MIB,
    named: bool = False,
) -> Table:
    """Read a table as `read_table` does, given its `Columns`, without logging the sentences of its report.

    ``named`` users choose their ``max_samples`` samples by their labels, whoever else there is.
    """
    for name, value, least in (("min_samples", min_samples, 1), ("seed", seed, 0), ("memory", memory, 0)):
        require_number(name, value, least, strict=False)
    if users is not None:
        require_number("users", users, 1, strict=False)
    if max_samples is not None and max_samples < min_samples:
        raise BadInput(f"max_samples must be at least min_samples = {min_samples}, got {max_samples}")
    if columns.survival is not None:
        columns.survival.refuse_limits(min_samples, max_samples)
    streamed = outgrows(source, columns, memory)
    table = read_owners(source, columns) if streamed else read_columns(source, columns, columns.names)
    labels, owner = owners_of(table.texts[columns.user], columns.user)
    counts = Counts()
    grouped = _grouped(table, columns, owner, counts)
    if grouped is not None:
        sizes, holder = grouped.sizes, np.repeat(np.arange(len(labels)), grouped.sizes)
    else:
        sizes, holder = np.bincount(owner).astype(np.int64), owner
    chosen = public_order(labels, sizes, min_samples, users, seed)
    numbers = np.full(len(labels), -1, dtype=np.int64)
    numbers[chosen] = np.arange(len(chosen))
    samples, offsets = bounded_rows(numbers[holder], max_samples, seed, labels[chosen] if named else None)
    if streamed:
        federation: Federation = stored_federation(source, columns, table.count, samples, offsets, counts)
    elif isinstance(grouped, Periods):
        at_risk, happened = grouped.samples(samples)
        federation = ColumnarFederation(Block(at_risk, offsets, happened))
    else:
        made = columns.samples.features(table, samples, counts) if grouped is None else grouped.features(samples)
        targets, terms = targets_of(table, columns, samples, counts), _terms(table, columns, samples, counts)
        federation = ColumnarFederation(Block(made, offsets, targets, terms=terms))
    eligible = int(np.count_nonzero(sizes >= min_samples))
    spelt = doubtful_ids(labels, columns.user)
    seen = table.count if isinstance(grouped, Periods) else federation.samples
    report = LoadReport(
        rows=table.count,
        users=federation.users,
        samples=federation.samples,
        **{name: dict(getattr(counts, name)) for name in CELLS},
        small_users=len(labels) - eligible,
        surplus_users=eligible - len(chosen),
        surplus_samples=int(sizes[chosen].sum()) - federation.samples,
        doubts=(*doubts(columns, counts, seen), *filter(None, [spelt])),
        doubtful_ids=spelt,
        nothing_usable=tuple(sentences(columns, counts)),
        target_ends=counts.ends.get(columns.target or "") if columns.target_range is None else None,
    )
    held_out = None if columns.split_column is None else _held_out(table, columns, owner)[chosen]
    return Table(federation, labels[chosen], list(columns.samples.names), report, held_out)


def _grouped(table: Rows, columns: Columns, owner: NDArray[np.int64], counts: Counts) -> Windows | Periods | None:
    """Return what makes samples of all rows of a user together; None if each row is a sample."""
    kind, form = columns.samples, columns.samples.windows
    if isinstance(kind, AtRisk):
        return Periods(table, kind, owner, counts)
    return None if form is None else Windows(table, form, owner, counts)


def _terms(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32] | None:
    return None if columns.term is None else columns.term.values(table, rows, counts)


def read_features(path: str | Path, columns: Columns) -> tuple[Features, NDArray[np.float32] | None, Mapping[str, int]]:
    """Read the features of every row of a file, in order, as `read_table` makes them; no user or target is needed.

    Returns a (N, k) array, or sparse rows for a list of codes; (N,) known terms of scores, None without any; and
    column -> its cells that no loss could use. Raises `BadInput` for a file or column that cannot be used, or features
    that are not made row by row.
    """
    table = read_columns(Path(path), columns, columns.inputs)
    counts, rows = Counts(), np.arange(table.count)
    made, terms = columns.samples.features(table, rows, counts), _terms(table, columns, rows, counts)
    return made, terms, {column: cells for column, cells in counts.unusable.items() if cells}


def owners_of(users: Texts, column: str) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """Return the (L,) labels of the user column, sorted as text, and (N,) the user of each row, numbered by label.

    Raises `BadInput` for a row without a user.
    """
    labels, ranks = np.unique(np.array(users.distinct, dtype=object), return_inverse=True)
    owner = ranks[users.positions]
    if labels[0] == "":
        missing = first_row(owner == 0)
        raise BadInput(
            f"the user column {column!r} has {missing} without a user (empty, or a word such as NA): fix or remove "
            "these rows"
        )
    return labels, owner


def _held_out(table: Rows, columns: Columns, owner: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the mask of the labels that are held out; refuse a user whose rows disagree."""
    column, wanted = str(columns.split_column), cell_text(columns.split_test)
    texts = table.texts[column]
    test = texts.mapped(text == wanted for text in texts.distinct).astype(bool)
    first = np.unique(owner, return_index=True)[1]
    other = test != test[first][owner]
    if other.any():
        raise BadInput(
            f"the split column {column!r} has {first_row(other)} that differ from the first row of their user; correct "
            "these rows, because a user is held out wholly or not at all"
        )
    return test[first]
