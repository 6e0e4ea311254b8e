"""The declared columns of a table, checked, and the kind of samples that they make."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from userdp.data.shape import Shape
from userdp.data.tables.codes import Codes, Hashed
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.declared import Range, checked_range, did_you_mean
from userdp.data.tables.numeric import Numeric
from userdp.data.tables.sample_kinds import Images, LabelledTexts, SampleKind, Steps
from userdp.data.tables.survival import AtRisk
from userdp.data.tables.targets import check_target, target_shape
from userdp.data.tables.terms import Term, term_of
from userdp.errors import BadInput
from userdp.settings import TWO_NUMBERS, shown

_DESCRIBING = frozenset().union(*(kind.keys for kind in (AtRisk, Codes, Hashed, Steps, Images)))
"""The keys that describe samples, each for some kinds."""
_HINTS = {"levels": "; for features use categorical, for a target of two classes positive, of several target_levels"}


class Columns(Declaration):
    """The columns of a table; `BadInput` for what is contradictory, incomplete or of a wrong type.

    Sequences of any type take the place of lists, and scalars of NumPy the place of numbers.
    """

    user: str
    """Column that names the user of each row."""

    def __init__(self, **declared: Any) -> None:
        plain = {name: _plain(value) for name, value in declared.items() if value is not None}
        try:
            super().__init__(**plain)
        except ValidationError as error:
            raise BadInput(_sentence(error, plain)) from None
        check_target(self)
        if (self.split_column is None) != (self.split_test is None):
            raise BadInput("split_test is the cell of split_column of users who are held out; give both or neither")
        names = [self.user, *self.samples.columns, *self._beside, *self.samples.made]
        if self.term is not None:
            names.append(self.term.column)
            if self.samples.windows is not None:
                raise BadInput("exposure and offset have no meaning for a sequence: leave them out")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(
                f"column {twice[0]!r} is declared twice; user, target, exposure, offset and features must differ"
            )
        self.samples.check(self.text)

    @cached_property
    def samples(self) -> SampleKind:
        """The kind of samples, made of these declarations."""
        kind, others = self._kind, _DESCRIBING - ({"ranges"} if self.term is not None else set())
        for name in Declaration.model_fields:
            value = getattr(self, name)
            if name in others - kind.keys and value not in (None, [], {}):
                told = f"{name} = {list(value) if isinstance(value, dict) else shown(value)}"
                raise BadInput(f"{told} has no meaning for {kind.told}: leave it out{_HINTS.get(name, '')}")
        return kind(self)

    @property
    def _kind(self) -> type[Numeric | Codes | Hashed | Steps | Images]:
        if self.codes:
            return Codes if self.buckets is None else Hashed
        if self.sequence is not None:
            return Steps if self.target is None else LabelledTexts
        if self.images is not None:
            return Images
        return Numeric if self.survival is None else AtRisk

    @property
    def inputs(self) -> list[str]:
        """The columns that features and known terms are made of."""
        return list(dict.fromkeys([*self.samples.inputs, *([] if self.term is None else [self.term.column])]))

    @cached_property
    def term(self) -> Term | None:
        """The declared known term of samples' scores."""
        return term_of(self)

    @property
    def names(self) -> list[str]:
        """The declared columns."""
        return [self.user, *self.inputs, *self._beside]

    @property
    def _beside(self) -> list[str]:
        """The columns, other than the user's, that no feature is made of."""
        followed = () if self.survival is None else self.survival.columns
        return [*followed, *(name for name in (self.target, self.split_column) if name is not None)]

    @property
    def text(self) -> set[str]:
        """The columns compared as text."""
        classes = self.positive is not None or self.target_levels is not None
        beside = {self.target if classes else None, self.split_column} - {None}
        return {self.user, *self.samples.text, *map(str, beside)}

    @property
    def all_ranges(self) -> dict[str, Range]:
        """The declared range of each numeric feature, of the known term and of the target."""
        ranges = {**self.samples.ranges, **({} if self.term is None else {self.term.column: self.term.range})}
        if self.target_range is None:
            return ranges
        return {**ranges, str(self.target): checked_range("target_range", self.target_range)}

    @property
    def shape(self) -> Shape:
        """The shape of the samples of these columns."""
        term = self.term
        terms, exposed = (None, False) if term is None else (term.bounds, term.exposed)
        return Shape(**self.samples.shape, **target_shape(self), terms=terms, exposed=exposed)


def _plain(value: Any) -> Any:
    """Return tuples, arrays and other sequences as lists, at any depth, and scalars of NumPy but dates as Python's."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range | np.ndarray):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) and not isinstance(value, np.datetime64) else value


def _sentence(error: ValidationError, declared: Mapping[str, Any]) -> str:
    """Return the first problem with a declaration, in one sentence."""
    first, *others = error.errors(include_url=False)
    name, *rest = map(str, first["loc"])
    if first["type"] == "missing":
        return f"{name} is missing: give the column that names the user of each row"
    if first["type"] == "extra_forbidden":
        named = ".".join([name, *rest])
        return f"there is no argument {named!r}{did_you_mean(named, Columns.model_fields)}"
    value, wanted = declared[name], [one["msg"] for one in (first, *others) if one["loc"][0] == first["loc"][0]]
    if isinstance(value, Mapping) and rest and rest[0] in value:
        name, value = f"{name}.{rest[0]}", value[rest[0]]
    if first["type"] in ("model_type", "dict_type"):
        wanted = ["must be a dict"]
    if first["type"] == "float_type":
        wanted = [TWO_NUMBERS]
    return f"{name} = {shown(value)}: {', or '.join(wanted).replace('Input should', 'must')}"
