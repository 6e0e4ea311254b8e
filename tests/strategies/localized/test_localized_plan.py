"""The plan: all numbers before any data, a budget spent exactly, and refusals that name what would do."""

import math
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import federation_of, make, run

from strategies import LocalizedRobustSGD
from strategies.baselines.robust.paper import CORRECTIONS
from strategies.baselines.robust.search import learning_rates, phase_users
from strategies.robust.passing import KERNELS, TESTS, expected_kernel, guaranteed_score, needed_ratio, needed_score
from userdp.accounting import epsilon_of
from userdp.errors import BadInput, MissingAssumption, PopulationTooSmall
from userdp.estimators import concentration_score
from userdp.problems import Linear, Quadratic, Squared

PAPER = {"estimate": "debiased", "statistic": "median", "kernel": "exp", "test": "above_threshold"}
VARIANTS = {
    "ours": {},
    "paper": PAPER,
    "trimmed": PAPER | {"statistic": "trimmed_mean"},
    "ramp": PAPER | {"kernel": "ramp"},
    "early": {"test": "above_threshold"},
}
PROBLEMS = {"linear": Linear(2, 1.0), "quadratic": Quadratic(2, 1.0, 1.0)}
each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def plan_for(problem, users=6000, epsilon=1.0, delta=1e-6, facts=None, **options):
    return make(LocalizedRobustSGD, problem, users, epsilon, delta, facts=facts or {"min_samples": 50}, **options)


# --- The budget ----------------------------------------------------------------------------------------------------


@pytest.mark.sweep(3)
@each_variant
@each_problem
@pytest.mark.parametrize("epsilon", [0.7, 4.0])
def test_the_plan_spends_the_budget_and_not_more(variant, problem, epsilon):
    method = plan_for(problem, epsilon=epsilon, **variant)
    plan, cost = method.plan, method.program.own.ledger.cost
    assert 0.99 * epsilon < plan.guarantee.epsilon <= epsilon
    assert plan.guarantee.epsilon == epsilon_of(cost, 1, 1e-6)
    assert plan.guarantee.holds
    assert plan.pass_probability >= 0.99 - 1e-9
    for phase in method.scheme.phases:
        assert phase.test.cost.pure_epsilon == cost.pure_epsilon
        assert phase.test.cost.failure_delta == cost.failure_delta
        step = phase.learning_rate * phase.gradient.sup_sensitivity(plan.cohort)
        assert phase.mechanism.l2_sensitivity == pytest.approx(math.sqrt(2) * step)
        assert phase.mechanism.noise_multiplier == cost.noise_multiplier
        moved = 2 * (problem.certificate.smoothness or 0) * step
        assert phase.test.movement == pytest.approx(moved if phase.steps > 1 else 0.0)
        assert phase.test.kernel.radius == phase.gradient.radius
        assert problem.certificate.smoothness == 0 or phase.learning_rate <= 2 / problem.certificate.smoothness


@pytest.mark.parametrize("phases", [1, 2, 3, 5])
def test_the_users_of_all_phases_are_the_users(phases):
    for users in (100, 101, 1023):
        sizes = phase_users(users, phases)
        assert (len(sizes), sum(sizes)) == (phases, users)
        assert all(first >= second for first, second in pairwise(sizes[:-1]))


# --- Refusals ------------------------------------------------------------------------------------------------------


def refusal(problem, users, **options):
    with pytest.raises(PopulationTooSmall) as error:
        plan_for(problem, users, **options)
    return str(error.value)


@pytest.mark.sweep(4)
@each_variant
@each_problem
@pytest.mark.parametrize("options", [{}, {"phases": 2}, {"radius": 0.5}, {"batch": 2500}], ids=str)
def test_a_refused_population_learns_how_many_users_are_enough(variant, problem, options):
    options = variant | options
    message = refusal(problem, 60, **options)
    enough = int(re.search(r"these settings take (\d+) users", message).group(1))
    assert message.startswith("data.users = 60: too few for")
    plan = plan_for(problem, enough, **options).plan
    assert plan.users_needed == enough
    assert refusal(problem, enough - 1, **options).startswith(f"data.users = {enough - 1}: too few")


