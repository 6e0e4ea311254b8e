"""Output perturbation in a federation: a regularised convex problem solved exactly enough, and one noisy release."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.options import StrategyOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Guarantee, ReleaseLedger, epsilon_of
from userdp.computations import Computation
from userdp.errors import BadInput, MissingAssumption, RunFailed
from userdp.mechanisms import GaussianMechanism
from userdp.problems.base import Vector
from userdp.sparse_gradients.output_perturbation import ConvexRisk, OutputPerturbation


class OutputPerturbationOptions(StrategyOptions):
    """Settings of `SparseOutputPerturbation`."""

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


class SparseOutputPerturbation(UserLevelStrategy):
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
    options: OutputPerturbationOptions

    def _make_plan(self) -> Plan:
        options, epsilon, delta = self.options, self.privacy.epsilon, self.privacy.delta
        risk, radius = self._risk(), self._radius()
        weight = options.regularisation or risk.best_regularisation(epsilon, delta, radius, options.failure)
        if options.rounds is None:
            self._algorithm = OutputPerturbation.planned(risk, weight, epsilon, delta, options.slack)
        else:
            self._algorithm = OutputPerturbation(risk, weight, epsilon, delta, options.rounds)
        self._mechanism = mechanism = self._algorithm.mechanism
        if isinstance(mechanism, GaussianMechanism):
            deviation, sensitivity = mechanism.standard_deviation, {"l2_sensitivity": mechanism.l2_sensitivity}
        else:
            deviation, sensitivity = math.sqrt(2) * mechanism.scale, {"l1_sensitivity": mechanism.sensitivity}
        bound = self._algorithm.excess_bound(radius, options.failure)
        warnings = []
        if bound >= risk.gradient_norm * radius:
            warnings.append(
                f"the bound on the excess risk ({bound:.3g}) is no better than that of the start, never trained "
                f"({risk.gradient_norm * radius:.3g}): bring more users, raise privacy.epsilon, or declare a smaller "
                "strategy.radius"
            )
        return Plan(
            strategy=self.name,
            rounds=self._algorithm.rounds,
            cohort=self.public.users,
            users=self.public.users,
            users_needed=1,
            guarantee=self._promise(),
            noise=deviation * math.sqrt(risk.dimension),
            signal=radius,
            numbers={
                "regularisation": weight,
                "noise_deviation": deviation,
                "solver_distance": self._algorithm.distance,
                "predicted_risk_bound": bound,
                "sparsity": risk.sparsity,
                "gradient_norm": risk.gradient_norm,
                "smoothness": risk.smoothness or 0.0,
                "records": risk.records,
            }
            | sensitivity,
            warnings=tuple(warnings),
        )

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
            records=self._records(),
            dimension=dimension,
            sparsity=min(certificate.sparsity or dimension, dimension),
            gradient_norm=certificate.gradient_norm or 0.0,
            smoothness=certificate.smoothness,
            diagonally_dominant=certificate.diagonally_dominant,
            domain="space" if math.isinf(self.problem.domain.radius) else "box",
        )

    def _records(self) -> int:
        """Records that a mean is over: users, or samples."""
        return self.public.records(self.privacy.unit, self.name)

    def _radius(self) -> float:
        radius = self.options.radius or self.problem.domain.radius * math.sqrt(self.problem.dimension)
        if math.isinf(radius):
            raise BadInput(
                f"strategy.radius must be declared: {self.name} weighs noise against it, and the domain is unbounded"
            )
        return radius

    def _promise(self) -> Guarantee:
        assumptions = [
            "every user's answer is the certified function of the model, in every round: nodes are honest",
            "data lie in the declared bounds (they are clipped into them)",
            "rounding errors of the steps are far below the noise",
        ]
        if self.privacy.unit == "sample":
            assumptions.append("the number of samples is public and exact")
        return Guarantee(
            unit=self.privacy.unit,
            relation="replace_one",
            epsilon=epsilon_of(self._mechanism.cost, 1, self.privacy.delta),
            delta=self.privacy.delta,
            accountant=f"{ACCOUNTANT}, one release",
            adversary="against whoever sees the released model; nodes and the server see the iterates and are trusted",
            assumptions=tuple(assumptions),
            holds=True,
        )

    def _make_ledger(self) -> ReleaseLedger:
        return ReleaseLedger(self.public.users, self._mechanism.cost, self.plan.rounds, self.privacy)

    def _ask(self, index: int) -> Request:
        if index == 0:
            self._start = self._x
            self._descent = self._algorithm.descent(self._start, self.problem.domain.project)
        everybody = np.arange(self.public.users)
        if self.privacy.unit == "sample":
            return Request(everybody, Computation("sample_sum", reduce="sum"))
        return Request(everybody, Computation("user_gradient", reduce="sum"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector | None]:
        if index == 0:
            self._silent = gathered.non_finite
        if gathered.missing or gathered.broken_sums or gathered.non_finite != self._silent:
            raise RunFailed(
                f"round {index + 1}: a user did not answer, or sent a finite gradient in some rounds only; {self.name} "
                "has no guarantee unless everybody answers in every round: nothing is released"
            )
        gradient = gathered.values / self._algorithm.risk.records
        self._algorithm.step(self._descent, gradient, self._start)
        if index + 1 < self.plan.rounds:
            return self._descent.query, None
        noisy = self._mechanism.release(self._descent.point, self._noise(index))
        # Clipping into a box is the projection in the sup norm as well as in l2.
        released = self.problem.domain.project(noisy)
        return released, released
