"""Any CSV or Parquet file with a user column, as a federation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from userdp.data.block import Block, Features
from userdp.data.columns import (
    Columns,
    checked_levels,
    checked_range,
    first_row,
    level_codes,
    numbers_of,
    read_columns,
    scaled,
)
from userdp.data.contributions import bounded_rows, public_order
from userdp.data.federation import ColumnarFederation
from userdp.data.hashed_codes import hashed_rows
from userdp.data.populations import require_number
from userdp.errors import BadInput


@dataclass(frozen=True)
class LoadReport:
    """What loading did. Counted from the data, so not covered by any guarantee: for the holder of the data alone.

    Attributes:
        rows: rows of the file.
        users: users of the federation.
        samples: samples of the federation.
        clipped: column -> cells of the federation that lay outside the declared range.
        unknown_levels: column -> cells of the federation that hold no declared level.
        small_users: users left out for holding fewer than ``min_samples``.
        surplus_users: eligible users beyond the public number of users.
        surplus_samples: samples of the federation's users left out by ``max_samples``.
    """

    rows: int
    users: int
    samples: int
    clipped: Mapping[str, int] = field(default_factory=dict)
    unknown_levels: Mapping[str, int] = field(default_factory=dict)
    small_users: int = 0
    surplus_users: int = 0
    surplus_samples: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


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
    users: int | None = None,
    min_samples: int = 1,
    max_samples: int | None = None,
    seed: int = 0,
) -> Table:
    """Read users from a CSV or Parquet file (by its suffix).

    Users come from the rows, so none is without samples. They are numbered by a public rule: distinct labels sorted
    as text, permuted by the seed. Which labels exist, and who holds at least ``min_samples``, is taken to be public.

    Args:
        path: the file, one row a sample.
        user: column that says whose sample it is.
        features: numeric columns; each needs a range, is clipped into it and scaled.
        categorical: column -> declared levels; one feature column of 0 and 1 for each. A cell with another level (or
            none) becomes all zeros and is counted. Cells and levels are compared as text, a missing cell is ''.
        ranges: numeric column -> declared [low, high].
        scale: "symmetric" maps ranges to [-1, 1], "unit" to [0, 1].
        target: column to predict; a number kept as it is, unless one of the next two is given.
        target_range: declared [low, high] of the target, clipped into and mapped to [-1, 1].
        positive: the cell that means 1; all others mean 0.
        codes: instead of features: one column of categories for one-hot problems, kept as int32 codes; or a list of
            columns for sparse problems, whose cells are hashed: see `userdp.data.hashed_codes.hashed_rows`.
        levels: of one column of ``codes``: a number L (the cells hold 0..L-1) or the list of declared levels.
        buckets: of a list of ``codes``: features in all; cells are compared as text, a missing cell is ''.
        users: public number of users; the first ones of the public order are kept.
        min_samples: users with fewer rows are left out.
        max_samples: the most samples of a user; a seeded uniform choice of its rows otherwise.
        seed: of the order of users and of the choice of samples (stream "split").

    Raises:
        BadInput: a file, column, cell or declaration that cannot be used; no cell's content is shown.
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
    )
    require_number("min_samples", min_samples, 1, strict=False)
    require_number("seed", seed, 0, strict=False)
    if users is not None:
        require_number("users", users, 1, strict=False)
    if max_samples is not None and max_samples < min_samples:
        raise BadInput(f"max_samples must be at least min_samples = {min_samples}, got {max_samples}")
    table = read_columns(Path(path), columns)
    labels, sizes, owner = _owners(table, user)
    chosen = public_order(labels, sizes, min_samples, users, seed)
    numbers = np.full(len(labels), -1, dtype=np.int64)
    numbers[chosen] = np.arange(len(chosen))
    rows, offsets = bounded_rows(numbers[owner], max_samples, seed)
    block, clipped, unknown = _block(table, columns, rows, offsets)
    eligible = int(np.count_nonzero(sizes >= min_samples))
    report = LoadReport(
        rows=len(table),
        users=block.users,
        samples=block.samples,
        clipped=clipped,
        unknown_levels=unknown,
        small_users=len(labels) - eligible,
        surplus_users=eligible - len(chosen),
        surplus_samples=int(sizes[chosen].sum()) - block.samples,
    )
    return Table(ColumnarFederation(block), labels[chosen], columns.feature_names, report)


