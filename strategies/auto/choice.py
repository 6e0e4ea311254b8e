"""The last stage of `Auto`: the choice between the model and the best constant, by users' losses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategies.auto.progress import Progress
from strategies.auto.releases import Movement, Release
from strategies.auto.stages import Stage
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation

_TAIL = 4.0  # Largest changes of users' losses, over the root mean squares of slopes and of changes of the score


@dataclass(frozen=True)
class Choice(Stage, share=0.02):
    """The choice of the released model: the constant, if users lose by the model.

    *Formal guarantees.* *Claim.* The mean gain is released within the round's share of the budget, for any losses and
    any ``most``. *Why.* A user's gain, the average loss at the constant minus that at the model, both released before,
    follows from its data alone. It is clipped to [-most, most] and divided by 2 most, which follows from releases, so
    that it lies in [-1/2, 1/2]; one that is not a number counts as -1/2, a missing user as 0. Replacing a user moves
    the sum by 1 at most, adding or removing one by 1/2, as the noise is made for. The server sees the sum, everybody
    the noisy mean; the choice and its threshold follow from that and from earlier releases: post-processing.

    *Why losses.* A vote has no size: for a rare class most users gain a little where the model ranks nobody, and the
    few lose much. Of gains clipped to a tiny interval nothing but votes is left, and a wide one is noise.

    *How much doubt.* The model stays unless the released gain is below ``-doubt`` standard deviations of the noise. The
    doubt is the noise over the expected gain, at most two: a prior of that mean and standard deviation. So with
    probability 0.95 the released model loses at most ``1.65 + doubt`` standard deviations to the constant, for gains
    within the clip.
    """

    doubts: float = 2.0  # standard deviations of the noise by which the model must be worse, at most

    def computation(self, progress: Progress) -> Computation:
        """See `Stage`; each user answers how much lower its average loss is."""
        parameters, arrays = {"most": largest_gain(progress)}, {"initial": progress.constant}
        return Computation("improved", "sum", 0.5, parameters=parameters, arrays=arrays)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """See `Stage`; goes back to the constant, or stays."""
        most, expected = largest_gain(progress), expected_gain(progress)
        released, deviation = release.mean(sums, Movement.of_box(1.0))
        gained, noise = 2 * most * float(released[0]), 2 * most * deviation
        doubt = self.doubts if noise >= self.doubts * expected else noise / expected
        back = float(released[0]) < -doubt * deviation
        if back:
            progress.begin(progress.constant)
        return {"gained": gained, "largest_gain": most, "went_back": float(back), "noise_deviation": noise}


def moved(progress: Progress) -> Vector:
    """Return the (p,) way from the constant to the model: in the coordinates, if they are learnt or of columns."""
    if _plain(progress):
        return progress.start - progress.constant
    if progress.level_deviation == math.inf or len(progress.across) > 1 or not progress.learns:
        return progress.z
    return np.asarray(progress.z - progress.along * (progress.constant - progress.start)[-1])


def expected_gain(progress: Progress) -> float:
    """Return the loss that training expects to save, by the known curvature; 0 where none is known."""
    if _plain(progress):
        return 0.0
    way = moved(progress)
    return 0.5 * progress.curvature * float((progress.space.seen * way) @ progress.spread(way))


def largest_gain(progress: Progress) -> float:
    """Guess the largest change of a user's loss, from the constant to the model.

    A loss changes by its slope times the change of the score. Typical slopes, a geometric mean, are shorter than the
    root mean square, and far shorter for rare classes: theirs follows from the mean target.
    """
    distance = math.sqrt(float(progress.space.seen @ moved(progress) ** 2))
    return _TAIL * progress.slope_size * distance


def _plain(progress: Progress) -> bool:
    return progress.columns is None and not progress.learns
