"""Figures of a round to tune its clip by, in simulations alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategies.core.about import Fact
from strategies.wire.replies import Gathered
from userdp.arrays.types import Vector

CLIP_FACTS: Mapping[str, Fact] = {
    "clipped_share_private": Fact("private", "share of the round's users that the clip shortened; simulations only"),
    "median_length_private": Fact(
        "private",
        "median l2 norm of the round's users before the clip, about a centre if the strategy has one; simulations only",
    ),
    "noise_over_signal_private": Fact(
        "private",
        "length that the round's noise is expected to have, over that of the clipped mean before it; simulations only",
    ),
}
"""The facts of `clip_facts`, by name."""


def clip_facts(gathered: Gathered, clip: float, mean: Vector, noise: float) -> dict[str, float]:
    """Return figures to tune a clip by; none where nodes sent no lengths.

    They are exact figures of users' data, which no guarantee covers, so they are private facts of simulations alone:
    `strategies.core.base.UserLevelStrategy` removes ``Computation.lengths`` from requests elsewhere.

    Args:
        gathered: the answers.
        clip: l2 norm in force.
        mean: of the clipped vectors, before noise.
        noise: expected l2 norm of the noise on the mean.
    """
    if gathered.lengths is None:
        return {}
    known = gathered.lengths[~np.isnan(gathered.lengths)]
    signal = float(np.linalg.norm(mean))
    return {
        "clipped_share_private": float(np.mean(known > clip)) if len(known) else math.nan,
        "median_length_private": _median(known) if len(known) else math.nan,
        "noise_over_signal_private": noise / signal if signal > 0 else math.inf,
    }


def _median(values: Vector) -> float:
    """Return what `numpy.median` does, which takes as long as the noise of a small round, of numbers without a NaN."""
    half = len(values) // 2
    parted = np.partition(values, [half - 1, half] if half else half)
    return float(parted[half] if len(values) % 2 else (parted[half - 1] + parted[half]) / 2)


@dataclass(frozen=True)
class ClipNotes:
    """The facts of rounds that clip: the deviation of the round's noise, and figures to tune the clip by."""

    clip: float  # l2 norm in force
    noise: float  # expected l2 norm of the noise on the mean
    name: str | None = "noise_deviation"  # of the fact of the deviation; None for no such fact

    def __call__(self, gathered: Gathered, mean: Vector, deviation: float) -> Mapping[str, float]:
        """See `MeanRounds.noted`."""
        facts = {} if self.name is None else {self.name: deviation}
        return facts | clip_facts(gathered, self.clip, mean, self.noise)
