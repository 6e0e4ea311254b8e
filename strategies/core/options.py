"""Settings of strategies, and how they are checked."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from userdp.errors import BadInput


class StrategyOptions(BaseModel):
    """Settings that every strategy has."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    max_missing: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="Largest share of a cohort that may fail to answer; beyond it the run fails closed.",
    )


def parse_options(model: type[StrategyOptions], options: dict[str, Any]) -> StrategyOptions:
    """Options checked against their model.

    Raises:
        BadInput: names the option, the value and what is allowed.
    """
    try:
        return model(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["strategy", *map(str, first["loc"])])
        known = ", ".join(sorted(model.model_fields))
        hint = f"; options are {known}" if first["type"] == "extra_forbidden" else ""
        raise BadInput(f"{where} = {first.get('input')!r}: {first['msg']}{hint}") from error
