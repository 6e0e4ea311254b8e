"""The base of every section of a configuration file, and values of settings in messages."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from userdp.errors import BadInput
from userdp.kinds import Kinds

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


def path_of(field: str, given: object) -> Path:
    """Return the path that an argument of Python gives; raise `BadInput` for anything else."""
    if not isinstance(given, str | os.PathLike) or "\0" in str(given):
        raise BadInput(f"{field} = {shown(given)}: must be a path, text or a pathlib.Path")
    return Path(given)


def _few(value: object) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= _MOST_SHOWN and all(map(_few, value))
    return isinstance(value, _PLAIN)


@dataclass(frozen=True, eq=False)
class NameOf:
    """In the annotation of a text: it must name one of these kinds."""

    kinds: Kinds[Any]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], core_schema.CoreSchema]
    ) -> core_schema.CoreSchema:
        """Return the schema of the text, with a check of the name."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, name: str) -> str:
        if name not in self.kinds:
            choices = ", ".join(map(repr, self.kinds))
            raise PydanticCustomError("name", "Input should be {choices}", {"choices": choices})
        return name


def choices(field: FieldInfo) -> list[str]:
    """Return the texts that a setting accepts, without places of classes; empty if it takes any text, or none."""
    return [name for item in field.metadata if isinstance(item, NameOf) for name in item.kinds] or _texts(
        field.annotation
    )


def _texts(annotation: Any) -> list[str]:
    return [text for part in get_args(annotation) for text in ([part] if isinstance(part, str) else _texts(part))]


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
