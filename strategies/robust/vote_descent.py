"""Vote descent: users vote on the direction of each coordinate; sums of bounded votes need neither a clip nor rows."""

import math
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies.clipping.clip_facts import ClipNotes
from strategies.clipping.clipped_rounds import noisy_sums
from strategies.clipping.cohort_options import SECRET_COHORTS, CohortOptions
from strategies.core.about import About
from strategies.core.mean_rounds import Descent, MeanRounds
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from userdp.arrays.types import Vector
from userdp.nodes.computations import Computation

_LONGER, _SHORTER = 1.2, 0.6  # Factors of a coordinate's step after votes with equal and with opposite signs
_LONGEST = 100.0  # Of a step over the first: all votes may agree for as long as a run takes


class VoteSteps(Descent):
    """Steps along shares of votes; each coordinate's step grows while votes agree and shrinks when they turn round.

    This is Rprop's rule (Riedmiller, Braun 1993), which needs no scale of the gradients, with steps in proportion to
    the majority: noise that hides one makes the model wander less than a whole step would.
    """

    remembered: ClassVar[tuple[str, ...]] = ("_steps", "_last")

    def __init__(self, rate: float, dimension: int) -> None:
        super().__init__(rate)
        self._steps = np.full(dimension, rate)
        self._last = np.zeros(dimension)

    def step(self, x: Vector, gradient: Vector, deviation: float) -> Vector:
        """See `Descent`; ``gradient`` holds half the difference of the shares of votes for and against each slope."""
        agreed = gradient * self._last
        factors = np.where(agreed > 0, _LONGER, np.where(agreed < 0, _SHORTER, 1.0))
        self._steps = np.minimum(self._steps * factors, _LONGEST * self.rate)
        self._last = gradient
        return x - self._steps * 2 * gradient


class VoteDescent(Recipe, CohortOptions):
    """Each user votes on the direction of each coordinate in which its loss falls; steps follow noisy shares of votes.

    The model comes to rest where, in each coordinate, as many users pull it up as down: where the coordinate-wise
    median of users' gradients vanishes. A vote has no scale, so there is no clip to choose.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss; replace-one, or add-or-remove
    for Poisson and allocated cohorts unless replace-one is asked for. *Why.* Unit: one whole user; relation:
    replace-one with n public (add-or-remove for poisson and allocation, unless it is set). A user's votes are the signs
    of its average gradient at a released model, halved: p numbers in {-1/2, 0, 1/2}, of l2 norm ``sqrt(p) / 2`` at
    most, so replacing a user moves their sum by at most ``sqrt(p)``, and adding or removing one by ``sqrt(p) / 2``. A
    user who does not answer, or whose gradient is not finite, votes 0 everywhere. Everything else is that of
    `dp_fed_sgd`, with these numbers in place of its clip: the divisor, the noise, the accounting by the sampler, and
    sums of which the server sees the noisy total alone. Steps, their lengths included, follow from released votes, and
    cost nothing.

    With secure noise users are computed one by one, so that a vote follows from its user's data to the last bit.

    *Assumptions.* Those of `dp_fed_sgd`: nodes compute the votes of each of their users as requested.

    *Robustness.* *Claim.* Let a share a < 1/2 of a cohort have any data, and let all others vote. Noise
    aside, a coordinate moves against the slope of the majority if more than a share ``1 / (2 (1 - a))`` of the honest
    users have that slope; it rests only if 0 lies between the quantiles ``1 - 1 / (2 (1 - a))`` and
    ``1 / (2 (1 - a))`` of the honest users' slopes. No user moves a coordinate by more than ``2 / cohort`` of its step.
    *Why.* Nodes count votes, which no data make larger. Let h be the honest share with that slope: votes add up to at
    least ``(1 - a) (h - (1 - h)) / 2 - a / 2`` for it, per user, which is positive for such h.

    *Limits.* The median of gradients is not their mean. Where users' gradients are skewed, as for classes or columns
    that few users have, the model differs from the minimiser of the mean loss, by as much as medians differ from means.
    Every user counts alike in every coordinate, whatever its samples.
    """

    about: ClassVar[About] = About(
        name="vote_descent",
        summary_line="steps along noisy shares of users' votes on each coordinate's direction: medians, from sums",
        family="robust",
        masked=True,
        protocol=2,
        cost="node O(N d), one sum of d numbers up; server O(K d)",
        paper="ours, after Bernstein, Wang, Azizzadenesheli, Anandkumar 2018 and Riedmiller, Braun 1993",
        with_secure_noise=SECRET_COHORTS,
        example={"rounds": 3},
    )

    learning_rate: float = Field(0.3, gt=0)
    """Distance that each coordinate moves in the first round if all users vote alike; later ones adapt to the votes."""

    def scheme(self, given: Given) -> MeanRounds:
        sampler, p = self.sampler(given), given.dimension
        longest = math.sqrt(p) / 2
        votes = Computation("gradient_votes", reduce="sum", clip_norm=longest)
        mean, asked, mechanism = noisy_sums(given, sampler, votes, longest)
        noise = mean.noise(p)
        return MeanRounds(
            price=mean.price,
            outline=self.outline(mean, self.learning_rate, noise=noise, signal=longest),
            new_memory=partial(VoteSteps, self.learning_rate, p),
            domain=given.problem.domain,
            sampler=sampler,
            query=lambda _: asked,
            divisor=sampler.expected_batch,
            mechanism=mechanism,
            noted=ClipNotes(longest, noise),
        )
