"""Any CSV or Parquet file with a user column, as a federation."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block, Features
from userdp.data.checks import require_number
from userdp.data.federation import ColumnarFederation, Federation
from userdp.data.load_report import LoadReport
from userdp.data.tables.cells import Texts, cell_text
from userdp.data.tables.columns import Columns
from userdp.data.tables.contributions import bounded_rows, public_order
from userdp.data.tables.counts import Counts
from userdp.data.tables.declared import Levels
from userdp.data.tables.derived import Derivation
from userdp.data.tables.features import features_of
from userdp.data.tables.reading import Rows, first_row, read_columns
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.streamed import MEMORY_MIB, outgrows, read_owners, stored_federation
from userdp.data.tables.targets import targets_of
from userdp.data.tables.unusable import sentences
from userdp.data.tables.windows import Windows
from userdp.errors import BadInput
from userdp.tracebacks import without_internals

log = logging.getLogger("userdp")


@dataclass(frozen=True, eq=False)
class Table:
    """A federation read from a file.

    Attributes:
        federation: the users' samples.
        labels: (n,) the user column's text for users 0..n-1.
        feature_names: (k,) names of the feature columns; ``column=level`` for one-hot ones; those of codes themselves.
            Of sequences (C,) those of their channels, of pictures that of their column.
        report: what was clipped and left out.
        held_out: (n,) which users the split column holds out for the test; None without one.
    """

    federation: Federation
    labels: NDArray[np.object_]
    feature_names: list[str]
    report: LoadReport
    held_out: NDArray[np.bool_] | None = None


@without_internals
def read_table(
    path: str | Path,
    *,
    user: str,
    features: Sequence[str] = (),
    categorical: Mapping[str, Sequence[object]] | None = None,
    ranges: Mapping[str, Sequence[float]] | None = None,
    scale: Literal["symmetric", "unit"] = "symmetric",
    target: str | None = None,
    target_range: Sequence[float] | None = None,
    positive: object | None = None,
    target_levels: Sequence[object] | None = None,
    codes: str | Sequence[str] | None = None,
    levels: Levels | Mapping[str, Levels] | None = None,
    buckets: int | None = None,
    sequence: SequenceColumns | None = None,
    images: str | None = None,
    image_shape: Sequence[int] | None = None,
    impute: Mapping[str, object] | None = None,
    missing_indicators: Sequence[str] = (),
    derive: Mapping[str, Derivation] | None = None,
    dates: Mapping[str, Sequence[object]] | None = None,
    date_parts: Mapping[str, Sequence[str]] | None = None,
    date_formats: Mapping[str, str] | None = None,
    split_column: str | None = None,
    split_test: object | None = None,
    users: int | None = None,
    min_samples: int = 1,
    max_samples: int | None = None,
    seed: int = 0,
    memory: int = MEMORY_MIB,
) -> Table:
    """Read users from a CSV or Parquet file (by its suffix).

    Users come from the rows, so none is without samples. They are numbered by a public rule: distinct labels sorted
    as text, permuted by the seed. Which labels exist, and who holds at least ``min_samples``, is taken to be public. A
    sample is a row, or with ``sequence`` a window of a user's rows: see `userdp.data.tables.windows.Windows`.

    Cells that a loss cannot use stay where they are, marked: NaN among numeric features and targets (a cell that is
    missing, no number, or not finite) and in a whole picture, -1 among codes (a cell that is no declared level).
    Problems let such a sample weigh nothing. Where ``impute`` declares a value, a missing cell counts as that instead.

    *Formal guarantee*: replacing one user's rows by any others, with any cells, changes no bit of anybody else's
    samples, whatever the columns' types become by it, and never makes the load fail. Three things are public by
    assumption: who exists and holds at least ``min_samples``; who is held out, so that rows put in the place of others
    say the same of it; and of which type the columns of a Parquet file are, as far as that is refused at all (lists, or
    dates where numbers are declared). That ``positive`` is in no cell, or
    that no cell of a column holds a declared level, most likely misspelt, is a warning in the log of the holder of the
    data and never an error: one person's cell can decide it. So is that no cell of a column can be used, which
    ``report.nothing_usable`` says.

    Args:
        path: the file, one row a sample.
        user: column that says whose sample it is.
        features: numeric columns; each needs a range, is clipped into it and scaled. "pixel_[0-63]" names a run of 64,
            here and in ``ranges``, ``impute`` and ``missing_indicators``.
        categorical: column -> declared levels; one feature column of 0 and 1 for each. A cell with another level (or
            none) becomes all zeros and is counted. Cells and levels are compared as text, a missing cell is '': see
            `userdp.data.tables.cells.cell_text`.
        ranges: numeric column -> declared [low, high].
        scale: "symmetric" maps ranges to [-1, 1], "unit" to [0, 1].
        target: column to predict; a number kept as it is (beyond float32's range: NaN), unless one of the next three
            is given.
        target_range: declared [low, high] of the target, clipped into and mapped to [-1, 1].
        positive: the cell that means 1; all others mean 0, but for a missing one, which is NaN. Compared as text.
        target_levels: the classes, two or more: the target is a cell's position among them, NaN for a cell that is none
            of them, which is counted. Compared as text.
        codes: instead of features: one column of categories for one-hot problems, kept as int32 codes; or a list of
            columns: with ``levels`` each is kept as int32 codes, with ``buckets`` the cells are hashed for sparse
            problems: see `userdp.data.tables.hashed_codes.hashed_rows`.
        levels: of one column of ``codes``: a number L (the cells hold 0..L-1) or the list of declared levels; of a list
            of columns: column -> these.
        buckets: of a list of ``codes``: features in all; cells are compared as text, a missing cell is ''.
        sequence: instead of features: samples are sequences of codes, int32, L steps of C channels each.
        images: instead of features: column of raw bytes, one a pixel, which become float32 in [0, 1].
        image_shape: of ``images``: sides of a picture, whose product is the bytes of a cell.
        impute: column -> what a cell that is missing (of numbers: that holds no finite one; of dates: that is none)
            counts as: a number or a date within the column's bounds; or for categories a declared level, or "own level"
            for one more.
        missing_indicators: columns of ``impute`` that get one more feature: 1 where the cell is missing, 0 elsewhere.
        derive: name -> a numeric feature made of other columns of the same row, after ``impute``.
        dates: column -> declared [first, last], dates: one numeric feature, the days from the first on (times are
            fractions), clipped and scaled like a range. A cell is ISO 8601 or a date as such; with an offset it is
            converted to UTC, without one it is UTC: see `userdp.data.tables.moments`.
        date_parts: column -> some of "month", "quarter", "weekday" and "hour": a feature of 0 and 1 for each level. Of
            a column that is not in ``dates`` too, a cell that is no date becomes all zeros and is counted.
        date_formats: column of dates -> how they are written that are not in ISO 8601, for `datetime.strptime`.
        split_column: column that says which users are held out for the test; all rows of a user say the same.
        split_test: its cell for those who are, compared as text.
        users: public number of users; the first ones of the public order are kept.
        min_samples: users with fewer samples are left out.
        max_samples: the most samples of a user; a seeded uniform choice of them otherwise.
        seed: of the order of users and of the choice of samples (stream "split").
        memory: MiB of samples, one for each row of the file, above which a Parquet file is read in batches and samples
            lie in a temporary file that nobody else can open; the same samples, to the last bit. Sequences and hashed
            codes stay in memory whatever it says.

    Raises:
        BadInput: a file, column or declaration that cannot be used, a row without a user, or a user of whose rows only
            some are for the test, or too little room for the temporary file; no cell's content is shown.
        PopulationTooSmall: fewer eligible users than ``users``.
    """
    columns = Columns(
        user=user,
        features=features,
        categorical=categorical or {},
        ranges=ranges or {},
        scale=scale,
        target=target,
        target_range=target_range,
        positive=positive,
        target_levels=target_levels,
        codes=codes,
        levels=levels,
        buckets=buckets,
        impute=impute or {},
        missing_indicators=missing_indicators,
        derive=derive or {},
        dates=dates or {},
        date_parts=date_parts or {},
        date_formats=date_formats or {},
        sequence=sequence,
        images=images,
        image_shape=image_shape,
        split_column=split_column,
        split_test=split_test,
    )
    table = table_of(
        Path(path), columns, users=users, min_samples=min_samples, max_samples=max_samples, seed=seed, memory=memory
    )
    for sentence in table.report.nothing_usable or table.report.met_nowhere:
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
) -> Table:
    """The same, for columns that are declared already; what its report says is not logged."""
    require_number("min_samples", min_samples, 1, strict=False)
    require_number("seed", seed, 0, strict=False)
    if users is not None:
        require_number("users", users, 1, strict=False)
    if max_samples is not None and max_samples < min_samples:
        raise BadInput(f"max_samples must be at least min_samples = {min_samples}, got {max_samples}")
    require_number("memory", memory, 0, strict=False)
    streamed = outgrows(source, columns, memory)
    table = read_owners(source, columns) if streamed else read_columns(source, columns, columns.names)
    labels, owner = _owners(table.texts[columns.user], columns.user)
    counts = Counts()
    windows = None if columns.sequence is None else Windows(table, columns.sequence, owner, counts)
    if windows is not None:
        sizes, holder = windows.sizes, np.repeat(np.arange(len(labels)), windows.sizes)
    else:
        sizes, holder = np.bincount(owner).astype(np.int64), owner
    chosen = public_order(labels, sizes, min_samples, users, seed)
    numbers = np.full(len(labels), -1, dtype=np.int64)
    numbers[chosen] = np.arange(len(chosen))
    samples, offsets = bounded_rows(numbers[holder], max_samples, seed)
    if streamed:
        federation: Federation = stored_federation(source, columns, table.count, samples, offsets, counts)
    else:
        made = features_of(table, columns, samples, counts) if windows is None else windows.features(samples)
        federation = ColumnarFederation(Block(made, offsets, targets_of(table, columns, samples, counts)))
    eligible = int(np.count_nonzero(sizes >= min_samples))
    report = LoadReport(
        rows=table.count,
        users=federation.users,
        samples=federation.samples,
        clipped=counts.clipped,
        unknown_levels=counts.unknown,
        unusable=counts.unusable,
        imputed=counts.imputed,
        steps=counts.steps,
        small_users=len(labels) - eligible,
        surplus_users=eligible - len(chosen),
        surplus_samples=int(sizes[chosen].sum()) - federation.samples,
        met_nowhere=tuple(counts.met_nowhere),
        nothing_usable=tuple(sentences(columns, counts.kinds)),
    )
    held_out = None if columns.split_column is None else _held_out(table, columns, owner)[chosen]
    return Table(federation, labels[chosen], columns.feature_names, report, held_out)


def read_features(path: str | Path, columns: Columns) -> tuple[Features, Mapping[str, int]]:
    """Features of every row of a CSV or Parquet file, in its order, as `read_table` makes them for the same columns.

    Nothing else is read: the file needs neither the user column nor the target.

    Returns:
        (N, k) array, or sparse rows for a list of codes; and column -> its cells that no loss could use.

    Raises:
        BadInput: a file or column that cannot be used, or features that are not made row by row.
    """
    if columns.sequence is not None:
        raise BadInput(
            "data.sequence makes windows of a user's rows, so nothing is predicted row by row; measure the model on "
            "other users with evaluate"
        )
    table = read_columns(Path(path), columns, columns.inputs)
    counts = Counts()
    made = features_of(table, columns, np.arange(table.count), counts)
    return made, {column: cells for column, cells in counts.unusable.items() if cells}


def _owners(users: Texts, column: str) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """Distinct labels sorted as text, and the position of each row's label."""
    labels = sorted(users.distinct)
    ranks = {label: rank for rank, label in enumerate(labels)}
    owner = users.mapped(ranks[label] for label in users.distinct)
    if labels[0] == "":
        raise BadInput(
            f"the user column {column!r} has {first_row(owner == 0)} without a user; fix or remove these rows"
        )
    return np.array(labels, dtype=object), owner


def _held_out(table: Rows, columns: Columns, owner: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of each label whether its rows are those of a user who is held out.

    Raises:
        BadInput: some rows of a user say so and others do not.
    """
    column, wanted = str(columns.split_column), cell_text(columns.split_test)
    texts = table.texts[column]
    test = texts.mapped(text == wanted for text in texts.distinct).astype(bool)
    first = np.unique(owner, return_index=True)[1]
    other = test != test[first][owner]
    if other.any():
        raise BadInput(
            f"the split column {column!r} has {first_row(other)} that say something else than the first row of their "
            "user: a user is held out wholly or not at all; correct these rows"
        )
    return test[first]
