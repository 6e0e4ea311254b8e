"""Output perturbation in a federation: a regularised convex problem solved exactly enough, and one noisy release."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.scheme import Number, Scheme, Step
from strategies.core.ways import Landing
from strategies.wire.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Guarantee, ReleaseLedger, epsilon_of
from userdp.arrays.types import Vector
from userdp.errors import BadInput, MissingAssumption, RunFailed
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.nodes.computations import Computation
from userdp.papers.sparse_gradients.output_perturbation import ConvexRisk, PerturbedMinimiser, Projection
from userdp.state import Stateful


class OutputPerturbationOptions(StrategyOptions, restates={"max_missing"}):
    """Settings of `OutputPerturbation`."""

    max_missing: float = Field(
        0.0, ge=0, le=0, description="Always 0: a user that answers in some rounds only would change what is minimised."
    )
    regularisation: float | None = Field(
        None, gt=0, description="lambda, weight of the squared distance from the start; by theory if not given."
    )
    rounds: int | None = Field(
        None, ge=1, description="T, gradients of all data; as many as slack asks for if not given. Fewer cost noise."
    )
    slack: float = Field(
        0.01, gt=0, le=1, description="Share by which the sensitivity may grow because steps end near the minimiser."
    )
    radius: float | None = Field(
        None, gt=0, description="R, bound on the l2 distance from start to minimiser; from the domain if not given."
    )
    failure: float = Field(0.1, gt=0, lt=1, description="beta, the chance that the risk bound fails.")


@dataclass(frozen=True, kw_only=True)
class ReleaseScheme(Scheme):
    """A `Scheme` of one release, at the end of steps that are not released.

    Attributes:
        algorithm: the steps, with what is proven of them.
        mechanism: of the release.
        radius: R, bound on the l2 distance from start to minimiser.
    """

    algorithm: PerturbedMinimiser
    mechanism: GaussianMechanism | LaplaceMechanism
    radius: float

    @property
    def deviation(self) -> float:
        """Of each coordinate of the noise."""
        mechanism = self.mechanism
        if isinstance(mechanism, GaussianMechanism):
            return mechanism.standard_deviation
        return math.sqrt(2) * mechanism.scale

    @property
    def sensitivity(self) -> dict[str, Number]:
        """Of the end of the steps, in the mechanism's norm, with its name."""
        if isinstance(self.mechanism, GaussianMechanism):
            return {"l2_sensitivity": self.mechanism.l2_sensitivity}
        return {"l1_sensitivity": self.mechanism.sensitivity}


class Minimisation(Stateful):
    """The memory of the server: the steps so far, and the problem that they all must be those of.

    Args:
        algorithm: whose steps.
        project: onto the domain.

    Attributes:
        start: of the steps, and the centre of the regularisation; zero before `begin`.
        silent: users whose data cannot be used, and whose loss is zero; from `begin` on.
        descent: how far the steps are.
    """

    remembered: ClassVar[tuple[str, ...]] = ("start", "silent")
    parts: ClassVar[tuple[str, ...]] = ("descent",)
    given: ClassVar[tuple[str, ...]] = ("_algorithm", "_project")

    def __init__(self, algorithm: PerturbedMinimiser, project: Projection) -> None:
        self._algorithm, self._project = algorithm, project
        self.begin(np.zeros(algorithm.risk.dimension), silent=0)

    def begin(self, start: Vector, silent: int) -> None:
        """Fix the problem, before the first step."""
        self.start, self.silent = start, silent
        self.descent = self._algorithm.descent(start, self._project)

    def step(self, gradient: Vector) -> None:
        """One step along ``gradient``, the users' mean at ``descent.query``."""
        self._algorithm.step(self.descent, gradient, self.start)


def empty_bound(bound: float, untrained: float) -> tuple[str, ...]:
    """The warning that a bound on the excess risk says nothing beyond that of the start, if it does not."""
    if bound < untrained:
        return ()
    return (
        f"the bound on the excess risk ({bound:.3g}) is no better than that of the start, never trained "
        f"({untrained:.3g}): bring more users, raise privacy.epsilon, or declare a smaller "
        "strategy.radius",
    )


