"""Localised robust SGD (Ghazi, Kumar, Liu and Manurangsi 2025, Algorithms 1, 2, 3 and 5), corrected and improved.

Each phase walks through disjoint batches of fresh users, steps along a robust estimate of the batch's average
gradients, and counts how well the users of each batch agree. Noise is added once, to the average iterate, and only if
every batch passed the concentration test. The next phase starts there with a smaller step.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from strategies.base import StrategyOptions, UserLevelStrategy
from strategies.localized_needs import enough_batch, fewest_users
from strategies.localized_plan import LocalizedPlan, Phase, Setting, build, search
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


class LocalizedOptions(StrategyOptions):
    """Settings of `LocalizedRobustSGD`."""

    statistic: Literal["median", "trimmed_mean"] = Field("trimmed_mean", description="Robust centre of a batch.")
    estimate: Literal["debiased", "winsorized"] = Field(
        "winsorized",
        description="debiased: the paper's clip of the mean; winsorized: mean of clipped users, far less noise.",
    )
    kernel: Literal["exp", "ramp"] = Field("ramp", description="How agreement of two users falls with their distance.")
    test: Literal["above_threshold", "min_score"] = Field(
        "min_score", description="above_threshold can stop early; min_score needs about a quarter of the users."
    )
    constants: Literal["paper", "calibrated"] = Field(
        "calibrated", description="paper: the paper's batch, step and radius; calibrated: searched for the least risk."
    )
    radius: float | None = Field(
        None, gt=0, description="rho, sup-norm radius within which users' gradients agree; from theory if not given."
    )
    deviation: float | None = Field(
        None, gt=0, description="Per-sample standard deviation of a gradient coordinate (utility only); default G."
    )
    heterogeneity: float = Field(
        0.0, ge=0, description="Standard deviation between users of their own mean gradient (utility only)."
    )
    batch: int | None = Field(None, ge=MINIMUM_BATCH, description="Users a step; searched if not given.")
    phases: int | None = Field(None, ge=1, le=64, description="Releases; searched if not given.")
    learning_rate: float | None = Field(None, gt=0, description="Step size of the first phase; searched if not given.")
    phase_base: float | None = Field(None, gt=1, description="Factor between step sizes; default max(ln m, 4).")
    failure: float = Field(0.01, gt=0, lt=1, description="Probability with which honest users may fail the tests.")
    without_certificate: bool = Field(
        False, description="Run a loss without certificate; the report then says: no privacy guarantee."
    )


class LocalizedRobustSGD(UserLevelStrategy):
    """Robust steps, one noisy release a phase.

    *Formal guarantees.* Unit: one whole user; relation: replace-one; n public. A user is in one batch of one phase,
    so the run has the guarantee of one phase: test and release composed. If the users of the batch in question do
    not agree within rho (two thirds of them in one sup-norm ball, in both data sets), every test passes with
    probability at most delta_test in both. If they do, replacing one user moves that step by at most eta times the
    estimator's sup sensitivity; under A1 to A4 later steps do not enlarge the difference, scores move by at most
    the test's sensitivity, and the average iterate has l2 sensitivity sqrt(d) eta times it, which the Gaussian
    noise is calibrated to. Iterates inside a phase are NOT private: the guarantee is against whoever sees the
    released models, not against the participating nodes nor the server, and every node must answer honestly.
    """

    name: ClassVar[str] = "localized_robust_sgd"
    summary_line: ClassVar[str] = "robust steps on fresh users, tested for agreement, noise once a phase"
    family: ClassVar[str] = "robust"
    paper: ClassVar[str] = (
        "Ghazi, Kumar, Liu, Manurangsi 2025 (Algorithms 1, 2, 3, 5), corrected; winsorised and ramp: ours"
    )
    needs: ClassVar[str] = "certified loss (A1 to A4), honest nodes"
    without_secure_noise: ClassVar[str | None] = "inside a phase its proof takes steps without rounding"
    Options: ClassVar[type[StrategyOptions]] = LocalizedOptions
    options: LocalizedOptions

    def _make_plan(self) -> Plan:
        options, certificate = self.options, self.problem.certificate
        if options.estimate == "winsorized" and options.statistic == "median":
            raise BadInput(
                "strategy.statistic = 'median': the winsorised estimate is proven for the trimmed mean; "
                "use statistic = 'trimmed_mean', or estimate = 'debiased'"
            )
        if not options.without_certificate:
            certificate.require_contractive(self.name)
        elif certificate.missing() and (options.radius is None or options.learning_rate is None):
            raise BadInput("strategy.radius and strategy.learning_rate must be given for a loss without certificate")
        if options.learning_rate and certificate.smoothness and options.learning_rate > 2 / certificate.smoothness:
            raise BadInput(
                f"strategy.learning_rate = {options.learning_rate:g}: must be at most 2 / smoothness = "
                f"{2 / certificate.smoothness:.6g}, beyond which steps of this loss are not proven to be contractive"
            )
        self._chosen = chosen = self._paper_plan() if options.constants == "paper" else self._calibrated_plan()
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
        return math.hypot(self.options.heterogeneity, per_sample / math.sqrt(self.public.min_samples))

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

    def _calibrated_plan(self) -> LocalizedPlan:
        plan = search(self._setting(), self._phase_base)
        if plan is None:
            raise PopulationTooSmall(self._refusal())
        return plan

    def _paper_plan(self) -> LocalizedPlan:
        """The paper's batch, radius, step and phases (Theorem 3.1), with thresholds that are private."""
        n, d, m = self.public.users, self.problem.dimension, self.public.min_samples
        epsilon, delta = self.privacy.epsilon, self.privacy.delta
        bound = self.problem.certificate.lipschitz or self._user_deviation
        log_size = math.log(n * m * d)
        batch = self._paper_batch(n)
        if n < 2 * batch:
            raise PopulationTooSmall(
                f"data.users = {n}: the paper's constants take batches of {batch} users and two batches at least; "
                f"bring {self._paper_users()} users, or use strategy.constants = 'calibrated'"
            )
        phases = self.options.phases or int(math.log2(n / batch))
        if n >> phases < batch:
            raise PopulationTooSmall(
                f"strategy.phases = {phases}: the last phase would have {n >> phases} of data.users = {n}, fewer than "
                f"a batch of {batch}; use at most {int(math.log2(n / batch))} phases, or bring {batch << phases} users"
            )
        radius = self.options.radius or bound * math.log(n * m * d / self.options.failure) / math.sqrt(m)
        step = min(batch * math.sqrt(m / n), math.sqrt(m) * epsilon / math.sqrt(d * math.log(1 / delta) * log_size))
        setting = self._setting()
        rate = setting.domain_radius / bound * step
        if setting.smoothness:
            # The proof's condition on the step, with the score's full sensitivity: later scores move by less than 2.
            rate = min(rate, 2 / setting.smoothness, 1 / (6 * setting.smoothness * batch))
        rate = self.options.learning_rate or rate
        sizes = [n >> (phase + 1) for phase in range(phases)]
        setting = replace(setting, radius=radius)
        plan = build(setting, batch, phases, self._phase_base, rate, 0.5, sizes=sizes)
        if plan is None:
            raise PopulationTooSmall(
                f"data.users = {n}: batches of {batch} users (the paper's size) cannot pass a test that is private; "
                "use strategy.constants = 'calibrated', a larger strategy.batch or a smaller strategy.learning_rate"
            )
        return plan

    def _paper_batch(self, users: int) -> int:
        size = users * self.public.min_samples * self.problem.dimension
        return self.options.batch or math.ceil(100 * math.log(size / self.privacy.delta) / self.privacy.epsilon)

    def _paper_users(self) -> int:
        """The fewest users that make two of the paper's batches, which grow with the logarithm of the users."""
        users = 2 * self._paper_batch(1)
        while users < 2 * self._paper_batch(users):
            users = 2 * self._paper_batch(users)
        return users

    def _users_needed(self) -> int:
        if self.options.constants == "paper":
            return self._paper_users()
        return fewest_users(self._setting(), self._phase_base) or self.public.users

    def _refusal(self) -> str:
        """Which number of the plan has to change, and to what."""
        options, privacy, setting = self.options, self.privacy, self._setting()
        budget = f"at epsilon = {privacy.epsilon:g}, delta = {privacy.delta:g}"
        needed = fewest_users(setting, self._phase_base)
        if needed is not None and needed > setting.users:
            return (
                f"data.users = {setting.users}: too few for {options.kernel} + {options.test} {budget}: these settings "
                f"take {needed} users. Bring more users, raise privacy.epsilon, use kernel = 'ramp' with test = "
                "'min_score', or use dp_fed_sgd"
            )
        enough = enough_batch(setting, self._phase_base)
        advice = "use dp_fed_sgd" if enough is None else f"use strategy.batch = {enough}"
        if options.batch is not None:
            return (
                f"strategy.batch = {options.batch}: honest users would not pass the tests of {options.kernel} + "
                f"{options.test} {budget}: {advice}, leave strategy.batch out, or raise privacy.epsilon"
            )
        return (
            f"data.users = {setting.users}: no batch of a size whose scores can be computed in time passes the tests "
            f"of {options.kernel} + {options.test} {budget}: use kernel = 'ramp', or {advice}"
        )

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
