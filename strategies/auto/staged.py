"""The scheme of `Auto`: one stage a round, each with its share of the budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.auto.adaptive import AdaptiveStep, ClipScale
from strategies.auto.filled import Filled
from strategies.auto.level import Balance, ClassShares, Counts, Level
from strategies.auto.progress import Progress
from strategies.auto.releases import Release, Shares
from strategies.auto.stages import Choice, Columns, Gradient, Lengths, Moments, Recentred, Sizes, Stage, StepLength
from strategies.clipping.recentred_clipping import epoch_shares
from strategies.core.clip_facts import clip_facts
from strategies.core.scheme import Scheme
from strategies.core.step import Noise, Step
from strategies.wire.replies import Gathered, Request
from userdp.arrays.types import Vector
from userdp.problems import Box

_SHARES: Mapping[type[Stage], float] = {
    Filled: 0.01,
    Counts: 0.01,
    Level: 0.05,
    ClassShares: 0.05,
    Columns: 0.05,
    Sizes: 0.01,
    Moments: 0.15,
    Lengths: 0.02,
    Balance: 0.05,
    Choice: 0.02,
    StepLength: 0.015,
    ClipScale: 0.02,
}
"""Of the budget; gradient rounds have the rest."""

MOVING = (Gradient, Recentred, AdaptiveStep)
"""Stages that move the model."""


def shares_of(stages: Sequence[Stage]) -> tuple[float, ...]:
    """Each stage's share of the budget."""
    moving = [stage for stage in stages if isinstance(stage, MOVING)]
    rest = 1 - sum(_SHARES.get(type(stage), 0.0) for stage in stages)
    # Where gradients are filtered from the first round on, equal rounds lose nothing.
    plain = isinstance(moving[0], Recentred) and not moving[0].measured
    parts = iter(epoch_shares(len(moving)) if plain else [1 / len(moving)] * len(moving))
    return tuple(_SHARES[type(stage)] if type(stage) in _SHARES else rest * next(parts) for stage in stages)


@dataclass(frozen=True, kw_only=True)
class AutoScheme(Shares, Scheme):
    """A `Scheme` of stages, one a round.

    Attributes:
        stages: the first round's first.
        domain: of models.
    """

    stages: tuple[Stage, ...]
    domain: Box

    def ask(self, index: int, memory: Progress) -> Request:
        """See `Scheme`."""
        stage = self.stages[index]
        asked = stage.computation(memory)
        # Only there the clip is of gradients.
        return Request(self.sampler.cohort(index), replace(asked, lengths=isinstance(stage, MOVING)))

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Progress, noise: Noise) -> Step:
        """See `Scheme`."""
        if index == 0:
            memory.begin(x)
        release = Release(self, index, noise, self.stages[index].computation(memory))
        facts = dict(self.stages[index].take(memory, gathered.values, release))
        if gathered.lengths is not None:
            mean = gathered.values[:-1] / release.users
            facts |= clip_facts(gathered, facts["radius"], mean, facts["noise_deviation"] * math.sqrt(len(x)))
        following = self.domain.project(memory.model)
        return Step(following, following, facts, constant=memory.released_constant)
