"""The base of every section of a configuration file, and values of settings in messages."""

from datetime import date, time
from typing import Any

from pydantic import BaseModel, ConfigDict

TWO_NUMBERS = (
    "a range takes two numbers; for dates, declare a feature under dates, such as dates = { born = ['1950-01-01', "
    "'2030-12-31'] }, and write a target as numbers, such as days since a public day"
)
"""The remedy for a declared range that is not two numbers."""

_PLAIN = str | bytes | bool | int | float | date | time | None
_MOST_SHOWN = 2


def shown(value: object) -> str:
    """Return a value given for a setting, for a message: one value or two as they are, of any other kind and number.

    Whoever gives a column or a table where a setting is wanted gives people's cells.
    """
    if _few(value):
        return repr(value)
    count = len(value) if hasattr(value, "__len__") else None
    return f"<{type(value).__name__}>" if count is None else f"<{type(value).__name__} of {count}>"


def _few(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= _MOST_SHOWN and all(map(_few, value))
    return isinstance(value, _PLAIN)


class Section(BaseModel):
    """A section of a configuration file: unknown keys are refused, numbers must be finite.

    The docstring of a field describes its key, unless the field gives a description.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Join the lines of each description."""
        super().__pydantic_init_subclass__(**options)
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())
