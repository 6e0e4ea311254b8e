"""Frank-Wolfe for least squares over an l1 ball on truncated data, all users every round."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.sparse.vertex_strategy import VertexRoundsOptions, VertexScheme, VertexStrategy, l1_ball, resting_on
from userdp.accounting import RoundLedger
from userdp.errors import BadInput
from userdp.mechanisms import ExponentialMechanism
from userdp.papers.high_dimensional.lasso import (
    Accounting,
    Selections,
    check_in_ball,
    choice_sensitivity,
    default_threshold,
    gradient_bound,
)
from userdp.problems.families import SquaredFamily
from userdp.problems.generalised_linear import GeneralisedLinear

_COMPOSITION = {"zcdp": "bounded-range choices in zCDP", "paper": "advanced composition of pure choices"}
"""How rounds are added up, by `PrivateLassoOptions.accounting`."""


class PrivateLassoOptions(VertexRoundsOptions):
    """Settings of `PrivateLasso`."""

    max_rounds: int = Field(200, ge=1, description="Cap on the number of rounds where it is not given.")
    threshold: float | None = Field(
        None, gt=0, description="K: features and targets are held to +-K; by fourth_moment if not given."
    )
    fourth_moment: float = Field(
        1.0, gt=0, description="M: bound on E of the squared product of two features (or one twice), and of y^4."
    )
    accounting: Accounting = Field(
        "zcdp",
        description="zcdp: bounded range of choices, added up; paper: advanced composition, with more noise, refused "
        "where it does not hold. Both are valid.",
    )


class PrivateLasso(VertexStrategy):
    """Least squares over an l1 ball; an error in the dimension's logarithm, of data with a fourth moment.

    Features and targets are held to ``+-K`` on the nodes. Each of T rounds takes the gradient on all of them, the
    exponential mechanism chooses the vertex of the ball along which it descends, and the model moves towards it.

    *Formal guarantees.* *Claim.* (epsilon, delta) for one *user*, replace-one, round release, least squares. *Why.*
    Unit: one whole user; relation: replace-one; n public. A user's record is the mean of its samples' gradients ``2
    a (<a, x> - y)`` on truncated data. Iterates stay in the ball of radius r, so each coordinate of a record is at
    most ``2 (r + 1) K^2``, and replacing a user moves a vertex's score by at most ``4 r (r + 1) K^2 / n``. A choice
    of epsilon e is e^2/8-zCDP ("zcdp"), or (e, 0)-DP ("paper"); T choices compose. Under ``unit = "sample"`` the
    record is a sample and the divisor is the public number N of samples; a user keeps its number of samples between
    neighbours. Every iterate is released; the server is trusted, nodes truncate as told. The first is so because
    the privacy loss of a choice lies in an interval of length e. The paper's sensitivity is too small for balls of
    radius above 3.

    *Assumptions.* n, and for sample level N, is public. The server is trusted. Nodes truncate as told.
    """

    name: ClassVar[str] = "private_lasso"
    summary_line: ClassVar[str] = "least squares over an l1 ball on truncated data, vertices chosen privately"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(d)"
    paper: ClassVar[str] = (
        "Hu, Ni, Xiao, Wang 2022 (Algorithm 2), with the sensitivity corrected and tighter accounting"
    )
    needs: ClassVar[str] = "least squares without ridge or intercept; sample level: public number of samples"
    without_secure_noise: ClassVar[str | None] = "how the gradient on truncated data is rounded has not been bounded"
    promise: ClassVar[str] = "user or sample level, against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    example_problem: ClassVar[Mapping[str, Any]] = {"kind": "squared", "intercept": False}
    meanings: ClassVar[Mapping[str, str]] = {
        "truncation": "features and targets are held to plus or minus this",
    }
    Options: ClassVar[type[StrategyOptions]] = PrivateLassoOptions
    options: PrivateLassoOptions

    def _make_scheme(self) -> VertexScheme:
        self._check_problem()
        options, n, privacy = self.options, self.public.users, self.privacy
        ball, records = l1_ball(options.l1_radius, self.problem), self.public.records(privacy.unit, self.name)
        rounds = options.rounds or max(1, min(options.max_rounds, int((records * privacy.epsilon) ** 0.4)))
        sampler = Selections(n, rounds, options.accounting)
        each = sampler.calibrate(privacy.epsilon, privacy.delta)
        multiplier = 2 / each
        threshold = options.threshold or default_threshold(
            records, self.problem.dimension, rounds, each, options.fourth_moment, options.failure
        )
        mechanism = ExponentialMechanism(choice_sensitivity(options.l1_radius, threshold, records), each)
        largest = gradient_bound(options.l1_radius, threshold)
        return VertexScheme(
            guarantee=self._promise(
                sampler.epsilon(multiplier, privacy.delta),
                f"exponential mechanism, {_COMPOSITION[options.accounting]}",
                resting_on("n is public", privacy.unit),
            ),
            ledger=partial(RoundLedger, sampler, multiplier),
            check_start=partial(check_in_ball, radius=options.l1_radius),
            ball=ball,
            rounds=rounds,
            sampler=sampler,
            cohort=n,
            users_needed=1,
            computation=self._summed(
                "truncated_regression_gradient",
                "truncated_regression_sum",
                largest,
                records,
                {"threshold": threshold},
            ),
            divisor=float(records),
            mechanism=mechanism,
            largest=largest,
            expected=math.sqrt(options.fourth_moment),
            numbers={
                "truncation": threshold,
                "score_sensitivity": mechanism.sensitivity,
                "choice_epsilon": each,
            },
        )

    def _check_problem(self) -> None:
        problem = self.problem
        if isinstance(problem, GeneralisedLinear) and isinstance(problem.family, SquaredFamily):
            if not problem.ridge and not problem.intercept:
                return
            raise BadInput(
                f"problem.ridge = {problem.ridge:g}, problem.intercept = {problem.intercept}: {self.name} bounds the "
                "gradient of least squares alone; set ridge = 0 and intercept = false"
            )
        raise BadInput(f"problem.kind = {problem.name!r}: {self.name} needs 'squared', or use robust_frank_wolfe")
