"""What private Frank-Wolfe strategies share: the l1 ball, the choice of a vertex, and the step towards it."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from flwr.app import ArrayRecord
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.declarations import Fact
from strategies.options import StrategyOptions
from strategies.replies import Gathered
from userdp.errors import BadInput
from userdp.high_dimensional.frank_wolfe import L1Ball, step_size
from userdp.high_dimensional.lasso import check_in_ball
from userdp.mechanisms import ExponentialMechanism
from userdp.problems.base import Vector


class VertexRoundsOptions(StrategyOptions):
    """Settings of strategies that move towards a vertex a round."""

    l1_radius: float = Field(1.0, gt=0, allow_inf_nan=False, description="r: models lie in the l1 ball about zero.")
    rounds: int | None = Field(None, ge=1, description="T; by theory if not given.")
    learning_rate: float | None = Field(
        None, gt=0, le=1, description="Constant step towards the vertex; 2 / (t + 2) in round t if not given."
    )
    failure: float = Field(0.1, gt=0, lt=1, description="zeta, the chance that a bound of the theory fails.")


class VertexRounds(UserLevelStrategy):
    """Rounds that choose a vertex of the l1 ball by the exponential mechanism, at a gradient that users sum up."""

    family: ClassVar[str] = "high-dimensional"
    units: ClassVar[tuple[str, ...]] = ("user", "sample")
    adversary: ClassVar[str] = "against other nodes and whoever sees every iterate; the server is trusted"
    meanings: ClassVar[Mapping[str, str]] = {
        "l1_radius": "models lie in the l1 ball of this radius",
        "choice_epsilon": "epsilon of choosing one vertex",
        "score_sensitivity": "most that one user can change the score",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "step": Fact("public", "step size"),
    }
    options: VertexRoundsOptions
    _ball: L1Ball
    _mechanism: ExponentialMechanism
    _divisor: float
    """From the sum of what users send to the mean gradient; public."""

    def _make_ball(self) -> L1Ball:
        """The l1 ball about zero, which must lie in the problem's domain: models there are what is released."""
        radius, box = self.options.l1_radius, self.problem.domain
        room = box.radius - float(np.abs(box.center).max())
        if not radius <= room:
            raise BadInput(
                f"strategy.l1_radius = {radius:g}: the l1 ball about zero must lie in the problem's domain, which has "
                f"room for {max(room, 0):g}; lower it or raise problem.radius"
            )
        return L1Ball(radius, self.problem.dimension)

    def _records(self) -> int:
        """Records that a mean is over: users, or samples."""
        return self.public.records(self.privacy.unit, self.name)

    def _checked_initial(self, arrays: ArrayRecord) -> Vector:
        """Also within the l1 ball, where all iterates then stay: they are its convex combinations with vertices."""
        x = super()._checked_initial(arrays)
        check_in_ball(x, self.options.l1_radius)
        return x

    def _warnings(self, noise: float, signal: float) -> tuple[str, ...]:
        if noise < signal:
            return ()
        return (
            f"what the choice of a vertex may miss ({noise:.3g}) exceeds what a gradient's coordinate can be "
            f"({signal:.3g}): use fewer strategy.rounds, more users or a larger epsilon",
        )

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector]:
        """The vertex is chosen privately; the step is post-processing, and released."""
        vertex = self._mechanism.choose(self._ball.scores(gathered.values / self._divisor), self._noise(index))
        step = self.options.learning_rate or step_size(index)
        following = self._ball.towards(x, vertex, step)
        self.facts = {"step": step}
        return following, following
