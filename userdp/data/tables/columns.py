"""Columns of a table: which are declared, and how they are turned into numbers within declared bounds.

Ranges and levels are declared, never taken from the data: privacy proofs rest on them. No message holds a value of
the data, only counts, column names and row numbers.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from userdp.data.tables.cells import Texts, cell_text
from userdp.data.tables.derived import Derivation
from userdp.data.tables.imputed import OWN_LEVEL, imputed_code, imputed_level, imputed_number
from userdp.errors import BadInput

Range = tuple[float, float]


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
    codes: str | Sequence[str] | None = None
    levels: int | Sequence[object] | None = None
    buckets: int | None = None
    impute: Mapping[str, object] = field(default_factory=dict)
    missing_indicators: Sequence[str] = ()
    derive: Mapping[str, Derivation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scale not in ("symmetric", "unit"):
            raise BadInput(f"scale must be symmetric or unit, got {self.scale!r}")
        if self.target_range is not None and self.positive is not None:
            raise BadInput("target_range and positive exclude each other: one is for numbers, one for two classes")
        if self.target is None and (self.target_range is not None or self.positive is not None):
            raise BadInput("target_range and positive describe a target, and target names no column")
        self._check_features()
        for column in self.features:
            if column not in self.ranges:
                raise BadInput(
                    f"ranges has no [low, high] for the numeric feature {column!r}; declare its public bounds"
                )
        for column, bounds in self.ranges.items():
            if column not in self.features:
                raise BadInput(
                    f"ranges names {column!r}, which is not in features{did_you_mean(column, self.features)}"
                )
            checked_range(f"ranges.{column}", bounds)
        if self.target_range is not None:
            checked_range("target_range", self.target_range)
        target = [] if self.target is None else [self.target]
        names = [self.user, *self._listed, *target, *self.derive]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"column {twice[0]!r} is declared twice; user, target and features must all differ")
        self._check_derived()
        self._check_imputed()

    def _check_features(self) -> None:
        if (self.codes is None) == (not self.features and not self.categorical and not self.derive):
            raise BadInput(
                "declare either features and categorical columns, or one column of codes (or a list of them)"
            )
        if self.codes is None and self.levels is not None:
            raise BadInput("levels describes codes, and codes names no column; for features use categorical")
        self._check_hashed()
        if isinstance(self.codes, str):
            if self.levels is None:
                raise BadInput(f"levels is missing: how many levels column {self.codes!r} has, or a list of them")
            if isinstance(self.levels, int):
                if not 1 <= self.levels < 2**31:
                    raise BadInput(f"levels must lie in 1..2^31 - 1, got {self.levels}")
            else:
                checked_levels("levels", self.levels)
        for column, levels in self.categorical.items():
            checked_levels(f"categorical.{column}", levels)

    def _check_hashed(self) -> None:
        if self.codes is None or isinstance(self.codes, str):
            if self.buckets is not None:
                raise BadInput(
                    f"buckets = {self.buckets}: cells are hashed for a LIST of codes, and codes = {self.codes!r}; "
                    "list the columns, such as codes = ['film', 'genre']"
                )
            return
        if not self.codes or not all(isinstance(name, str) for name in self.codes):
            raise BadInput(f"codes = {self.codes!r}: must be one column's name, or a list of names, at least one")
        if self.levels is not None:
            raise BadInput("levels describes one column of codes; for a list of columns give buckets instead")
        if self.buckets is None:
            raise BadInput(f"buckets is missing: how many numbers the cells of {list(self.codes)} are hashed to")
        if isinstance(self.buckets, bool) or not isinstance(self.buckets, int) or not 1 <= self.buckets < 2**31:
            raise BadInput(f"buckets = {self.buckets!r}: must be a whole number in 1..2^31 - 1")

    def _check_derived(self) -> None:
        for name, made in self.derive.items():
            checked_range(f"derive.{name}.range", made.range)
            made.check(name)
            for column in made.of:
                if reason := self._not_a_number(column):
                    raise BadInput(f"derive.{name}.of names {column!r}, {reason}; name columns of numbers")

    def _not_a_number(self, column: str) -> str:
        """Why a derived column cannot be made of this one; nothing if it can."""
        if column == self.target:
            return "the target, which features must not tell"
        if column in self.derive:
            return "which is derived itself"
        return "which holds text" if column in self.text else ""

    def _check_imputed(self) -> None:
        for column in self.impute:
            self._check_imputable(column)
        for column in self.numbers_read:
            self.missing_number(column)
        for column in [*self.categorical, *([self.codes] if isinstance(self.codes, str) else [])]:
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
        if isinstance(self.levels, int):
            return imputed_code(column, value, self.levels)
        return imputed_level(column, value, checked_levels("levels", self.levels or ()), "levels")

    @property
    def code_count(self) -> int:
        """How many codes one column of codes has, a level of missing cells included."""
        own = isinstance(self.codes, str) and self.impute.get(self.codes) == OWN_LEVEL
        return (self.levels if isinstance(self.levels, int) else len(self.levels or ())) + own

    @property
    def hashed(self) -> Sequence[str]:
        """The columns whose cells are hashed."""
        return () if self.codes is None or isinstance(self.codes, str) else self.codes

    @property
    def inputs(self) -> list[str]:
        """The columns that features are made of."""
        listed = self._listed
        read = (column for made in self.derive.values() for column in made.of)
        return [*listed, *dict.fromkeys(column for column in read if column not in listed)]

    @property
    def _listed(self) -> list[str]:
        """The columns that are features themselves."""
        single = [self.codes] if isinstance(self.codes, str) else []
        return [*self.features, *self.categorical, *self.hashed, *single]

    @property
    def numbers_read(self) -> list[str]:
        """The columns of numbers that features are made of: features themselves, and what derived ones are made of."""
        return [] if self.codes is not None else [name for name in self.inputs if name not in self.categorical]

    @property
    def scaled_ranges(self) -> dict[str, Range]:
        """Numeric feature -> its declared range: those of the table, then derived ones."""
        own = {name: checked_range(f"ranges.{name}", self.ranges[name]) for name in self.features}
        made = {name: checked_range(f"derive.{name}.range", made.range) for name, made in self.derive.items()}
        return own | made

    @property
    def largest_norm(self) -> float:
        """Of a sample's features: numbers and indicators are at most 1, and of a column's levels at most one is 1."""
        return float(len(self.scaled_ranges) + len(self.missing_indicators) + len(self.categorical))

    @property
    def names(self) -> list[str]:
        """Every column that is declared."""
        return [self.user, *self.inputs, *([] if self.target is None else [self.target])]

    @property
    def feature_names(self) -> list[str]:
        """The feature columns that samples get; or the columns of codes.

        Numeric ones, derived ones, those that say that a cell is missing, then one for each level.
        """
        if self.codes is not None:
            return [self.codes] if isinstance(self.codes, str) else list(self.codes)
        hot = [name for column in self.categorical for name in self._level_names(column)]
        return [*self.features, *self.derive, *(f"{column} is missing" for column in self.missing_indicators), *hot]

    def _level_names(self, column: str) -> list[str]:
        own = [f"{column} is missing"] if self.impute.get(column) == OWN_LEVEL else []
        return [*(f"{column}={level}" for level in self.categorical[column]), *own]

    @property
    def text(self) -> set[str]:
        """Columns compared as text."""
        binary = {self.target} if self.target is not None and self.positive is not None else set()
        listed = {self.codes} if isinstance(self.codes, str) and not isinstance(self.levels, int) else set()
        return {self.user, *self.categorical, *self.hashed, *binary, *listed}


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' with the nearest of ``names``, or nothing."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def checked_range(name: str, bounds: Sequence[float]) -> Range:
    """Bounds as (low, high).

    Raises:
        BadInput: not two finite numbers with low < high.
    """
    values = tuple(float(value) for value in bounds)
    if len(values) != 2 or not values[0] < values[1] or not np.isfinite(values[1] - values[0]):
        raise BadInput(f"{name} must be [low, high] with low < high, got {list(bounds)}")
    return values[0], values[1]


def checked_levels(name: str, levels: Sequence[object]) -> list[str]:
    """Declared levels as text, by `cell_text` as cells are.

    Raises:
        BadInput: none, or one twice.
    """
    if isinstance(levels, str) or len(levels) == 0:
        raise BadInput(f"{name} must be a list of levels, at least one")
    texts = [cell_text(level) for level in levels]
    text, times = Counter(texts).most_common(1)[0]
    if times > 1:
        raise BadInput(f"{name} lists {text!r} twice; every level must differ")
    return texts


def scaled(values: NDArray[np.float64], bounds: Range, low: float, high: float) -> tuple[NDArray[np.float32], int]:
    """Values clipped into ``bounds`` and mapped to [low, high], and how many were clipped; NaN stays NaN.

    Each by itself, in operations that IEEE 754 rounds exactly: where a value stands in an array changes no bit of it.
    """
    first, last = bounds
    inside = np.clip(values, first, last)
    unit = (inside - first) / (last - first)
    clipped = np.count_nonzero((values < first) | (values > last))
    return (low + (high - low) * unit).astype(np.float32), int(clipped)


def level_codes(texts: Texts, levels: Sequence[str]) -> NDArray[np.int64]:
    """Position of each cell among the declared levels, -1 where it is none of them."""
    codes = {level: code for code, level in enumerate(levels)}
    return texts.mapped(codes.get(text, -1) for text in texts.distinct)
