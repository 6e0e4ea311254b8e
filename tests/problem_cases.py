"""One of each problem, with raw data for it: what the tests of problems share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import nn

from strategies.baselines.regressions import BiweightRegression, HuberRegression, LpRegression
from userdp.data.block import Block
from userdp.problems import (
    Bernoulli,
    Cloglog,
    Huber,
    Linear,
    Logistic,
    OneHotCloglog,
    OneHotLogistic,
    OneHotPoisson,
    OneHotSquared,
    Poisson,
    Problem,
    Quadratic,
    Softmax,
    SparseCloglog,
    SparseLinear,
    SparseLogistic,
    SparseSquared,
    Squared,
    TorchProblem,
)


def block_of(features, targets, sizes=None) -> Block:
    """Users with so many samples each, one by default."""
    sizes = [1] * len(features) if sizes is None else sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Block(np.asarray(features, dtype=np.float32), offsets, np.asarray(targets, dtype=np.float32))


def normal_data(users, dimension=3, seed=0):
    """Features (users, d), targets with little noise, and the sparse parameter (d,) that they follow."""
    rng = np.random.default_rng(seed)
    parameter = np.zeros(dimension)
    parameter[:2] = [0.5, -0.3]
    features = rng.standard_normal((users, dimension))
    return features, features @ parameter + 0.1 * rng.standard_normal(users), parameter


Targets = Callable[[np.random.Generator, int], NDArray[np.float32]]


def binary(rng: np.random.Generator, samples: int) -> NDArray[np.float32]:
    return rng.integers(0, 2, samples).astype(np.float32)


def real(rng: np.random.Generator, samples: int) -> NDArray[np.float32]:
    return rng.normal(0.0, 1.0, samples).astype(np.float32)


def counts(rng: np.random.Generator, samples: int) -> NDArray[np.float32]:
    return rng.poisson(1.5, samples).astype(np.float32)


def classes(rng: np.random.Generator, samples: int) -> NDArray[np.float32]:
    return rng.integers(0, 3, samples).astype(np.float32)


@dataclass(frozen=True)
class Case:
    problem: Problem
    targets: Targets | None = None

    def block(self, sizes: list[int], seed: int = 0) -> Block:
        """Samples within the bounds, some of them clipped, in users of these sizes."""
        rng, samples = np.random.default_rng(seed), sum(sizes)
        if self.problem.name.startswith("one_hot"):
            features = rng.integers(0, self.problem.dimension, (samples, 1)).astype(np.int32)
        else:
            features = rng.normal(0.0, 1.0, (samples, self.problem.columns)).astype(np.float32)
        if isinstance(self.problem, SparseLinear):
            features = csr_array(features * (rng.random(features.shape) < 0.6))
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        raw = Block(features, offsets, None if self.targets is None else self.targets(rng, samples))
        if getattr(self.problem, "terms", None):
            raw = replace(raw, terms=rng.normal(0.0, 1.0, samples).astype(np.float32))
        return self.problem.bound(raw)[0]

    def model(self, seed: int = 0) -> NDArray[np.float64]:
        reach = min(1.0, self.problem.domain.radius)
        return np.random.default_rng(seed + 1000).uniform(-reach, reach, self.problem.dimension)


def network(columns: int, outputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(columns, 4), nn.Tanh(), nn.Linear(4, outputs))


def quartic(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs - targets) ** 4).sum(-1)


def cases(dimension: int) -> dict[str, Case]:
    d = dimension
    return {
        "linear": Case(Linear(d, 0.8)),
        "quadratic": Case(Quadratic(d, 1.5, 2.0)),
        "huber": Case(Huber(d, 1.5, 2.0, 0.7)),
        "bernoulli": Case(Bernoulli(d, 3.0)),
        "logistic": Case(Logistic(d, 1.5, 2.0), binary),
        "logistic_ridge_intercept": Case(Logistic(d, 2.5, 2.0, ridge=0.3, intercept=True), binary),
        "squared_ridge": Case(Squared(d, 1.5, 2.0, low=-1.0, high=1.0, ridge=0.5), real),
        "squared_intercept": Case(Squared(d, 1.1, 2.0, low=-1.0, high=1.0, intercept=True), real),
        "huber_regression_ridge": Case(
            HuberRegression(d, 1.5, 2.0, low=-1.0, high=1.0, threshold=0.6, ridge=0.4), real
        ),
        "biweight_regression_ridge": Case(
            BiweightRegression(d, 1.5, 2.0, low=-1.0, high=1.0, threshold=0.8, ridge=0.4), real
        ),
        "biweight_regression_unbounded": Case(
            BiweightRegression(d, inf, 2.0, low=-inf, high=inf, threshold=0.8, intercept=True), real
        ),
        "lp_regression": Case(LpRegression(d, 1.5, 2.0, order=1.5, low=-1.0, high=1.0, intercept=False), real),
        "lp_regression_ridge_intercept": Case(
            LpRegression(d, 2.5, 2.0, order=1.2, low=-1.0, high=1.0, ridge=0.3, intercept=True), real
        ),
        "lp_regression_of_order_two": Case(LpRegression(d, 1.5, 2.0, order=2.0, low=-1.0, high=1.0, ridge=0.4), real),
        "squared_unbounded": Case(Squared(d, inf, 2.0, low=-inf, high=inf, intercept=True), real),
        "logistic_unbounded": Case(Logistic(d, inf, inf, ridge=0.1), binary),
        "huber_regression_unbounded": Case(HuberRegression(d, inf, 2.0, low=-inf, high=inf, threshold=0.6), real),
        "lp_regression_unbounded": Case(LpRegression(d, inf, 2.0, order=1.5, low=-inf, high=inf), real),
        "poisson_ridge": Case(Poisson(d, 1.5, 1.0, count_bound=4.0, ridge=2.0), counts),
        "cloglog": Case(Cloglog(d, 2.5, 1.0, intercept=True), binary),
        "cloglog_ridge": Case(Cloglog(d, 1.5, 1.0, ridge=2.0), binary),
        "softmax": Case(Softmax(3, d, 1.5, 2.0), classes),
        "softmax_ridge_intercept": Case(Softmax(3, d, 2.5, 2.0, ridge=1.0, intercept=True), classes),
        "softmax_unbounded": Case(Softmax(4, d, inf, inf, ridge=0.1, intercept=True), classes),
        "sparse_logistic": Case(SparseLogistic(d, 1.5, 2, 2.0), binary),
        "sparse_logistic_single": Case(SparseLogistic(d, 1.5, 1, 2.0), binary),
        "sparse_logistic_ridge": Case(SparseLogistic(d, 1.5, 3, 2.0, ridge=0.6), binary),
        "sparse_squared": Case(SparseSquared(d, 1.5, 3, 2.0, low=-1.0, high=1.0), real),
        "sparse_squared_ridge": Case(SparseSquared(d, 1.2, 2, 2.0, low=-1.0, high=1.0, ridge=0.1), real),
        "one_hot_logistic": Case(OneHotLogistic(d + 2, 3.0), binary),
        "one_hot_logistic_ridge": Case(OneHotLogistic(d + 2, 3.0, ridge=0.2), binary),
        "one_hot_squared": Case(OneHotSquared(d + 2, 3.0, low=0.5, high=1.5), real),
        "one_hot_poisson": Case(OneHotPoisson(d + 2, 1.0, count_bound=3.0, ridge=0.1), counts),
        "one_hot_cloglog": Case(OneHotCloglog(d + 2, 2.0, ridge=0.1), binary),
        "sparse_cloglog": Case(SparseCloglog(d, 1.5, 2, 1.0), binary),
        "torch_mse": Case(TorchProblem(network(d, 1), "mse", d, precision="double"), real),
        "torch_cross_entropy": Case(TorchProblem(network(d, 3), "cross_entropy", d, precision="double"), classes),
        "torch_bce": Case(TorchProblem(network(d, 1), "bce_with_logits", d, precision="double"), binary),
        "torch_reconstruction": Case(TorchProblem(network(d, d), quartic, d, has_targets=False, precision="double")),
    }


CASES = {f"{name}-d{d}": case for d in (1, 4) for name, case in cases(d).items()}
CERTIFIED = {name: case for name, case in CASES.items() if not case.problem.certificate.missing()}

WIDE = {
    "linear": Linear(2, 5.0),
    "quadratic": Quadratic(2, 5.0, 50.0),
    "logistic": Logistic(2, 10.0, 50.0),
    "squared": Squared(2, 10.0, 50.0, low=-5.0, high=5.0, intercept=True),
    "softmax": Softmax(3, 2, 10.0, 50.0, ridge=0.1),
}
each_wide_problem = pytest.mark.parametrize("problem", WIDE.values(), ids=WIDE)
"""Problems of two columns, with a domain far larger than the samples."""
