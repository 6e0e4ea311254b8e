"""Localised robust SGD (Ghazi, Kumar, Liu and Manurangsi 2025, Algorithms 1, 2, 3 and 5), corrected and improved.

Each phase walks through disjoint batches of fresh users, steps along a robust estimate of the batch's average
gradients, and counts how well the users of each batch agree. Noise is added once, to the average iterate, and only if
every batch passed the concentration test. The next phase starts there with a smaller step.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.base import UserLevelStrategy
from strategies.declarations import Fact
from strategies.localized_needs import fewest_users, refusal
from strategies.localized_paper import paper_plan, paper_users
from strategies.localized_plan import LocalizedPlan, Phase, Setting, search
from strategies.options import StrategyOptions
from strategies.passing import AgreementOptions
from strategies.plan import Plan
from strategies.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Guarantee, Ledger, epsilon_of
from userdp.computations import Computation
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import MINIMUM_BATCH, concentration_score
from userdp.mechanisms import GaussianMechanism, Session
from userdp.problems.base import Vector
from userdp.sampling import DisjointBatches

PHASE_ASSUMPTIONS = (
    "every user's answer is the certified function of the model: nodes are honest",
    "data lie in the declared bounds (they are clipped into them)",
    "n and who takes part are public",
)


class LocalizedOptions(AgreementOptions):
    """Settings of `LocalizedRobustSGD`."""

    test: Literal["above_threshold", "min_score"] = Field(
        "min_score", description="above_threshold can stop early; min_score needs about a quarter of the users."
    )
    constants: Literal["paper", "calibrated"] = Field(
        "calibrated", description="paper: the paper's batch, step and radius; calibrated: searched for the least risk."
    )
    batch: int | None = Field(None, ge=MINIMUM_BATCH, description="Users a step; searched if not given.")
    phases: int | None = Field(None, ge=1, le=64, description="Releases; searched if not given.")
    learning_rate: float | None = Field(None, gt=0, description="Step size of the first phase; searched if not given.")
    phase_base: float | None = Field(None, gt=1, description="Factor between step sizes; default max(ln m, 4).")
    without_certificate: bool = Field(
        False, description="Run a loss without certificate; the report then says: no privacy guarantee."
    )


class LocalizedRobustSGD(UserLevelStrategy):
    """Robust steps, one noisy release a phase.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, phase release. *Why.* Unit: one whole user;
    relation: replace-one; n public. A user is in one batch of one phase, so the run has the guarantee of one phase:
    test and release composed. If the users of the batch in question do not agree within rho (two thirds of them in
    one sup-norm ball, in both data sets), every test passes with probability at most delta_test in both. If they
    do, replacing one user moves that step by at most eta times the estimator's sup sensitivity; under A1 to A4
    later steps do not enlarge the difference, scores move by at most the test's sensitivity, and the average
    iterate has l2 sensitivity sqrt(d) eta times it, which the Gaussian noise is calibrated to. Iterates inside a
    phase are NOT private: the guarantee is against whoever sees the released models, not against the participating
    nodes nor the server, and every node must answer honestly. The paper is "Linear-Time User-Level DP-SCO via
    Robust Statistics", Algorithms 1, 2, 3 and 5, with corrected constants, and estimators, kernels and tests of our
    own.

    *Assumptions.* The loss is certified for A1 to A4 at every sample within the declared bounds, and the step is at
    most 2 / smoothness. Samples lie within these bounds: nodes clip them, and set aside those without a place
    there. Nodes are honest. n and who takes part are public. A loss without certificate is refused;
    `without_certificate = true` runs it and reports *no guarantee*, without an epsilon.
    """

    name: ClassVar[str] = "localized_robust_sgd"
    summary_line: ClassVar[str] = "robust steps on fresh users, tested for agreement, noise once a phase"
    family: ClassVar[str] = "robust"
    cost: ClassVar[str] = (
        "all users in disjoint phases: one gradient a user and step, a row of d numbers each; server "
        "O(U^2 d) a tested phase, at worst"
    )
    paper: ClassVar[str] = (
        "Ghazi, Kumar, Liu, Manurangsi 2025 (Algorithms 1, 2, 3, 5), corrected; winsorised and ramp: ours"
    )
    needs: ClassVar[str] = "certified loss (A1 to A4), honest nodes"
    without_secure_noise: ClassVar[str | None] = "inside a phase its proof takes steps without rounding"
    promise: ClassVar[str] = "user level, against whoever sees the released models"
    release: ClassVar[Literal["round", "phase"]] = "phase"
    example: ClassVar[Mapping[str, Any]] = {"radius": 1.0}
    meanings: ClassVar[Mapping[str, str]] = {
        "batch": "users a step, fresh ones each time",
        "phases": "releases; each phase starts at the model released before",
        "steps": "steps of each phase",
        "radius": "users' gradients count as agreeing within this radius (sup norm)",
        "user_deviation": "assumed standard deviation of a coordinate of a user's gradient",
        "threshold": "concentration score that a batch must reach (at most the batch size)",
        "score_sensitivity": "most that one user can change the score",
        "test_epsilon": "share of epsilon spent on the test",
        "test_delta": "share of delta spent on the test",
        "sup_sensitivity_of_a_step": "most that one user can move a robust gradient (sup norm)",
        "predicted_risk_bound": "bound on the excess risk that the plan minimised",
        "smoothness": "certified bound on the Hessian's row sums",
        "gradient_bound": "certified bound on a gradient's coordinates",
    }
    notes: ClassVar[Mapping[str, Fact]] = {
        "phase": Fact("public", "number of the phase"),
        "score_private": Fact("private", "how well the users of the round agree, before the test's noise"),
        "threshold": Fact("public", "score that a batch must reach"),
        "passed": Fact("noised", "whether the round or phase passed its test, which has noise of its own"),
    }
    Options: ClassVar[type[StrategyOptions]] = LocalizedOptions
    options: LocalizedOptions

    def _make_plan(self) -> Plan:
        options, certificate = self.options, self.problem.certificate
        options.check_estimate()
        if not options.without_certificate:
            certificate.require_contractive(self.name)
        elif certificate.missing() and (options.radius is None or options.learning_rate is None):
            raise BadInput("strategy.radius and strategy.learning_rate must be given for a loss without certificate")
        if options.learning_rate and certificate.smoothness and options.learning_rate > 2 / certificate.smoothness:
            raise BadInput(
                f"strategy.learning_rate = {options.learning_rate:g}: must be at most 2 / smoothness = "
                f"{2 / certificate.smoothness:.6g}, beyond which steps of this loss are not proven to be contractive"
            )
        self._chosen = chosen = self._choose()
        last, p = chosen.phases[-1], self.problem.dimension
        steps = sum(phase.steps for phase in chosen.phases)
        warnings = []
        if last.deviation * math.sqrt(p) >= self._scale:
            warnings.append(
                "the noise is expected to drown the signal: bring more users, raise privacy.epsilon, "
                "use estimate = 'winsorized' with kernel = 'ramp', or try dp_fed_sgd"
            )
        if chosen.pass_probability < 0.5:
            warnings.append(
                f"honest users pass all tests with probability at most about {chosen.pass_probability:.2g} under the "
                "declared deviation: raise strategy.radius or strategy.batch"
            )
        return Plan(
            strategy=self.name,
            rounds=steps,
            cohort=chosen.batch,
            users=self.public.users,
            users_needed=self._users_needed(),
            guarantee=self._promise(),
            noise=last.deviation * math.sqrt(p),
            signal=self._scale,
            pass_probability=chosen.pass_probability,
            numbers=self._numbers(),
            warnings=tuple(warnings),
        )

    @property
    def _projects(self) -> bool:
        """Whether iterates inside a phase stay in the domain; a linear loss needs it only at the release."""
        return self.problem.certificate.smoothness != 0 or self.options.constants == "paper"

    @property
    def _scale(self) -> float:
        """l2 norm of the longest way that there is to go: the noise of the release is compared with it."""
        root = math.sqrt(self.problem.dimension)
        if self._projects:
            return self.problem.domain.radius * root
        last = self._chosen.phases[-1]
        return (self.problem.certificate.lipschitz or math.inf) * last.learning_rate * (last.steps + 1) / 2 * root

    @property
    def _user_deviation(self) -> float:
        per_sample = self.options.deviation or self.problem.certificate.lipschitz or 1.0
        return self.options.user_deviation(per_sample, self.public.min_samples)

    def _setting(self) -> Setting:
        options = self.options
        radius = self.problem.domain.radius
        return Setting(
            users=self.public.users,
            dimension=self.problem.dimension,
            user_deviation=self._user_deviation,
            certificate=self.problem.certificate,
            domain_radius=radius if math.isfinite(radius) else 1.0,
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            failure=options.failure,
            statistic=options.statistic,
            estimate=options.estimate,
            kernel=options.kernel,
            test=options.test,
            radius=options.radius,
            batch=options.batch,
            phases=options.phases,
            learning_rate=options.learning_rate,
        )

    @property
    def _phase_base(self) -> float:
        # The paper divides by log m, whose geometric series converges only for m > e.
        return self.options.phase_base or max(math.log(self.public.min_samples), 4.0)

    def _choose(self) -> LocalizedPlan:
        setting, base = self._setting(), self._phase_base
        if self.options.constants == "paper":
            return paper_plan(setting, self.public.min_samples, base)
        plan = search(setting, base)
        if plan is None:
            raise PopulationTooSmall(refusal(setting, base))
        return plan

    def _users_needed(self) -> int:
        if self.options.constants == "paper":
            return paper_users(self._setting(), self.public.min_samples)
        return fewest_users(self._setting(), self._phase_base) or self.public.users

    def _promise(self) -> Guarantee:
        if self.problem.certificate.missing():
            return Guarantee.none(f"the loss lacks {', '.join(self.problem.certificate.missing())}")
        return Guarantee(
            unit="user",
            relation="replace_one",
            epsilon=epsilon_of(self._chosen.cost, 1, self.privacy.delta),
            delta=self.privacy.delta,
            accountant=f"{ACCOUNTANT}, parallel over disjoint users",
            adversary="against whoever sees the released models; "
            "nodes of a phase and the server see its iterates and are trusted",
            assumptions=PHASE_ASSUMPTIONS,
            holds=True,
        )

    def _numbers(self) -> dict[str, float | int | str]:
        chosen = self._chosen
        test = chosen.phases[0].test
        return {
            "batch": chosen.batch,
            "phases": len(chosen.phases),
            "steps": ", ".join(str(phase.steps) for phase in chosen.phases),
            "learning_rate": ", ".join(f"{phase.learning_rate:.3g}" for phase in chosen.phases),
            "radius": chosen.kernel.radius,
            "user_deviation": self._user_deviation,
            "threshold": test.threshold,
            "score_sensitivity": test.sensitivity,
            "test_epsilon": chosen.cost.test_epsilon,
            "test_delta": chosen.cost.test_delta,
            "noise_multiplier": chosen.cost.noise_multiplier,
            "sup_sensitivity_of_a_step": chosen.estimator.sup_sensitivity(chosen.batch),
            "noise_deviation": ", ".join(f"{phase.deviation:.3g}" for phase in chosen.phases),
            "predicted_risk_bound": chosen.predicted_risk,
            "smoothness": self.problem.certificate.smoothness or 0.0,
            "gradient_bound": self.problem.certificate.lipschitz or math.inf,
        }

    def _make_ledger(self) -> Ledger | None:
        self._sampler = DisjointBatches(self.public.users, self._chosen.batch, 1, self.seed)
        self._begin_phase(0)
        if not self.plan.guarantee.holds:
            return None
        return Ledger(self.public.users, self._chosen.cost, 1, self.privacy)

    @cached_property
    def _starts(self) -> Sequence[int]:
        """First round of each phase, and the number of rounds."""
        return [0, *np.cumsum([phase.steps for phase in self._chosen.phases]).tolist()]

    def _locate(self, index: int) -> tuple[int, int, Phase]:
        """(phase number, step within it, phase) of a round."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return number, index - self._starts[number], self._chosen.phases[number]

    def _begin_phase(self, number: int) -> None:
        """A phase begins at the last released model, with a fresh test."""
        self._session: Session = self._chosen.phases[number].test.session(self._noise(number, 1))
        self._halted = False
        self._sum = np.zeros(self.problem.dimension)

    def _ask(self, index: int) -> Request | None:
        number, step, _ = self._locate(index)
        if step == 0:
            self._begin_phase(number)
        if self._halted:
            return None
        return Request(self._sampler.cohort(index), Computation("user_gradient"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> tuple[Vector, Vector | None]:
        number, step, phase = self._locate(index)
        score = concentration_score(gathered.values, self._chosen.kernel)
        self.facts = {"phase": number + 1, "score_private": score, "threshold": phase.test.threshold}
        self._halted = not self._session.observe(score)
        x = x - phase.learning_rate * self._chosen.estimator(gathered.values)
        if self._projects:
            x = self.problem.domain.project(x)
        self._sum += x
        if self._halted:
            self.facts["passed"] = 0.0
            return self._released, None
        if step + 1 < phase.steps:
            return x, None
        passed = self._session.passed()
        self.facts["passed"] = float(passed)
        if not passed:
            return self._released, None
        mechanism = GaussianMechanism(phase.l2_sensitivity, self._chosen.cost.noise_multiplier)
        average = mechanism.release(self._sum / phase.steps, self._noise(number, 2))
        released = self.problem.domain.project(average)
        return released, released
