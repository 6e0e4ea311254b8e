"""Correlated noise: each factorisation, its sensitivity against brute force, and how loud it is."""

import itertools
import math

import numpy as np
import pytest
from helpers import encoder, noise_matrix

from userdp.mechanisms import GaussianMechanism, toeplitz
from userdp.mechanisms.prefix_sums import PrefixSums, Tree
from userdp.mechanisms.toeplitz import (
    FACTORISATIONS,
    BandedInverseSquareRoot,
    Buffered,
    SquareRoot,
    Toeplitz,
    best_factorisation,
    last_error,
)
from userdp.mechanisms.toeplitz_search import Buffers, best_inverse
from userdp.noise import SeededNoise
from userdp.randomness import stream
from userdp.sampling import CorrelatedBatches

KINDS = FACTORISATIONS


every_kind = pytest.mark.parametrize("kind", KINDS)


def moved(c, pattern):
    """The most that a user in these rounds moves C G: equal changes of norm 1 are worst, as C's entries are >= 0."""
    return float(np.linalg.norm(c[:, list(pattern)].sum(axis=1)))


def fixed_orders(rounds, separation):
    return [range(first, rounds, separation) for first in range(min(separation, rounds))]


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


def test_the_trees_intervals_by_hand():
    c = np.zeros((6, 6))
    for end, length in ((1, 1), (2, 2), (3, 1), (4, 4), (5, 1), (6, 2)):
        c[end - 1, end - length : end] = 1
    np.testing.assert_allclose(encoder("tree", 6, 6), c, atol=1e-12)


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


@pytest.mark.parametrize(
    "factorisation", [SquareRoot(9, 4), Tree(13, 5), *(kind(9, 9) for kind in FACTORISATIONS.values())], ids=repr
)
def test_prefix_sums_come_from_released_rows_of_c_g(factorisation):
    """``B (C G) = A G``, and the rows of C G move by no more than the sensitivity."""
    rng, rounds = np.random.default_rng(0), factorisation.rounds
    encoder, decoder = factorisation.encoder(), factorisation.noise()
    sums = rng.normal(size=(rounds, 3))
    rows = [encoder.add(total) for total in sums]
    np.testing.assert_allclose([decoder.add(row) for row in rows], np.cumsum(sums, axis=0), atol=1e-12)
    encoder = factorisation.encoder()
    c = np.array([encoder.add(row) for row in np.eye(rounds)])
    np.testing.assert_array_equal(c, np.tril(c))
    moved = c[:, :: factorisation.separation].sum(axis=1)  # a user who returns as soon as possible, always moved alike
    assert np.linalg.norm(moved) == pytest.approx(factorisation.sensitivity(rounds))


@pytest.mark.parametrize("encodes", [False, True])
@every_kind
def test_prefix_sums_are_released_with_the_correlated_noise_of_one_gaussian_that_each_round_is_charged(kind, encodes):
    factorisation, row = KINDS[kind](7, 3), GaussianMechanism(0.5, 4.0)
    sums, values = PrefixSums(factorisation, row, 2, encodes=encodes), np.random.default_rng(0).normal(size=(7, 2))
    sources = [SeededNoise(stream(0, "noise", index, 0)) for index in range(7)]
    released = [sums.release(value, source) for value, source in zip(values, sources, strict=True)]
    fresh = np.array([stream(0, "noise", index, 0).normal(scale=2.0, size=2) for index in range(7)])
    np.testing.assert_allclose(released, np.cumsum(values, axis=0) + noise_matrix(factorisation) @ fresh, atol=1e-9)
    assert [source.spent for source in sources] == [row.cost] * 7


@every_kind
@pytest.mark.parametrize("lost", range(5))
def test_a_round_that_was_lost_draws_no_row_again_and_leaves_its_value_out_of_later_sums(kind, lost):
    factorisation, row = KINDS[kind](5, 5), GaussianMechanism(0.5, 1e-9)
    sums, values = PrefixSums(factorisation, row, 2, encodes=True), np.random.default_rng(0).normal(size=(5, 2))
    noise, expected = SeededNoise(stream(0, "noise", 0, 0)), np.zeros(2)
    for index, value in enumerate(values):
        if index == lost:
            sums.skip()
            continue
        expected = expected + value
        np.testing.assert_allclose(sums.release(value, noise), expected, atol=1e-6)
