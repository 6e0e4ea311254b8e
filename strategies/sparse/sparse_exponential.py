"""The sparse exponential mechanism in a federation: one round, in which users say how good each of many models is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Scheme, Step
from strategies.wire.replies import Gathered, Request
from userdp.accounting import Ledger, epsilon_of
from userdp.arrays.types import Rows, Vector
from userdp.audit.discrete import choice_probabilities
from userdp.errors import BadInput
from userdp.mechanisms import ExponentialMechanism
from userdp.nodes.computations import Computation
from userdp.papers.sparse_gradients.sparse_exponential import SparseExponential
from userdp.problems.base import Box


class SparseExponentialOptions(StrategyOptions):
    """Settings of `SparseExponentialChoice`."""

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


@dataclass(frozen=True, kw_only=True)
class NetScheme(Scheme):
    """A `Scheme` of one choice among the points of a net.

    Attributes:
        algorithm: the net, with what is proven of the choice.
        mechanism: of the choice, by sums of losses.
    """

    algorithm: SparseExponential
    mechanism: ExponentialMechanism

    def reach(self, steps: Rows) -> Vector:
        """(M,): how far a user's loss may be told to lie from that at the start, after each of (M, p) steps."""
        return np.asarray(self.algorithm.gradient_norm * np.linalg.norm(steps, axis=1))

    def law(self, values: Sequence[Rows]) -> Vector:
        """(M,) probabilities of the models, from the sum of users' changes of loss in each round: there is one."""
        return choice_probabilities(self.mechanism, -np.ravel(values[-1]))


def check_ball(start: Vector, domain: Box, radius: float) -> None:
    """Refuse a ball about the start that leaves the domain: models there are what is released.

    Raises:
        BadInput: it does.
    """
    room = domain.radius - float(np.abs(start - domain.centre).max())
    if not radius <= room:
        raise BadInput(
            f"strategy.radius = {radius:g}: the l2 ball about the start must lie in the problem's domain, which has "
            f"room for {max(room, 0):g}; lower it or raise problem.radius"
        )


class SparseExponentialChoice(UserLevelStrategy):
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

    name: ClassVar[str] = "sparse_exponential"
    summary_line: ClassVar[str] = "one choice among the lattice points of a ball, by users' losses; pure"
    family: ClassVar[str] = "sparse"
    cost: ClassVar[str] = "node O(N d M) for M points, one sum of M numbers up; server O(K M); one round"
    paper: ClassVar[str] = "Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 7), corrected; the lattice: ours"
    needs: ClassVar[str] = "a convex loss of few dimensions with certified gradients, or clip_norm"
    pure: ClassVar[bool] = True
    promise: ClassVar[str] = "user level, pure; against other nodes too"
    without_secure_noise: ClassVar[str | None] = "how a loss is rounded has not been bounded"
    meanings: ClassVar[Mapping[str, str]] = {
        "radius": "models lie in the l2 ball of this radius about the start",
        "candidates": "models that are compared",
        "tau": "distance of neighbouring candidates",
        "sparsity": "most non-zeros of a sample's gradient",
        "excess_bound": "what the excess risk exceeds with the declared chance of failure only, if the loss is convex",
        "choice_epsilon": "epsilon of the choice",
        "score_sensitivity": "most that one user can change a sum of losses",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "nonzeros": Fact("noised", "entries in which the model differs from the start"),
    }
    Options: ClassVar[type[StrategyOptions]] = SparseExponentialOptions
    options: SparseExponentialOptions
    scheme: NetScheme

    def _make_scheme(self) -> NetScheme:
        algorithm = self._algorithm()
        check = partial(check_ball, domain=self.problem.domain, radius=algorithm.radius)
        check(self.problem.initial())
        mechanism = ExponentialMechanism(algorithm.range_of_losses, self.privacy.epsilon)
        return NetScheme(
            guarantee=self._promise(
                epsilon_of(mechanism.cost, 1, self.privacy.delta),
                "exponential mechanism, once",
                ("n is public", "the server is trusted", "a user's own node holds its changes of loss to their bounds"),
            ),
            ledger=partial(Ledger, self.public.users, mechanism.cost, 1),
            check_start=check,
            algorithm=algorithm,
            mechanism=mechanism,
        )

    def _algorithm(self) -> SparseExponential:
        options, certificate, d = self.options, self.problem.certificate, self.problem.dimension
        norm, radius = options.clip_norm or certificate.gradient_norm, options.radius or self.problem.domain.radius
        if not norm:
            raise BadInput(
                f"strategy.clip_norm must be declared: {self.name} holds changes of loss to it, and the problem "
                "certifies no positive bound on gradients"
            )
        if not np.isfinite(radius):
            raise BadInput(
                f"strategy.radius must be declared: {self.name} lays a net over it, and the domain is unbounded"
            )
        return SparseExponential.planned(
            self.public.users,
            d,
            min(options.sparsity or certificate.sparsity or d, d),
            norm,
            radius,
            self.privacy.epsilon,
            options.failure,
            most_candidates=options.most_candidates,
        )

    def _make_plan(self) -> Plan:
        algorithm, mechanism = self.scheme.algorithm, self.scheme.mechanism
        bound, untrained = algorithm.excess_bound(self.options.failure), algorithm.gradient_norm * algorithm.radius
        warnings = []
        if bound >= untrained:
            warnings.append(
                f"the bound on the excess risk ({bound:.3g}) is no better than that of the start, never trained "
                f"({untrained:.3g}): bring more users, raise privacy.epsilon, or allow more strategy.most_candidates"
            )
        if not self.problem.certificate.convex:
            warnings.append("the bound on the excess risk is proven for convex losses only")
        return self._planned(
            rounds=1,
            cohort=self.public.users,
            users_needed=1,
            noise=mechanism.shortfall(algorithm.candidates, 0.5) / self.public.users,
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
            warnings=tuple(warnings),
        )

    def _ask(self, index: int) -> Request:
        steps = self.scheme.algorithm.net()
        reach = self.scheme.reach(steps)
        # What a user's row can be at most, and a little more: a clip of the whole row would mix points.
        longest = float(np.linalg.norm(reach)) * (1 + 1e-9)
        arrays = {"models": self._x + steps, "reach": reach}
        return Request(np.arange(self.public.users), Computation("loss_changes", "sum", longest, arrays=arrays))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        chosen = self.scheme.mechanism.choose(-np.ravel(gathered.values), self._noise(index))
        step = self.scheme.algorithm.net()[chosen]
        # The start's ball lies in the domain; adding may round a point out of it.
        model = self.problem.domain.project(x + step)
        return Step(model, model, {"nonzeros": float(np.count_nonzero(step))})
