"""Federated averaging: users train on their own data, their clipped model updates are averaged with noise."""

from typing import ClassVar

from pydantic import Field

from strategies.clipping.clip_facts import CLIP_FACTS
from strategies.clipping.clipped_rounds import ClippedOptions, clipped_rounds
from strategies.clipping.cohort_options import SECRET_COHORTS
from strategies.clipping.local_options import LocalOptions, local_numbers
from strategies.core.about import About
from strategies.core.mean_rounds import MeanRounds, negative
from strategies.core.options import Found, PreparedOptions
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from userdp.nodes.computations import Computation

_STEPS = 5


class DPFedAvg(
    Recipe, ClippedOptions, LocalOptions, PreparedOptions, restates={"clip_norm", "learning_rate", "local_steps"}
):
    """Clipped mean of users' model updates after some local gradient steps, plus Gaussian noise, every round.

    *Formal guarantees.* *Claim.* That of `dp_fed_sgd`. *Why.* Those of `dp_fed_sgd`, with the update in the place of
    the gradient: unit: one whole user; relation: replace-one with n public (add-or-remove for poisson and allocation,
    unless it is set). Whatever a user computes from its own data and the released model, its update is clipped to l2
    norm C, so replacing a user moves the sum by at most 2C (adding or removing one by C). An update that is not finite
    counts as zero. The server's optimiser sees released values only.

    *Assumptions.* Those of `dp_fed_sgd`.
    """

    about: ClassVar[About] = About(
        name="dp_fed_avg",
        summary_line="mean of clipped model updates after local steps, with noise, every round",
        family="clipping",
        masked=True,
        cost="node O(steps N d), one sum of d numbers up; server O(K d)",
        paper="McMahan, Ramage, Talwar, Zhang 2018",
        with_secure_noise=SECRET_COHORTS,
        example={"rounds": 3},
        notes=CLIP_FACTS,
    )

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's model update is clipped to.")
    local_steps: int | None = Field(
        None, ge=1, description=f"Steps of each user on its own data; {_STEPS} if neither they nor epochs are given."
    )
    learning_rate: float | None = Field(None, gt=0, description="Factor on the mean update; default 1; 0.1 for adam.")
    found_by_preparation = (
        *("clip_norm", "local_rate", "learning_rate"),
        *("local_epochs", "local_batch", "local_optimiser"),
    )

    def found(self, found: Found) -> dict[str, float]:
        """See `PreparedOptions`; a server's step is as long as one along the mean gradient."""
        # After one whole step a user stays.
        distance = found.own_rate * (1 if found.whole else self.local_steps or _STEPS)
        steps = {} if self.server_optimiser == "adam" else found.steps(self.rounds, distance)
        return {"clip_norm": found.clip(self.rounds) * distance, "local_rate": found.own_rate, **steps}

    def scheme(self, given: Given) -> MeanRounds:
        training = self.local_training(_STEPS, given.default_step)
        update = Computation("local_update", "sum", self.clip_norm, parameters=training.parameters())
        return clipped_rounds(given, self, update, 1.0, gradient=negative, numbers=local_numbers(training))
