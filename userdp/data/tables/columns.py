"""Columns of a table: which are declared, and how they are turned into numbers within declared bounds.

Ranges and levels are declared, never taken from the data: privacy proofs rest on them. No message holds a value of
the data, only counts, column names and row numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np

from userdp.data.tables.dates import DateColumns
from userdp.data.tables.declared import Levels, Range, checked_levels, checked_range, did_you_mean, level_count
from userdp.data.tables.derived import Derivation
from userdp.data.tables.imputed import OWN_LEVEL, imputed_code, imputed_level, imputed_number
from userdp.data.tables.patterns import expanded, expanded_keys
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.target_declarations import check_target
from userdp.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns of a table are what; see `userdp.data.tables.tabular.read_table` for their meaning.

    Raises:
        BadInput: declarations that contradict each other or miss something.
    """

    user: str
    features: Sequence[str] = ()
    categorical: Mapping[str, Sequence[object]] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    scale: Literal["symmetric", "unit"] = "symmetric"
    target: str | None = None
    target_range: Sequence[float] | None = None
    positive: object | None = None
    target_levels: Sequence[object] | None = None
    codes: str | Sequence[str] | None = None
    levels: Levels | Mapping[str, Levels] | None = None
    buckets: int | None = None
    sequence: SequenceColumns | None = None
    images: str | None = None
    image_shape: Sequence[int] | None = None
    impute: Mapping[str, object] = field(default_factory=dict)
    missing_indicators: Sequence[str] = ()
    derive: Mapping[str, Derivation] = field(default_factory=dict)
    dates: Mapping[str, Sequence[object]] = field(default_factory=dict)
    date_parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    date_formats: Mapping[str, str] = field(default_factory=dict)
    split_column: str | None = None
    split_test: object | None = None

    def __post_init__(self) -> None:
        for name in ("features", "missing_indicators"):
            object.__setattr__(self, name, expanded(name, getattr(self, name)))
        for name in ("ranges", "impute", "dates", "date_parts", "date_formats"):
            object.__setattr__(self, name, expanded_keys(name, getattr(self, name)))
        if self.scale not in ("symmetric", "unit"):
            raise BadInput(f"scale must be symmetric or unit, got {self.scale!r}")
        check_target(self.target, self.target_range, self.positive, self.target_levels)
        if (self.split_column is None) != (self.split_test is None):
            raise BadInput("split_test is the cell of split_column of users who are held out; give both or neither")
        self._check_kind()
        self._check_codes()
        self.dated.check(numbers=self.features, target=self.target)
        self._check_ranges()
        for column, levels in self.categorical.items():
            checked_levels(f"categorical.{column}", levels)
        names = [self.user, *self._listed, *self._beside, *self.derive]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"column {twice[0]!r} is declared twice; user, target and features must all differ")
        self._check_derived()
        self._check_imputed()

    def _check_kind(self) -> None:
        """Refuse features of no kind, or of several."""
        kinds = [bool(self.features or self.categorical or self.derive or self.dated.listed)]
        kinds += [one is not None for one in (self.codes, self.sequence, self.images)]
        if sum(kinds) != 1:
            others = [name for name in ("codes", "sequence", "images") if getattr(self, name) is not None]
            for column in self.dated.listed:
                raise BadInput(
                    f"{'dates' if self.dates else 'date_parts'} names {column!r}, and {others[0]} takes the place of "
                    "all features: leave one of the two out"
                )
            raise BadInput(
                "declare either features and categorical columns, or one column of codes (or a list of them), or a "
                "sequence, or images"
            )
        if self.sequence is not None:
            self.sequence.check()
            if self.target is not None:
                raise BadInput(f"target = {self.target!r}: a sequence predicts a column of its own; leave target out")
        if (self.images is None) != (self.image_shape is None):
            raise BadInput(
                "image_shape says how many bytes a cell of images has, such as [28, 28]; give both or neither"
            )
        shape = [1] if self.image_shape is None else self.image_shape
        if not shape or not all(isinstance(side, int) and side >= 1 for side in shape):
            raise BadInput(f"image_shape = {shape}: must be whole numbers of at least 1, such as [28, 28]")

    def _check_ranges(self) -> None:
        for column in self.features:
            if column not in self.ranges:
                raise BadInput(
                    f"ranges has no [low, high] for the numeric feature {column!r}; declare its public bounds, "
                    "or list the column under categorical with its levels, or under dates"
                )
        dates = set(self.dated.listed)
        for column, bounds in self.ranges.items():
            if column in dates:
                raise BadInput(
                    f"ranges names {column!r}, a column of dates: declare its bounds under dates, not under ranges"
                )
            if column not in self.features:
                raise BadInput(
                    f"ranges names {column!r}, which is not in features{did_you_mean(column, self.features)}"
                )
            checked_range(f"ranges.{column}", bounds)

    def _check_codes(self) -> None:
        if self.codes is None and self.levels is not None:
            raise BadInput(
                "levels describes codes, and codes names no column; for features use categorical, for a target of two "
                "classes positive, for one of several target_levels"
            )
        if self.codes is None or isinstance(self.codes, str):
            if self.buckets is not None:
                raise BadInput(
                    f"buckets = {self.buckets}: cells are hashed for a LIST of codes, and codes = {self.codes!r}; "
                    "list the columns, such as codes = ['film', 'genre']"
                )
        elif not self.codes or not all(isinstance(name, str) for name in self.codes):
            raise BadInput(f"codes = {self.codes!r}: must be one column's name, or a list of names, at least one")
        elif not isinstance(self.levels, Mapping):
            self._check_hashed()
        if isinstance(self.codes, str) and self.levels is None:
            raise BadInput(f"levels is missing: how many levels column {self.codes!r} has, or a list of them")
        if isinstance(self.levels, Mapping):
            self._check_levels(self.levels)
        for column, levels in self.coded.items():
            level_count(self._levels_of(column), levels)

    def _check_levels(self, levels: Mapping[str, Levels]) -> None:
        """Refuse levels that are not those of the list of codes, column by column."""
        if isinstance(self.codes, str) or self.buckets is not None:
            raise BadInput("levels = {column = ...} describes a list of codes that are not hashed: leave buckets out")
        codes = list(self.codes or ())
        for column in codes:
            if column not in levels:
                raise BadInput(
                    f"levels.{column} is missing: how many levels the column of codes has, or a list of them"
                )
        for column in levels:
            if column not in codes:
                raise BadInput(f"levels names {column!r}, which is not in codes{did_you_mean(column, codes)}")

    def _check_hashed(self) -> None:
        if self.levels is not None:
            raise BadInput(
                "levels describes one column of codes; for a list of columns give buckets instead, or levels = {column "
                "= ...}"
            )
        if self.buckets is None:
            raise BadInput(
                f"buckets is missing: how many numbers the cells of {list(self.codes or ())} are hashed to; or give "
                "levels = {column = ...}"
            )
        if isinstance(self.buckets, bool) or not isinstance(self.buckets, int) or not 1 <= self.buckets < 2**31:
            raise BadInput(f"buckets = {self.buckets!r}: must be a whole number in 1..2^31 - 1")

    def _check_derived(self) -> None:
        for name, made in self.derive.items():
            checked_range(f"derive.{name}.range", made.range)
            made.check(name)
            wanted = "dates" if made.of_dates else "numbers"
            for column in made.of:
                if reason := self._not_of(wanted, column):
                    raise BadInput(f"derive.{name}.of names {column!r}, {reason}; name columns of {wanted}")

    def _not_of(self, wanted: str, column: str) -> str:
        """Why a derived column of numbers, or of dates, cannot be made of this one; nothing if it can."""
        if column == self.target:
            return "the target, which features must not tell"
        if column in self.derive:
            return "which is derived itself"
        if column in self.text:
            return "which holds text"
        if wanted == "numbers":
            return "which holds dates (days_between takes two of them)" if column in self.dated.read else ""
        return "which is declared as numbers" if column in self.numbers_read else ""

    def _check_imputed(self) -> None:
        for column in self.impute:
            self._check_imputable(column)
        for column in self.numbers_read:
            self.missing_number(column)
        for column in self.dated.read:
            self.missing_moment(column)
        for column in [*self.categorical, *self.coded]:
            self.missing_code(column)
        if self.missing_indicators and self.codes is not None:
            raise BadInput("missing_indicators adds features, and codes takes their place; impute a level of its own")
        for place, column in enumerate(self.missing_indicators):
            told = f"missing_indicators names {column!r}"
            if column in self.missing_indicators[:place]:
                raise BadInput(f"{told} twice; leave one out")
            if column not in self.impute:
                hint = did_you_mean(column, self.impute) or f"; declare impute.{column}"
                raise BadInput(f"{told}, for whose missing cells nothing is declared{hint}")
            if self.impute[column] == OWN_LEVEL:
                raise BadInput(f"{told}, whose missing cells are a level of their own already; leave it out")

    def _check_imputable(self, column: str) -> None:
        """Refuse columns of which no missing cell can be replaced."""
        told = f"impute names {column!r}"
        if column == self.target:
            raise BadInput(f"{told}, the target: of a sample without one nothing can be learnt, and it is set aside")
        if column in self.hashed:
            raise BadInput(f"{told}, whose cells are hashed: a missing one has a bucket already; leave it out")
        if column in self.derive:
            raise BadInput(f"{told}, which is derived: declare derive.{column}.otherwise")
        if self.sequence is not None or self.images is not None:
            raise BadInput(f"{told}: a sequence has a code for what is missing, and a picture has no such cells")
        known = [name for name in self.inputs if name not in self.hashed]
        if column not in known:
            raise BadInput(f"{told}, which no feature is made of{did_you_mean(column, known)}")

    def missing_number(self, column: str) -> float | None:
        """What a missing cell of a column of numbers counts as; None where nothing is declared.

        Raises:
            BadInput: what is declared is no number within the column's range.
        """
        if column not in self.impute:
            return None
        bounds = checked_range(column, self.ranges[column]) if column in self.ranges else None
        return imputed_number(column, self.impute[column], bounds)

    def missing_moment(self, column: str) -> np.datetime64 | None:
        """What a missing cell of a column of dates counts as; None where nothing is declared.

        Raises:
            BadInput: what is declared is no date within the column's bounds.
        """
        return self.dated.imputed(column, self.impute[column]) if column in self.impute else None

    def missing_code(self, column: str) -> int | None:
        """The position of a missing cell among the levels, one after the last for a level of its own; None likewise.

        Raises:
            BadInput: what is declared is no level.
        """
        if column not in self.impute:
            return None
        value = self.impute[column]
        if column in self.categorical:
            levels = checked_levels(column, self.categorical[column])
            return imputed_level(column, value, levels, f"categorical.{column}")
        coded, field = self.coded[column], self._levels_of(column)
        if isinstance(coded, int):
            return imputed_code(column, value, coded)
        return imputed_level(column, value, checked_levels(field, coded), field)

    @property
    def dated(self) -> DateColumns:
        """What is declared of columns of dates."""
        between = [column for made in self.derive.values() if made.of_dates for column in made.of]
        return DateColumns(self.dates, self.date_parts, self.date_formats, between)

    @property
    def coded(self) -> Mapping[str, Levels]:
        """Column of codes -> its levels; nothing where cells are hashed."""
        if isinstance(self.levels, Mapping):
            return {name: self.levels[name] for name in self.codes or ()}
        return {} if self.levels is None or not isinstance(self.codes, str) else {self.codes: self.levels}

    @property
    def code_counts(self) -> tuple[int, ...]:
        """How many codes each of them has, a level of missing cells included."""
        return tuple(
            level_count(self._levels_of(name), levels) + (self.impute.get(name) == OWN_LEVEL)
            for name, levels in self.coded.items()
        )

    def _levels_of(self, column: str) -> str:
        """What declares the levels of a column of codes, for sentences."""
        return "levels" if isinstance(self.codes, str) else f"levels.{column}"

    @property
    def hashed(self) -> Sequence[str]:
        """The columns whose cells are hashed."""
        return () if self.buckets is None or self.codes is None else list(self.codes)

    @property
    def pixels(self) -> int:
        """Bytes of a picture."""
        return prod(self.image_shape or ())

    @property
    def inputs(self) -> list[str]:
        """The columns that features are made of."""
        listed = self._listed
        read = (column for made in self.derive.values() for column in made.of)
        return [*listed, *dict.fromkeys(column for column in read if column not in listed)]

    @property
    def _listed(self) -> list[str]:
        """The columns that are features themselves."""
        pictures = [] if self.images is None else [self.images]
        steps = [] if self.sequence is None else self.sequence.columns
        return [*self.features, *self.dated.listed, *self.categorical, *self.hashed, *self.coded, *steps, *pictures]

    @property
    def numbers_read(self) -> list[str]:
        """The columns of numbers that features are made of: features themselves, and what derived ones are made of."""
        made = [column for each in self.derive.values() if not each.of_dates for column in each.of]
        return list(dict.fromkeys([*self.features, *made]))

    @property
    def scaled_ranges(self) -> dict[str, Range]:
        """Numeric feature -> its declared range: those of the table, dates (in days since the first), derived ones."""
        own = {name: checked_range(f"ranges.{name}", self.ranges[name]) for name in self.features}
        made = {name: checked_range(f"derive.{name}.range", made.range) for name, made in self.derive.items()}
        return own | {name: self.dated.range(name) for name in self.dates} | made

    @property
    def largest_norm(self) -> float:
        """Of a sample's features: numbers and indicators are at most 1, and of a column's levels at most one is 1."""
        levels = len(self.categorical) + self.dated.parts_in_all
        return float(len(self.scaled_ranges) + len(self.missing_indicators) + levels)

    @property
    def names(self) -> list[str]:
        """Every column that is declared."""
        return [self.user, *self.inputs, *self._beside]

    @property
    def _beside(self) -> list[str]:
        """The columns that no feature is made of, whose sample a row is apart."""
        return [name for name in (self.target, self.split_column) if name is not None]

    @property
    def feature_names(self) -> list[str]:
        """The feature columns that samples get; or the columns of codes, of a sequence's steps, or of pictures.

        Numeric ones, dates, derived ones, those that say that a cell is missing, then one for each level, those of
        parts of dates last.
        """
        if self.sequence is not None:
            return list(self.sequence.channels)
        if self.codes is not None or self.images is not None:
            return self._listed
        hot = [name for column in self.categorical for name in self.level_names(column)]
        hot += [name for column in self.date_parts for name in self.dated.part_names(column)]
        gone = [f"{column} is missing" for column in self.missing_indicators]
        return [*self.features, *self.dates, *self.derive, *gone, *hot]

    def level_names(self, column: str) -> list[str]:
        """The features that a categorical column becomes, in their order: one for each code that its cells can have."""
        own = [f"{column} is missing"] if self.impute.get(column) == OWN_LEVEL else []
        return [*(f"{column}={level}" for level in self.categorical[column]), *own]

    @property
    def text(self) -> set[str]:
        """Columns compared as text."""
        named = self.positive is not None or self.target_levels is not None
        classes = {self.target} if self.target is not None and named else set()
        split = set() if self.split_column is None else {self.split_column}
        listed = {name for name, levels in self.coded.items() if not isinstance(levels, int)}
        listed |= set() if self.sequence is None else self.sequence.listed
        return {self.user, *self.categorical, *self.hashed, *classes, *split, *listed}

    @property
    def raw(self) -> set[str]:
        """Columns of which every byte counts: a text's characters, pictures."""
        text = None if self.sequence is None else self.sequence.text
        return {name for name in (text, self.images) if name is not None}
