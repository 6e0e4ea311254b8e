"""Frank-Wolfe over an l1 ball with smoothly truncated gradients, each round on fresh users; pure privacy."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.core.options import StrategyOptions
from strategies.sparse.vertex_strategy import VertexRoundsOptions, VertexScheme, VertexStrategy, l1_ball, resting_on
from userdp.accounting import Ledger, epsilon_of
from userdp.errors import PopulationTooSmall
from userdp.estimators.smoothed_truncation import largest_truncated
from userdp.mechanisms import ExponentialMechanism
from userdp.papers.high_dimensional.frank_wolfe import FrankWolfeTheory, L1Ball
from userdp.papers.high_dimensional.lasso import check_in_ball
from userdp.sampling import DisjointBatches


class RobustFrankWolfeOptions(VertexRoundsOptions):
    """Settings of `RobustFrankWolfe`."""

    scale: float | None = Field(
        None, gt=0, description="s: gradients well below it count in full; by second_moment if not given."
    )
    second_moment: float = Field(1.0, gt=0, description="tau: bound on E of a squared gradient coordinate.")
    inverse_variance: float = Field(1.0, gt=0, description="beta of the smoothing noise; infinity for none.")
    smoothness: float | None = Field(
        None, gt=0, description="l2 smoothness, for the number of rounds; the problem's certified bound if not given."
    )
    sensitivity: Literal["tight", "paper"] = Field(
        "tight",
        description="tight: exact for the l1 ball and the smoothing noise; paper: at least twice as large. Both are "
        "valid.",
    )


class RobustFrankWolfe(VertexStrategy):
    """Private Frank-Wolfe over an l1 ball; an error in the dimension's logarithm, of gradients with a second moment.

    Each of T rounds takes a cohort of floor(n / T) users that no other round takes. Their gradients are truncated
    smoothly, coordinate by coordinate, and averaged; the exponential mechanism chooses the vertex of the ball along
    which the mean descends, and the model moves towards it.

    *Formal guarantees.* *Claim.* (epsilon, 0) for one *user*, replace-one, round release, any loss; `delta = 0` can
    be asked for. *Why.* Unit: one whole user; relation: replace-one; n public. A user's record is its MEAN
    gradient, each coordinate of which is truncated to ``s B(beta)`` after that, so replacing a user moves each
    coordinate of the cohort's mean by at most ``2 s B(beta) / m``, m users in the cohort, and a vertex's score by
    at most r times that. The exponential mechanism on these scores is (epsilon, 0)-DP. Cohorts are disjoint and
    drawn without looking at data, so rounds compose in parallel: a run is (epsilon, 0)-DP, with no delta. Under
    ``unit = "sample"`` the record is a sample: every sample is truncated, cohorts are still of users, whose samples
    stay together, and the divisor m is the public number N of samples times the cohort's share of the users,
    whatever samples the cohort has; a user keeps its number of samples between neighbours. Every iterate is
    released; the server is trusted, nodes truncate as told.

    *Assumptions.* n, and for sample level N, is public. The server is trusted. Nodes truncate as told.
    """

    name: ClassVar[str] = "robust_frank_wolfe"
    summary_line: ClassVar[str] = "steps towards privately chosen vertices of an l1 ball, fresh users a round; pure"
    cost: ClassVar[str] = "node O(N d) for users of the round, one sum of d numbers up; server O(d)"
    paper: ClassVar[str] = "Hu, Ni, Xiao, Wang 2022 (Algorithm 1), with tight sensitivities and explicit constants"
    needs: ClassVar[str] = "any loss whose domain holds the l1 ball; sample level: public number of samples"
    without_secure_noise: ClassVar[str | None] = "how a smoothly truncated gradient is rounded has not been bounded"
    pure: ClassVar[bool] = True
    promise: ClassVar[str] = "user or sample level, pure; against other nodes too"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "scale": "gradient coordinates well below it count in full",
        "inverse_variance": "of the noise that the truncation is smoothed by",
        "fold": "users (samples, at sample level) of a round, the public divisor",
        "vertex_error": "bound on how far a chosen vertex is from the best, in inner product with the gradient",
    }
    Options: ClassVar[type[StrategyOptions]] = RobustFrankWolfeOptions
    options: RobustFrankWolfeOptions

    def _make_scheme(self) -> VertexScheme:
        options, n, privacy = self.options, self.public.users, self.privacy
        ball, records = l1_ball(options.l1_radius, self.problem), self.public.records(privacy.unit, self.name)
        theory = self._theory(ball, records)
        rounds = options.rounds or min(n, theory.rounds(options.smoothness or self.problem.certificate.smoothness))
        if rounds > n:
            raise PopulationTooSmall(f"strategy.rounds = {rounds}: every round takes fresh users, and there are {n}")
        sampler = DisjointBatches(n, n // rounds, 1, self.seed)
        scale, fold = options.scale or theory.scale(rounds), records * sampler.batch / n
        mechanism = ExponentialMechanism(theory.choice_sensitivity(scale, fold), privacy.epsilon)
        truncation = {"scale": scale, "inverse_variance": options.inverse_variance}
        largest = largest_truncated(options.inverse_variance)
        return VertexScheme(
            guarantee=self._promise(
                epsilon_of(mechanism.cost, 1, privacy.delta),
                "exponential mechanism, parallel over disjoint cohorts",
                resting_on(sampler.assumption, privacy.unit),
            ),
            ledger=partial(Ledger, n, mechanism.cost, 1),
            check_start=partial(check_in_ball, radius=options.l1_radius),
            ball=ball,
            rounds=rounds,
            sampler=sampler,
            cohort=sampler.batch,
            users_needed=rounds,
            computation=self._summed("truncated_user_gradient", "truncated_sample_sum", largest, records, truncation),
            divisor=fold / scale,  # nodes send truncated gradients in units of the scale
            mechanism=mechanism,
            largest=scale * largest,
            expected=math.sqrt(options.second_moment),
            numbers={
                **truncation,
                "fold": fold,
                "score_sensitivity": mechanism.sensitivity,
                "choice_epsilon": mechanism.epsilon,
                "vertex_error": theory.round_error(rounds, scale),
            },
        )

    def _theory(self, ball: L1Ball, records: int) -> FrankWolfeTheory:
        options = self.options
        return FrankWolfeTheory(
            ball,
            self.problem.dimension,
            records,
            self.privacy.epsilon,
            options.second_moment,
            options.inverse_variance,
            options.failure,
            options.sensitivity,
        )
