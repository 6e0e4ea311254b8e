"""Zero tuning: every release against brute-force neighbours, its budget, and what its defaults reach."""

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from helpers import federation_of, final, gathered, make, requested, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simulations.config.run_config import parse_config
from simulations.runs.build import build_problem, load_datasets, make_strategy, public_facts
from strategies import Auto
from strategies.auto.choice import Choice
from strategies.auto.column_coordinates import column_scales
from strategies.auto.level import Level
from strategies.auto.progress import Known, Progress, Whitening, whitening
from strategies.auto.releases import Movement, Release, Shares
from strategies.auto.stages import CAUTION, Gradient, StepLength
from strategies.baselines.regressions import LpRegression
from strategies.wire.questions import model_record
from userdp.errors import RunFailed
from userdp.nodes.computations import Computation
from userdp.nodes.moments import column_scales as sent_scales
from userdp.nodes.moments import symmetric
from userdp.nodes.node import Node
from userdp.problems import Box, Huber, Logistic, Poisson, Quadratic, Softmax, SparseSquared, Squared
from userdp.sampling import MixedBatches

USERS, COLUMNS = 4, 2
PROBLEMS = {
    "squared": Squared(COLUMNS, np.inf, 5.0, low=-2.0, high=2.0, intercept=True),
    "logistic": Logistic(COLUMNS, np.inf, 5.0, ridge=0.1),
    "poisson": Poisson(COLUMNS, 4.0, 1.0, count_bound=9.0, intercept=True),
    "softmax": Softmax(3, COLUMNS, np.inf, 5.0, ridge=0.1, intercept=True),
    "quadratic": Quadratic(COLUMNS, 5.0, 3.0),
    "huber": Huber(COLUMNS, 5.0, 3.0, 1.0),
    "coefficients": Poisson(COLUMNS, 4.0, 1.0, count_bound=9.0, intercept=True),
}
OPTIONS = {"coefficients": {"coefficients": 0.4}}
ROUNDS = {"squared": 16, "logistic": 15, "poisson": 18, "softmax": 16, "quadratic": 8, "huber": 15}
OF_COEFFICIENTS = [("coefficients", k) for k in range(17, 22)]
every_round = pytest.mark.parametrize(
    ("name", "index"), [(name, k) for name in ROUNDS for k in range(ROUNDS[name])] + OF_COEFFICIENTS
)
cells = st.sampled_from([0.0, 1.0, -1.0, 1e-4, 0.3, -7.0, 1e4, -1e18])


@dataclass
class Watched:
    """Takes the place of `Release`: notes what would be released, and gives a fixed answer."""

    noted: list = field(default_factory=list)
    answer: object = None
    deviation: float = 1e-3
    users: int = USERS
    skipped: bool = False
    fraction = Release.fraction
    logarithm = Release.logarithm

    def mean(self, sums, movement, part=1.0, *, silent=0.0):
        self.noted.append((np.array(sums), movement, part))
        return (sums / USERS if self.answer is None else np.zeros(len(sums)) + self.answer), self.deviation


