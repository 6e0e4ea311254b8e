"""What every section of a configuration file has in common."""

from pydantic import BaseModel, ConfigDict

TWO_NUMBERS = (
    "a range takes two numbers; for dates, declare a feature under dates, such as dates = { born = ['1950-01-01', "
    "'2030-12-31'] }, and write a target as numbers, such as days since a public day"
)
"""What is said of a declared range of anything else."""


class Section(BaseModel):
    """A section of a configuration file: unknown keys are refused, numbers must be finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)
