"""The steps that research/server_steps.py tries, and what research/README.md says of them."""

import math

import numpy as np
import pandas as pd
import pytest

from strategies.clipping.server_optimiser import ServerOptimiser, ServerOptions


@pytest.fixture
def command(module_of):
    return module_of("server_steps")


@pytest.fixture
def page(module_of):
    return module_of("making.server_steps")


def noisy(rows, columns, values, deviation, seed):
    """Return a matrix of these singular values, and the same with noise."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((side, len(values))))[0] for side in (rows, columns))
    matrix = left * values @ right.T
    return matrix, matrix + deviation * rng.standard_normal(matrix.shape)


def test_without_noise_nothing_is_shrunk(command):
    matrix, _ = noisy(20, 8, [3.0, 1.0], 0.0, 1)
    assert command.shrunk(matrix, 0.0) is matrix
    np.testing.assert_allclose(command.shrunk(matrix, 1e-9), matrix, atol=1e-6)


@pytest.mark.parametrize("shape", [(200, 50), (50, 200)])
def test_known_spectra_come_out_of_the_noise_as_theory_says(command, shape):
    values, deviation = np.array([60.0, 40.0]), 1.0
    matrix, seen = noisy(*shape, values, deviation, 2)
    found = command.shrunk(seen, deviation)
    # Noise alone has no singular value above sqrt(m) + sqrt(n), so the others are gone.
    kept = np.linalg.svd(found, compute_uv=False)
    assert (kept > 1e-9).sum() == 2
    assert np.linalg.norm(found - matrix) < 0.4 * np.linalg.norm(seen - matrix)
    # Shrinking to the value times the cosines of both singular vectors' angles has the least error.
    beta, x = 0.25, values / (deviation * math.sqrt(200))
    cosines = np.sqrt((x**4 - beta) / (x**4 + beta * x**2) * (x**4 - beta) / (x**4 + x**2))
    np.testing.assert_allclose(kept[:2], values * cosines, rtol=0.05)
    assert not command.shrunk(seen - matrix, deviation).any()


def test_orthogonal_steps_have_equal_singular_values_and_gated_ones_those_of_the_signal_alone(command):
    _, seen = noisy(100, 25, [40.0, 30.0, 20.0], 1.0, 3)
    length = 0.2 * math.sqrt(100)
    for gated, rank in ((False, 25), (True, 3)):
        found = np.linalg.svd(command.orthogonal(seen, 1.0, gated=gated), compute_uv=False)
        np.testing.assert_allclose(found, [length] * rank + [0.0] * (25 - rank), atol=1e-9)


def test_adam_is_the_product_s(command):
    rng, rate, dimension = np.random.default_rng(4), 0.1, 7
    settings = ServerOptions(server_optimiser="adam", adaptivity=1e-6)
    ours, theirs = command.Adam(rate, dimension, 5, ()), ServerOptimiser(settings, rate, dimension)
    x = y = np.zeros(dimension)
    for _ in range(5):
        gradient = rng.standard_normal(dimension)
        x, y = ours.step(x, gradient, 0.5), theirs.step(y, gradient, 0.5)
    np.testing.assert_allclose(x, y, rtol=1e-12)


def test_matrices_lie_where_the_problem_has_them(command):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 4), torch.nn.Linear(5, 6))
    flat = torch.cat([each.reshape(-1) for each in module.parameters()]).detach().numpy()
    found = command.matrices(lambda: module)
    assert [(one.rows, one.columns) for one in found] == [(3, 32), (6, 5)]
    np.testing.assert_array_equal(found[1].of(flat), module[1].weight.detach())


def test_an_average_weighs_each_model_by_a_share_of_the_next(command):
    models = [np.array([1.0]), np.array([2.0]), np.array([4.0])]
    assert command.averaged(models, 0.5) == pytest.approx((4 + 0.5 * 2 + 0.25 * 1) / 1.75)


def test_the_table_on_the_page_counts_seeds_that_are_better_than_adam(command, page, tmp_path, monkeypatch):
    common = {"strategy": "s", "epsilon": 1.0, "rate": 1.0, "metric": "bits", "seconds": 1.0, "problem": "roles"}
    filtered = common | {"step": "filtered", "released": "last"}
    tried = [
        filtered | {"seed": 17, "step": "adam", "value": 3.4},
        filtered | {"seed": 17, "value": 3.3},
        *(
            common | {"seed": seed, "step": "filtered", "released": "last", "value": 3.5 - seed / 10}
            for seed in (0, 1, 2)
        ),
    ]
    monkeypatch.setattr(page, "MEASURED", tmp_path / "steps.csv")
    monkeypatch.setattr(page, "TABLE", tmp_path / "table.csv")
    pd.DataFrame(tried).to_csv(page.MEASURED, index=False)
    pd.DataFrame([common | {"seed": seed, "value": 3.45} for seed in (0, 1, 2)]).to_csv(page.TABLE, index=False)
    told = page.section()
    assert "| not run | **3.300** | not run |" in told
    assert "| 1 | roles | 1 | +0.050, 2 of 3 |" in told
