"""The declared columns of a table; ranges and levels are never taken from the data, as privacy proofs rest on them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from userdp.data.shape import Column, Shape
from userdp.data.shape import Sequence as SequenceShape
from userdp.data.tables import declared
from userdp.data.tables.dates import PARTS, DateColumns
from userdp.data.tables.declared import Levels, Range
from userdp.data.tables.derived import Derivation
from userdp.data.tables.sequences import SequenceColumns
from userdp.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The declarations of a table's columns, see `userdp.data.read_table`; refused if contradictory or incomplete."""

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
            object.__setattr__(self, name, declared.expanded(name, getattr(self, name)))
        for name in ("ranges", "impute", "dates", "date_parts", "date_formats"):
            object.__setattr__(self, name, declared.expanded_keys(name, getattr(self, name)))
        if self.scale not in ("symmetric", "unit"):
            raise BadInput(f"scale must be symmetric or unit, got {self.scale!r}")
        declared.check_target(self.target, self.target_range, self.positive, self.target_levels)
        if (self.split_column is None) != (self.split_test is None):
            raise BadInput("split_test is the cell of split_column of users who are held out; give both or neither")
        self._check_kind()
        self._check_codes()
        self.dated.check(numbers=self.features, target=self.target)
        self._check_ranges()
        for column, levels in self.categorical.items():
            declared.checked_levels(f"categorical.{column}", levels)
        names = [self.user, *self._listed, *self._beside, *self.derive]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"column {twice[0]!r} is declared twice; user, target and features must all differ")
        self._check_derived()
        self._check_imputed()

    def _check_kind(self) -> None:
        others = [name for name in ("codes", "sequence", "images") if getattr(self, name) is not None]
        if bool(self.features or self.categorical or self.derive or self.dated.listed) + len(others) != 1:
            for column in self.dated.listed:
                key = "dates" if self.dates else "date_parts"
                raise BadInput(
                    f"{key} names {column!r}, and {others[0]} takes the place of all features: leave one out"
                )
            raise BadInput(
                "declare either features and categorical columns, or one column of codes or more, or a sequence, "
                "or images"
            )
        if self.sequence is not None:
            self.sequence.check()
            if self.target is not None:
                self._check_labelled_texts(self.sequence)
        if (self.images is None) != (self.image_shape is None):
            raise BadInput("image_shape says how many bytes a cell of images has, as in [28, 28]; give both or neither")
        shape = [1] if self.image_shape is None else self.image_shape
        if not shape or not all(isinstance(side, int) and side >= 1 for side in shape):
            raise BadInput(f"image_shape = {shape}: must be whole numbers of at least 1, such as [28, 28]")

    def _check_labelled_texts(self, form: SequenceColumns) -> None:
        given = f"target = {self.target!r}"
        if form.tokenizer is None:
            raise BadInput(
                f"{given}: a sequence predicts a column of its own; leave target out, or give sequence.tokenizer, so "
                "that each row is a text with a target"
            )
        for name, value in (("order", form.order), ("inputs", form.inputs)):
            if value:
                raise BadInput(f"{given} makes each row a sample of its own: leave sequence.{name} out")

    @property
    def windows(self) -> SequenceColumns | None:
        """The sequence whose windows are the samples; None if each row is a sample."""
        return None if self.target is not None else self.sequence

    def _check_ranges(self) -> None:
        for column in self.features:
            if column not in self.ranges:
                missing = f"ranges has no [low, high] for the numeric feature {column!r}"
                raise BadInput(
                    f"{missing}; declare it, or list the column under categorical with its levels, or under dates"
                )
        for column, bounds in self.ranges.items():
            if column in self.dated.listed:
                raise BadInput(f"ranges names {column!r}, a column of dates: declare its bounds under dates instead")
            if column not in self.features:
                hint = declared.did_you_mean(column, self.features)
                raise BadInput(f"ranges names {column!r}, which is not in features{hint}")
            declared.checked_range(f"ranges.{column}", bounds)

    def _check_codes(self) -> None:
        if self.codes is None and self.levels is not None:
            raise BadInput(
                "levels describes codes, and codes names no column; for features use categorical, for a target of two "
                "classes positive, for one of several target_levels"
            )
        if self.codes is None or isinstance(self.codes, str):
            if self.buckets is not None:
                given = f"buckets = {self.buckets}: cells are hashed for a LIST of codes, and codes = {self.codes!r}"
                raise BadInput(f"{given}; list the columns, such as codes = ['film', 'genre']")
        elif not self.codes or not all(isinstance(name, str) for name in self.codes):
            raise BadInput(f"codes = {self.codes!r}: must be one column's name, or a list of names, at least one")
        elif not isinstance(self.levels, Mapping):
            self._check_hashed()
        if isinstance(self.codes, str) and self.levels is None:
            raise BadInput(f"levels is missing: declare the number of levels of column {self.codes!r}, or a list")
        if isinstance(self.levels, Mapping):
            self._check_levels(self.levels)
        for column, levels in self.coded.items():
            declared.level_count(self._levels_of(column), levels)

    def _check_levels(self, levels: Mapping[str, Levels]) -> None:
        if isinstance(self.codes, str) or self.buckets is not None:
            raise BadInput("levels = {column = ...} describes a list of codes that are not hashed: leave buckets out")
        codes = list(self.codes or ())
        for column in codes:
            if column not in levels:
                raise BadInput(f"levels.{column} is missing: declare the number of levels of the column, or a list")
        for column in levels:
            if column not in codes:
                raise BadInput(f"levels names {column!r}, which is not in codes{declared.did_you_mean(column, codes)}")

    def _check_hashed(self) -> None:
        if self.levels is not None:
            raise BadInput(
                "levels describes one column of codes; for a list of columns give buckets, or levels by column"
            )
        if self.buckets is None:
            columns = list(self.codes or ())
            raise BadInput(
                f"buckets is missing: how many numbers the cells of {columns} are hashed to; or levels by column"
            )
        if isinstance(self.buckets, bool) or not isinstance(self.buckets, int) or not 1 <= self.buckets < 2**31:
            raise BadInput(f"buckets = {self.buckets!r}: must be a whole number in 1..2^31 - 1")

    def _check_derived(self) -> None:
        for name, made in self.derive.items():
            declared.checked_range(f"derive.{name}.range", made.range)
            made.check(name)
            wanted = "dates" if made.of_dates else "numbers"
            for column in made.of:
                if reason := self._unfit(wanted, column):
                    raise BadInput(f"derive.{name}.of names {column!r}, {reason}; name columns of {wanted}")

    def _unfit(self, wanted: str, column: str) -> str:
        """Return why a derived column of numbers, or of dates, cannot be made of this one; '' if it can."""
        if column == self.target:
            return "the target, which features must not reveal"
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
            self.instead_of_missing(column)
        if self.missing_indicators and self.codes is not None:
            raise BadInput("missing_indicators adds features, and codes takes their place; impute a level of its own")
        for place, column in enumerate(self.missing_indicators):
            entry = f"missing_indicators lists {column!r}"
            if column in self.missing_indicators[:place]:
                raise BadInput(f"{entry} twice; leave one out")
            if column not in self.impute:
                hint = declared.did_you_mean(column, self.impute) or f": add impute.{column}"
                raise BadInput(f"{entry}, but impute has no entry for it{hint}")
            if self.impute[column] == declared.OWN_LEVEL:
                raise BadInput(f"{entry}, whose missing cells are a level of their own already; leave it out")

    def _check_imputable(self, column: str) -> None:
        entry = f"impute names {column!r}"
        if column == self.target:
            raise BadInput(f"{entry}, the target: a sample without one teaches nothing, and it is set aside")
        if column in self.hashed:
            raise BadInput(f"{entry}, whose cells are hashed: a missing one has a bucket already; leave it out")
        if column in self.derive:
            raise BadInput(f"{entry}, which is derived: declare derive.{column}.otherwise")
        if self.sequence is not None or self.images is not None:
            raise BadInput(f"{entry}: a sequence has a code for missing cells, and a picture has no such cells")
        known = [name for name in self.inputs if name not in self.hashed]
        if column not in known:
            raise BadInput(f"{entry}, but no feature is made of it{declared.did_you_mean(column, known)}")

    def instead_of_missing(self, column: str) -> float | np.datetime64 | None:
        """Return the declared number, date or code for a missing cell, or None; refuse one that does not fit."""
        if column not in self.impute:
            return None
        value = self.impute[column]
        if column in self.dated.read:
            return self.dated.imputed(column, value)
        if column in self.categorical:
            return declared.imputed_code(column, value, self.categorical[column], f"categorical.{column}")
        if column in self.coded:
            return declared.imputed_code(column, value, self.coded[column], self._levels_of(column))
        bounds = declared.checked_range(column, self.ranges[column]) if column in self.ranges else None
        return declared.imputed_number(column, value, bounds)

    @property
    def dated(self) -> DateColumns:
        """The declarations about columns of dates."""
        between = [column for made in self.derive.values() if made.of_dates for column in made.of]
        return DateColumns(self.dates, self.date_parts, self.date_formats, between)

    @property
    def coded(self) -> Mapping[str, Levels]:
        """The levels of each column of codes; empty if cells are hashed."""
        if isinstance(self.levels, Mapping):
            return {name: self.levels[name] for name in self.codes or ()}
        return {} if self.levels is None or not isinstance(self.codes, str) else {self.codes: self.levels}

    @property
    def code_counts(self) -> tuple[int, ...]:
        """The number of codes of each column of codes, including a level of missing cells."""
        return tuple(
            declared.level_count(self._levels_of(name), levels) + (self.impute.get(name) == declared.OWN_LEVEL)
            for name, levels in self.coded.items()
        )

    def _levels_of(self, column: str) -> str:
        return "levels" if isinstance(self.codes, str) else f"levels.{column}"

    @property
    def hashed(self) -> Sequence[str]:
        """The columns whose cells are hashed."""
        return () if self.buckets is None or self.codes is None else list(self.codes)

    @property
    def pixels(self) -> int:
        """The bytes of a picture."""
        return prod(self.image_shape or ())

    @property
    def inputs(self) -> list[str]:
        """The columns that features are made of."""
        return list(dict.fromkeys([*self._listed, *(column for made in self.derive.values() for column in made.of)]))

    @property
    def _listed(self) -> list[str]:
        """The columns that are features themselves."""
        pictures = [] if self.images is None else [self.images]
        steps = [] if self.sequence is None else self.sequence.columns
        return [*self.features, *self.dated.listed, *self.categorical, *self.hashed, *self.coded, *steps, *pictures]

    @property
    def numbers_read(self) -> list[str]:
        """The columns of numbers that features are made of: features themselves, and the columns of derived ones."""
        made = [column for each in self.derive.values() if not each.of_dates for column in each.of]
        return list(dict.fromkeys([*self.features, *made]))

    @property
    def scaled_ranges(self) -> dict[str, Range]:
        """The declared range of each numeric feature: table columns, dates (days since the first), derived ones."""
        own = {name: declared.checked_range(f"ranges.{name}", self.ranges[name]) for name in self.features}
        made = {name: declared.checked_range(f"derive.{name}.range", made.range) for name, made in self.derive.items()}
        return own | {name: self.dated.range(name) for name in self.dates} | made

    @property
    def largest_norm(self) -> float:
        """The bound on a sample's l1 norm: numbers and indicators are at most 1, one level of a column is 1."""
        levels = len(self.categorical) + sum(map(len, self.date_parts.values()))
        return float(len(self.scaled_ranges) + len(self.missing_indicators) + levels)

    @property
    def names(self) -> list[str]:
        """The declared columns."""
        return [self.user, *self.inputs, *self._beside]

    @property
    def _beside(self) -> list[str]:
        """The columns, other than the user's, that no feature is made of."""
        return [name for name in (self.target, self.split_column) if name is not None]

    @property
    def feature_names(self) -> list[str]:
        """The names of a sample's features (numbers, dates, derived, missing indicators, levels, parts), or columns."""
        if self.sequence is not None:
            return list(self.sequence.channels)
        if self.codes is not None or self.images is not None:
            return self._listed
        hot = [name for column in self.categorical for name in self.level_names(column)]
        for column, parts in self.date_parts.items():
            hot += [f"{column} {part}={level}" for part in parts for level in PARTS[part]]
        gone = [f"{column} is missing" for column in self.missing_indicators]
        return [*self.features, *self.dates, *self.derive, *gone, *hot]

    def level_names(self, column: str) -> list[str]:
        """Return the features of a categorical column, one for each code of its cells, in order."""
        own = [f"{column} is missing"] if self.impute.get(column) == declared.OWN_LEVEL else []
        return [*(f"{column}={level}" for level in self.categorical[column]), *own]

    @property
    def text(self) -> set[str]:
        """The columns compared as text."""
        classes = [] if self.positive is None and self.target_levels is None else [self.target]
        listed = {name for name, levels in self.coded.items() if not isinstance(levels, int)}
        listed |= set() if self.sequence is None else self.sequence.listed
        optional = {name for name in (*classes, self.split_column) if name is not None}
        return {self.user, *self.categorical, *self.hashed, *optional, *listed}

    @property
    def raw(self) -> set[str]:
        """The columns whose bytes are read unchanged: texts of characters, pictures."""
        text = None if self.sequence is None else self.sequence.text
        return {name for name in (text, self.images) if name is not None}

    @property
    def shape(self) -> Shape:
        """The shape of the samples of these columns."""
        target_range = None if self.target_range is None else (-1.0, 1.0)
        shape = partial(
            Shape,
            has_target=self.target is not None,
            target_range=(0.0, 1.0) if self.positive is not None else target_range,
            scaled_target=target_range is not None,
            classes=None if self.target_levels is None else len(self.target_levels),
        )
        if self.sequence is not None:
            return shape(**self._of_sequence(self.sequence))
        if self.images is not None:
            return shape(self.pixels, bound=1.0, feature_norm=float(self.pixels))
        if self.buckets is not None:
            return shape(self.buckets, bound=1.0, sparsity=min(len(self.hashed), self.buckets), feature_length=1.0)
        if isinstance(self.codes, str):
            return shape(1, levels=self.code_counts[0])
        if self.codes is not None:
            return shape(len(self.code_counts), code_levels=self.code_counts)
        return shape(
            len(self.feature_names), bound=1.0, feature_norm=self.largest_norm, named=tuple(self._named_features())
        )

    def _of_sequence(self, form: SequenceColumns) -> dict[str, Any]:
        """Return the fields of the shape of windows, or of texts with a target."""
        steps, levels, tokens = form.window, form.code_counts, {"tokenizer": form.tokenizer}
        if self.windows is None:
            return {"columns": steps, "code_levels": (levels[0] + 1,) * steps} | tokens
        return {"columns": steps * len(levels), "sequence": SequenceShape(steps, levels)} | tokens

    def _named_features(self) -> Iterator[Column]:
        """Yield the columns of numbers, and those of levels, with the places of their features."""
        least, ranges = -1.0 if self.scale == "symmetric" else 0.0, self.scaled_ranges
        for place, (name, bounds) in enumerate(ranges.items()):
            unit = f"days since {self.dates[name][0]}" if name in self.dates else ""
            yield Column(name, (place,), bounds, least, complete=name in self.impute, unit=unit)
        place = len(ranges) + len(self.missing_indicators)
        levels = {name: [each.removeprefix(f"{name}=") for each in self.level_names(name)] for name in self.categorical}
        for name, parts in self.date_parts.items():
            levels |= {f"{name} {part}": list(map(str, PARTS[part])) for part in parts}
        for name, own in levels.items():
            yield Column(name, tuple(range(place, place + len(own))), levels=tuple(own))
            place += len(own)
