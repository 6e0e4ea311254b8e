"""Frank-Wolfe for least squares over an l1 ball on truncated data, all users every round."""

import math
from functools import partial
from typing import ClassVar

from pydantic import Field

from strategies import About, Given, Outline, Price, Recipe
from strategies.baselines.high_dimensional import lasso
from strategies.baselines.high_dimensional.vertex_rounds import (
    MEANINGS,
    NOTES,
    VertexRoundsOptions,
    resting_on,
    vertex_rounds,
)
from strategies.baselines.propose_then_release import ProposeThenRelease, bounded_sum
from strategies.baselines.samples.sample_options import records_of
from userdp.accounting import RoundLedger
from userdp.errors import BadInput
from userdp.mechanisms import ExponentialMechanism
from userdp.problems import GeneralisedLinear, Problem, SquaredFamily

_COMPOSITION = {"zcdp": "bounded-range choices in zCDP", "paper": "advanced composition of pure choices"}
"""The composition of rounds, by `PrivateLasso.accounting`."""


class PrivateLasso(Recipe, VertexRoundsOptions):
    """Least squares over an l1 ball; an error in the dimension's logarithm, of data with a fourth moment.

    Features and targets are held to ``+-K`` on the nodes. Each of T rounds takes the gradient on all of them, the
    exponential mechanism chooses the vertex of the ball along which it descends, and the model moves towards it.

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *user*, replace-one, round release, least squares. *Why.*
    Unit: one whole user; relation: replace-one; n public. A user's record is the mean of its samples' gradients ``2 a
    (<a, x> - y)`` on truncated data. Iterates stay in the ball of radius r, so each coordinate of a record is at most
    ``2 (r + 1) K^2``, and replacing a user moves a vertex's score by at most ``4 r (r + 1) K^2 / n``. A choice of
    epsilon e is e^2/8-zCDP ("zcdp"), as its privacy loss lies in an interval of length e, or (e, 0)-DP ("paper"); T
    choices compose. Under ``unit = "sample"`` the record is a sample and the divisor is the public number N of samples;
    a user keeps its number of samples between neighbours. Every iterate is released. The paper's sensitivity is too
    small for balls of radius above 3.

    *Assumptions.* n, and for sample level N, is public. The server is trusted. Nodes truncate as requested.
    """

    about: ClassVar[About] = About(
        name="private_lasso",
        summary_line="least squares over an l1 ball on truncated data, vertices chosen privately",
        family="high-dimensional",
        cost="node O(N d), one sum of d numbers up; server O(d)",
        paper="Hu, Ni, Xiao, Wang 2022 (Algorithm 2), with the sensitivity corrected and tighter accounting",
        needs="least squares without ridge or intercept; sample level: public number of samples",
        units=("user", "sample"),
        without_secure_noise="how the gradient on truncated data is rounded has not been bounded",
        promise="user or sample level, against other nodes too",
        example={"rounds": 3},
        example_problem={"kind": "squared", "intercept": False},
        meanings={**MEANINGS, "truncation": "features and targets are held to plus or minus this"},
        notes=NOTES,
    )

    max_rounds: int = Field(200, ge=1, description="Cap on the number of rounds where it is not given.")
    threshold: float | None = Field(
        None, gt=0, description="K: features and targets are held to +-K; by fourth_moment if not given."
    )
    fourth_moment: float = Field(
        1.0, gt=0, description="M: bound on E of the squared product of two features (or one twice), and of y^4."
    )
    accounting: lasso.Accounting = Field(
        "zcdp",
        description="zcdp: bounded range of choices, added up; paper: advanced composition, with more noise, refused "
        "where it does not hold. Both are valid.",
    )

    def scheme(self, given: Given) -> ProposeThenRelease:
        _check_problem(given.problem)
        privacy, radius = given.privacy, self.l1_radius
        ball, records = self.ball(given), records_of(given)
        rounds = self.rounds or max(1, min(self.max_rounds, int((records * privacy.epsilon) ** 0.4)))
        sampler = lasso.Selections(given.users, rounds, self.accounting)
        each = sampler.calibrate(privacy.epsilon, privacy.delta)
        threshold = self.threshold or lasso.default_threshold(
            records, given.dimension, rounds, each, self.fourth_moment, self.failure
        )
        mechanism = ExponentialMechanism(lasso.choice_sensitivity(radius, threshold, records), each)
        largest, parameters = lasso.gradient_bound(radius, threshold), {"threshold": threshold}
        kinds = ("truncated_regression_gradient", "truncated_regression_sum")
        numbers = {"truncation": threshold, "score_sensitivity": mechanism.sensitivity, "choice_epsilon": each}
        promise = given.promise(
            sampler.epsilon(2 / each, privacy.delta),
            f"exponential mechanism, {_COMPOSITION[self.accounting]}",
            resting_on("n is public", given),
        )
        return vertex_rounds(
            given,
            self,
            ball,
            mechanism,
            Outline(rounds=rounds, cohort=given.users, users_needed=1, numbers=numbers),
            divisor=float(records),
            records=records,
            largest=largest,
            expected=math.sqrt(self.fourth_moment),
            cohorts=sampler,
            query=lambda _: bounded_sum(given, kinds, largest, parameters, records),
            price=Price(promise, partial(RoundLedger, sampler, 2 / each)),
        )


def _check_problem(problem: Problem) -> None:
    """Refuse all but plain least squares. Raises `BadInput`: another loss, or one with a ridge or an intercept."""
    if isinstance(problem, GeneralisedLinear) and isinstance(problem.family, SquaredFamily):
        if problem.terms is not None:
            raise BadInput("private_lasso computes no known term of scores: leave out data.offset, or use auto")
        if not problem.ridge and not problem.intercept:
            return
        raise BadInput(
            f"problem.ridge = {problem.ridge:g}, problem.intercept = {problem.intercept}: private_lasso bounds the "
            "gradient of least squares alone; set ridge = 0 and intercept = false"
        )
    raise BadInput(f"problem.kind = {problem.name!r}: private_lasso needs 'squared', or use robust_frank_wolfe")
