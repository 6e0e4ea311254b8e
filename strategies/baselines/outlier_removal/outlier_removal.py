"""Outlier removal: a noisy mean of the users with enough neighbours, tested for agreement every round."""

import math
from functools import partial
from typing import ClassVar

from pydantic import Field

from strategies import About, Given, Recipe, RowRounds
from strategies.baselines.outlier_removal.neighbour_mean import SMALLEST_BATCH, IndicatorKernel, NeighbourMean
from strategies.robust import SHARES, TEST_MEANINGS, TESTED_ABOUT, UNDECLARED, Agreement, TestedOptions

_PASS = 0.8  # Of the batch: the score to reach, as in the papers.


class OutlierRemoval(Recipe, TestedOptions):
    """Mean of the users with enough neighbours, plus Gaussian noise, if the users agree.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, round release, any loss. *Why.* Unit: one whole user;
    relation: replace-one; n public. In each round one Laplace test of the cohort's score (mean number of users within
    rho, l2; sensitivity below 2): if the cohort or its neighbour is not aligned, the test passes with probability at
    most delta_test, which is added to delta. If both are, the mean has l2 sensitivity about 24 rho / B
    (`NeighbourMean`, with its proof) and gets Gaussian noise for that. A user is in one round an epoch: parallel within
    an epoch, composed over epochs. Every iterate is released.

    With secure noise the same holds for what is computed in float64: counts are exact functions of computed distances,
    a pair's of that pair alone, and the mean's sensitivity grows by `NeighbourMean.rounding`, by which both noises are
    larger.

    *Assumptions.* n and who takes part are public. The server is trusted. Other nodes may answer with anything.
    """

    about: ClassVar[About] = About(
        name="outlier_removal",
        summary_line="mean of users with enough neighbours, tested and noisy every round",
        paper="Asi, Liu 2024; Lowy, Liu, Asi 2024; deterministic weights and test: ours",
        example={"rounds": 2},
        meanings={**TEST_MEANINGS, "radius": "users' gradients count as agreeing within this radius (l2 norm)"},
        **TESTED_ABOUT,
    )

    radius: float | None = Field(None, gt=0)
    """rho, l2 distance within which users' gradients agree; from the deviation if not given."""

    def scheme(self, given: Given) -> RowRounds:
        return self.agreeing_rounds(given, partial(self._search, given), SMALLEST_BATCH)

    def _search(self, given: Given, batch: int) -> Agreement | None:
        """Return the agreement with the smallest share whose test demands at most four fifths of the batch.

        It leaves the least noise. The threshold grows by two thirds of a user with each user.
        """
        # For normal gradients about 2% of pairs of honest users are further apart.
        root = math.sqrt(given.dimension)
        radius = self.radius or math.sqrt(2) * self.declared_deviation(given, UNDECLARED.format(norm="l2")) * (root + 2)
        kernel, estimator = IndicatorKernel(radius), NeighbourMean(radius)
        for share in SHARES if batch >= SMALLEST_BATCH else ():
            test = self.round_test(given, batch, share, kernel)
            if test.threshold <= _PASS * batch:
                return Agreement(
                    test=test,
                    score=kernel.score,
                    estimator=estimator,
                    radius=estimator.radius,
                    l2_sensitivity=estimator.l2_sensitivity(batch),
                    rounding=estimator.rounding(batch, given.dimension),
                )
        return None
