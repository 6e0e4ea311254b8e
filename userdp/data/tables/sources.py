"""Tables as sources of data: a file of one's own, or a public data set."""

import logging
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from userdp.data.federation import Federation
from userdp.data.shape import Shape
from userdp.data.source import Datasets, DataSettings
from userdp.data.tables.columns import Columns
from userdp.data.tables.contributions import held_out_users, split
from userdp.data.tables.dates import with_dates_as_text
from userdp.data.tables.declared import did_you_mean
from userdp.data.tables.derived import Derivation
from userdp.data.tables.public import public_columns, public_file
from userdp.data.tables.public_sets import PUBLIC_DATASETS, PublicDataset
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.shapes import shape_of
from userdp.data.tables.streamed import MEMORY_MIB
from userdp.data.tables.tabular import Table, table_of
from userdp.errors import BadInput, PopulationTooSmall

log = logging.getLogger("userdp")
_TEST_FRACTION = 0.2


class TableColumns(DataSettings):
    """Declarations that tables and public data sets share; ranges and levels must be public knowledge."""

    features: list[str] | None = Field(
        None,
        description="Numeric feature columns; each needs a range. 'pixel_[0-63]' names a run of 64 columns, here and "
        "in ranges, impute and missing_indicators.",
    )
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
    target_levels: list[Any] | None = Field(
        None,
        description="The classes of the target, such as ['low', 'high'] or [0, 1, 2]: a cell that is none of them sets "
        "its sample aside. For softmax and classes of torch modules; predictions then have these names.",
    )
    codes: str | list[str] | None = Field(
        None,
        description="Instead of features: one categorical column, for one-hot problems; or a list of them, with levels "
        "for problems that take codes, with buckets hashed for sparse problems.",
    )
    levels: int | list[Any] | dict[str, int | list[Any]] | None = Field(
        None,
        description="Of one column of codes: how many (cells 0..levels-1), or the list; of a list of codes: column = "
        "one of these.",
    )
    buckets: int | None = Field(
        None, ge=1, description="Of a list of codes: how many features their cells are hashed to."
    )
    impute: dict[str, Any] | None = Field(
        None,
        description="Column = what a missing cell counts as, public: a number or date within the column's bounds, a "
        "level, or 'own level' for one more level. Without, its sample is set aside (numbers, dates), or has no level.",
    )
    missing_indicators: list[str] | None = Field(
        None, description="Columns of impute that get one more feature: 1 where the cell is missing, 0 elsewhere."
    )
    derive: dict[str, Derivation] | None = Field(
        None, description="Name = a numeric feature made of other columns of the same row; its keys follow below."
    )
    dates: dict[str, Any] | None = Field(
        None,
        description="Column = [first, last], public dates in ISO 8601: a numeric feature, the days since the first "
        "(times are fractions, in UTC), clipped and scaled. 03/04/2021 is not guessed: see date_formats.",
    )
    date_parts: dict[str, Any] | None = Field(
        None,
        description="Column = some of 'month', 'quarter', 'weekday' and 'hour' (in UTC): of each part one feature of 0 "
        "and 1 for each of its levels. The column may stand under dates too.",
    )
    date_formats: dict[str, Any] | None = Field(
        None, description="Column of dates = how they are written that are not in ISO 8601, such as '%d.%m.%Y'."
    )
    sequence: SequenceColumns | None = Field(
        None, description="Instead of features: samples are sequences of codes; its keys follow below."
    )
    images: str | None = Field(
        None, description="Instead of features: column of raw bytes (Parquet), one a pixel, mapped to [0, 1]."
    )
    image_shape: list[int] | None = Field(
        None, description="Of images: the sides, such as [28, 28] or [3, 32, 32]; a cell of other length is set aside."
    )
    users: int | None = Field(
        None,
        ge=1,
        description="n, public number of training users, held out ones apart; the first n by a seeded order take part.",
    )
    all_users: int | None = Field(
        None,
        ge=1,
        description="Instead of users: public number of all users in the table. Those whom test_fraction does not hold "
        "out are the training users; not together with min_samples above 1.",
    )
    samples: int | None = Field(None, ge=1, description="Public number of samples of all training users.")
    min_samples: int = Field(1, ge=1, description="Users with fewer samples are left out (who is, must be public).")
    max_samples: int | None = Field(None, ge=1, description="Most samples of a user; a seeded choice of them is kept.")
    test_fraction: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Share of users held out for metrics, by user; 0.2 if not given, unless split_column says who is.",
    )
    split_column: str | None = Field(
        None, description="Instead of test_fraction: column that says of every user, in all rows, who is held out."
    )
    split_test: Any = Field(None, description="Its cell for users who are held out.")
    memory: int | None = Field(
        None,
        ge=0,
        description=f"MiB of samples, {MEMORY_MIB} if not given: those of a larger Parquet file go to a file in "
        "TMPDIR, with the same results. CSV, sequences and hashed codes stay in memory.",
    )

    @field_validator("dates", "impute", mode="before")
    @classmethod
    def _dates_as_text(cls, declared: Any) -> Any:
        """TOML's own dates, and those of Python, are kept as text, so that every record of a run can hold them."""
        return with_dates_as_text(declared)

    @property
    def declared_samples(self) -> int | None:
        """The public number of samples of all training users."""
        return self.samples

    @property
    def sample_limits(self) -> tuple[int, int | None]:
        """(fewest, most) samples of a user."""
        return self.min_samples, self.max_samples

    def held_out(self, users: int) -> int:
        """How many of ``users`` are held out by a share of them."""
        return held_out_users(self._test_share, users)

    @property
    def _test_share(self) -> float:
        """The share of users held out where no column says who is."""
        return _TEST_FRACTION if self.test_fraction is None else self.test_fraction

    @property
    def holds_out(self) -> str | None:
        """What holds users out, for sentences; None where nothing does."""
        if "split_column" in self.declarations:
            return f"data.split_column = {self.declarations['split_column']!r}"
        return f"data.test_fraction = {self._test_share}" if self._test_share else None

    @property
    def training_users(self) -> int | None:
        """How many users train, as ``users`` says or as follows from ``all_users``; None where neither is given.

        Raises:
            BadInput: both are given, or ``all_users`` leaves it to the data, or to nobody, who takes part.
        """
        if self.all_users is None:
            return self.users
        total = f"data.all_users = {self.all_users}"
        if self.users is not None:
            raise BadInput(
                f"{total} and data.users = {self.users} are both given: data.users follows from data.all_users and "
                "data.test_fraction, so give one of them"
            )
        if self.min_samples > 1:
            raise BadInput(
                f"{total} with data.min_samples = {self.min_samples}: how many users hold so many samples is not "
                "declared by it; give data.users, the public number of those who take part"
            )
        if "split_column" in self.declarations:
            raise BadInput(
                f"{total} with {self.holds_out}: how many users that column holds out is not declared by it; give "
                "data.users, the public number of those who take part"
            )
        left = self.all_users - self.held_out(self.all_users)
        if left < 1:
            raise BadInput(
                f"{total} with data.test_fraction = {self.test_fraction}: everybody is held out; lower test_fraction"
            )
        return left

    @cached_property
    def declarations(self) -> Mapping[str, Any]:
        """Column arguments of `userdp.data.read_table`.

        Raises:
            BadInput: a share and a column both say who is held out.
        """
        if self.split_column is not None and self.test_fraction is not None:
            raise BadInput(
                f"data.split_column = {self.split_column!r} and data.test_fraction = {self.test_fraction} both say who "
                "is held out; leave one of them out"
            )
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
        return shape_of(columns)

    @property
    @abstractmethod
    def file(self) -> str | Path:
        """The table's file."""

    def table(self, seed: int) -> Table:
        """The table with all users, and their labels.

        Raises:
            BadInput: a file that cannot be used, or a row without a user.
        """
        return table_of(
            Path(self.file),
            Columns(**self.declarations),
            min_samples=self.min_samples,
            max_samples=self.max_samples,
            seed=seed,
            memory=MEMORY_MIB if self.memory is None else self.memory,
        )

    def load(self, seed: int) -> Datasets:
        """See `DataSettings.load`."""
        wanted, table = self.training_users, self.table(seed)
        for sentence in table.report.met_nowhere:
            log.warning("%s", sentence)
        self._check_all(table.federation.users)
        train, test = self._parts(table, seed)
        if wanted is not None:
            if train.users < wanted:
                held_out = 0 if test is None else test.users
                everybody = table.federation.users
                other = f", or data.all_users = {everybody}" if self.min_samples == 1 and table.held_out is None else ""
                raise PopulationTooSmall(
                    f"data.users = {wanted}, but the data leave {train.users} training users (at least "
                    f"{self.min_samples} samples each, {held_out} users held out): declare at "
                    f"most {train.users}{other}, or lower data.min_samples or data.test_fraction"
                )
            if train.users > wanted:
                train = train.select(np.arange(wanted))
        return Datasets(train, test, table.report)

    def _parts(self, table: Table, seed: int) -> tuple[Federation, Federation | None]:
        """Those who train, and those who are held out.

        Raises:
            PopulationTooSmall: the split column holds out everybody, or nobody.
        """
        if table.held_out is not None:
            parts = [np.flatnonzero(table.held_out == held) for held in (False, True)]
            if not all(map(len, parts)):
                raise PopulationTooSmall(
                    f"{self.holds_out}: {len(parts[0])} users train and {len(parts[1])} are held out, and both parts "
                    "need at least one; check data.split_test"
                )
            return table.federation.select(parts[0]), table.federation.select(parts[1])
        if share := self._test_share:
            return split(table.federation, test_fraction=share, seed=seed)
        return table.federation, None

    def _check_all(self, found: int) -> None:
        """Compare the declared number of all users with that of the table: who there is, is public."""
        if self.all_users in (None, found):
            return
        problem = PopulationTooSmall if found < self.all_users else BadInput
        raise problem(
            f"data.all_users = {self.all_users}, but the data have {found} users in all: correct data.all_users"
        )

    @property
    def keeps_some_samples(self) -> bool:
        """See `DataSettings.keeps_some_samples`."""
        return self.max_samples is not None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See `DataSettings.assumptions`."""
        found = []
        if self.declared_users is None:
            found.append("the number of users was read from the data and is taken as public")
        found.append("which users there are is public, and so are the declared ranges and levels")
        if self.impute or self.derive:
            found.append(
                "what missing cells count as and how columns are derived is public, and not taken from the data"
            )
        if "split_column" in self.declarations:
            found.append(f"who is held out, as column {self.declarations['split_column']!r} says, is public")
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
        return self.training_users

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
        declared, entry = self.training_users, self._entry
        if declared is None and self.min_samples == 1:
            if "split_column" not in self.declarations:
                return entry.users - self.held_out(entry.users)
            if self.split_column is None and self.split_test is None:
                return entry.users - entry.test_users
        return declared

    @property
    def _entry(self) -> PublicDataset:
        if self.name not in PUBLIC_DATASETS:
            hint = did_you_mean(self.name, PUBLIC_DATASETS)
            raise BadInput(f"data.name = {self.name!r} is unknown{hint}; there are {', '.join(PUBLIC_DATASETS)}")
        return PUBLIC_DATASETS[self.name]

    @cached_property
    def declarations(self) -> Mapping[str, Any]:
        """The data set's own columns; naming features of any kind, a target or a share held out replaces them."""
        declared = public_columns(self._entry.name, super().declarations)
        if self.test_fraction is None:
            return declared
        return {name: value for name, value in declared.items() if name not in ("split_column", "split_test")}

    @property
    def file(self) -> Path:
        """The table's file, fetched where it is not in the cache."""
        return public_file(self.name, self.cache)
