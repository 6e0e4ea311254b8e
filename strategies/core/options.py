"""Settings that strategies share."""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


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


CLIP_WIDTH = 1.5
"""Clip over the typical length of what is clipped, where that is found on the way."""


REACH = 10.0
"""Lengths of the first gradient that clipped gradients of all rounds together reach, where steps are whole."""

WAY = 5.0
"""Sum of all steps, in units of those over the curvature: what is left of a distance is e^-5."""


@dataclass(frozen=True)
class Found:
    """What a `Preparation` tells of users' gradients, in the coordinates that follow.

    Attributes:
        length: typical l2 norm of a user's at the start.
        dimension: p.
        rate: step size that fits the mean gradient.
        own_rate: the same for steps of single users; a user's few samples may be p times as curved as all users'.
        samples: fewest of a user, public.
        learnt: whether coordinates were learnt; else they are the model's own, and steps those of certificates.
        whole: whether a certified step is the whole way to where the gradient vanishes, so that gradients soon shrink.
    """

    length: float
    dimension: int
    rate: float
    own_rate: float
    samples: int
    learnt: bool
    whole: bool = False

    def clip(self, rounds: int) -> float:
        """A clip for all of so many rounds."""
        return self.length * (min(CLIP_WIDTH, REACH / rounds) if self.whole else CLIP_WIDTH)

    def steps(self, rounds: int, clip: float = 1.0) -> dict[str, float]:
        """Steps for so many rounds, along sums of vectors that are ``clip`` times as long as gradients.

        As short as leaves enough of the way behind, for the shorter they are the more of the noise they average out.
        Nothing where coordinates are the model's own: certified steps may be short enough.
        """
        return {"learning_rate": min(1.0, WAY / rounds) * self.rate / clip} if self.learnt else {}


class PreparedOptions(StrategyOptions):
    """Settings of strategies that may work in coordinates, and with clips, which a `Preparation` finds.

    Nothing that such a strategy promises rests on a certificate.
    """

    found_by_preparation: ClassVar[tuple[str, ...]] = ("clip_norm", "learning_rate")
    """The settings that a preparation finds: whoever gives one wants no preparation."""

    @abstractmethod
    def found(self, found: Found) -> dict[str, float]:
        """The settings that follow, by name."""
