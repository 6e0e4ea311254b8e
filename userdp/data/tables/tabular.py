"""Any CSV or Parquet file with a user column, as a federation."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Block, Features
from userdp.data.checks import require_number
from userdp.data.federation import ColumnarFederation
from userdp.data.load_report import LoadReport
from userdp.data.tables.cells import Texts, cell_text
from userdp.data.tables.columns import Columns, checked_levels, checked_range, level_codes, scaled
from userdp.data.tables.contributions import bounded_rows, public_order
from userdp.data.tables.derived import Derivation
from userdp.data.tables.hashed_codes import hashed_rows
from userdp.data.tables.imputed import OWN_LEVEL
from userdp.data.tables.reading import Rows, first_row, read_columns
from userdp.errors import BadInput

log = logging.getLogger("userdp")
_MOST_LISTED = 5


@dataclass(frozen=True, eq=False)
class Table:
    """A federation read from a file.

    Attributes:
        federation: the users' samples.
        labels: (n,) the user column's text for users 0..n-1.
        feature_names: (k,) names of the feature columns; ``column=level`` for one-hot ones; those of codes themselves.
        report: what was clipped and left out.
    """

    federation: ColumnarFederation
    labels: NDArray[np.object_]
    feature_names: list[str]
    report: LoadReport


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
    codes: str | Sequence[str] | None = None,
    levels: int | Sequence[object] | None = None,
    buckets: int | None = None,
    impute: Mapping[str, object] | None = None,
    missing_indicators: Sequence[str] = (),
    derive: Mapping[str, Derivation] | None = None,
    users: int | None = None,
    min_samples: int = 1,
    max_samples: int | None = None,
    seed: int = 0,
) -> Table:
    """Read users from a CSV or Parquet file (by its suffix).

    Users come from the rows, so none is without samples. They are numbered by a public rule: distinct labels sorted
    as text, permuted by the seed. Which labels exist, and who holds at least ``min_samples``, is taken to be public.

    Cells that a loss cannot use stay where they are, marked: NaN among numeric features and targets (a cell that is
    missing, no number, or not finite), -1 among codes (a cell that is no declared level). Problems let such a sample
    weigh nothing. Where ``impute`` declares a value, a missing cell counts as that instead.

    *Formal guarantee*: replacing one user's rows by any others, with any cells, changes no bit of anybody else's
    samples, whatever the columns' types become by it, and never makes the load fail. Two things are public by
    assumption: who exists and holds at least ``min_samples``, and of which type the columns of a Parquet file are, as
    far as that is refused at all (lists, or dates where numbers are declared). That ``positive`` is in no cell, or
    that no cell of a column holds a declared level, most likely misspelt, is a warning in the log of the holder of the
    data and never an error: one person's cell can decide it.

    Args:
        path: the file, one row a sample.
        user: column that says whose sample it is.
        features: numeric columns; each needs a range, is clipped into it and scaled.
        categorical: column -> declared levels; one feature column of 0 and 1 for each. A cell with another level (or
            none) becomes all zeros and is counted. Cells and levels are compared as text, a missing cell is '': see
            `userdp.data.tables.cells.cell_text`.
        ranges: numeric column -> declared [low, high].
        scale: "symmetric" maps ranges to [-1, 1], "unit" to [0, 1].
        target: column to predict; a number kept as it is (beyond float32's range: NaN), unless one of the next two is
            given.
        target_range: declared [low, high] of the target, clipped into and mapped to [-1, 1].
        positive: the cell that means 1; all others mean 0, but for a missing one, which is NaN. Compared as text.
        codes: instead of features: one column of categories for one-hot problems, kept as int32 codes; or a list of
            columns for sparse problems, whose cells are hashed: see `userdp.data.tables.hashed_codes.hashed_rows`.
        levels: of one column of ``codes``: a number L (the cells hold 0..L-1) or the list of declared levels.
        buckets: of a list of ``codes``: features in all; cells are compared as text, a missing cell is ''.
        impute: column -> what a cell that is missing (of numbers: that holds no finite one) counts as: a number within
            the column's range; or for categories a declared level, or "own level" for one more.
        missing_indicators: columns of ``impute`` that get one more feature: 1 where the cell is missing, 0 elsewhere.
        derive: name -> a numeric feature made of other columns of the same row, after ``impute``.
        users: public number of users; the first ones of the public order are kept.
        min_samples: users with fewer rows are left out.
        max_samples: the most samples of a user; a seeded uniform choice of its rows otherwise.
        seed: of the order of users and of the choice of samples (stream "split").

    Raises:
        BadInput: a file, column or declaration that cannot be used, or a row without a user; no cell's content is
            shown.
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
        codes=codes,
        levels=levels,
        buckets=buckets,
        impute=impute or {},
        missing_indicators=missing_indicators,
        derive=derive or {},
    )
    require_number("min_samples", min_samples, 1, strict=False)
    require_number("seed", seed, 0, strict=False)
    if users is not None:
        require_number("users", users, 1, strict=False)
    if max_samples is not None and max_samples < min_samples:
        raise BadInput(f"max_samples must be at least min_samples = {min_samples}, got {max_samples}")
    table = read_columns(Path(path), columns, columns.names)
    labels, sizes, owner = _owners(table.texts[user], user)
    chosen = public_order(labels, sizes, min_samples, users, seed)
    numbers = np.full(len(labels), -1, dtype=np.int64)
    numbers[chosen] = np.arange(len(chosen))
    rows, offsets = bounded_rows(numbers[owner], max_samples, seed)
    counts = _Counts()
    made = _features(table, columns, rows, counts)
    block = Block(made, offsets, None if target is None else _targets(table, columns, target, rows, counts))
    eligible = int(np.count_nonzero(sizes >= min_samples))
    report = LoadReport(
        rows=table.count,
        users=block.users,
        samples=block.samples,
        clipped=counts.clipped,
        unknown_levels=counts.unknown,
        unusable=counts.unusable,
        imputed=counts.imputed,
        small_users=len(labels) - eligible,
        surplus_users=eligible - len(chosen),
        surplus_samples=int(sizes[chosen].sum()) - block.samples,
        met_nowhere=tuple(counts.met_nowhere),
    )
    for sentence in report.met_nowhere:
        log.warning("%s", sentence)
    return Table(ColumnarFederation(block), labels[chosen], columns.feature_names, report)


