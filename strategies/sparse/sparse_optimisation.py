"""Sparse minimiser of any loss with heavy-tailed gradients: smooth truncation, one step a fold, the largest entries."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from strategies.sparse.peeled_strategy import Folds, PeeledScheme, PeeledStrategy, SparseRoundsOptions
from userdp.estimators.smoothed_truncation import LARGEST
from userdp.nodes.computations import Computation
from userdp.papers.high_dimensional.hard_thresholding import truncation_scale


class SparseOptimisationOptions(SparseRoundsOptions):
    """Settings of `SparseOptimisation`."""

    scale: float | None = Field(
        None, gt=0, description="k: gradient coordinates well below it count in full; by second_moment if not given."
    )
    second_moment: float = Field(
        1.0, gt=0, description="tau: bound on E of a squared coordinate of a record's gradient, over sparse models."
    )
    inverse_variance: float = Field(1.0, gt=0, description="beta of the smoothing noise.")
    failure: float = Field(0.1, gt=0, lt=1, description="zeta, the chance that the bound behind the scale fails.")


class SparseOptimisation(PeeledStrategy):
    """Steps along smoothly truncated gradients of fresh users, of which peeling keeps s entries.

    Users are split into T disjoint folds. In round t the users of fold t send the sum of their average gradients, each
    coordinate smoothly truncated at the scale k. The server takes a step and peels: s entries are chosen by noisy size
    and released with noise. A user's average counts as one record: averaging makes tails lighter before they are cut.

    *Formal guarantees.* *Claim.* As `private_hard_thresholding`. *Why.* Unit: one whole user, or one sample;
    relation: replace-one; n (and N, for samples) is public. Each coordinate of a record is truncated to ``2 sqrt(2)
    k / 3``, whatever its data, so replacing it moves each coordinate of the step by at most ``4 sqrt(2) k eta / (3
    m)``, m being the public number of records of a fold; `Peeling` makes that (epsilon, delta)-DP, or pure. A user
    takes part in one round, so all rounds together cost no more. Every iterate is released; the server is trusted,
    nodes truncate as told.

    *Assumptions.* n, and for sample level N, are public. The server is trusted. Nodes truncate as told.
    """

    name: ClassVar[str] = "sparse_optimisation"
    summary_line: ClassVar[str] = (
        "sparse models: smoothly truncated gradients, fresh users a step, largest entries kept"
    )
    paper: ClassVar[str] = "Hu, Ni, Xiao, Wang 2022 (Algorithm 5), with less noise; users as records: ours"
    cost: ClassVar[str] = (
        "n / T users a round, once each: one gradient, every coordinate truncated, one sum of d numbers a node; "
        "server O(s d)"
    )
    needs: ClassVar[str] = "any loss with a sparse minimiser"
    without_secure_noise: ClassVar[str | None] = "how a smoothly truncated gradient is rounded has not been bounded"
    promise: ClassVar[str] = "user or sample level, also pure; against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "scale": "gradient coordinates well below it count in full",
        "inverse_variance": "of the noise that the truncation is smoothed by",
    }
    Options: ClassVar[type[SparseOptimisationOptions]] = SparseOptimisationOptions
    options: SparseOptimisationOptions

    def _make_scheme(self) -> PeeledScheme:
        folds = self._folds()
        scale = self.options.scale or self._theory_scale(folds)
        parameters = {"scale": scale, "inverse_variance": self.options.inverse_variance}
        return self._peeled(
            folds,
            LARGEST * scale,
            self._truncated(parameters),
            gradient=lambda total: total * (scale / folds.size),  # nodes send gradients in units of the scale
            settle=self.problem.domain.project,
            size=float(self.problem.domain.radius * math.sqrt(self._sparsity)),
            numbers=parameters,
        )

    def _theory_scale(self, folds: Folds) -> float:
        options = self.options
        return truncation_scale(
            folds.size,
            self.problem.dimension,
            folds.rounds,
            self._peeling(1.0),
            options.second_moment,
            options.inverse_variance,
            options.failure,
        )

    def _truncated(self, parameters: Mapping[str, float]) -> Computation:
        if self.privacy.unit == "sample":
            return Computation("truncated_sample_sum", reduce="sum", parameters=parameters)
        # Coordinates are within the bound already: the clip lets the server refuse sums that cannot be.
        clip_norm = LARGEST * math.sqrt(self.problem.dimension) * (1 + 1e-9)
        return Computation("truncated_user_gradient", reduce="sum", clip_norm=clip_norm, parameters=parameters)
