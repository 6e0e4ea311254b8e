"""Tables of the page on sparse gradients: private means, their recovery, and steps along them."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sweeps.slopes import slope
from sweeps.sweep import Sweep

from simulations.config.run_config import parse_config
from simulations.runs.run import run
from strategies.baselines.sparse_gradients.projection_mechanism import ProjectionMechanism, SparseVectors
from strategies.baselines.sparse_gradients.recovery import Isometry, SparseRecovery, least_measurements
from strategies.baselines.sparse_gradients.reference.hard_instances import block_data, hardest_blocks
from userdp.noise import SeededNoise

EPSILON, DELTA, SPARSITY = 1.0, 1e-6, 4
HIGH, LOW = 40_000, 64
"""Dimensions."""
SIZES = (500, 1000, 2000, 4000, 8000, 16_000)
LARGE_SIZES = (20_000, 40_000, 80_000, 160_000, 320_000)
SPARSITIES = (1, 2, 4, 8, 16, 32)
STEP_SIZES = (1.0, 3.0, 10.0, 30.0, 60.0)


def _errors(records: int, dimension: int, sparsity: int, delta: float, repeats: int, first: int = 0) -> list[float]:
    """l2 errors of the projection mechanism on the hardest blocks, by seeds from ``first`` on."""
    mechanism = ProjectionMechanism(records, SparseVectors(sparsity, 1.0), EPSILON, delta)
    blocks, found = hardest_blocks(records, dimension, sparsity, EPSILON, delta), []
    for seed in range(first, first + repeats):
        rng = np.random.default_rng(seed)
        mean = np.asarray(block_data(records, dimension, sparsity, blocks, 1.0, rng).mean(axis=0))
        found.append(float(np.linalg.norm(mechanism.release(mean, SeededNoise(rng)) - mean)))
    return found


def _error(records: int, dimension: int, sparsity: int, delta: float, repeats: int, first: int = 0) -> float:
    """Their mean."""
    return float(np.mean(_errors(records, dimension, sparsity, delta, repeats, first)))


def _noise(records: int, dimension: int, delta: float) -> float:
    """Root of the mean square of the l2 norm of the noise, before any projection."""
    mechanism = ProjectionMechanism(records, SparseVectors(SPARSITY, 1.0), EPSILON, delta).mechanism
    return float(mechanism.standard_deviation * np.sqrt(dimension))


def rates() -> pd.DataFrame:
    """Errors by the number of records, in many dimensions."""
    rows = []
    for delta in (DELTA, 0.0):
        for records in SIZES:
            found = _errors(records, HIGH, SPARSITY, delta, 3)
            spread = {"error": float(np.mean(found)), "least": min(found), "most": max(found)}
            rows.append({"delta": delta, "n": records} | spread | {"noise_as_it_is": _noise(records, HIGH, delta)})
    return pd.DataFrame(rows)


def slopes() -> pd.DataFrame:
    """Slopes of the logarithm of the error in the logarithms of n and s, beside theory's."""
    rows = []
    for delta, in_sparsity in ((DELTA, 0.25), (0.0, 0.5)):
        few = [_error(records, HIGH, SPARSITY, delta, 3) for records in SIZES]
        many = [_error(n, LOW, SPARSITY, delta, 20, 100 * place) for place, n in enumerate(LARGE_SIZES)]
        dense = [_error(4000, HIGH, sparsity, delta, 3) for sparsity in SPARSITIES]
        for along, at, errors, theory in (
            (f"n, d = {HIGH:,}", SIZES, few, -0.5),
            (f"n, d = {LOW:,}", LARGE_SIZES, many, -1.0),
            ("s", SPARSITIES, dense, in_sparsity),
        ):
            found, spread = slope(np.array(at), np.array(errors))
            told = {"slope": found, "standard_error": spread, "theory": theory}
            rows.append({"error_along": along, "delta": delta} | told)
    return pd.DataFrame(rows)


def dimension() -> pd.DataFrame:
    """Errors by the dimension, beside the noise that the projection takes away."""
    rows = [
        {"d": d, "projected": _error(2000, d, SPARSITY, DELTA, 2), "noise_as_it_is": _noise(2000, d, DELTA)}
        for d in (1000, 10_000, 100_000, 1_000_000)
    ]
    return pd.DataFrame(rows)


def recovery() -> pd.DataFrame:
    """Errors of recovery from measurements, by their number and by how their stretch is bounded."""
    kinds: tuple[Isometry, ...] = ("gershgorin", "kappa")
    rows = [
        {"measurements": count} | {kind: _recovered(count, kind) for kind in kinds} | {"projected": _recovered(None)}
        for count in (80, 160, 320)
    ]
    return pd.DataFrame(rows)


def _recovered(count: int | None, isometry: Isometry = "gershgorin") -> float:
    """Mean error over three seeds; of the projection mechanism without a number of measurements."""
    records, d, members = 300, 5000, SparseVectors(2, 1.0)
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        mean = np.asarray(block_data(records, d, members.sparsity, 20, 1.0, rng).mean(axis=0))
        noise = SeededNoise(np.random.default_rng(100 + seed))
        if count is None:
            released = ProjectionMechanism(records, members, EPSILON, DELTA).release(mean, noise)
        else:
            made = SparseRecovery(records, d, members, EPSILON, DELTA, isometry, measurements=count)
            released = made.release(mean, rng, noise)
        found.append(np.linalg.norm(released - mean))
    return float(np.mean(found))


def isometry() -> pd.DataFrame:
    """Fewest measurements whose stretch is proven to be at most 3/2, as the proof needs it and as the paper asks."""
    cases = ((1, 10_000, 1e-6), (2, 20_000, 1e-6), (4, 20_000, 1e-6), (10, 10**6, 1e-8))
    rows = [
        {
            "s": sparsity,
            "d": d,
            "delta": delta,
            "isometry_for_s": least_measurements(d, sparsity, delta / 2),
            "isometry_for_2s": least_measurements(d, 2 * sparsity, delta / 2),
        }
        for sparsity, d, delta in cases
    ]
    return pd.DataFrame(rows)


def step_sizes() -> pd.DataFrame:
    """Test loss of one-hot logistic regression along projected gradients and along noisy ones, by step size."""
    kinds = {"projected_sgd": {"sparsity": 1}, "dp_fed_sgd": {}}
    rows = [
        {"step_size": step} | {kind: _test_loss(kind, step, options) for kind, options in kinds.items()}
        for step in STEP_SIZES
    ]
    return pd.DataFrame(rows)


def _test_loss(kind: str, step: float, options: dict[str, int]) -> float:
    config = parse_config({
        "name": "step-size",
        "problem": {"kind": "one_hot_logistic", "radius": 10.0},
        "data": {
            "kind": "synthetic",
            "population": "categorical",
            "users": 2000,
            "test_users": 2000,
            "samples_per_user": 5,
            "levels": 3000,
            "skew": 1.0,
        },
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "output": {"evaluate_every": 10_000},
        "strategy": {"kind": kind, "rounds": 10, "clip_norm": 1.0, "learning_rate": step} | options,
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        return float(run(config, directory=Path(folder) / "run", report=False).result["metrics"]["test_loss"])


SWEEPS: dict[str, Sweep] = {
    "sparse-rates": Sweep(rates),
    "sparse-slopes": Sweep(slopes),
    "sparse-dimension": Sweep(dimension),
    "sparse-recovery": Sweep(recovery, quick=False),
    "sparse-isometry": Sweep(isometry),
    "sparse-step-sizes": Sweep(step_sizes, quick=False),
}
