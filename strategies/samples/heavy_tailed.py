"""Descents for heavy-tailed gradients, which clip every sample: settings, and the paper's rounds and steps."""

import math

from pydantic import Field

from strategies.samples.sample_strategy import Rounds, SampleLevelOptions, SampleStrategy
from userdp.papers.heavy_tailed.descent import wanted_rounds

_SET_BY_SMOOTHNESS = "strategy.learning_rate and strategy.rounds, where they are not given,"


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


def chosen_rounds(strategy: SampleStrategy, options: HeavyTailedOptions, rho: float, clip: float) -> Rounds:
    """T: by default the paper's, in consistent units: noise power 2 (smoothness * diameter)^2 a round.

    Raises:
        BadInput: neither rounds nor smoothness are known.
    """

    def wanted() -> float:
        d, radius = strategy.problem.dimension, strategy.problem.domain.radius
        diameter = 2 * radius * math.sqrt(d) if math.isfinite(radius) else 1.0
        slope = strategy.smoothness(_SET_BY_SMOOTHNESS) * diameter
        return wanted_rounds(strategy.samples, d, rho, clip, slope)

    return Rounds.chosen(options.rounds, wanted, options.max_rounds)


def chosen_rate(strategy: SampleStrategy, options: HeavyTailedOptions, rounds: int) -> float:
    """The step size: by default the paper's, ``1 / (smoothness sqrt(2 T))``.

    Raises:
        BadInput: neither step nor smoothness are known.
    """
    return options.learning_rate or 1 / (strategy.smoothness(_SET_BY_SMOOTHNESS) * math.sqrt(2 * rounds))


def group_warnings(group: int, weight: float) -> tuple[str, ...]:
    """What protecting ``group`` samples costs, which move ``weight`` times as far."""
    if group == 1:
        return ()
    return (
        f"user level by group privacy: the noise is {weight:.3g} times that of sample level "
        f"(data.max_samples = {group})",
    )