@pytest.mark.sweep(1)
@each_variant
def test_a_refused_batch_learns_which_batch_is_enough(variant):
    message = refusal(PROBLEMS["quadratic"], 20_000, batch=60, **variant)
    enough = int(re.search(r"use strategy.batch = (\d+)", message).group(1))
    assert message.startswith("strategy.batch = 60: honest users would not pass")
    assert plan_for(PROBLEMS["quadratic"], 20_000, batch=enough, **variant).plan.cohort == enough
    with pytest.raises(PopulationTooSmall):
        plan_for(PROBLEMS["quadratic"], 20_000, batch=enough - 1, **variant)


def test_a_batch_that_nothing_can_help_is_pointed_elsewhere():
    assert "use dp_fed_sgd" in refusal(PROBLEMS["quadratic"], 190, batch=150)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("dimension", "many"), [(10, False), (1000, True)])
def test_no_plan_is_refused_for_how_long_its_scores_take(dimension, many):
    """They are computed in tiles; the plan warns where they are many."""
    plan = plan_for(Quadratic(dimension, 1.0, 1.0), 100_000, **PAPER).plan
    assert plan.pass_probability >= 0.99 - 1e-9
    assert any("scores compare" in text for text in plan.warnings) == many


def test_a_step_at_which_no_number_of_users_passes_is_refused_by_name():
    message = refusal(PROBLEMS["quadratic"], 20_000, learning_rate=2.0, phases=3, **PAPER)
    assert message.startswith("data.users = 20000: no number of users would pass")
    assert "lower strategy.learning_rate" in message


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_search_tries_steps_down_to_the_papers_and_beyond(epsilon):
    setting = plan_for(PROBLEMS["quadratic"], 400_000, epsilon, constants="paper", **PAPER)
    printed = setting.scheme.phases[0].learning_rate
    assert learning_rates(SimpleNamespace(options=SimpleNamespace(learning_rate=None), smoothness=1.0))[-1] < printed


def test_the_search_never_promises_less_than_a_model_that_hardly_moves():
    """Shorter steps are tried as long as they help: what it finds is no edge of its grid."""
    problem, pieces = Quadratic(4, 6.0, 1.0), PAPER | {"statistic": "trimmed_mean", "deviation": 1.0}
    method = plan_for(problem, 20_000, **pieces)
    rate, risk = method.scheme.phases[0].learning_rate, method.plan.numbers["predicted_risk_bound"]
    assert risk < 4 / 2  # that of the initial model, at most
    for factor in (1 / 2, 2):
        other = plan_for(problem, 20_000, learning_rate=rate * factor, **pieces)
        assert other.plan.numbers["predicted_risk_bound"] >= risk


@pytest.mark.parametrize("users", [1, 5, 6])
def test_fewer_users_than_the_estimators_proof_takes_are_refused(users):
    assert "too few" in refusal(PROBLEMS["linear"], users, epsilon=1e4, delta=1e-3)


@pytest.mark.parametrize("constants", ["paper", "calibrated"])
def test_a_step_beyond_two_over_smoothness_is_refused_by_name(constants):
    with pytest.raises(BadInput, match=r"strategy.learning_rate = 2.01: must be at most 2 / smoothness = 2"):
        plan_for(PROBLEMS["quadratic"], 20_000, learning_rate=2.01, constants=constants)
    assert plan_for(PROBLEMS["quadratic"], 20_000, learning_rate=2.0).plan.guarantee.holds
    assert plan_for(PROBLEMS["linear"], 20_000, learning_rate=1e9).plan.guarantee.holds


# --- Corner cases --------------------------------------------------------------------------------------------------


@pytest.mark.sweep(4)
@each_variant
@pytest.mark.parametrize(("dimension", "users", "batch"), [(1, 2601, None), (1, 2600, 2600), (3, 2601, 2601)])
def test_one_dimension_one_step_odd_and_even_batches(variant, dimension, users, batch):
    method = plan_for(Quadratic(dimension, 1.0, 1.0), users, batch=batch, phases=1, radius=1.0, **variant)
    assert batch is None or (method.plan.rounds, method.plan.cohort) == (1, batch)
    result = run(method, federation_of(np.full((users, dimension), 0.5)))
    assert result.rounds[-1].facts["passed"] == 1.0


