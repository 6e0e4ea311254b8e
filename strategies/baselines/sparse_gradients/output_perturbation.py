"""Output perturbation in a federation: a regularised convex problem solved exactly enough, and one noisy release."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies import About, Gathered, Given, Noise, NoisyRelease, Outline, Price, Recipe, Request, Scheme, Step
from strategies.baselines.declared_bounds import declared, no_better
from strategies.baselines.samples.sample_options import records_of
from strategies.baselines.sparse_gradients.perturbed_minimiser import ConvexRisk, PerturbedMinimiser, Projection
from userdp.accounting import ACCOUNTANT, Cost, Ledger, Privacy, epsilon_of
from userdp.arrays import Vector
from userdp.errors import BadInput, MissingAssumption, RunFailed
from userdp.mechanisms import GaussianMechanism
from userdp.nodes import Computation
from userdp.state import Stateful


class ReleaseLedger(Ledger):
    """Counts the rounds in which users take part in ONE mechanism, which releases at the end.

    *Formal guarantees.* Unit and relation: those of ``cost``, the cost of the release. Rounds that release nothing cost
    nothing against an observer of releases. The release is charged from the first of ``rounds`` rounds on, before it is
    made. A round more than planned is refused.
    """

    def __init__(self, users: int, cost: Cost, rounds: int, privacy: Privacy) -> None:
        super().__init__(users, cost, 1, privacy)
        if rounds < 1:
            raise BadInput(f"rounds = {rounds}: there must be at least one")
        self.participations = rounds

    def spent(self) -> Callable[[], float]:
        """See `Ledger.spent`; the release counts from the first round on."""
        return partial(epsilon_of, self.cost, min(1, self.most_participations), self.privacy.delta)


class Minimisation(Stateful):
    """The memory of the server: the steps so far, and the problem that they all must be those of.

    ``start`` is where they start and the centre of the regularisation, zero before `begin`; ``silent`` counts users
    without a usable sample, whose loss is zero, from `begin` on.
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


@dataclass(frozen=True, kw_only=True)
class ReleaseScheme(Scheme):
    """A `Scheme` of one release, at the end of steps that are not released; ``new_memory`` makes a `Minimisation`."""

    users: int  # n; all of them answer in every round
    query: Computation  # what they are asked
    algorithm: PerturbedMinimiser  # the steps, with what is proven of them, and the mechanism of the release
    project: Projection  # onto the domain; clipping into a box is the projection in the sup norm as well as in l2

    def ask(self, index: int, memory: Minimisation) -> Request:
        return Request(np.arange(self.users), self.query)

    def take(self, index: int, x: Vector, gathered: Gathered, memory: Minimisation, noise: Noise) -> Step:
        """See `Scheme`. Raises `RunFailed`: the steps would no longer be those of one fixed problem."""
        if index == 0:
            memory.begin(x, gathered.non_finite)
        if gathered.missing or gathered.broken_sums or gathered.non_finite != memory.silent:
            raise RunFailed(
                f"round {index + 1}: a user did not answer, or sent a finite gradient in some rounds only; "
                "output_perturbation has no guarantee unless everybody answers in every round: nothing is released"
            )
        memory.step(gathered.values / self.algorithm.risk.records)
        if index + 1 < self.algorithm.rounds:
            return Step(memory.descent.query, None)
        released = self.project(self.algorithm.mechanism.release(memory.descent.point, noise(0)))
        return Step(released, released)


