"""Tables of rows: what of a vector lies near."""

import numpy as np
import pytest
from scipy.optimize import minimize

from userdp.problems.embeddings import Tables

TABLES = Tables(((1, 2, 2), (6, 3, 1)))  # of nine parameters; 0 and 5 are in none


def lengths(vector):
    return np.array([*np.linalg.norm(vector[1:5].reshape(2, 2), axis=1), *np.abs(vector[6:])])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("radius", [0.3, 2.0, 100.0])
def test_the_nearest_vector_of_short_rows_is_what_a_quadratic_program_finds(radius, seed):
    vector = np.random.default_rng(seed).normal(size=9)
    found = TABLES.shrunk(vector, radius)
    smooth = {"type": "ineq", "fun": lambda z: radius - lengths(z).sum()}
    wanted = minimize(
        lambda z: ((z - vector) ** 2).sum(), 0.01 * vector, constraints=smooth, options={"maxiter": 500, "ftol": 1e-12}
    )
    assert lengths(found).sum() <= radius * (1 + 1e-12)
    assert ((found - vector) ** 2).sum() <= wanted.fun + 1e-6
    np.testing.assert_array_equal(found[[0, 5]], vector[[0, 5]])
    np.testing.assert_allclose(TABLES.shrunk(found, radius), found, rtol=1e-12)


def test_rows_of_zeros_stay():
    np.testing.assert_array_equal(TABLES.shrunk(np.zeros(9), 1.0), np.zeros(9))