def test_a_domain_without_end_is_planned_for_as_if_its_radius_were_one():
    problem = Quadratic(2, 1.0, math.inf)
    with pytest.raises(MissingAssumption, match=r"A2 \(bounded gradient, sup norm\)"):
        plan_for(problem)
    method = plan_for(problem, without_certificate=True, radius=1.0, learning_rate=0.5)
    assert method.plan.signal == math.inf
    assert not method.plan.drowned


# --- Without a certificate -----------------------------------------------------------------------------------------


def test_a_loss_without_a_certificate_is_refused_and_the_opt_out_promises_nothing():
    problem = Squared(2, 2.0, 1.0, low=-1.0, high=1.0)
    with pytest.raises(MissingAssumption, match=r"missing: A4 .*strategy.without_certificate = true"):
        plan_for(problem)
    with pytest.raises(BadInput, match=r"strategy.radius and strategy.learning_rate must be given"):
        plan_for(problem, without_certificate=True)
    method = plan_for(problem, 600, without_certificate=True, radius=1.0, learning_rate=0.1)
    assert not method.plan.guarantee.holds
    federation = federation_of(np.full((600, 2), 0.5), targets=np.zeros(600))
    result = run(method, federation)
    assert result.guarantee.epsilon == math.inf
    assert result.guarantee.as_dict()["epsilon"] is None
    assert result.guarantee.sentence() == "no privacy guarantee: the loss lacks A4 (diagonally dominant Hessian)"
    assert all(record.spent_epsilon is None for record in result.rounds)


# --- The paper's constants -----------------------------------------------------------------------------------------


def paper(problem, users, epsilon=1.0, delta=1e-6, samples=50, **options):
    facts = {"min_samples": samples}
    return plan_for(problem, users, epsilon, delta, facts=facts, constants="paper", **(PAPER | options))


@each_problem
@pytest.mark.parametrize("users", [40_000, 9 * 2951])
def test_the_papers_constants_by_hand(problem, users):
    n, d, m, delta = users, 2, 50, 1e-6
    method = paper(problem, n)
    phases, batch = method.scheme.phases, math.ceil(100 * math.log(n * m * d / delta))
    assert method.plan.cohort == batch
    assert len(phases) == math.ceil(math.log2(n / batch))
    assert [phase.steps for phase in phases] == [max(1, int(n / 2**s / batch)) for s in range(1, len(phases) + 1)]
    assert sum(phase.steps for phase in phases) * batch <= n
    bound, size = problem.certificate.lipschitz, math.log(n * m * d)
    omega = (n * m * d) ** -3.0
    assert method.plan.numbers["radius"] == pytest.approx(bound * math.log(n * m * d / omega) / math.sqrt(m))
    eta = min(batch * math.sqrt(m / n), math.sqrt(m) / math.sqrt(d * math.log(1e6) * size)) / bound
    if problem.certificate.smoothness:
        eta = min(eta, 1 / (6 * batch))
    for s, phase in enumerate(phases, start=1):
        assert phase.learning_rate == pytest.approx(eta * math.log(m) ** -s)
        assert (phase.test.epsilon, phase.test.delta) == (0.5, delta / 2)
        moved = 2 * (batch - 1) / batch
        assert (phase.test.threshold_scale, phase.test.query_scale) == (2 / 0.5 * moved, 4 / 0.5 * moved)
    assert 0.99 < method.plan.guarantee.epsilon <= 1
    assert method.plan.users_needed <= n
    # Its radius is many times what users that differ as much as declared need.
    assert method.plan.pass_probability > 0.9


def test_the_last_phase_has_a_whole_batch_and_the_plan_says_so():
    batch = 2900
    for users, last in [(16 * batch, None), (12 * batch, "2,900 for 2,175")]:
        plan = paper(PROBLEMS["quadratic"], users, batch=batch).plan
        assert plan.numbers["phases"] == 4
        assert plan.numbers.get("correction_last_phase") == last


def test_users_of_two_samples_have_no_shrinking_steps():
    with pytest.raises(BadInput, match=r"divided by log m = 0\.693 a phase, m = 2"):
        paper(PROBLEMS["linear"], 40_000, samples=2)
    assert paper(PROBLEMS["linear"], 40_000, samples=2, phase_base=3.0).plan.guarantee.holds


