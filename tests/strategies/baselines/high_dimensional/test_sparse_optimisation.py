"""The strategies that keep a few entries of the model: who is protected, what a plan says, what is learnt."""

import math

import numpy as np
import pytest
from helpers import WILD, Wild, federation_of, final, gathered, make, noise_again, rows_of, run

from strategies import PrivateHardThresholding, SparseOptimisation
from strategies.baselines.heavy_tailed.regressions import HeavyTailedLinear
from strategies.baselines.high_dimensional.reference.hard_thresholding import SparseBudget, private_hard_thresholding
from strategies.baselines.peeling import Peeling
from userdp.data import ColumnarFederation, SyntheticFederation
from userdp.data.block import Block
from userdp.errors import BadInput
from userdp.nodes.computations import Computation
from userdp.problems import OneHotLogistic, Quadratic, Squared

KINDS = {PrivateHardThresholding: {"level": 4.0}, SparseOptimisation: {"scale": 0.8}}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.about.name)
each_unit = pytest.mark.parametrize("unit", ["user", "sample"])
SIZES = [3, 1, 4, 2, 1, 1]
FACTS = {"samples": 12}


def least_squares(dimension):
    return Squared(dimension, math.inf, 1.0, low=-math.inf, high=math.inf)


def population(dimension=50, users=30_000, **settings):
    recipe = {"parameter_sparsity": 2, "noise_deviation": 0.1} | settings
    return SyntheticFederation(HeavyTailedLinear(dimension=dimension, **recipe), users, 4, samples_per_user=1)


# --- What is promised ------------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@each_unit
@each_kind
@pytest.mark.parametrize("problem", [Wild(2), least_squares(1)], ids=["wild", "least squares"])
def test_no_record_moves_a_step_by_more_than_its_sensitivity(kind, unit, problem):
    """One sample replaced, or all those of a user, by anything; the sup norm of the step, as it is peeled."""
    rng = np.random.default_rng(0)
    options = {"rounds": 1, "sparsity": 2} | KINDS[kind]
    # A user of `Wild` answers for one sample.
    sizes = [1] * 12 if unit == "user" and not problem.has_targets else SIZES
    method = make(kind, problem, len(sizes), 1.0, 1e-3, unit=unit, facts=FACTS, **options)
    owner, most = np.repeat(np.arange(len(sizes)), sizes), 0.0
    extreme = np.array([-1e30, -4.0, -1.0, 0.0, 1.0, 4.0, 1e30])
    for trial in range(300):
        if problem.has_targets:
            data, other = rng.choice(extreme, (2, 12, 2))
        else:
            data, other = rng.integers(0, len(WILD), (2, 12, 2))
        where = np.array([trial % 12]) if unit == "sample" else np.flatnonzero(owner == trial % len(sizes))
        neighbour = data.copy()
        neighbour[where] = other[where]
        x = np.ones(problem.dimension) / math.sqrt(problem.dimension)
        steps = []
        for samples in (data, neighbour):
            features, targets = (samples[:, :1], samples[:, 1]) if problem.has_targets else (samples, None)
            federation = federation_of(features, sizes=sizes, targets=targets)
            steps.append(method.scheme.propose(x, gathered(method, federation, 0, x).values).values)
        most = max(most, float(np.abs(steps[0] - steps[1]).max()))
    assert 0.3 * method.scheme.mechanism.sensitivity < most <= method.scheme.mechanism.sensitivity * (1 + 1e-12)


@each_unit
def test_hard_thresholding_holds_every_coordinate_to_its_bound_whatever_the_loss(unit):
    """All of a record's gradient in one coordinate: a clip of the whole row alone would let it be sqrt(d) as long."""
    method = make(PrivateHardThresholding, Wild(2), 6, 1.0, 1e-3, unit=unit, facts={"samples": 6}, rounds=1, level=16.0)
    steps = []
    for code in (4, 5):  # 1e300 and -1e300; the level leaves codes as they are
        data = np.zeros((6, 2))
        data[3, 0] = code
        total = gathered(method, federation_of(data), 0, np.zeros(2)).values
        steps.append(method.scheme.propose(np.zeros(2), total).values)
    assert np.abs(steps[0] - steps[1]).max() == pytest.approx(method.scheme.mechanism.sensitivity, rel=1e-9)


