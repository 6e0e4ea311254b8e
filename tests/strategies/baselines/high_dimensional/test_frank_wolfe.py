"""Private Frank-Wolfe with robust gradients: its properties T6 and T11 to T15, on arrays and as a strategy."""

import math

import numpy as np
import pytest
from helpers import WILD, Wild, federation_of, gathered, local_grid, make, requested, run
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from simulations.config.run_config import parse_config
from simulations.runs.run import run as run_config
from strategies import RobustFrankWolfe, model_record, model_vector
from strategies.baselines.high_dimensional.frank_wolfe import FrankWolfeTheory, Hull, L1Ball, Simplex, step_size
from strategies.baselines.high_dimensional.reference.frank_wolfe import excess_bound, robust_frank_wolfe
from strategies.baselines.smoothed_truncation import largest_truncated, smoothed_truncation_mean
from userdp.errors import BadInput, PopulationTooSmall
from userdp.problems import Quadratic

NO_NOISE = 1e9
PROBLEM = Quadratic(3, 5.0, 2.0)


def theory(dimension=3, samples=600, epsilon=1.0, radius=1.0, **options):
    options = {"second_moment": 2.0} | options
    return FrankWolfeTheory(L1Ball(radius, dimension), dimension, samples, epsilon, **options)


def folds_of(data, rounds):
    """Gradients of ``||w - z||^2 / 2`` at the samples of a fold, in the order of the data."""
    size = len(data) // rounds
    return lambda index, w: w - data[index * size : (index + 1) * size]


def starting_at(dimension, length=0.5):
    start = np.zeros(dimension)
    start[0] = length
    return start


# --- The polytope ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "vertices"),
    [
        (L1Ball(1.5, 4), 1.5 * np.concatenate([np.eye(4), -np.eye(4)])),
        (Simplex(1.5, 4), 1.5 * np.eye(4)),
    ],
    ids=["ball", "simplex"],
)
def test_a_named_polytope_and_the_hull_of_its_vertices_agree(named, vertices):
    hull, rng = Hull(vertices), np.random.default_rng(0)
    assert (named.count, named.diameter) == (hull.count, hull.diameter) == (len(vertices), 3.0)
    assert hull.diameter_l2 == pytest.approx(named.diameter_l2)
    np.testing.assert_array_equal(np.broadcast_to(named.least, 4), hull.least)
    np.testing.assert_array_equal(np.broadcast_to(named.most, 4), hull.most)
    gradient, x = rng.normal(size=4), rng.normal(size=4)
    gaps = [one.scores(gradient) - one.scores(gradient)[0] for one in (named, hull)]
    np.testing.assert_allclose(*gaps, atol=1e-12)
    for vertex in range(hull.count):
        np.testing.assert_allclose(named.towards(x, vertex, 0.3), hull.towards(x, vertex, 0.3))
    for weights in rng.dirichlet(np.ones(hull.count), 20):
        inside = weights @ vertices
        assert named.holds(inside)
        assert hull.holds(inside)
        assert not named.holds(inside + 1.6)
        assert not hull.holds(inside + 1.6)
    assert named.holds(np.zeros(4)) == hull.holds(np.zeros(4)) == (len(vertices) == 8)


def test_a_choice_is_private_however_far_from_zero_the_polytope_lies():
    """Scores that are computed, not exact ones: vertices whose products with a gradient round to its steps of 2."""
    hull, moved, worst = Hull(np.array([[1e16], [1e16 + 2.0]])), 0.01, 0.0
    for gradient in np.linspace(0.3, 0.5, 500):
        laws = [
            log_softmax(hull.scores(np.array([g])) / (2 * hull.score_sensitivity(moved)))
            for g in (gradient, gradient + moved)
        ]
        worst = max(worst, float(np.abs(laws[0] - laws[1]).max()))
    assert 0.4 < worst <= 1 + 1e-9


def test_a_hull_knows_what_it_holds_in_any_units():
    for unit in (1e-12, 1e12):
        hull = Hull(unit * np.array([[3.0, 3.0], [4.0, 3.0], [3.0, 4.0]]))
        assert hull.holds(unit * np.array([3.2, 3.2]))
        assert not hull.holds(unit * np.array([3.6, 3.6]))


# --- T6: privacy of a round ------------------------------------------------------------------------------------------