def people(rows, targets):
    return federation_of(rows, sizes=[2] * (len(rows) // 2), targets=targets)


def at(name, index, **options):
    """The strategy before round ``index``, as it came there with some ordinary users."""
    method = make(Auto, PROBLEMS[name], USERS, delta=1e-3, **OPTIONS.get(name, {}), **options)
    rng = np.random.default_rng(7)
    ordinary = people(rng.normal(size=(2 * USERS, COLUMNS)), rng.integers(0, 2, 2 * USERS))
    for earlier in range(index):
        x = method.problem.domain.project(method.memory.model)
        values = gathered(method, ordinary, earlier, x).values
        method.scheme.stages[earlier].take(method.memory, values, Watched())
    return method


def released(method, index, federation):
    x = method.problem.domain.project(method.memory.model)
    watched = Watched()
    computation = requested(method, index).computation
    values = gathered(method, federation, index, x).values
    with suppress(RunFailed):  # where nobody can be heard, which follows from what was released
        method.scheme.stages[index].take(method.memory, values, watched)
    return watched.noted, computation


# --- Formal guarantee ------------------------------------------------------------------------------------------------


@pytest.mark.sweep(2)
@every_round
@settings(max_examples=25)
@given(
    arrays(np.float64, (2 * USERS, COLUMNS), elements=cells),
    arrays(np.float64, 2 * USERS, elements=cells),
    arrays(np.float64, (2, COLUMNS), elements=cells),
    arrays(np.float64, 2, elements=cells),
    st.integers(0, USERS - 1),
)
def test_one_user_moves_every_release_by_at_most_what_is_stated(name, index, rows, targets, other, target, who):
    neighbour, told = rows.copy(), targets.copy()
    neighbour[2 * who : 2 * who + 2], told[2 * who : 2 * who + 2] = other, target
    whole, _ = released(at(name, index), index, people(rows, targets))
    replaced, computation = released(at(name, index), index, people(neighbour, told))
    assert whole
    for (one, movement, *_), (two, again, *_) in zip(whole, replaced, strict=True):
        assert movement == again
        assert np.linalg.norm(one - two) <= movement.replaced * (1 + 1e-9)
    # A user who is not there adds zero.
    method = at(name, index)
    node, x = Node(method.problem, people(rows, targets), np.arange(USERS)), method.memory.model
    alone = node.compute(method.problem.domain.project(x), np.array([who]), computation).values[0]
    for (_, movement, *_), part in zip(whole, parts_of(whole, alone), strict=True):
        assert np.linalg.norm(part) <= movement.added * (1 + 1e-9)


def parts_of(whole, row):
    """A user's row cut into what is released of it: all of it, its last number, or both parts."""
    lengths = [len(sums) for sums, *_ in whole]
    return np.split(row[len(row) - sum(lengths) :], np.cumsum(lengths)[:-1])


def test_a_mean_is_released_with_noise_for_its_movement_and_its_share():
    method = make(Auto, PROBLEMS["squared"], 400, seed=5)
    asked = Computation("user_gradient", "sum", 1.5)
    release = Release(method.scheme, 2, lambda purpose: method._noise(2, purpose), asked)
    draws = np.concatenate([release.mean(np.zeros(4000), Movement(3.0, 2.0), 0.25)[0] for _ in range(5)])
    _, deviation = release.mean(np.zeros(1), Movement(3.0, 2.0), 0.25)
    with pytest.raises(RunFailed, match=r"a user can move the mean of user_gradient by 0\.0075, and its noise is made"):
        release.mean(np.zeros(1), Movement(2.9, 2.0), 0.25)
    share = method.scheme.sampler.shares[2]
    assert deviation == pytest.approx(3.0 / 400 * method.scheme.noise_multiplier / math.sqrt(0.25 * share))
    assert draws.std() == pytest.approx(deviation, rel=0.03)
    method = make(Auto, PROBLEMS["squared"], 400, relation="add_or_remove")
    assert method.scheme.mechanism(2, Movement(3.0, 2.0)).l2_sensitivity == pytest.approx(2.0 / 400)


def test_where_a_coin_decides_whether_a_replaced_user_is_there_noise_is_for_opposite_vectors():
    """The pair that prices such rounds is one of opposite vectors, however close a release's own may be."""
    shares = Shares(sampler=MixedBatches(400, (0.5,), (1.0,), relation="replace_one"), noise_multiplier=1.0)
    for movement in (Movement.of_acute(), Movement.of_ball(1.0), Movement.of_interval(-1.0, 0.0)):
        assert shares.mechanism(0, movement).l2_sensitivity == pytest.approx(2.0 / 200)


@given(arrays(np.float64, (2, 3, 3), elements=st.floats(-5, 5)))
def test_positive_semidefinite_matrices_differ_by_at_most_the_root_of_two_norms(raw):
    one, two = (each @ each.T for each in raw)
    norm = max(np.linalg.norm(one), np.linalg.norm(two))
    assert np.linalg.norm(one - two) <= Movement.of_acute(norm).replaced * (1 + 1e-9) + 1e-12


def test_shares_of_one_whole_differ_by_at_most_the_root_of_two():
    """Users of one class each attain it; those with unusable samples, or classes that nobody declared, have less."""
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.full(4, 0.2), size=300) * rng.choice([0.0, 0.6, 1.0], size=(300, 1))
    shares = np.vstack([shares, np.eye(4)])
    farthest = max(float(np.linalg.norm(one - two)) for one in shares for two in shares)
    assert farthest == pytest.approx(Movement.of_acute().replaced, rel=1e-12)
    assert np.linalg.norm(shares, axis=1).max() == pytest.approx(Movement.of_acute().added, rel=1e-12)


# --- What becomes of releases ----------------------------------------------------------------------------------------


def test_in_the_coordinates_second_moments_are_one_or_less():
    rng = np.random.default_rng(2)
    raw = rng.normal(size=(5, 5)) * 10.0 ** np.arange(-2, 3)
    moments = raw.T @ raw
    turned = whitening(moments, 1e-3)
    values = np.linalg.eigvalsh(turned.matrix.T @ moments @ turned.matrix)
    assert values.max() == pytest.approx(1.0)
    assert turned.floored == (np.linalg.eigvalsh(moments) < 0.25e-3 * math.sqrt(10)).sum() > 0
    assert (turned.seen == 1).sum() == 5 - turned.floored


def test_the_gradient_known_from_many_releases_is_their_precision_weighted_mean():
    rng = np.random.default_rng(8)
    truth, deviations = rng.normal(size=4), [0.5, 0.2, 1.0, 0.3]
    releases = [truth + deviation * rng.normal(size=4) for deviation in deviations]
    known = Known(releases[0], *[np.full(4, deviations[0] ** 2)] * 2)
    for released, deviation in zip(releases[1:], deviations[1:], strict=True):
        known = known.corrected(released, deviation, np.zeros(4), np.zeros(4), np.ones(4))
    weights = np.array(deviations) ** -2.0
    np.testing.assert_allclose(known.gradient, weights @ np.array(releases) / weights.sum())
    np.testing.assert_allclose(known.variance, 1 / weights.sum())
    np.testing.assert_allclose(known.walked, known.variance)  # curvature that is sure corrects all former moves


def test_what_is_doubtful_in_a_prediction_is_the_noise_of_the_second_moments():
    """Moves in the coordinates of a noisy matrix: the error of the predicted change has the stated variance."""
    rng, deviation, p = np.random.default_rng(9), 0.01, 3
    moments, move = np.diag([1.0, 0.5, 2.0]), np.array([1.0, -2.0, 0.5])
    turned, errors = whitening(moments, deviation), []
    for _ in range(4000):
        noise = symmetric(deviation * rng.normal(size=p * (p + 1) // 2))
        errors.append(turned.matrix.T @ noise @ turned.matrix @ move)
    # The diagonal has twice the variance of what stands beside it, which the formula leaves out.
    ratios = np.var(errors, axis=0) / turned.doubt(move)
    assert 0.9 < ratios.min() <= ratios.max() < 2.0


@pytest.mark.parametrize(("deviation", "least"), [(1e-9, 3.0), (1e3, 1.0)])
def test_steps_are_shortened_where_more_curvature_is_felt_than_noise_explains(deviation, least):
    """Along the second coordinate noise hid a curvature of 3: whole steps would double the error each time."""
    method = make(Auto, PROBLEMS["squared"], 400)
    stage, progress, watched = Gradient(5, method.problem.domain), method.scheme.new_memory(), Watched()
    progress.whitened = Whitening(np.eye(3), np.ones(3), np.array([1.0, 0.2, 1.0]), 1.0)
    curvature, best = progress.curvature * np.array([1.0, 3.0, 1.0]), np.array([1.0, -0.5, 0.5])
    watched.mean = lambda sums, movement, part=1.0, silent=0.0: (sums, deviation)
    for _ in range(12):
        stage.take(progress, np.append(curvature * (progress.z - best), 0.0), watched)
    assert progress.damping == pytest.approx(least, rel=1e-6)
    if least > 1:
        np.testing.assert_allclose(progress.z, best, atol=1e-6)


def test_column_scales_come_near_root_mean_squares_where_noise_is_small():
    rng = np.random.default_rng(3)
    sizes = np.array([1.0, 0.1, 0.01, 0.3])
    rows = rng.normal(size=(8000, 4)) * 0.3 * sizes
    rows[rng.random(8000) > 0.1, 3] = 0.0  # a rare column
    problem = Squared(4, np.inf, 5.0, low=-1.0, high=1.0)
    block = federation_of(rows.reshape(1000, 8, 4), targets=np.zeros(8000)).block(np.arange(1000))
    means = sent_scales(problem, np.zeros(4), block, 1e-3, 1.0, 2.0).mean(axis=0)
    found = column_scales(means, 1e-6, 1e-3, 1.0, 2.0)
    ratios = found / np.sqrt((block.features.astype(float) ** 2).mean(axis=0))
    assert 0.85 < ratios[:3].min() <= ratios[:3].max() <= 1.0
    assert 0.5 < ratios[3] < 1.0  # a geometric mean takes little note of those who have much of it


def test_column_scales_of_nothing_but_noise_are_moderate():
    noise = np.random.default_rng(4).normal(size=200)
    found = column_scales(0.5 * noise, 0.5, 1e-3, 1.0, 2.0)
    assert np.isfinite(found).all()
    assert found.min() >= 1e-3
    assert found.max() <= 1.0


# --- Never worse than doing nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "deviation", "back"),
    [(-0.01, 0.03, True), (-0.005, 0.03, False), (0.3, 0.03, False), (-0.5, 0.3, False), (-0.65, 0.3, True)],
)
def test_the_louder_the_noise_beside_the_expected_gain_the_more_must_be_lost_before_the_model_is_taken_back(
    mean, deviation, back
):
    """A gain of 1.5 is expected and users' gains are cut at 6: noise of 0.36 allows 0.24 deviations, loud noise two."""
    progress: Progress = make(Auto, PROBLEMS["squared"], USERS, delta=1e-3).memory
    progress.z = np.ones(3)
    facts = Choice().take(progress, np.zeros(1), Watched(answer=mean, deviation=deviation))
    assert facts["went_back"] == float(back)
    assert np.array_equal(progress.model, np.zeros(3)) == back
    assert facts["largest_gain"] == pytest.approx(6.0)
    assert facts["gained"] == pytest.approx(12 * mean)


def test_a_model_that_most_people_prefer_is_taken_back_where_the_few_of_a_rare_class_lose_more():
    rare = np.repeat([0.0, 1.0], [92, 8])
    problem, federation = Logistic(2, np.inf, np.inf, intercept=True), federation_of(np.zeros((100, 2)), targets=rare)
    progress = make(Auto, problem, 100, 8.0, 1e-3).memory
    Level(problem).take(progress, np.zeros(2), Watched(answer=np.array([0.08 - 0.5, 0.0]), deviation=1e-3))
    progress.z, progress.length = np.array([0.0, 0.0, -0.8]), 0.2
    asked = Choice().computation(progress)
    gains = Node(problem, federation, np.arange(100)).compute(
        progress.model, np.arange(100), replace(asked, reduce="rows")
    )
    assert (gains.values > 0).sum() == 92
    facts = Choice().take(progress, gains.values.sum(axis=0), Watched(answer=gains.values.mean(), deviation=1e-3))
    block = federation.block(np.arange(100))
    lost = problem.sample_losses(progress.model_at(np.array([0.0, 0.0, -0.8])), block)
    saved = problem.sample_losses(progress.constant, block).mean() - lost.mean()
    assert facts["gained"] == pytest.approx(saved)
    assert facts["went_back"] == 1.0


# --- What its defaults reach -----------------------------------------------------------------------------------------


def ill_scaled(users, seed, link):
    """Ten columns of scales over one and a half decades, neighbours correlated, 5 samples per user."""
    rng = np.random.default_rng(seed)
    correlated = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(np.arange(10), np.arange(10))))
    rows = rng.normal(size=(users * 5, 10)) @ correlated.T * np.geomspace(0.03, 1.0, 10) * 0.3
    scores = rows @ (rng.normal(size=10) / np.geomspace(0.03, 1.0, 10))
    if link == "squared":
        targets = np.clip(0.3 * scores + 0.3 * rng.normal(size=len(rows)), -2, 2)
        return federation_of(rows, [5] * users, targets), Squared(10, np.inf, np.inf, low=-2.0, high=2.0)
    targets = rng.random(len(rows)) < 1 / (1 + np.exp(-3 * scores))
    return federation_of(rows, [5] * users, targets), Logistic(10, np.inf, np.inf)


