"""The file of `userdp find`: [data] [find] [privacy], with `seed` on top."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from simulations.config.errors import sentences
from simulations.config.run_config import NAME, read_absolute
from userdp.accounting.guarantee import Privacy, Relation
from userdp.data.tables.csv_form import CsvForm
from userdp.errors import BadInput
from userdp.settings import Section


class TableSection(Section):
    """The table, and who is in it."""

    kind: Literal["table"] = "table"
    """A table, as in a run's file."""
    path: str
    """A .csv, .tsv (both also with .gz), .xlsx or .parquet file; relative to this file."""
    user: str
    """Column that names the user of each row."""
    all_users: int = Field(ge=1, description="Public number of all users in the table.")
    date_formats: dict[str, str] = Field(
        {}, description="Column of dates = their format if it is not ISO 8601, such as '%d.%m.%Y'."
    )
    csv: CsvForm | None = Field(None, description="Form of a CSV file, as a run's data.csv.")


class Weights(Section):
    """Shares of the budget, relative to each other."""

    ranges: float = Field(1.0, gt=0, description="Weight of each end of a range.")
    levels: float = Field(1.0, gt=0, description="Weight of the levels of each column of words.")
    max_samples: float = Field(1.0, gt=0, description="Weight of the most samples of a user.")


class FindSection(Section):
    """The facts to find. The kind of each column is declared, because guessing it would read the data."""

    numbers: list[str] = Field([], description="Columns of numbers, whose ranges are found.")
    dates: list[str] = Field([], description="Columns of dates, whose first and last year are found.")
    words: list[str] = Field([], description="Columns of words, whose levels are found: those that many users hold.")
    target: str | None = Field(None, description="The one of numbers or words that a model is to predict.")
    max_samples: bool = True
    """Find the most samples that a run needs of a user, too."""
    share: float = Field(0.01, gt=0, lt=0.25)
    """Share of the samples that may lie below a range, and above it, all users weighing the same. If noise hides it, a
    larger share is found, and the range is stretched as that of normal numbers would be."""
    surplus: float = Field(0.1, gt=0, lt=0.5, description="Share of the users who may hold more than max_samples.")
    most_levels: int = Field(20, ge=1)
    """Most levels of one user that count, for each column of words; of more, a random choice."""
    weights: Weights = Weights.model_validate({})
    """The split of the budget; its keys follow below."""


class FindPrivacy(Section):
    """The budget of all facts together; it adds to that of every run on the same people."""

    epsilon: float = Field(gt=0, description="Budget; a part of what all uses of the table may cost.")
    delta: float = Field(ge=0, lt=1, description="Well below 1/users; levels of words need one above 0.")
    relation: Relation = "replace_one"
    """Neighbours replace one user, or (add_or_remove) one has no rows; take that of the runs that follow."""
    noise: Literal["seeded", "secure"] = "seeded"
    """Source of the noise: the seed (simulation), or the operating system, for facts of real people."""
    allow_large_delta: bool = Field(False, description="Accept delta >= 1/users, which may publish a user's data.")
    account: str | None = Field(None, pattern=NAME)
    """Account that the search is entered into before it reads the table; refused if it exceeds what is left."""
    accounts: str | None = Field(None, description="Address of the accounts' database, as for a run.")


class FindConfig(Section):
    """The configuration of a search for facts."""

    seed: int = Field(0, ge=0, lt=2**63, description="Seed of simulated noise and of users' choices of levels.")
    data: TableSection
    find: FindSection
    privacy: FindPrivacy

    @cached_property
    def columns(self) -> list[str]:
        """The columns to read, that of users first."""
        return [self.data.user, *self.find.numbers, *self.find.dates, *self.find.words]

    def check(self) -> None:
        """Raise `BadInput` for columns named twice, a target that is none of them, or a delta without use or too large.

        No data are read.
        """
        named, target = self.columns, self.find.target
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise BadInput(
                f"column {twice[0]!r} is named twice among data.user, find.numbers, dates and words: name it once"
            )
        if target is not None and target not in (*self.find.numbers, *self.find.words):
            raise BadInput(f"find.target = {target!r}: must be one of find.numbers or find.words; add it there")
        if unknown := sorted({*self.data.date_formats} - {*self.find.dates}):
            raise BadInput(f"data.date_formats names {unknown[0]!r}, which is none of find.dates; add it there")
        if self.find.words and not self.privacy.delta:
            raise BadInput("privacy.delta = 0: levels of words get Gaussian noise; set a delta such as 1e-7")
        asked = self.privacy
        privacy = Privacy(asked.epsilon, asked.delta, allow_large_delta=asked.allow_large_delta)
        privacy.check_population(self.data.all_users)


def load_find(path: Path, overrides: Sequence[str] = ()) -> FindConfig:
    """Read a file of `userdp find`; raise as `simulations.config.run_config.load_config` does."""
    return parse_find(read_absolute(path, overrides))


def parse_find(raw: Mapping[str, Any]) -> FindConfig:
    """Check plain values and return their configuration; BadInput with one sentence a line for each problem."""
    try:
        config = FindConfig.model_validate(raw, strict=True)
    except ValidationError as error:
        raise BadInput("\n".join(sentences(error, raw, FindConfig))) from None
    config.check()
    return config