@pytest.mark.sweep(1)
@pytest.mark.parametrize("mode", ["tight", "paper"])
@pytest.mark.parametrize("beta", [0.3, 1.0, math.inf])
def test_a_round_on_neighbouring_folds_is_pure_t06(mode, beta):
    """The law of the vertex is computed from samples, with all replacements among the worst there can be."""
    given, scale, fold = theory(inverse_variance=beta, mode=mode, epsilon=0.7), 0.5, 4
    rng, worst = np.random.default_rng(0), 0.0
    sensitivity = given.choice_sensitivity(scale, fold)
    far = np.array([0.0, 1e300, -1e300, 1e12, -1e12, math.inf, math.nan, 0.3])
    for _ in range(500):
        rows = rng.choice(far, (fold, 3))
        other = rows.copy()
        other[1] = rng.choice(far, 3)
        laws = [
            log_softmax(0.7 * given.polytope.scores(smoothed_truncation_mean(data, scale, beta)) / (2 * sensitivity))
            for data in (rows, other)
        ]
        worst = max(worst, float(np.abs(laws[0] - laws[1]).max()))
    assert worst <= 0.7 * (1 + 1e-9)
    assert worst > (0.4 if mode == "tight" else 0.05)
    assert given.choice_sensitivity(scale, fold) <= theory(mode="paper").choice_sensitivity(scale, fold)


# --- T11, T12: folds and iterates ------------------------------------------------------------------------------------


def test_a_record_of_fold_t_does_not_touch_what_was_released_before_t11():
    data = np.random.default_rng(0).normal(size=(61, 3))
    changed = data.copy()
    changed[31] = [1e6, -1e6, 1e6]  # of fold 4, folds of 10
    given = theory(samples=61, epsilon=1e3)
    ends = [robust_frank_wolfe(folds_of(d, 6), np.zeros(3), given, 6, 1.0, seed=1) for d in (data, changed)]
    np.testing.assert_array_equal(ends[0][:4], ends[1][:4])
    assert not np.array_equal(ends[0][4:], ends[1][4:])


def test_folds_have_floor_of_n_over_t_samples_t11():
    given = theory(samples=61)
    with pytest.raises(BadInput, match=r"a fold has shape \(10, 3\)"):
        robust_frank_wolfe(lambda index, w: np.zeros((11, 3)), np.zeros(3), given, 6, 1.0, seed=0)
    with pytest.raises(BadInput, match="every round takes fresh ones"):
        robust_frank_wolfe(lambda index, w: np.zeros((1, 3)), np.zeros(3), given, 62, 1.0, seed=0)


def test_iterates_stay_in_the_ball_and_the_start_fades_t12():
    data = 1e9 * np.random.default_rng(0).standard_cauchy((600, 3))
    start = starting_at(3)
    given = theory()
    first = robust_frank_wolfe(folds_of(data, 12), start, given, 12, 1.0, seed=0)
    second = robust_frank_wolfe(lambda index, w: np.ones((50, 3)), start, theory(epsilon=NO_NOISE), 12, 1.0, seed=0)
    assert np.abs(first).sum(axis=1).max() <= 1 + 1e-12
    weight = 2 / (13 * 14)
    assert math.prod(1 - step_size(index) for index in range(12)) == pytest.approx(weight)
    # All gradients are one, so every vertex is a -e_j, and only the start is positive.
    assert (second[-1].sum()) == pytest.approx(weight * 0.5 - (1 - weight))


# --- T13: the bound, and no noise ------------------------------------------------------------------------------------


def test_without_noise_it_is_frank_wolfe_on_truncated_gradients_t13():
    data = np.random.default_rng(0).standard_t(3, (300, 3)) + np.array([0.6, -0.2, 0.0])
    found = robust_frank_wolfe(folds_of(data, 6), np.zeros(3), theory(samples=300, epsilon=NO_NOISE), 6, 2.0, seed=0)
    w = np.zeros(3)
    for index in range(6):
        gradient = smoothed_truncation_mean(folds_of(data, 6)(index, w), 2.0, 1.0)
        best = int(np.argmax(np.abs(gradient)))
        vertex = np.zeros(3)
        vertex[best] = -np.sign(gradient[best])
        w = (1 - step_size(index)) * w + step_size(index) * vertex
        np.testing.assert_allclose(found[index + 1], w, atol=1e-12)


@pytest.mark.parametrize("mode", ["tight", "paper"])
def test_default_scale_and_rounds_minimise_the_bound(mode):
    given = theory(dimension=50, samples=100_000, mode=mode)
    best = minimize_scalar(lambda log_s: given.round_error(20, math.exp(log_s)), bounds=(-5, 10), method="bounded")
    assert given.scale(20) == pytest.approx(math.exp(best.x), rel=1e-3)
    if mode == "tight":

        def bound(rounds):
            return excess_bound(rounds, 4.0, 0.0, given.round_error(rounds, given.scale(rounds)))

        chosen = given.rounds(1.0)
        assert bound(chosen) <= 1.02 * min(bound(rounds) for rounds in range(1, 200))
    assert given.rounds(None) == math.floor(100_000 ** (1 / 3))
    assert theory(samples=40).rounds(1e9) == 1


