"""The zero of a model's metrics: what says the mean target of everybody, sample by sample for every kind of loss."""

import math
from functools import partial

import numpy as np
import pytest
from examples import changed
from torch import nn

from simulations.config.run_config import parse_config
from simulations.records.evaluation import Evaluation, best_constant, better, verdict
from simulations.records.quality import explained
from simulations.runs.run import run
from strategies.baselines.regressions import HuberRegression
from userdp.arrays.sparse_rows import sparse_rows
from userdp.data import Block, ColumnarFederation
from userdp.data.shape import Sequence
from userdp.neural.problem import TorchProblem
from userdp.problems import Logistic, OneHotLogistic, Poisson, Quadratic, Softmax, SparseSquared, Squared

RNG = np.random.default_rng(5)
SIZES = np.array([1, 5, 2, 7, 3])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
N = int(SIZES.sum())
WEIGHTS = np.repeat(1 / SIZES, SIZES) / len(SIZES)
"""Each user weighs the same, however many samples it has."""
FEATURES = RNG.uniform(-1, 1, (N, 2)).astype(np.float32)
NUMBERS = RNG.uniform(-1, 1, N).astype(np.float32)
RATES = (RNG.random(N) < 0.3).astype(np.float32)
COUNTS = RNG.poisson(2.0, N).astype(np.float32)
CLASSES = RNG.integers(0, 3, N).astype(np.float32)


def module(outputs):
    return partial(nn.Linear, 2, outputs)


def evaluation(problem, targets, features=FEATURES):
    return Evaluation(problem, None, ColumnarFederation(Block(features, OFFSETS, targets)))


def mean_of(targets):
    return float(WEIGHTS @ targets)


def shares():
    return np.array([mean_of(one == CLASSES) for one in range(3)])


def squares(targets, predicted):
    return mean_of((targets - predicted) ** 2)


def log_loss(classes, probabilities):
    return -mean_of(np.log([row[int(one)] for row, one in zip(probabilities, classes, strict=True)]))


def of_two(rates):
    return np.column_stack([1 - np.broadcast_to(rates, N), np.broadcast_to(rates, N)])


def deviance(counts, predicted):
    logs = np.where(counts > 0, counts * np.log(np.maximum(counts, 1) / predicted), 0.0)
    return 2 * mean_of(logs - counts + predicted)


REGRESSIONS = {
    "squared": Squared(2, 3.0, 1.0, low=-1, high=1, ridge=0.1),  # not even an intercept is needed
    "huber": HuberRegression(2, 3.0, 1.0, low=-1, high=1, intercept=True),
    "mse": TorchProblem(module(1), "mse", 2),
}


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_of_numbers_it_is_the_mean_and_r2_is_that_of_the_textbook(kind):
    problem = REGRESSIONS[kind]
    measure = evaluation(problem, NUMBERS)
    assert measure.constant["squared_error"] == pytest.approx(squares(NUMBERS, mean_of(NUMBERS)))
    assert measure.constant["r2"] == 0.0
    if kind == "huber":
        wanted = mean_of(np.abs(NUMBERS - mean_of(NUMBERS)))
        assert measure.constant["absolute_error"] == pytest.approx(wanted)
    if kind == "mse":
        assert measure.constant["test_loss"] == pytest.approx(measure.constant["squared_error"])
    x = RNG.normal(size=problem.dimension)
    predicted = problem.predict(x, Block(FEATURES, OFFSETS, NUMBERS))["prediction"]
    wanted = 1 - squares(NUMBERS, predicted) / squares(NUMBERS, mean_of(NUMBERS))
    assert measure.whole(x)["r2"] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    "problem",
    [
        Logistic(2, 3.0, 5.0, ridge=0.1, intercept=True),
        TorchProblem(module(1), "bce_with_logits", 2),
        Softmax(3, 2, 3.0, 5.0, ridge=0.1),
        TorchProblem(module(3), "cross_entropy", 2),
    ],
    ids=["logistic", "bce_with_logits", "softmax", "cross_entropy"],
)
def test_of_classes_it_is_their_shares_and_what_is_explained_is_of_the_log_loss(problem):
    two = problem.predict(problem.initial(), Block(FEATURES, OFFSETS, RATES)).keys() == {"prediction", "probability"}
    targets, wanted = (RATES, of_two(mean_of(RATES))) if two else (CLASSES, np.tile(shares(), (N, 1)))
    measure, entropy = evaluation(problem, targets), log_loss(targets, wanted)
    assert measure.constant["test_loss"] == pytest.approx(entropy)
    assert measure.constant["accuracy"] == pytest.approx(wanted.max())
    assert measure.constant["deviance_explained"] == 0.0
    x = RNG.normal(size=problem.dimension)
    told = problem.predict(x, Block(FEATURES, OFFSETS, targets))
    found = of_two(told["probability"]) if two else np.column_stack([told[f"probability.{k}"] for k in range(3)])
    explained_share = 1 - log_loss(targets, found) / entropy
    assert measure.whole(x)["deviance_explained"] == pytest.approx(explained_share, abs=1e-5)


