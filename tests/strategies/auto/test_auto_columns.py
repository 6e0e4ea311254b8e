"""Many columns, most of them rare: every release against neighbours, and what becomes of it."""

import math
from copy import deepcopy

import numpy as np
import pytest
from helpers import federation_of, final, gathered, make, requested, run
from scipy.sparse import csr_array
from test_auto import Watched

from strategies import Auto
from strategies.auto.choice import Choice
from strategies.auto.column_coordinates import SHOWN, ColumnCoordinates
from strategies.auto.columns import ColumnMoments, SumOfColumns, column_coordinates
from strategies.auto.level import Counts
from userdp.data.block import Block
from userdp.data.federation import ColumnarFederation
from userdp.nodes.computations import Computation
from userdp.nodes.node import Node
from userdp.problems import OneHotPoisson, OneHotSquared, SparseCloglog, SparseLogistic, SparseSquared

USERS, COLUMNS, SAMPLES = 5, 6, 3
PROBLEMS = {
    "sparse_squared": SparseSquared(COLUMNS, 1.0, 2, 5.0, low=-1.0, high=1.0),
    "sparse_logistic": SparseLogistic(COLUMNS, 2.0, 3, ridge=0.1),
    "one_hot_poisson": OneHotPoisson(COLUMNS, 3.0, count_bound=9.0),
}
each_problem = pytest.mark.parametrize("name", PROBLEMS)


def people(problem, rng, users=USERS, wild=False):
    """Users of three samples each; wild ones hold anything, and unusable cells."""
    samples = users * SAMPLES
    targets = rng.integers(0, 2, samples).astype(np.float32)
    if wild:
        targets = rng.choice(np.float32([0.0, 1.0, -1e9, 1e9, np.nan]), samples, p=[0.3, 0.3, 0.15, 0.15, 0.1])
    if not problem.sparse and isinstance(problem, OneHotPoisson):
        return federation_of(rng.integers(-1 if wild else 0, COLUMNS, (samples, 1)), [SAMPLES] * users, targets)
    cells = rng.choice([0.0, 0.0, 1.0, 0.5], (samples, COLUMNS))
    if wild:
        cells = rng.choice([0.0, 0.0, 1.0, -1.0, 1e-4, 1e9, -1e9], (samples, COLUMNS))
    offsets = np.arange(users + 1) * SAMPLES
    return ColumnarFederation(Block(csr_array(cells.astype(np.float32)), offsets, targets))


def replaced(federation, who, by):
    """The same users, one of them replaced by the first of others."""
    order = np.arange(federation.users)
    whole = federation.block(order).followed_by(by.block(np.array([0])))
    order[who] = federation.users
    return ColumnarFederation(whole).select(order)


def codes(federation):
    """One-hot codes as the integers that they are."""
    block = federation.block(np.arange(federation.users))
    if block.features.dtype != np.float32 or isinstance(block.features, csr_array):
        return federation
    return ColumnarFederation(Block(block.features.astype(np.int32), block.offsets, block.targets))


def walked(name, **options):
    """Yield (strategy before a round, its number), round after round with some ordinary users."""
    method = make(Auto, PROBLEMS[name], USERS, delta=1e-3, **options)
    ordinary = codes(people(method.problem, np.random.default_rng(7)))
    for index, stage in enumerate(method.scheme.stages):
        yield method, index
        x = method.problem.domain.project(method.memory.model)
        stage.take(method.memory, gathered(method, ordinary, index, x).values, Watched())


def noted(method, index, sums):
    """The releases of a round with these sums, and how far one user may move each."""
    watched = Watched()
    method.scheme.stages[index].take(deepcopy(method.memory), sums, watched)
    return watched.noted


# --- Formal guarantee ------------------------------------------------------------------------------------------------


@each_problem
def test_one_user_moves_every_release_by_at_most_what_is_stated(name):
    rng = np.random.default_rng(3)
    for method, index in walked(name):
        x = method.problem.domain.project(method.memory.model)
        computation = requested(method, index).computation
        for wild in (False, True, True):
            some, other = (codes(people(method.problem, rng, wild=wild)) for _ in range(2))
            who = int(rng.integers(USERS))
            near = replaced(some, who, other)
            one, two = (noted(method, index, gathered(method, each, index, x).values) for each in (some, near))
            for (first, movement, _), (second, again, _) in zip(one, two, strict=True):
                assert movement == again
                assert np.linalg.norm(first - second) <= movement.replaced * (1 + 1e-9)
            alone = Node(method.problem, some, np.arange(USERS)).compute(x, np.array([who]), computation).values
            row = np.asarray(alone.toarray() if isinstance(alone, csr_array) else alone)[0]
            for part, movement, _ in noted(method, index, row):
                assert np.linalg.norm(part) <= movement.added * (1 + 1e-9)


