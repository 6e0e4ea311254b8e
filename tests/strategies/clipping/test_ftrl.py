"""Correlated noise: its factorisation, its sensitivity against brute force for every T up to 64, and DP-FTRL."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from helpers import WILD, Wild, federation_of, final, gathered, make, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies import DPFTRL
from userdp.accounting import Cost, Privacy, epsilon_of
from userdp.data import Gaussian, SyntheticFederation
from userdp.errors import BadInput, PopulationTooSmall, RunFailed
from userdp.mechanisms import toeplitz
from userdp.mechanisms.factorisations import FACTORISATIONS, best_factorisation, last_error
from userdp.mechanisms.prefix_sums import Tree
from userdp.mechanisms.toeplitz import BandedInverseSquareRoot, Buffered, SquareRoot, Toeplitz
from userdp.mechanisms.toeplitz_search import Buffers, best_inverse
from userdp.problems import Quadratic
from userdp.randomness import stream
from userdp.sampling import CorrelatedBatches

KINDS = FACTORISATIONS
every_kind = pytest.mark.parametrize("kind", KINDS)
codes = st.integers(0, len(WILD) - 1)


def noise_matrix(factorisation):
    """B, column by column: what unit vectors come out as."""
    noise = factorisation.noise()
    return np.array([noise.add(row) for row in np.eye(factorisation.rounds)])


@cache
def encoder(kind, rounds, separation):
    """C = B^-1 A, from the noise that is really added."""
    return np.linalg.solve(noise_matrix(KINDS[kind](rounds, separation)), np.tril(np.ones((rounds, rounds))))


def moved(c, pattern):
    """How far a user in these rounds moves C G, with the worst changes of norm 1 (all alike: C's entries are >= 0)."""
    return float(np.linalg.norm(c[:, list(pattern)].sum(axis=1)))


def fixed_orders(rounds, separation):
    return [range(first, rounds, separation) for first in range(min(separation, rounds))]


# --- The factorisation -----------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 8, 20, 64])
@pytest.mark.parametrize("separation", [1, 2, 5, 8, 100])
def test_the_noise_added_is_that_of_a_factorisation_into_lower_triangular_matrices_without_negative_entries(
    kind, rounds, separation
):
    b, c = noise_matrix(KINDS[kind](rounds, separation)), encoder(kind, rounds, separation)
    np.testing.assert_array_equal(b, np.tril(b))
    np.testing.assert_allclose(c, np.tril(c), atol=1e-12)
    assert c.min() > -1e-12
    np.testing.assert_allclose(KINDS[kind](rounds, separation).deviations(), np.linalg.norm(b, axis=1))
    if kind == "square_root":
        assert not np.tril(np.abs(c) > 1e-9, -min(rounds, separation)).any()
        if separation >= rounds:
            np.testing.assert_allclose(b, c, atol=1e-12)


def test_the_coefficients_are_central_binomials_over_powers_of_four():
    expected = [math.comb(2 * k, k) / 4**k for k in range(30)]
    np.testing.assert_allclose(SquareRoot(30, 30).coefficients, expected, rtol=1e-12)


def test_the_trees_intervals_by_hand():
    c = np.zeros((6, 6))
    for end, length in ((1, 1), (2, 2), (3, 1), (4, 4), (5, 1), (6, 2)):
        c[end - 1, end - length : end] = 1
    np.testing.assert_allclose(encoder("tree", 6, 6), c, atol=1e-12)


# --- Formal guarantee: sensitivity, by brute force -------------------------------------------------------------------


@pytest.mark.sweep(4)
@every_kind
@pytest.mark.parametrize("rounds", range(1, 65))
def test_sensitivity_is_the_brute_force_maximum_for_every_separation(kind, rounds):
    searched = kind in ("banded", "banded_inverse", "buffered")
    for separation in {2, 7, rounds} if searched else range(1, rounds + 1):
        c = encoder(kind, rounds, separation)
        worst = max(moved(c, pattern) for pattern in fixed_orders(rounds, separation))
        assert KINDS[kind](rounds, separation).sensitivity(rounds) == pytest.approx(worst, rel=1e-9)
    once = np.linalg.norm(encoder(kind, rounds, rounds), axis=0).max()
    assert KINDS[kind](rounds, 10**9).sensitivity(rounds) == pytest.approx(once)


@pytest.mark.sweep(4)
@every_kind
@pytest.mark.parametrize("rounds", [1, 6, 11, 12])
def test_no_subset_of_a_users_rounds_moves_more_with_any_signs(kind, rounds):
    """Users may stay away, and their changes may point anywhere."""
    rng = np.random.default_rng(0)
    for separation in (1, 2, 3, rounds):
        c = encoder(kind, rounds, separation)
        bound = KINDS[kind](rounds, separation).sensitivity(rounds)
        for order in fixed_orders(rounds, separation):
            for size in range(len(order) + 1):
                for pattern in itertools.combinations(order, size):
                    directions = rng.normal(size=(size, 2))
                    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
                    assert moved(c, pattern) <= bound * (1 + 1e-9)
                    assert np.linalg.norm(c[:, list(pattern)] @ directions) <= bound * (1 + 1e-9)


def patterns(rounds, separation):
    """All sets of rounds at least ``separation`` apart."""
    if rounds <= 0:
        return [()]
    without = patterns(rounds - 1, separation)
    return without + [(*pattern, rounds - 1) for pattern in patterns(rounds - separation, separation)]


@pytest.mark.parametrize("kind", ["square_root", "banded", "banded_inverse_square_root", "buffered"])
@pytest.mark.parametrize("rounds", [1, 5, 9, 12])
def test_bands_and_columns_that_never_rise_cover_all_patterns_with_that_separation(kind, rounds):
    for separation in range(1, rounds + 1):
        c, bound = encoder(kind, rounds, separation), KINDS[kind](rounds, separation).sensitivity(rounds)
        assert max(moved(c, pattern) for pattern in patterns(rounds, separation)) == pytest.approx(bound)


@pytest.mark.sweep(47)
@pytest.mark.parametrize("rounds", range(2, 65))
def test_the_square_root_covers_all_patterns_of_up_to_64_rounds(rounds):
    """Columns a separation apart are orthogonal, so the best pattern is a sum, found by dynamic programming."""
    for separation in (2, 3, 5, 8, 13, 21):
        gram = (c := encoder("square_root", rounds, separation)).T @ c
        assert np.abs(np.triu(gram, separation)).max() < 1e-9
        best = np.zeros(rounds + separation)
        for t in range(rounds):
            best[t + separation] = max(best[t + separation - 1], best[t] + gram[t, t])
        bound = SquareRoot(rounds, separation).sensitivity(rounds)
        assert math.sqrt(best[-1]) == pytest.approx(bound)


@every_kind
@pytest.mark.parametrize("separation", [1, 3, 7, 40])
def test_the_first_rounds_of_a_run_move_by_their_own_sensitivity(kind, separation):
    c, factorisation = encoder(kind, 40, separation), KINDS[kind](40, separation)
    previous = 0.0
    for rounds in range(1, 41):
        worst = max(moved(c[:rounds], pattern) for pattern in fixed_orders(rounds, separation))
        assert factorisation.sensitivity(rounds) == pytest.approx(worst)
        assert worst >= previous - 1e-12
        previous = worst
    assert factorisation.sensitivity(0) == 0


def test_noise_from_a_banded_matrix_itself_would_protect_too_little():
    """B must be A C^-1: with rows of a banded C as noise, the data meet C^-1 A, whose columns are long."""
    rounds, separation = 64, 4
    c = encoder("square_root", rounds, separation)
    meets = np.linalg.solve(c, np.tril(np.ones((rounds, rounds))))
    assert moved(meets, range(0, rounds, separation)) > 7 * SquareRoot(rounds, separation).sensitivity(rounds)


@pytest.mark.parametrize("rounds", [16, 64, 1000])
def test_the_square_root_adds_less_noise_than_the_tree_and_than_fresh_noise_each_round(rounds):
    def total(factorisation):
        return factorisation.sensitivity(rounds) * factorisation.deviations().max()

    assert total(SquareRoot(rounds, rounds)) < total(Tree(rounds, rounds)) < 2 * math.sqrt(rounds)
    assert total(SquareRoot(rounds, rounds)) < math.sqrt(rounds)


# --- Toeplitz factorisations -----------------------------------------------------------------------------------------

TOEPLITZ = [name for name, kind in KINDS.items() if issubclass(kind, Toeplitz)]
"""All but the tree."""


@pytest.mark.parametrize("kind", TOEPLITZ)
@pytest.mark.parametrize(("rounds", "separation"), [(1, 1), (2, 5), (17, 3), (60, 60), (60, 7), (300, 20)])
def test_columns_are_those_of_the_matrices_that_are_applied(kind, rounds, separation):
    factorisation = KINDS[kind](rounds, separation)
    impulse = np.zeros((rounds, 1))
    impulse[0] = 1.0
    rows, back = factorisation.encoder(), factorisation.decoder()
    column = np.array([rows.add(row) for row in impulse])
    np.testing.assert_allclose(factorisation.column, column[:, 0], atol=1e-12)
    np.testing.assert_allclose([back.add(row) for row in column], impulse, atol=1e-12)
    assert np.all(factorisation.column >= 0)
    assert factorisation.column.max() == factorisation.column[0] == 1  # what rounding in sums of rows is priced with
    if kind not in ("banded", "banded_inverse"):
        assert np.all(np.diff(factorisation.column) <= 1e-15)


SQUARE_ROOT_INVERSE = {4: [1, -0.5, -0.125, -0.0625], 8: [1, -0.5, -1 / 8, -1 / 16, -5 / 128, -7 / 256, -21 / 1024]}
SQUARE_ROOT_INVERSE[8].append(-33 / 2048)


@pytest.mark.parametrize(
    ("rounds", "separation", "bands", "sensitivity", "last", "mean"),
    [
        (100, 10, 4, 4.245697782920712, 3.2959492183588024, 2.4549774057005087),
        (100, 10, 8, 5.336322428107042, 2.3990056859084596, 1.890800936370797),
        (20, 5, 4, 2.9787269432304018, 1.746648576560265, 1.452973782454453),
        (20, 5, 8, 3.5401215546902987, 1.4983073061647483, 1.337003062081379),
        (64, 16, 8, 2.9643342491625915, 2.043426462398296, 1.6675592194444104),
        (100, 100, 8, 1.369473538898184, 2.3990056859084596, 1.890800936370797),
    ],
)
def test_banded_inverses_are_those_of_jax_privacy(rounds, separation, bands, sensitivity, last, mean, monkeypatch):
    """Sensitivity and errors by jax_privacy 2.0.0, in float64."""
    coefficients = tuple(SQUARE_ROOT_INVERSE[bands])
    monkeypatch.setattr(toeplitz, "best_bands", lambda rounds, separation: coefficients)
    factorisation = BandedInverseSquareRoot(rounds, separation)
    assert factorisation.sensitivity(rounds) == pytest.approx(sensitivity, rel=1e-9)
    assert factorisation.deviations()[-1] == pytest.approx(last, rel=1e-9)
    assert math.sqrt(np.mean(factorisation.deviations() ** 2)) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize(
    ("rounds", "separation", "decays", "scales", "sensitivity", "last"),
    [
        (100, 10, [1.0, 0.83101417], [0.02586192, 0.53342115], 6.164111572018413, 2.036622753359609),
        (20, 5, [0.99999997, 0.63185232], [0.07617595, 0.48522492], 3.1508588079734507, 1.6341854205922737),
        (100, 100, [0.9888597, 0.77298813], [0.1460278, 0.32354097], 1.5870786686620142, 1.5982338761256902),
    ],
)
def test_buffers_are_those_of_jax_privacy_and_four_do_as_well(
    rounds, separation, decays, scales, sensitivity, last, monkeypatch
):
    """Buffers that jax_privacy 2.0.0 optimised for the largest error, with its sensitivity and last error."""
    theirs = Buffers(np.array(scales), np.array(decays))
    assert last_error("buffered", rounds, separation) <= sensitivity * last * (1 + 1e-4)
    monkeypatch.setattr(toeplitz, "best_buffers", lambda rounds, separation: theirs)
    factorisation = Buffered(rounds, separation)
    assert factorisation.sensitivity(rounds) == pytest.approx(sensitivity, rel=1e-6)
    assert factorisation.deviations()[-1] == pytest.approx(last, rel=1e-6)


@settings(max_examples=50)
@given(arrays(np.float64, (3,), elements=st.floats(0.01, 0.33)), arrays(np.float64, (3,), elements=st.floats(0.0, 1.0)))
def test_the_inverse_of_buffers_is_that_of_their_matrix(scales, decays):
    buffers = Buffers(scales, decays)
    product = np.convolve(buffers.column(40), buffers.inverse_column(40))[:40]
    np.testing.assert_allclose(product, np.eye(40)[0], atol=1e-11)


def test_an_optimised_inverse_is_no_worse_than_the_one_it_starts_from_and_no_weight_is_negative():
    most = 64
    for rounds, separation in ((20, 5), (100, 10), (100, 100), (1000, 50)):
        inverse = np.array(best_inverse(rounds, separation))
        assert len(inverse) == min(rounds, most)
        assert inverse[0] == 1
        assert np.all(inverse[1:] <= 0)
        assert inverse.sum() >= 0
        assert last_error("banded_inverse", rounds, separation) < 1.05 * last_error("square_root", rounds, separation)


@pytest.mark.parametrize("rounds", [1, 7, 40])
@pytest.mark.parametrize("separation", [1, 4, 100])
def test_the_best_has_the_least_predicted_error_but_for_a_thousandth(rounds, separation):
    errors = {kind: last_error(kind, rounds, separation) for kind in KINDS}
    best = best_factorisation(rounds, separation)
    assert errors[best] <= 1.001 * min(errors.values())
    sampler = CorrelatedBatches(100, 100 // min(separation, 100), rounds, kind="best")
    assert sampler.chosen == best_factorisation(rounds, sampler.batches.separation)
    assert type(sampler.factorisation) is KINDS[sampler.chosen]


@pytest.mark.parametrize(
    ("rounds", "separation", "theirs"),
    [(100, 10, 12.037765820410044), (20, 5, 5.010731982648178), (64, 16, 5.735034158206568)],
)
def test_optimised_bands_are_as_good_as_those_of_jax_privacy(rounds, separation, theirs):
    """The error of its optimised banded matrices, by jax_privacy 2.0.0."""
    assert last_error("banded", rounds, separation) == pytest.approx(theirs, rel=1e-4)


def test_with_many_participations_the_best_is_well_below_the_square_root():
    assert best_factorisation(1000, 10) == "banded"
    assert last_error("banded", 1000, 10) < 0.87 * last_error("square_root", 1000, 10)
    assert best_factorisation(2000, 500) == "buffered"


def test_buffers_keep_four_vectors_however_long_the_run():
    stream_of = Buffered(200, 200).decoder()
    for row in np.ones((200, 3)):
        stream_of.add(row)
    assert stream_of._kept.shape == (4, 3)


@pytest.mark.parametrize("kind", ["banded", "best"])
def test_a_plan_predicts_the_noise_of_the_factorisation_that_is_used(kind):
    """100 rounds of 4 users of 40: everybody ten times."""
    options = {"rounds": 100, "cohort": 4, "clip_norm": 1.0}
    method = make(DPFTRL, Wild(2), 40, delta=1e-3, factorisation=kind, **options)
    plain = make(DPFTRL, Wild(2), 40, delta=1e-3, **options)
    assert method.plan.numbers["factorisation"] == best_factorisation(100, 10) == "banded"
    ratio = last_error("banded", 100, 10) / last_error("square_root", 100, 10)
    assert method.plan.noise == pytest.approx(ratio * plain.plan.noise)
    assert method.plan.guarantee == plain.plan.guarantee


@pytest.mark.parametrize(("rounds", "separation"), [(0, 1), (3, 0)])
@every_kind
def test_numbers_below_one_are_refused(kind, rounds, separation):
    with pytest.raises(BadInput, match="at least 1"):
        KINDS[kind](rounds, separation)


# --- Accounting -----------------------------------------------------------------------------------------------------


@every_kind
def test_the_run_is_one_gaussian_mechanism_and_its_ledger_counts_rounds(kind):
    sampler = CorrelatedBatches(50, 10, 12, seed=3, kind=kind)
    noise = sampler.calibrate(1.0, 1e-4)
    assert 0.999 < sampler.epsilon(noise, 1e-4) == epsilon_of(Cost(noise), 1, 1e-4) <= 1
    spent = [sampler.epsilon(noise, 1e-4, rounds) for rounds in range(13)]
    assert spent[0] == 0
    assert np.all(np.diff(spent) >= 0)
    assert spent[3] < 0.9
    ledger = sampler.ledger(noise, Privacy(1.0, 1e-4))
    for index in range(12):
        ledger.charge(sampler.cohort(index))
        assert ledger.epsilon() == spent[index + 1]
    with pytest.raises(RunFailed, match="planned"):
        ledger.charge(sampler.cohort(0))


def test_cohorts_return_after_exactly_the_separation_that_is_accounted():
    sampler = CorrelatedBatches(53, 10, 12, seed=3)
    assert sampler.factorisation.separation == 5
    for index in range(7):
        np.testing.assert_array_equal(sampler.cohort(index), sampler.cohort(index + 5))
    together = np.concatenate([sampler.cohort(index) for index in range(5)])
    assert len(np.unique(together)) == 50


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((0, 1, 1), BadInput), ((5, 0, 1), BadInput), ((5, 1, 0), BadInput), ((5, 6, 1), PopulationTooSmall)],
)
def test_cohorts_that_cannot_be_drawn_are_refused(arguments, error):
    with pytest.raises(error):
        CorrelatedBatches(*arguments)
    with pytest.raises(BadInput, match="must be one of square_root, tree, "):
        CorrelatedBatches(5, 1, 1, kind="bush")