# --- T15: rates ------------------------------------------------------------------------------------------------------


# --- The strategy ----------------------------------------------------------------------------------------------------


def strategy(users=600, epsilon=1.0, delta=0.0, **options):
    options = {"rounds": 6, "scale": 2.0} | options
    return make(RobustFrankWolfe, options.pop("problem", PROBLEM), users, epsilon, delta, **options)


def test_the_strategy_draws_disjoint_cohorts_without_looking_at_data_t11():
    method = strategy(users=61)
    cohorts = [requested(method, index).users for index in range(6)]
    assert {len(cohort) for cohort in cohorts} == {10}
    assert len(np.unique(np.concatenate(cohorts))) == 60


@pytest.mark.sweep(1)
@pytest.mark.parametrize("unit", ["user", "sample"])
def test_replacing_the_unit_moves_no_score_by_more_than_the_sensitivity_t04(unit):
    """Records are the worst there can be; users have unequal sizes if samples are the unit: the divisor is public."""
    sizes = [1] * 12 if unit == "user" else [1, 5, 2, 4] * 3
    problem, rng, worst = Wild(3), np.random.default_rng(0), 0.0
    method = strategy(
        12, problem=problem, rounds=2, unit=unit, facts={"samples": sum(sizes)}, l1_radius=2.0, inverse_variance=2.0
    )
    assert method.plan.numbers["fold"] == (6 if unit == "user" else 18)
    starts = np.cumsum([0, *sizes])
    for _ in range(300):
        index = int(rng.integers(2))
        codes = rng.integers(0, len(WILD), (sum(sizes), 3))
        user = int(rng.choice(requested(method, index).users))
        other = codes.copy()
        other[starts[user]] = rng.integers(0, len(WILD), 3)
        ends = [
            method.scheme.propose(
                np.zeros(3), gathered(method, federation_of(c, sizes=sizes), index, np.zeros(3)).values
            ).values
            for c in (codes, other)
        ]
        worst = max(worst, float(np.abs(ends[0] - ends[1]).max()))
    assert 0.5 * method.scheme.mechanism.sensitivity < worst <= method.scheme.mechanism.sensitivity * (1 + 1e-9)
    assert method.scheme.mechanism.sensitivity == pytest.approx(
        2 * 2.0 * 2.0 * largest_truncated(2.0) / method.plan.numbers["fold"]
    )


def test_a_user_of_many_samples_is_not_shortened_at_sample_level_t04():
    """A clip of its whole sum would let one sample move what the others add."""
    method = strategy(2, problem=Quadratic(3, 1e6, 2.0), rounds=1, unit="sample", facts={"samples": 20}, scale=1.0)
    values = gathered(method, federation_of(np.full((20, 3), 1e6), sizes=[19, 1]), 0, np.zeros(3)).values
    np.testing.assert_allclose(values, np.full(3, -20 * largest_truncated(1.0)), rtol=1e-9)


def test_the_strategy_is_the_algorithm_on_its_cohorts_t12():
    values = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
    method = strategy(seed=4)
    cohorts = [requested(method, index).users for index in range(6)]
    models = []
    run(method, federation_of(values), 50, evaluate_fn=lambda _, arrays: models.append(model_vector(arrays)))
    wanted = robust_frank_wolfe(
        lambda index, w: w - values[cohorts[index]].astype(np.float64), np.zeros(3), theory(), 6, 2.0, seed=4
    )
    np.testing.assert_allclose(models, wanted, atol=1e-12)
    assert np.abs(models).sum(axis=1).max() <= 1 + 1e-12


POLYTOPES = {
    "simplex": (Simplex(1.0, 3), "simplex"),
    "triangle": (Hull(np.array([[0, 0, 0.5], [0.5, 0, 0], [-0.5, 1, 0]])), [[0, 0, 0.5], [0.5, 0, 0], [-0.5, 1, 0]]),
    "about zero": (
        Hull(np.array([[1.0, 0, 0], [-1, 0.5, 0], [-1, -0.5, 0]])),
        [[1, 0, 0], [-1, 0.5, 0], [-1, -0.5, 0]],
    ),
}


