"""What is declared of samples that are sequences: which columns give the codes of their steps, and how many codes."""

from typing import Any

from pydantic import Field

from userdp.data.tables.characters import checked_alphabet
from userdp.data.tables.declared import Levels, level_count
from userdp.errors import BadInput
from userdp.settings import Section


class SequenceColumns(Section):
    """Samples that are windows of a user's rows in their order, or of the characters of a user's text."""

    window: int = Field(
        ge=1,
        description="Steps of a sample: a user's steps in order are cut into windows one after the other, and the last "
        "one is padded.",
    )
    order: str | None = Field(
        default=None,
        description="Numeric column that a user's rows are sorted by, those without a number last; the file's order if "
        "not given.",
    )
    inputs: dict[str, int | list[Any]] = Field(
        default_factory=dict,
        description="Further columns that every step tells: column = how many codes (0..L-1), or a list of levels.",
    )
    predict: str | None = Field(
        default=None,
        description="Column that is predicted at every step from the steps before; a row is a step, or, where cells "
        "hold lists (Parquet), each item of its list.",
    )
    levels: int | list[Any] | None = Field(
        default=None, description="Of predict: how many codes (0..L-1), or a list of levels."
    )
    text: str | None = Field(
        default=None,
        description="Instead of predict: column of text that is read character by character; a user's rows are joined "
        "by a newline.",
    )
    alphabet: str | None = Field(
        default=None,
        description="Of text: the characters, public, that have codes of their own; others share one more.",
    )

    def check(self) -> None:
        """Refuse what contradicts itself or misses something.

        Raises:
            BadInput: of predict and text both or none, levels or an alphabet that are missing or not theirs.
        """
        if (self.predict is None) == (self.text is None):
            raise BadInput("sequence needs either predict, a column of codes, or text, a column of characters")
        if (self.levels is None) != (self.predict is None):
            raise BadInput("sequence.levels says how many codes sequence.predict has; give both, or neither of them")
        if (self.alphabet is None) != (self.text is None):
            raise BadInput("sequence.alphabet lists the characters of sequence.text; give both, or neither of them")
        for column, levels in self.inputs.items():
            if column == self.predicted:
                raise BadInput(f"sequence.inputs names {column!r}, which is predicted and told anyway; leave it out")
            level_count(f"sequence.inputs.{column}", levels)
        if self.alphabet is not None:
            checked_alphabet("sequence.alphabet", self.alphabet)
        else:
            level_count("sequence.levels", self.levels)

    @property
    def predicted(self) -> str:
        """The column that is predicted."""
        return self.predict or self.text or ""

    @property
    def channels(self) -> dict[str, Levels]:
        """Column -> its levels, in the order in which a step has them: the predicted one is the last."""
        predicted: Levels = list(self.alphabet or "") if self.levels is None else self.levels
        return {**self.inputs, self.predicted: predicted}

    @property
    def code_counts(self) -> tuple[int, ...]:
        """Codes of each channel: one a level, and one more, the last, that stands for any other cell."""
        return tuple(1 + (levels if isinstance(levels, int) else len(levels)) for levels in self.channels.values())

    @property
    def columns(self) -> list[str]:
        """Every column that a sequence is made of."""
        return [*self.channels, *([] if self.order is None else [self.order])]

    @property
    def listed(self) -> set[str]:
        """Those whose cells are compared with a list of levels, as text."""
        return {name for name, levels in self.channels.items() if not isinstance(levels, int)} - {self.text or ""}
