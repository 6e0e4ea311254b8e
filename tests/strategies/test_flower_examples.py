"""Flower's public examples with made data: private by two changed lines of the server, also where nodes are killed."""

import difflib

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from helpers_flower import ClientGrid
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from strategies import DropInFedAvg
from userdp.errors import RunFailed

SERVER = """
from flwr.serverapp.strategy import FedAvg

def main(grid, arrays, rounds):
    strategy = FedAvg(fraction_evaluate=0.0)
    return strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
"""
PRIVATE = SERVER.replace("flwr.serverapp.strategy import FedAvg", "strategies import DropInAuto").replace(
    "FedAvg(fraction_evaluate=0.0)", "DropInAuto(users=60, epsilon=8, delta=1e-3, rounds=rounds, seed=1)"
)


def table(user, rows=30):
    """Return one user's (rows, 4) numbers, and labels that follow from the first two."""
    rng = np.random.default_rng(user)
    features = rng.normal(size=(rows, 4))
    return features, (features[:, 0] - features[:, 1] + 0.3 * rng.normal(size=rows) > 0).astype(int)


def numpy_app(arrays, features, labels):
    (weights,) = arrays.to_numpy_ndarrays()
    for _ in range(5):
        slopes = features.T @ (1 / (1 + np.exp(-features @ weights)) - labels) / len(labels)
        weights = weights - 0.5 * slopes
    return ArrayRecord([weights])


def sklearn_app(arrays, features, labels):
    model = LogisticRegression(max_iter=2, warm_start=True, fit_intercept=True)
    model.classes_, (model.coef_, model.intercept_) = np.arange(2), arrays.to_numpy_ndarrays()
    model.fit(features, labels)
    return ArrayRecord([model.coef_, model.intercept_])


def module():
    """Build the network of a table: two layers, the first of eight units."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def tabular_app(arrays, features, labels):
    model = module()
    model.load_state_dict(arrays.to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        optimiser.zero_grad()
        scores = model(torch.tensor(features, dtype=torch.float32))
        torch.nn.functional.cross_entropy(scores, torch.tensor(labels)).backward()
        optimiser.step()
    return ArrayRecord(model.state_dict())


def of_scores(arrays):
    weights, *intercept = arrays.to_numpy_ndarrays()
    return lambda features: features @ weights.ravel() + (intercept[0] if intercept else 0.0) > 0


def of_module(arrays):
    model = module()
    model.load_state_dict(arrays.to_torch_state_dict())
    return lambda features: model(torch.tensor(features, dtype=torch.float32)).argmax(1).numpy()


EXAMPLES = {
    "numpy": (numpy_app, ArrayRecord([np.zeros(4)]), of_scores),
    "sklearn": (sklearn_app, ArrayRecord([np.zeros((1, 4)), np.zeros(1)]), of_scores),
    "tabular": (tabular_app, ArrayRecord(module().state_dict()), of_module),
}
"""Apps beside those of PyTorch, the page's and the quickstart, which `test_drop_in` runs."""


def app_of(fit, repeated=1, killed=lambda user, number: False):
    app = ClientApp()

    @app.train()
    def train(message, context):
        user = context.node_config["partition-id"]
        if killed(user, message.content["config"]["server-round"]):
            raise ConnectionError
        features, labels = table(user)
        more = (np.repeat(each, repeated if user == 0 else 1, axis=0) for each in (features, labels))
        metrics = MetricRecord({"num-examples": len(labels) * repeated})
        return Message(
            RecordDict({"arrays": fit(message.content["arrays"], *more), "metrics": metrics}), reply_to=message
        )

    @app.evaluate()
    def evaluate(message, context):
        if killed(context.node_config["partition-id"], -1):
            raise ConnectionError
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=message)

    return app


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning")
@pytest.mark.parametrize(("fit", "initial", "predictor"), EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_is_private_by_two_changed_lines_and_learns(fit, initial, predictor):
    changed = [line for line in difflib.ndiff(SERVER.splitlines(), PRIVATE.splitlines()) if line.startswith("+ ")]
    assert 0 < len(changed) <= 3
    server = {}
    exec(PRIVATE, server)
    with ClientGrid(app_of(fit), 60) as grid:
        result = server["main"](grid, initial, 8)
    features, labels = table(1000, 2000)
    assert result.guarantee.epsilon <= 8
    assert np.mean(predictor(result.arrays)(features) == labels) > 0.8  # chance is 0.5


def test_where_most_held_out_clients_cannot_evaluate_that_is_what_the_run_says():
    strategy = DropInFedAvg(
        users=20, epsilon=8, delta=1e-3, rounds=2, seed=1, held_out=10, metrics={"loss": (0, 1)}, clip_norm=0.5
    )
    app = app_of(numpy_app, killed=lambda user, number: user >= 24 and number == -1)
    with (
        ClientGrid(app, 30) as grid,
        pytest.raises(RunFailed, match="held-out users: too many users of a cohort did not answer"),
    ):
        strategy.start(grid, ArrayRecord([np.zeros(4)]), roster_timeout=0)


KILLED = {
    "before the roster": lambda user, number: user == 7,
    "in training": lambda user, number: user == 7 and number >= 2,
    "in evaluation": lambda user, number: user == 57 and number == -1,
}


@pytest.mark.parametrize("killed", KILLED.values(), ids=KILLED)
def test_where_a_node_is_killed_the_run_goes_on(killed):
    strategy = DropInFedAvg(
        users=50, epsilon=8, delta=1e-3, rounds=3, seed=1, held_out=10, metrics={"loss": (0, 1)}, clip_norm=0.5
    )
    with ClientGrid(app_of(numpy_app, killed=killed), 60) as grid:
        result = strategy.start(grid, ArrayRecord([np.zeros(4)]), roster_timeout=0)
    expected = [int(any(killed(user, number) for user in range(50))) for number in (1, 2, 3)]
    assert [one.missing_users for one in result.rounds] == expected
    assert 3 in result.evaluate_metrics_clientapp
    assert np.any(result.arrays.to_numpy_ndarrays()[0] != 0)


def test_a_loader_that_repeats_a_users_rows_a_thousand_times_moves_the_model_no_further_than_a_clip():
    ends = []
    for repeated in (1, 1000):
        strategy = DropInFedAvg(users=60, epsilon=8, delta=1e-3, rounds=1, seed=1, clip_norm=0.5)
        with ClientGrid(app_of(numpy_app, repeated), 60) as grid:
            ends.append(strategy.start(grid, ArrayRecord([np.zeros(4)])).arrays.to_numpy_ndarrays()[0])
    assert np.linalg.norm(ends[0] - ends[1]) <= 2 * 0.5 / 60


def test_a_cohort_of_nobody_releases_noise_alone_and_the_run_goes_on():
    given = {"users": 20, "epsilon": 1.0, "delta": 1e-3, "sampling": "poisson", "cohort": 1, "rounds": 12}
    with ClientGrid(app_of(numpy_app), 20) as grid:
        result = DropInFedAvg(**given, seed=2, clip_norm=0.5).start(grid, ArrayRecord([np.zeros(4)]))
    asked = [sum(m.content["config"]["server-round"] == number for m in grid.sent) for number in range(1, 13)]
    assert 0 in asked
    assert max(asked) > 0
    assert len(result.rounds) == 12
