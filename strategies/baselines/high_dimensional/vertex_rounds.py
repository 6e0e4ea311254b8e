"""Private Frank-Wolfe: rounds that choose a vertex of a polytope privately, and step towards it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from strategies import Fact, Given, Outline, Price, StrategyOptions
from strategies.baselines.declared_bounds import check_room
from strategies.baselines.high_dimensional.frank_wolfe import L1Ball, Polytope, step_size
from strategies.baselines.propose_then_release import Cohorts, ProposeThenRelease
from userdp.arrays import Vector
from userdp.mechanisms import ExponentialMechanism
from userdp.nodes import Computation

MEANINGS: Mapping[str, str] = {
    "l1_radius": "half the l1 diameter of the polytope that models lie in",
    "choice_epsilon": "epsilon of choosing one vertex",
    "score_sensitivity": "most that one user can change the score",
}
NOTES: Mapping[str, Fact] = {"step": Fact("public", "step size")}


class VertexRoundsOptions(StrategyOptions):
    """Settings of strategies that move towards a vertex a round."""

    l1_radius: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="r: models lie in the l1 ball of this radius about zero."
    )
    rounds: int | None = Field(None, ge=1, description="T; by theory if not given.")
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Constant step towards the vertex; 2 / (t + 2) in round t, or by a schedule.",
    )
    failure: float = Field(0.1, gt=0, lt=1, description="zeta, the chance that a bound of the theory fails.")

    def ball(self, given: Given) -> L1Ball:
        """The l1 ball whose vertices are chosen from; it must lie in the problem's domain."""
        ball = L1Ball(self.l1_radius, given.dimension)
        check_room(
            given.problem.domain, np.zeros(given.dimension), self.l1_radius, "l1_radius", "the l1 ball about zero"
        )
        return ball


def resting_on(public: str, given: Given) -> tuple[str, ...]:
    """Return the assumptions of choices at truncated gradients; ``public`` is what everybody may know of cohorts."""
    counted = ("the number of samples is public",) if given.privacy.unit == "sample" else ()
    return (public, "nodes truncate as requested, and the server is trusted", *counted)


def vertex_rounds(
    given: Given,
    options: VertexRoundsOptions,
    polytope: Polytope,
    mechanism: ExponentialMechanism,
    outline: Outline,
    *,
    divisor: float,
    records: float,
    largest: float,
    expected: float,
    step: Callable[[int], float] = step_size,
    price: Price,
    cohorts: Cohorts,
    query: Callable[[Any], Computation],
) -> ProposeThenRelease:
    """The scheme of vertices chosen by the exponential mechanism, at a gradient that users sum up.

    ``divisor``, public, makes of the sum a mean over so many ``records``. No coordinate of a record exceeds
    ``largest``; by declared moments none is expected to exceed ``expected``, where training starts. ``step`` gives the
    step of a round, unless ``options`` do. Where zero, at which training starts, lies outside, the first step is 1.
    """
    moved = 2 * largest / records  # by a replaced record, in each coordinate of the mean
    # What the choice of a vertex may miss, in units of a gradient's coordinate; one choice in two misses less.
    radius = polytope.diameter / 2
    missed = mechanism.shortfall(polytope.count, 0.5) / radius
    numbers, warnings = {"l1_radius": radius, **outline.numbers}, _missed_vertices(missed, min(largest, expected))
    start = given.problem.initial()
    outside = not start.any() and not polytope.holds(start)

    def follow(index: int, x: Vector, vertex: int) -> tuple[Vector, Mapping[str, float]]:
        # Zero is left behind at once where it lies outside.
        taken = 1.0 if outside and index == 0 else options.learning_rate or step(index)
        return polytope.towards(x, vertex, taken), {"step": taken}

    return ProposeThenRelease(
        price=price,
        cohorts=cohorts,
        query=query,
        propose=lambda x, total: polytope.scored(total / divisor, moved),
        mechanism=mechanism,
        outline=replace(outline, noise=missed, signal=largest, numbers=numbers, warnings=warnings),
        check_start=None if outside else polytope.check_start,
        follow=follow,
    )


def _missed_vertices(missed: float, largest: float) -> tuple[str, ...]:
    """The warning that choices may miss more than there is to find, if they do.

    Over a polytope of l1 diameter 2 R, a convex risk at a point that is nowhere farther than R from it is at most R
    times the largest coordinate of its gradient above the least one, and R ``missed`` is what a choice may miss.
    """
    if missed < largest:
        return ()
    return (
        f"what the choice of a vertex may miss ({missed:.3g}) exceeds what a gradient's coordinate is expected to be "
        f"({largest:.3g}): doing nothing may be as good. Use fewer strategy.rounds, more users or a larger epsilon",
    )