class OutputPerturbation(UserLevelStrategy):
    """Accelerated descent on a regularised convex loss, noise on its end alone, and the nearest model in the sup norm.

    *Formal guarantees.* *Claim.* (epsilon, delta), or (epsilon, 0), for one user or one sample, replace-one, for
    whoever sees the released model; certified convex losses. *Why.* Unit: one whole user, whose loss is the mean
    over its samples (or one sample, with the number of samples public); relation: replace-one; n public. With
    gradients of l2 norm at most L, the minimiser of the risk plus ``(lambda / 2) ||x - start||^2`` has l2
    sensitivity ``2 L / (lambda n)``, over the whole domain; for delta = 0 its l1 sensitivity is bounded by the
    certified sparsity and smoothness (`ConvexRisk` has the proofs, which are the same for a user as for a sample).
    A fixed number of steps ends within a distance of it that is known before the run and is added twice. One
    Gaussian or Laplace mechanism hides the end of the steps; projecting it onto the domain costs nothing. Iterates
    are NOT private: the guarantee is against whoever sees the released model, not against the participating nodes
    nor the server, and every node must answer honestly. A user whose data cannot be used has loss zero in every
    round. A user that is missing in any, or not finite in some only, ends the run without a release, since the
    steps would no longer be those of one fixed problem. A third bound of the l1 sensitivity holds where the loss's
    Hessian is diagonally dominant. More in `docs/papers/sparse-gradients.md`.

    *Assumptions.* Nodes are honest and answer in every round, else the run ends without a release. A user whose
    data cannot be used has loss zero in all rounds; one who is zero in some only ends the run, too. Nodes and
    server see exact iterates and are trusted. For sample level the public number of samples is exact. Rounding of
    the steps in float64 is not accounted for.
    """

    name: ClassVar[str] = "output_perturbation"
    summary_line: ClassVar[str] = "exact descent on a regularised convex loss, noise once, on the last model"
    family: ClassVar[str] = "output perturbation"
    cost: ClassVar[str] = "node O(N d), one sum of d numbers up; server O(K d); all users in every round"
    paper: ClassVar[str] = "Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 6), corrected; user level: ours"
    needs: ClassVar[str] = "convex loss with certified gradient and smoothness, honest nodes that always answer"
    units: ClassVar[tuple[str, ...]] = ("user", "sample")
    hears_silence: ClassVar[bool] = True  # to end: it releases nothing of theirs
    pure: ClassVar[bool] = True
    without_secure_noise: ClassVar[str | None] = "how the end of many steps in floating point is rounded is not bounded"
    promise: ClassVar[str] = "user or sample level, also pure (delta = 0); not against the nodes, which see iterates"
    example: ClassVar[Mapping[str, Any]] = {"rounds": 3}
    meanings: ClassVar[Mapping[str, str]] = {
        "sparsity": "most non-zeros of a sample's gradient",
        "smoothness": "certified bound on the Hessian's row sums",
        "predicted_risk_bound": "bound on the excess risk that the plan minimised",
        "regularisation": "weight of the squared distance from the start, half of which is added to the loss",
        "solver_distance": "how far the last step can be from the exact minimiser (l2 norm)",
        "gradient_norm": "certified bound on a gradient (l2 norm)",
        "records": "n, users or samples, whichever are protected; the public divisor",
    }
    Options: ClassVar[type[StrategyOptions]] = OutputPerturbationOptions
    adversary: ClassVar[str] = (
        "against whoever sees the released model; nodes and the server see the iterates and are trusted"
    )
    release: ClassVar[Literal["round", "phase"]] = "phase"
    options: OutputPerturbationOptions
    scheme: ReleaseScheme
    memory: Minimisation

    def _make_scheme(self) -> ReleaseScheme:
        risk, radius = self._risk(), self._radius()
        algorithm = self._algorithm(risk, radius)
        mechanism, project = algorithm.mechanism, self.problem.domain.project
        return ReleaseScheme(
            guarantee=self._guarantee_of(mechanism),
            ledger=partial(ReleaseLedger, self.public.users, mechanism.cost, algorithm.rounds),
            new_memory=partial(Minimisation, algorithm, project),
            algorithm=algorithm,
            mechanism=mechanism,
            radius=radius,
        )

    def _algorithm(self, risk: ConvexRisk, radius: float) -> PerturbedMinimiser:
        options, epsilon, delta = self.options, self.privacy.epsilon, self.privacy.delta
        weight = options.regularisation or risk.best_regularisation(epsilon, delta, radius, options.failure)
        if options.rounds is None:
            return PerturbedMinimiser.planned(risk, weight, epsilon, delta, options.slack)
        return PerturbedMinimiser(risk, weight, epsilon, delta, options.rounds)

    def _risk(self) -> ConvexRisk:
        """What the certificate proves, or a refusal."""
        certificate = self.problem.certificate
        proven = {
            "convex": certificate.convex,
            "bounded gradient, l2 norm": certificate.gradient_norm is not None,
            "bounded Hessian row sums": certificate.smoothness is not None,
        }
        if gaps := [name for name, holds in proven.items() if not holds]:
            why = f" ({certificate.reason})" if certificate.reason else ""
            raise MissingAssumption(
                f"{self.name} needs a certified loss; missing: {', '.join(gaps)}{why}. Choose a strategy that needs no "
                "certificate (dp_fed_sgd), or change the problem's bounds"
            )
        dimension = self.problem.dimension
        return ConvexRisk(
            records=self.public.records(self.privacy.unit, self.name),
            dimension=dimension,
            sparsity=min(certificate.sparsity or dimension, dimension),
            gradient_norm=certificate.gradient_norm or 0.0,
            smoothness=certificate.smoothness,
            diagonally_dominant=certificate.diagonally_dominant,
            domain="space" if math.isinf(self.problem.domain.radius) else "box",
        )

    def _radius(self) -> float:
        radius = self.options.radius or self.problem.domain.radius * math.sqrt(self.problem.dimension)
        if math.isinf(radius):
            raise BadInput(
                f"strategy.radius must be declared: {self.name} weighs noise against it, and the domain is unbounded"
            )
        return radius

    def _guarantee_of(self, mechanism: GaussianMechanism | LaplaceMechanism) -> Guarantee:
        counted = ("the number of samples is public and exact",) if self.privacy.unit == "sample" else ()
        return self._promise(
            epsilon_of(mechanism.cost, 1, self.privacy.delta),
            f"{ACCOUNTANT}, one release",
            (
                "every user's answer is the certified function of the model, in every round: nodes are honest",
                "data lie in the declared bounds (they are clipped into them)",
                "rounding errors of the steps are far below the noise",
                *counted,
            ),
        )

    def _make_plan(self) -> Plan:
        scheme, users = self.scheme, self.public.users
        algorithm, risk = scheme.algorithm, scheme.algorithm.risk
        bound = algorithm.excess_bound(scheme.radius, self.options.failure)
        return self._planned(
            Landing(deviation=scheme.deviation, reach=scheme.radius),
            rounds=algorithm.rounds,
            cohort=users,
            users_needed=1,
            noise=scheme.deviation * math.sqrt(risk.dimension),
            signal=scheme.radius,
            numbers={
                "regularisation": algorithm.regularisation,
                "noise_deviation": scheme.deviation,
                "solver_distance": algorithm.distance,
                "predicted_risk_bound": bound,
                "sparsity": risk.sparsity,
                "gradient_norm": risk.gradient_norm,
                "smoothness": risk.smoothness or 0.0,
                "records": risk.records,
                **scheme.sensitivity,
            },
            warnings=empty_bound(bound, risk.gradient_norm * scheme.radius),
        )

    def _ask(self, index: int) -> Request:
        kind = "sample_sum" if self.privacy.unit == "sample" else "user_gradient"
        return Request(np.arange(self.public.users), Computation(kind, reduce="sum"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme, memory = self.scheme, self.memory
        if index == 0:
            memory.begin(x, gathered.non_finite)
        if gathered.missing or gathered.broken_sums or gathered.non_finite != memory.silent:
            raise RunFailed(
                f"round {index + 1}: a user did not answer, or sent a finite gradient in some rounds only; {self.name} "
                "has no guarantee unless everybody answers in every round: nothing is released"
            )
        memory.step(gathered.values / scheme.algorithm.risk.records)
        if index + 1 < self.plan.rounds:
            return Step(memory.descent.query, None)
        noisy = scheme.mechanism.release(memory.descent.point, self._noise(index))
        # Clipping into a box is the projection in the sup norm as well as in l2.
        released = self.problem.domain.project(noisy)
        return Step(released, released)
