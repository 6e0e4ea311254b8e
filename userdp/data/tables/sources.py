"""Tables as sources of data: a file of one's own, or a public data set."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from userdp.data.federation import Federation
from userdp.data.shape import Shape
from userdp.data.source import Datasets, DataSettings
from userdp.data.tables.columns import Columns, did_you_mean
from userdp.data.tables.contributions import split
from userdp.data.tables.public import PUBLIC_DATASETS, PublicDataset, public_columns, public_file
from userdp.data.tables.tabular import Table, read_table
from userdp.errors import BadInput, PopulationTooSmall


class TableColumns(DataSettings):
    """Declarations that tables and public data sets share; ranges and levels must be public knowledge."""

    features: list[str] | None = Field(None, description="Numeric feature columns; each needs a range.")
    ranges: dict[str, list[float]] | None = Field(
        None, description="Column = [low, high]: cells are clipped into it and scaled."
    )
    categorical: dict[str, list[Any]] | None = Field(
        None, description="Column = [levels]: one feature of 0 and 1 for each level; other cells become all zeros."
    )
    scale: Literal["symmetric", "unit"] | None = Field(
        None, description="Scaled ranges are [-1, 1] (symmetric, the default) or [0, 1] (unit)."
    )
    target: str | None = Field(None, description="Column to predict.")
    target_range: list[float] | None = Field(
        None, description="[low, high] of the target, which is clipped into it and scaled to [-1, 1]."
    )
    positive: Any = Field(
        None, description="The target cell that means 1; all others mean 0, and a missing one sets its sample aside."
    )
    codes: str | list[str] | None = Field(
        None,
        description="Instead of features: one categorical column, for one-hot problems; or a list of them, whose cells "
        "are hashed, for sparse problems.",
    )
    levels: int | list[Any] | None = Field(
        None, description="Of one column of codes: how many (cells 0..levels-1), or the list."
    )
    buckets: int | None = Field(
        None, ge=1, description="Of a list of codes: how many features their cells are hashed to."
    )
    users: int | None = Field(
        None, ge=1, description="n, public number of training users; the first n by a seeded order take part."
    )
    samples: int | None = Field(None, ge=1, description="Public number of samples of all training users.")
    min_samples: int = Field(1, ge=1, description="Users with fewer samples are left out (who is, must be public).")
    max_samples: int | None = Field(None, ge=1, description="Most samples of a user; a seeded choice of them is kept.")
    test_fraction: float = Field(0.2, ge=0, lt=1, description="Share of users held out for metrics, by user.")

    @property
    def declared_samples(self) -> int | None:
        """The public number of samples of all training users."""
        return self.samples

    @property
    def sample_limits(self) -> tuple[int, int | None]:
        """(fewest, most) samples of a user."""
        return self.min_samples, self.max_samples

    def held_out(self, users: int) -> int:
        """How many of ``users`` are held out."""
        return max(1, round(self.test_fraction * users)) if self.test_fraction else 0

    @cached_property
    def declarations(self) -> Mapping[str, Any]:
        """Column arguments of `userdp.data.read_table`."""
        return {
            name: value
            for name in Columns.__dataclass_fields__
            if (value := getattr(self, name, None)) not in (None, "", [], {})
        }

    @cached_property
    def sample_shape(self) -> Shape:
        """What is declared about a sample.

        Raises:
            BadInput: declarations that contradict each other or miss something.
        """
        try:
            columns = Columns(**self.declarations)
        except BadInput as error:
            raise BadInput(f"[data] {error}") from None
        has_target, target_range = columns.target is not None, None
        if columns.positive is not None:
            target_range = (0.0, 1.0)
        elif columns.target_range is not None:
            target_range = (-1.0, 1.0)
        if columns.buckets is not None:
            sparsity = min(len(columns.hashed), columns.buckets)
            return Shape(columns.buckets, has_target, 1.0, None, target_range, sparsity=sparsity, feature_length=1.0)
        if columns.codes is not None:
            levels = columns.levels if isinstance(columns.levels, int) else len(columns.levels or ())
            return Shape(1, has_target, target_range=target_range, levels=levels)
        # A scaled cell is at most 1 in absolute value, and of a row's levels at most one is 1.
        norm = float(len(columns.features) + len(columns.categorical))
        return Shape(len(columns.feature_names), has_target, 1.0, norm, target_range)

    @property
    @abstractmethod
    def file(self) -> str | Path:
        """The table's file."""

    def table(self, seed: int) -> Table:
        """The table with all users, and their labels.

        Raises:
            BadInput: a file that cannot be used, or a row without a user.
        """
        declared = dict(self.declarations)
        return read_table(self.file, **declared, min_samples=self.min_samples, max_samples=self.max_samples, seed=seed)

    def load(self, seed: int) -> Datasets:
        """See `DataSettings.load`."""
        table = self.table(seed)
        train: Federation = table.federation
        test: Federation | None = None
        if self.test_fraction:
            train, test = split(table.federation, test_fraction=self.test_fraction, seed=seed)
        if self.users is not None:
            if train.users < self.users:
                held_out = 0 if test is None else test.users
                raise PopulationTooSmall(
                    f"data.users = {self.users}, but the data leave {train.users} training users (at least "
                    f"{self.min_samples} samples each, {held_out} users held out): declare at "
                    f"most {train.users}, or lower data.min_samples or data.test_fraction"
                )
            if train.users > self.users:
                train = train.select(np.arange(self.users))
        return Datasets(train, test, table.report)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See `DataSettings.assumptions`."""
        found = []
        if self.declared_users is None:
            found.append("the number of users was read from the data and is taken as public")
        found.append("which users there are is public, and so are the declared ranges and levels")
        found.append("a person is one value of the user column, the same wherever their samples lie")
        if self.min_samples > 1:
            found.append(f"who holds at least {self.min_samples} samples is public")
        return tuple(found)


class TableData(TableColumns):
    """A CSV or Parquet file with a column that says whose sample a row is."""

    kind: Literal["table"]
    path: str = Field(description="A .csv or .parquet file; relative to the configuration file.")
    user: str = Field(description="Column that says whose sample it is.")

    @property
    def declared_users(self) -> int | None:
        """N, the public number of training users; None when it is to be counted."""
        return self.users

    @property
    def file(self) -> str:
        """The table's file."""
        return self.path


class PublicData(TableColumns):
    """One of the public data sets, with its own columns unless others are declared."""

    kind: Literal["public"]
    name: str = Field(description=f"One of {', '.join(PUBLIC_DATASETS)}.")
    cache: str | None = Field(
        None, description="Folder of the files; the environment variable USERDP_DATA, or ~/.cache/userdp, if not given."
    )

    @property
    def declared_users(self) -> int | None:
        """N, the public number of training users; the registry knows it unless small users are left out."""
        if self.users is None and self.min_samples == 1:
            total = self._entry.users
            return total - self.held_out(total)
        return self.users

    @property
    def _entry(self) -> PublicDataset:
        if self.name not in PUBLIC_DATASETS:
            hint = did_you_mean(self.name, PUBLIC_DATASETS)
            raise BadInput(f"data.name = {self.name!r} is unknown{hint}; there are {', '.join(PUBLIC_DATASETS)}")
        return PUBLIC_DATASETS[self.name]

    @cached_property
    def declarations(self) -> Mapping[str, Any]:
        """The data set's own columns; naming features, categorical or codes, or a target, replaces them."""
        return public_columns(self._entry.name, super().declarations)

    @property
    def file(self) -> Path:
        """The table's file, fetched where it is not in the cache."""
        return public_file(self.name, self.cache)
