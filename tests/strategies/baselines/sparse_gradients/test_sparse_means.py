"""Private means of sparse vectors: projections, the projection mechanism, recovery by basis pursuit, blocks.

Numbers in names are those of a catalogue of properties of sparse gradients.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog, minimize, minimize_scalar

from strategies.baselines.sparse_gradients.projection_mechanism import (
    ProjectionMechanism,
    SparseVectors,
    classical_multiplier,
)
from strategies.baselines.sparse_gradients.recovery import (
    SparseRecovery,
    basis_pursuit,
    gershgorin_stretch,
    least_measurements,
    stretch_bound,
)
from strategies.baselines.sparse_gradients.reference.hard_instances import block_data, hardest_blocks
from userdp.arrays import clip_rows
from userdp.arrays.projections import project_l1, project_l1_l2
from userdp.errors import BadInput
from userdp.mechanisms import GaussianMechanism
from userdp.noise import SeededNoise


def enforce_membership(rows, sparsity, norm):
    """Rows with their s largest entries kept, scaled down to l2 norm at most L."""
    values = np.array(rows, dtype=np.float64)
    np.put_along_axis(values, np.argsort(np.abs(values), axis=1)[:, :-sparsity], 0.0, axis=1)
    return clip_rows(values, norm)


scales = st.sampled_from([1e-200, 1e-3, 1.0, 1e3, 1e200])
vectors = arrays(np.float64, st.integers(1, 12), elements=st.floats(-1, 1, width=32))


# --- c01: projections ----------------------------------------------------------------------------------------------


def farthest(direction, l1_radius, l2_radius):
    """Bound on ``<direction, z>`` over both balls by duality: ``r1 t + r2 ||soft(direction, t)||_2``, any t >= 0."""

    def bound(t):
        return l1_radius * t + l2_radius * float(np.linalg.norm(np.maximum(np.abs(direction) - t, 0)))

    most = float(np.abs(direction).max())
    inner = minimize_scalar(bound, bounds=(0, most), method="bounded", options={"xatol": 1e-12, "maxiter": 500})
    return min(bound(0.0), bound(most), float(inner.fun))


def check_nearest(vector, point, l1_radius, l2_radius):
    """A point of a convex set is the nearest one iff no other lies further in the direction to the vector."""
    assert np.abs(point).sum() <= l1_radius * (1 + 1e-12)
    assert np.linalg.norm(point) <= l2_radius * (1 + 1e-12)
    assert farthest(vector - point, l1_radius, l2_radius) <= (vector - point) @ point + 1e-9


@pytest.mark.slow
@settings(max_examples=300)
@given(vectors, scales, st.floats(0.05, 4))
def test_the_l1_projection_is_feasible_optimal_and_idempotent_c01(vector, scale, ratio):
    vector, radius = vector * scale, ratio * scale
    point = project_l1(vector, radius)
    if np.abs(vector).sum() <= radius:
        np.testing.assert_array_equal(point, vector)
    else:
        assert np.abs(point).sum() == pytest.approx(radius, rel=1e-12)
    # One threshold for all: what is left is the vector, moved towards zero by the same amount.
    moved = np.abs(vector) - np.abs(point)
    threshold = moved.max()
    np.testing.assert_allclose(np.maximum(np.abs(vector) - threshold, 0), np.abs(point), atol=1e-12 * scale)
    assert (np.sign(point) * np.sign(vector) >= 0).all()
    np.testing.assert_allclose(project_l1(point, radius), point, atol=1e-14 * scale)


@pytest.mark.slow
@settings(max_examples=300)
@given(vectors, scales, st.floats(0.05, 4), st.floats(0.05, 2))
def test_the_projection_on_both_balls_is_feasible_optimal_and_idempotent_c01(vector, scale, l1_ratio, l2_ratio):
    vector, l1_radius, l2_radius = vector * scale, l1_ratio * scale, l2_ratio * scale
    point = project_l1_l2(vector, l1_radius, l2_radius)
    check_nearest(vector / scale, point / scale, l1_ratio, l2_ratio)
    np.testing.assert_allclose(project_l1_l2(point, l1_radius, l2_radius), point, atol=1e-12 * scale)
    if np.abs(vector).sum() <= l1_radius and np.linalg.norm(vector / scale) <= l2_ratio:
        np.testing.assert_array_equal(point, vector)


@pytest.mark.parametrize("seed", range(6))
def test_projections_agree_with_a_quadratic_program_c01(seed):
    rng = np.random.default_rng(seed)
    vector, s, norm = rng.normal(size=6), float(rng.uniform(1, 4)), float(rng.uniform(0.2, 1.0))
    l1_radius = norm * math.sqrt(s)
    parts = {"type": "ineq", "fun": lambda z: l1_radius - z.sum()}
    ball = {"type": "ineq", "fun": lambda z: norm**2 - ((z[:6] - z[6:]) ** 2).sum()}
    for constraints, point in (
        ([parts], project_l1(vector, l1_radius)),
        ([parts, ball], project_l1_l2(vector, l1_radius, norm)),
    ):
        solved = minimize(
            lambda z: ((z[:6] - z[6:] - vector) ** 2).sum(),
            np.full(12, 1e-3),
            bounds=[(0, None)] * 12,
            constraints=constraints,
            options={"ftol": 1e-15, "maxiter": 500},
        )
        np.testing.assert_allclose(point, solved.x[:6] - solved.x[6:], atol=2e-6)


def test_projections_of_huge_and_tiny_numbers_c01():
    np.testing.assert_allclose(project_l1([1e308] * 4, 1.0), [0.25] * 4)
    np.testing.assert_allclose(project_l1([1e300, 1.0], 1e-300), [1e-300, 0.0])
    np.testing.assert_array_equal(project_l1([5e-324, 0.0], 1.0), [5e-324, 0.0])
    np.testing.assert_allclose(project_l1_l2([1e308] * 4, 1e10, 1.0), [0.5] * 4)
    # Four equal entries have the ratio 2 of both radii, whatever lies below them.
    np.testing.assert_allclose(
        project_l1_l2([5.0, -5.0, 5.0, 5.0, 1.0], 2.0, 1.0), [0.5, -0.5, 0.5, 0.5, 0], atol=1e-15
    )
    np.testing.assert_array_equal(project_l1_l2(np.zeros(3), 1.0, 1.0), np.zeros(3))


# --- Members -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data(), st.integers(1, 5))
def test_replacing_a_record_moves_the_mean_by_at_most_the_sensitivities(data, sparsity):
    rows = data.draw(arrays(np.float64, (5, 7), elements=st.floats(-3, 3, width=32)))
    made = enforce_membership(rows, sparsity, 0.9)
    neighbours = [made[[0, 1, 2]].mean(axis=0), made[[3, 1, 2]].mean(axis=0)]
    difference = neighbours[0] - neighbours[1]
    members = SparseVectors(sparsity, 0.9)
    pure, approximate = (ProjectionMechanism(3, members, 1.0, delta).mechanism for delta in (0, 1e-6))
    assert np.abs(difference).sum() <= pure.sensitivity * (1 + 1e-12)
    assert np.linalg.norm(difference) <= approximate.l2_sensitivity * (1 + 1e-12)


def test_the_sensitivities_are_attained_by_opposite_records():
    vector = np.array([0.5, 0.5, 0.5, 0.5, 0.0])
    difference = (vector - -vector) / 10
    members = SparseVectors(4, 1.0)
    assert ProjectionMechanism(10, members, 1.0, 0).mechanism.sensitivity == pytest.approx(np.abs(difference).sum())
    mechanism = ProjectionMechanism(10, members, 1.0, 1e-6).mechanism
    assert mechanism.l2_sensitivity == pytest.approx(np.linalg.norm(difference))


# --- c03: noise scales ---------------------------------------------------------------------------------------------


def test_noise_scales_of_the_paper_c03():
    members = SparseVectors(4, 1.0)
    assert ProjectionMechanism(1000, members, 1.0, 0.0).mechanism.scale == pytest.approx(0.004, rel=1e-12)
    classical = ProjectionMechanism(1000, members, 1.0, 1e-6, "classical").mechanism
    assert classical.standard_deviation == pytest.approx(0.0105976, abs=5e-8)
    analytic = ProjectionMechanism(1000, members, 1.0, 1e-6).mechanism
    assert 0.5 * classical.standard_deviation < analytic.standard_deviation < classical.standard_deviation
    recovery = SparseRecovery(1000, 2000, members, 1.0, 1e-6, "paper", measurements=600)
    deviation = recovery.mechanism(np.zeros((600, 2000))).standard_deviation
    assert deviation == pytest.approx(0.0162841, abs=5e-8)


def test_measurements_of_the_paper_c03():
    recovery = SparseRecovery(1000, 20_000, SparseVectors(4, 1.0), 1.0, 1e-6, "paper")
    assert recovery.count == 1571
    assert round(recovery.count * math.log(recovery.count) ** 2) == 85_088
    assert recovery.low_dimensional
    assert recovery.projection.mechanism.standard_deviation == pytest.approx(0.0105976, abs=5e-8)


# --- c11, c12: recovery --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "m", "s", "noise"), [(200, 60, 3, 0.0), (300, 80, 5, 0.05), (400, 40, 20, 0.1)])
def test_basis_pursuit_solves_the_equations_with_the_least_l1_norm_c11(d, m, s, noise):
    rng = np.random.default_rng(d + m)
    truth = np.zeros(d)
    truth[rng.permutation(d)[:s]] = rng.normal(size=s)
    matrix = rng.normal(size=(m, d)) / math.sqrt(m)
    target = matrix @ truth + noise * rng.normal(size=m)
    found = basis_pursuit(matrix, target)
    least = linprog(np.ones(2 * d), A_eq=np.hstack([matrix, -matrix]), b_eq=target, method="highs").fun
    assert np.abs(matrix @ found - target).max() < 1e-6
    assert least * (1 - 1e-9) <= np.abs(found).sum() <= least * (1 + 1e-3)
    if noise == 0:
        np.testing.assert_allclose(found, truth, atol=1e-5)


def test_basis_pursuit_of_nothing_is_nothing_c11():
    np.testing.assert_array_equal(basis_pursuit(np.eye(2, 5), np.zeros(2)), np.zeros(5))


def recovery_of(isometry="gershgorin", records=3000, dimension=600, **change):
    return SparseRecovery(
        records, dimension, SparseVectors(2, 1.0), 1.0, 1e-6, isometry, **{"measurements": 60} | change
    )


@pytest.mark.sweep(1)
@pytest.mark.parametrize("isometry", ["kappa", "gershgorin"])
def test_a_release_can_be_repeated_and_comes_close_c11(isometry):
    mean = block_data(3000, 600, 2, 4, 1.0, np.random.default_rng(1)).mean(axis=0)
    recovery = recovery_of(isometry)
    releases = [
        recovery.release(mean, np.random.default_rng(2), SeededNoise(np.random.default_rng(3))) for _ in range(2)
    ]
    np.testing.assert_array_equal(*releases)
    # Measured: 0.07 and 0.06; the mean itself has norm 0.5.
    assert np.linalg.norm(releases[0] - mean) < 0.15


def test_the_measurements_get_the_noise_of_their_mechanism_c11():
    recovery = recovery_of()
    matrix = recovery.matrix(np.random.default_rng(2))
    assert matrix.shape == (60, 600)
    assert (matrix**2).sum(axis=0).mean() == pytest.approx(1, rel=0.05)
    mechanism = recovery.mechanism(matrix)
    assert mechanism.l2_sensitivity == pytest.approx(2 * gershgorin_stretch(matrix, 2) / 3000)
    assert mechanism == GaussianMechanism.calibrated(mechanism.l2_sensitivity, 1.0, 1e-6)
    half = recovery_of("kappa").mechanism(matrix)
    assert half.noise_multiplier == GaussianMechanism.calibrated(1.0, 1.0, 5e-7).noise_multiplier
    assert half.l2_sensitivity == pytest.approx(2 * stretch_bound(60, 600, 2, 5e-7) / 3000)
    with pytest.raises(BadInput, match=r"the matrix must be \(60, 600\)"):
        recovery.mechanism(matrix[:5])


@pytest.mark.parametrize("change", [{"records": 20}, {"records": 2, "measurements": None}])
def test_where_noise_would_drown_everything_the_answer_is_zero_whatever_the_data_c11(change):
    recovery = recovery_of(**change)
    for mean in (np.zeros(600), np.eye(600)[0]):
        released = recovery.release(mean, np.random.default_rng(2), SeededNoise(np.random.default_rng(3)))
        np.testing.assert_array_equal(released, np.zeros(600))


def test_in_low_dimensions_it_is_the_projection_mechanism_c11():
    recovery = recovery_of(measurements=None)
    assert recovery.low_dimensional
    mean = np.zeros(600)
    mean[:2] = 0.5
    same = recovery.projection.release(mean, SeededNoise(np.random.default_rng(3)))
    released = recovery.release(mean, np.random.default_rng(2), SeededNoise(np.random.default_rng(3)))
    np.testing.assert_array_equal(released, same)


def worst_stretch(matrix, sparsity, rng, trials=200):
    """Largest stretch of random and of greedily chosen supports: the largest singular value of their columns."""
    d = matrix.shape[1]
    supports = [rng.permutation(d)[:sparsity] for _ in range(trials)]
    gram = np.abs(matrix.T @ matrix)
    order = np.argsort(-np.linalg.norm(matrix, axis=0))[:20]
    supports += [np.argsort(-gram[j])[:sparsity] for j in order]
    return max(float(np.linalg.norm(matrix[:, support], 2)) for support in supports)


def test_the_stretch_of_a_matrix_is_never_exceeded_c12():
    """Neither s-sparse records nor means of them exceed it; replacing one moves the measurements by twice as much."""
    rng = np.random.default_rng(0)
    for m, s in ((10, 2), (20, 2), (40, 4), (100, 3)):
        matrix = rng.normal(size=(m, 200)) / math.sqrt(m)
        bound = gershgorin_stretch(matrix, s)
        assert worst_stretch(matrix, s, rng) <= bound
        for rows in rng.normal(size=(20, 9, 200)):
            made = enforce_membership(rows, s, 1.0)
            assert np.linalg.norm(matrix @ (made[:4].mean(axis=0) - made[4:].mean(axis=0))) <= 2 * bound
    matrix = rng.normal(size=(3, 50))
    assert gershgorin_stretch(matrix, 1) == pytest.approx(np.linalg.norm(matrix, axis=0).max())


@pytest.mark.slow
def test_the_largest_inner_product_is_found_in_any_block_of_columns_c12():
    matrix = np.random.default_rng(1).normal(size=(5, 3000))
    gram = matrix.T @ matrix
    longest = gram.diagonal().max()
    np.fill_diagonal(gram, 0)
    assert gershgorin_stretch(matrix, 3) == pytest.approx(math.sqrt(longest + 2 * np.abs(gram).max()))


@pytest.mark.parametrize(("m", "d", "s"), [(20, 30, 1), (40, 30, 2)])
def test_the_stretch_bound_fails_no_more_often_than_it_says_c12(m, d, s):
    """All supports of each of 1,000 matrices are looked at. The bound exceeds the 95% quantile by about two fifths."""
    rng, failure = np.random.default_rng(0), 0.05
    bound = stretch_bound(m, d, s, failure)
    if s == 1:
        stretches = [np.linalg.norm(rng.normal(size=(m, d)) / math.sqrt(m), axis=0).max() for _ in range(1000)]
    else:
        grams = (a.T @ a / m for a in rng.normal(size=(1000, m, d)))
        stretches = [math.sqrt(largest_pair(gram)) for gram in grams]
    assert np.mean(np.array(stretches) > bound) <= failure
    assert bound <= 1.5 * np.quantile(stretches, 1 - failure)


def largest_pair(gram):
    """The largest eigenvalue of a principal minor of order 2."""
    lengths = gram.diagonal()
    middle, half = (lengths[:, None] + lengths) / 2, (lengths[:, None] - lengths) / 2
    values = middle + np.sqrt(half**2 + gram**2)
    np.fill_diagonal(values, 0)
    return values.max()


def test_fewest_measurements_for_the_papers_isometry_c12():
    cases = [(1, 10_000, 1e-6, 369.04), (2, 20_000, 1e-6, 600.9), (4, 20_000, 1e-6, 1008.1), (10, 10**6, 1e-8, 2932.9)]
    for s, d, delta, number in cases:
        # Differences of two records are 2s-sparse; by the triangle inequality it is enough to look at each record.
        assert least_measurements(d, 2 * s, delta / 2) == pytest.approx(number, abs=1)
        m = least_measurements(d, s, delta / 2)
        assert m < 0.75 * number
        assert stretch_bound(m, d, s, delta / 2) <= 1.5 < stretch_bound(m - 1, d, s, delta / 2)


# --- c17: hard instances -------------------------------------------------------------------------------------------


def test_the_hardest_number_of_blocks_fits_and_grows_with_the_budget_c17():
    assert hardest_blocks(2000, 10**4, 4, 1.0, 0.0) == round(2000 / (4 * math.log(10**4)))
    assert hardest_blocks(2000, 10**4, 4, 1.0, 1e-6) == round(2000 / math.sqrt(4 * math.log(10**4) * math.log(1e6)))
    assert hardest_blocks(10**6, 64, 4, 1.0, 0.0) == 16
    assert hardest_blocks(1, 64, 4, 0.01, 0.0) == 1


# --- What is refused -----------------------------------------------------------------------------------------------


def mechanism_of(**wrong):
    return ProjectionMechanism(
        **{"records": 10, "members": SparseVectors(2, 1.0), "epsilon": 1.0, "delta": 1e-6} | wrong
    )


def small_recovery(**wrong):
    usual = {"records": 10, "dimension": 100, "members": SparseVectors(2, 1.0), "epsilon": 1.0, "delta": 1e-6}
    return SparseRecovery(**usual | wrong)


def released(mean):
    return recovery_of().release(mean, np.random.default_rng(0), SeededNoise(np.random.default_rng(3)))


CANNOT = [
    ({"epsilon": 2.0, "dimension": 9000, "measurements": 700}, "classical calibration"),
    ({"measurements": 50}, "'paper' with epsilon = 1, delta = 1e-06, m = 50 measurements"),
    ({"delta": 1e-3, "dimension": 900, "measurements": 800}, r"delta < s ln\(d/s\) / m\^2"),
]
REFUSED = [
    *[
        (project, (vector, *radii), "the vector to project")
        for vector in ([math.nan, 1.0], [math.inf], [], [[1.0]])
        for project, radii in ((project_l1, (1.0,)), (project_l1_l2, (1.0, 1.0)))
    ],
    *[(project_l1, ([1.0], radius), f"l1 radius = {radius}") for radius in (0.0, -1.0, math.nan, math.inf)],
    *[(project_l1_l2, ([1.0], 1.0, radius), f"l2 radius = {radius}") for radius in (0.0, -1.0, math.nan, math.inf)],
    *[
        (ProjectionMechanism, (10, SparseVectors(1, 1.0), epsilon, 1e-6, "classical"), f"epsilon = {epsilon}: the clas")
        for epsilon in (1.0001, 8.0)
    ],
    (classical_multiplier, (0.5, 0.0), "delta = 0"),
    (mechanism_of().release, ([math.nan, 0.0], SeededNoise(np.random.default_rng(0))), "not finite"),
    *[
        (lambda make=make, name=name, value=value: make(**{name: value}), (), f"{name} = '?{value}")
        for make, wrong in (
            (mechanism_of, {"records": [0], "epsilon": [0.0, math.nan], "delta": [1.0, math.nan]}),
            (mechanism_of, {"calibration": ["loose"], "ball": ["l2"]}),
            (small_recovery, {"isometry": ["restricted"], "delta": [0.0, math.nan], "dimension": [2], "records": [0]}),
            (small_recovery, {"measurements": [0, 100], "measurement_factor": [0.0], "epsilon": [-1.0]}),
        )
        for name, values in wrong.items()
        for value in values
    ],
    *[(lambda change=change: small_recovery(isometry="paper", **change), (), words) for change, words in CANNOT],
    *[(released, (mean,), "the mean must be 600 finite numbers") for mean in (np.zeros(5), np.full(600, math.nan))],
    *[(stretch_bound, numbers, "out of range") for numbers in ((0, 5, 1, 0.1), (3, 5, 6, 0.1), (3, 5, 1, 0.0))],
    *[(least_measurements, (5, 1, 0.1, stretch), "must") for stretch in (1.0, math.nan)],
    *[
        (block_data, (*numbers, np.random.default_rng(0)), " = ")
        for numbers in (
            (0, 9, 1, 1, 1.0),
            (9, 9, 2, 5, 1.0),
            (3, 9, 1, 4, 1.0),
            (9, 9, 1, 0, 1.0),
            (9, 9, 1, 1, math.nan),
        )
    ],
    (hardest_blocks, (5, 64, 4, 0.01, 1.0), "delta = 1"),
]


@pytest.mark.parametrize(("make", "arguments", "words"), REFUSED)
def test_what_cannot_be_is_refused_by_name_and_value(make, arguments, words):
    with pytest.raises(BadInput, match=words):
        make(*arguments)
