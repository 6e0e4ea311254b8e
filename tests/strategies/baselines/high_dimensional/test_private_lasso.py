"""Private LASSO by Frank-Wolfe: its properties T7 and T10 to T15, on arrays and as a strategy."""

import math

import numpy as np
import pytest
from helpers import federation_of, gathered, make, requested, rows_of, run
from problem_cases import block_of, normal_data

from strategies import PrivateLasso, model_record, model_vector
from strategies.baselines.composition import advanced_composition
from strategies.baselines.high_dimensional.frank_wolfe import step_size
from strategies.baselines.high_dimensional.lasso import Selections, choice_sensitivity, default_threshold
from strategies.baselines.high_dimensional.reference.lasso import private_lasso
from userdp.accounting.composition import rho_for, zcdp_to_epsilon
from userdp.errors import BadInput
from userdp.problems import Quadratic, Squared

NO_NOISE = 1e12
PROBLEM = Squared(3, math.inf, 2.0, low=-math.inf, high=math.inf)
WILD = np.array([0.0, 1.0, -1.0, 0.3, 1e30, -1e30, 1e-40, np.inf, -np.inf, np.nan], dtype=np.float32)


def strategy(users=100, epsilon=1.0, delta=1e-4, problem=PROBLEM, **options):
    return make(PrivateLasso, problem, users, epsilon, delta, **({"rounds": 5, "threshold": 2.0} | options))


# --- T7: sensitivity -------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("unit", ["user", "sample"])
def test_replacing_the_unit_moves_no_score_by_more_than_the_sensitivity_t07(unit):
    rng, worst, sizes = np.random.default_rng(0), 0.0, [1, 4, 2, 3]
    method = strategy(4, delta=1e-2, unit=unit, facts={"samples": 10}, l1_radius=1.5)
    starts = np.cumsum([0, *sizes])

    def scores(features, targets, w):
        computation = requested(method, 0).computation
        rows, bad = rows_of(PROBLEM, w, block_of(features, targets, sizes), computation)
        assert bad == 0
        return method.scheme.propose(w, rows.sum(axis=0)).values

    for _ in range(500):
        features, targets = rng.choice(WILD, (10, 3)), rng.choice(WILD, 10)
        others, other_targets, user = features.copy(), targets.copy(), int(rng.integers(4))
        changed = slice(starts[user], starts[user + 1] if unit == "user" else starts[user] + 1)
        others[changed] = rng.choice(WILD, others[changed].shape)
        other_targets[changed] = rng.choice(WILD, other_targets[changed].shape)
        w = rng.choice([-1, 1]) * 1.5 * np.eye(3)[rng.integers(3)]
        worst = max(worst, float(np.abs(scores(features, targets, w) - scores(others, other_targets, w)).max()))
    assert 0.5 * method.scheme.mechanism.sensitivity < worst <= method.scheme.mechanism.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize(("unit", "records"), [("user", 2), ("sample", 20)])
def test_no_record_is_shortened_by_more_than_the_truncation_t07(unit, records):
    """A clip of a whole row would let one sample move what the others add."""
    method = strategy(2, delta=1e-2, unit=unit, facts={"samples": 20}, l1_radius=1.0)
    federation = federation_of(np.full((20, 3), 1e9), [19, 1], np.full(20, -1e9))
    values = gathered(method, federation, 0, np.array([1.0, 0.0, 0.0])).values
    np.testing.assert_allclose(values, np.full(3, records * 2 * 2 * 2.0**2), rtol=1e-9)


# --- T10: accounting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("rounds", [1, 39, 500])
def test_both_accountings_stay_within_the_budget_t10(epsilon, rounds):
    delta = 1e-5
    each = {name: Selections(10, rounds, name).calibrate(epsilon, delta) for name in ("zcdp", "paper")}
    assert each["paper"] == pytest.approx(epsilon / (2 * math.sqrt(2 * rounds * math.log(1 / delta))))
    assert advanced_composition(each["paper"], 0.0, rounds, delta)[0] <= epsilon
    rho = rounds * each["zcdp"] ** 2 / 8
    assert zcdp_to_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-6)
    assert rho > rho_for(epsilon, delta)
    for name, value in each.items():
        scheme = Selections(10, rounds, name)
        spent = [scheme.epsilon(2 / value, delta, played) for played in (0, 1, rounds)]
        assert spent[0] == 0
        assert spent == sorted(spent)
        assert spent[-1] <= epsilon
    assert 4.0 < each["zcdp"] / each["paper"] < 6.0


@pytest.mark.parametrize(("epsilon", "delta"), [(10.0, 0.01), (5.0, 0.1)])
def test_the_papers_budget_is_refused_where_it_does_not_compose_t10(epsilon, delta):
    with pytest.raises(BadInput, match=r"accounting = 'paper': 1 rounds .* use accounting = 'zcdp'"):
        Selections(5, 1, "paper").calibrate(epsilon, delta)
    method = strategy(9, epsilon, delta, rounds=1)
    assert method.plan.guarantee.epsilon <= epsilon


# --- T11 to T13: the algorithm ---------------------------------------------------------------------------------------


