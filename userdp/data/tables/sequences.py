"""The declarations about samples that are sequences: the columns of their steps, and the number of codes."""

from collections import Counter
from typing import Any

from pydantic import Field

from userdp.data.tables.declared import Levels, level_count
from userdp.errors import BadInput
from userdp.settings import Section


class SequenceColumns(Section):
    """Samples that are windows of a user's rows in their order, or of the characters of a user's text."""

    window: int = Field(ge=1)
    """Steps of a sample: a user's steps, in order, are cut into windows; the last one is padded."""
    order: str | None = None
    """Numeric column that sorts a user's rows, those without a number last; else the file's order."""
    inputs: dict[str, int | list[Any]] = Field(default_factory=dict)
    """Further columns of every step: column = the number of codes (0..L-1), or a list of levels."""
    predict: str | None = None
    """Column predicted at every step from the steps before; a row is a step, or each item of its cell is one if cells
    hold lists (Parquet)."""
    levels: int | list[Any] | None = None
    """Levels of predict: the number of codes (0..L-1), or a list of levels."""
    text: str | None = None
    """Instead of predict: column of text, read character by character; a newline joins a user's rows."""
    alphabet: str | None = None
    """Characters of text, public, with a code of their own; all others share one more code."""

    def check(self) -> None:
        """Refuse contradictions and omissions."""
        if (self.predict is None) == (self.text is None):
            raise BadInput("sequence needs either predict, a column of codes, or text, a column of characters")
        if (self.levels is None) != (self.predict is None):
            raise BadInput("sequence.levels is the number of codes of sequence.predict; give both, or neither of them")
        if (self.alphabet is None) != (self.text is None):
            raise BadInput("sequence.alphabet lists the characters of sequence.text; give both, or neither of them")
        for column, levels in self.inputs.items():
            if column == self.predicted:
                raise BadInput(
                    f"sequence.inputs names {column!r}, which is predicted and an input anyway; leave it out"
                )
            level_count(f"sequence.inputs.{column}", levels)
        if self.alphabet is None:
            level_count("sequence.levels", self.levels)
        elif not self.alphabet:
            raise BadInput("sequence.alphabet is empty: list the characters that get codes of their own")
        else:
            character, times = Counter(self.alphabet).most_common(1)[0]
            if times > 1:
                raise BadInput(f"sequence.alphabet lists {character!r} {times} times; every character must differ")

    @property
    def predicted(self) -> str:
        """The column that is predicted."""
        return self.predict or self.text or ""

    @property
    def channels(self) -> dict[str, Levels]:
        """Each column and its levels, in the order of a step: the predicted one is the last."""
        predicted: Levels = list(self.alphabet or "") if self.levels is None else self.levels
        return {**self.inputs, self.predicted: predicted}

    @property
    def code_counts(self) -> tuple[int, ...]:
        """The number of codes of each channel: one per level, and a last one for any other cell."""
        return tuple(1 + (levels if isinstance(levels, int) else len(levels)) for levels in self.channels.values())

    @property
    def columns(self) -> list[str]:
        """The columns that a sequence is made of."""
        return [*self.channels, *([] if self.order is None else [self.order])]

    @property
    def listed(self) -> set[str]:
        """The columns whose cells are compared with a list of levels, as text."""
        return {name for name, levels in self.channels.items() if not isinstance(levels, int)} - {self.text or ""}
