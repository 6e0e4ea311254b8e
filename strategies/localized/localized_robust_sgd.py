"""Localised robust SGD (Ghazi, Kumar, Liu and Manurangsi 2025, Algorithms 1, 2, 3 and 5), corrected and improved.

Each phase walks through disjoint batches of fresh users, steps along a robust estimate of the batch's average
gradients, and counts how well the users of each batch agree. Noise is added once, to the average iterate, and only if
every batch passed the concentration test. The next phase starts there with a smaller step.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from strategies.core.base import UserLevelStrategy
from strategies.core.options import StrategyOptions
from strategies.core.plan import Plan
from strategies.core.recipe import Fact
from strategies.core.scheme import Number, Scheme, Step
from strategies.core.ways import NoisyPhase, Phases
from strategies.localized.needs import fewest_users, refusal
from strategies.localized.paper import paper_plan, paper_users
from strategies.localized.phases import (
    ADVERSARY,
    ASSUMPTIONS,
    SECURE_PHASE,
    PhaseAverage,
    check_contractive,
    gradient_rounding,
    phase_rounding,
    uncertified,
)
from strategies.localized.search import LocalizedPlan, LocalizedSetting, Phase, search
from strategies.robust.passing import AgreementOptions
from strategies.wire.replies import Gathered, Request
from userdp.accounting import ACCOUNTANT, Ledger, epsilon_of
from userdp.arrays.types import Vector
from userdp.errors import PopulationTooSmall
from userdp.estimators import MINIMUM_BATCH, concentration_score
from userdp.estimators.robust import REACH
from userdp.mechanisms import GaussianMechanism, Session
from userdp.nodes.computations import Computation
from userdp.sampling import DisjointBatches
from userdp.state import State, Stateful


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


@dataclass(frozen=True, kw_only=True)
class LocalizedScheme(Scheme):
    """A `Scheme` of tested phases.

    Attributes:
        setting: what is given.
        chosen: batch, estimator, phases and cost.
        sampler: who takes part in each round.
        projects: whether iterates inside a phase stay in the domain; a linear loss needs it only at the release.
    """

    setting: LocalizedSetting
    chosen: LocalizedPlan
    sampler: DisjointBatches
    projects: bool

    def mechanism(self, phase: Phase) -> GaussianMechanism:
        """Of the average iterate that a phase releases."""
        return GaussianMechanism(phase.l2_sensitivity, self.chosen.cost.noise_multiplier)


@dataclass
class PhaseUnderWay(Stateful):
    """What the server remembers of the phase under way; none of it is private before noise is added.

    Attributes:
        average: of its iterates.
        new_session: starts a test of any phase.
        session: of its test; there from the phase's first request on.
        halted: whether the test has failed already.
    """

    remembered: ClassVar[tuple[str, ...]] = ("halted",)
    parts: ClassVar[tuple[str, ...]] = ("average", "session")
    given: ClassVar[tuple[str, ...]] = ("new_session",)
    average: PhaseAverage
    new_session: Callable[[], Session]
    session: Session = field(init=False)
    halted: bool = False

    def begin(self, session: Session) -> None:
        """Forget the phase before."""
        self.average.restart()
        self.session, self.halted = session, False

    def new_part(self, attribute: str, state: State) -> Session:
        """The session; its state holds all that differs between phases."""
        return self.new_session()


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

    With secure noise, steps are what is computed in float64: iterates of two neighbours are further apart by
    `phase_rounding` (with its proof), so the noise is larger by that, and with it how far scores move in later steps.
    As users' rows are computed to within `Problem.gradient_rounding`, their distances move by at most four times that
    besides, and a score by at most 4 B / rho times it, relative to the score's sensitivity, by which the test's noise
    is larger too. Where a gradient depends on no model (a linear loss), later scores are equal to the last bit.

    *Assumptions.* The loss is certified for A1 to A4 at every sample within the declared bounds, and the step is at
    most 2 / smoothness. Samples lie within these bounds: nodes clip them, and set aside those without a place
    there. Nodes are honest. n and who takes part are public. A loss without certificate is refused;
    `without_certificate = true` runs it and reports *no guarantee*, without an epsilon.
    """

    adversary: ClassVar[str] = ADVERSARY
    name: ClassVar[str] = "localized_robust_sgd"
    summary_line: ClassVar[str] = "robust steps on fresh users, tested for agreement, noise once a phase"
    family: ClassVar[str] = "robust"
    cost: ClassVar[str] = (
        "all users in disjoint phases: one gradient a user and step, a row of d numbers each; server "
        "O(U^2 d) a tested phase, at worst"
    )
    compares_users: ClassVar[bool] = True
    paper: ClassVar[str] = (
        "Ghazi, Kumar, Liu, Manurangsi 2025 (Algorithms 1, 2, 3, 5), corrected; winsorised and ramp: ours"
    )
    needs: ClassVar[str] = "convex loss, certified gradient bound and diagonally dominant bounded Hessian; honest nodes"
    with_secure_noise: ClassVar[str] = SECURE_PHASE
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
    scheme: LocalizedScheme
    memory: PhaseUnderWay

    # The plan ------------------------------------------------------------------------------------------------------

    def _make_scheme(self) -> LocalizedScheme:
        options, certificate, n = self.options, self.problem.certificate, self.public.users
        options.check_estimate()
        check_contractive(
            self.name,
            certificate,
            options.learning_rate,
            opted_out=options.without_certificate,
            needed_then={"radius": options.radius},
        )
        setting = self._setting()
        chosen = self._choose(setting)
        epsilon = epsilon_of(chosen.cost, 1, self.privacy.delta)
        accountant = f"{ACCOUNTANT}, parallel over disjoint users"
        return LocalizedScheme(
            guarantee=uncertified(certificate) or self._promise(epsilon, accountant, ASSUMPTIONS),
            ledger=partial(Ledger, n, chosen.cost, 1),
            new_memory=lambda: PhaseUnderWay(
                PhaseAverage(self.problem.dimension), lambda: chosen.phases[0].test.session(self._noise(0, 1))
            ),
            # A score is an exact sum over the batch, rounded once.
            summands=chosen.batch,
            rounding=self._rounding(chosen) if self.privacy.noise == "secure" else 0.0,
            setting=setting,
            chosen=chosen,
            sampler=DisjointBatches(n, chosen.batch, 1, self.seed),
            projects=certificate.smoothness != 0 or options.constants == "paper",
        )

    def _rounding(self, chosen: LocalizedPlan) -> float:
        """How much the sensitivities of releases and scores can grow, relatively, by float64 steps (see the class)."""
        estimator, batch = chosen.estimator, chosen.batch
        iterates = max(
            phase_rounding(
                self.problem,
                steps=phase.steps,
                rate=phase.learning_rate,
                sensitivity=estimator.sup_sensitivity(batch),
                error=estimator.error(batch),
                longest=REACH * estimator.radius + estimator.clip_width,
            )
            for phase in chosen.phases
        )
        return iterates + 4 * batch * gradient_rounding(self.problem) / chosen.kernel.radius

    def _setting(self) -> LocalizedSetting:
        options, certificate = self.options, self.problem.certificate
        per_sample = options.deviation or certificate.lipschitz or 1.0
        radius = self.problem.domain.radius
        return LocalizedSetting(
            users=self.public.users,
            dimension=self.problem.dimension,
            user_deviation=options.user_deviation(per_sample, self.public.min_samples),
            certificate=certificate,
            domain_radius=radius if math.isfinite(radius) else 1.0,
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            failure=options.failure,
            shape=options.shape,
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

    def _choose(self, setting: LocalizedSetting) -> LocalizedPlan:
        if self.options.constants == "paper":
            return paper_plan(setting, self.public.min_samples, self._phase_base)
        chosen = search(setting, self._phase_base)
        if chosen is None:
            raise PopulationTooSmall(refusal(setting, self._phase_base))
        return chosen

    def _make_plan(self) -> Plan:
        chosen, signal = self.scheme.chosen, self._signal()
        noise = chosen.phases[-1].deviation * math.sqrt(self.problem.dimension)
        warnings = []
        if chosen.pass_probability < 0.5:
            warnings.append(
                "that honest users pass all tests is proven with a probability of "
                f"{chosen.pass_probability:.2g} alone, under the declared deviation: raise strategy.radius or "
                "strategy.batch"
            )
        return self._planned(
            Phases(
                tuple(
                    NoisyPhase(steps=phase.steps, rate=phase.learning_rate, deviation=phase.deviation)
                    for phase in chosen.phases
                ),
                signal,
            ),
            rounds=sum(phase.steps for phase in chosen.phases),
            cohort=chosen.batch,
            users_needed=self._users_needed(),
            noise=noise,
            signal=signal,
            pass_probability=chosen.pass_probability,
            numbers=self._numbers(),
            warnings=tuple(warnings),
        )

    def _signal(self) -> float:
        """l2 norm of the longest way that there is to go: the noise of the release is compared with it."""
        root = math.sqrt(self.problem.dimension)
        if self.scheme.projects:
            return self.problem.domain.radius * root
        last = self.scheme.chosen.phases[-1]
        return (self.problem.certificate.lipschitz or math.inf) * last.learning_rate * (last.steps + 1) / 2 * root

    def _users_needed(self) -> int:
        if self.options.constants == "paper":
            return paper_users(self.scheme.setting, self.public.min_samples)
        return fewest_users(self.scheme.setting, self._phase_base) or self.public.users

    def _numbers(self) -> dict[str, Number]:
        setting, chosen = self.scheme.setting, self.scheme.chosen
        test = chosen.phases[0].test
        return {
            "batch": chosen.batch,
            "phases": len(chosen.phases),
            "steps": ", ".join(str(phase.steps) for phase in chosen.phases),
            "learning_rate": ", ".join(f"{phase.learning_rate:.3g}" for phase in chosen.phases),
            "radius": chosen.kernel.radius,
            "user_deviation": setting.user_deviation,
            "threshold": test.threshold,
            "score_sensitivity": test.sensitivity,
            "test_epsilon": chosen.cost.pure_epsilon,
            "test_delta": chosen.cost.failure_delta,
            "noise_multiplier": chosen.cost.noise_multiplier,
            "sup_sensitivity_of_a_step": chosen.estimator.sup_sensitivity(chosen.batch),
            "noise_deviation": ", ".join(f"{phase.deviation:.3g}" for phase in chosen.phases),
            "predicted_risk_bound": chosen.predicted_risk,
            "smoothness": setting.smoothness,
            "gradient_bound": self.problem.certificate.lipschitz or math.inf,
        }

    # A round -------------------------------------------------------------------------------------------------------

    def _ask(self, index: int) -> Request | None:
        number, step, phase = self.scheme.chosen.locate(index)
        if step == 0:
            self.memory.begin(phase.test.session(self._noise(number, 1)))
        if self.memory.halted:
            return None
        return Request(self.scheme.sampler.cohort(index), Computation("user_gradient"))

    def _step(self, index: int, x: Vector, gathered: Gathered) -> Step:
        scheme, memory = self.scheme, self.memory
        number, step, phase = scheme.chosen.locate(index)
        score = concentration_score(gathered.values, scheme.chosen.kernel)
        facts: dict[str, float] = {"phase": number + 1, "score_private": score, "threshold": phase.test.threshold}
        memory.halted = not memory.session.observe(score)
        x = x - phase.learning_rate * scheme.chosen.estimator(gathered.values)
        if scheme.projects:
            x = self.problem.domain.project(x)
        memory.average.add(x)
        if memory.halted:
            return Step(self._released, None, {**facts, "passed": 0.0})
        if step + 1 < phase.steps:
            return Step(x, None, facts)
        passed = memory.session.passed()
        facts["passed"] = float(passed)
        if not passed:
            return Step(self._released, None, facts)
        average = scheme.mechanism(phase).release(memory.average.value, self._noise(number, 2))
        released = self.problem.domain.project(average)
        return Step(released, released, facts)
