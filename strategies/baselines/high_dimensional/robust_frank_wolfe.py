"""Frank-Wolfe over a polytope with smoothly truncated gradients, each round on fresh users; pure privacy."""

import math
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strategies import About, Given, Outline, Recipe
from strategies.baselines.high_dimensional.frank_wolfe import (
    FrankWolfeTheory,
    Hull,
    Polytope,
    Schedule,
    Simplex,
    root_step,
    step_size,
)
from strategies.baselines.high_dimensional.vertex_rounds import (
    MEANINGS,
    NOTES,
    VertexRoundsOptions,
    resting_on,
    vertex_rounds,
)
from strategies.baselines.propose_then_release import ProposeThenRelease, bounded_sum
from strategies.baselines.samples.sample_options import records_of
from strategies.baselines.smoothed_truncation import largest_truncated
from userdp.errors import BadInput, PopulationTooSmall
from userdp.mechanisms import ExponentialMechanism
from userdp.sampling import DisjointBatches


class RobustFrankWolfe(Recipe, VertexRoundsOptions):
    """Private Frank-Wolfe over a polytope; an error in its vertices' logarithm, of gradients with a second moment.

    Each of T rounds takes a cohort of floor(n / T) users that no other round takes. Their gradients are truncated
    smoothly, coordinate by coordinate, and averaged; the exponential mechanism chooses the vertex along which the mean
    descends, and the model moves towards it. The polytope is an l1 ball, a simplex, or the hull of given vertices.

    *Formal guarantees.* *Claim.* (epsilon, 0) for one *user*, replace-one, round release, any loss; `delta = 0` can be
    asked for. *Why.* Unit: one whole user; relation: replace-one; n public. A user's record is its MEAN gradient, each
    coordinate of which is truncated to ``s B(beta)`` after that, so replacing a user moves each coordinate of the
    cohort's mean by at most ``2 s B(beta) / m``, m users in the cohort, and the difference of two vertices' scores by
    at most their l1 distance times that: scores move by half the l1 diameter of the polytope times that, up to one
    constant on all of them, which changes no choice. Vertices are public. The exponential mechanism on these scores is
    (epsilon, 0)-DP. Cohorts are disjoint and drawn without looking at data, so rounds compose in parallel: a run is
    (epsilon, 0)-DP, with no delta. Under ``unit = "sample"`` the record is a sample: every sample is truncated, cohorts
    are still of users, whose samples stay together, and the divisor m is the public number N of samples times the
    cohort's share of the users, whatever samples the cohort has; a user keeps its number of samples between neighbours.
    Every iterate is released.

    *Assumptions.* n, and for sample level N, is public. The server is trusted. Nodes truncate as requested.
    """

    about: ClassVar[About] = About(
        name="robust_frank_wolfe",
        summary_line="steps towards privately chosen vertices of a polytope, fresh users per round; pure",
        family="high-dimensional",
        cost="node O(N d) for users of the round, one sum of d numbers up; server O(d)",
        paper="Hu, Ni, Xiao, Wang 2022 (Algorithm 1), with tight sensitivities and explicit constants",
        needs="any loss whose domain holds the polytope; sample level: public number of samples",
        units=("user", "sample"),
        without_secure_noise="how a smoothly truncated gradient is rounded has not been bounded",
        pure=True,
        promise="user or sample level, pure; against other nodes too",
        example={"rounds": 3},
        meanings={
            **MEANINGS,
            "scale": "gradient coordinates well below it count in full",
            "inverse_variance": "of the noise that the truncation is smoothed by",
            "fold": "users (samples, at sample level) of a round, the public divisor",
            "vertex_error": "bound on how far a chosen vertex is from the best, in inner product with the gradient",
        },
        notes=NOTES,
    )

    polytope: Literal["l1_ball", "simplex"] | list[list[float]] = Field(
        "l1_ball",
        description="Where models lie: l1_ball: of radius l1_radius about zero; simplex: of entries from zero on that "
        "add up to l1_radius; or the list of a polytope's vertices, each a list with a number for every entry.",
    )
    schedule: Schedule = Field(
        "falling",
        description="falling: steps 2 / (t + 2), for convex losses; root: steps 1 / sqrt(T), with T = sqrt(n epsilon / "
        "ln(d / failure)) if not given, for losses that are not.",
    )
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
        description="tight: exact for the polytope and the smoothing noise; paper: at least twice as large. Both are "
        "valid.",
    )

    def scheme(self, given: Given) -> ProposeThenRelease:
        n, epsilon, beta = given.users, given.privacy.epsilon, self.inverse_variance
        polytope, records = self._polytope(given), records_of(given)
        moment, failure = self.second_moment, self.failure
        theory = FrankWolfeTheory(polytope, given.dimension, records, epsilon, moment, beta, failure, self.sensitivity)
        falling = self.schedule == "falling"
        smoothness = self.smoothness or given.problem.certificate.smoothness
        rounds = self.rounds or min(n, theory.rounds(smoothness) if falling else theory.root_rounds())
        if rounds > n:
            raise PopulationTooSmall(f"strategy.rounds = {rounds}: every round takes fresh users, and there are {n}")
        sampler = DisjointBatches(n, n // rounds, 1, given.seed)
        scale, fold = self.scale or theory.scale(rounds), records * sampler.batch / n
        mechanism = ExponentialMechanism(theory.choice_sensitivity(scale, fold), epsilon)
        largest, truncation = largest_truncated(beta), {"scale": scale, "inverse_variance": beta}
        kinds = ("truncated_user_gradient", "truncated_sample_sum")
        numbers = {
            **truncation,
            "fold": fold,
            "score_sensitivity": mechanism.sensitivity,
            "choice_epsilon": mechanism.epsilon,
            "vertex_error": theory.round_error(rounds, scale),
        }
        rests_on = resting_on(sampler.assumption, given)
        return vertex_rounds(
            given,
            self,
            polytope,
            mechanism,
            Outline(rounds=rounds, cohort=sampler.batch, users_needed=rounds, numbers=numbers),
            divisor=fold / scale,  # nodes send truncated gradients in units of the scale
            records=fold,
            largest=scale * largest,
            expected=math.sqrt(moment),
            step=step_size if falling else lambda _: root_step(rounds),
            cohorts=sampler,
            query=lambda _: bounded_sum(given, kinds, largest, truncation, records),
            price=given.price_of(mechanism.cost, "exponential mechanism, parallel over disjoint cohorts", rests_on),
        )

    def _polytope(self, given: Given) -> Polytope:
        """Return the polytope of models; `BadInput` if it leaves the problem's domain."""
        if self.polytope == "l1_ball":
            return self.ball(given)
        if self.polytope == "simplex":
            found: Polytope = Simplex(self.l1_radius, given.dimension)
        else:
            found = Hull(_vertices(self.polytope, given.dimension))
        domain = given.problem.domain
        farthest = float(np.maximum(found.most - domain.centre, domain.centre - found.least).max())
        if farthest > domain.radius:
            raise BadInput(
                f"strategy.polytope: {found.name} reaches {farthest:g} from the centre of the problem's domain, which "
                f"ends at {domain.radius:g}; take other vertices or raise problem.radius"
            )
        return found


def _vertices(given: list[list[float]], dimension: int) -> NDArray[np.float64]:
    """(count, d) vertices. Raises `BadInput`: one has another number of entries."""
    for number, vertex in enumerate(given, 1):
        if len(vertex) != dimension:
            raise BadInput(
                f"strategy.polytope: vertex {number} has {len(vertex)} entries, and models have {dimension}: give "
                "every vertex a number for each entry of the model"
            )
    return np.array(given, dtype=np.float64).reshape(len(given), dimension)
