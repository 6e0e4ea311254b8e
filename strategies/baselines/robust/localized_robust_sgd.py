"""Localised robust SGD (Ghazi, Kumar, Liu and Manurangsi 2025, Algorithms 1, 2, 3 and 5), corrected and improved.

Each phase walks through disjoint batches of fresh users, steps along a robust estimate of the batch's average
gradients, and scores how well the users of each batch agree. If every batch passes the concentration test, the average
iterate is released with noise. The next phase starts there with a smaller step.
"""

import math
from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from strategies import About, Given, Number, Recipe
from strategies.baselines.robust.paper import CONDITIONS, CORRECTIONS, PRINTED, paper_numbers, paper_plan, paper_users
from strategies.baselines.robust.plans import LocalizedOptions, LocalizedPlan, LocalizedSetting
from strategies.baselines.robust.search import COMPARISONS, fewest_users, refusal, search
from strategies.localized import (
    PHASE_ABOUT,
    PHASE_FACT,
    PHASE_MEANINGS,
    PhaseRounds,
    check_contractive,
    gradient_rounding,
    phase_rounding,
    phase_rounds,
)
from strategies.robust import TEST_MEANINGS, TEST_NOTES
from userdp.errors import BadInput, PopulationTooSmall
from userdp.estimators import REACH
from userdp.problems import Problem


class LocalizedRobustSGD(Recipe, LocalizedOptions):
    """Robust steps, one noisy release per phase.

    *Formal guarantees.* *Claim.* (epsilon, delta), user level, phase release. *Why.* Unit: one whole user; relation:
    replace-one; n public. A user is in one batch of one phase, so the run has the guarantee of one phase: test and
    release composed. If the users of that batch do not agree within rho (two thirds of them in one sup-norm ball, in
    both data sets), every test passes with probability at most delta_test in both. If they do, replacing one user moves
    that step by at most eta times the estimator's sup sensitivity; under A1 to A4 later steps do not enlarge the
    difference, scores move by at most the test's sensitivity, and the average iterate has l2 sensitivity sqrt(d) eta
    times it, which the Gaussian noise is calibrated to. Iterates inside a phase are NOT private: the guarantee is
    against observers of the released models, not against the participating nodes nor the server, and every node must
    answer honestly. The paper is "Linear-Time User-Level DP-SCO via Robust Statistics", Algorithms 1, 2, 3 and 5, with
    corrected constants, and estimators, kernels and tests of our own.

    With secure noise, steps are computed in float64: iterates of two neighbours are further apart by `phase_rounding`
    (with its proof), so the noise is larger by that, and with it how far scores move in later steps. As users' rows are
    computed to within `Problem.gradient_rounding`, their distances move by at most four times that besides, and a score
    by at most 4 B / rho times it, relative to the score's sensitivity, by which the test's noise is larger too. Where a
    gradient depends on no model (a linear loss), later scores are equal to the last bit.

    *Assumptions.* The loss is certified for A1 to A4 at every sample within the declared bounds, and the step is at
    most 2 / smoothness. Samples lie within these bounds: nodes clip them, and set aside those that cannot be. Nodes are
    honest. n and who takes part are public. A loss without certificate is refused; `without_certificate = true` runs it
    and reports *no guarantee*, without an epsilon.
    """

    about: ClassVar[About] = About(
        name="localized_robust_sgd",
        summary_line="robust steps on fresh users, tested for agreement, noise once per phase",
        family="robust",
        cost="all users in disjoint phases: one gradient per user and step, a row of d numbers each; server "
        "O(U^2 d) a tested phase, at worst",
        compares_users=True,
        paper="Ghazi, Kumar, Liu, Manurangsi 2025 (Algorithms 1, 2, 3, 5), corrected; winsorised, ramp, one test: ours",
        example={"radius": 1.0},
        meanings={
            **TEST_MEANINGS,
            **PHASE_MEANINGS,
            "score_sensitivity": "most that one user can change the score",
            "sup_sensitivity_of_a_step": "most that one user can move a robust gradient (sup norm)",
            "predicted_risk_bound": "bound on the excess risk that the plan minimised",
            "smoothness": "certified bound on the Hessian's row sums",
            "gradient_bound": "certified bound on a gradient's coordinates",
            **CONDITIONS,
            **CORRECTIONS,
            "printed_threshold": PRINTED,
        },
        notes={"phase": PHASE_FACT, **TEST_NOTES},
        **PHASE_ABOUT,
    )

    without_certificate: bool = Field(False, description="Run a loss without certificate, reported as no guarantee.")

    def scheme(self, given: Given) -> PhaseRounds:
        certificate, root = given.problem.certificate, math.sqrt(given.dimension)
        self.check_estimate()
        if self.threshold == "printed" and self.constants != "paper":
            raise BadInput(
                "strategy.threshold = 'printed': it is for the paper's batches; use strategy.constants = 'paper', or "
                "leave strategy.threshold out"
            )
        check_contractive(given, self.learning_rate, opted_out=self.without_certificate, needs={"radius": self.radius})
        setting = self._setting(given)
        chosen, users_needed = self._chosen(setting)
        projects, last = certificate.smoothness != 0 or self.constants == "paper", chosen.phases[-1]
        bound = certificate.lipschitz or math.inf
        signal = given.problem.domain.radius if projects else bound * last.learning_rate * (last.steps + 1) / 2
        return phase_rounds(
            given,
            chosen.batch,
            chosen.phases,
            chosen.cost,
            _numbers(setting, chosen, bound) | (paper_numbers(setting, chosen) if self.constants == "paper" else {}),
            projects=projects,
            rounding=_rounding(given.problem, chosen) if given.secure else 0.0,
            signal=signal * root,
            reach=signal * root,
            users_needed=users_needed,
            pass_probability=chosen.pass_probability,
            warnings=tuple(_warnings(setting, chosen)),
        )

    def _setting(self, given: Given) -> LocalizedSetting:
        certificate, radius, samples = given.problem.certificate, given.problem.domain.radius, given.public.min_samples
        return LocalizedSetting(
            users=given.users,
            samples=samples,
            dimension=given.dimension,
            user_deviation=self.user_deviation(self.deviation or certificate.lipschitz or 1.0, samples),
            certificate=certificate,
            domain_radius=radius if math.isfinite(radius) else 1.0,
            epsilon=given.privacy.epsilon,
            delta=given.privacy.delta,
            options=self,
            # The paper divides by log m; sums of its steps shrink only if that exceeds 2 (B.9).
            phase_base=self.phase_base or max(math.log(samples), 0.0 if self.constants == "paper" else 4.0),
        )

    def _chosen(self, setting: LocalizedSetting) -> tuple[LocalizedPlan, int]:
        if self.constants == "paper":
            return paper_plan(setting), paper_users(setting)
        chosen = search(setting)
        if chosen is None:
            raise PopulationTooSmall(refusal(setting))
        return chosen, fewest_users(setting) or setting.users


