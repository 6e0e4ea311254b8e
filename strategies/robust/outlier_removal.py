"""Outlier removal: a noisy mean of the users that have enough neighbours, tested for agreement every round."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.robust.tested_strategy import (
    SECURE_TEST,
    SHARES,
    Agreement,
    RowOptions,
    TestedScheme,
    TestedStrategy,
    declared_deviation,
)
from userdp.estimators.outlier_removal import SMALLEST_BATCH, IndicatorKernel, NeighbourMean

_PASS = 0.8
"""Of the batch: the score to reach, as in the papers."""


class OutlierRemovalOptions(RowOptions):
    """Settings of `OutlierRemoval`."""

    radius: float | None = Field(
        None, gt=0, description="rho, l2 distance within which users' gradients agree; from the deviation if not given."
    )


class OutlierRemoval(TestedStrategy):
    """Mean of the users with enough neighbours, plus Gaussian noise, if the users agree.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole
    user; relation: replace-one; n public. Any loss. In each round one Laplace test of the cohort's score (mean
    number of users within rho, l2; sensitivity below 2): if the cohort or its neighbour is not aligned, the test
    passes with probability at most delta_test, which what follows adds to delta. If both are, the mean has l2
    sensitivity about 24 rho / B (`NeighbourMean`, with its proof) and gets Gaussian noise for that. A user is in
    one round an epoch: parallel within an epoch, composed over epochs. Every iterate is released; the server is
    trusted, other nodes may answer anything.

    With secure noise the same holds of what is computed in float64: counts are exact functions of computed distances,
    a pair's of that pair alone, and the mean's sensitivity grows by `NeighbourMean.rounding`, for which both noises
    are larger.

    *Assumptions.* n and who takes part are public. The server is trusted. Other nodes may answer with anything.
    """

    name: ClassVar[str] = "outlier_removal"
    summary_line: ClassVar[str] = "mean of users with enough neighbours, tested and noisy every round"
    family: ClassVar[str] = "robust"
    cost: ClassVar[str] = "one gradient a user, a row of d numbers each; server O(U^2 d) at worst, to compare users"
    compares_users: ClassVar[bool] = True
    paper: ClassVar[str] = "Asi, Liu 2024; Lowy, Liu, Asi 2024; deterministic weights and test: ours"
    with_secure_noise: ClassVar[str] = SECURE_TEST
    example: ClassVar[Mapping[str, Any]] = {"rounds": 2}
    meanings: ClassVar[Mapping[str, str]] = {
        "radius": "users' gradients count as agreeing within this radius (l2 norm)",
    }
    Options: ClassVar[type[StrategyOptions]] = OutlierRemovalOptions
    options: OutlierRemovalOptions
    undeclared: ClassVar[str] = (
        "strategy.radius: this loss has no bound on its gradient, so no radius follows from theory; "
        "give strategy.radius (how far apart users' average gradients are, l2) or strategy.deviation"
    )

    def _make_scheme(self) -> TestedScheme:
        return self._tested_scheme(self._search, lambda: SMALLEST_BATCH)

    def _search(self, batch: int) -> Agreement | None:
        """With the smallest share whose test asks for at most four fifths of the batch; larger ones leave more noise.

        The threshold grows by two thirds of a user with each user.
        """
        radius = self.options.radius or self._typical_distance()
        for share in SHARES if batch >= SMALLEST_BATCH else ():
            agreement = self._agreement(batch, share, radius)
            if agreement.test.threshold <= _PASS * batch:
                return agreement
        return None

    def _typical_distance(self) -> float:
        """What the distance of two honest users exceeds in about 2% of pairs, for normal gradients."""
        samples, certificate = self.public.min_samples, self.problem.certificate
        deviation = declared_deviation(self.options, certificate, samples, self.undeclared)
        return math.sqrt(2) * deviation * (math.sqrt(self.problem.dimension) + 2)

    def _agreement(self, batch: int, share: float, radius: float) -> Agreement:
        """Users agree within ``radius`` in the l2 norm."""
        kernel, estimator = IndicatorKernel(radius), NeighbourMean(radius)
        return Agreement(
            radius=radius,
            test=self._test(batch, share, kernel),
            score=kernel.score,
            estimator=estimator,
            l2_sensitivity=estimator.l2_sensitivity(batch),
            rounding=estimator.rounding(batch, self.problem.dimension),
        )
