"""Tables as sources of data: a file of one's own, or a public data set."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from userdp.data.federation import Federation
from userdp.data.shape import Shape
from userdp.data.source import Datasets, DataSettings
from userdp.data.tables.columns import Columns
from userdp.data.tables.contributions import held_out_users, slots, split
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.public import PUBLIC_DATASETS, PublicDataset, public_columns, public_dataset, public_file
from userdp.data.tables.streamed import MEMORY_MIB
from userdp.data.tables.tabular import Table, table_of
from userdp.errors import BadInput, PopulationTooSmall
from userdp.randomness import text_words

log = logging.getLogger("userdp")
_TEST_FRACTION = 0.2


class TableSource(Declaration, DataSettings):
    """Declarations that tables and public data sets share; ranges and levels must be public knowledge."""

    users: int | None = Field(None, ge=1)
    """n, public number of training users, without held-out ones: the first n in a seeded order."""
    all_users: int | None = Field(None, ge=1)
    """Instead of users: public number of all users in the table; those not held out by test_fraction train. Not
    together with min_samples above 1."""
    samples: int | None = Field(None, ge=1)
    """Public number of samples of all training users."""
    min_samples: int = Field(1, ge=1)
    """Users with fewer samples are left out (the list of these users must be public)."""
    max_samples: int | None = Field(None, ge=1)
    """Most samples of a user; of more, a seeded choice."""
    test_fraction: float | None = Field(None, ge=0, lt=1)
    """Share of users held out for metrics; 0.2 by default, unless split_column is set."""
    memory: int | None = Field(
        None,
        ge=0,
        description=f"MiB of samples, {MEMORY_MIB} by default: those of a larger Parquet file go to a file in TMPDIR, "
        "with the same results. CSV, sequences and hashed codes stay in memory.",
    )

    @property
    def declared_users(self) -> int | None:
        return self.training_users

    @property
    def declared_held_out(self) -> int | None:
        return None if self.all_users is None else self.held_out(self.all_users)

    def numbers(self, seed: int) -> NDArray[np.int64] | None:
        if self.all_users is None or not self._test_share:
            return None
        return np.argsort(np.concatenate(slots(self.all_users, self.held_out(self.all_users), seed)))

    @property
    def declared_samples(self) -> int | None:
        return self.samples

    @property
    def sample_limits(self) -> tuple[int, int | None]:
        return self.min_samples, self.max_samples

    def held_out(self, users: int) -> int:
        """Return how many of ``users`` are held out by `test_fraction`."""
        return held_out_users(self._test_share, users)

    @property
    def _test_share(self) -> float:
        return _TEST_FRACTION if self.test_fraction is None else self.test_fraction

    @property
    def holds_out(self) -> str | None:
        if "split_column" in self.declarations:
            return f"data.split_column = {self.declarations['split_column']!r}"
        return f"data.test_fraction = {self._test_share}" if self._test_share else None

    @property
    def held_out_by_data(self) -> bool:
        return self.split_column is not None

    def everybody(self) -> Self:
        return self.model_copy(update={"test_fraction": 0.0})

    def labels(self, seed: int) -> NDArray[np.object_]:
        return self.table(seed).labels

    @property
    def training_users(self) -> int | None:
        """The training users, by ``users`` or ``all_users``; `BadInput` if these contradict or need the data."""
        if self.all_users is None:
            return self.users
        total = f"data.all_users = {self.all_users}"
        advice = "give data.users, the public number of those who take part"
        if self.users is not None:
            raise BadInput(
                f"{total} and data.users = {self.users} are both given: the first implies the second; give one"
            )
        if self.min_samples > 1:
            small = f"data.min_samples = {self.min_samples}: the number of users with so many samples is not declared"
            raise BadInput(f"{total} with {small}; {advice}")
        if "split_column" in self.declarations:
            raise BadInput(f"{total} with {self.holds_out}: the number of users it holds out is not declared; {advice}")
        left = self.all_users - self.held_out(self.all_users)
        if left < 1:
            share = f"data.test_fraction = {self._test_share}"
            raise BadInput(f"{total} with {share}: everybody is held out; lower test_fraction")
        return left

    @cached_property
    def declarations(self) -> Mapping[str, Any]:
        """The arguments of `Columns`; refused if a share and a column both hold users out."""
        if self.split_column is not None and self.test_fraction is not None:
            both = f"data.split_column = {self.split_column!r} and data.test_fraction = {self.test_fraction}"
            raise BadInput(f"{both} both hold users out; leave one of them out")
        return {
            name: value
            for name in Columns.model_fields
            if (value := getattr(self, name, None)) not in (None, "", [], {})
        }

    @cached_property
    def columns(self) -> Columns:
        """The declared columns; raises `BadInput` for contradictory or incomplete declarations."""
        try:
            if self.survival is not None:
                self.survival.refuse_limits(*self.sample_limits)
            return Columns(**self.declarations)
        except BadInput as error:
            raise BadInput(f"[data] {error}") from None

    @cached_property
    def sample_shape(self) -> Shape:
        return self.columns.shape

    @property
    @abstractmethod
    def file(self) -> str | Path:
        """The table's file."""

    def table(self, seed: int, *, named: bool = False) -> Table:
        """Read the table with all users, and their labels; raise as `userdp.data.read_table` does.

        ``named``: see `userdp.data.tables.tabular.table_of`.
        """
        return table_of(
            Path(self.file),
            self.columns,
            min_samples=self.min_samples,
            max_samples=self.max_samples,
            seed=seed,
            memory=MEMORY_MIB if self.memory is None else self.memory,
            named=named,
        )

    def load(self, seed: int, hidden: Callable[[], bool] = lambda: False) -> Datasets:
        wanted = self.training_users
        table = self.table(seed, named=self.max_samples is not None and wanted is not None and hidden())
        for sentence in table.report.doubts:
            log.warning("%s", sentence)
        everybody = table.federation.users
        protected = self._differs(table) and hidden()
        with suppress(BadInput):  # without a plan there is no run, and what is wrong with the table helps more
            protected = protected or (self._decides(table) and hidden())
        if protected:
            return self._in_places(table, seed)
        if self.all_users is not None and self.all_users != everybody:
            problem = PopulationTooSmall if everybody < self.all_users else BadInput
            remedy = table.report.doubtful_ids or "correct data.all_users, or rows that are of no person"
            raise problem(f"data.all_users = {self.all_users}, but the data have {everybody} users in all: {remedy}")
        train, test = self._parts(table, seed)
        if wanted is not None and train.users < wanted:
            held_out = 0 if test is None else test.users
            other = f", or data.all_users = {everybody}" if self.min_samples == 1 and table.held_out is None else ""
            other = "" if table.report.doubtful_ids else other
            raise PopulationTooSmall(
                f"data.users = {wanted}, but the data leave {train.users} training users (at least {self.min_samples} "
                f"samples each, {held_out} users held out): declare at most {train.users}{other}, or lower "
                "data.min_samples or data.test_fraction"
            )
        if wanted is not None and train.users > wanted:
            train = train.select(np.arange(wanted))
        return Datasets(train, test, table.report)

    def _differs(self, table: Table) -> bool:
        """Return whether the table holds another number of users than ``all_users``, or too few for ``users``."""
        everybody = table.federation.users
        if self.all_users is not None or self.users is None:
            return self.all_users not in (None, everybody)
        held_out = self.held_out(everybody) if table.held_out is None else np.count_nonzero(table.held_out)
        return everybody - int(held_out) < self.users

    def _decides(self, table: Table) -> bool:
        """Return whether the number of users in a table, which is none of public people, decides who trains."""
        return False

    def _in_places(self, table: Table, seed: int) -> Datasets:
        """Return the users of a table whose number is protected, in the first of the declared places; no more fit.

        No message shows the number. Raises `BadInput`: more users than places, nobody in one of the parts, or a
        declaration with which it would follow from the number of users who trains.

        *Formal guarantee*: adding a user to the table, or removing one, adds or removes one training user, or none, for
        every seed. *Why.* Those held out have the smallest keys by their labels, as many as declared; so a further user
        trains, or is held out in the place of one who then trains.
        """
        places, everybody = self.all_users or self.users, table.federation.users
        assert places is not None
        field = "data.all_users" if self.all_users is not None else "data.users"
        if self.all_users is None and (self.holds_out or self.min_samples > 1):
            raise BadInput(
                f"{field} = {places} with people who do not train: who does would follow from the number of users, "
                "which is protected where one may be added or removed; declare data.all_users, a number of places that "
                "is enough for all, without data.split_column and data.min_samples"
            )
        if everybody > places:
            raise BadInput(
                f"{field} = {places}: there are more users than these places, and their number is protected; declare "
                "more places, by public knowledge, unless data.user writes the same people in two ways"
            )
        held_out = self.held_out(places)
        if everybody <= held_out:
            raise BadInput(f"{field} = {places}: too few of these places hold a user; declare fewer")
        order = np.argsort(text_words(f"held out {seed}", table.labels), kind="stable")
        parts = [np.sort(order[held_out:]), np.sort(order[:held_out])]
        train, test = (table.federation.select(part) if len(part) else None for part in parts)
        return Datasets(train, test, table.report)

    def _parts(self, table: Table, seed: int) -> tuple[Federation, Federation | None]:
        """Return the training and the held-out users; refuse a split column that holds out everybody, or nobody."""
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

    @property
    def keeps_some_samples(self) -> bool:
        return self.max_samples is not None

    @property
    def assumptions(self) -> tuple[str, ...]:
        found = []
        if self.declared_users is None:
            found.append("the number of users was read from the data and is taken as public")
        found.append("which users there are is public, and so are the declared ranges and levels")
        if self.impute or self.derive:
            found.append(
                "what missing cells count as and how columns are derived is public, and not taken from the data"
            )
        form = self.declarations.get("sequence")
        if form is not None and form.tokenizer is not None:
            found.append("the tokenizer is public, and made without the text of these users")
        if "split_column" in self.declarations:
            found.append(f"who is held out, as column {self.declarations['split_column']!r} says, is public")
        found.append("a person is one value of the user column, the same wherever their samples lie")
        if self.min_samples > 1:
            found.append(f"who holds at least {self.min_samples} samples is public")
        return tuple(found)