# --- The strategy ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60)
@given(
    arrays(np.int64, (6, 2), elements=codes),
    arrays(np.int64, (2,), elements=codes),
    st.integers(0, 5),
    st.sampled_from(sorted(KINDS)),
)
def test_replacing_one_user_moves_the_whole_run_by_at_most_its_stated_sensitivity(users, other, who, kind):
    """All rounds of neighbours through C, each at its own public model."""
    method = make(DPFTRL, Wild(2), 6, delta=1e-3, clip_norm=0.7, rounds=7, cohort=2, factorisation=kind)
    neighbour = users.copy()
    neighbour[who] = other
    models = np.random.default_rng(1).normal(size=(7, 2))
    sums = [
        np.array([gathered(method, federation_of(data), t, models[t]).values / 2 for t in range(7)])
        for data in (users, neighbour)
    ]
    distance = np.linalg.norm(encoder(kind, 7, 3) @ (sums[0] - sums[1]))
    assert distance <= method.plan.numbers["l2_sensitivity"] * (1 + 1e-9)


@every_kind
def test_the_stated_sensitivity_is_attained_by_opposite_users(kind):
    worst = 0.0
    for who in range(6):
        method = make(DPFTRL, Wild(1), 6, delta=1e-3, clip_norm=0.7, rounds=7, cohort=2, factorisation=kind)
        data, other = np.zeros((6, 1), dtype=int), np.zeros((6, 1), dtype=int)
        data[who], other[who] = 4, 5
        sums = [
            np.array([gathered(method, federation_of(users), t, np.zeros(1)).values / 2 for t in range(7)])
            for users in (data, other)
        ]
        worst = max(worst, np.linalg.norm(encoder(kind, 7, 3) @ (sums[0] - sums[1])))
    assert worst == pytest.approx(method.plan.numbers["l2_sensitivity"])


