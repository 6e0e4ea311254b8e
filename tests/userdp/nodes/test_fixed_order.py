"""Within a fixed order a user's row has the same bits alone, in any company and at any place in memory."""

import os
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from problem_cases import Case, binary, cases
from row_cases import CHOSEN, QUESTIONS, SUMMED, USERS, answering, asked_of, questions
from scipy.sparse import csr_array

from userdp.arrays.fixed_order import fixed_order
from userdp.arrays.sparse_rows import dense
from userdp.data import ColumnarFederation
from userdp.data.block import Block
from userdp.nodes.computations import Computation
from userdp.nodes.functions import ROW_FUNCTIONS
from userdp.nodes.node import Node
from userdp.problems import Cloglog, Huber, Quadratic
from userdp.problems.in_coordinates import Coordinates
from userdp.problems.one_score import OneScore

COMPARED = int(os.environ.get("USERDP_COMPANIES", "200"))
FIXED = {name for name, one in ROW_FUNCTIONS.items() if one.fixed_order}
PROBLEMS = {f"{name}-d{d}": case for d in (1, 3, 17) for name, case in cases(d).items() if case.problem.fixed_order}
PROBLEMS |= {
    f"{name}-terms": replace(case, problem=case.problem.with_terms(-0.5, 1.5))
    for name, case in PROBLEMS.items()
    if isinstance(case.problem, OneScore) and name.endswith("d3")
}


class Asked(Case):
    """A query, of cells that are often missing or at an end."""

    def block(self, sizes, seed=0):
        return self.problem.bound(answering(sizes, seed))[0]


PROBLEMS |= {
    "logistic-d70": cases(70)["logistic"],
    "by_period": Case(Cloglog(4, 2.5, 1.0).by_period(1, 3), binary),
    "query-sums": Asked(SUMMED),
    "query-quantiles": Asked(CHOSEN),
}
PATHS = defaultdict(list)
for one in PROBLEMS.values():
    PATHS[one.problem.name].append(one)


def moved(block, places):
    """Return the same samples at another place in memory."""
    if isinstance(block.features, csr_array):
        return block
    room = np.empty(block.features.size + 16, dtype=block.features.dtype)
    features = room[places : places + block.features.size].reshape(block.features.shape)
    features[:] = block.features
    return replace(block, features=features)


def node_of(problem, block):
    return Node(problem, ColumnarFederation(block), np.arange(block.users))


def answered(node, x, asked):
    answer = node.compute(x, node.users, asked)
    assert answer.non_finite == 0  # nobody counts as the centre because something failed
    return dense(answer.values)


def _compared(case, seed, most=60, enough=()):
    """Compare users' rows in a company with those alone and in another; count users by function and coordinates.

    One user in forty, or two, is alone. All functions ask the same nodes: making one takes longer than most answers.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, rng.choice([2, 6, 40]), int(rng.choice([2, 3, 8, most]))).tolist()
    block, x, counted = case.block(sizes, seed), case.model(seed), Counter()
    kept = rng.permutation(len(sizes))[: int(rng.integers(1, len(sizes)))]
    few = np.isin(np.repeat(np.arange(len(sizes)), sizes), kept)
    alone = rng.integers(0, len(sizes), max(2, len(sizes) // 40))
    node, some = node_of(case.problem, block), node_of(case.problem, block.thinned(few)[1])
    others = [(some, np.sort(kept))]
    others += [
        (node_of(case.problem, moved(block.part(user, user + 1), int(rng.integers(0, 16)))), [user]) for user in alone
    ]
    seen = None
    if not case.problem.sparse and case.problem.dimension <= 20 and seed % 2:
        width = getattr(case.problem, "width", len(x))
        seen = Coordinates(np.zeros_like(x), rng.normal(size=(width, width)))
    for name, (parameters, arrays) in questions(case.problem, rng).items():
        at = seen if name in ("user_gradient", "rough_user_gradient", "weighed_gradient", "steepness") else None
        if (name, at is None) in enough:
            continue
        clip = 0.1 if name == "user_gradient" else None
        asked = Computation(name, clip_norm=clip, parameters=parameters, arrays=arrays, separate=True, coordinates=at)
        together, plain = (answered(node, x, one) for one in (asked, replace(asked, separate=False)))
        np.testing.assert_allclose(together, plain, rtol=1e-4, atol=1e-4, err_msg=name)
        for other, users in others:
            np.testing.assert_array_equal(answered(other, x, asked), together[users], err_msg=name)
        counted[name, at is None] += len(kept) + len(alone)
    return counted


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_users_rows_have_the_same_bits_alone_and_in_any_company(name):
    for seed in range(4):
        assert _compared(PROBLEMS[name], seed)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_at_users_own_models_have_the_same_bits_alone(name):
    """Small steps of local training would round most differences away."""
    case, rng = PROBLEMS[name], np.random.default_rng(3)
    if case.problem.name == "table":
        return
    block = case.block(rng.integers(1, 9, 30).tolist(), 3)
    models = rng.uniform(-0.5, 0.5, (30, case.problem.dimension))
    with fixed_order(wanted=True):
        together = dense(case.problem.user_gradients_at(models, block))
        for user in range(30):
            alone = dense(case.problem.user_gradients_at(models[user : user + 1], block.part(user, user + 1)))
            np.testing.assert_array_equal(alone[0], together[user])


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_they_have_in_many_companies(path):
    """USERDP_COMPANIES random users for each function of each loss, with coordinates and without, or more."""
    counted, seed = Counter(), 100
    while seed < 100 + 2 * len(PATHS[path]) or min(counted.values()) < COMPARED:
        enough = {key for key, users in counted.items() if users >= COMPARED}
        counted += _compared(PATHS[path][seed // 2 % len(PATHS[path])], seed, 1000, enough)
        seed += 1


def test_every_function_of_a_fixed_order_is_tried():
    tried = {name for case in PROBLEMS.values() for name in questions(case.problem, np.random.default_rng(0))}
    assert tried == FIXED


@pytest.mark.parametrize("name", sorted(FIXED))
def test_the_rows_of_every_such_function_have_the_same_bits_alone(name):
    problem, parameters, arrays = QUESTIONS[name]
    block, x = asked_of(name).block(np.arange(USERS)), np.full(problem.dimension, 0.7)
    asked = Computation(name, clip_norm=0.2, parameters=parameters, arrays=arrays, separate=True)
    together = answered(node_of(problem, block), x, asked)
    assert name == "filled" or (together != together[0]).any()  # all samples can be used here
    for user in range(0, USERS, 7):
        alone = answered(node_of(problem, block.part(user, user + 1)), x, asked)
        np.testing.assert_array_equal(alone[0], together[user])


@pytest.mark.parametrize("problem", [Quadratic(9000, 1.0, 1.0), Huber(9000, 1.0, 1.0, 0.5)], ids=lambda one: one.name)
def test_rows_longer_than_a_buffer_of_numpy_have_the_same_bits_alone(problem):
    rng, x = np.random.default_rng(8), np.full(problem.dimension, 0.01)
    block = Block(rng.uniform(-1, 1, (4, problem.dimension)).astype(np.float32), np.arange(5))
    for name, parameters in {"clipped_sample_sum": {"sample_clip_norm": 0.3}, "loss_answer": {"limit": 1e4}}.items():
        asked = Computation(name, parameters=parameters, separate=True)
        together = answered(node_of(problem, block), x, asked)
        for user in range(4):
            alone = answered(node_of(problem, block.part(user, user + 1)), x, asked)
            np.testing.assert_array_equal(alone[0], together[user])
