"""Settings of strategies, and how they are checked."""

from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from userdp.errors import BadInput


class StrategyOptions(BaseModel):
    """Settings that every strategy has.

    A subclass that declares an option of its bases anew, with another default, range or meaning, says so:
    ``class MyOptions(ClippedOptions, restates={"clip_norm"})``.

    Raises:
        TypeError: when a class is made that declares one anew without saying so, or says so of another.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    max_missing: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="Largest share of a cohort that may fail to answer; beyond it the run fails closed.",
    )

    def __init_subclass__(cls, *, restates: Collection[str] = (), **settings: Any) -> None:
        super().__init_subclass__(**settings)
        inherited = {name for base in cls.__bases__ if issubclass(base, StrategyOptions) for name in base.model_fields}
        anew = inherited & vars(cls).get("__annotations__", {}).keys()
        if anew != set(restates):
            raise TypeError(
                f"{cls.__name__} declares {sorted(anew)} of its bases anew and restates {sorted(restates)}: make them "
                "one, or give the option a name of its own"
            )


class RelationOptions(StrategyOptions):
    """Settings of strategies that can promise for either neighbouring relation."""

    relation: Literal["replace_one", "add_or_remove"] = Field(
        "replace_one",
        description="Neighbouring relation. Add-or-remove promises less and takes half the noise at the same epsilon.",
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
