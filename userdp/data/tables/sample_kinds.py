"""Kinds of samples: the columns that a sample is made of, its shape, and how rows become samples.

Here are pictures and sequences of codes; `userdp.data.tables.codes` and `userdp.data.tables.numeric` have the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from math import prod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from userdp.data.block import Features
from userdp.data.coefficients import CoefficientMap
from userdp.data.shape import Sequence as SequenceShape
from userdp.data.tables.cells import Rows, bytes_in
from userdp.data.tables.declaration import Declaration
from userdp.data.tables.declared import Levels, Range
from userdp.data.tables.sequences import SequenceColumns
from userdp.data.tables.texts import text_rows
from userdp.data.tables.unusable import MISSING, WRONG_LENGTH, Counts
from userdp.errors import BadInput


class SampleKind(ABC):
    """A kind of samples, made of a `Declaration`; making it raises `BadInput` for one that is incomplete.

    Attributes:
        told: the kind, for people.
        keys: the keys of the declaration that describe samples of this kind.
        number: the type of a feature.
        batched: whether rows become samples batch by batch.
        columns: the columns of the table that are features themselves.
        made: the names of columns of features that are made of other columns.
        text: the columns compared as text.
        raw: the columns whose bytes are read unchanged.
        dates: each column read as dates, and its format; None for ISO 8601.
        ranges: the declared range of each numeric feature: table columns, dates (days since the first), derived ones.
        channels: of sequences, each column of a step and its levels; cells may hold lists.
        windows: the sequence whose windows are the samples; None if each row is a sample.
    """

    told: ClassVar[str]
    keys: ClassVar[Set[str]]
    number: ClassVar[type[np.generic]] = np.float32
    batched: ClassVar[bool] = True

    columns: Sequence[str]
    made: Sequence[str] = ()
    text: Set[str] = frozenset()
    raw: Set[str] = frozenset()
    dates: Mapping[str, str | None] = {}
    ranges: Mapping[str, Range] = {}
    channels: Mapping[str, Levels] = {}
    windows: SequenceColumns | None = None

    @property
    def inputs(self) -> Sequence[str]:
        """All columns that features are made of."""
        return self.columns

    @property
    def names(self) -> Sequence[str]:
        """The names of a sample's features, or their columns."""
        return self.columns

    @property
    def level_names(self) -> Sequence[str]:
        """The names "column=level", each at its place among the columns of a linear model, and '' at other places."""
        return ()

    def check(self, text: Set[str]) -> None:  # noqa: B027 -- few kinds depend on other columns
        """Refuse contradictions with other columns, of which ``text`` are compared as text."""

    @property
    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """The fields of `userdp.data.shape.Shape` about features."""

    @abstractmethod
    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> Features:
        """Return the (N, k) features of the chosen ``rows`` (N,); each follows from its own row's cells alone."""

    def without_level(self, features: Features, *, reference: bool) -> Mapping[str, NDArray[np.bool_]]:
        """Return for each column of levels the mask (N,) of the rows whose cell is none of them.

        With ``reference`` these rows get the column's first level, in place.
        """
        return {}

    def at_levels(self, features: Features, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return the mask (N,) of the rows at one of these levels, by `level_names`."""
        return np.zeros(features.shape[0], dtype=bool)

    def coefficients(self, intercept: bool) -> CoefficientMap:
        """Return the coefficients of a linear model, in the units of the columns; `BadInput` without such columns."""
        raise BadInput("coefficients need features of their own columns: declare data.features or data.categorical")


class Images(SampleKind):
    """A picture for each row."""

    told = "images"
    keys = frozenset({"images", "image_shape"})

    def __init__(self, declared: Declaration) -> None:
        column, shape = str(declared.images), declared.image_shape
        if shape is None:
            raise BadInput(f"image_shape is missing: declare how many bytes a cell of {column!r} has, such as [28, 28]")
        if not shape or min(shape) < 1:
            raise BadInput(f"image_shape = {shape}: must be whole numbers of at least 1, such as [28, 28]")
        self.columns, self.raw, self.pixels = [column], {column}, prod(shape)

    @property
    def shape(self) -> dict[str, Any]:
        return {"columns": self.pixels, "bound": 1.0, "feature_norm": float(self.pixels)}

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.float32]:
        (column,) = self.columns
        features = pixels(table.cells[column], rows, self.pixels)
        unusable = np.isnan(features[:, 0])
        counts.unusable[column] = int(np.count_nonzero(unusable))
        if len(rows):
            counts.note_kind(column, WRONG_LENGTH if unusable.all() else None)
        return features


def pixels(cells: pa.LargeBinaryArray, rows: NDArray[np.int64], length: int) -> NDArray[np.float32]:
    """Return the pictures of the chosen rows (N,), bytes divided by 255: (N, length) in [0, 1].

    *Formal guarantee*: a row of the result depends on its own cell alone, to the last bit; IEEE 754 rounds quotients
    exactly. A cell that is missing or not ``length`` bytes long gives a row of NaN, which problems set aside.
    """
    chosen = cells.take(pa.array(rows))
    whole = pc.fill_null(pc.equal(pc.binary_length(chosen), length), False)
    features = np.full((len(rows), length), np.nan, dtype=np.float32)
    features[whole.to_numpy(zero_copy_only=False)] = bytes_in(chosen.filter(whole)).reshape(-1, length)
    features /= np.float32(255)
    return features


class Steps(SampleKind):
    """Windows of a user's steps: `userdp.data.tables.windows.Windows` makes them of all rows of a user together."""

    told = "a sequence"
    keys = frozenset({"sequence"})
    number = np.int32
    batched = False

    def __init__(self, declared: Declaration) -> None:
        assert declared.sequence is not None
        self.form = self.windows = form = declared.sequence
        form.check()
        self.columns, self.text = form.columns, form.listed
        self.channels, self.raw = form.channels, {name for name in [form.text] if name is not None}

    @property
    def names(self) -> Sequence[str]:
        return list(self.channels)

    @property
    def shape(self) -> dict[str, Any]:
        steps, levels = self.form.window, self.form.code_counts
        sequence = SequenceShape(steps, levels)
        return {"columns": steps * len(levels), "sequence": sequence, "tokenizer": self.form.tokenizer}

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
        raise BadInput(
            "data.sequence makes windows of a user's rows, so nothing is predicted row by row; evaluate other users"
        )


class LabelledTexts(Steps):
    """The first tokens of the text in each row, which has a target."""

    def __init__(self, declared: Declaration) -> None:
        super().__init__(declared)
        given, form, self.windows = f"target = {declared.target!r}", self.form, None
        if form.tokenizer is None:
            raise BadInput(
                f"{given}: a sequence predicts a column of its own; leave target out, or give sequence.tokenizer, so "
                "that each row is a text with a target"
            )
        for name, value in (("order", form.order), ("inputs", form.inputs)):
            if value:
                raise BadInput(f"{given} makes each row a sample of its own: leave sequence.{name} out")

    @property
    def shape(self) -> dict[str, Any]:
        steps, (tokens,) = self.form.window, self.form.code_counts
        return {"columns": steps, "code_levels": (tokens + 1,) * steps, "tokenizer": self.form.tokenizer}

    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> NDArray[np.int32]:
        form, name = self.form, self.form.predicted
        cells = table.cells[name].take(pa.array(rows))
        features, counts.clipped[name] = text_rows(cells, str(form.tokenizer), form.window)
        unusable = features[:, 0] < 0
        counts.unusable[name] = int(np.count_nonzero(unusable))
        if len(rows):
            counts.note_kind(name, MISSING if unusable.all() else None)
        return features
