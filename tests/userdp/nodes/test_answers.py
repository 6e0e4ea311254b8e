"""Answers of held-out users: bounded whatever the data, and metrics with intervals follow from them."""

import math

import numpy as np
import pytest
from helpers import federation_of
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.data import Block
from userdp.nodes.answers import longest, measures
from userdp.nodes.computations import Computation
from userdp.nodes.measured import Histogram, estimates
from userdp.nodes.node import Node
from userdp.problems import Logistic, Quadratic, Softmax, Squared

EDGES = np.linspace(-4.0, 4.0, 15)
PROBLEMS = {
    "logistic": lambda: Logistic(2, 2.0, 5.0, ridge=0.01),
    "squared": lambda: Squared(2, 2.0, 5.0, low=-1.0, high=1.0),
    "softmax": lambda: Softmax(3, 2, 2.0, 5.0),
    "quadratic": lambda: Quadratic(2, 1.0, 5.0),
}


def questions(problem, weight=0.5):
    what = measures(problem)
    reference = problem.initial()
    numbers = {"limit": 1.5, "width": what.difference or 1.0, "weight": weight}
    arrays = {"asked": what.asked, "reference": reference}
    if what.ranking:
        below = np.stack([np.linspace(0, 1, len(EDGES) + 2)] * 2)
        arrays |= {"edges": EDGES, "below": below}
        yield Computation("score_shares", "sum", 1.0, arrays={"edges": EDGES})
    yield Computation("loss_sizes", "sum", 1.0, arrays={"edges": 2.0 ** np.arange(-8, 10.5, 0.5)})
    yield Computation("loss_answer", "sum", 0.5, parameters={"limit": 1.5})
    yield Computation("answers", "sum", longest(what.means, weight), parameters=numbers, arrays=arrays)


def test_measures_are_known_before_data():
    logistic, squared = measures(PROBLEMS["logistic"]()), measures(PROBLEMS["squared"]())
    assert (logistic.loss, logistic.accuracy, logistic.difference, logistic.ranking) == ("log_loss", True, 1.0, True)
    assert (squared.loss, squared.accuracy, squared.ranking, squared.classes) == ("squared_error", False, False, 0)
    assert measures(PROBLEMS["softmax"]()).classes == 3
    assert measures(PROBLEMS["quadratic"]()).means == 2


@pytest.mark.parametrize("kind", PROBLEMS)
@settings(max_examples=40)
@given(
    users=st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.sampled_from([0.0, 1.0])), min_size=2, max_size=6),
    other=st.tuples(st.floats(-3, 3) | st.just(math.nan), st.floats(-3, 3), st.sampled_from([0.0, 1.0, math.inf])),
    scale=st.sampled_from([0.0, 1.0, 50.0, 1e6]),
)
def test_a_user_moves_no_sum_by_more_than_its_sensitivity(kind, users, other, scale):
    """Replaced, or absent; for any model, also one that has diverged."""
    problem = PROBLEMS[kind]()
    x = scale * np.linspace(-1, 1, problem.dimension)

    def total(members, computation):
        rows = np.array(members)
        targets = rows[:, 2] if problem.has_targets else None
        federation = federation_of(rows[:, :2], targets=targets)
        everybody = np.arange(len(members))
        answer = Node(problem, federation, everybody).compute(x, everybody, computation)
        return np.asarray(answer.values).ravel()

    for computation in questions(problem):
        whole = total(users, computation)
        replaced = total([other, *users[1:]], computation)
        assert np.linalg.norm(whole - replaced) <= computation.sensitivity("replace_one") * (1 + 1e-9)
        assert np.linalg.norm(whole - total(users[1:], computation)) <= computation.sensitivity("add_or_remove") * (
            1 + 1e-9
        )


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_clip_cuts_nothing(kind):
    """Rows are bounded by construction, so the clip of the node never changes a metric."""
    problem, rng = PROBLEMS[kind](), np.random.default_rng(0)
    features = rng.uniform(-1, 1, (40, 2)).astype(np.float32)
    targets = rng.integers(0, 2, 40).astype(np.float32) if problem.has_targets else None
    # Users of one sample are the most extreme.
    block = problem.bound(Block(features, np.arange(41), targets))[0]
    x = 100 * rng.standard_normal(problem.dimension)
    for computation in questions(problem):
        rows = computation.function.rows(problem, x, block, **computation.parameters, **computation.arrays)
        assert np.linalg.norm(rows, axis=1).max() <= computation.clip_norm * (1 + 1e-9)
        assert rows.shape[1] == computation.length(problem.dimension)