# --- Its threshold -------------------------------------------------------------------------------------------------


@each_problem
def test_the_printed_threshold_is_private_with_the_papers_batches(problem):
    method = paper(problem, 40_000, threshold="printed")
    for phase in method.scheme.phases:
        test, batch = phase.test, phase.test.batch
        assert test.threshold == 0.9 * batch + 2 * math.log(phase.steps / 1e-6)
        assert test.threshold >= test.least_threshold
        worst = test.kernel.unaligned_bound(batch) + 2 * (batch - 1) / batch
        assert test.pass_probability(worst, 1) <= test.delta
        assert test.pass_probability([worst] + [float(batch)] * 3) <= test.delta
    assert method.plan.numbers["threshold"] == method.plan.numbers["printed_threshold"]
    assert method.plan.guarantee == paper(problem, 40_000).plan.guarantee


def test_disagreeing_users_and_their_neighbours_hardly_ever_pass_the_printed_threshold():
    """Brute force over batches that are hardly not aligned, with one user moved anywhere."""
    test = paper(PROBLEMS["linear"], 40_000, threshold="printed").scheme.phases[0].test
    batch, rho = test.batch, test.kernel.radius
    rng, most = np.random.default_rng(0), 2 * test.batch // 3
    for _ in range(2):
        rows = np.zeros((batch, 2))
        rows[most:] = rho * rng.choice([-1.0, 1.0], size=(batch - most, 2)) * rng.uniform(1, 1.001, (batch - most, 1))
        for place in (0.0, 1.0, 5.0):
            rows[-1] = rho * place
            assert test.pass_probability(concentration_score(rows, test.kernel)) <= test.delta


def test_the_printed_threshold_is_refused_where_users_who_disagree_could_pass():
    """At the batch that the lemma asks, 100 log(T / delta) / epsilon, it is not private; at Theorem 3.1's it is."""
    lemma = math.ceil(100 * math.log(1 / 1e-6))
    users = 2 * lemma  # one phase of one step
    with pytest.raises(BadInput, match=r"strategy.threshold = 'printed': .* use threshold = 'exact', or a larger"):
        paper(PROBLEMS["linear"], users, batch=lemma, threshold="printed")
    plan = paper(PROBLEMS["linear"], users, batch=lemma, failure=0.2).plan
    assert plan.numbers["printed_threshold"] < plan.numbers["threshold"]
    with pytest.raises(BadInput, match="it is for the paper's batches"):
        plan_for(PROBLEMS["linear"], 40_000, threshold="printed")


# --- Its conditions ------------------------------------------------------------------------------------------------


def test_a_plan_says_which_conditions_hold_and_by_how_much_others_fail():
    held = paper(PROBLEMS["quadratic"], 40_000).plan.numbers
    conditions = {name: told for name, told in held.items() if name.startswith("condition_")}
    assert len(conditions) == 7
    assert all(told.startswith("held: ") for told in conditions.values())
    assert held["condition_n"] == f"held: 40,000 >= {math.log(40_000 * 2 / 1e-6) ** 2:.4g}"
    size = math.log(40_000 * 50 * 2)
    most = math.sqrt(40_000) / (math.sqrt(50) * (size + math.log(1e6))) + math.sqrt(2 * math.log(1e6) * size / 50)
    assert held["condition_beta"] == f"held: 1 <= {2 * most:.4g}"  # G is 2
    rate = {"learning_rate": 1e-4, "phase_base": 2.0}
    failed = paper(PROBLEMS["quadratic"], 40_000, 2.0, samples=4, batch=4000, **rate).plan.numbers
    assert failed["condition_budget"] == "not held: 2, too large by a factor of 2"
    assert failed["condition_log_m"] == "not held: 1.386, too small by a factor of 1.44"
    assert failed["condition_step"] == "not held: 4.8, too large by a factor of 4.8"
    assert failed["condition_batch"].startswith("held")
    few = paper(Quadratic(2, 1.0, 1.0), 40_000, batch=2000).plan.numbers
    needed = 100 * (size + math.log(1e6))
    assert few["condition_batch"] == f"not held: 2,000, too small by a factor of {needed / 2000:.3g}"


