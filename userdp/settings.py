"""What every section of a configuration file has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of a configuration file: unknown keys are refused, numbers must be finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)
