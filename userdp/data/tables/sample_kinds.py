"""Kinds of samples: the columns that a sample is made of, its shape, and how rows become samples."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp.data.block import Features
from userdp.data.tables.cells import Rows
from userdp.data.tables.counts import Counts
from userdp.data.tables.declared import Levels
from userdp.data.tables.sequences import SequenceColumns


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

    def check(self, text: Set[str]) -> None:  # noqa: B027 -- few kinds depend on other columns
        """Refuse contradictions with other columns, of which ``text`` are compared as text."""

    @property
    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """The fields of `userdp.data.shape.Shape` about features."""

    @abstractmethod
    def features(self, table: Rows, rows: NDArray[np.int64], counts: Counts) -> Features:
        """Return the (N, k) features of the chosen ``rows`` (N,); each follows from its own row's cells alone."""