def optimum(problem, block):
    from scipy.optimize import minimize

    def loss(x):
        return problem.metrics(x, block)["test_loss"].mean()

    def slope(x):
        return problem.user_gradients(x, block).mean(axis=0)

    return minimize(loss, np.zeros(problem.dimension), jac=slope, method="BFGS").fun


@pytest.mark.slow
@pytest.mark.parametrize("link", ["squared", "logistic"])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_it_covers_most_of_the_way_on_columns_of_any_scale_without_a_setting(link, epsilon):
    shares = []
    for seed in range(5):
        federation, problem = ill_scaled(3000, seed, link)
        block = federation.block(np.arange(3000))
        best = optimum(problem, block)
        x = final(run(make(Auto, problem, 3000, epsilon, 1e-5, seed=seed), federation))
        start, end = (problem.metrics(one, block)["test_loss"].mean() for one in (np.zeros(10), x))
        shares.append((start - end) / (start - best))
    assert np.median(shares) > (0.9 if epsilon == 4.0 else 0.8)
    assert min(shares) > 0


@pytest.mark.sweep(1)
@pytest.mark.parametrize("ridge", [0.01, 1.0])
def test_a_ridge_is_part_of_the_curvature(ridge):
    """In coordinates that stretch small columns a ridge is steep: steps that forget it would diverge."""
    federation, _ = ill_scaled(1500, 3, "logistic")
    problem, block = Logistic(10, np.inf, np.inf, ridge=ridge), federation.block(np.arange(1500))
    x = final(run(make(Auto, problem, 1500, 8.0, 1e-5), federation))
    start, end = (problem.metrics(one, block)["test_loss"].mean() for one in (np.zeros(10), x))
    assert (start - end) / (start - optimum(problem, block)) > 0.8