@every_kind
@pytest.mark.parametrize(("rounds", "cohort"), [(1, None), (20, None), (20, 1000), (30, 250)])
def test_the_plan_spends_the_budget_and_not_more(kind, rounds, cohort):
    method = make(DPFTRL, Quadratic(3, 1.0, 1.0), 1000, 1.0, 1e-5, rounds=rounds, cohort=cohort, factorisation=kind)
    plan = method.plan
    assert 0.999 < plan.guarantee.epsilon <= 1.0
    assert plan.guarantee.relation == "replace_one"
    size = cohort or 1000 // rounds
    separation = 1000 // size
    assert plan.numbers["participations"] == math.ceil(rounds / separation)
    sensitivity = 2 / size * KINDS[kind](rounds, separation).sensitivity(rounds)
    assert plan.numbers["l2_sensitivity"] == pytest.approx(sensitivity)
    assert method.scheme.deviation == pytest.approx(plan.numbers["noise_multiplier"] * sensitivity)


@every_kind
def test_a_run_by_hand(kind):
    problem = Quadratic(2, 5.0, 1.5)
    federation = SyntheticFederation(Gaussian(dimension=2), users=60, seed=1, samples_per_user=10)
    options = {"clip_norm": 0.5, "rounds": 5, "cohort": 20, "learning_rate": 0.3, "factorisation": kind}
    method = make(DPFTRL, problem, 60, 8.0, 1e-3, seed=4, **options)
    fresh = np.array([stream(4, "noise", t, 0).normal(scale=method.scheme.deviation, size=2) for t in range(5)])
    noise = noise_matrix(KINDS[kind](5, 3)) @ fresh
    x, total, start = np.zeros(2), np.zeros(2), np.zeros(2)
    for t in range(5):
        block = problem.bound(federation.block(method.scheme.sampler.cohort(t)))[0]
        rows = problem.user_gradients(x, block)
        rows *= np.minimum(1, 0.5 / np.linalg.norm(rows, axis=1, keepdims=True))
        total += rows.sum(axis=0) / 20
        x = problem.domain.project(start - 0.3 * (total + noise[t]))
    np.testing.assert_allclose(final(run(method, federation)), x, rtol=1e-9)