@pytest.mark.parametrize(("polytope", "setting"), POLYTOPES.values(), ids=POLYTOPES)
def test_models_lie_in_the_polytope_of_a_configuration(polytope, setting, tmp_path):
    """End to end; the start is zero, and left behind at once where the polytope does not hold it."""
    config = parse_config({
        "name": "polytope",
        "problem": {"kind": "quadratic", "radius": 2.0, "bound": 5.0},
        "data": {"kind": "synthetic", "population": "gaussian", "dimension": 3, "users": 400, "samples_per_user": 2},
        "privacy": {"epsilon": 8.0, "delta": 0.0},
        "strategy": {"kind": "robust_frank_wolfe", "rounds": 8, "polytope": setting},
    })  # fmt: skip
    found = run_config(config, directory=tmp_path / "run", report=False)
    x = np.asarray(found.model, dtype=np.float64)
    assert polytope.holds(x + 0.0)
    assert found.result["guarantee"]["epsilon"] <= 8.0


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("polytope", "setting"), POLYTOPES.values(), ids=POLYTOPES)
def test_replacing_a_user_changes_no_choice_from_a_polytope_by_more_than_epsilon(polytope, setting):
    """The law of the vertex is computed from the worst users there can be."""
    method, rng, worst = (
        strategy(12, problem=Wild(3), rounds=2, epsilon=0.7, polytope=setting),
        np.random.default_rng(0),
        0,
    )
    mechanism = method.scheme.mechanism
    for _ in range(200):
        codes = rng.integers(0, len(WILD), (12, 3))
        user = int(rng.choice(requested(method, 0).users))
        other = codes.copy()
        other[user] = rng.integers(0, len(WILD), 3)
        laws = [
            log_softmax(
                0.7
                * method.scheme.propose(np.zeros(3), gathered(method, federation_of(c), 0, np.zeros(3)).values).values
                / (2 * mechanism.sensitivity)
            )
            for c in (codes, other)
        ]
        worst = max(worst, float(np.abs(laws[0] - laws[1]).max()))
    assert 0.2 < worst <= 0.7 * (1 + 1e-9)


def test_theorem_3_has_its_own_steps_and_rounds():
    falling, root = strategy(100_000, rounds=None), strategy(100_000, rounds=None, schedule="root")
    assert root.plan.rounds == math.floor(math.sqrt(100_000 / math.log(3 / 0.1)))
    assert falling.plan.rounds != root.plan.rounds
    steps = [follow(t, np.zeros(3), 0)[1]["step"] for follow in [root.scheme.follow] for t in (0, 5)]
    assert steps == [1 / math.sqrt(root.plan.rounds)] * 2
    assert falling.scheme.follow(5, np.zeros(3), 0)[1]["step"] == step_size(5)
    assert strategy(schedule="root", learning_rate=0.25).scheme.follow(5, np.zeros(3), 0)[1]["step"] == 0.25


REFUSED = [
    *[
        (Hull, {"vertices": vertices}, "vertices of shape")
        for vertices in (np.zeros((3, 2)), np.zeros((0, 2)), np.full((2, 2), np.nan), np.zeros(3))
    ],
    *[(Hull, {"vertices": np.array([[size], [-size]])}, "from 3e-151 to 3e.150 apart") for size in (1e308, 1e-320)],
    *[(strategy, {"l1_radius": 1e-320, "polytope": named}, "from 3e-151") for named in ("l1_ball", "simplex")],
    *[
        (theory, {name: value}, name)
        for name, value in (("epsilon", 0.0), ("second_moment", -1.0), ("inverse_variance", math.nan), ("failure", 1.0))
    ],
    (strategy, {"l1_radius": 2.5}, r"strategy.l1_radius = 2.5: the l1 ball about zero must lie in .* room for 2"),
    (strategy, {"rounds": 601}, r"strategy.rounds = 601: every round takes fresh users, and there are 600"),
    (strategy, {"polytope": [[1.0, 0.0], [0.0, 1.0]]}, r"polytope: vertex 1 has 2 entries, and models have 3"),
    (strategy, {"polytope": [[1.0, 0.0, 3.0], [0.0, 1.0, 0.0]]}, r"polytope: the hull of 2 vertices reaches 3 .* 2"),
    (strategy, {"polytope": [[1.0, 0.0, 0.0]]}, "at least two different"),
    (strategy, {"polytope": "simplex", "l1_radius": 2.5}, r"simplex of entries that add up to 2.5 reaches 2.5"),
    (strategy, {"unit": "sample"}, r"data.samples must be declared"),
    (strategy, {"l1_radius": math.inf}, r"strategy.l1_radius = inf"),
]


@pytest.mark.parametrize(
    ("make", "options", "message"), REFUSED, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_what_cannot_be_promised_is_refused_before_data_are_read(make, options, message):
    with pytest.raises((BadInput, PopulationTooSmall), match=message):
        make(**options)


def test_a_start_outside_the_ball_is_refused():
    method = strategy()
    with local_grid(PROBLEM, federation_of(np.zeros((600, 3)))) as grid, pytest.raises(BadInput, match=r"l1 norm 1\.5"):
        method.start(grid, model_record(np.full(3, 0.5)))


def test_few_users_are_warned_about():
    assert "may miss" in strategy(users=12, epsilon=0.1).plan.warnings[0]
    assert strategy(users=60_000).plan.warnings == ()