def test_an_optimum_beyond_the_domain_is_approached_at_its_edge():
    rng = np.random.default_rng(11)
    rows = rng.normal(size=(16000, 2)) * [0.3, 0.03]
    targets = np.clip(rows @ [3.0, 10.0], -2, 2)
    federation = federation_of(rows, [4] * 4000, targets)
    problem = Squared(2, np.inf, 0.5, low=-2.0, high=2.0)
    method = make(Auto, problem, 4000, 8.0, 1e-5)
    np.testing.assert_allclose(final(run(method, federation)), 0.5, atol=0.02)
    assert np.abs(method.memory.model).max() <= 0.5 + 1e-9  # the descent itself has not left it


@pytest.mark.slow
def test_counts_start_at_their_mean():
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(8000, 2)) * 0.3
    targets = np.minimum(rng.poisson(np.exp(1.0 + rows @ [0.5, -0.8])), 30)
    problem = Poisson(2, np.inf, np.inf, count_bound=30.0, intercept=True)
    federation = federation_of(rows, [4] * 2000, targets)
    block = federation.block(np.arange(2000))
    result = run(make(Auto, problem, 2000, 2.0, 1e-5), federation)
    start, end = (problem.metrics(one, block)["test_loss"].mean() for one in (np.zeros(3), final(result)))
    assert (start - end) / (start - optimum(problem, block)) > 0.95


