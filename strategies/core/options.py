"""Settings that several strategies have."""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from userdp.settings import Section


class StrategyOptions(Section):
    """Settings that every strategy has.

    A subclass that declares an option of its bases anew, with another default, range or meaning, names it in
    ``restates={"clip_norm"}``, beside its bases; a `TypeError` refuses one that does not, or names another.
    """

    model_config = ConfigDict(allow_inf_nan=True)  # An option may be a limit, and infinite.

    max_missing: float = Field(0.2, ge=0, lt=1)
    """Largest share of a cohort that may fail to answer; beyond it the run fails closed."""

    def __init_subclass__(cls, *, restates: Collection[str] = (), **settings: Any) -> None:
        super().__init_subclass__(**settings)
        inherited = {name for base in cls.__bases__ if issubclass(base, StrategyOptions) for name in base.model_fields}
        anew = inherited & get_annotations(cls).keys()
        if anew != set(restates):
            raise TypeError(
                f"{cls.__name__} declares {sorted(anew)} of its bases anew and restates {sorted(restates)}: make them "
                "one, or give the option a name of its own"
            )


CLIP_WIDTH = 1.5  # Clip over the typical length of what is clipped, where a preparation measures that
REACH = 10.0  # Lengths of the first gradient that clipped gradients of all rounds together reach, where steps are whole
CONTRACTION = 5.0  # Sum of all steps, in units of those over the curvature: the steps leave e^-5 of a distance


@dataclass(frozen=True)
class Found:
    """A preparation's results about users' gradients, in the coordinates that the strategy works in."""

    length: float  # typical l2 norm of a user's gradient at the start
    dimension: int  # p
    rate: float  # step size that fits the mean gradient
    own_rate: float  # the same for steps of single users; a user's few samples may be p times as curved as all users'
    samples: int  # fewest of a user, public
    learnt: bool  # whether coordinates were learnt; else they are the model's own, and steps those of certificates
    whole: bool = False  # whether a certified step leads to where the gradient vanishes, so that gradients soon shrink

    def clip(self, rounds: int) -> float:
        """Return one clip for so many rounds."""
        return self.length * (min(CLIP_WIDTH, REACH / rounds) if self.whole else CLIP_WIDTH)

    def steps(self, rounds: int, clip: float = 1.0) -> dict[str, float]:
        """Return the step size for so many rounds, along means of vectors ``clip`` times as long as gradients.

        Shorter steps average more of the noise; these are as short as reaching the best model allows. Empty where
        coordinates are the model's own: certified steps may be short enough.
        """
        return {"learning_rate": min(1.0, CONTRACTION / rounds) * self.rate / clip} if self.learnt else {}


class PreparedOptions(StrategyOptions):
    """Settings of strategies that may use a `Preparation`; their guarantees rest on no certificate."""

    found_by_preparation: ClassVar[tuple[str, ...]] = ("clip_norm", "learning_rate")
    """The settings that a preparation finds; giving one of them excludes a preparation."""

    @abstractmethod
    def found(self, found: Found) -> dict[str, float]:
        """Return the settings that follow from a preparation's results, by name."""
