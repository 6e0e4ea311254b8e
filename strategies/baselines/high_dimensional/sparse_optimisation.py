"""Sparse minimiser of any loss with heavy-tailed gradients: smooth truncation, one step a fold, the largest entries."""

import math
from typing import ClassVar

from pydantic import Field

from strategies import About, Given, Recipe
from strategies.baselines.high_dimensional.hard_thresholding import truncation_scale
from strategies.baselines.high_dimensional.peeled_rounds import MEANINGS, NOTES, SparseRoundsOptions, peeled_rounds
from strategies.baselines.propose_then_release import ProposeThenRelease, bounded_sum
from strategies.baselines.smoothed_truncation import LARGEST


class SparseOptimisation(Recipe, SparseRoundsOptions):
    """Steps along smoothly truncated gradients of fresh users, of which peeling keeps s entries.

    Users are split into T disjoint folds. In round t the users of fold t send the sum of their average gradients, each
    coordinate smoothly truncated at the scale k. The server takes a step and peels: s entries are chosen by noisy size
    and released with noise. A user's average counts as one record: averaging makes tails lighter before they are cut.

    *Formal guarantees.* *Claim.* As `private_hard_thresholding`. *Why.* Unit: one whole user, or one sample; relation:
    replace-one; n (and N, for samples) is public. Each coordinate of a record is truncated to ``2 sqrt(2) k / 3``,
    whatever its data, so replacing it moves each coordinate of the step by at most ``4 sqrt(2) k eta / (3 m)``, m being
    the public number of records of a fold; `Peeling` makes that (epsilon, delta)-DP, or pure. A user takes part in one
    round, so all rounds together cost no more. Every iterate is released.

    *Assumptions.* n, and for sample level N, are public. The server is trusted. Nodes truncate as requested.
    """

    about: ClassVar[About] = About(
        name="sparse_optimisation",
        summary_line="sparse models: smoothly truncated gradients, fresh users per step, largest entries kept",
        family="high-dimensional",
        paper="Hu, Ni, Xiao, Wang 2022 (Algorithm 5), with less noise; users as records: ours",
        cost="n / T users per round, once each: one gradient, every coordinate truncated, one sum of d numbers per "
        "node; server O(s d)",
        needs="any loss with a sparse minimiser",
        units=("user", "sample"),
        pure=True,
        without_secure_noise="how a smoothly truncated gradient is rounded has not been bounded",
        promise="user or sample level, also pure; against other nodes too",
        example={"rounds": 3},
        meanings={
            **MEANINGS,
            "scale": "gradient coordinates well below it count in full",
            "inverse_variance": "of the noise that the truncation is smoothed by",
        },
        notes=NOTES,
    )

    scale: float | None = Field(
        None, gt=0, description="k: gradient coordinates well below it count in full; by second_moment if not given."
    )
    second_moment: float = Field(
        1.0, gt=0, description="tau: bound on E of a squared coordinate of a record's gradient, over sparse models."
    )
    inverse_variance: float = Field(1.0, gt=0, description="beta of the smoothing noise.")
    failure: float = Field(0.1, gt=0, lt=1, description="zeta, the chance that the bound behind the scale fails.")

    def scheme(self, given: Given) -> ProposeThenRelease:
        folds, domain, unit_peeling = self.folds(given), given.problem.domain, self.peeling(given, 1.0)
        moment, beta = self.second_moment, self.inverse_variance
        scale = self.scale or truncation_scale(
            folds.size, given.dimension, folds.rounds, unit_peeling, moment, beta, self.failure
        )
        parameters = {"scale": scale, "inverse_variance": beta}
        kinds = ("truncated_user_gradient", "truncated_sample_sum")
        return peeled_rounds(
            given,
            self,
            folds,
            LARGEST * scale,
            bounded_sum(given, kinds, LARGEST, parameters),
            gradient=lambda total: total * (scale / folds.size),  # nodes send gradients in units of the scale
            settle=domain.project,
            size=float(domain.radius * math.sqrt(unit_peeling.sparsity)),
            numbers=parameters,
        )