def test_slope_and_size_of_the_sum_of_columns_move_together():
    """A user of the steepest slope, and one of empty samples, who has none."""
    stage, sums = SumOfColumns(PROBLEMS["sparse_squared"]), []
    method, watched = make(Auto, stage.model, USERS, delta=1e-3), Watched()
    for cell in (1.0, 0.0):
        cells = np.zeros((SAMPLES, COLUMNS), dtype=np.float32)
        cells[:, :2] = cell
        block, _ = stage.model.bound(Block(csr_array(cells), np.array([0, SAMPLES]), np.ones(SAMPLES, np.float32)))
        node = Node(stage.model, ColumnarFederation(block), np.arange(1))
        values = node.compute(np.zeros(COLUMNS), np.arange(1), stage.computation(method.memory)).values[0]
        sums.append(values)
        stage.take(deepcopy(method.memory), values, watched)
    apart = np.linalg.norm(sums[0] - sums[1])
    assert apart == pytest.approx(math.sqrt(1.25), rel=1e-6)
    assert all(movement.replaced >= apart for _, movement, _ in watched.noted)


def test_mean_squares_of_users_without_a_common_column_are_the_root_of_two_apart():
    problem, found = PROBLEMS["sparse_squared"], []
    for column in (0, 4):
        cells = np.zeros((SAMPLES, COLUMNS), dtype=np.float32)
        cells[:, column] = 1.0
        block = Block(csr_array(cells), np.array([0, SAMPLES]), np.zeros(SAMPLES, dtype=np.float32))
        node = Node(problem, ColumnarFederation(block), np.arange(1))
        found.append(node.compute(np.zeros(COLUMNS), np.arange(1), Computation("column_moments", "sum", 0.7)).values)
    apart = float(np.linalg.norm((found[0] - found[1]).toarray()))
    asked = Computation("column_moments", "sum", 0.7)
    assert apart == pytest.approx(asked.sensitivity("replace_one")) == pytest.approx(math.sqrt(2) * 0.7)


# --- What becomes of releases ----------------------------------------------------------------------------------------


def test_rounds_of_sparse_and_of_one_hot_columns():
    kinds = [type(stage) for stage in make(Auto, PROBLEMS["sparse_squared"], USERS).scheme.stages]
    assert kinds.count(SumOfColumns) == kinds.count(ColumnMoments) == 1
    assert kinds[-1] is Choice
    assert Counts in [type(stage) for stage in make(Auto, PROBLEMS["one_hot_poisson"], USERS).scheme.stages]


@pytest.mark.parametrize(("share", "sign", "level"), [(0.9, 1.0, 0.8), (0.9, 0.0, 0.0), (0.02, 1.0, 0.0)])
def test_training_starts_at_one_level_unless_the_sum_of_columns_is_unknown_or_teaches_nothing(share, sign, level):
    """The third sum is hardly more than its noise."""
    stage = SumOfColumns(PROBLEMS["sparse_squared"])
    method = make(Auto, stage.model, USERS)
    watched = Watched(answer=np.array([-0.4 * share * sign, share - 0.5]), deviation=0.01)
    stage.take(method.memory, np.zeros(2), watched)
    # All samples have two columns of 1 / sqrt(2), times the share; a score of the level predicts the mean.
    np.testing.assert_allclose(method.memory.model * share * math.sqrt(2.0), level, atol=1e-12)


@pytest.mark.parametrize("mean", [0.05, 0.3, 0.9])
def test_training_of_hazards_starts_at_their_mean(mean):
    """At a score of zero the slope of a target y is 1 - y e / (e - 1): it falls by 1.58 from 0 to 1."""
    stage, share = SumOfColumns(SparseCloglog(COLUMNS, 1.0, 2, 50.0)), 0.9
    method, slope = make(Auto, stage.model, USERS), 1 - mean * math.e / (math.e - 1)
    watched = Watched(answer=np.array([slope / 2 * share, share - 0.5]), deviation=1e-6)
    stage.take(method.memory, np.zeros(2), watched)
    score = method.memory.model * share * math.sqrt(2.0)
    np.testing.assert_allclose(-np.expm1(-np.exp(score)), mean, rtol=1e-4)


def test_columns_that_noise_hides_are_shrunk_and_the_others_equally_curved():
    coordinates, deviation = column_coordinates(PROBLEMS["sparse_squared"]), 0.01
    moments = np.array([0.3, 0.1, 0.05, 0.02, 0.006, 0.001])
    assert coordinates.learn(moments, deviation, 0.0).tolist() == [False] * 3 + [True] * 3
    np.testing.assert_allclose(coordinates.seen[:3], 1.0)
    np.testing.assert_allclose(coordinates.scales[:3], moments[:3] ** -0.5)
    np.testing.assert_allclose(coordinates.scales[3:6], math.sqrt(0.009) / (SHOWN * deviation))
    assert coordinates.scales[6] == coordinates.seen[6] == 0  # the size of the sum is unknown