# --- The plan and the start ------------------------------------------------------------------------------------------


def test_a_plan_tells_how_the_budget_is_shared():
    plan = make(Auto, PROBLEMS["squared"], 400).plan
    numbers = plan.numbers
    assert plan.rounds == numbers["gradient_rounds"] + 7
    assert 0 < numbers["measuring_share"] < 0.5
    assert 0 < numbers["choice_share"] < 0.05
    assert numbers["choice_noise"] > 0
    assert {name: make(Auto, PROBLEMS[name], USERS).plan.rounds for name in ROUNDS} == ROUNDS


def test_steps_are_more_where_noise_is_small():
    rounds = [make(Auto, PROBLEMS["squared"], users).plan.numbers["gradient_rounds"] for users in (40, 4000, 10**6)]
    assert rounds[0] == 9 < rounds[1] < rounds[2] == 40


def test_a_loss_without_a_bound_on_its_curvature_keeps_its_own_coordinates():
    rng = np.random.default_rng(12)
    rows = rng.normal(size=(1200, 2)) * 0.4
    federation = federation_of(rows, [4] * 300, np.clip(rows @ [1.0, -0.5], -1, 1))
    problem = LpRegression(2, 2.0, 3.0, order=1.5, low=-1.0, high=1.0)
    method = make(Auto, problem, 300, 8.0, 1e-4)
    x = final(run(method, federation))
    assert method.plan.rounds == ROUNDS["quadratic"]
    assert x[0] > 0.2 > -0.1 > x[1]


