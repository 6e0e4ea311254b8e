"""The first round of `Auto` and of a preparation: whether there is anything to learn from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from strategies.auto.progress import Progress
from strategies.auto.releases import Movement, Release
from strategies.auto.stages import Stage
from userdp.arrays.types import Vector
from userdp.errors import RunFailed
from userdp.nodes.computations import Computation

FEWEST, MOST_NOISE = 0.1, 0.16
"""Share of people below which a run stops, and noise on that share above which it does not: with more, a table that
half of the people fill would be stopped too often."""


@dataclass(frozen=True)
class Filled(Stage):
    """What share of the people can be heard; the run stops where hardly anybody can.

    Later rounds average over a user's samples, and a user of whom one sample cannot be used is silent in all of them.
    A column of dates that is declared as one of numbers silences everybody, and what is trained then is noise.

    *Formal guarantees.* *Claim.* Whether the run stops, and what it says then, costs nothing beyond this round's share
    of the budget. *Why.* Each user answers 1/2 or -1/2, by its own data alone, so that replacing one moves the sum by 1
    at most, and adding or removing one by 1/2. The mean over the public n is released with noise for that. Stopping,
    and the sentence, follow from the released number and its planned noise alone: post-processing. A round that was
    charged before it stops is in the ledger, and no later one is released.

    A user who does not answer, as all in a round that was lost, adds zero: as if half of them could be heard. That
    stops no run; one whose data cannot be used says so.
    """

    movement: ClassVar[Movement] = Movement.of_box(1.0)

    def computation(self, progress: Progress) -> Computation:
        """Of each user whether it can be heard."""
        return Computation("filled", "sum", 0.5)

    def take(self, progress: Progress, sums: Vector, release: Release) -> Mapping[str, float]:
        """Tell the share.

        Raises:
            RunFailed: fewer than one in ten can be heard, as far as noise lets tell.
        """
        released, deviation = release.mean(sums, self.movement)
        share = min(max(float(released[0]) + 0.5, 0.0), 1.0)
        if share < FEWEST and deviation <= MOST_NOISE:
            raise RunFailed(
                f"there is next to nothing to learn from: {100 * share:.2g} % of the people can be heard (released, "
                f"with noise of {100 * deviation:.2g} %). Fewer than one in ten have rows in which every declared "
                "column and the target hold a cell that the model can use; a person with one other row is not heard. "
                "No model was trained. Whoever holds the data sees in the private figures (data.json) which column's "
                "cells cannot be used: check ranges, dates, positive and levels against the table, and declare with "
                "impute what missing cells count as"
            )
        return {"filled_share": share, "noise_deviation": deviation}


def doubts(deviation: float) -> tuple[str, ...]:
    """The warning of a plan whose noise on the share has that standard deviation: none if it can tell."""
    if deviation <= MOST_NOISE:
        return ()
    return (
        f"the noise on the share of people who can be heard ({deviation:.2g}) hides whether anybody can: the run does "
        "not stop where a column cannot be used, and would train on noise. Look at the table's private figures before",
    )
