"""The inner loops of the project, each as one call without arguments, for `regress.py` and pytest-benchmark.

    PYTHONPATH=research python -m pytest benchmarks/kernels.py -p no:xdist

Run from another tree, whose ``userdp`` is older, a kernel that needs what is not there yet is skipped.
"""

import itertools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

Kernel = Callable[[], Any]
USERS, SAMPLES, COLUMNS, CLIP = 400, 20, 100, 0.05
ROUNDS = 100_000
"""More than are ever measured."""


def rows_of(count: int, columns: int) -> Any:
    return np.random.default_rng(1).normal(size=(count, columns)) * 0.1


# Packages are imported where a kernel is made: an older tree may lack what another kernel needs.


def clip_rows() -> Kernel:
    from userdp.arrays.sparse_rows import clip_rows as clip

    rows = rows_of(1000, 500)
    return lambda: clip(rows, CLIP)


def add_clipped_rows() -> Kernel:
    from userdp.arrays.sparse_rows import add_clipped_rows as add
    from userdp.arrays.sparse_rows import row_lengths

    rows, total = rows_of(1000, 500), np.zeros(500)
    return lambda: add(total, rows, CLIP, row_lengths(rows))


def sparse_rows() -> Kernel:
    from scipy.sparse import random_array

    from userdp.arrays.sparse_rows import clip_rows as clip
    from userdp.arrays.sparse_rows import summed_rows

    rows = random_array((8000, 100_000), density=2e-4, format="csr", rng=np.random.default_rng(1))
    offsets = np.arange(0, 8001, 20)
    return lambda: clip(summed_rows(rows, offsets), CLIP)


def people() -> tuple[Any, Any]:
    """(logistic regression, a federation for it)."""
    from userdp.data import LogisticRegression, SyntheticFederation
    from userdp.problems import Logistic

    population = LogisticRegression(dimension=COLUMNS)
    problem = Logistic(COLUMNS, feature_norm=population.feature_norm, radius=10.0, ridge=0.05)
    return problem, SyntheticFederation(population, USERS, seed=1, samples_per_user=SAMPLES)


def of_users(name: str) -> Callable[[], Kernel]:
    """A method of the problem that takes a model and a block."""

    def make() -> Kernel:
        problem, federation = people()
        block = problem.bound(federation.block(np.arange(USERS)))[0]
        model, method = rows_of(1, COLUMNS)[0], getattr(problem, name)
        return lambda: method(model, block)

    return make


def sample_clipped_sums() -> Kernel:
    problem, federation = people()
    block, model = problem.bound(federation.block(np.arange(USERS)))[0], rows_of(1, COLUMNS)[0]
    return lambda: problem.sample_clipped_sums(model, block, CLIP)


def node_answer() -> Kernel:
    from userdp.nodes.computations import Computation
    from userdp.nodes.node import Node

    problem, federation = people()
    users, model = np.arange(USERS), rows_of(1, COLUMNS)[0]
    node, asked = Node(problem, federation, users), Computation("rough_user_gradient", reduce="sum", clip_norm=CLIP)
    return lambda: node.compute(model, users, asked)


def whole_round() -> Kernel:
    from flwr.app import ConfigRecord

    from simulations.engines.grids import LocalGrid, shards
    from strategies import DPFedSGD, PublicFacts, model_record
    from userdp.accounting import Privacy
    from userdp.nodes.node import Node

    problem, federation = people()
    facts = PublicFacts(USERS, min_samples=SAMPLES, max_samples=SAMPLES)
    # Enough budget for so many rounds: what one of them costs does not depend on it.
    privacy = Privacy(epsilon=1e6, delta=1e-4)
    strategy = DPFedSGD(rounds=ROUNDS, clip_norm=CLIP, learning_rate=1.0).strategy(problem, facts, privacy)
    grid = LocalGrid([Node(problem, federation, users) for users in shards(USERS, nodes=2)])
    strategy._roster.gather(grid, timeout=60)  # what `start` does once, before the first round
    start, numbers = model_record(np.zeros(COLUMNS)), itertools.count(1)

    def run_round() -> None:
        index = next(numbers)
        messages = strategy.configure_train(index, start, ConfigRecord(), grid)
        strategy.aggregate_train(index, list(grid.send_and_receive(messages, timeout=60)))

    return run_round


def median() -> Kernel:
    from userdp.estimators.robust import coordinate_median

    rows = rows_of(500, 500)
    return lambda: coordinate_median(rows)


def trimmed_mean() -> Kernel:
    from userdp.estimators.robust import smallest_trim
    from userdp.estimators.robust import trimmed_mean as mean

    rows = rows_of(500, 500)
    return lambda: mean(rows, smallest_trim(len(rows)))


def score(kernel: str, radius: float) -> Callable[[], Kernel]:
    """The concentration score of a batch, by one of its kernels."""

    def make() -> Kernel:
        from userdp.estimators import concentration

        rows, chosen = rows_of(500, 200), getattr(concentration, kernel)(radius)
        return lambda: concentration.concentration_score(rows, chosen)

    return make


def deep_centre() -> Kernel:
    from strategies.baselines.heavy_tailed.estimators import deep_centre as centre

    points = rows_of(20, 5)
    return lambda: centre(points)


