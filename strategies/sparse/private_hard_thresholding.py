"""Sparse least squares with heavy tails: data cut at a level, one step a fold of users, the largest entries kept."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from strategies.sparse.peeled_strategy import PeeledScheme, PeeledStrategy, SparseRoundsOptions
from userdp.nodes.computations import Computation
from userdp.papers.high_dimensional.hard_thresholding import truncated_gradient_bound, truncation_level, unit_ball


class HardThresholdingOptions(SparseRoundsOptions):
    """Settings of `PrivateHardThresholding`."""

    level: float | None = Field(
        None, gt=0, description="K, at which features and targets are cut; by fourth_moment if not given."
    )
    fourth_moment: float = Field(
        1.0, gt=0, description="M: bound on E (a_j a_k)^2 of features and E y^4 of targets; 3 for standard normal ones."
    )


class PrivateHardThresholding(PeeledStrategy):
    """Iterative hard thresholding on truncated data, for a sparse linear model in the unit l2 ball.

    Users are split into T disjoint folds. In round t the users of fold t send the sum of their average gradients
    ``a (<a, w> - y)``, with features and targets cut at ``+-K``. The server takes a step, and peels: s entries are
    chosen by noisy size and released with noise, then scaled into the unit l2 ball. A user's average is one record,
    so user level costs no more than sample level with n records.

    *Formal guarantees.* *Claim.* (epsilon, delta), or pure epsilon, replace-one, for one user or one sample, round
    release, any loss. *Why.* Unit: one whole user, or one sample; relation: replace-one; n (and N, for samples) is
    public. For an s-sparse w in the unit ball a truncated gradient's coordinates are at most ``B = K^2 (sqrt(s) +
    1)``, and so are their mean's. Nodes hold coordinates to B, whatever the loss, so nothing rests on that.
    Replacing a record moves each coordinate of the step by at most ``2 B eta / m``, m being the public number of
    records of a fold; `Peeling` makes that (epsilon, delta)-DP, or pure. A user takes part in one round, so all
    rounds together cost no more. Every iterate is released; the server is trusted, nodes truncate as told. With
    noise of scale b and that sensitivity lam, peeling makes s selections at 2 lam / b and releases s entries at lam
    / b: (s lam^2 / b^2)-zCDP together, or pure at 3 s lam / b. A user's average is one record, so user level is no
    group privacy.

    *Assumptions.* n, and for sample level N, are public. The server is trusted. Nodes truncate as told.
    """

    name: ClassVar[str] = "private_hard_thresholding"
    summary_line: ClassVar[str] = "sparse least squares: truncated data, fresh users a step, the largest entries kept"
    paper: ClassVar[str] = "Hu, Ni, Xiao, Wang 2022 (Algorithm 3), with less noise; users as records: ours"
    cost: ClassVar[str] = "n / T users a round, once each: one gradient, one sum of d numbers a node; server O(s d)"
    needs: ClassVar[str] = "least squares with a sparse model in the unit ball (other losses: coordinates are clipped)"
    without_secure_noise: ClassVar[str | None] = "how a sum of truncated gradients is rounded has not been bounded"
    promise: ClassVar[str] = "user or sample level, also pure; against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "level": "features and targets are cut at it",
        "coordinate_bound": "largest coordinate of a gradient of truncated data, to which it is held",
    }
    Options: ClassVar[type[HardThresholdingOptions]] = HardThresholdingOptions
    options: HardThresholdingOptions

    def _make_scheme(self) -> PeeledScheme:
        options, folds, project = self.options, self._folds(), self.problem.domain.project
        level = options.level or truncation_level(
            folds.records, self.privacy.epsilon, self._sparsity, folds.rounds, options.fourth_moment
        )
        bound = self._bound(level)
        return self._peeled(
            folds,
            bound,
            self._truncated(level, bound),
            gradient=lambda total: total / folds.size,
            settle=lambda x: project(unit_ball(x)),
            size=1.0,
            numbers={"level": level, "coordinate_bound": bound},
        )

    def _bound(self, level: float) -> float:
        """Largest coordinate of a record's gradient on data that are cut at ``level``."""
        if self.problem.has_targets:
            return truncated_gradient_bound(level, self._sparsity)
        return 1 + level  # as in mean estimation: |w_j - z_j| <= 1 + K

    def _truncated(self, level: float, bound: float) -> Computation:
        parameters = {"level": level, "bound": bound}
        if self.privacy.unit == "sample":
            return Computation("truncated_data_sum", reduce="sum", parameters=parameters)
        # Coordinates are within the bound already: the clip lets the server refuse sums that cannot be.
        clip_norm = bound * math.sqrt(self.problem.dimension) * (1 + 1e-9)
        return Computation("truncated_data_gradient", reduce="sum", clip_norm=clip_norm, parameters=parameters)