def test_of_counts_it_is_their_mean_and_what_is_explained_is_of_the_deviance():
    measure = evaluation(Poisson(2, 3.0, 3.0, count_bound=20.0, intercept=True), COUNTS)
    wanted = deviance(COUNTS, mean_of(COUNTS))
    assert measure.constant["deviance"] == pytest.approx(wanted)
    x = np.array([0.1, -0.2, 0.5])
    own = deviance(COUNTS, np.exp(FEATURES @ x[:2] + x[2]))
    assert measure.whole(x)["deviance_explained"] == pytest.approx(1 - own / wanted, abs=1e-6)


def test_levels_and_sparse_rows_have_it_too():
    codes = RNG.integers(0, 4, (N, 1)).astype(np.int32)
    rates = evaluation(OneHotLogistic(4, 5.0), RATES, codes)
    assert rates.constant["test_loss"] == pytest.approx(log_loss(RATES, of_two(mean_of(RATES))))
    rows = sparse_rows(np.ones(N, dtype=np.float32), np.arange(N) % 6, np.arange(N + 1), 6)
    numbers = evaluation(SparseSquared(6, 1.0, 2, 1.0, low=-1, high=1), NUMBERS, rows)
    assert numbers.constant["squared_error"] == pytest.approx(squares(NUMBERS, mean_of(NUMBERS)))


def test_of_sequences_it_is_how_often_each_code_follows():
    problem = TorchProblem(partial(Next, 3), "cross_entropy", sequence=Sequence(4, (3,)))
    codes = RNG.integers(0, 3, (N, 4)).astype(np.int32)
    codes[1::3, 2:] = -1  # some end early
    measure = Evaluation(problem, None, ColumnarFederation(Block(codes, OFFSETS)))
    steps = np.repeat(np.arange(len(SIZES)), SIZES * 4).reshape(N, 4)
    there = codes >= 0
    weights = (1 / np.bincount(steps[there]) / len(SIZES))[steps[there]]
    own = np.array([weights @ (codes[there] == one) for one in range(3)])
    assert measure.constant["test_loss"] == pytest.approx(-(own * np.log(own)).sum())
    assert measure.constant["bits"] == pytest.approx(measure.constant["test_loss"] / math.log(2))