@each_unit
@each_kind
def test_the_plan_spends_the_budget_once_however_many_rounds(kind, unit):
    for rounds, sparsity in ((1, 20), (7, 20), (7, 1)):
        options = {"rounds": rounds, "sparsity": sparsity}
        plan = make(kind, Quadratic(30, 5.0, 1.0), 1000, 0.8, 1e-5, unit=unit, facts={"samples": 3000}, **options).plan
        assert plan.guarantee.unit == unit
        assert (plan.rounds, plan.cohort) == (rounds, 1000 // rounds)
        assert plan.guarantee.epsilon == pytest.approx(0.8, rel=1e-3)
        assert plan.guarantee.epsilon <= 0.8
        assert ("pure" in plan.guarantee.accountant) == (sparsity == 1)
        records = (1000 if unit == "user" else 3000) / 1000 * plan.cohort
        sensitivity = plan.numbers["sup_sensitivity_of_a_step"]
        bound = plan.numbers.get("coordinate_bound") or plan.numbers["scale"] * 2 * math.sqrt(2) / 3
        assert sensitivity == pytest.approx(2 * bound * (2 / 3) / records)
        peeling = Peeling(sparsity, sensitivity, 0.8, 1e-5)
        assert plan.numbers["noise_scale"] == peeling.scale


@each_kind
def test_the_papers_noise_is_refused_where_it_is_not_proven_t10(kind):
    options = {"accounting": "paper", "sparsity": 4}
    assert make(kind, Quadratic(30, 5.0, 1.0), 1000, 4.0, 1e-5, **options).plan.guarantee.epsilon == 4.0
    with pytest.raises(BadInput, match="proven private up to"):
        make(kind, Quadratic(30, 5.0, 1.0), 1000, 5.0, 1e-5, **options)


@each_kind
def test_numbers_that_are_not_declared_or_do_not_fit_are_refused(kind):
    with pytest.raises(BadInput, match=r"data.samples must be declared"):
        make(kind, Quadratic(5, 1.0, 1.0), 100, unit="sample")
    with pytest.raises(BadInput, match=r"strategy.rounds = 101: each takes users of its own, and there are 100"):
        make(kind, Quadratic(5, 1.0, 1.0), 100, rounds=101)
    with pytest.raises(BadInput, match=r"strategy.sparsity = 0"):
        make(kind, Quadratic(5, 1.0, 1.0), 100, sparsity=0)
    assert make(kind, Quadratic(5, 1.0, 1.0), 100, sparsity=50).plan.numbers["model_sparsity"] == 5


# --- Honest plans ----------------------------------------------------------------------------------------------------


def test_a_plan_warns_where_the_zero_model_is_better():
    """50,000 records, 400 features, 20 entries, epsilon 1: the noise is far longer than any model in the unit ball."""
    options = {"sparsity": 20, "learning_rate": 0.5}
    plan = make(
        PrivateHardThresholding, least_squares(400), 50_000, 1.0, 50_000**-1.1, **options, accounting="paper"
    ).plan
    assert plan.rounds == 10
    assert plan.numbers["noise_scale"] == pytest.approx(0.93, abs=0.02)
    assert plan.drowned
    assert "the zero model is expected to be better" in plan.warnings[0]


def test_a_plan_warns_where_wrong_entries_may_be_chosen_and_is_silent_in_a_usable_regime():
    options = {"sparsity": 2, "rounds": 12}
    plans = [
        make(PrivateHardThresholding, least_squares(200), 200_000, epsilon, 1e-6, **options).plan
        for epsilon in (0.5, 10.0)
    ]
    assert not plans[0].drowned
    assert "wrong entries may be chosen" in plans[0].warnings[0]
    assert plans[1].warnings == ()


# --- Computations ----------------------------------------------------------------------------------------------------


def test_data_are_cut_before_gradients_are_taken():
    problem, x = least_squares(2), np.array([0.6, -0.8])
    block = federation_of([[1.0, 50.0], [-2.0, 0.5], [0.1, 0.2]], sizes=[2, 1], targets=[-9.0, 1.0, 0.3]).block(
        np.array([0, 1])
    )
    cut = np.array([[1.0, 3.0], [-2.0, 0.5], [0.1, 0.2]])
    rows = cut * (cut @ x - [-3.0, 1.0, 0.3])[:, None]
    parameters = {"level": 3.0, "bound": 9 * (math.sqrt(2) + 1)}
    sums, _ = rows_of(problem, x, block, Computation("truncated_data_sum", parameters=parameters))
    averages, _ = rows_of(problem, x, block, Computation("truncated_data_gradient", parameters=parameters))
    np.testing.assert_allclose(sums, [rows[0] + rows[1], rows[2]], rtol=1e-6)
    np.testing.assert_allclose(averages, [(rows[0] + rows[1]) / 2, rows[2]], rtol=1e-6)


@each_unit
@each_kind
def test_integer_codes_are_not_cut_and_their_gradients_are_held(kind, unit):
    codes = np.array([[4], [4], [0], [2]] * 10, dtype=np.int32)
    block = Block(codes, np.arange(41), np.tile([1.0, 1.0, 0.0, 1.0], 10).astype(np.float32))
    options = {"rounds": 1, "sparsity": 1} | ({"level": 2.0} if kind is PrivateHardThresholding else {})
    method = make(kind, OneHotLogistic(5, 2.0), 40, 100.0, 1e-3, unit=unit, facts={"samples": 40}, **options)
    assert np.flatnonzero(final(run(method, ColumnarFederation(block)))) == [4]


# --- What is learnt --------------------------------------------------------------------------------------------------


def test_every_model_is_sparse_and_in_the_ball_t12():
    federation, seen = population(20, 3000), []
    method = make(PrivateHardThresholding, least_squares(20), 3000, 0.3, 1e-5, sparsity=3)
    run(method, federation, evaluate_fn=lambda _, arrays: seen.append(arrays["x"].numpy()))
    assert len(seen) == method.plan.rounds + 1 == 9
    assert (np.count_nonzero(seen, axis=1)[1:] == 3).all()
    assert (np.linalg.norm(seen, axis=1) <= 1 + 1e-12).all()


def test_the_strategy_is_the_estimator_on_its_folds():
    """One user a record and one fold: the same step, peeled with the same noise."""
    federation = population(10, 2000)
    method = make(PrivateHardThresholding, least_squares(10), 2000, 5.0, 1e-5, sparsity=2, rounds=1)
    block = federation.block(np.arange(2000))
    fit = private_hard_thresholding(
        block.features, block.targets, SparseBudget(2, 5.0, 1e-5, 2 / 3, rounds=1), noise_again(method, 0)
    )
    assert fit.peeling == method.scheme.mechanism
    np.testing.assert_allclose(final(run(method, federation)), fit.model, rtol=1e-5)


@pytest.mark.slow
@each_kind
def test_it_beats_the_zero_model_and_comes_close_to_no_privacy_t16(kind):
    federation, problem = population(users=60_000), least_squares(50)
    zero = problem.excess_risk(np.zeros(50), federation)
    assert zero == pytest.approx(0.5)
    risks = {}
    for epsilon in (4.0, 1e9):
        method = make(kind, problem, 60_000, epsilon, 1e-6, sparsity=2, rounds=8)
        risks[epsilon] = problem.excess_risk(final(run(method, federation)), federation)
    assert risks[4.0] < 0.2 * zero
    assert risks[1e9] < 0.01 * zero


@pytest.mark.slow
@each_kind
def test_more_users_give_a_smaller_error_t15(kind):
    risks = []
    for users in (6000, 60_000):
        federation, problem = population(20, users), least_squares(20)
        runs = [make(kind, problem, users, 8.0, 1e-6, sparsity=2, rounds=6, seed=seed) for seed in range(3)]
        risks.append(np.mean([problem.excess_risk(final(run(method, federation)), federation) for method in runs]))
    assert math.log(risks[1] / risks[0]) / math.log(10) < -0.5


def test_users_of_many_samples_are_protected_at_the_price_of_one():
    """The mean of a user's samples weighs as one record: noise does not grow with how many a user holds."""
    plans = [
        make(
            SparseOptimisation, Quadratic(50, 5.0, 1.0), 1000, facts={"max_samples": most, "samples": 1000 * most}
        ).plan
        for most in (1, 100)
    ]
    assert plans[0].numbers == plans[1].numbers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameter_sparsity": 0}, "parameter_sparsity = 0: must lie between 1 and dimension = 5"),
        ({"parameter_sparsity": 6}, "parameter_sparsity = 6"),
        ({"parameter_sparsity": 2, "parameter": 1.0}, "leave out parameter_sparsity or parameter"),
    ],
)
def test_sparse_parameters_out_of_range_are_refused(changes, message):
    with pytest.raises(BadInput, match=message):
        HeavyTailedLinear(dimension=5, **changes)


def test_a_sparse_parameter_has_so_many_entries_and_the_declared_length():
    truth = HeavyTailedLinear(dimension=40, parameter_sparsity=7, parameter_norm=2.0).truth(np.random.default_rng(0))
    assert np.count_nonzero(truth) == 7
    assert np.linalg.norm(truth) == pytest.approx(2.0)