@pytest.mark.slow
def test_rare_columns_of_which_a_sample_has_a_few_are_descended_by_measured_steps():
    """Certified steps would leave more than nine tenths of the way."""
    raw = {
        "name": "rare",
        "problem": {"kind": "sparse_logistic", "radius": 5.0},
        "data": {
            "kind": "synthetic",
            "population": "sparse_regression",
            "users": 3000,
            "dimension": 500,
            "samples_per_user": 20,
        },
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "strategy": {"kind": "auto"},
    }

    def loss(**section):
        config = parse_config(raw | section)
        users = load_datasets(config).train
        method = make_strategy(config, build_problem(config), public_facts(config, users))
        x = final(run(method, users, users_per_node=500))
        problem, block = method.problem, users.block(np.arange(users.users))
        return [float(problem.metrics(one, block)["test_loss"].mean()) for one in (x, problem.initial())]

    reached, start = loss()
    best, _ = loss(strategy={"kind": "non_private"})
    assert (start - reached) / (start - best) > 0.6


def test_a_step_is_one_over_the_curvature_along_the_gradient_and_a_margin():
    """The curvature of a Huber loss counts the users with a distance within the threshold, here three in four."""
    stage = StepLength(Box(np.zeros(2), 10.0), 1.0)
    method = make(Auto, PROBLEMS["huber"], 400)
    progress = method.scheme.new_memory()
    progress.begin(np.zeros(2))
    progress.gradient = np.array([3.0, 4.0])
    users = federation_of(np.repeat([[0.1, 0.1], [0.2, 0.3], [-0.1, 0.2], [4.0, 4.0]], 100, axis=0))
    node = Node(method.problem, users, np.arange(400))
    sums = node.compute(progress.start, np.arange(400), stage.computation(progress)).values[0]
    assert sums[0] / 400 + 0.5 == pytest.approx(0.75)
    watched = Watched()
    watched.mean = lambda values, movement, part=1.0, silent=0.0: (values / 400, 0.0)
    stage.take(progress, sums, watched)
    np.testing.assert_allclose(progress.start, -np.array([3.0, 4.0]) / (CAUTION * 0.75**2))


def test_a_plan_for_too_few_users_says_so():
    assert make(Auto, PROBLEMS["squared"], 450).plan.warnings == ()
    unheard, blind, drowned = make(Auto, PROBLEMS["squared"], 20, 0.1).plan.warnings
    assert "the run does not stop where a column cannot be used" in unheard
    assert "no model would be taken back: bring more users" in blind
    assert "Doing nothing is better than this run" in drowned


@pytest.mark.parametrize(("epsilon", "times", "doubtful"), [(16.0, 1, False), (4.0, 2, True), (1.0, 1.8, True)])
def test_a_plan_for_columns_that_few_users_share_counts_on_shorter_gradients(epsilon, times, doubtful):
    """The forecast for 537 users, with 20 samples of two of 2,000 columns, is at most as bad as the initial model."""
    facts, users, columns = {"max_samples": 20, "samples": 10_740}, 537, 2000
    rare, shared = (
        make(Auto, SparseSquared(columns, 1.0, sparsity, 1.0, low=-1.0, high=1.0), users, epsilon, 1e-5, facts=facts)
        for sparsity in (2, columns)
    )
    rare, shared = rare.plan, shared.plan
    assert rare.forecast.excess > times * shared.forecast.excess
    assert any("Doing nothing may be as good: bring more users" in each for each in rare.warnings) == doubtful
    assert not rare.forecast.hopeless


def test_another_initial_model_is_where_it_begins_and_what_it_is_compared_with():
    method = make(Auto, PROBLEMS["quadratic"], USERS, delta=1e-3)
    start = np.array([2.0, -1.0])
    run(method, federation_of(np.tile(start, (USERS, 1))), initial_arrays=model_record(start))
    np.testing.assert_array_equal(method.memory.constant, start)
