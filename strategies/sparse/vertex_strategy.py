"""Private Frank-Wolfe: rounds that choose a vertex of an l1 ball privately, and step towards it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Number, Scheme, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting.guarantee import Unit
from userdp.arrays.types import Rows, Vector
from userdp.audit.discrete import choice_probabilities
from userdp.errors import BadInput
from userdp.mechanisms import ExponentialMechanism
from userdp.nodes.computations import Computation
from userdp.papers.high_dimensional.frank_wolfe import L1Ball, step_size
from userdp.papers.high_dimensional.lasso import Selections
from userdp.problems.base import Problem
from userdp.sampling import DisjointBatches


class VertexRoundsOptions(StrategyOptions):
    """Settings of strategies that move towards a vertex a round."""

    l1_radius: float = Field(1.0, gt=0, allow_inf_nan=False, description="r: models lie in the l1 ball about zero.")
    rounds: int | None = Field(None, ge=1, description="T; by theory if not given.")
    learning_rate: float | None = Field(
        None, gt=0, le=1, description="Constant step towards the vertex; 2 / (t + 2) in round t if not given."
    )
    failure: float = Field(0.1, gt=0, lt=1, description="zeta, the chance that a bound of the theory fails.")


@dataclass(frozen=True, kw_only=True)
class VertexScheme(Scheme):
    """A `Scheme` of privately chosen vertices.

    Attributes:
        ball: whose vertices are chosen from; all iterates stay in it.
        rounds: T.
        sampler: who takes part in each round.
        cohort: users a round.
        users_needed: the fewest users for T rounds.
        computation: what users send.
        divisor: from the sum of what users send to the mean gradient; public.
        mechanism: of one choice.
        largest: what a coordinate of the mean gradient can be.
        expected: what one is expected to be at most, by declared moments, where training starts at zero.
        numbers: of the plan, beyond the radius.
    """

    ball: L1Ball
    rounds: int
    sampler: DisjointBatches | Selections
    cohort: int
    users_needed: int
    computation: Computation
    divisor: float
    mechanism: ExponentialMechanism
    largest: float
    expected: float
    numbers: Mapping[str, Number]

    @property
    def missed(self) -> float:
        """What the choice of a vertex may miss, in units of a gradient's coordinate; one choice in two misses less."""
        return self.mechanism.shortfall(self.ball.count, 0.5) / self.ball.radius

    def scores(self, total: Vector) -> Vector:
        """(2d,): of the vertices, from the sum of what users sent."""
        return self.ball.scores(total / self.divisor)

    def law(self, values: Sequence[Rows]) -> Vector:
        """(2d,) probabilities of the vertices, from the sum of what users sent in the last round."""
        return choice_probabilities(self.mechanism, self.scores(values[-1]))


def l1_ball(radius: float, problem: Problem) -> L1Ball:
    """The l1 ball about zero, which must lie in the problem's domain: models there are what is released.

    Raises:
        BadInput: it does not.
    """
    box = problem.domain
    room = box.radius - float(np.abs(box.centre).max())
    if not radius <= room:
        raise BadInput(
            f"strategy.l1_radius = {radius:g}: the l1 ball about zero must lie in the problem's domain, which has "
            f"room for {max(room, 0):g}; lower it or raise problem.radius"
        )
    return L1Ball(radius, problem.dimension)


def missed_vertices(missed: float, largest: float) -> tuple[str, ...]:
    """The warning that choices may miss more than there is to find, if they do.

    Over the l1 ball of radius R a convex risk at zero is at most R times the largest coordinate of its gradient above
    the least one, and R ``missed`` is what a choice may miss.
    """
    if missed < largest:
        return ()
    return (
        f"what the choice of a vertex may miss ({missed:.3g}) exceeds what a gradient's coordinate is expected to be "
        f"({largest:.3g}): doing nothing may be as good. Use fewer strategy.rounds, more users or a larger epsilon",
    )


def resting_on(public: str, unit: Unit) -> tuple[str, ...]:
    """What a promise of choices at truncated gradients rests on; ``public`` is what everybody may know of cohorts."""
    counted = ("the number of samples is public",) if unit == "sample" else ()
    return (public, "nodes truncate as told, and the server is trusted", *counted)


class VertexStrategy(UserLevelStrategy):
    """Rounds that choose a vertex of the l1 ball by the exponential mechanism, at a gradient that users sum up.

    A strategy defines `_make_scheme`, with the help of `_summed`.
    """

    family: ClassVar[str] = "high-dimensional"
    units: ClassVar[tuple[str, ...]] = ("user", "sample")
    meanings: ClassVar[Mapping[str, str]] = {
        "l1_radius": "models lie in the l1 ball of this radius",
        "choice_epsilon": "epsilon of choosing one vertex",
        "score_sensitivity": "most that one user can change the score",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "step": Fact("public", "step size"),
    }
    options: VertexRoundsOptions
    scheme: VertexScheme

    def _summed(
        self, by_user: str, by_sample: str, largest: float, records: int, parameters: Mapping[str, float]
    ) -> Computation:
        """The sum of users' mean gradients, or of all their samples', with coordinates of at most ``largest`` each."""
        # What a user's row can be at most, and a little more: a clip of the whole row would mix coordinates.
        longest = largest * self.problem.dimension**0.5 * (1 + 1e-9)
        if self.privacy.unit == "user":
            return Computation(by_user, "sum", longest, parameters=parameters)
        return Computation(by_sample, "sum", longest * records, parameters=parameters)

    def _make_plan(self) -> Plan:
        scheme = self.scheme
        return self._planned(
            rounds=scheme.rounds,
            cohort=scheme.cohort,
            users_needed=scheme.users_needed,
            noise=scheme.missed,
            signal=scheme.largest,
            numbers={"l1_radius": scheme.ball.radius, **scheme.numbers},
            warnings=missed_vertices(scheme.missed, min(scheme.largest, scheme.expected)),
        )

    def _ask(self, index: int) -> Request:
        return Request(self.scheme.sampler.cohort(index), self.scheme.computation)

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        """The vertex is chosen privately; the step is post-processing, and released."""
        scheme = self.scheme
        vertex = scheme.mechanism.choose(scheme.scores(gathered.values), self._noise(index))
        step = self.options.learning_rate or step_size(index)
        following = scheme.ball.towards(x, vertex, step)
        return Step(following, following, {"step": step})
