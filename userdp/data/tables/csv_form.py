"""The form of a CSV file: declared, because guessing would let one person's cell decide about all others'."""

import codecs
import re
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from userdp.data.tables.cells import cell_number
from userdp.settings import Section

_MARKS = {"separator": [*",;|: \t"], "thousands": [*",. '\u2019\u00a0\u202f"]}
"""The marks that a CSV file may be declared to have."""


class CsvForm(Section):
    """The form of a .csv or .tsv file, each also as .gz; the keys have no meaning for other files."""

    model_config = ConfigDict(strict=True)

    separator: str | None = None
    """Mark between cells, one of , ; | : a blank or a tab. A comma by default, a tab in .tsv files."""
    decimal: Literal[".", ","] = "."
    """Mark before the decimals of numbers. Text, such as levels and users, is compared as it is written."""
    thousands: str | None = None
    """Mark that may stand between the thousands of numbers: a comma, a point, a blank or an apostrophe."""
    encoding: str = "utf-8"
    """The encoding of text, such as 'cp1252' or 'utf-16'. Bytes that it does not know are spelled out in their cell."""

    @field_validator("separator", "thousands")
    @classmethod
    def _a_mark(cls, mark: str | None, given: ValidationInfo) -> str | None:
        marks = _MARKS[str(given.field_name)]
        if mark is not None and mark not in marks:
            raise PydanticCustomError("mark", "Input should be one of {marks}", {"marks": ", ".join(map(repr, marks))})
        return mark

    @field_validator("encoding")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            b"  ".decode(name)
        except (LookupError, UnicodeError):
            raise PydanticCustomError("encoding", "Input should be an encoding of text, such as 'cp1252'") from None
        return codecs.lookup(name).name

    @model_validator(mode="after")
    def _clear(self) -> Self:
        if self.decimal == self.thousands:
            raise PydanticCustomError("marks", "Input should have two marks, one for decimal and one for thousands")
        return self

    def of(self, path: Path) -> Self:
        """Return the form of a file, with its separator."""
        mark = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
        return self.model_copy(update={"separator": self.separator or mark})

    def number(self, cell: object) -> float:
        """Return the number in a cell, as `cell_number`, written with these marks and no others; NaN for none."""
        if not isinstance(cell, str) or (self.decimal == "." and self.thousands is None):
            return cell_number(cell)
        text = cell.strip(" \t")
        if self._written.fullmatch(text):
            text = text.replace(self.thousands or "", "").replace(self.decimal, ".")
        elif not text.isalpha():
            text = ""
        return cell_number(text)

    @cached_property
    def _written(self) -> re.Pattern[str]:
        point, whole = re.escape(self.decimal), "[0-9]+"
        if self.thousands is not None:
            whole += rf"|[0-9]{{1,3}}(?:{re.escape(self.thousands)}[0-9]{{3}})+"
        return re.compile(rf"[+-]?(?:(?:{whole})(?:{point}[0-9]*)?|{point}[0-9]+)(?:[eE][+-]?[0-9]+)?")