class TableData(TableSource):
    """A CSV, Excel or Parquet file with a column that names the user of each row."""

    kind: Literal["table"]
    path: str
    """A .csv, .tsv (both also with .gz), .xlsx or .parquet file; relative to the configuration file."""
    user: str
    """Column that names the user of each row."""

    @property
    def file(self) -> str:
        return self.path

    @property
    def called(self) -> str:
        return Path(self.path).stem

    def _decides(self, table: Table) -> bool:
        if self.all_users is not None:
            return self._test_share > 0
        others = self.holds_out is not None or self.min_samples > 1 or table.federation.users != self.users
        return self.users is not None and others


class PublicData(TableSource):
    """One of the public data sets, with its own columns unless others are declared."""

    published: ClassVar[bool] = True
    kind: Literal["public"]
    name: str = Field(description=f"One of {', '.join(PUBLIC_DATASETS)}.")
    cache: str | None = None
    """Folder of the files; by default the environment variable USERDP_DATA, or ~/.cache/userdp."""

    @property
    def declared_users(self) -> int | None:
        """See `DataSettings.declared_users`; the registry knows the number unless small users are left out."""
        declared, entry = self.training_users, self._entry
        if declared is None and self.min_samples == 1:
            if "split_column" not in self.declarations:
                return entry.users - self.held_out(entry.users)
            if self.split_column is None and self.split_test is None:
                return entry.users - entry.test_users
        return declared

    @property
    def called(self) -> str:
        return self.name

    @property
    def _entry(self) -> PublicDataset:
        return public_dataset(self.name, "data.name")

    @cached_property
    def declarations(self) -> Mapping[str, Any]:
        """The data set's own columns; naming features of any kind, a target or a share held out replaces them."""
        declared = public_columns(self._entry.name, super().declarations)
        if self.test_fraction is None:
            return declared
        return {name: value for name, value in declared.items() if name not in ("split_column", "split_test")}

    @property
    def file(self) -> Path:
        """See `TableSource.file`; it is fetched if it is not in the cache."""
        return public_file(self.name, self.cache)
