"""Gradient descent on the mean of users' clipped gradients, with noise, every round."""

from typing import ClassVar

from pydantic import Field

from strategies.clipping.clip_facts import CLIP_FACTS
from strategies.clipping.cohort_options import SECRET_COHORTS
from strategies.clipping.embedding_rows import row_rounds
from strategies.clipping.row_options import ROW_FACTS, ROW_MEANINGS, RowOptions
from strategies.core.about import About
from strategies.core.options import Found, PreparedOptions
from strategies.core.public_facts import Given
from strategies.core.recipe import Recipe
from strategies.core.scheme import Scheme
from userdp.nodes.computations import Computation


class DPFedSGD(Recipe, RowOptions, PreparedOptions, restates={"clip_norm", "learning_rate"}):
    """Clipped mean of user gradients plus Gaussian noise, every round.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss; replace-one, or add-or-remove
    for Poisson and allocated cohorts unless replace-one is asked for. *Why.* Unit: one whole user; relation:
    replace-one with n public (add-or-remove for poisson and allocation, unless it is set). Each user's average gradient
    is clipped to l2 norm C and all users weigh the same, so replacing one moves the sum by at most 2C (adding or
    removing one by C); the divisor is the planned cohort whatever the number that was drawn or answered, and the noise
    is calibrated to that sensitivity, also in a round that drew nobody. disjoint and cyclic: rounds in which a user
    takes part compose as one Gaussian mechanism (exact), disjoint cohorts in parallel. poisson and fixed_size: every
    round costs, amplified by sampling, while cohorts stay secret. allocation: all rounds are accounted together, while
    cohorts stay secret. Every iterate is released: nodes are protected from each other; the server is trusted. Nodes
    clip and sum; an answer larger than clipped users can add up to is refused. The sampler that draws the cohorts is
    the one that accounts them. With ``privacy.trust = "sum"`` the server sees nothing of a round but the sum over all
    nodes with their noise. Each other node knows its own share of that: `userdp.masking.sums.MaskedSum` prices what is
    left. With ``embedding_rows`` the noise of a round covers its counts, too:
    `strategies.clipping.embedding_rows`.

    *Assumptions.* The server is trusted, or with ``privacy.trust = "sum"`` curious and not active, and no more nodes
    put together what they know than one or the declared share. Nodes clip each of
    their users and return the sum; a sum larger than clipped users can add up to is refused, where it is not masked.
    Disjoint and cyclic: n and who takes part are public. Poisson, fixed size and allocation: cohorts stay secret.
    """

    about: ClassVar[About] = About(
        name="dp_fed_sgd",
        summary_line="mean of clipped user gradients with noise, every round",
        family="clipping",
        masked=True,
        cost="node O(N d), one sum of d numbers up; server O(K d)",
        paper="McMahan, Ramage, Talwar, Zhang 2018",
        with_secure_noise=SECRET_COHORTS,
        example={"rounds": 3},
        meanings=ROW_MEANINGS,
        notes={**CLIP_FACTS, **ROW_FACTS},
    )

    clip_norm: float = Field(1.0, gt=0, description="l2 norm that each user's average gradient is clipped to.")
    learning_rate: float | None = Field(None, gt=0, description="Step size; default 1 / smoothness, or 0.5; adam 0.1.")

    def found(self, found: Found) -> dict[str, float]:
        steps = {} if self.server_optimiser == "adam" else found.steps(self.rounds)
        return {"clip_norm": found.clip(self.rounds), **steps}

    def scheme(self, given: Given) -> Scheme:
        gradient = Computation("user_gradient", reduce="sum", clip_norm=self.clip_norm)
        return row_rounds(given, self, gradient, given.default_step)
