"""What every strategy shares that works on single samples: public numbers, units, and the model it gives."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.options import StrategyOptions
from userdp.errors import BadInput
from userdp.problems.base import Vector


class SampleLevelOptions(StrategyOptions):
    """Settings of every strategy here."""

    output: Literal["average", "last"] = Field(
        "average",
        description="The model: mean of the points at which gradients were taken (the papers'), which after one round "
        "is the start; or the last iterate, with which one round of rate 1 on a quadratic loss is private mean "
        "estimation.",
    )
    smoothness: float | None = Field(
        None, gt=0, description="L, of the expected loss; the problem's certified bound if not given."
    )


class SampleLevel(UserLevelStrategy):
    """Rounds over samples, which protect one of them, or a user by what all its samples can do together."""

    family: ClassVar[str] = "sample-level"
    units: ClassVar[tuple[str, ...]] = ("sample", "user")
    set_by_smoothness: ClassVar[str]
    """What follows from the smoothness of the loss, for whoever has to declare it."""
    meanings: ClassVar[Mapping[str, str]] = {
        "samples": "N, the public number of samples",
        "group": "samples of one user that the noise must cover",
        "sample_level_epsilon": "epsilon for one single sample",
        "user_level_epsilon": "epsilon for a whole user, under the same relation",
    }
    options: SampleLevelOptions

    def _public(self, fact: str) -> int:
        return self.public.declared(fact, self.name)

    def _smoothness(self) -> float:
        """L, for numbers that cannot be set without it.

        Raises:
            BadInput: it is neither declared nor certified.
        """
        smoothness = self.options.smoothness or self.problem.certificate.smoothness
        if not smoothness:
            raise BadInput(
                f"strategy.smoothness must be declared: {self.name} sets {self.set_by_smoothness} by it, and "
                "the problem certifies no positive bound"
            )
        return smoothness

    @property
    def _most(self) -> int | None:
        """Samples of a user that count, where users are protected; None where samples are, which needs no limit."""
        return self._public("max_samples") if self.privacy.unit == "user" else None

    @property
    def _group(self) -> int:
        """Samples that the promise covers at once."""
        return self._most or 1

    def _noise_warnings(self, noise: float, signal: float, mend: str, bound: str = "clip") -> list[str]:
        """The warning that the noise of a round exceeds ``signal``, the ``bound`` of the mean gradient, if it does."""
        if noise < signal:
            return []
        exceeds = f"the noise of one round ({noise:.3g}) exceeds the {bound} ({signal:.3g})"
        return [f"{exceeds}, which bounds the mean gradient{mend}"]

    def _output(self, index: int, x: Vector, following: Vector) -> Vector:
        """The model after round ``index``, which took its gradient at ``x``."""
        if index == 0:
            self._sum = np.zeros_like(x)
        self._sum += x
        return following if self.options.output == "last" else self._sum / (index + 1)
