"""Plans tell the truth: what they predict of the model, what they warn of, and what has to be insisted on."""

import math

import numpy as np
import pytest
from any_strategy import options_of, problem_of
from examples import SHIPPED
from helpers import federation_of, final, make, run
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.config.run_config import load_config, parse_config
from simulations.runs.build import insist, make_plan
from strategies import STRATEGIES, AveragedClipping, DPFedSGD, IterativeMeanSGD, SampleClippedSGD
from userdp.errors import BadInput
from userdp.problems import Bernoulli, Huber, Logistic, Quadratic, SparseSquared, Squared
from userdp.problems.forecast import HOPELESS, Forecast
from userdp.problems.noise_paths import ExcessShare, NoisyPhase, NoisyRelease, NoisySteps, Phases
from userdp.problems.separable import Linear

WORSE = "Doing nothing is better than this run"
MAYBE = "Doing nothing may be as good"
ONE_ROUND = "the budget is spent and the model stays as it is"


def said(plan, sentence):
    return any(sentence in warning for warning in plan.warnings)


# --- The cases that were silent --------------------------------------------------------------------------------------


LOCALIZED = 'strategy={kind="localized_robust_sgd", '
SILENT = {
    "the paper's choices": (
        "robust-mean",
        [LOCALIZED + 'estimate="debiased", kernel="exp", test="above_threshold", learning_rate=0.01}'],
        WORSE,
    ),
    "the same, searched": (
        "robust-mean",
        [LOCALIZED + 'estimate="debiased", kernel="exp", test="above_threshold"}'],
        "the steps are too few or too short",
    ),
    "on the hard instance": (
        "hard-instance",
        [f"strategy.{one}" for one in ("estimate=debiased", "kernel=exp", "test=above_threshold")],
        WORSE,
    ),
    "its constants": ("robust-mean", [LOCALIZED + 'constants="paper"}'], "the steps are too few or too short"),
    "few users": (
        "robust-mean",
        ['strategy={kind="robust_rounds", rounds=10}', "data.users=4000", "privacy.epsilon=4"],
        MAYBE,
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_was_silent_is_told_and_the_papers_choices_have_to_be_insisted_on(case):
    config, overrides, sentence = SILENT[case]
    plan = make_plan(load_config(SHIPPED[config], overrides))
    assert said(plan, sentence)
    assert case != "the paper's choices" or plan.forecast.hopeless
    assert case != "on the hard instance" or plan.forecast.noise > plan.forecast.reach


def test_a_logistic_loss_with_a_ridge_of_two_and_a_half_has_to_be_insisted_on():
    raw = {
        "name": "ridge",
        "problem": {"kind": "logistic", "radius": 5.0, "ridge": 2.5},
        "data": {
            "kind": "synthetic",
            "population": "logistic_regression",
            "users": 1000,
            "dimension": 10,
            "samples_per_user": 8,
            "feature_norm": 4.0,
            "parameter_norm": 3.0,
        },
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "strategy": {"kind": "localized_robust_sgd"},
    }
    plan = make_plan(parse_config(raw))
    assert said(plan, WORSE)
    assert plan.forecast.hopeless


@pytest.mark.parametrize("strategy", [IterativeMeanSGD, SampleClippedSGD, AveragedClipping])
def test_one_round_and_averaged_output_release_the_start_and_the_plan_says_so(strategy):
    facts = {"min_samples": 1, "max_samples": 2, "samples": 800}
    options = {"rounds": 1, "output": "average", "clip_norm": 1.0, "learning_rate": 0.5}
    method = make(strategy, Quadratic(2, 1.0, 1.0), 400, facts=facts, **options)
    assert said(method.plan, ONE_ROUND)
    np.testing.assert_array_equal(final(run(method, federation_of(np.ones((400, 2, 2))))), [0.0, 0.0])
    last = make(strategy, Quadratic(2, 1.0, 1.0), 400, facts=facts, **options | {"output": "last"})
    assert not said(last.plan, ONE_ROUND)


@pytest.mark.parametrize(
    "name", ["sample_clipped_sgd", "iterative_mean_sgd", "averaged_clipping", "averaged_clipping_restarted"]
)
def test_the_papers_number_of_rounds_capped_at_two_hundred_is_told(name):
    facts = {"min_samples": 1, "max_samples": 2, "samples": 100_000}
    options = {"averaged_clipping": {"batch": 100}, "averaged_clipping_restarted": {"batches": "full"}}.get(name, {})
    kind = STRATEGIES[name]

    def warnings(**more):
        method = make(kind, Quadratic(2, 1.0, 1.0), 50_000, 8.0, 1e-6, unit="sample", facts=facts, **options | more)
        return "; ".join(method.plan.warnings)

    assert "caps them at 200" in warnings()
    assert "caps them" not in warnings(rounds=200)


# --- Whether predictions are any good --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["dp_fed_sgd", "adaptive_clipping", "dp_ftrl", "robust_rounds", "localized_robust_sgd"]
)
@pytest.mark.parametrize("users", [1500, 8000])
def test_predicted_excess_risk_is_that_of_a_run_within_a_factor(kind, users):
    """Half of the users lie at either side of 0.6, which the stand-in cannot know."""
    dimension, spread = 20, np.random.default_rng(3).normal(size=(users, 20)) * 0.1
    problem = Quadratic(dimension, 3.0, 1.0)
    options = {"deviation": 0.1} if "robust" in kind else {}
    method = make(STRATEGIES[kind], problem, users, 2.0, 1e-6, **options)
    model = final(run(method, federation_of(0.6 + spread)))
    excess = float(((model - 0.6 - spread.mean(axis=0)) ** 2).sum() / 2)
    predicted = method.plan.forecast.excess
    assert predicted / 12 < excess + 1e-3 < 12 * predicted + 2e-3


@settings(max_examples=50)
@given(st.integers(1, 40), st.floats(0.01, 1.5), st.floats(0, 1), st.booleans(), st.sampled_from([0.0, 0.1, 0.7, 1.0]))
def test_the_noise_of_a_course_is_that_of_its_recursion(steps, rate, deviation, averaged, curvature):
    """The recursion is followed here by the covariance of (model, sum of the models at which gradients were taken)."""
    course = NoisySteps(steps=steps, rate=rate, deviation=deviation, averaged=averaged)
    pull = min(rate * curvature, 1.0)
    step = np.array([[1 - pull, 0.0], [1.0, 1.0]])
    noise = np.diag([(rate * deviation) ** 2, 0.0])
    covariance = np.zeros((2, 2))
    for _ in range(steps):
        covariance = step @ covariance @ step.T + noise
    expected = math.sqrt(covariance[1, 1]) / steps if averaged else math.sqrt(covariance[0, 0])
    assert course.noise(curvature) == pytest.approx(expected, abs=1e-9)


def test_what_steps_leave_undone_by_hand():
    assert NoisySteps(steps=3, rate=0.5, deviation=0.0).left(8.0, 1.0, 1) == pytest.approx(1.0)
    assert NoisySteps(steps=3, rate=0.5, deviation=0.0, longest=2.0).left(8.0, 1.0, 1) == pytest.approx(5.0)
    assert NoisySteps(steps=2, rate=0.5, deviation=0.0, averaged=True).left(8.0, 1.0, 1) == pytest.approx(6.0)
    local = NoisySteps(steps=1, rate=1.0, deviation=0.0, local_steps=2, local_rate=0.5)
    assert local.left(8.0, 1.0, 1) == pytest.approx(2.0)
    assert NoisyRelease(deviation=0.0, reach=3.0).left(8.0, 1.0, 1) == pytest.approx(5.0)
    phase = NoisyPhase(steps=2, rate=0.5, deviation=0.1)
    # The average of what one and two steps leave: (4 + 2) / 2, and that again.
    assert Phases((phase, phase)).left(8.0, 1.0, 1) == pytest.approx(8.0 * 0.375**2)
    assert Phases((phase, phase)).noise(1.0) == pytest.approx(math.hypot(0.1 * 0.375, 0.1))


def test_lasting_noise_adds_up():
    course = NoisySteps(steps=4, rate=0.5, deviation=0.2, shared_noise=True)
    assert course.noise(0.0) == pytest.approx(4 * 0.5 * 0.2)


@pytest.mark.parametrize(
    "problem",
    [
        Quadratic(4, 2.0, 1.0),
        Bernoulli(4, 3.0),
        Huber(4, 2.0, 1.0, 0.5),
        Linear(4, 2.0, 1.0),
        Logistic(4, 2.0, 3.0, intercept=True),
        Squared(4, 2.0, 3.0, low=-1.0, high=2.0),
    ],
    ids=lambda problem: problem.name,
)
def test_no_data_within_the_bounds_make_the_start_worse_than_its_bound(problem):
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rng.uniform(-1, 1, size=(30, 4)) * rng.uniform(0, 1)
        targets = rng.choice([0.0, 1.0], size=30)
        block, _ = problem.bound(federation_of(rows, targets=targets).block(np.arange(30)))
        points = rng.uniform(-1, 1, size=(50, problem.dimension)) * problem.domain.radius
        start = problem.sample_losses(problem.initial(), block).mean()
        lowest = min(problem.sample_losses(point, block).mean() for point in points)
        assert start - lowest <= problem.landscape.start * (1 + 1e-9)


@pytest.mark.parametrize(
    "problem",
    [Bernoulli(4, 3.0), Huber(4, 2.0, 1.0, 0.5), Logistic(4, 2.0, 3.0), Squared(4, 2.0, 3.0, low=-1.0, high=2.0)],
    ids=lambda problem: problem.name,
)
@pytest.mark.parametrize("deviation", [0.05, 0.5])
def test_noise_on_the_best_model_costs_no_more_than_its_bound(problem, deviation):
    rng = np.random.default_rng(1)
    rows = rng.uniform(-1, 1, size=(200, 4))
    block, _ = problem.bound(federation_of(rows, targets=rng.choice([0.0, 1.0], size=200)).block(np.arange(200)))
    x = problem.initial()
    for _ in range(300):
        x = problem.domain.project(x - 0.3 * problem.user_gradients(x, block).mean(axis=0))
    noisy = [problem.sample_losses(x + deviation * rng.normal(size=4), block).mean() for _ in range(400)]
    gain = np.array(noisy) - problem.sample_losses(x, block).mean()
    assert gain.mean() - 4 * gain.std() / 20 <= problem.landscape.of_noise(deviation)


# --- What follows from them ------------------------------------------------------------------------------------------


def test_a_run_that_is_worse_than_doing_nothing_asks_and_runs_when_insisted_on(tmp_path):
    hopeless = 'strategy={kind="local_dp", rounds=20}'
    overrides = [hopeless, "data.users=400", "privacy.epsilon=0.5", "problem.radius=1.0"]
    config = load_config(SHIPPED["quickstart"], overrides)
    with pytest.raises(BadInput, match=r"--anyway or output\.anyway"):
        insist(config, make_plan(config))
    insisted = load_config(SHIPPED["quickstart"], [*overrides, "output.anyway=true"])
    insist(insisted, make_plan(insisted))


def test_where_nothing_is_known_of_a_loss_noise_is_held_against_the_longest_way():
    problem = Quadratic(3, math.inf, math.inf)
    assert problem.landscape.start == math.inf
    quiet = Forecast.of(problem, NoisySteps(steps=4, rate=0.5, deviation=0.01, longest=1.0))
    loud = Forecast.of(problem, NoisySteps(steps=4, rate=0.5, deviation=10.0, longest=1.0))
    assert quiet.excess is None
    assert quiet.warnings() == ()
    assert "longer than the longest way" in loud.warnings()[0]
    assert not loud.hopeless


@pytest.mark.parametrize(
    ("problem", "start"),
    [
        (Squared(10, math.inf, 5.0, low=-math.inf, high=math.inf), 0.5),
        (Logistic(10, math.inf, 5.0), math.log(2)),
        (SparseSquared(10, 1.0, 2, 1.0, low=-math.inf, high=math.inf), 0.5),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_has_no_declared_bounds_is_forecast_as_if_of_size_one_and_refuses_nothing(problem, start):
    assert problem.landscape.assumed
    assert problem.landscape.start == start
    loud = Forecast.of(problem, NoisySteps(steps=100, rate=0.1, deviation=10.0, longest=20.0))
    assert "without declared bounds of size one. Doing nothing may be as good" in loud.warnings()[0]
    assert loud.excess >= HOPELESS * start
    assert not loud.hopeless
    declared = Forecast.of(Squared(10, 3.0, 5.0, low=-1.0, high=1.0), NoisySteps(steps=100, rate=0.1, deviation=10.0))
    assert declared.hopeless
    assert "size one" not in declared.warnings()[0]


def test_a_forecast_that_is_a_share_of_what_the_start_can_lose_refuses_whatever_the_bounds():
    problem = Squared(10, math.inf, 5.0, low=-math.inf, high=math.inf)
    assert Forecast.of(problem, ExcessShare(share=3.0)).hopeless
    assert not Forecast.of(problem, ExcessShare(share=1.0)).hopeless


def test_a_good_plan_is_silent():
    method = make(DPFedSGD, Quadratic(10, 1.0, 1.0), 20_000, 2.0)
    assert method.plan.warnings == ()
    assert method.plan.forecast.excess < 0.01 * method.plan.forecast.start
    assert Forecast.of(method.problem, ExcessShare(share=0.1)).excess == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["auto", "dp_fed_avg", "local_dp", "stopped_sgd", "output_perturbation"])
def test_strategies_of_every_family_predict_something(name):
    facts, kind = {"min_samples": 1, "max_samples": 1, "samples": 400}, STRATEGIES[name]
    method = make(kind, problem_of(name), 400, 8.0, 1e-3, unit=kind.about.units[0], facts=facts, **options_of(name))
    assert method.plan.forecast.excess > 0
    assert method.plan.as_dict()["forecast"]["predicted_excess"] == method.plan.forecast.excess


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), size=st.floats(0.01, 1.0))
def test_the_best_constant_loses_no_more_than_a_plan_says_of_the_start(seed, size):
    """It is the best of the models that say the same of everybody, and the initial model is one of these."""
    problem = Squared(2, 3.0, 2.0, low=-1, high=1, intercept=True)
    rng = np.random.default_rng(seed)
    federation = federation_of(rng.uniform(-1, 1, (12, 3, 2)), targets=rng.uniform(-size, size, 36))
    block = federation.block(np.arange(federation.users))
    mean = problem.target_means(block).mean(axis=0)
    zero, start = (problem.metrics(x, block)["test_loss"].mean() for x in (problem.constant_model(mean), np.zeros(3)))
    assert zero <= start + 1e-12
    assert zero <= problem.landscape.start + 1e-12  # the least loss is no less than zero


def test_a_plan_names_the_best_constant_where_the_loss_has_one():
    hopeless = {"excess": 10.0, "start": 1.0}
    assert "where that of the initial model is at most 1." in Forecast(1.0, 1.0, **hopeless).warnings()[0]
    told = Forecast(1.0, 1.0, **hopeless, with_constant=True).warnings()[0]
    assert "that of the initial model, and so of the best constant, is at most 1." in told
