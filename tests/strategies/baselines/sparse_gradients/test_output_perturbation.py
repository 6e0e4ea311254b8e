"""Output perturbation: nearest points in the sup norm, the descent, sensitivities, risk, and the strategy."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import ChangedNode, federation_of, final, make, noise_again, run, taken
from helpers_audits import epsilon_lower_bound
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from scipy.sparse import csr_array

from simulations.engines.grids import LocalGrid, shards
from strategies import OutputPerturbation, model_record
from strategies.baselines.regressions import LpRegression
from strategies.baselines.sparse_gradients.accelerated import AcceleratedDescent, gap_after, rounds_until
from strategies.baselines.sparse_gradients.output_perturbation import ReleaseLedger
from strategies.baselines.sparse_gradients.perturbed_minimiser import ConvexRisk, PerturbedMinimiser
from strategies.wire.replies import Gathered
from userdp.accounting import Cost, Privacy
from userdp.errors import BadInput, MissingAssumption, RunFailed
from userdp.mechanisms import GaussianMechanism, LaplaceMechanism
from userdp.nodes.node import Node
from userdp.noise import SeededNoise
from userdp.problems import OneHotLogistic, Quadratic


def sup_project_box(point, low, high):
    """The point of ``{x : low <= x <= high}`` nearest to ``point`` (d,) in the sup norm: each coordinate is clipped.

    Clipping moves each coordinate as little as any point of the box can, so it is nearest in every l_p norm. It is
    1-Lipschitz in each coordinate; for a point x of the box the result is therefore no farther from x than ``point``.
    Raises `BadInput`: an empty box.
    """
    if not np.all(np.asarray(low) <= np.asarray(high)):
        raise BadInput("the box is empty: low must not exceed high in any coordinate")
    return np.asarray(np.clip(point, low, high))


def sup_project_ball(point, centre, radius, order):
    """A point of ``{x : ||x - centre||_p <= radius}`` nearest to ``point`` (d,) in the sup norm, any p >= 1.

    *Proof.* Let ``v = point - centre``. A point x within t of ``point`` has ``|x_j - centre_j| >= (|v_j| - t)_+`` for
    each j. So no point of the ball lies within t unless the l_p norm of these numbers, ``soft(v, t)``, is at most
    ``radius``; and then ``centre + soft(v, t)`` does. The answer takes the smallest such t, rounded up.

    The centre is (d,) or a number. Raises `BadInput` for a number out of range, or a point that is not finite.
    """
    if not 0 < radius < np.inf:
        raise BadInput(f"radius = {radius}: must be a positive number")
    if not order >= 1:
        raise BadInput(f"order = {order}: an l_p ball needs p of at least 1")
    offset = np.asarray(point - centre, dtype=np.float64)
    if not np.isfinite(offset).all():
        raise BadInput("a point to project must be finite")
    largest = float(np.abs(offset).max(initial=0.0))

    def excess(threshold: float) -> float:
        return float(np.linalg.norm(_soft(offset, threshold), ord=order)) - radius

    if excess(0.0) <= 0:
        return np.array(point, dtype=np.float64)
    threshold = float(brentq(excess, 0.0, largest, xtol=1e-15 * largest, rtol=1e-14))
    step = 1e-15 * largest
    while excess(threshold) > 0:  # a root may be found from outside, by a hair
        threshold, step = threshold + step, 2 * step
    return np.asarray(centre + _soft(offset, threshold))


def _soft(values, threshold):
    """Values moved towards zero by ``threshold``, at most to zero."""
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - threshold, 0.0))


seeds = st.integers(0, 2**32 - 1)


def sparse_rows(rng, records, dimension, sparsity):
    """(n, d) csr with that many entries +-1/sqrt(s) a row: rows of l2 norm 1."""
    columns = np.array([rng.choice(dimension, sparsity, replace=False) for _ in range(records)])
    values = rng.choice([-1.0, 1.0], columns.shape) / math.sqrt(sparsity)
    return csr_array(
        (values.ravel(), columns.ravel(), np.arange(0, columns.size + 1, sparsity)), shape=(records, dimension)
    )


def logistic(rows):
    """Mean of ln(1 + exp(-<a, x>)) over rows a: L = 1 and H = 1/4 for rows of norm 1."""
    return SimpleNamespace(
        risk=lambda x: float(np.logaddexp(0.0, -(rows @ x)).mean()),
        gradient=lambda x: rows.T @ (-1 / (1 + np.exp(rows @ x))) / rows.shape[0],
    )


def to_ball(radius):
    return lambda x: x * min(1.0, radius / max(float(np.linalg.norm(x)), 1e-300))


def solved(gradient, dimension, weight, smoothness, project=np.asarray, rounds=400):
    """The minimiser of a risk with ridge ``weight``, nearly exact."""
    descent = AcceleratedDescent(np.zeros(dimension), weight, smoothness + weight, project)
    for _ in range(rounds):
        descent.step(gradient(descent.query) + weight * descent.query)
    return descent.point


# --- Nearest points in the sup norm ----------------------------------------------------------------------------------


def nearest_by_program(point, bounds=None, l1_radius=None):
    """The least t with ``|x_j - point_j| <= t`` for some x of the set, by linear programming; x = u - v."""
    d = len(point)
    eye, one = np.eye(d), np.ones((d, 1))
    rows = [np.hstack([eye, -eye, -one]), np.hstack([-eye, eye, -one])]
    limits = [point, -point]
    if l1_radius is not None:
        rows.append(np.concatenate([np.ones(2 * d), [0.0]])[None, :])
        limits.append(np.array([l1_radius]))
    if bounds is not None:
        rows += [np.hstack([eye, -eye, 0 * one]), np.hstack([-eye, eye, 0 * one])]
        limits += [bounds[1], -bounds[0]]
    cost = np.concatenate([np.zeros(2 * d), [1.0]])
    return linprog(cost, np.vstack(rows), np.concatenate(limits)).fun


@pytest.mark.slow
@settings(max_examples=60)
@given(seeds, st.integers(1, 6))
def test_boxes_and_l1_balls_agree_with_linear_programs_c10(seed, d):
    rng = np.random.default_rng(seed)
    point = rng.normal(0, 2, d)
    low = rng.normal(0, 1, d)
    high = low + rng.exponential(1, d)
    clipped = sup_project_box(point, low, high)
    assert np.abs(clipped - point).max() == pytest.approx(nearest_by_program(point, bounds=(low, high)), abs=1e-8)
    in_ball = sup_project_ball(point, 0.0, 0.7, 1)
    assert np.abs(in_ball).sum() <= 0.7 * (1 + 1e-12) or np.array_equal(in_ball, point)
    assert np.abs(in_ball - point).max() == pytest.approx(nearest_by_program(point, l1_radius=0.7), abs=1e-8)


@settings(max_examples=100)
@given(seeds, st.integers(1, 20), st.sampled_from([1.0, 1.5, 2.0, 3.0, math.inf]))
def test_a_ball_has_no_point_nearer_and_the_answer_is_twice_the_noise_at_most_c10(seed, d, order):
    rng = np.random.default_rng(seed)
    centre, inside = rng.normal(0, 1, d), rng.normal(0, 1, d)
    inside = centre + inside / max(1.0, np.linalg.norm(inside, order))
    noisy = inside + rng.normal(0, rng.choice([1e-3, 1.0, 1e3]), d)
    found = sup_project_ball(noisy, centre, 1.0, order)
    assert np.linalg.norm(found - centre, order) <= 1 + 1e-9
    away = float(np.abs(found - noisy).max())
    # The smallest numbers that any point within a slightly smaller t can have are outside the ball.
    least = np.maximum(np.abs(noisy - centre) - away * (1 - 1e-6), 0)
    assert away == 0 or np.linalg.norm(least, order) > 1 - 1e-9
    assert np.abs(found - inside).max() <= 2 * np.abs(noisy - inside).max() * (1 + 1e-9)


@given(seeds, st.integers(1, 20))
def test_a_box_keeps_the_answer_within_the_noise_itself_c10(seed, d):
    rng = np.random.default_rng(seed)
    inside = rng.uniform(-1, 1, d)
    noise = rng.normal(0, 2, d)
    assert np.all(np.abs(sup_project_box(inside + noise, -1.0, 1.0) - inside) <= np.abs(noise) + 1e-15)


def test_what_cannot_be_projected_is_refused_c10():
    with pytest.raises(BadInput, match="the box is empty"):
        sup_project_box(np.zeros(2), 1.0, 0.0)
    with pytest.raises(BadInput, match="radius = 0"):
        sup_project_ball(np.zeros(2), 0.0, 0.0, 2)
    with pytest.raises(BadInput, match=r"order = 0\.5"):
        sup_project_ball(np.zeros(2), 0.0, 1.0, 0.5)
    with pytest.raises(BadInput, match="must be finite"):
        sup_project_ball(np.array([np.nan]), 0.0, 1.0, 2)


# --- The descent -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25)
@given(seeds, st.sampled_from(["space", "box", "ball"]), st.floats(1e-2, 1.0))
def test_every_step_shrinks_the_gap_as_proven_and_stays_in_the_domain(seed, domain, weight):
    rng = np.random.default_rng(seed)
    d = 6
    project = {"space": np.asarray, "box": lambda x: np.clip(x, -0.3, 0.3), "ball": to_ball(0.4)}[domain]
    loss = logistic(csr_array(rng.normal(0, 0.4, (20, d))))
    beta = float(weight + 0.25 * 20 * 0.16 * 4)  # far above the largest eigenvalue of these Hessians
    best = solved(loss.gradient, d, weight, beta - weight, project, 1000)

    def gap(descent):
        value, least = (loss.risk(x) + weight / 2 * x @ x for x in (descent.point, best))
        return value - least + weight / 2 * float(np.sum((descent._lead - best) ** 2))

    descent = AcceleratedDescent(np.zeros(d), weight, beta, project)
    before = gap(descent)
    for _ in range(30):
        assert np.allclose(project(descent.query), descent.query, atol=1e-15)
        descent.step(loss.gradient(descent.query) + weight * descent.query)
        after = gap(descent)
        assert after <= (1 - math.sqrt(weight / beta)) * before + 1e-12
        before = after


@given(st.floats(1e-12, 1e3), st.floats(1e-6, 1.0))
def test_the_number_of_rounds_is_enough_and_not_one_too_many(target, theta):
    rounds = rounds_until(target, 10.0, theta)
    assert gap_after(rounds, 10.0, theta) <= target
    assert rounds == 1 or gap_after(rounds - 2, 10.0, theta) > target


def test_curvatures_and_targets_out_of_range_are_refused():
    for curvatures in ((0.0, 1.0), (2.0, 1.0), (1.0, math.inf)):
        with pytest.raises(BadInput, match="must be positive numbers"):
            AcceleratedDescent(np.zeros(1), *curvatures, np.asarray)
    with pytest.raises(BadInput, match="target = 0"):
        rounds_until(0.0, 1.0, 0.5)


# --- Sensitivities ---------------------------------------------------------------------------------------------------


def test_scales_of_the_papers_noise_c03():
    risk = ConvexRisk(3000, 800, 5, 1.0, 0.25)
    assert risk.paper_scale(0.05, 1.0, 1e-6) == pytest.approx(0.0706507, abs=5e-8)
    assert risk.paper_scale(0.05, 1.0, 0.0) == pytest.approx(0.463801, abs=5e-7)
    # What is proven here is never more.
    assert risk.mechanism(0.05, 1.0, 1e-6).standard_deviation <= 0.0706507
    assert risk.mechanism(0.05, 1.0, 0.0).scale <= 0.463801


@pytest.mark.slow
@settings(max_examples=30)
@given(seeds, st.floats(0.02, 0.5), st.sampled_from([1, 3]))
def test_neighbours_minimisers_are_no_farther_apart_than_proven_c13(seed, weight, samples):
    """Users of ``samples`` samples each: their mean gradients are not s-sparse."""
    rng = np.random.default_rng(seed)
    users, d, s = 30, 40, 2
    rows = sparse_rows(rng, users * samples, d, s).toarray()
    other = rows.copy()
    other[:samples] = -sparse_rows(rng, samples, d, s).toarray() if rng.random() < 0.5 else -rows[:samples]
    ends = [solved(logistic(csr_array(data)).gradient, d, weight, 0.25) for data in (rows, other)]
    risk = ConvexRisk(users, d, s, 1.0, 0.25)
    assert np.linalg.norm(ends[0] - ends[1]) <= risk.l2_sensitivity(weight)
    assert np.abs(ends[0] - ends[1]).sum() <= risk.l1_sensitivity(weight)


@pytest.mark.slow
@settings(max_examples=30)
@given(seeds, st.floats(0.02, 0.5), st.floats(0.05, 5.0))
def test_dominant_hessians_need_no_smoothness_in_the_l1_bound_in_a_box_too_c13(seed, weight, bound):
    rng = np.random.default_rng(seed)
    users, d = 20, 6
    # One-hot samples, three a user: s = 1 and diagonal Hessians.
    rows = np.zeros((3 * users, d))
    rows[np.arange(3 * users), rng.integers(0, d, 3 * users)] = rng.choice([-1.0, 1.0], 3 * users)
    other = rows.copy()
    other[:3] = -rows[:3]
    ends = [
        solved(logistic(csr_array(data)).gradient, d, weight, 0.25, lambda x: np.clip(x, -bound, bound))
        for data in (rows, other)
    ]
    risk = ConvexRisk(users, d, 1, 1.0, 0.25, diagonally_dominant=True, domain="box")
    assert risk.l1_sensitivity(weight) == pytest.approx(2 / (weight * users))
    assert np.abs(ends[0] - ends[1]).sum() <= risk.l1_sensitivity(weight) * (1 + 1e-9)


def test_the_bounds_are_reached_by_linear_losses_c13():
    n, d, s, weight = 50, 30, 4, 0.1
    row = np.zeros(d)
    row[:s] = 1 / math.sqrt(s)
    ends = [solved(lambda x, sign=sign: sign * row / n, d, weight, 0.0, rounds=5) for sign in (1, -1)]
    risk = ConvexRisk(n, d, s, 1.0, 0.0)
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(risk.l2_sensitivity(weight))
    assert np.abs(ends[0] - ends[1]).sum() == pytest.approx(risk.l1_sensitivity(weight))


def test_the_l1_bound_is_the_least_that_is_proven_c13():
    common = (3000, 800, 5, 1.0)
    assert ConvexRisk(*common, 0.25).l1_sensitivity(0.038) == pytest.approx(0.4042, abs=1e-4)
    dense = math.sqrt(800) * 2 / (0.038 * 3000)
    assert ConvexRisk(*common).l1_sensitivity(0.038) == pytest.approx(dense)
    assert ConvexRisk(*common, 0.25, domain="box").l1_sensitivity(0.038) == pytest.approx(dense)
    assert ConvexRisk(*common, 1e6).l1_sensitivity(0.038) == pytest.approx(dense)
    dominant = {"smoothness": 0.25, "diagonally_dominant": True}
    assert ConvexRisk(*common, **dominant, domain="convex").l1_sensitivity(0.038) == pytest.approx(dense)
    assert ConvexRisk(*common, **dominant, domain="box").l1_sensitivity(0.038) == pytest.approx(
        dense * math.sqrt(5 / 800)
    )


@pytest.mark.slow
@settings(max_examples=15)
@given(seeds, st.sampled_from([1e-6, 0.0]), st.floats(0.05, 0.5))
def test_the_steps_end_as_near_the_minimiser_as_the_sensitivity_counts_on_c13(seed, delta, weight):
    rng = np.random.default_rng(seed)
    loss = logistic(sparse_rows(rng, 40, 10, 2))
    plan = PerturbedMinimiser.planned(ConvexRisk(40, 10, 2, 1.0, 0.25), weight, 1.0, delta, slack=0.05)
    descent = plan.descent(np.zeros(10), np.asarray)
    for _ in range(plan.rounds):
        plan.step(descent, loss.gradient(descent.query), np.zeros(10))
    assert np.linalg.norm(descent.point - solved(loss.gradient, 10, weight, 0.25)) <= plan.distance
    exact, near = plan.risk.mechanism(weight, 1.0, delta), plan.mechanism
    grown = near.scale / exact.scale if delta == 0 else near.standard_deviation / exact.standard_deviation
    assert 1 < grown <= 1.05


def test_the_noise_covers_the_distance_from_both_neighbours_minimisers_c13():
    risk = ConvexRisk(10, 9, 1, 1.0, 1.0)
    gaussian, laplace = (risk.mechanism(0.5, 1.0, delta, distance=0.25) for delta in (1e-3, 0.0))
    assert gaussian.l2_sensitivity == pytest.approx(risk.l2_sensitivity(0.5) + 2 * 0.25)
    assert laplace.sensitivity == pytest.approx(risk.l1_sensitivity(0.5) + 2 * 3 * 0.25)


def test_numbers_out_of_range_are_refused():
    good = {"records": 10, "dimension": 4, "sparsity": 2, "gradient_norm": 1.0}
    for change, message in [
        ({"records": 0}, "records = 0"),
        ({"sparsity": 5}, "sparsity = 5"),
        ({"gradient_norm": math.nan}, "gradient norm = nan"),
        ({"smoothness": -1.0}, "smoothness = -1"),
        ({"domain": "simplex"}, "domain = 'simplex'"),
    ]:
        with pytest.raises(BadInput, match=message):
            ConvexRisk(**good | change)
    risk = ConvexRisk(**good)
    with pytest.raises(BadInput, match="regularisation = nan"):
        risk.l2_sensitivity(math.nan)
    with pytest.raises(BadInput, match="distance = -1"):
        risk.mechanism(1.0, 1.0, 1e-6, -1.0)
    with pytest.raises(BadInput, match="epsilon = 2"):
        risk.paper_scale(1.0, 2.0, 1e-6)
    with pytest.raises(BadInput, match="smooth loss over the whole space"):
        risk.paper_scale(1.0, 1.0, 0.0)
    with pytest.raises(BadInput, match="no certified smoothness"):
        PerturbedMinimiser(risk, 1.0, 1.0, 1e-6, 5)
    with pytest.raises(BadInput, match="rounds = 0"):
        PerturbedMinimiser(ConvexRisk(**good, smoothness=1.0), 1.0, 1.0, 1e-6, 0)
    with pytest.raises(BadInput, match="slack = nan"):
        PerturbedMinimiser.planned(ConvexRisk(**good, smoothness=1.0), 1.0, 1.0, 1e-6, math.nan)
    for radius, failure in ((math.inf, 0.1), (1.0, 0.0)):
        with pytest.raises(BadInput, match=r"radius = inf|failure = 0"):
            risk.best_regularisation(1.0, 1e-6, radius, failure)


# --- Risk ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60)
@given(seeds, st.sampled_from(["space", "box", "convex"]), st.floats(0.05, 1.0), st.floats(1e-3, 1.0))
def test_excess_risk_is_bounded_for_every_noise_and_every_rival_c14(seed, domain, weight, deviation):
    rng = np.random.default_rng(seed)
    n, d, s = 30, 12, 2
    loss = logistic(sparse_rows(rng, n, d, s))
    project, nearest = {
        "space": (np.asarray, np.asarray),
        "box": (lambda x: np.clip(x, -0.2, 0.2), lambda x: sup_project_box(x, -0.2, 0.2)),
        "convex": (to_ball(0.5), lambda x: sup_project_ball(x, 0.0, 0.5, 2)),
    }[domain]
    noise = rng.normal(0, deviation, d) if rng.random() < 0.5 else deviation * rng.choice([-1.0, 1.0], d)
    model = nearest(solved(loss.gradient, d, weight, 0.25, project) + noise)
    risk = ConvexRisk(n, d, s, 1.0, 0.25, domain=domain)
    assert risk.sup_factor == (2 if domain == "convex" else 1)
    for rival in (np.zeros(d), solved(loss.gradient, d, 1e-3, 0.25, project), project(rng.normal(0, 1, d))):
        bound = risk.excess_bound(weight, float(np.abs(noise).max()), float(np.linalg.norm(rival)))
        assert loss.risk(model) - loss.risk(rival) <= bound + 1e-9


@pytest.mark.sweep(1)
@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_excess_stays_below_the_papers_bound_and_its_own_c25(delta):
    rng = np.random.default_rng(5)
    n, d, s, radius, failure = 1000, 300, 5, 3.0, 0.1
    loss = logistic(sparse_rows(rng, n, d, s))
    risk = ConvexRisk(n, d, s, 1.0, 0.25)
    rival = solved(loss.gradient, d, 1e-3, 0.25, to_ball(radius))
    weight, paper = risk.paper_guarantee(1.0, delta, radius, failure)
    plans = [
        (PerturbedMinimiser.planned(risk, weight, 1.0, delta), paper),
        (PerturbedMinimiser.planned(risk, risk.best_regularisation(1.0, delta, radius, failure), 1.0, delta), None),
    ]
    for plan, bound in plans:
        own = plan.excess_bound(radius, failure)
        assert own <= paper  # fewer constants, exact noise
        models = [plan(loss.gradient, np.zeros(d), SeededNoise(rng)) for _ in range(40)]
        failed = np.mean([loss.risk(model) - loss.risk(rival) > (bound or own) for model in models])
        assert failed <= failure
    if delta:
        q = (s * math.log(1.25 / delta) * math.log(2 * d / failure)) ** 0.25 / math.sqrt(n)
        assert (weight, paper) == (pytest.approx(4 * q / radius), pytest.approx(4 * radius * q))


def test_the_weight_for_the_population_is_theorem_7_6s():
    risk = ConvexRisk(5000, 300, 5, 2.0, 0.25)
    spread = math.log(300 / 0.1)
    pure = (2.0**2 * 0.25 / 3.0**2 * 5 * spread / (0.7 * 5000)) ** (1 / 3)
    assert risk.population_regularisation(0.7, 0.0, 3.0, 0.1) == pytest.approx(pure)
    noisy = math.log(5000) * math.log(10) / 5000 + math.sqrt(5 * math.log(1e6) * spread) / (0.7 * 5000)
    assert risk.population_regularisation(0.7, 1e-6, 3.0, 0.1) == pytest.approx(2.0 / 3.0 * math.sqrt(noisy))
    with pytest.raises(BadInput, match="needs a smooth loss"):
        ConvexRisk(5000, 300, 5, 2.0).population_regularisation(0.7, 0.0, 3.0, 0.1)


@pytest.mark.parametrize("delta", [1e-4, 0.0])
def test_a_strategy_for_the_population_has_its_weight_and_promises_the_same(delta):
    own, other = method_of(delta=delta), method_of(delta=delta, risk="population")
    risk = other.scheme.algorithm.risk
    wanted = risk.population_regularisation(4.0, delta, 2.0 * math.sqrt(3), 0.1)
    assert other.plan.numbers["regularisation"] == pytest.approx(wanted, rel=1e-6)
    assert own.plan.numbers["regularisation"] != other.plan.numbers["regularisation"]
    assert own.plan.guarantee.epsilon == pytest.approx(other.plan.guarantee.epsilon)


@pytest.mark.slow
def test_excess_falls_with_the_root_of_n_and_hardly_depends_on_the_dimension_c25():
    """Absolute errors, rounded off within 0.002: L = 1, H = 500; records lie in three blocks of four coordinates."""
    radius, repeats, ends = 1.0, 10, {}
    for n, d in [(1000, 100), (2000, 100), (4000, 100), (8000, 100), (16000, 100), (4000, 10_000)]:
        rng = np.random.default_rng(n + d)
        blocks = np.zeros((3, d))
        blocks[np.arange(12) // 4, np.arange(12)] = 0.5
        shares = np.bincount(rng.integers(0, 3, n), minlength=3) / n
        targets = blocks @ (blocks.sum(axis=0) * radius / math.sqrt(3))
        risk = ConvexRisk(n, d, 4, 1.0, 500.0)
        plan = PerturbedMinimiser.planned(risk, risk.best_regularisation(1.0, 1e-6, radius, 0.1), 1.0, 1e-6)

        def gradient(x, blocks=blocks, shares=shares, targets=targets):
            return (shares * np.clip((blocks @ x - targets) / 0.002, -1, 1)) @ blocks

        models = [plan(gradient, np.zeros(d), SeededNoise(rng)) for _ in range(repeats)]
        excess = [float(shares @ np.abs(blocks @ model - targets)) for model in models]
        assert max(excess) <= plan.excess_bound(radius, 0.1) + 0.002
        ends[n, d] = float(np.mean(excess))
    sizes = [1000, 2000, 4000, 8000, 16000]
    slope = np.polyfit(np.log(sizes), np.log([ends[n, 100] for n in sizes]), 1)[0]
    assert -0.7 < slope < -0.35
    assert ends[4000, 10_000] < 1.6 * ends[4000, 100]


@pytest.mark.parametrize("delta", [1e-3, 0.0])
def test_outputs_do_not_refute_the_guarantee_and_do_refute_half_the_noise_c26(delta):
    """One record, f(x) = <v, x> against <-v, x>, v sparse: the farthest that two minimisers can be apart."""
    runs, d, s, weight, epsilon = 40_000, 5, 2 if delta else 1, 0.5, 1.0
    rng = np.random.default_rng(8)
    v = np.zeros(d)
    v[:s] = 1 / math.sqrt(s)
    mechanism = ConvexRisk(1, d, s, 1.0, 0.0).mechanism(weight, epsilon, delta)
    if delta:
        halved = GaussianMechanism(mechanism.l2_sensitivity / 2, mechanism.noise_multiplier)
    else:
        halved = LaplaceMechanism(mechanism.sensitivity / 2, mechanism.epsilon)
    bounds = []
    for noise in (mechanism, halved):
        ends = [noise.release(np.tile(sign * v / weight, (runs, 1)), SeededNoise(rng)) @ v for sign in (1, -1)]
        bounds.append(epsilon_lower_bound(*ends, delta=delta))
    assert 0.5 < bounds[0] <= epsilon < bounds[1]


# --- The strategy ----------------------------------------------------------------------------------------------------

USERS, LEVELS = 60, 5
PROBLEM = OneHotLogistic(LEVELS, radius=2.0)


def method_of(problem=None, delta=1e-4, users=USERS, **options):
    problem = problem or Quadratic(3, 1.0, 2.0)
    return make(OutputPerturbation, problem, users, 4.0, delta, **options)


def bounded(users=USERS):
    return federation_of(np.random.default_rng(7).uniform(-1, 1, (users, 4, 3)))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("delta", [1e-4, 0.0])
@pytest.mark.parametrize("unit", ["user", "sample"])
def test_the_strategy_is_the_algorithm_and_releases_its_end_alone(delta, unit):
    method = method_of(delta=delta, unit=unit, facts={"samples": 4 * USERS}, seed=5)
    released = []
    result = run(method, bounded(), evaluate_fn=lambda number, arrays: released.append(arrays["x"].numpy()) or None)
    data = bounded().block(np.arange(USERS)).features.astype(np.float64)
    plan, box = method.scheme.algorithm, method.problem.domain
    assert plan.risk.records == (USERS if unit == "user" else 4 * USERS)
    own = plan(
        lambda x: x - data.mean(axis=0), np.zeros(3), noise_again(method, plan.rounds - 1), box.project, box.project
    )
    np.testing.assert_allclose(final(result), own, rtol=1e-9)
    assert not np.any(released[:-1])  # the start, until the end
    assert len(result.rounds) == plan.rounds > 1
    assert result.guarantee.unit == unit
    assert result.guarantee.delta == delta
    assert result.guarantee.epsilon == pytest.approx(4.0)
    assert [record.spent_epsilon for record in result.rounds] == [result.guarantee.epsilon] * plan.rounds
    assert isinstance(plan.mechanism, GaussianMechanism if delta else LaplaceMechanism)


def test_the_start_is_the_centre_of_the_regularisation():
    start = np.array([0.5, -0.5, 1.0])
    method = method_of(regularisation=1e6)
    assert np.abs(final(run(method, bounded(), initial_arrays=model_record(start))) - start).max() < 1e-3


def test_what_is_certified_enters_the_plan_but_for_what_is_proven_over_the_whole_space_alone():
    method = method_of(PROBLEM, delta=0.0, regularisation=0.5)
    assert method.plan.numbers["sparsity"] == 1
    exact = method.scheme.algorithm.risk.l1_sensitivity(0.5)
    assert exact == pytest.approx(2 * PROBLEM.certificate.gradient_norm / (0.5 * USERS))
    assert exact < method.plan.numbers["l1_sensitivity"] <= 1.01 * exact
    assert method.scheme.algorithm.risk.domain == "box"


def test_fewer_rounds_cost_noise_and_no_privacy():
    few, enough = method_of(regularisation=0.1, rounds=2), method_of(regularisation=0.1)
    assert few.plan.guarantee.epsilon == pytest.approx(enough.plan.guarantee.epsilon)
    assert few.plan.noise > 2 * enough.plan.noise


def test_who_is_missing_or_not_finite_ends_the_run_without_a_release():
    def without_numbers(answer):
        return type(answer)(answer.users, answer.values * np.nan, 0)

    def gone(answer):
        raise OSError("this node is gone")

    for change, message in ((without_numbers, "a user did not answer, or sent"), (gone, "users of a cohort did not")):
        method = method_of()
        nodes = [Node(method.problem, bounded(), users) for users in shards(USERS, 20)]
        nodes[1] = ChangedNode(nodes[1], change)
        with LocalGrid(nodes) as grid, pytest.raises(RunFailed, match=message):
            method.start(grid)
        assert not np.any(final(method.result))
    with pytest.raises(BadInput, match=r"strategy\.max_missing = 0\.1"):
        method_of(max_missing=0.1)


@pytest.mark.parametrize(
    "rounds",
    [[{"missing": 1}], [{"broken_sums": 1}], [{"non_finite": 1}, {}], [{}, {"non_finite": 1}], [{}, {"missing": 1}]],
    ids=str,
)
def test_a_user_left_out_of_some_rounds_ends_the_run_whatever_may_be_missing_otherwise(rounds):
    """The steps are those of one fixed problem: not even one user in one round may be left out."""
    method = method_of()
    *before, last = [Gathered(np.zeros(3), **{"missing": 0, "non_finite": 0} | given) for given in rounds]
    for index, gathered in enumerate(before):
        taken(method, index, np.zeros(3), gathered)
    with pytest.raises(RunFailed, match="nothing is released"):
        taken(method, len(before), np.zeros(3), last)


def test_a_user_who_is_zero_throughout_is_a_user_like_any_other():
    wrong = bounded().block(np.arange(USERS)).features.copy()
    wrong[7] = np.nan
    method = method_of()
    with LocalGrid([Node(method.problem, federation_of(wrong), users) for users in shards(USERS, 20)]) as grid:
        result = method.start(grid)
    assert result.guarantee.holds
    assert result.non_finite_users == method.plan.rounds


def test_what_is_not_proven_is_refused_before_data_are_read():
    with pytest.raises(BadInput, match=r"strategy\.radius must be declared"):
        method_of(OneHotLogistic(LEVELS, radius=math.inf))
    assert method_of(OneHotLogistic(LEVELS, radius=math.inf), radius=2.0).scheme.algorithm.risk.domain == "space"
    with pytest.raises(BadInput, match=r"data\.samples must be declared"):
        method_of(unit="sample")
    with pytest.raises(MissingAssumption, match=r"missing: .*bounded Hessian row sums .*not smooth"):
        method_of(LpRegression(3, 1.0, 1.0, order=1.5, low=-1.0, high=1.0))
    hilly = Quadratic(3, 1.0, 2.0)
    hilly.certificate = replace(hilly.certificate, convex=False)
    with pytest.raises(MissingAssumption, match="missing: convex"):
        method_of(hilly)
    with pytest.raises(BadInput, match=r"privacy\.noise = 'secure'"):
        OutputPerturbation().strategy(Quadratic(3, 1.0, 2.0), method_of().public, Privacy(1.0, 1e-4, noise="secure"))


def test_the_plan_says_who_is_trusted_and_when_the_bound_is_empty():
    plan = method_of(users=6).plan
    assert "nodes and the server see the iterates and are trusted" in plan.guarantee.sentence()
    assert any("no better than that of the start" in warning for warning in plan.warnings)
    assert not method_of(users=10**7, delta=1e-9).plan.warnings


def test_a_ledger_of_one_release_counts_rounds_and_charges_once():
    ledger = ReleaseLedger(3, Cost(pure_epsilon=0.5), 2, Privacy(0.5, 0.0))
    assert ledger.epsilon() == 0
    before = ledger.spent()
    ledger.charge(np.arange(3))
    assert ledger.epsilon() == ledger.spent()() == 0.5
    ledger.charge(np.arange(3))
    assert ledger.epsilon() == ledger.spent()() == 0.5
    assert before() == 0
    with pytest.raises(RunFailed, match="3 times where 2 are planned"):
        ledger.charge(np.arange(3))
    with pytest.raises(BadInput, match=r"more than privacy\.epsilon"):
        ReleaseLedger(3, Cost(pure_epsilon=0.6), 2, Privacy(0.5, 0.0))
    with pytest.raises(BadInput, match="rounds = 0"):
        ReleaseLedger(3, Cost(pure_epsilon=0.5), 0, Privacy(0.5, 0.0))
