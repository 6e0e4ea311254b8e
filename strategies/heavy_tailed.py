"""What the strategies for heavy-tailed gradients share: public numbers, the paper's moments, the averaged iterate."""

import math
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.base import StrategyOptions, UserLevelStrategy
from userdp.errors import BadInput
from userdp.optimisers.heavy_tailed import wanted_rounds, whole_rounds
from userdp.problems.base import Vector


class HeavyTailedOptions(StrategyOptions):
    """Settings of every strategy here."""

    moment_order: float = Field(2.0, ge=2, description="p: the order of the bounded gradient moment.")
    moment: float = Field(1.0, gt=0, description="M: E |<u, gradient>|^p <= M^p for every direction u.")
    clip_norm: float | None = Field(
        None, gt=0, description="R, l2 clip of each sample; the paper's choice if not given."
    )
    rounds: int | None = Field(None, ge=1, description="T; the paper's choice (at most max_rounds) if not given.")
    max_rounds: int = Field(200, ge=1, description="Cap on the paper's number of rounds.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; 1 / (smoothness sqrt(2 T)) if not given.")
    returns: Literal["average", "last"] = Field(
        "average",
        description="average of the points at which gradients were taken (the paper's), or the last iterate; with it, "
        "one round of rate 1 on a quadratic loss is private mean estimation.",
    )


class HeavyTailedDescent(UserLevelStrategy):
    """Projected descent along private means of all samples' gradients."""

    family: ClassVar[str] = "sample-level"
    units: ClassVar[tuple[str, ...]] = ("sample", "user")
    options: HeavyTailedOptions
    _rate: float
    _rounds: int

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sum = np.zeros(self.problem.dimension)

    def _public(self, fact: str) -> int:
        value = getattr(self.public, fact)
        if value is None:
            raise BadInput(f"data.{fact} must be declared: {self.name} needs this public number in its sensitivity")
        return int(value)

    @property
    def _group(self) -> int:
        """Samples that change together when the unit of privacy does."""
        return self._public("max_samples") if self.privacy.unit == "user" else 1

    @property
    def _weight(self) -> float:
        """How much farther the unit of privacy moves what is released than one sample does."""
        return float(self._group)

    @property
    def _smoothness(self) -> float:
        return self.problem.certificate.smoothness or 1.0

    def _paper_rounds(self, rho: float, clip: float, samples: int) -> int:
        """The paper's number of rounds, in consistent units: noise power 2 (smoothness * diameter)^2 a round."""
        d, radius = self.problem.dimension, self.problem.domain.radius
        diameter = 2 * radius * math.sqrt(d) if math.isfinite(radius) else 1.0
        return whole_rounds(wanted_rounds(samples, d, rho, clip, self._smoothness * diameter), self.options.max_rounds)

    def _noise_warnings(self, noise: float, clip: float) -> list[str]:
        warnings = []
        if noise >= clip:
            warnings.append(
                f"the noise of one round ({noise:.3g}) exceeds the clip ({clip:.3g}), which bounds the mean gradient: "
                "use fewer strategy.rounds, more samples, a smaller data.max_samples or a larger epsilon"
            )
        if self._group > 1:
            warnings.append(
                f"user level by group privacy: the noise is {self._weight:.3g} times that of sample level "
                f"(data.max_samples = {self._group})"
            )
        return warnings

    def _descend(self, index: int, x: Vector, gradient: Vector) -> tuple[Vector, Vector]:
        """(next iterate, released model): every iterate is a released value, as is any average of them."""
        self._sum += x
        following = self.problem.domain.project(x - self._rate * gradient)
        return following, following if self.options.returns == "last" else self._sum / (index + 1)