class OutputPerturbation(Recipe, restates={"max_missing"}):
    """Accelerated descent on a regularised convex loss, noise on its end alone, and the nearest model in the sup norm.

    *Formal guarantees.* *Claim.* (epsilon, delta), or (epsilon, 0), for one user or one sample, replace-one, for
    whoever sees the released model; certified convex losses. *Why.* Unit: one whole user, whose loss is the mean over
    its usable samples, whatever the model (zero without any; or one sample, with their number public); relation:
    replace-one; n public. With gradients of l2 norm at most L, the minimiser of the risk plus ``(lambda / 2) ||x -
    start||^2`` has l2 sensitivity ``2 L / (lambda n)``, over the whole domain; for delta = 0 its l1 sensitivity is
    bounded by the certified sparsity and smoothness (`ConvexRisk` has the proofs, which are the same for a user as for
    a sample). A fixed number of steps ends within a distance of it that is known before the run and is added twice. One
    Gaussian or Laplace mechanism hides the end of the steps; projecting it onto the domain costs nothing. Iterates are
    NOT private: the guarantee is against whoever sees the released model, not against the participating nodes nor the
    server, and every node must answer honestly. A user that is missing in any round, or not finite in some only, ends
    the run without a release, since the steps would no longer be those of one fixed problem. A third bound of the l1
    sensitivity holds where the loss's Hessian is diagonally dominant. More in
    `strategies/baselines/sparse_gradients/README.md`.

    *Assumptions.* Nodes are honest and answer in every round, else the run ends without a release. A user without a
    usable sample has loss zero in all rounds; one who is zero in some only ends the run, too. Nodes and
    server see exact iterates and are trusted. For sample level the public number of samples is exact. Rounding of
    the steps in float64 is not accounted for.
    """

    about: ClassVar[About] = About(
        name="output_perturbation",
        summary_line="exact descent on a regularised convex loss, noise once, on the last model",
        family="output perturbation",
        cost="node O(N d), one sum of d numbers up; server O(K d); all users in every round",
        paper="Ghazi, Guzman, Kamath, Kumar, Manurangsi 2024 (Algorithm 6), corrected; user level: ours",
        needs="convex loss with certified gradient and smoothness, honest nodes that always answer",
        units=("user", "sample"),
        adversary="against whoever sees the released model; nodes and the server see the iterates and are trusted",
        release="phase",
        hears_silence=True,  # to end: it releases nothing of theirs
        pure=True,
        without_secure_noise="how the end of many steps in floating point is rounded is not bounded",
        promise="user or sample level, also pure (delta = 0); not against the nodes, which see iterates",
        example={"rounds": 3},
        meanings={
            "sparsity": "most non-zeros of a sample's gradient",
            "smoothness": "certified bound on the Hessian's row sums",
            "predicted_risk_bound": "bound on the excess risk that the plan minimised",
            "regularisation": "weight of the squared distance from the start, added to the loss by half",
            "solver_distance": "how far the last step can be from the exact minimiser (l2 norm)",
            "gradient_norm": "certified bound on a gradient (l2 norm)",
            "records": "n, users or samples, whichever are protected; the public divisor",
        },
    )

    max_missing: float = Field(
        0.0, ge=0, le=0, description="Always 0: a user that answers in some rounds only would change what is minimised."
    )
    regularisation: float | None = Field(
        None, gt=0, description="lambda, weight of the squared distance from the start; by theory if not given."
    )
    risk: Literal["empirical", "population"] = Field(
        "empirical",
        description="What regularisation is for if not given. empirical: the least bound on the loss of these people; "
        "population: that of people like them, by Theorem 7.6, with a constant of 1.",
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

    def scheme(self, given: Given) -> ReleaseScheme:
        samples, epsilon, delta = given.privacy.unit == "sample", given.privacy.epsilon, given.privacy.delta
        risk, radius = _risk(given), self.radius or given.problem.domain.radius * math.sqrt(given.dimension)
        radius = declared(given, "radius", radius, "weighs noise against it, and the domain is unbounded")
        chosen = risk.best_regularisation if self.risk == "empirical" else risk.population_regularisation
        weight = self.regularisation or chosen(epsilon, delta, radius, self.failure)
        if self.rounds is None:
            algorithm = PerturbedMinimiser.planned(risk, weight, epsilon, delta, self.slack)
        else:
            algorithm = PerturbedMinimiser(risk, weight, epsilon, delta, self.rounds)
        cost, project = algorithm.mechanism.cost, given.problem.domain.project
        assumptions = (
            "every user's answer is the certified function of the model, in every round: nodes are honest",
            "data lie in the declared bounds (they are clipped into them)",
            "rounding errors of the steps are far below the noise",
            *(("the number of samples is public and exact",) if samples else ()),
        )
        promise = given.promise(epsilon_of(cost, 1, delta), f"{ACCOUNTANT}, one release", assumptions)
        return ReleaseScheme(
            price=Price(promise, partial(ReleaseLedger, given.users, cost, algorithm.rounds)),
            outline=_outline(given.users, algorithm, radius, algorithm.excess_bound(radius, self.failure)),
            new_memory=partial(Minimisation, algorithm, project),
            users=given.users,
            query=Computation("sample_sum" if samples else "user_gradient", reduce="sum"),
            algorithm=algorithm,
            project=project,
        )


def _risk(given: Given) -> ConvexRisk:
    """Return the bounds that the certificate proves. Raises `MissingAssumption`: not enough."""
    certificate, dimension = given.problem.certificate, given.dimension
    proven = {
        "convex": certificate.convex,
        "bounded gradient, l2 norm": certificate.gradient_norm is not None,
        "bounded Hessian row sums": certificate.smoothness is not None,
    }
    if gaps := [name for name, holds in proven.items() if not holds]:
        why = f" ({certificate.reason})" if certificate.reason else ""
        raise MissingAssumption(
            f"output_perturbation needs a certified loss; missing: {', '.join(gaps)}{why}. Choose a strategy that "
            "needs no certificate (dp_fed_sgd), or change the problem's bounds"
        )
    return ConvexRisk(
        records=records_of(given),
        dimension=dimension,
        sparsity=min(certificate.sparsity or dimension, dimension),
        gradient_norm=certificate.gradient_norm or 0.0,
        smoothness=certificate.smoothness,
        diagonally_dominant=certificate.diagonally_dominant,
        domain="space" if math.isinf(given.problem.domain.radius) else "box",
    )


def _outline(users: int, algorithm: PerturbedMinimiser, radius: float, bound: float) -> Outline:
    """The scheme in numbers, with the bound on its excess risk."""
    risk, mechanism = algorithm.risk, algorithm.mechanism
    if isinstance(mechanism, GaussianMechanism):
        deviation, sensitivity = mechanism.standard_deviation, {"l2_sensitivity": mechanism.l2_sensitivity}
    else:
        deviation, sensitivity = math.sqrt(2) * mechanism.scale, {"l1_sensitivity": mechanism.sensitivity}
    return Outline(
        rounds=algorithm.rounds,
        cohort=users,
        users_needed=1,
        path=NoisyRelease(deviation=deviation, reach=radius),
        noise=deviation * math.sqrt(risk.dimension),
        signal=radius,
        numbers={
            "regularisation": algorithm.regularisation,
            "noise_deviation": deviation,
            "solver_distance": algorithm.distance,
            "predicted_risk_bound": bound,
            "sparsity": risk.sparsity,
            "gradient_norm": risk.gradient_norm,
            "smoothness": risk.smoothness or 0.0,
            "records": risk.records,
            **sensitivity,
        },
        warnings=no_better(bound, risk.gradient_norm * radius, "declare a smaller strategy.radius"),
    )
