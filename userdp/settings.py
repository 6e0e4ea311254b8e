"""What every section of a configuration file has in common."""

from pydantic import BaseModel, ConfigDict

TWO_NUMBERS = (
    "a range takes two numbers; for dates, write the column as numbers, such as years since a public day, and declare "
    "the range of these"
)
"""What is said of a declared range of anything else."""


class Section(BaseModel):
    """A section of a configuration file: unknown keys are refused, numbers must be finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)
