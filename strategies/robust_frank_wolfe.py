"""Frank-Wolfe over an l1 ball with smoothly truncated gradients, each round on fresh users; pure privacy."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Request
from strategies.vertex_rounds import VertexRounds, VertexRoundsOptions
from userdp.accounting import Guarantee, Ledger, epsilon_of
from userdp.computations import Computation
from userdp.errors import PopulationTooSmall
from userdp.estimators.smoothed_truncation import largest_truncated
from userdp.high_dimensional.frank_wolfe import Setting
from userdp.mechanisms import ExponentialMechanism
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


class RobustFrankWolfe(VertexRounds):
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

    def _make_plan(self) -> Plan:
        options, n, d = self.options, self.public.users, self.problem.dimension
        self._ball, records = self._make_ball(), self._records()
        setting = Setting(
            self._ball,
            d,
            records,
            self.privacy.epsilon,
            options.second_moment,
            options.inverse_variance,
            options.failure,
            options.sensitivity,
        )
        rounds = options.rounds or min(n, setting.rounds(options.smoothness or self.problem.certificate.smoothness))
        if rounds > n:
            raise PopulationTooSmall(f"strategy.rounds = {rounds}: every round takes fresh users, and there are {n}")
        self._sampler = DisjointBatches(n, n // rounds, 1, self.seed)
        self._scale = options.scale or setting.scale(rounds)
        fold = records * self._sampler.batch / n
        # Nodes send truncated gradients in units of the scale.
        self._divisor = fold / self._scale
        self._mechanism = ExponentialMechanism(setting.choice_sensitivity(self._scale, fold), self.privacy.epsilon)
        noise = self._mechanism.shortfall(self._ball.count, 0.5) / self._ball.radius
        signal = self._scale * largest_truncated(options.inverse_variance)
        return Plan(
            strategy=self.name,
            rounds=rounds,
            cohort=self._sampler.batch,
            users=n,
            users_needed=rounds,
            guarantee=self._promise(),
            noise=noise,
            signal=signal,
            numbers={
                "l1_radius": options.l1_radius,
                "scale": self._scale,
                "inverse_variance": options.inverse_variance,
                "fold": fold,
                "score_sensitivity": self._mechanism.sensitivity,
                "choice_epsilon": self._mechanism.epsilon,
                "vertex_error": setting.round_error(rounds, self._scale),
            },
            warnings=self._warnings(noise, signal),
        )

    def _promise(self) -> Guarantee:
        assumptions = [DisjointBatches.assumption, "nodes truncate as told, and the server is trusted"]
        if self.privacy.unit == "sample":
            assumptions.append("the number of samples is public")
        return Guarantee(
            unit=self.privacy.unit,
            relation="replace_one",
            epsilon=epsilon_of(self._mechanism.cost, 1, self.privacy.delta),
            delta=self.privacy.delta,
            accountant="exponential mechanism, parallel over disjoint cohorts",
            adversary=self.adversary,
            assumptions=tuple(assumptions),
            holds=True,
        )

    def _make_ledger(self) -> Ledger:
        return Ledger(self.public.users, self._mechanism.cost, 1, self.privacy)

    def _ask(self, index: int) -> Request:
        options = self.options
        # What a user's row can be at most, and a little more: a clip of the whole row would mix coordinates.
        longest = largest_truncated(options.inverse_variance) * self.problem.dimension**0.5 * (1 + 1e-9)
        by_user = self.privacy.unit == "user"
        computation = Computation(
            "truncated_user_gradient" if by_user else "truncated_sample_sum",
            reduce="sum",
            clip_norm=longest if by_user else longest * self._records(),
            parameters={"scale": self._scale, "inverse_variance": options.inverse_variance},
        )
        return Request(self._sampler.cohort(index), computation)
