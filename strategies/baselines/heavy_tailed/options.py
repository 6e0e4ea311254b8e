"""Descents for heavy-tailed gradients, which clip every sample: settings, and the paper's rounds and steps."""

import math

from pydantic import Field

from strategies import Given
from strategies.baselines.samples.sample_options import SampleLevelOptions, rounds_by_theory, samples_of

_SET_BY_SMOOTHNESS = "strategy.learning_rate and strategy.rounds, where they are not given,"


class HeavyTailedOptions(SampleLevelOptions):
    """Settings of every strategy here."""

    moment_order: float = Field(2.0, ge=2, description="p: the order of the bounded gradient moment.")
    moment: float = Field(1.0, gt=0, description="M: E |<u, gradient>|^p <= M^p for every direction u.")
    clip_norm: float | None = Field(None, gt=0, description="R, l2 clip of each sample; the paper's if not given.")
    rounds: int | None = Field(None, ge=1, description="T; the paper's choice (at most max_rounds) if not given.")
    max_rounds: int = Field(200, ge=1, description="Cap on the paper's number of rounds.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; 1 / (smoothness sqrt(2 T)) if not given.")

    def wanted_rounds(self, given: Given, rho: float, clip: float) -> tuple[int, tuple[str, ...]]:
        """T, with warnings: by default the paper's, for which a round's noise has power 2 (smoothness * diameter)^2.

        Raises `BadInput`: neither rounds nor smoothness are known.
        """

        def wanted() -> float:
            d, radius = given.dimension, given.problem.domain.radius
            diameter = 2 * radius * math.sqrt(d) if math.isfinite(radius) else 1.0
            slope = self.known_smoothness(given, _SET_BY_SMOOTHNESS) * diameter
            return wanted_rounds(samples_of(given), d, rho, clip, slope)

        return rounds_by_theory(self.rounds, wanted, self.max_rounds)

    def rate(self, given: Given, rounds: int) -> float:
        """The step size, by default the paper's ``1 / (smoothness sqrt(2 T))``; `BadInput` if neither is known."""
        return self.learning_rate or 1 / (self.known_smoothness(given, _SET_BY_SMOOTHNESS) * math.sqrt(2 * rounds))


def wanted_rounds(samples: int, dimension: int, rho: float, clip_norm: float, slope: float = 1.0) -> float:
    """T for which the noise of one round has power ``2 slope^2``: ``rho n^2 slope^2 / (d R^2)``.

    ``rho`` is of the run, on the mean of all samples; ``slope`` is smoothness times diameter, which the paper silently
    takes as 1.
    """
    return rho * (samples * slope / clip_norm) ** 2 / dimension


def group_warnings(group: int, weight: float) -> tuple[str, ...]:
    """Return the warning about the cost of protecting ``group`` samples, which move a mean ``weight`` times as far."""
    if group == 1:
        return ()
    return (
        f"user level by group privacy: the noise is {weight:.3g} times that of sample level "
        f"(data.max_samples = {group})",
    )