def exact_area(scores, positive, weights):
    order = np.argsort(scores)
    ones, zeros = (weights * positive)[order], (weights * ~positive)[order]
    return float((ones * (np.cumsum(zeros) - zeros / 2)).sum() / (ones.sum() * zeros.sum()))


def test_without_noise_the_ranking_is_exact_however_rough_the_shares_it_starts_from():
    """The error of rough shares counts to second order: with fair ones the area is that of all pairs."""
    problem, rng = PROBLEMS["logistic"](), np.random.default_rng(1)
    sizes = rng.integers(1, 9, 3000)
    features = rng.uniform(-1, 1, (sizes.sum(), 2)).astype(np.float32)
    x = np.array([2.0, -1.0, 0.3])[: problem.dimension]
    targets = (rng.random(len(features)) < 1 / (1 + np.exp(-2.5 * features[:, 0]))).astype(np.float32)
    block = Block(features, np.concatenate([[0], np.cumsum(sizes)]), targets)
    what = measures(problem)

    def ask(name, **more):
        computation = Computation(name, "sum", 100.0, **more)
        rows = computation.function.rows(problem, x, block, **computation.parameters, **computation.arrays)
        return rows.sum(axis=0)

    rough = Histogram.of(ask("score_shares", arrays={"edges": EDGES}) + rng.normal(0, 15, 32))
    arrays = {"asked": what.asked, "reference": problem.initial(), "edges": EDGES, "below": rough.below}
    sums = ask("answers", parameters={"limit": 1.5, "width": 1.0, "weight": 0.5}, arrays=arrays)
    found = estimates(what, sums / block.users, 0.0, block.users, 1.5, 0.5, rough, constant=False)
    scores = problem.predict(x, block)["probability"]
    exact = exact_area(scores, targets > 0.5, np.repeat(1 / sizes, sizes))
    assert found["auc"].value == pytest.approx(exact, abs=2e-3)
    assert abs(rough.area - exact) > abs(found["auc"].value - exact)
    assert found["accuracy"].value == pytest.approx(problem.metrics(x, block)["accuracy"].mean())
    assert found["log_loss"].value == pytest.approx(np.minimum(problem.metrics(x, block)["log_loss"], 1.5).mean())


def test_drowned_ratios_are_left_out():
    what = measures(PROBLEMS["logistic"]())
    nothing = np.zeros(what.means + what.means * (what.means + 1) // 2)
    found = estimates(what, nothing, 10.0, 5, 1.4, 0.5, Histogram.of(np.zeros(32)), constant=True)
    assert not {"auc", "deviance_explained"} & set(found)
    assert found["accuracy"].interval == (0.0, 1.0)


def test_a_model_is_measured_and_asked_for_predictions_once(monkeypatch):
    problem, calls = PROBLEMS["logistic"](), []
    for name in ("metrics", "predict"):
        own = getattr(problem, name)
        monkeypatch.setattr(problem, name, lambda x, block, own=own, name=name: (calls.append(name), own(x, block))[1])
    *_, answers = questions(problem)
    calls.clear()
    federation, everybody = federation_of(np.zeros((3, 2)), targets=np.array([0.0, 1.0, 1.0])), np.arange(3)
    Node(problem, federation, everybody).compute(problem.initial(), everybody, answers)
    assert sorted(calls) == ["metrics", "metrics", "predict"]  # of the model and of the reference
