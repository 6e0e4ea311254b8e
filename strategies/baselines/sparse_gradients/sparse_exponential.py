"""The sparse exponential mechanism in a federation: one round, in which users say how good each of many models is."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies import About, Fact, Given, Outline, Recipe
from strategies.baselines.declared_bounds import check_room, declared, no_better
from strategies.baselines.propose_then_release import ProposeThenRelease
from strategies.baselines.sparse_gradients.exponential_choice import SparseExponential
from userdp.arrays import Vector
from userdp.mechanisms import ExponentialMechanism
from userdp.nodes import Computation
from userdp.noise import Scores
from userdp.problems import Box
from userdp.sampling import DisjointBatches
from userdp.state import Stateful


@dataclass
class Start(Stateful):
    """The memory of the server: the initial model, about which the net of that radius lies within the domain."""

    given: ClassVar[tuple[str, ...]] = ("domain", "radius", "model")
    domain: Box
    radius: float
    model: Vector

    def lie_about(self, model: Vector) -> None:
        """Put the ball of the net about a model."""
        check_room(self.domain, model, self.radius, "radius", "the l2 ball about the start")
        self.model = model


class SparseExponentialChoice(Recipe):
    """One choice among the lattice points of a ball by their empirical risk; pure privacy, losses need not be smooth.

    Every user answers how much higher or lower its mean loss is at each point than at the start. Where gradients are
    sparse and the loss convex, some point of few entries is nearly as good as the best model.

    *Formal guarantees.* *Claim.* (epsilon, 0) for one *user*, replace-one, any loss; `delta = 0` can be asked for.
    *Why.* Unit: one whole user, whose loss is the mean over its samples; relation: replace-one; n public. A user's
    change of loss at a point z away from the start is held to ``+- L ||z||_2``, so replacing a user moves the sum of
    them by at most ``2 L R`` at every point, R the radius. The exponential mechanism on the sums is (epsilon, 0)-DP
    (McSherry, Talwar 2007). The points follow from public numbers. There is one round and one release, so that
    nodes see the public start and the points alone: they are protected from each other. The server is trusted: it sees
    each node's sum of exact changes of loss. With L a bound on gradients nothing is cut, and `SparseExponential`
    bounds the excess risk.

    *Assumptions.* n is public. The server is trusted. Each user's own node holds changes of loss to their bounds;
    what other nodes answer changes nothing of it.
    """

    about: ClassVar[About] = About(
        name="sparse_exponential",
        summary_line="one choice among the lattice points of a ball, by users' losses; pure",
        family="sparse",
        cost="node O(N d M) for M points, one sum of M numbers up; server O(K M); one round",
        paper="Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 7), corrected; the lattice: ours",
        needs="a convex loss of few dimensions with certified gradients, or clip_norm",
        pure=True,
        promise="user level, pure; against other nodes too",
        without_secure_noise="how a loss is rounded has not been bounded",
        meanings={
            "radius": "models lie in the l2 ball of this radius about the start",
            "candidates": "models that are compared",
            "tau": "distance of neighbouring candidates",
            "sparsity": "most non-zeros of a sample's gradient",
            "excess_bound": "what the excess risk exceeds with the declared chance of failure only, if the loss is "
            "convex",
            "choice_epsilon": "epsilon of the choice",
            "score_sensitivity": "most that one user can change a sum of losses",
        },
        notes={"nonzeros": Fact("noised", "entries in which the model differs from the start")},
    )

    radius: float | None = Field(
        None,
        gt=0,
        description="R: models lie in the l2 ball of this radius about the start; if not given, the domain's.",
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="L: a user's loss may rise or fall by L times the distance from the start; the certified bound on "
        "gradients if not given.",
    )
    sparsity: int | None = Field(
        None, ge=1, description="s: non-zero entries of a sample's gradient; certified, or the dimension, if not given."
    )
    most_candidates: int = Field(
        4096, ge=3, le=100_000, description="Models that may be compared; each costs every node a look at all its data."
    )
    failure: float = Field(0.1, gt=0, lt=1, description="beta, the chance that the risk bound fails.")

    def scheme(self, given: Given) -> ProposeThenRelease:
        algorithm, domain, users = self._algorithm(given), given.problem.domain, given.users
        start = Start(domain, algorithm.radius, given.problem.initial())
        mechanism = ExponentialMechanism(algorithm.range_of_losses, given.privacy.epsilon)
        held = "a user's own node holds its changes of loss to their bounds"
        rests_on = ("n is public", "the server is trusted", held)

        def follow(index: int, x: Vector, chosen: int) -> tuple[Vector, Mapping[str, float]]:
            step = algorithm.net()[chosen]
            # The start's ball lies in the domain; adding may round a point out of it.
            return domain.project(start.model + step), {"nonzeros": float(np.count_nonzero(step))}

        return ProposeThenRelease(
            price=given.price_of(mechanism.cost, "exponential mechanism, once", rests_on),
            propose=lambda x, total: Scores(-np.ravel(total), 2 * float(_reach(algorithm).max())),
            mechanism=mechanism,
            outline=self._outline(given, algorithm, mechanism),
            new_memory=lambda: start,
            check_start=start.lie_about,
            cohorts=DisjointBatches(users, users),
            query=partial(_changes_of_loss, algorithm),
            follow=follow,
        )

    def _algorithm(self, given: Given) -> SparseExponential:
        """The net, with what is proven of the choice from it."""
        certificate, d, epsilon = given.problem.certificate, given.dimension, given.privacy.epsilon
        norm, radius = self.clip_norm or certificate.gradient_norm, self.radius or given.problem.domain.radius
        use = "holds changes of loss to it, and the problem certifies no positive bound on gradients"
        norm = declared(given, "clip_norm", norm, use)
        radius = declared(given, "radius", radius, "lays a net over it, and the domain is unbounded")
        sparsity, most = min(self.sparsity or certificate.sparsity or d, d), self.most_candidates
        return SparseExponential.planned(
            given.users, d, sparsity, norm, radius, epsilon, self.failure, most_candidates=most
        )

    def _outline(self, given: Given, algorithm: SparseExponential, mechanism: ExponentialMechanism) -> Outline:
        bound, untrained = algorithm.excess_bound(self.failure), algorithm.gradient_norm * algorithm.radius
        warnings = no_better(bound, untrained, "allow more strategy.most_candidates")
        if not given.problem.certificate.convex:
            warnings = (*warnings, "the bound on the excess risk is proven for convex losses only")
        return Outline(
            rounds=1,
            cohort=given.users,
            users_needed=1,
            noise=mechanism.shortfall(algorithm.candidates, 0.5) / given.users,
            signal=untrained,
            numbers={
                "radius": algorithm.radius,
                "candidates": algorithm.candidates,
                "tau": algorithm.tau,
                "sparsity": algorithm.sparsity,
                "excess_bound": bound,
                "choice_epsilon": mechanism.epsilon,
                "score_sensitivity": mechanism.sensitivity,
            },
            warnings=warnings,
        )


def _reach(algorithm: SparseExponential) -> Vector:
    """Return how far (M,) a user's loss may rise or fall from the start to each point of the net, as nodes hold it."""
    return np.asarray(algorithm.gradient_norm * np.linalg.norm(algorithm.net(), axis=1))


def _changes_of_loss(algorithm: SparseExponential, start: Start) -> Computation:
    """Return a user's excess loss over the start at each point of the net, clipped to what gradients allow."""
    steps, reach = algorithm.net(), _reach(algorithm)
    # What a user's row can be at most, and a little more: a clip of the whole row would mix points.
    longest = float(np.linalg.norm(reach)) * (1 + 1e-9)
    return Computation("loss_changes", "sum", longest, arrays={"models": start.model + steps, "reach": reach})