def gaussian_noise() -> Kernel:
    from userdp.accounting import calibrate_noise

    # Answers are kept, so every call asks for another budget.
    budgets = itertools.count()
    return lambda: calibrate_noise(1 + 1e-6 * next(budgets), 1e-6, 50)


def sampled_noise() -> Kernel:
    from strategies.baselines.averaged_clipping.renyi import calibrate_sampled_gaussian

    budgets = itertools.count()
    return lambda: calibrate_sampled_gaussian([(0.01, 200)], 1 + 1e-6 * next(budgets), 1e-6)


def synthetic_block() -> Kernel:
    _, federation = people()
    users = np.arange(USERS)
    return lambda: federation.block(users)


def secure_noise() -> Kernel:
    from userdp.noise import SecureNoise

    noise, zeros = SecureNoise(slack=0.0), np.zeros(500)
    return lambda: noise.gaussian(zeros, 1.0)


def query_rows() -> Kernel:
    from userdp.data import Block
    from userdp.data.shape import Column, Shape
    from userdp.queries.table import TableSettings

    rng, count = np.random.default_rng(1), 40_000
    cells = np.zeros((count, 6), dtype=np.float32)
    cells[:, :2] = rng.uniform(-1, 1, (count, 2))
    cells[np.arange(count), 2 + rng.integers(0, 4, count)] = 1
    number, other = (Column(name, (place,), (0.0, 100.0)) for place, name in enumerate(["number", "other"]))
    levels = Column("level", (2, 3, 4, 5), levels=("a", "b", "c", "d"))
    asked = [
        {"statistic": "mean", "of": "number"},
        {"statistic": "variance", "of": "other"},
        {"statistic": "histogram", "of": "number", "bins": list(range(0, 101, 10))},
        {"statistic": "counts", "of": "level"},
        {"statistic": "group_means", "of": "number", "by": "level"},
        {"statistic": "correlation", "of": ["number", "other"]},
        {"statistic": "quantiles", "of": "other"},
    ]
    settings = TableSettings.model_validate({"kind": "table", "ask": asked})
    problem: Any = settings.build(Shape(6, has_target=False, bound=1.0, named=(number, other, levels)), 0)
    offsets = np.arange(0, count + 1, 5)
    return lambda: [make(Block(cells, offsets)) for make in (problem.user_shares, problem.user_ranks)]


def table_of_text() -> Kernel:
    import pandas as pd

    from userdp.data.tables.frames import table_file

    frame = pd.DataFrame({"level": np.array(["north", "south"])[np.arange(100_000) % 2]}, dtype="str")

    def stored() -> None:
        with table_file(frame, ["level"]):
            pass

    return stored


def neural(layer: str, execution: str) -> Callable[[], Kernel]:
    """Gradients of 16 users of a network that reads windows of 32 codes, in groups or one by one."""

    def make() -> Kernel:
        sys.path.append(os.path.dirname(__file__))  # whichever tree is measured
        from neural_models import VOCABULARY, WINDOW, Attention, Recurrent
        from torch import nn

        from userdp.data import Block
        from userdp.data.shape import Sequence
        from userdp.problems import TorchProblem

        makes = {
            "gru": lambda: Recurrent(nn.GRU, 16, 32),
            "lstm": lambda: Recurrent(nn.LSTM, 16, 32),
            "attention": lambda: Attention(16, 32, heads=2),
        }
        sequence = Sequence(WINDOW, (VOCABULARY,))
        problem = TorchProblem(makes[layer], "cross_entropy", sequence=sequence, execution=execution)  # type: ignore[arg-type]
        codes = np.random.default_rng(1).integers(0, VOCABULARY, (64, WINDOW), dtype=np.int32)
        block, model = Block(codes, np.arange(0, 65, 4)), problem.initial()
        return lambda: problem.user_gradients(model, block)

    return make


KERNELS: dict[str, Callable[[], Kernel]] = {
    "clip rows": clip_rows,
    "add clipped rows": add_clipped_rows,
    "sum and clip sparse rows": sparse_rows,
    "users' gradients": of_users("user_gradients"),
    "users' gradients, rough": of_users("rough_user_gradients"),
    "clipped sums of samples": sample_clipped_sums,
    "answer of a node": node_answer,
    "round of dp_fed_sgd": whole_round,
    "median": median,
    "trimmed mean": trimmed_mean,
    "score, exponential": score("ExpKernel", 1.0),
    "score, ramp": score("RampKernel", 2.0),
    "deep centre": deep_centre,
    "noise of a plan": gaussian_noise,
    "noise of a plan, Poisson": sampled_noise,
    "synthetic block": synthetic_block,
    "secure noise": secure_noise,
    "rows of a query": query_rows,
    "a table in memory": table_of_text,
    "gated units, in groups": neural("gru", "grouped"),
    "long short-term memory, in groups": neural("lstm", "grouped"),
    "attention, in groups": neural("attention", "grouped"),
    "gated units, one by one": neural("gru", "loop"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel(benchmark: "BenchmarkFixture", name: str) -> None:
    """Times one kernel; the first call, which finds libraries and touches memory, is not measured."""
    import userdp

    try:
        kernel = KERNELS[name]()
        kernel()
    except (ImportError, AttributeError, TypeError) as error:
        pytest.skip(f"{type(error).__name__}: {error}")
    benchmark.extra_info["userdp"] = userdp.__file__
    benchmark(kernel)