def test_iterates_stay_in_the_ball_and_a_start_outside_is_refused_t12():
    features = 1e9 * np.random.default_rng(0).standard_cauchy((50, 3))
    block, start = block_of(features, features[:, 0]), np.array([0.0, 0.0, 2.0])
    points = private_lasso(block, start, radius=2.0, threshold=1.0, epsilon=0.5, rounds=20, seed=0)
    assert np.abs(points).sum(axis=1).max() <= 2 + 1e-12
    with pytest.raises(BadInput, match=r"l1 norm 1\.5: must lie in the l1 ball of radius 1"):
        run(strategy(), federation_of(features, targets=features[:, 0]), initial_arrays=model_record(0.75 * start))


def test_without_noise_it_is_frank_wolfe_on_truncated_data_t13():
    features, targets, _ = normal_data(200)
    points = private_lasso(
        block_of(features, targets), np.zeros(3), radius=1.0, threshold=1.0, epsilon=NO_NOISE, rounds=8, seed=0
    )
    a, y = np.clip(features.astype(np.float32), -1, 1), np.clip(targets.astype(np.float32), -1, 1)
    w = np.zeros(3)
    for index in range(8):
        gradient = 2 * a.T @ (a @ w - y) / 200
        vertex = np.zeros(3)
        vertex[np.argmax(np.abs(gradient))] = -np.sign(gradient[np.argmax(np.abs(gradient))])
        w = (1 - step_size(index)) * w + step_size(index) * vertex
        np.testing.assert_allclose(points[index + 1], w, atol=1e-12)


def test_the_strategy_is_the_algorithm_t13():
    features, targets, _ = normal_data(100)
    method = strategy(seed=5, l1_radius=1.5)
    assert len(requested(method, 4).users) == 100
    models = []
    run(
        method,
        federation_of(features, targets=targets),
        30,
        evaluate_fn=lambda _, arrays: models.append(model_vector(arrays)),
    )
    each = method.plan.numbers["choice_epsilon"]
    wanted = private_lasso(
        block_of(features, targets), np.zeros(3), radius=1.5, threshold=2.0, epsilon=each, rounds=5, seed=5
    )
    np.testing.assert_allclose(models, wanted, atol=1e-12)


# --- T14, T15: what truncation costs, and rates ----------------------------------------------------------------------


def test_the_default_threshold_minimises_its_bound_and_follows_units():
    users, d, rounds, each, fourth, failure = 10_000, 50, 40, 0.05, 3.0, 0.1

    def bound(k):
        tails = math.log(2 * (d * d + d) / failure)
        error = 2 * 2 * (2 * k**2 * tails / (3 * users) + 2 * fourth / k**2)
        return 2 * error + 2 * choice_sensitivity(1.0, k, users) / each * math.log(2 * d * rounds / failure)

    chosen = default_threshold(users, d, rounds, each, fourth, failure)
    assert bound(chosen) <= min(bound(0.99 * chosen), bound(1.01 * chosen))
    assert default_threshold(users, d, rounds, each, 16 * fourth, failure) == pytest.approx(2 * chosen)


# --- The strategy ----------------------------------------------------------------------------------------------------


def test_a_plan_warns_where_choices_may_miss_more_than_the_zero_model_can_lose():
    """No data with the declared fourth moment of 4 give the zero model a gradient coordinate above 2."""
    columns = Squared(100, math.inf, 1.0, low=-math.inf, high=math.inf)
    few, many = (
        strategy(users, epsilon, 1e-6, columns, rounds=None, threshold=None, fourth_moment=4.0).plan
        for users, epsilon in ((5_000, 1.0), (20_000, 4.0))
    )
    assert many.noise < 2.0 <= few.noise < few.signal
    assert many.warnings == ()
    assert "doing nothing may be as good" in few.warnings[0]


def test_users_weigh_the_same_however_many_samples_they_hold():
    features, targets, _ = normal_data(100)
    doubled = federation_of(np.repeat(features, 4, axis=0), [4] * 100, np.repeat(targets, 4))
    once, often = (
        gathered(strategy(), f, 0, np.zeros(3)).values for f in (federation_of(features, targets=targets), doubled)
    )
    np.testing.assert_allclose(once, often, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problem": Quadratic(3, 1.0, 2.0)}, r"problem.kind = 'quadratic': private_lasso needs 'squared'"),
        ({"problem": Squared(3, 5.0, 2.0, low=-1, high=1, ridge=0.1)}, r"problem.ridge = 0.1"),
        ({"problem": Squared(3, 5.0, 2.0, low=-1, high=1, intercept=True)}, r"problem.intercept = True"),
        ({"problem": Squared(3, 5.0, 2.0, low=-1, high=1).with_terms(-1, 1)}, r"leave out data.offset"),
        ({"l1_radius": 3.0}, r"strategy.l1_radius = 3: .* room for 2"),
        ({"unit": "sample"}, r"data.samples must be declared"),
        ({"threshold": -1.0}, r"strategy.threshold = -1.0"),
        ({"delta": 0.0}, r"cannot promise pure privacy"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else next(iter(value)),
)
def test_what_cannot_be_promised_is_refused_before_data_are_read(options, message):
    with pytest.raises(BadInput, match=message):
        strategy(**options)