class Next(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.embedding = nn.Embedding(levels + 1, levels)

    def forward(self, codes):
        return self.embedding(codes)


def test_features_that_are_their_own_targets_are_reconstructed_by_their_means():
    problem = TorchProblem(module(2), "mse", 2, has_targets=False)
    measure = Evaluation(problem, None, ColumnarFederation(Block(FEATURES, OFFSETS)))
    spread = WEIGHTS @ (FEATURES - WEIGHTS @ FEATURES) ** 2
    assert measure.constant["test_loss"] == pytest.approx(spread.mean(), rel=1e-5)


def test_it_is_the_same_block_by_block(monkeypatch):
    def blocks(self, users):
        return iter([(users[:2], self.block(users[:2])), (users[2:], self.block(users[2:]))])

    whole = evaluation(Softmax(3, 2, 3.0, 5.0), CLASSES).constant
    monkeypatch.setattr(ColumnarFederation, "blocks", blocks)
    assert evaluation(Softmax(3, 2, 3.0, 5.0), CLASSES).constant == pytest.approx(whole)


def test_a_target_that_never_differs_and_a_loss_of_ones_own_have_nothing_to_explain():
    never = evaluation(Logistic(2, 3.0, 5.0, intercept=True), np.zeros(N, dtype=np.float32))
    assert never.constant["test_loss"] == pytest.approx(0.0, abs=1e-6)
    assert math.isfinite(never.constant["test_loss"])
    own = TorchProblem(module(1), lambda outputs, targets: (outputs.squeeze(1) - targets).abs(), 2)
    assert evaluation(own, NUMBERS).constant == {}
    assert explained({"test_loss": 1.0}, {}) == {}
    means = Evaluation(Quadratic(2, 1.0, 1.0), None, ColumnarFederation(Block(FEATURES, OFFSETS)))
    assert means.constant == {}
    assert Evaluation(Squared(2, 3.0, 1.0, low=-1, high=1), None, None).constant == {}


def test_a_model_is_held_against_the_released_constant_and_else_against_that_of_the_held_out_people():
    known = {"constant": {"test_loss": 0.6}, "released_constant": None}
    assert best_constant(known) == {"test_loss": 0.6}
    assert best_constant(known | {"released_constant": {"test_loss": 0.7}}) == {"test_loss": 0.7}
    assert best_constant({"initial": {"test_loss": 1.0}}) is None
    assert better({"test_loss": 0.55}, known, "constant")
    assert better({"test_loss": 0.65}, known, "constant") is False
    assert better({"test_loss": 0.65}, known, "released_constant") is None
    assert better({}, known, "constant") is None
    for loss, wanted in ((0.55, True), (0.58, None), (0.62, None), (0.65, False)):
        assert better({"test_loss": loss}, known | {"difference_errors": {"constant": 0.02}}, "constant") is wanted
    assert verdict(math.nan, 0.6, 0.02) == verdict(math.inf, 0.6, None) == "worse"
    assert verdict(math.inf, math.inf, None) == "even"


def test_errors_are_those_of_differences_of_the_same_peoples_losses():
    problem, targets = Squared(2, 3.0, 5.0, low=-5.0, high=5.0, intercept=True), NUMBERS
    measure, x, start = evaluation(problem, targets), np.array([0.1, -0.2, 0.5]), np.zeros(3)
    block = Block(FEATURES, OFFSETS, targets)
    one, other = (problem.metrics(model, block)["test_loss"] for model in (x, start))
    errors = measure.reference(x, start, measure(start), x)["difference_errors"]
    assert errors["initial"] == pytest.approx((one - other).std(ddof=1) / math.sqrt(len(one)))
    assert errors["released_constant"] == 0.0
    assert errors["constant"] > 0


def test_a_run_tells_both_and_says_if_it_is_better(tmp_path):
    data = {"population": "linear_regression", "dimension": 2, "samples_per_user": 4}
    settings = {f"data__{name}": value for name, value in data.items()}
    problem = {"kind": "squared", "intercept": True, "target_range": [-4.0, 4.0], "feature_norm": 5.0}
    config = parse_config(changed(problem=problem, strategy={"kind": "auto"}, **settings))
    outcome = run(config, directory=tmp_path / "run", report=False)
    reference = outcome.result["reference"]
    assert reference["constant"]["r2"] == 0.0
    assert reference["released_constant"]["r2"] < 1e-9  # nobody knows the held-out people's mean better than they do
    gap = {name: outcome.result["metrics"][name] - one for name, one in reference["released_constant"].items()}
    main = next(name for name in ("excess_risk", "excess_loss", "test_loss") if name in gap)
    error = reference["difference_errors"].get("released_constant", 0.0)
    assert outcome.result["better_than_constant"] is (None if abs(gap[main]) <= 1.96 * error else gap[main] < 0)
