"""A problem in other coordinates: its gradients, and its domain."""

import numpy as np
import pytest
from helpers import federation_of

from userdp.errors import BadInput
from userdp.problems import Logistic, Poisson, Quadratic, Softmax, Squared
from userdp.problems.in_coordinates import Coordinates, InCoordinates


def turned(p, seed=3):
    rng = np.random.default_rng(seed)
    return Coordinates(rng.normal(size=p), rng.normal(size=(p, p)) + 3 * np.eye(p))


@pytest.mark.parametrize(
    "problem", [Squared(2, 4.0, 0.5, low=-2.0, high=2.0), Logistic(2, 4.0, 5.0), Poisson(2, 4.0, 1.0, count_bound=9.0)]
)
def test_gradients_in_coordinates_are_the_derivatives_of_losses_by_them(problem):
    rng = np.random.default_rng(4)
    users = federation_of(rng.normal(size=(6, 2)), [2] * 3, rng.integers(0, 2, 6))
    block, _ = problem.bound(users.block(np.arange(3)))
    seen, z = InCoordinates(problem, turned(2)), np.array([0.1, -0.2])
    for row, sample in zip(seen.sample_gradients(z, block), range(6), strict=True):
        steps = [1e-6 * one for one in np.eye(2)]
        slopes = [
            (seen.sample_losses(z + s, block)[sample] - seen.sample_losses(z - s, block)[sample]) / 2e-6 for s in steps
        ]
        np.testing.assert_allclose(row, slopes, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(seen.user_gradients_at(np.tile(z, (3, 1)), block), seen.user_gradients(z, block))


def test_one_matrix_turns_every_block_of_parameters():
    rng = np.random.default_rng(6)
    start, matrix = rng.normal(size=6), rng.normal(size=(2, 2))
    blocks, whole = Coordinates(start, matrix), Coordinates(start, np.kron(np.eye(3), matrix))
    places = rng.normal(size=(4, 6))
    np.testing.assert_allclose(blocks.models(places), whole.models(places))
    np.testing.assert_allclose(blocks.places(blocks.models(places)), places)
    np.testing.assert_allclose(blocks.models(places[0]), whole.models(places[0]))
    problem = Softmax(3, 2, 4.0, 5.0)
    users = problem.bound(federation_of(rng.normal(size=(5, 2)), targets=rng.integers(0, 3, 5)).block(np.arange(5)))[0]
    views = [InCoordinates(problem, one) for one in (blocks, whole)]
    for name in ("user_gradients", "sample_gradients", "sample_losses"):
        one, two = (getattr(view, name)(places[0], users) for view in views)
        np.testing.assert_allclose(one, two)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3), (0, 0)])
def test_a_matrix_that_divides_no_model_is_refused(shape):
    with pytest.raises(BadInput, match="where d divides p"):
        Coordinates(np.zeros(6), np.ones(shape))


@pytest.mark.parametrize(
    ("start", "matrix"),
    [([0.0, np.inf], np.eye(2)), ([0.0, 0.0], np.diag([1.0, np.nan])), (np.zeros((2, 1)), np.eye(2))],
)
def test_coordinates_that_are_no_finite_vectors_are_refused(start, matrix):
    with pytest.raises(BadInput, match=r"must be finite numbers|must be \(p,\)"):
        Coordinates(np.array(start), matrix)


def test_models_outside_the_domain_are_projected_as_models_row_by_row():
    problem, seen = Quadratic(2, 1.0, 1.0), turned(2)
    view = InCoordinates(problem, seen)
    models = np.array([[0.5, -0.5], [3.0, 0.2], [-4.0, 9.0]])
    places = view.domain.project(seen.places(models))
    np.testing.assert_allclose(seen.models(places), np.clip(models, -1, 1), atol=1e-12)
    np.testing.assert_allclose(view.domain.project(seen.places(models[1])), places[1], atol=1e-12)
    # Those inside keep their last bits, whoever is outside.
    drawn = seen.places(np.random.default_rng(5).uniform(-1.5, 1.5, size=(50, 2)))
    inside = (np.abs(seen.models(drawn)) <= 1).all(axis=1)
    assert 0 < inside.sum() < 50
    np.testing.assert_array_equal(view.domain.project(drawn)[inside], drawn[inside])
