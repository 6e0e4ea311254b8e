"""The keys of [data] that declare a table's columns.

Ranges and levels are never taken from the data, as privacy proofs rest on them.
"""

from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from userdp.data.tables.cells import cell_text
from userdp.data.tables.csv_form import CsvForm
from userdp.data.tables.dates import with_dates_as_text
from userdp.data.tables.derived import Derivation
from userdp.data.tables.follow_up import FollowUp
from userdp.data.tables.sequences import SequenceColumns
from userdp.settings import Section


def _cell(value: Any) -> Any:
    """Return a declared cell, '' for a missing one of pandas; refuse objects that no file of a run can hold."""
    if value is None or isinstance(value, str | float | list | tuple | set | Mapping):  # of several cells more is told
        return value
    if not (text := cell_text(value)):
        return text
    if not isinstance(value, int | Decimal | date | time | np.generic):
        raise PydanticCustomError("cell", "Input should be text, a number, true, false or a date")
    return value


Cell = Annotated[Any, AfterValidator(_cell)]


class Declaration(Section):
    """The declarations of features, target and split; ranges and levels must be public knowledge."""

    model_config = ConfigDict(strict=True)

    features: list[str] | None = None
    """Numeric feature columns; each needs a range. 'pixel_[0-63]' names a run of 64 columns, here and in ranges, impute
    and missing_indicators."""
    ranges: dict[str, list[float]] | None = None
    """Column = [low, high]: cells are clipped into it and scaled."""
    categorical: dict[str, list[Cell]] | None = None
    """Column = [levels]: one feature of 0 and 1 for each level; other cells become all zeros."""
    scale: Literal["symmetric", "unit"] | None = None
    """Ranges are scaled to [-1, 1] (symmetric, the default) or [0, 1] (unit)."""
    target: str | None = None
    """Column to predict."""
    target_range: list[float] | None = None
    """[low, high] of the target, which is clipped into it and scaled to [-1, 1]."""
    positive: Cell = None
    """The target cell that means 1; all others mean 0, and a missing one sets its sample aside."""
    target_levels: list[Cell] | None = None
    """The classes of the target, such as ['low', 'high'] or [0, 1, 2], for softmax and classes of torch modules; any
    other cell sets its sample aside. Predictions have these names."""
    exposure: str | None = None
    """Column of what a count is counted over, such as person-years, with its public [low, high] above 0 in ranges:
    rates are per 1 of it. Its logarithm is added to the score of poisson; a missing one sets its sample aside."""
    offset: str | None = None
    """Instead: column to add to a linear model's score as it is, with its [low, high] in ranges; of a target with a
    target_range in that unit."""
    codes: str | list[str] | None = None
    """Instead of features: one categorical column, for one-hot problems; or a list of them, with levels for problems
    that take codes, or with buckets, hashed, for sparse problems."""
    levels: int | list[Cell] | dict[str, int | list[Cell]] | None = None
    """Levels of one column of codes: their number (cells 0..levels-1), or the list; of a list of codes: column = one of
    these."""
    buckets: int | None = Field(None, ge=1)
    """Number of features to which the cells of a list of codes are hashed."""
    impute: dict[str, Cell] | None = None
    """Column = the public value of a missing cell: a number or date within the column's bounds, a level, or 'own level'
    for one more. Without it, the sample is set aside (numbers, dates) or has no level."""
    missing_indicators: list[str] | None = None
    """Columns of impute that get one more feature: 1 if the cell is missing, else 0."""
    derive: dict[str, Derivation] | None = None
    """Name = a numeric feature made of other columns of the same row; its keys follow below."""
    dates: dict[str, Any] | None = None
    """Column = [first, last], public dates in ISO 8601: a numeric feature, the days since the first (times are
    fractions, in UTC), clipped and scaled. 03/04/2021 is not guessed: see date_formats."""
    date_parts: dict[str, Any] | None = None
    """Column = some of 'month', 'quarter', 'weekday' and 'hour' (in UTC): each level of a part is a feature of 0 and 1.
    The column may be in dates too; if it is not, a cell that is no date becomes all zeros."""
    date_formats: dict[str, Any] | None = None
    """Column of dates = their format if it is not ISO 8601, such as '%d.%m.%Y'."""
    sequence: SequenceColumns | None = None
    """Instead of features: samples are sequences of codes; its keys follow below."""
    survival: FollowUp | None = None
    """Instead of a target: samples are periods of a person's follow-up; its keys follow below."""
    images: str | None = None
    """Instead of features: column of raw bytes (Parquet), one per pixel, mapped to [0, 1]."""
    image_shape: list[int] | None = None
    """Sides of images, such as [28, 28]; a cell of another length sets its sample aside."""
    split_column: str | None = None
    """Instead of test_fraction: column that marks, in all rows of a user, who is held out."""
    split_test: Cell = None
    """The cell of split_column for users who are held out."""

    csv: CsvForm | None = None
    """Form of a CSV file, by default with commas, decimal points and in UTF-8; its keys follow below."""

    @field_validator("dates", "impute", mode="before")
    @classmethod
    def _dates_as_text(cls, declared: Any) -> Any:
        """Store dates of TOML and Python as text, so that every record of a run can hold them."""
        return with_dates_as_text(declared)
