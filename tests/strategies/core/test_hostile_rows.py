"""Nodes answer with any finite numbers at all: no run fails once its budget is charged, and every model is finite."""

import math

import any_strategy
import numpy as np
import pytest
from any_strategy import USERS
from helpers import ChangedNode, federation_of, make
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.engines.grids import LocalGrid, shards
from strategies import STRATEGIES, DPFedSGD, model_vector
from strategies.core.scheme import Step
from userdp.arrays.sparse_rows import dense
from userdp.errors import RunFailed
from userdp.nodes.node import Answer, Node
from userdp.problems import Linear, Quadratic

SPARSE = {name: {"sparsity": 2} for name in ("private_hard_thresholding", "sparse_optimisation")}
OPTIONS = {"localized_robust_sgd": {"phases": 1}, **SPARSE}
PAPER = {"estimate": "debiased", "statistic": "median", "kernel": "exp"}
MIXED = {"estimate": "debiased", "statistic": "trimmed_mean", "kernel": "ramp"}
CASES = {
    **{name: (name, {}) for name in STRATEGIES},
    **{f"{name}, paper": (name, PAPER) for name in ("robust_rounds", "localized_robust_sgd")},
    **{f"{name}, mixed": (name, MIXED) for name in ("robust_rounds", "localized_robust_sgd")},
    **{f"iterative_mean_sgd, {centre}": ("iterative_mean_sgd", {"centre": centre}) for centre in ("mean", "deep")},
}
HOSTILE = np.array([0.0, 5e-324, -5e-324, 1.0, -1.0, 2.0**53, 1e154, -1e154, 1.7e308, -1.7e308, np.finfo(float).max])


def problem_of(name):
    """A problem that certifies what the strategy needs, over a domain as wide as it may be."""
    if STRATEGIES[name].about.example_problem["kind"] != "quadratic":
        return any_strategy.problem_of(name)
    if name in ("localized_robust_sgd", "localized_clipping", "output_perturbation", "stopped_sgd"):
        return Linear(2, 1.0, radius=1e9)
    return Quadratic(2, 9.0, 1e9)


def method_of(name, problem=None, **options):
    """A strategy of the registry, of few rounds."""
    fields = STRATEGIES[name].model_fields
    few = {key: value for key, value in (("rounds", 2), ("deviation", 1.0)) if key in fields}
    return any_strategy.method_of(name, problem or problem_of(name), 8.0, **few | OPTIONS.get(name, {}) | options)


def models_of(method, change, changed):
    """Every model handed out, where some of the eight nodes' answers go through ``change``."""
    targets = np.full(USERS, 0.5) if method.problem.has_targets else None
    federation = federation_of(np.full((USERS, 2), 0.5), targets=targets)
    nodes = [Node(method.problem, federation, users) for users in shards(USERS, 50)]
    nodes = [ChangedNode(node, change) if at < changed else node for at, node in enumerate(nodes)]
    models = []
    with LocalGrid(nodes) as grid:
        method.start(grid, evaluate_fn=lambda _, arrays: models.append(model_vector(arrays)))
    return np.array(models)


def answers(rng, share):
    """Rows, or sums, of which a share is replaced by numbers from a few of `HOSTILE`."""
    numbers = rng.choice(HOSTILE, size=rng.integers(1, 4))

    def change(answer):
        rows = dense(answer.values)
        odd = rng.random((len(rows), 1)) < share
        return Answer(answer.users, np.where(odd, rng.choice(numbers, size=rows.shape), rows), 0)

    return change


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1), changed=st.sampled_from([1, 8]), share=st.sampled_from([0.02, 0.7, 1.0]))
def test_whatever_nodes_answer_every_model_is_finite_and_no_charged_round_fails(name, seed, changed, share):
    kind, options = CASES[name]
    method = method_of(kind, **options)
    try:
        models = models_of(method, answers(np.random.default_rng(seed), share), changed)
    except RunFailed as refused:  # sums that clipped users cannot add up to are missing, before anything is charged
        if "did not answer" not in str(refused):
            raise
        return
    assert len(models) > 1
    assert np.isfinite(models).all()


@pytest.mark.parametrize("name", ["robust_rounds", "outlier_removal"])
def test_a_step_beyond_the_floating_point_numbers_is_not_taken(name):
    """Gradients of 50 and a step size of 1e308, without bounds on the model: it stays, and the round is paid for."""
    method = method_of(name, Quadratic(2, 9.0, math.inf), learning_rate=1e308)
    models = models_of(method, lambda answer: Answer(answer.users, answer.values * 0 + 50.0, 0), 8)
    np.testing.assert_array_equal(models, np.zeros((3, 2)))
    assert method.spent_epsilon > 0


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_a_model_that_is_not_finite_is_never_released(wrong):
    method = make(DPFedSGD, Quadratic(2, 1.0, 1.0), 100, 1.0, 1e-3, rounds=1)
    method.state.take(Step(np.array([0.5, 0.25]), np.array([0.5, 0.25])), None, method.original)
    for following, released in (([wrong, 0.0], [0.0, 0.0]), ([0.0, 0.0], [0.0, wrong])):
        method.state.take(Step(np.array(following), np.array(released)), None, method.original)
        np.testing.assert_array_equal(method.state.x, [0.5, 0.25])
        np.testing.assert_array_equal(method.state.released, [0.5, 0.25])


def test_sums_that_would_overflow_together_count_as_missing_one_by_one():
    """Without a clip on the sum there is no other bound on it: neither an infinity nor a NaN comes of adding them."""
    method = method_of("non_private", max_missing=0.2)
    models = models_of(method, lambda answer: Answer(answer.users, answer.values * 0 + 1.7e308, 0), 1)
    others = method_of("non_private", max_missing=0.2)

    def gone(answer):
        raise OSError("this node is gone")

    np.testing.assert_array_equal(models, models_of(others, gone, 1))


def test_an_iterate_inside_a_phase_is_taken_as_it_is():
    """Only what is released may be replaced: inside a phase, that would be one more look at the data."""
    method = make(DPFedSGD, Quadratic(2, 1.0, 1.0), 100, 1.0, 1e-3, rounds=1)
    method.state.take(Step(np.array([np.inf, 0.0]), None), None, method.original)
    assert np.isinf(method.state.x[0])
    np.testing.assert_array_equal(method.state.released, np.zeros(2))