def read_features(path: str | Path, columns: Columns) -> Features:
    """Features of every row of a CSV or Parquet file, in its order, as `read_table` makes them for the same columns.

    Nothing else is read: the file needs neither the user column nor the target.

    Returns:
        (N, k) array, or sparse rows for a list of codes.

    Raises:
        BadInput: a file or column that cannot be used.
    """
    table = read_columns(Path(path), columns, columns.inputs)
    counts = _Counts()
    made = _features(table, columns, np.arange(table.count), counts)
    for sentence in counts.met_nowhere:
        log.warning("%s", sentence)
    return made


@dataclass(frozen=True)
class _Counts:
    """Column -> cells, for the report; and a sentence for each column of which no cell is as declared."""

    clipped: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    unusable: dict[str, int] = field(default_factory=dict)
    imputed: dict[str, int] = field(default_factory=dict)
    met_nowhere: list[str] = field(default_factory=list)

    def note_levels(self, column: str, declared: str, known: NDArray[np.bool_]) -> None:
        """Say so where of ALL cells of a column none is a declared level; how many cells is for the report alone."""
        if not known.any():
            self.met_nowhere.append(
                f"no cell of column {column!r} holds a declared level ({declared}): all of them count as unknown, so "
                "that the column tells nothing; check the spelling of the levels"
            )


def _listed(levels: Sequence[object]) -> str:
    """The first declared levels, for people."""
    first = ", ".join(repr(level) for level in levels[:_MOST_LISTED])
    return first if len(levels) <= _MOST_LISTED else f"{first} and {len(levels) - _MOST_LISTED} more"


def _owners(users: Texts, column: str) -> tuple[NDArray[np.object_], NDArray[np.int64], NDArray[np.int64]]:
    """Distinct labels sorted as text, rows of each, and the position of each row's label."""
    labels = sorted(users.distinct)
    ranks = {label: rank for rank, label in enumerate(labels)}
    owner = users.mapped(ranks[label] for label in users.distinct)
    if labels[0] == "":
        raise BadInput(
            f"the user column {column!r} has {first_row(owner == 0)} without a user; fix or remove these rows"
        )
    return np.array(labels, dtype=object), np.bincount(owner).astype(np.int64), owner


def _features(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: _Counts) -> Features:
    """The chosen rows' features."""
    if columns.buckets is not None:
        return hashed_rows({column: table.texts[column].taken(rows) for column in columns.hashed}, columns.buckets)
    if isinstance(columns.codes, str):
        return _codes(table, columns, columns.codes, rows, counts)
    return _numbers_and_levels(table, columns, rows, counts)