def _warnings(setting: LocalizedSetting, chosen: LocalizedPlan) -> Iterator[str]:
    if chosen.pass_probability < 0.5:
        yield (
            "that honest users pass all tests is proven with a probability of "
            f"{chosen.pass_probability:.2g} alone, under the declared deviation: raise strategy.radius or "
            "strategy.batch"
        )
    pairs = chosen.batch**2 / 2 * sum(phase.steps for phase in chosen.phases)
    if setting.options.kernel == "exp" and pairs * setting.dimension > COMPARISONS:
        yield (
            f"scores compare {pairs:.2g} pairs of users in {setting.dimension} coordinates, at some hundred million "
            "comparisons a second: give a smaller strategy.batch to compare fewer"
        )


def _rounding(problem: Problem, chosen: LocalizedPlan) -> float:
    """Return how much float64 steps can enlarge sensitivities of releases and scores, relatively (see the class)."""
    estimator, batch = chosen.estimator, chosen.batch
    iterates = max(
        phase_rounding(
            problem,
            steps=phase.steps,
            rate=phase.learning_rate,
            sensitivity=estimator.sup_sensitivity(batch),
            error=estimator.error(batch),
            longest=REACH * estimator.radius + estimator.clip_width,
        )
        for phase in chosen.phases
    )
    return iterates + 4 * batch * gradient_rounding(problem) / chosen.kernel.radius


def _numbers(setting: LocalizedSetting, chosen: LocalizedPlan, bound: float) -> dict[str, Number]:
    phases, test = chosen.phases, chosen.phases[0].test
    assert test is not None
    return {
        "batch": chosen.batch,
        "phases": len(phases),
        "steps": ", ".join(str(phase.steps) for phase in phases),
        "learning_rate": ", ".join(f"{phase.learning_rate:.3g}" for phase in phases),
        "radius": chosen.kernel.radius,
        "user_deviation": setting.user_deviation,
        "threshold": test.threshold,
        "score_sensitivity": test.sensitivity,
        "test_epsilon": chosen.cost.pure_epsilon,
        "test_delta": chosen.cost.failure_delta,
        "noise_multiplier": chosen.cost.noise_multiplier,
        "sup_sensitivity_of_a_step": chosen.estimator.sup_sensitivity(chosen.batch),
        "noise_deviation": ", ".join(f"{phase.mechanism.standard_deviation:.3g}" for phase in phases),
        "predicted_risk_bound": chosen.predicted_risk,
        "smoothness": setting.smoothness,
        "gradient_bound": bound,
    }
