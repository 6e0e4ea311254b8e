"""Sparse least squares with heavy tails: data cut at a level, one step a fold of users, the largest entries kept."""

from typing import ClassVar

from pydantic import Field

from strategies import About, Given, Recipe
from strategies.baselines.high_dimensional.hard_thresholding import (
    truncated_gradient_bound,
    truncation_level,
    unit_ball,
)
from strategies.baselines.high_dimensional.peeled_rounds import MEANINGS, NOTES, SparseRoundsOptions, peeled_rounds
from strategies.baselines.propose_then_release import ProposeThenRelease, bounded_sum


class PrivateHardThresholding(Recipe, SparseRoundsOptions):
    """Iterative hard thresholding on truncated data, for a sparse linear model in the unit l2 ball.

    Users are split into T disjoint folds. In round t the users of fold t send the sum of their average gradients
    ``a (<a, w> - y)``, with features and targets cut at ``+-K``. The server takes a step, and peels: s entries are
    chosen by noisy size and released with noise, then scaled into the unit l2 ball. A user's average is one record,
    so user level costs no more than sample level with n records.

    *Formal guarantees.* *Claim.* (epsilon, delta), or pure epsilon, replace-one, for one user or one sample, round
    release, any loss. *Why.* Unit: one whole user, or one sample; relation: replace-one; n (and N, for samples) is
    public. For an s-sparse w in the unit ball a truncated gradient's coordinates are at most ``B = K^2 (sqrt(s) + 1)``,
    and so are their mean's. Nodes hold coordinates to B, whatever the loss, so nothing rests on that. Replacing a
    record moves each coordinate of the step by at most ``2 B eta / m``, m being the public number of records of a fold;
    `Peeling` makes that (epsilon, delta)-DP, or pure. A user takes part in one round, so all rounds together cost no
    more. Every iterate is released. With noise of scale b and that sensitivity lam, peeling makes s selections at 2 lam
    / b and releases s entries at lam / b: (s lam^2 / b^2)-zCDP together, or pure at 3 s lam / b. A user's average is
    one record, so user level is no group privacy.

    *Assumptions.* n, and for sample level N, are public. The server is trusted. Nodes truncate as requested.
    """

    about: ClassVar[About] = About(
        name="private_hard_thresholding",
        summary_line="sparse least squares: truncated data, fresh users per step, the largest entries kept",
        family="high-dimensional",
        paper="Hu, Ni, Xiao, Wang 2022 (Algorithm 3), with less noise; users as records: ours",
        cost="n / T users per round, once each: one gradient, one sum of d numbers per node; server O(s d)",
        needs="least squares with a sparse model in the unit ball (other losses: coordinates are clipped)",
        units=("user", "sample"),
        pure=True,
        without_secure_noise="how a sum of truncated gradients is rounded has not been bounded",
        promise="user or sample level, also pure; against other nodes too",
        example={"rounds": 3},
        meanings={
            **MEANINGS,
            "level": "features and targets are cut at it",
            "coordinate_bound": "largest coordinate of a gradient of truncated data, to which it is held",
        },
        notes=NOTES,
    )

    level: float | None = Field(
        None, gt=0, description="K, at which features and targets are cut; by fourth_moment if not given."
    )
    fourth_moment: float = Field(
        1.0, gt=0, description="M: bound on E (a_j a_k)^2 of features and E y^4 of targets; 3 for standard normal ones."
    )

    def scheme(self, given: Given) -> ProposeThenRelease:
        folds, sparsity, project = self.folds(given), min(self.sparsity, given.dimension), given.problem.domain.project
        level = self.level or truncation_level(
            folds.records, given.privacy.epsilon, sparsity, folds.rounds, self.fourth_moment
        )
        # The largest coordinate on data that are cut; without targets |w_j - z_j| <= 1 + K, as in mean estimation.
        bound = truncated_gradient_bound(level, sparsity) if given.problem.has_targets else 1 + level
        parameters = {"level": level, "bound": bound}
        kinds = ("truncated_data_gradient", "truncated_data_sum")
        return peeled_rounds(
            given,
            self,
            folds,
            bound,
            bounded_sum(given, kinds, bound, parameters),
            gradient=lambda total: total / folds.size,
            settle=lambda x: project(unit_ball(x)),
            size=1.0,
            numbers={"level": level, "coordinate_bound": bound},
        )