def _numbers_and_levels(table: Rows, columns: Columns, rows: NDArray[np.int64], counts: _Counts) -> NDArray[np.float32]:
    features = np.zeros((len(rows), len(columns.feature_names)), dtype=np.float32)
    low = -1.0 if columns.scale == "symmetric" else 0.0
    ranges, missing = columns.scaled_ranges, _Missing(table, columns, rows)
    for position, (column, bounds) in enumerate(ranges.items()):
        if column in columns.derive:
            made = columns.derive[column]
            values, otherwise = made.values([missing.filled(name, counts) for name in made.of])
            if made.otherwise is not None:
                counts.imputed[column] = otherwise
        else:
            values = missing.filled(column, counts)
        counts.unusable[column] = int(np.count_nonzero(np.isnan(values)))
        features[:, position], counts.clipped[column] = scaled(values, bounds, low, 1.0)
    position = len(ranges)
    for column in columns.missing_indicators:
        features[:, position] = missing.cells(column)
        position += 1
    for column, listed in columns.categorical.items():
        every = level_codes(table.texts[column], checked_levels(column, listed))
        counts.note_levels(column, _listed(listed), every >= 0)
        levels, own = missing.coded(column, every[rows], counts)
        known = np.flatnonzero(levels >= 0)
        features[known, position + levels[known]] = 1.0
        counts.unknown[column] = len(rows) - len(known)
        position += len(listed) + own
    return features


@dataclass(frozen=True)
class _Missing:
    """Which of the chosen rows' cells are missing, and what is declared in their place."""

    table: Rows
    columns: Columns
    rows: NDArray[np.int64]

    def cells(self, column: str) -> NDArray[np.bool_]:
        """(N,): those that are; a cell of numbers also where it holds no finite one."""
        if column in self.table.texts:
            texts = self.table.texts[column].taken(self.rows)
            return texts.mapped(text == "" for text in texts.distinct).astype(bool)
        return np.isnan(self.table.numbers[column][self.rows])

    def filled(self, column: str, counts: _Counts) -> NDArray[np.float64]:
        """(N,) numbers, those that are missing replaced where a value is declared."""
        values, instead = self.table.numbers[column][self.rows], self.columns.missing_number(column)
        if instead is None:
            return values
        missing = np.isnan(values)
        counts.imputed[column] = int(np.count_nonzero(missing))
        return np.where(missing, instead, values)

    def coded(self, column: str, codes: NDArray[np.int64], counts: _Counts) -> tuple[NDArray[np.int64], bool]:
        """(N,) codes, those of missing cells replaced where one is declared; and whether it is one more level."""
        instead = self.columns.missing_code(column)
        if instead is None:
            return codes, False
        missing = self.cells(column)
        counts.imputed[column] = int(np.count_nonzero(missing))
        return np.where(missing, instead, codes), self.columns.impute[column] == OWN_LEVEL


def _codes(table: Rows, columns: Columns, column: str, rows: NDArray[np.int64], counts: _Counts) -> NDArray[np.int32]:
    """(N, 1) codes; -1 for a cell that is no whole number in 0..L-1, or no declared level."""
    if isinstance(columns.levels, int):
        values = table.numbers[column]
        known = (values == np.floor(values)) & (values >= 0) & (values < columns.levels)
        every = np.where(known, values, -1.0).astype(np.int64)
        declared = f"0 to {columns.levels - 1}"
    else:
        every = level_codes(table.texts[column], checked_levels("levels", columns.levels or ()))
        declared = _listed(columns.levels or ())
    counts.note_levels(column, declared, every >= 0)
    codes = _Missing(table, columns, rows).coded(column, every[rows], counts)[0].astype(np.int32)
    counts.unusable[column] = int(np.count_nonzero(codes < 0))
    return codes[:, None]


def _targets(
    table: Rows, columns: Columns, column: str, rows: NDArray[np.int64], counts: _Counts
) -> NDArray[np.float32]:
    if columns.positive is not None:
        targets = _binary_targets(table.texts[column], column, columns.positive, counts)[rows]
    elif columns.target_range is not None:
        bounds = checked_range("target_range", columns.target_range)
        targets, counts.clipped[column] = scaled(table.numbers[column][rows], bounds, -1.0, 1.0)
    else:
        values = table.numbers[column][rows]
        targets = np.where(np.abs(values) <= np.finfo(np.float32).max, values, np.nan).astype(np.float32)
    counts.unusable[column] = int(np.count_nonzero(np.isnan(targets)))
    return targets


def _binary_targets(texts: Texts, column: str, positive: object, counts: _Counts) -> NDArray[np.float32]:
    """Of all rows: 1 for ``positive``, NaN for a missing cell, 0 for others."""
    wanted = cell_text(positive)
    if wanted not in texts.distinct:
        counts.met_nowhere.append(f"positive = {positive!r} is in no cell of the target {column!r}: check its spelling")
    meanings = np.array([np.nan if text == "" else text == wanted for text in texts.distinct], dtype=np.float32)
    return meanings[texts.positions]
