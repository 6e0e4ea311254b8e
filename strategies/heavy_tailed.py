"""What the strategies for heavy-tailed gradients share: the paper's moments, rounds and steps."""

import math
from typing import ClassVar

from pydantic import Field

from strategies.sample_level import SampleLevel, SampleLevelOptions
from userdp.optimisers.heavy_tailed import wanted_rounds, whole_rounds
from userdp.problems.base import Vector


class HeavyTailedOptions(SampleLevelOptions):
    """Settings of every strategy here."""

    moment_order: float = Field(2.0, ge=2, description="p: the order of the bounded gradient moment.")
    moment: float = Field(1.0, gt=0, description="M: E |<u, gradient>|^p <= M^p for every direction u.")
    clip_norm: float | None = Field(
        None, gt=0, description="R, l2 clip of each sample; the paper's choice if not given."
    )
    rounds: int | None = Field(None, ge=1, description="T; the paper's choice (at most max_rounds) if not given.")
    max_rounds: int = Field(200, ge=1, description="Cap on the paper's number of rounds.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; 1 / (smoothness sqrt(2 T)) if not given.")


class HeavyTailedDescent(SampleLevel):
    """Projected descent along private means of all samples' gradients."""

    set_by_smoothness: ClassVar[str] = "strategy.learning_rate and strategy.rounds, where they are not given,"
    options: HeavyTailedOptions
    _rate: float
    _rounds: int

    @property
    def _weight(self) -> float:
        """How much farther the unit of privacy moves what is released than one sample does."""
        return float(self._group)

    def _paper_rounds(self, rho: float, clip: float, samples: int) -> int:
        """The paper's number of rounds, in consistent units: noise power 2 (smoothness * diameter)^2 a round."""
        d, radius = self.problem.dimension, self.problem.domain.radius
        diameter = 2 * radius * math.sqrt(d) if math.isfinite(radius) else 1.0
        wanted = wanted_rounds(samples, d, rho, clip, self._smoothness() * diameter)
        return whole_rounds(wanted, self.options.max_rounds)

    def _warnings(self, noise: float, clip: float) -> tuple[str, ...]:
        mend = ": use fewer strategy.rounds, more samples, a smaller data.max_samples or a larger epsilon"
        warnings = self._noise_warnings(noise, clip, mend)
        if self._group > 1:
            warnings.append(
                f"user level by group privacy: the noise is {self._weight:.3g} times that of sample level "
                f"(data.max_samples = {self._group})"
            )
        return tuple(warnings)

    def _descend(self, index: int, x: Vector, gradient: Vector) -> tuple[Vector, Vector]:
        """(next iterate, released model): every iterate is a released value, as is any average of them."""
        following = self.problem.domain.project(x - self._rate * gradient)
        return following, self._output(index, x, following)
