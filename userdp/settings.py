"""The base of every section of a configuration file."""

from typing import Any

from pydantic import BaseModel, ConfigDict

TWO_NUMBERS = (
    "a range takes two numbers; for dates, declare a feature under dates, such as dates = { born = ['1950-01-01', "
    "'2030-12-31'] }, and write a target as numbers, such as days since a public day"
)
"""The remedy for a declared range that is not two numbers."""


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