def test_a_plan_names_each_correction_once():
    numbers = paper(PROBLEMS["quadratic"], 40_000, statistic="trimmed_mean").plan.numbers
    named = [name for name in numbers if name.startswith("correction_")]
    assert named == list(CORRECTIONS)
    median = paper(PROBLEMS["linear"], 40_000).plan.numbers
    assert "correction_trim" not in median
    assert "correction_eta" not in median  # a linear loss has no condition on it
    assert not [name for name in plan_for(PROBLEMS["linear"]).plan.numbers if name.startswith(("corr", "cond"))]


def test_the_papers_step_keeps_the_movement_of_scores_below_one_users_replacement():
    """Its condition, corrected to 1/6: then the test is calibrated to the replacement and not to the movement."""
    method = paper(PROBLEMS["quadratic"], 40_000)
    for phase in method.scheme.phases:
        assert phase.test.sensitivity == pytest.approx(2 * (phase.test.batch - 1) / phase.test.batch)


@each_problem
def test_users_that_the_papers_constants_take_are_named_and_are_enough(problem):
    with pytest.raises(PopulationTooSmall, match=r"two batches of \d+ users at least; bring (\d+) users") as error:
        paper(problem, 500)
    enough = int(re.search(r"bring (\d+) users", str(error.value)).group(1))
    assert paper(problem, enough).plan.users_needed == enough
    with pytest.raises(PopulationTooSmall, match=r"two batches of \d+ users at least"):
        paper(problem, enough - 5)


def test_more_phases_than_the_users_fill_are_refused():
    with pytest.raises(PopulationTooSmall, match=r"strategy.phases = 9: the last phase would have 78 of data.users"):
        paper(PROBLEMS["linear"], 40_000, phases=9)


def test_the_papers_batch_may_be_too_small_to_be_private():
    with pytest.raises(PopulationTooSmall, match="cannot pass a private test"):
        paper(PROBLEMS["linear"], 40_000, batch=200)


# --- The bounds that the plan rests on -----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["exp", "ramp"])
@pytest.mark.parametrize(("dimension", "ratio"), [(1, 4.0), (10, 8.0), (50, 20.0)])
def test_the_expected_kernel_is_a_lower_bound_on_a_monte_carlo_mean(kernel, dimension, ratio):

    q = np.random.default_rng(0).normal(size=(2, 40_000, dimension))
    values = KERNELS[kernel](ratio).values(np.abs(q[0] - q[1]).max(axis=1))
    assert expected_kernel(kernel, ratio, dimension) <= values.mean() + 4 * values.std() / 200


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kernel", ["exp", "ramp"])
def test_gaussian_users_reach_the_guaranteed_score_as_often_as_promised(kernel):

    batch, dimension, steps, failure, runs = 400, 3, 5, 0.2, 60
    needed = needed_score("min_score", kernel, batch, 0.0, 2.0, 1e-4, steps, 0.01)
    ratio = needed_ratio(kernel, batch, dimension, steps, failure, needed)
    assert guaranteed_score(kernel, ratio, batch, dimension, steps, failure) >= needed
    rng, phi = np.random.default_rng(1), KERNELS[kernel](ratio)
    worst = [
        min(concentration_score(rng.normal(size=(batch, dimension)), phi) for _ in range(steps)) for _ in range(runs)
    ]
    # A union bound promises 80 of 100; fewer than 70 would refute it at confidence 0.97.
    assert np.mean(np.array(worst) >= needed) >= 0.7


def test_tests_that_no_score_passes_need_no_ratio():
    assert needed_score("min_score", "ramp", 50, 0.0, 0.1, 1e-6, 1, 0.01) is None
    assert needed_ratio("exp", 20, 3, 1, 1e-6, 19.0) is None


@pytest.mark.parametrize("test", ["min_score", "above_threshold"])
def test_the_needed_score_is_passed_with_the_promised_probability_and_hardly_more(test):

    score = needed_score(test, "ramp", 2000, 0.0, 0.5, 1e-6, 7, 0.01)
    chosen = TESTS[test](batch=2000, kernel=KERNELS["ramp"](1.0), epsilon=0.5, delta=1e-6)
    assert 0.99 <= chosen.pass_probability(score, 7) < 0.9901