@pytest.mark.sweep(1)
@every_kind
@pytest.mark.parametrize("cohort", [None, 1000])
def test_it_learns_repeats_itself_by_seed_and_spends_its_budget(kind, cohort):
    problem = Quadratic(3, 5.0, 4.0)
    federation = SyntheticFederation(Gaussian(dimension=3), users=2000, seed=1, samples_per_user=20)
    options = {"rounds": 8, "cohort": cohort, "clip_norm": 3.0, "factorisation": kind, "learning_rate": 0.5}

    def result(seed):
        return run(make(DPFTRL, problem, 2000, 6.0, 1e-5, seed=seed, **options), federation)

    first = result(0)
    np.testing.assert_array_equal(final(first), final(result(0)))
    assert not np.array_equal(final(first), final(result(1)))
    assert problem.excess_risk(final(first), federation) < 0.2 * problem.excess_risk(problem.initial(), federation)
    spent = [record.spent_epsilon for record in first.rounds]
    assert np.all(np.diff(spent) >= 0)
    assert 0.999 * 6 < spent[-1] <= 6


def test_noise_that_drowns_the_model_is_a_warning():
    method = make(DPFTRL, Quadratic(500, 1.0, 1.0), 50, epsilon=0.1, delta=1e-4)
    assert method.plan.drowned
    assert "Doing nothing is better than this run" in method.plan.warnings[0]
