"""The declarations about samples that are sequences: the columns of their steps, and the number of codes."""

from collections import Counter
from typing import Any

from pydantic import Field

from userdp.data.tables.declared import Levels, level_count
from userdp.data.tables.texts import token_count
from userdp.errors import BadInput
from userdp.settings import Section


class SequenceColumns(Section):
    """Samples that are windows of a user's rows in their order, or of the characters or tokens of a user's text.

    With a tokenizer and data.target each row is a sample instead: the first tokens of its text, as many as a window has.
    """

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
    """Instead of predict: column of text. With an alphabet it is read character by character, and a newline joins a
    user's rows; with a tokenizer token by token, and the token that ends a text joins them."""
    alphabet: str | None = None
    """Characters of text, public, with a code of their own; all others share one more code."""
    tokenizer: str | None = None
    """Instead of alphabet: 'hf:FOLDER', relative to the configuration, or 'hf:NAME' of the Hugging Face hub; a public
    tokenizer, whose tokens are the codes. By default that of problem.model."""

    def check(self) -> None:
        """Refuse contradictions and omissions."""
        if (self.predict is None) == (self.text is None):
            raise BadInput("sequence needs either predict, a column of codes, or text, a column of characters")
        if (self.levels is None) != (self.predict is None):
            raise BadInput("sequence.levels is the number of codes of sequence.predict; give both, or neither of them")
        if self.text is None and (self.alphabet is not None or self.tokenizer is not None):
            field = "tokenizer" if self.alphabet is None else "alphabet"
            raise BadInput(f"sequence.{field} reads sequence.text, and that names no column: give both, or neither")
        if self.text is not None and (self.alphabet is None) == (self.tokenizer is None):
            raise BadInput(
                "sequence.text needs either sequence.alphabet, its characters, or sequence.tokenizer, such as that of "
                "problem.model"
            )
        for column, levels in self.inputs.items():
            if column == self.predicted:
                raise BadInput(
                    f"sequence.inputs names {column!r}, which is predicted and an input anyway; leave it out"
                )
            level_count(f"sequence.inputs.{column}", levels)
        if self.predict is not None:
            level_count("sequence.levels", self.levels)
        elif self.tokenizer is not None:
            token_count(self.tokenizer)
        elif not self.alphabet:
            raise BadInput("sequence.alphabet is empty: list the characters that get codes of their own")
        elif self.alphabet is not None:
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
        if self.tokenizer is not None:
            predicted = token_count(self.tokenizer)
        return {**self.inputs, self.predicted: predicted}

    @property
    def code_counts(self) -> tuple[int, ...]:
        """The number of codes of each channel: one per level, and a last one for any other cell; or its tokens."""
        return tuple(
            (levels if isinstance(levels, int) else len(levels)) + (not self.has_tokens(name))
            for name, levels in self.channels.items()
        )

    def has_tokens(self, column: str) -> bool:
        """Return whether a channel's codes are tokens, which every text has; a cell of others may be no level."""
        return column == self.text and self.tokenizer is not None

    @property
    def columns(self) -> list[str]:
        """The columns that a sequence is made of."""
        return [*self.channels, *([] if self.order is None else [self.order])]

    @property
    def listed(self) -> set[str]:
        """The columns whose cells are compared with a list of levels, as text."""
        return {name for name, levels in self.channels.items() if not isinstance(levels, int)} - {self.text or ""}