def test_steps_end_where_effects_of_one_normal_law_are_expected():
    """The steps would end at each column's posterior mean under a known law; it is estimated from 4,000 columns."""
    rng, p, law, noise = np.random.default_rng(5), 4000, 0.5, 0.02
    coordinates = ColumnCoordinates.plain(p, 1, 1.0)
    coordinates.learn(rng.uniform(0.05, 0.2, p), 1e-6, 0.0)
    curved = coordinates.seen[:-1] / coordinates.scales[:-1]  # of the descent, for each unit of effect
    descent = curved * law * rng.normal(size=p) + noise * rng.normal(size=p)
    variance, z = np.full(p + 1, noise**2), np.zeros(p + 1)
    for _ in range(3):
        z = z + coordinates.step(np.append(descent, 0.3) - coordinates.seen * z, variance, z)
    kept = (curved * law) ** 2 / ((curved * law) ** 2 + noise**2)
    np.testing.assert_allclose(z[:-1], kept * descent, rtol=0.02)
    assert z[-1] == pytest.approx(0.3)  # the common level is not shrunk


def test_noise_alone_is_not_followed_and_shortens_no_step():
    rng, p, noise = np.random.default_rng(6), 2000, 0.1
    method = make(Auto, SparseSquared(p, 1.0, 2, 5.0, low=-1.0, high=1.0), USERS)
    progress = method.memory
    progress.columns.common = 1.0
    progress.columns.learn(np.full(p, 1 / p), 1e-6, 0.0)
    for _ in range(15):
        progress.learn(progress.space.seen * progress.z + noise * rng.normal(size=p + 1), noise)
        progress.move = progress.towards(progress.known)
        progress.z = progress.z + progress.move
    assert progress.damping == 2.0
    assert np.linalg.norm(progress.z[:-1]) < 0.2 * noise * math.sqrt(p / 15)


def test_columns_that_come_together_shorten_steps():
    method = make(Auto, PROBLEMS["sparse_logistic"], USERS)
    progress = method.memory
    progress.columns.learn(np.full(COLUMNS, 0.5), 1e-9, 0.0)
    together = np.ones((COLUMNS, COLUMNS))  # of curvature six along their sum
    best = np.append(np.ones(COLUMNS), 0.0)
    for _ in range(40):
        slope = progress.curvature * together @ (progress.z - best)[:-1]
        progress.learn(np.append(slope, 0.0), 1e-9)
        progress.move = progress.towards(progress.known)
        progress.z = progress.z + progress.move
    assert 3.0 < progress.damping <= 6.0 + 1e-9
    np.testing.assert_allclose(progress.z[:-1].sum(), COLUMNS, rtol=1e-3)


def test_a_prediction_is_doubted_only_where_columns_come_together():
    for entries, factor in ((1, 0.0), (2, 1.0), (20, 1.0)):
        coordinates = ColumnCoordinates.plain(3, entries, 0.0)
        coordinates.learn(np.array([0.4, 0.2, 0.1]), 1e-9, 0.0)
        np.testing.assert_allclose(coordinates.doubt(np.array([2.0, 1.0, 0.0, 3.0])), factor * np.array([4, 1, 0, 0]))


# --- What its defaults reach -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_rare_levels_learn_more_than_one_constant(epsilon):
    """A thousand levels of one column, by Zipf's law; users have a level of their own."""
    rng, users, levels = np.random.default_rng(2), 2000, 1000
    chance = 1 / np.arange(1, levels + 1)
    cells = rng.choice(levels, users * 10, p=chance / chance.sum())
    effects = 0.4 * rng.normal(size=levels)
    targets = 0.5 + effects[cells] + np.repeat(0.3 * rng.normal(size=users), 10) + 0.5 * rng.normal(size=users * 10)
    problem = OneHotSquared(levels, 5.0, low=-2.0, high=2.0)
    block = Block(cells[:, None].astype(np.int32), np.arange(users + 1) * 10, targets.astype(np.float32))
    x = final(run(make(Auto, problem, users, epsilon, 1e-5), ColumnarFederation(block)))
    fresh = rng.choice(levels, 20_000, p=chance / chance.sum())
    gained = np.mean((effects[fresh] - effects[fresh].mean()) ** 2 - (0.5 + effects[fresh] - x[fresh]) ** 2)
    assert gained > (0.45 if epsilon == 4.0 else 0.2) * effects[fresh].var()