def _owners(table: pd.DataFrame, user: str) -> tuple[NDArray[np.object_], NDArray[np.int64], NDArray[np.int64]]:
    """Distinct labels sorted as text, rows of each, and the position of each row's label."""
    cells = table[user].to_numpy(dtype=object)
    if (missing := cells == "").any():
        raise BadInput(f"the user column {user!r} has {first_row(missing)} without a user; mend or remove these rows")
    owner, labels = pd.factorize(cells, sort=True)
    return np.asarray(labels, dtype=object), np.bincount(owner).astype(np.int64), owner.astype(np.int64)


def _block(
    table: pd.DataFrame, columns: Columns, rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[Block, dict[str, int], dict[str, int]]:
    """The chosen rows as a block, with cells clipped and levels unknown by column.

    Cells are checked in all rows, so that whether a file loads does not depend on the seed.
    """
    clipped: dict[str, int] = {}
    unknown: dict[str, int] = {}
    features: Features
    if columns.buckets is not None:
        features = hashed_rows({column: table[column].iloc[rows] for column in columns.hashed}, columns.buckets)
    elif isinstance(columns.codes, str):
        features = _codes(table, columns.codes, columns.levels)[rows].astype(np.int32)[:, None]
    else:
        features = _features(table, columns, rows, clipped, unknown)
    if columns.target is None:
        return Block(features, offsets), clipped, unknown
    return Block(features, offsets, _targets(table, columns, rows, clipped)), clipped, unknown


def _features(
    table: pd.DataFrame,
    columns: Columns,
    rows: NDArray[np.int64],
    clipped: dict[str, int],
    unknown: dict[str, int],
) -> NDArray[np.float32]:
    features = np.zeros((len(rows), len(columns.feature_names)), dtype=np.float32)
    low = -1.0 if columns.scale == "symmetric" else 0.0
    for position, column in enumerate(columns.features):
        bounds = checked_range(column, columns.ranges[column])
        features[:, position], clipped[column] = scaled(numbers_of(table, column)[rows], bounds, low, 1.0)
    position = len(columns.features)
    for column, listed in columns.categorical.items():
        levels = level_codes(table[column].iloc[rows], checked_levels(column, listed))
        known = np.flatnonzero(levels >= 0)
        features[known, position + levels[known]] = 1.0
        unknown[column] = len(rows) - len(known)
        position += len(listed)
    return features


def _codes(table: pd.DataFrame, column: str, levels: int | Sequence[object] | None) -> NDArray[np.int64]:
    if isinstance(levels, int):
        numbers = numbers_of(table, column)
        bad = (numbers != np.round(numbers)) | (numbers < 0) | (numbers >= levels)
        codes = np.where(bad, -1, numbers).astype(np.int64)
        wanted = f"a whole number in 0..{levels - 1}"
    else:
        codes = level_codes(table[column], checked_levels("levels", levels or ()))
        bad = codes < 0
        wanted = "a declared level"
    if bad.any():
        raise BadInput(f"column {column!r} has {first_row(bad)} that are not {wanted}; declare more levels")
    return codes


def _targets(
    table: pd.DataFrame, columns: Columns, rows: NDArray[np.int64], clipped: dict[str, int]
) -> NDArray[np.float32]:
    column = str(columns.target)
    if columns.positive is not None:
        cells = table[column].to_numpy(dtype=object)
        if (missing := cells == "").any():
            raise BadInput(f"the target {column!r} is missing in {first_row(missing)}; mend or remove these rows")
        hits: NDArray[np.bool_] = cells == str(columns.positive)
        if not hits.any():
            raise BadInput(
                f"positive = {columns.positive!r} is in no cell of the target {column!r}; check its spelling"
            )
        return hits[rows].astype(np.float32)
    values = numbers_of(table, column)[rows]
    if columns.target_range is None:
        return values.astype(np.float32)
    targets, clipped[column] = scaled(values, checked_range("target_range", columns.target_range), -1.0, 1.0)
    return targets
