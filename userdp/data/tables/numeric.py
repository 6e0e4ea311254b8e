"""Samples that are numbers: columns of numbers and dates, derived ones, and levels and parts of dates as 0 and 1."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Features
from userdp.data.coefficients import CoefficientMap
from userdp.data.shape import Column
from userdp.data.tables.cells import Rows
from userdp.data.tables.codes import Missing, codes_of
from userdp.data.tables.date_cells import days_since, part_codes
from userdp.data.tables.dates import PARTS, DateColumns
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.declared import (
    OWN_LEVEL,
    Range,
    checked_levels,
    checked_range,
    did_you_mean,
    expanded,
    expanded_keys,
    imputed_code,
    imputed_number,
    scaled,
)
from userdp.data.tables.sample_kinds import SampleKind
from userdp.data.tables.terms import term_of
from userdp.data.tables.unusable import NO_RESULT, Counts
from userdp.errors import BadInput

_EPOCH = np.datetime64(0, "us")


class Numeric(SampleKind):
    """Numbers in declared ranges, and one feature of 0 and 1 for each declared level.

    Attributes:
        low: the number to which the lower end of each range is scaled; the upper one is 1.
        levels: each column of levels, and each part of a date, with the names of its features.
        largest_norm: the bound on a sample's l1 norm: numbers and indicators are at most 1, one level of a column is 1.
    """

    told = "features of columns"
    keys = frozenset(
        {"features", "ranges", "categorical", "impute", "missing_indicators", "derive"}
        | {"dates", "date_parts", "date_formats"}
    )

    def __init__(self, declared: Declaration) -> None:
        self._target, self._target_range = declared.target, declared.target_range
        self.numbers = expanded("features", declared.features or ())
        self.categorical, self.derive = declared.categorical or {}, declared.derive or {}
        self.impute = expanded_keys("impute", declared.impute or {})
        self.indicators = expanded("missing_indicators", declared.missing_indicators or ())
        self.low = 0.0 if declared.scale == "unit" else -1.0
        self.dated = DateColumns(
            expanded_keys("dates", declared.dates or {}),
            expanded_keys("date_parts", declared.date_parts or {}),
            expanded_keys("date_formats", declared.date_formats or {}),
            [column for made in self.derive.values() if made.of_dates for column in made.of],
        )
        self.dated.check(numbers=self.numbers, target=declared.target)
        self._term = term_of(declared)
        ranges = expanded_keys("ranges", declared.ranges or {})
        if self._term is not None and self._term.column not in self.numbers:
            del ranges[self._term.column]
        self.ranges = self._ranges(ranges)
        for column, levels in self.categorical.items():
            checked_levels(f"categorical.{column}", levels)
        self.columns = [*self.numbers, *self.dated.listed, *self.categorical]
        self.text = set(self.categorical)
        self.dates = {column: self.dated.formats.get(column) for column in self.dated.read}
        parts = {f"{column} {part}": PARTS[part] for column, parts in self.dated.parts.items() for part in parts}
        self.made = [*self.derive, *parts]
        if not (self.columns or self.derive):
            raise BadInput(
                "no features are declared: declare either features and categorical columns, or one column of codes or "
                "more, or a sequence, or images"
            )
        self.levels = {column: self._levels(column) for column in self.categorical}
        self.levels |= {name: [f"{name}={level}" for level in levels] for name, levels in parts.items()}
        self.largest_norm = float(len(self.ranges) + len(self.indicators) + len(self.levels))

    def _ranges(self, declared: dict[str, list[float]]) -> dict[str, Range]:
        for column in self.numbers:
            if column not in declared:
                missing = f"ranges has no [low, high] for the numeric feature {column!r}"
                raise BadInput(
                    f"{missing}; declare it, or list the column under categorical with its levels, or under dates"
                )
        for column in declared:
            if column in self.dated.listed:
                raise BadInput(f"ranges names {column!r}, a column of dates: declare its bounds under dates instead")
            if column not in self.numbers:
                hint = did_you_mean(column, self.numbers)
                raise BadInput(f"ranges names {column!r}, which is not in features{hint}")
        own = {name: checked_range(f"ranges.{name}", declared[name]) for name in self.numbers}
        made = {name: checked_range(f"derive.{name}.range", made.range) for name, made in self.derive.items()}
        return own | {name: self.dated.range(name) for name in self.dated.bounds} | made

    def _levels(self, column: str) -> list[str]:
        """Return the features of a categorical column, one for each code of its cells, in order."""
        own = [f"{column} is missing"] if self.impute.get(column) == OWN_LEVEL else []
        return [*(f"{column}={level}" for level in self.categorical[column]), *own]

    @property
    def inputs(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, *(column for made in self.derive.values() for column in made.of)]))

    @property
    def numbers_read(self) -> list[str]:
        """The columns of numbers that features are made of: features themselves, and the columns of derived ones."""
        made = [column for each in self.derive.values() if not each.of_dates for column in each.of]
        return list(dict.fromkeys([*self.numbers, *made]))

    @property
    def names(self) -> list[str]:
        """The names of features: numbers, dates, derived ones, missing indicators, levels, parts of dates."""
        hot = [name for names in self.levels.values() for name in names]
        return [*self.ranges, *(f"{column} is missing" for column in self.indicators), *hot]

    def check(self, text: Set[str]) -> None:
        for name, made in self.derive.items():
            made.check(name)
            wanted = "dates" if made.of_dates else "numbers"
            for column in made.of:
                if reason := self._unfit(wanted, column, text):
                    raise BadInput(f"derive.{name}.of names {column!r}, {reason}; name columns of {wanted}")
        for column in self.impute:
            self._check_imputable(column)
            self.instead_of_missing(column)
        for place, column in enumerate(self.indicators):
            entry = f"missing_indicators lists {column!r}"
            if column in self.indicators[:place]:
                raise BadInput(f"{entry} twice; leave one out")
            if column not in self.impute:
                hint = did_you_mean(column, self.impute) or f": add impute.{column}"
                raise BadInput(f"{entry}, but impute has no entry for it{hint}")
            if self.impute[column] == OWN_LEVEL:
                raise BadInput(f"{entry}, whose missing cells are a level of their own already; leave it out")

    def _unfit(self, wanted: str, column: str, text: Set[str]) -> str:
        """Return why a derived column of numbers, or of dates, cannot be made of this one; '' if it can."""
        if column == self._target:
            return "the target, which features must not reveal"
        if column in self.derive:
            return "which is derived itself"
        if column in self.text or column in text:
            return "which holds text"
        if wanted == "numbers":
            return "which holds dates (days_between takes two of them)" if column in self.dates else ""
        return "which is declared as numbers" if column in self.numbers_read else ""

    def _check_imputable(self, column: str) -> None:
        entry = f"impute names {column!r}"
        if column == self._target:
            raise BadInput(f"{entry}, the target: a sample without one teaches nothing, and it is set aside")
        if column in self.derive:
            raise BadInput(f"{entry}, which is derived: declare derive.{column}.otherwise")
        if column not in self.inputs:
            raise BadInput(f"{entry}, but no feature is made of it{did_you_mean(column, self.inputs)}")

    def instead_of_missing(self, column: str) -> float | np.datetime64 | None:
        """Return the declared number, date or code for a missing cell, or None; refuse one that does not fit."""
        if column not in self.impute:
            return None
        value = self.impute[column]
        if column in self.dates:
            return self.dated.imputed(column, value)
        if column in self.categorical:
            return imputed_code(column, value, self.categorical[column], f"categorical.{column}")
        return imputed_number(column, value, self.ranges.get(column))

    @property
    def shape(self) -> dict[str, Any]:
        named = tuple(self._named())
        return {"columns": len(self.names), "bound": 1.0, "feature_norm": self.largest_norm, "named": named}

    def _named(self) -> Iterator[Column]:
        """Yield the columns of numbers, and those of levels, with the places of their features."""
        for place, (name, bounds) in enumerate(self.ranges.items()):
            unit = f"days since {self.dated.bounds[name][0]}" if name in self.dated.bounds else ""
            yield Column(name, (place,), bounds, self.low, complete=name in self.impute, unit=unit)
        for name, places in self.places.items():
            levels = tuple(each.removeprefix(f"{name}=") for each in self.levels[name])
            yield Column(name, tuple(places), levels=levels)

    @property
    def places(self) -> dict[str, range]:
        """The places among the features of each column of levels and each part of a date."""
        found, place = {}, len(self.ranges) + len(self.indicators)
        for name, levels in self.levels.items():
            found[name] = range(place, place + len(levels))
            place += len(levels)
        return found

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32]:
        features = np.zeros((len(rows), len(self.names)), dtype=np.float32)
        missing = Missing(table, rows, counts, self.instead_of_missing)
        for column in [*self.numbers_read, *self.dated.read]:
            counts.note_kind(column, table.kinds.get(column))
        for position, (column, bounds) in enumerate(self.ranges.items()):
            if column in self.derive:
                values = self._derived(column, missing)
            elif column in self.dated.bounds:
                values = days_since(missing.filled(column), self.dated.first(column))
            else:
                values = missing.filled(column)
            counts.unusable[column] = int(np.count_nonzero(np.isnan(values)))
            counts.note_ends(column, values)
            features[:, position], counts.clipped[column] = scaled(values, bounds, self.low, 1.0)
        for position, column in enumerate(self.indicators, start=len(self.ranges)):
            features[:, position] = missing.cells(column)
        places = {name: slice(one.start, one.stop) for name, one in self.places.items()}
        for column, declared in self.categorical.items():
            levels = missing.replaced(column, codes_of(table, column, declared, counts)[rows])
            counts.unknown_levels[column] = _mark(features[:, places[column]], levels)
        for column, parts in self.dated.parts.items():
            moments = missing.filled(column)
            for part in parts:
                unknown = _mark(features[:, places[f"{column} {part}"]], part_codes(moments, part))
                if column not in self.dated.needed:
                    counts.unknown_levels[column] = unknown
        return features

    def without_level(self, features: Features, *, reference: bool) -> Mapping[str, NDArray[np.bool_]]:
        """See `SampleKind`; a missing date has no part."""
        hot = cast("NDArray[np.float32]", features)
        found = {column: ~np.asarray(hot[:, one.start : one.stop].any(axis=1)) for column, one in self.places.items()}
        for column, rows in found.items() if reference else ():
            hot[rows, self.places[column].start] = 1.0
        return found

    @property
    def level_names(self) -> Sequence[str]:
        """See `SampleKind`."""
        first = len(self.ranges) + len(self.indicators)
        return [""] * first + self.names[first:]

    def at_levels(self, features: Features, names: Sequence[str]) -> NDArray[np.bool_]:
        """See `SampleKind`."""
        places = [self.level_names.index(name) for name in names]
        return np.asarray(cast("NDArray[np.float32]", features)[:, places].any(axis=1))

    def _derived(self, column: str, missing: Missing) -> NDArray[np.float64]:
        made, counts = self.derive[column], missing.counts
        cells = map(missing.filled, made.of)
        values, otherwise = made.values([days_since(one, _EPOCH) if made.of_dates else one for one in cells])
        if made.otherwise is not None:
            counts.imputed[column] = otherwise
        if len(missing.rows):
            counts.note_kind(column, NO_RESULT if np.isnan(values).all() else None)
        return values

    def coefficients(self, intercept: bool) -> CoefficientMap:
        """See `SampleKind`.

        A feature is ``a + f x`` of a column x, so its coefficient is f times the parameter, and the intercept, at x = 0
        for all numbers, gains a times the parameter. With an intercept one level of a column says nothing that the
        others do not: each is compared with the first. A target in a declared range is half the range times the score,
        above its middle.
        """
        features, low = self.names, self.low
        factors, starts, spans = np.ones(len(features)), np.zeros(len(features)), np.ones(len(features))
        for place, (first, last) in enumerate(self.ranges.values()):
            spans[place] = last - first
            factors[place] = (1.0 - low) / (last - first)
            starts[place] = low - factors[place] * first
        levels = {place: places[0] for places in self.places.values() for place in places}
        references = levels if intercept else {}
        width = len(features) + intercept
        of_model = np.eye(width)
        of_model[range(len(features)), range(len(features))] = factors
        if intercept:
            of_model[-1, :-1] = starts
        for place, first in references.items():
            of_model[place, first] -= 1.0
            of_model[-1, first] = 1.0
        kept = [place for place in range(width) if references.get(place) != place]
        of_model = of_model[kept]
        model_of = np.zeros((width, len(kept)))
        model_of[kept] = np.linalg.inv(of_model[:, kept])
        lowest, highest = (-1.0, 1.0) if self._target_range is None else self._target_range
        size = (highest - lowest) / 2.0
        offset = np.zeros(len(kept))
        if intercept:
            offset[-1] = (lowest + highest) / 2.0
            if self._term is not None:  # a model's intercept is that at the middle of the known terms
                offset[-1] -= size * sum(self._term.bounds) / 2
        names, spans = [*features, "intercept"], np.append(spans, 0.0)
        units = [*(self._unit(place, references) for place in range(len(features))), "at 0 of all numbers"]
        return CoefficientMap(
            tuple(names[place] for place in kept),
            tuple(units[place] for place in kept),
            spans[kept],
            size * of_model,
            model_of / size,
            offset,
        )

    def _unit(self, place: int, references: dict[int, int]) -> str:
        """Return the unit of a feature's coefficient; ``references`` has those of levels, by their places."""
        name = self.names[place]
        if place in references:
            return f"against {self.names[references[place]]}"
        if place >= len(self.ranges):
            return "1 or 0"
        return f"per day of {name}" if name in self.dated.bounds else f"per 1 of {name}"


def _mark(features: NDArray[np.float32], levels: NDArray[np.int64]) -> int:
    """Put 1 at each row's level, nothing in a row with -1; return the number of the latter."""
    known = np.flatnonzero(levels >= 0)
    features[known, levels[known]] = 1.0
    return len(levels) - len(known)
