"""The leakage of whole runs of auto about one user, against the claim; and a quarter of the noise, which must be found.

As in tests/userdp/test_audit.py, but every round asks the node anew: what it asks depends on what was released before.
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers import federation_of, make, requested, taken
from helpers_audits import epsilon_lower_bound

from strategies import Auto
from strategies.wire.replies import Gathered
from userdp.nodes.node import Node
from userdp.problems import Linear, Softmax, Squared

FAR = 50.0
RUNS = 1500
EVERYBODY = np.arange(4)


def whole_runs(method, federation, first_seed):
    """(RUNS,): where the model of each run ends; the last round, which may take it back, is left out."""
    node, scores = Node(method.problem, federation, EVERYBODY), np.empty(RUNS)
    for run in range(RUNS):
        method.noise_seed, method.state.memory = first_seed + run, method.scheme.new_memory()
        x = method.state.x = method.problem.initial()
        for index in range(method.plan.rounds - 1):
            request = requested(method, index)
            answer = node.compute(x, EVERYBODY, request.computation)
            x = taken(method, index, x, Gathered(answer.values[0], 0, answer.non_finite)).following
        scores[run] = x[0]
    return scores


def plain():
    """Gradients that depend on no model: coordinates stay as they are."""
    return make(Auto, Linear(1, FAR, radius=1e6), 4, epsilon=1.0, delta=0.02)


def plain_sides():
    rows = np.zeros((4, 1))
    above, below = rows.copy(), rows.copy()
    above[0], below[0] = FAR, -FAR
    return federation_of(above), federation_of(below)


def learnt():
    """Least squares: columns, second moments, gradients."""
    return make(Auto, Squared(1, 1.0, 1e3, low=-1.0, high=1.0), 4, epsilon=1.0, delta=0.02)


def learnt_sides():
    """Everybody at the same small sample; one user at either end of targets, with the largest feature."""
    features, targets = np.full((4, 1), 0.1), np.zeros(4)
    features[0] = 1.0
    sides = []
    for side in (1.0, -1.0):
        targets[0] = side
        sides.append(federation_of(features, targets=targets.copy()))
    return sides


def classes():
    """Softmax: a score of each class in the same coordinates."""
    return make(Auto, Softmax(3, 1, 1.0, 1e3), 4, epsilon=1.0, delta=0.02)


def shares():
    """The same with an intercept: the classes' shares are released first."""
    return make(Auto, Softmax(3, 1, 2.0, 1e3, intercept=True), 4, epsilon=1.0, delta=0.02)


def classes_sides():
    """Everybody at the same small sample; one user with the largest feature in the first class, or in another."""
    features = np.array([[1.0], [0.1], [0.1], [0.1]])
    return [federation_of(features, targets=np.array([own, 1, 2, 2])) for own in (0, 1)]


def leaked(make_method, sides):
    method = make_method()
    scores = [whole_runs(method, side, first_seed=number * RUNS) for number, side in enumerate(sides())]
    return epsilon_lower_bound(*scores, method.plan.guarantee.delta), method.plan.guarantee.epsilon


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_method", "sides"),
    [(plain, plain_sides), (learnt, learnt_sides), (classes, classes_sides), (shares, classes_sides)],
)
def test_whole_runs_leak_no_more_than_they_claim(make_method, sides):
    """The test with a quarter of the noise, below, shows what such an audit can see."""
    found, claimed = leaked(make_method, sides)
    assert found <= claimed


@pytest.mark.slow
def test_whole_runs_with_a_quarter_of_the_noise_are_found():
    def quiet():
        method = plain()
        method.state.scheme = replace(method.scheme, noise_multiplier=method.scheme.noise_multiplier / 4)
        return method

    found, claimed = leaked(quiet, plain_sides)
    assert found > 1.3 * claimed
